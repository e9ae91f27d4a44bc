"""Symbolic links inside a lake are errors that name them, and nothing outside is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import StorageError
from floodmark.maintenance.gc import FailedCollection, collect_garbage
from floodmark.storage.local import LocalStore


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_bytes(b"mine")
    (folder / "file").write_bytes(b"mine")
    return folder


@pytest.fixture
def store(tmp_path: Path, outside: Path) -> LocalStore:
    store = LocalStore(tmp_path / "lake")
    store.put_if_absent("a/real", b"x")
    (tmp_path / "lake" / "a" / "folder").symlink_to(outside)
    (tmp_path / "lake" / "a" / "file").symlink_to(outside / "file")
    (tmp_path / "lake" / "a" / "broken").symlink_to(outside / "nothing")
    return store


USES: dict[str, Any] = {
    "get": lambda store, key: store.get(key),
    "get_range": lambda store, key: store.get_range(key, 0, 1),
    "stat": lambda store, key: store.stat(key),
    "open": lambda store, key: store.open(key),
    "local_path": lambda store, key: store.local_path(key),
    "put": lambda store, key: store.put_if_absent(key, b"new"),
    "derived": lambda store, key: store.put_derived(key, b"new"),
    "swap": lambda store, key: store.compare_and_swap(key, b"mine", b"new"),
    "delete": lambda store, key: store.delete(key),
    "turn": lambda store, key: store.turn(key).__enter__(),
}


@pytest.mark.parametrize("key", ["a/folder/file", "a/folder/deep/file", "a/folder/new", "a/file", "a/broken"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_link_is_refused_by_name_and_nothing_outside_changes(
    use: Any, key: str, store: LocalStore, outside: Path
) -> None:
    with pytest.raises(StorageError, match=r"a/(folder|file|broken)' is a symbolic link"):
        use(store, key)
    assert sorted(path.name for path in outside.rglob("*")) == ["deep", "file", "file"]
    assert {path.read_bytes() for path in outside.rglob("file")} == {b"mine"}


def test_listing_names_the_link(store: LocalStore) -> None:
    for prefix in ("", "a", "a/folder"):
        with pytest.raises(StorageError, match="is a symbolic link"):
            list(store.list(prefix))


def test_folder_of_the_lake_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "lake").symlink_to(tmp_path / "disk")
    store = LocalStore(tmp_path / "lake")
    store.put_if_absent("a/b", b"x")
    assert [info.key for info in store.list("")] == ["a/b"]
    assert (tmp_path / "disk" / "a" / "b").read_bytes() == b"x"


@pytest.mark.parametrize("part", ["data", "blocks", "info"])
def test_drop_and_gc_delete_nothing_outside(part: str, tmp_path: Path, outside: Path) -> None:
    lake = fm.Lake(tmp_path / "lake")
    lake.create("k", key="id").write(pa.table({"id": [1]}))
    [folder] = (tmp_path / "lake" / "datasets").iterdir()
    moved = tmp_path / "moved"
    (folder / part).rename(moved)
    (folder / part).symlink_to(outside)
    lake = fm.Lake(tmp_path / "lake")

    with pytest.raises(StorageError, match="is a symbolic link"):
        lake.drop("k")
    assert ["is a symbolic link" in one.error for one in collect_garbage(lake) if isinstance(one, FailedCollection)]
    assert [dataset.name for dataset in lake.datasets()] == ["k"]
    assert (folder / "refs" / "head").exists()
    assert sorted(path.name for path in outside.rglob("*")) == ["deep", "file", "file"]


def test_lock_that_is_a_link_makes_no_file_outside(tmp_path: Path, outside: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    store.put_if_absent("refs/other", b"x")
    (tmp_path / "lake" / "refs" / ".head.lock").symlink_to(outside / "lock")

    with pytest.raises(StorageError):
        store.compare_and_swap("refs/head", None, b"x")
    assert not (outside / "lock").exists()
