"""A full disk or a failing one leaves the dataset as it was, nothing unfinished, and an error that says what to do."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

import floodmark as fm
from faults.recording import HastyFileSystem, WatchedFileSystem
from faults.small_lake import NAME, SCENARIOS, Scenario, View, damage, open_lake, problem_of_next_write, rows, view
from floodmark.errors import StorageError, SwapUnknown
from floodmark.storage import page_checksums, scratch
from floodmark.storage.memory import MemoryStore
from profiles import IN_FULL, sample

FILLING = ("write_new", "copy_new", "mkdir", "link", "rename", "fsync_file", "fsync_dir", "flock")
NAMES = ("create", "write", "write-slices", "write-state", "advance", "evolve", "purge", "merge")
OPERATIONS = [scenario for scenario in SCENARIOS if scenario.name in NAMES]


def once(nth: int) -> Callable[[int, str], None]:
    """An I/O error in one call."""

    def before(number: int, name: str) -> None:
        if number == nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return before


def full_from(nth: int) -> Callable[[int, str], None]:
    """No space left from one call on, in every call that might need some."""

    def before(number: int, name: str) -> None:
        if number >= nth and name in FILLING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return before


ALL = [(scenario, failure) for scenario in OPERATIONS for failure in (once, full_from)]


class Trial:
    """One operation on copies of one lake, each disturbed in another way."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario, self._folder = scenario, folder
        self.before, self.after = scenario.views(folder / "undisturbed")
        scenario.prepare(folder / "prepared")

    def calls(self) -> list[str]:
        fs = WatchedFileSystem()
        self.scenario.run(self._copy("calls"), fs, lambda _: None)
        return fs.calls

    def disturbed(self, name: str, fs: Any) -> str | None:
        """What is wrong after the operation met with a failure, None if nothing is."""
        root = self._copy(name)
        error: fm.FloodmarkError | None = None
        try:
            self.scenario.run(root, fs, lambda _: None)
        except fm.FloodmarkError as raised:
            error = raised
        problem = self._problem(root / "lake", error)
        shutil.rmtree(root)
        return problem

    def _problem(self, root: Path, error: fm.FloodmarkError | None) -> str | None:
        if error is not None and not error.hint:
            return f"no hint: {error}"
        if root.joinpath(".staging").exists() and list(root.joinpath(".staging").iterdir()):
            return f"left in staging: {list(root.joinpath('.staging').iterdir())}"
        lake = open_lake(root, HastyFileSystem(), hour=2)
        found = view(lake)
        if found not in self._expected(error):
            return f"{error or 'done'}, but readers see {found}"
        return damage(lake) or problem_of_next_write(lake, found)

    def _expected(self, error: fm.FloodmarkError | None) -> list[View | None]:
        if error is None:
            return [self.after]
        if isinstance(error, fm.CommitUnknown | SwapUnknown):
            return [self.before, self.after]
        return [self.before]

    def _copy(self, name: str) -> Path:
        root = self._folder / name
        if (self._folder / "prepared").exists():
            shutil.copytree(self._folder / "prepared", root)
        return root


@pytest.mark.soak
@pytest.mark.parametrize(
    ("scenario", "failure"), ALL if IN_FULL else ALL[::3], ids=lambda value: getattr(value, "__name__", value)
)
def test_failure_of_any_call_leaves_the_dataset_as_it_was(scenario, failure, tmp_path):
    trial = Trial(scenario, tmp_path)
    calls = trial.calls()
    assert len(calls) > 10
    numbers = [nth for nth, call in enumerate(calls) if failure is once or call in FILLING]
    for nth in sample(numbers, 3):
        problem = trial.disturbed(str(nth), WatchedFileSystem(failure(nth)))
        assert problem is None, f"{calls[nth]}, call {nth}: {problem}"


@pytest.mark.parametrize("nth", range(4))
def test_disk_that_is_full_while_a_slice_is_written_is_explained(nth, tmp_path, monkeypatch):
    lake = open_lake(tmp_path / "lake", HastyFileSystem())
    dataset = lake.create(NAME, event_time="at")
    dataset.write(rows(1))
    before = view(lake)
    real, calls = page_checksums._HashingFile.write, itertools.count()

    def write(self: Any, data: Any) -> int:
        if next(calls) >= nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, data)

    with monkeypatch.context() as full:
        full.setattr(page_checksums._HashingFile, "write", write)
        with pytest.raises(StorageError, match="No space left on device") as refused:
            dataset.write(rows(2, 3))
    assert "Free disk space" in refused.value.hint
    assert next(calls) > nth
    assert list(lake.store.staging().iterdir()) == []
    assert view(lake) == before
    assert damage(lake) is None
    assert problem_of_next_write(lake, before) is None


