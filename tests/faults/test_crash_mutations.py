"""The crash tests can fail: without any one fsync, or with another swap, they find a bad state.

`tests/mutants/faults.toml` has more breaks: another order of publishing, for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from faults.crash_states import chosen_states
from faults.recording import FsyncDir, Recording, RecordingFileSystem, fsync_calls
from faults.small_lake import NAME, SCENARIOS, Checker, Scenario, create, rows, write, write_again
from floodmark.storage.memory import MemoryStore
from profiles import sample

SYNCING = [scenario for scenario in SCENARIOS if scenario.name not in ("life", "catch-up")]
STATES = 16

Call = tuple[str, int, str]


class Without:
    """A file system on which some calls are left out, in fact and in the recording."""

    def __init__(self, inner: Any, calls: Sequence[Call]) -> None:
        self._inner = inner
        self._left_out = {(name, nth) for name, nth, _ in calls}
        self._counters = {"fsync_file": count(), "fsync_dir": count()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fsync_file(self, path: Path) -> None:
        self._sync("fsync_file", path)

    def fsync_dir(self, path: Path) -> None:
        self._sync("fsync_dir", path)

    def _sync(self, name: str, path: Path) -> None:
        if (name, next(self._counters[name])) not in self._left_out:
            getattr(self._inner, name)(path)


def makes_up(later: Call, earlier: Call) -> bool:
    """Whether a sync of a folder also does what an earlier one of the same folder was for."""
    return later[0] == earlier[0] == "fsync_dir" and later[2] == earlier[2] and later[1] > earlier[1]


def folder_syncs(recording: Recording) -> list[Call]:
    """All of them, those with nothing to do included."""
    paths = [operation.path for operation in recording.operations if isinstance(operation, FsyncDir)]
    return [("fsync_dir", nth, path) for nth, path in enumerate(paths)]


@pytest.mark.soak
@pytest.mark.parametrize("scenario", sample(SYNCING, 3), ids=str)
def test_every_fsync_is_missed(scenario: Scenario, tmp_path):
    """Each by itself; one of a folder that a later one makes up for, together with the later ones."""
    checker = Checker(scenario, tmp_path / "states")
    undisturbed = scenario.recorded(tmp_path / "run")
    calls = fsync_calls(undisturbed)
    assert {name for name, _, _ in calls} == {"fsync_file", "fsync_dir"}
    for number, call in enumerate(sample(calls, 3)):
        if is_missed(scenario, [call], checker, tmp_path / f"without {number}"):
            continue
        later = [other for other in folder_syncs(undisturbed) if makes_up(other, call)]
        assert later, f"nobody misses {call}"
        assert is_missed(scenario, [call, *later], checker, tmp_path / f"without {number} and later"), call


def is_missed(scenario: Scenario, calls: Sequence[Call], checker: Checker, folder: Path) -> bool:
    recording = scenario.recorded(folder, lambda fs: Without(fs, calls))
    return checker.first_problem(chosen_states(recording, STATES)) is not None


# The compare-and-swap


class InPlace:
    """A file system that writes the head as it lies there, even if it syncs it at once."""

    def __init__(self, inner: RecordingFileSystem) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def rename(self, source: Path, target: Path) -> None:
        if target.name != "head" or not target.exists():
            self._inner.rename(source, target)
            return
        self._inner.overwrite(target, self._inner.read(source))
        self._inner.fsync_file(target)
        self._inner.unlink(source)


def test_head_that_is_written_in_place_is_found_torn(tmp_path):
    scenario = Scenario("write", (write_again,), (create, write))
    checker = Checker(scenario, tmp_path / "states")
    assert "refs/head does not contain a block hash" in (
        checker.first_problem(chosen_states(scenario.recorded(tmp_path / "run", InPlace), STATES)) or ""
    )


class Overtaken(MemoryStore):
    """A store without turns, on which another writer commits just before a swap of the head."""

    def __init__(self) -> None:
        super().__init__()
        self.overtake: Callable[[], None] | None = None

    def turn(self, key: str) -> Any:
        return nullcontext()

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        if self.overtake is not None and key.endswith("/head"):
            overtake, self.overtake = self.overtake, None
            overtake()
        return self.swap(key, expected, new)

    def swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        return super().compare_and_swap(key, expected, new)


class Blind(Overtaken):
    """The same, but a swap does not compare."""

    def swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        self.delete(key)
        return self.put_if_absent(key, new)


def race(store: Overtaken) -> list[int]:
    """What is there after two writers, one overtaking the other, were both told that they have committed."""
    lake = fm.Lake(store)
    dataset = lake.create(NAME, event_time="at")
    dataset.write(rows(1))
    store.overtake = lambda: lake[NAME].write(rows(2)) and None
    dataset.write(rows(3))
    assert lake[NAME].verify().ok
    found: list[int] = lake[NAME].to_arrow()["n"].to_pylist()
    return found


def test_overtaken_writer_commits_after_the_other():
    assert race(Overtaken()) == [1, 2, 3]


def test_swap_that_does_not_compare_loses_a_commit():
    assert race(Blind()) == [1, 3]
