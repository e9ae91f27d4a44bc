"""The local store keeps every promise of a store, across processes and on a failing disk."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadStoreUrl, StorageError, SwapUnknown
from floodmark.storage.file_system import OsFileSystem
from floodmark.storage.local import LocalStore
from storage.store_suite import StoreSuite, at_once, increment


class TestLocalStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(tmp_path / "made" / "on" / "demand")


class Failing(OsFileSystem):
    """A file system on which one kind of call fails."""

    def __init__(self, call: str, code: int) -> None:
        def fail(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        object.__setattr__(self, call, fail)


def files_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_found_object_is_young_again(tmp_path):
    store = LocalStore(tmp_path)
    store.put_if_absent("a", b"a")
    for put in ("put_if_absent", "put_file"):
        os.utime(tmp_path / "a", (1000, 1000))
        source = tmp_path / ".source"
        source.write_bytes(b"a")
        assert not getattr(store, put)("a", b"a" if put == "put_if_absent" else source)
        assert store.stat("a").modified > 1000


def test_found_object_is_not_written_again(tmp_path):
    LocalStore(tmp_path).put_if_absent("a", b"a")
    assert not LocalStore(tmp_path, Failing("write_new", errno.ENOSPC)).put_if_absent("a", b"a")


def test_put_file_comes_from_any_folder(tmp_path):
    source = tmp_path / "elsewhere"
    source.write_bytes(b"rows")
    store = LocalStore(tmp_path / "lake")
    assert store.put_file("data/a", source)
    assert store.get("data/a") == b"rows"
    assert not source.exists()


def test_put_file_copies_from_another_file_system(tmp_path):
    class TwoDisks(OsFileSystem):
        def link(self, source, target):
            if source.parent.name == "elsewhere":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            super().link(source, target)

    source = tmp_path / "elsewhere" / "file"
    source.parent.mkdir()
    source.write_bytes(b"rows")
    store = LocalStore(tmp_path / "lake", TwoDisks())
    assert store.put_file("data/a", source)
    assert store.get("data/a") == b"rows"
    assert not source.exists()
    assert list(store.staging().iterdir()) == []


def test_put_derived_file_moves_and_copies_only_from_another_file_system(tmp_path):
    class TwoDisks(OsFileSystem):
        def rename(self, source, target):
            if source.parent.name == "elsewhere":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            super().rename(source, target)

    store = LocalStore(tmp_path / "lake", TwoDisks())
    for folder, is_moved in ((tmp_path / "elsewhere", False), (store.staging(), True)):
        folder.mkdir(exist_ok=True)
        source = folder / "file"
        source.write_bytes(b"rows")
        inode = source.stat().st_ino
        store.put_derived_file("info/a", source)
        assert store.get("info/a") == b"rows"
        assert (store.local_path("info/a").stat().st_ino == inode) is is_moved
        assert not source.exists()
        assert list(store.staging().iterdir()) == []


def test_file_to_put_that_is_missing_is_named(tmp_path):
    with pytest.raises(StorageError, match="no-such-file"):
        LocalStore(tmp_path / "lake").put_file("data/a", tmp_path / "no-such-file")


@pytest.mark.parametrize("call", ["write_new", "fsync_file", "link"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_failed_put_leaves_nothing(tmp_path, call, code):
    with pytest.raises(StorageError) as caught:
        LocalStore(tmp_path, Failing(call, code)).put_if_absent("blocks/a", b"12345")
    assert caught.value.errno == code
    assert caught.value.key == "blocks/a"
    assert files_of(tmp_path) == []
    assert LocalStore(tmp_path).put_if_absent("blocks/a", b"12345")


@pytest.mark.parametrize("call", ["write_new", "fsync_file", "rename"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_swap_that_failed_before_the_move_did_not_happen(tmp_path, call, code):
    LocalStore(tmp_path).compare_and_swap("refs/head", None, b"a")
    with pytest.raises(StorageError) as caught:
        LocalStore(tmp_path, Failing(call, code)).compare_and_swap("refs/head", b"a", b"b")
    assert not isinstance(caught.value, SwapUnknown)
    assert LocalStore(tmp_path).get("refs/head") == b"a"
    assert files_of(tmp_path) == ["refs/.head.lock", "refs/head"]


def test_swap_that_failed_after_the_move_is_unknown(tmp_path):
    class FailsOnRefs(OsFileSystem):
        def fsync_dir(self, path):
            if path.name == "refs":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().fsync_dir(path)

    with pytest.raises(SwapUnknown) as caught:
        LocalStore(tmp_path, FailsOnRefs()).compare_and_swap("refs/head", None, b"a")
    assert caught.value.key == "refs/head"
    assert LocalStore(tmp_path).get("refs/head") == b"a"
    assert list((tmp_path / ".staging").iterdir()) == []


def test_full_disk_says_how_much_is_needed_and_free(tmp_path):
    class Full(Failing):
        def free_bytes(self, path):
            return 1234

    store = LocalStore(tmp_path / "lake", Full("write_new", errno.ENOSPC))
    with pytest.raises(StorageError, match=r"5,000 bytes were needed and 1,234 are free"):
        store.put_if_absent("a", b"x" * 5000)


def test_full_disk_that_has_not_even_room_for_the_folder_says_what_is_free(tmp_path):
    class Full(Failing):
        def free_bytes(self, path):
            assert path == tmp_path
            return 0

    store = LocalStore(tmp_path / "lake", Full("mkdir", errno.ENOSPC))
    with pytest.raises(StorageError, match=r"5 bytes were needed and 0 are free"):
        store.put_if_absent("a", b"x" * 5)


def test_file_system_without_locks_is_named_as_the_problem(tmp_path):
    store = LocalStore(tmp_path, Failing("flock", errno.ENOLCK))
    with pytest.raises(StorageError, match="lacks hard links, locks"):
        store.compare_and_swap("refs/head", None, b"a")


def test_name_that_is_a_file_cannot_be_a_folder(tmp_path):
    store = LocalStore(tmp_path)
    store.put_if_absent("a", b"a")
    with pytest.raises(StorageError, match="a file that has the name of a folder"):
        store.put_if_absent("a/b", b"b")


def test_hidden_and_foreign_names_are_not_listed(tmp_path):
    store = LocalStore(tmp_path)
    store.put_if_absent("blocks/a", b"a")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"x")
    (tmp_path / "blocks" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "blocks" / "back\\slash").write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(tmp_path / "blocks") + b"/\xff")).write_bytes(b"x")
    assert [info.key for info in store.list("")] == ["blocks/a"]


def test_list_skips_a_name_that_vanishes_while_it_looks(tmp_path, monkeypatch):
    (tmp_path / "stays").write_bytes(b"x")
    (tmp_path / "vanishes").write_bytes(b"x")
    scandir = os.scandir

    @contextmanager
    def slow(path):
        with scandir(path) as entries:
            found = list(entries)
        (tmp_path / "vanishes").unlink()
        yield iter(found)

    monkeypatch.setattr(os, "scandir", slow)
    assert [info.key for info in LocalStore(tmp_path).list("")] == ["stays"]


def test_root_can_be_a_file_url(tmp_path):
    (tmp_path / "a lake").mkdir()
    (tmp_path / "a lake" / "a").write_bytes(b"here")
    assert LocalStore(f"file://{tmp_path}/a%20lake").get("a") == b"here"
    assert LocalStore(f"file://localhost{tmp_path}/a%20lake").url == str(tmp_path / "a lake")
    with pytest.raises(BadStoreUrl, match="three slashes"):
        LocalStore("file://lake/trips")


def test_root_is_absolute_wherever_it_is_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = LocalStore("lake/../other")
    assert store.url == str(tmp_path / "other")
    assert LocalStore("~/lake").url == str(Path.home() / "lake")


def test_root_in_a_folder_that_cannot_be_opened_works(tmp_path):
    class Closed(OsFileSystem):
        def fsync_dir(self, path):
            if path == tmp_path:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            super().fsync_dir(path)

    (tmp_path / "lake").mkdir()
    assert LocalStore(tmp_path / "lake", Closed()).put_if_absent("a", b"a")
    with pytest.raises(StorageError):
        LocalStore(tmp_path / "other", Closed()).put_if_absent("a", b"a")


def test_file_and_folder_are_really_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    (tmp_path / "file").write_bytes(b"x")
    OsFileSystem().fsync_file(tmp_path / "file")
    OsFileSystem().fsync_dir(tmp_path)
    assert synced == [(tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino]


def test_lock_does_not_live_on_in_a_process_forked_meanwhile(tmp_path, monkeypatch):
    descriptors = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *args: descriptors.append(real(*args)) or descriptors[-1])
    with OsFileSystem().flock(tmp_path / ".lock"):
        copy = os.dup(descriptors[-1])  # what a forked process would have
    another = real(tmp_path / ".lock", os.O_RDWR)
    fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(another)
    os.close(copy)


def test_only_one_thread_has_the_turn(tmp_path):
    store = LocalStore(tmp_path)
    inside = []

    def take(number):
        with store.turn("refs/head"):
            inside.append(number)
            alone = len(inside) == 1
            time.sleep(0.002)
            inside.clear()
            return alone

    assert all(at_once(5, take))


def test_turns_of_two_keys_do_not_meet(tmp_path):
    store = LocalStore(tmp_path)
    with store.turn("a/head"), store.turn("b/head"):
        pass


@pytest.mark.process
def test_no_increment_of_many_processes_is_lost(tmp_path):
    store = LocalStore(tmp_path)
    store.compare_and_swap("counter", None, b"0")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=increment, args=(store, "counter", 30)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert store.get("counter") == b"90"


class _StickyLocks(OsFileSystem):
    """Locks whose release fails, as on a network file system that is gone."""

    @contextmanager
    def flock(self, path):
        with super().flock(path):
            yield
        raise OSError(errno.EIO, "unlock failed")


def test_failed_unlock_does_not_report_a_finished_commit_as_failed(tmp_path):
    store = LocalStore(tmp_path / "lake", _StickyLocks())
    assert store.compare_and_swap("refs/head", None, b"1")
    lake = fm.Lake(store)

    commit = lake.create("k").write(pa.table({"v": [1]}))

    assert commit.rows == 1
    assert fm.Lake(tmp_path / "lake")["k"].count() == 1


def test_error_under_a_lock_is_reported_although_the_unlock_fails(tmp_path):
    store = LocalStore(tmp_path / "lake", _StickyLocks())
    with pytest.raises(ZeroDivisionError), store.turn("refs/head"):
        _ = 1 / 0