@pytest.mark.parametrize(("module", "call"), [(Path, "mkdir"), (scratch.os, "open"), (scratch.fcntl, "flock")])
def test_staging_folder_that_cannot_be_made_is_explained(module, call, tmp_path, monkeypatch):
    lake = open_lake(tmp_path / "lake", HastyFileSystem())
    dataset = lake.create(NAME, event_time="at")
    dataset.write(rows(1))
    real = getattr(module, call)

    def fail(what: Any, *args: Any, **options: Any) -> Any:
        if call == "open" and Path(what).name != ".owner":
            return real(what, *args, **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(module, call, fail)
        with pytest.raises(StorageError, match="No space left on device") as refused:
            dataset.write(rows(2))
    assert "Free disk space" in refused.value.hint
    assert list(lake.store.staging().iterdir()) == []
    assert dataset.write(rows(2)).start == 1


def test_index_that_cannot_be_kept_does_not_fail_the_commit(tmp_path, monkeypatch, caplog):
    lake = open_lake(tmp_path / "lake", HastyFileSystem())
    dataset = lake.create(NAME, event_time="at")

    def full(*args: Any) -> None:
        raise StorageError("the disk is full", hint="make room")

    monkeypatch.setattr(lake.store, "put_derived", full)
    assert dataset.write(rows(1)).rows == 1
    assert dataset.write(rows(2)).start == 1
    assert "was not stored (the disk is full" in caplog.text
    assert lake[NAME].to_arrow()["n"].to_pylist() == [1, 2]
    assert damage(lake) is None


REQUESTS = ("get", "stat", "put_if_absent", "put_file", "put_derived", "compare_and_swap", "list", "delete")


class Flaky(MemoryStore):
    """A store that has no local files, on which the nth call from now on fails."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.fails_at: int | None = None

    def __getattribute__(self, name: str) -> Any:
        real = object.__getattribute__(self, name)
        if name not in REQUESTS:
            return real

        def call(*args: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) - 1 == self.fails_at:
                kind = SwapUnknown if name == "compare_and_swap" else StorageError
                raise kind("the network is down", hint="check the network", key=args[0], url="")
            return real(*args)

        return call


def test_remote_store_that_fails_in_any_call_leaves_the_dataset_as_it_was():
    for nth in itertools.count():
        store = Flaky()
        lake = fm.Lake(store)
        dataset = lake.create(NAME, event_time="at")
        dataset.write(rows(1))
        store.calls.clear()
        store.fails_at = nth
        expected = [1]
        with suppress(fm.FloodmarkError):
            dataset.write(rows(2), source="kafka", state="1")
            expected = [1, 2]
        reached, store.fails_at = len(store.calls) > nth, None
        assert lake[NAME].to_arrow()["n"].to_pylist() == expected
        assert list(store.staging().iterdir()) == []
        assert damage(lake) is None
        assert lake[NAME].write(rows(2), source="kafka", state="1").start == 1
        assert lake[NAME].to_arrow()["n"].to_pylist() == [1, 2]
        if not reached:
            assert nth > 5
            break


# A real disk of one megabyte


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting takes rights that we lack: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def filled(disk: Path, room: int) -> Iterator[None]:
    """The disk with only so many bytes left."""
    filler = disk / "filler"
    filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - room)))
    yield
    filler.unlink()


def noise(size: int) -> pa.Table:
    """Rows that do not get smaller by compression."""
    texts = [os.urandom(512).hex() for _ in range(size // 1024)]
    return rows(*range(len(texts))).append_column("text", pa.array(texts))


def as_frame(folder: Path) -> Any:
    return noise(2 << 20)


def as_batches(folder: Path) -> Any:
    return noise(2 << 20).to_reader()


def as_csv(folder: Path) -> Any:
    pa_csv.write_csv(noise(2 << 20), folder / "noise.csv")
    return folder / "noise.csv"


@pytest.mark.parametrize("data", [as_frame, as_batches, as_csv])
def test_data_that_the_disk_cannot_take_is_refused_and_leaves_nothing(data, small_disk, tmp_path):
    lake = fm.Lake(small_disk / "lake")
    dataset = lake.create(NAME, event_time="at")
    dataset.write(noise(1024))
    before, free = view(lake), shutil.disk_usage(small_disk).free
    with pytest.raises(StorageError, match="No space left on device") as refused:
        dataset.write(data(tmp_path))
    assert "Free disk space" in refused.value.hint
    assert list(lake.store.staging().iterdir()) == []
    assert shutil.disk_usage(small_disk).free == free
    assert view(lake) == before
    assert damage(lake) is None
    assert dataset.write(noise(2048)).rows == 2


@pytest.mark.soak
def test_however_little_room_is_left_a_write_is_done_or_refused(small_disk):
    lake = fm.Lake(small_disk / "lake")
    dataset = lake.create(NAME, event_time="at")
    dataset.write(rows(0))
    done, refusals = 0, []
    for room in sample(range(0, 96 << 10, 4 << 10), 8):
        before = view(lake)
        assert before is not None
        with filled(small_disk, room):
            try:
                dataset.write(rows(room))
                done += 1
            except fm.FloodmarkError as error:
                refusals.append((error.hint, view(lake) == before))
            assert list(lake.store.staging().iterdir()) == []
        assert lake[NAME].count() == 1 + done
    assert done
    assert refusals
    assert all("Free disk space" in hint and unchanged for hint, unchanged in refusals)
    assert damage(lake) is None
