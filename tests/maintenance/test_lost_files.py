"""`verify` finds names, catalogs and notes that are gone or changed, though no block names them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.maintenance.name_check import find_name_problems
from floodmark.storage.memory import MemoryStore
from profiles import sample
from transforms.worlds import in_this_process


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def doubled(rows: pa.Table) -> pa.Table:
    return rows


@pytest.fixture
def lake() -> fm.Lake:
    """Two datasets, of which a step computes the second in two versions."""
    lake = fm.Lake(MemoryStore())
    lake.create("a", key="id").write(pa.table({"id": [1, 2], "n": [1, 2]}))
    for version in ("1", "2"):
        fm.BatchTransform(doubled, inputs=["a"], outputs=["b"], version=version, name="doubled").run(lake)
        lake["a"].write(pa.table({"id": [1], "n": [int(version) + 5]}))
    return lake


def put(lake: fm.Lake, key: str, data: bytes | None) -> None:
    lake.store.delete(key)
    if data is not None:
        lake.store.put_if_absent(key, data)


def keys(lake: fm.Lake, part: str) -> list[str]:
    found = [info.key for info in lake.store.list("") if part in info.key]
    assert found
    return found


def test_sound_lake_has_no_problem(lake: fm.Lake) -> None:
    assert list(find_name_problems(lake.store)) == []
    assert [dataset.verify().problems for dataset in lake] == [(), ()]


@pytest.mark.parametrize("data", [None, b"", b"{}"], ids=["gone", "empty", "without an id"])
@pytest.mark.parametrize("lost", [["names/a"], ["names/b"], ["names/a", "names/b"]], ids=str)
def test_dataset_without_its_name_is_found(lake: fm.Lake, lost: list[str], data: bytes | None) -> None:
    """`verify` once checked the other datasets, and said ok."""
    for key in lost:
        put(lake, key, data)
    found = list(find_name_problems(lake.store))
    assert [one.kind for one in found] == ["name"] * len(lost)


def test_freed_name_of_a_dropped_dataset_is_no_problem(lake: fm.Lake) -> None:
    lake.drop("b")
    assert list(find_name_problems(lake.store)) == []


@pytest.mark.parametrize("part", ["info/transform/made", "info/transform/declared"])
def test_note_of_a_step_that_is_gone_or_changed_is_found(lake: fm.Lake, part: str) -> None:
    for key in keys(lake, part):
        data = lake.store.get(key)
        places = sample(range(len(data)), 15)
        for harmed in (None, b"", *(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in places)):
            put(lake, key, harmed)
            found = lake["b"].verify().problems
            assert [(one.kind, one.object) for one in found] == [("note", key)]
        put(lake, key, data)
    assert lake["b"].verify().ok


def test_catalog_of_computed_columns_that_is_gone_is_found(lake: fm.Lake) -> None:
    @fm.udf(returns=pa.int64())
    def more(n: int) -> int:
        return n + 1

    lake["a"].add_column("more", more, ["n"])
    lake["a"].backfill("more")
    assert lake["a"].verify().ok
    [catalog] = keys(lake, "columns/catalog")
    lake.store.delete(catalog)
    assert [(one.kind, one.object) for one in lake["a"].verify().problems] == [("column", catalog)]
