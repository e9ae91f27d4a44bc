"""Every operation, disturbed at each of its calls: the lake is as before or as after, the error is ours, a retry works.

In a folder, at each call of the file system: the process is killed, power is lost (files that were not synced are
torn), one call fails, or the disk is full from there on. In a bucket, at each request: it fails, its answer is lost,
its answer ends in the middle, or no request is done from there on.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from faults.fault_points import DisturbedDisk, FaultPoint, Killed, fail_once, is_full, kill
from faults.operations import MONTH, OPERATIONS, Operation, Place, Seen, look, problems
from faults.recording import HastyFileSystem
from floodmark.errors import SwapUnknown
from floodmark.ledger.witness import STATE_FOLDER
from floodmark.storage.cloud import CloudStore
from floodmark.storage.local import LocalStore
from profiles import IN_FULL, SEED, examples
from small_s3 import CUT, LOST, QUICK_RETRIES, REFUSED, SmallS3, small_s3
from transforms.worlds import in_this_process
from views.refresh_worlds import NoSession

HOURS = pytest.mark.timeout(6 * 3600)  # all cases of an operation take up to an hour on a busy machine
TRIALS = 5  # per operation, of which a short run does some; a long soak does all
IN_BUCKETS = ("append", "upsert", "purge keyed", "erase", "drop", "backfill", "run", "timeline", "ingest", "refresh")
"""The operations that a short run disturbs in a bucket, too."""


def chosen(cases: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """All cases in a long soak, else some of them."""
    return cases if IN_FULL else random.Random(SEED + len(cases)).sample(cases, min(len(cases), examples(TRIALS)))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(STATE_FOLDER, str(tmp_path))
    with in_this_process():
        yield


class Trial:
    """One operation on copies of one lake, each disturbed in another way."""

    def __init__(self, operation: Operation, folder: Path, session: Any) -> None:
        self.operation, self.folder, self.session = operation, folder, session
        self.states = list(self._undisturbed())

    def lake(self, store: Any) -> fm.Lake:
        session = self.session or NoSession()
        return fm.Lake(store, runtime=fm.Runtime(session=session, checkpoint_seconds=0.001))

    def cases(self) -> list[tuple[str, int]]:
        """Each fault at each call."""
        raise NotImplementedError

    def problem(self, fault: str, nth: int) -> str | None:
        """What is wrong after this fault at the nth call, None if nothing is."""
        raise NotImplementedError

    def _undisturbed(self) -> Iterator[Seen]:
        """What readers see before the operation, and after each of its swaps."""
        raise NotImplementedError

    def outcome(self, place: Place) -> BaseException | None:
        """Do the operation; what it raised."""
        os.environ[STATE_FOLDER] = str(place.folder / "state")  # another copy of a dataset may have had a newer head
        try:
            self.operation.run(place)
        except (Exception, Killed) as error:
            return error
        return None

    def judged(self, outcome: BaseException | None, place: Place) -> str | None:
        """What is wrong with the lake after the operation ended like this, and after it is done again."""
        if outcome is not None and not isinstance(outcome, fm.FloodmarkError | Killed):
            return f"not an error of ours: {''.join(traceback.format_exception(outcome))}"
        if isinstance(outcome, fm.FloodmarkError) and not outcome.hint:
            return f"no hint: {outcome!r}"
        found = look(place.lake)
        said = "done" if outcome is None else repr(outcome)
        before, *_, after = self.states
        if found not in self.states:
            return f"{said}, but readers see {found}"
        if outcome is None and found != after:
            return f"done, but readers see {found}"
        is_failure = isinstance(outcome, fm.FloodmarkError) and not isinstance(outcome, fm.CommitUnknown | SwapUnknown)
        if is_failure and found == after and before != after and self.operation.once:
            return f"it happened, but was reported as failed: {said}"
        if (again := self.outcome(place)) is not None:
            return f"{said}, and again: {''.join(traceback.format_exception(again))}"
        if (found := look(place.lake)) != after:
            return f"{said}, and after doing it again readers see {found}"
        return "; ".join(problems(place.lake)) or None


# In a folder

DISK_FAULTS: dict[str, tuple[Callable[[str], None], bool]] = {
    "killed": (kill, True),
    "power lost": (kill, True),
    "EIO": (fail_once, False),
    "ENOSPC": (is_full, True),
}


class _Watched(LocalStore):
    """A folder that is looked at after each swap."""

    swapped: Callable[[], None] = staticmethod(lambda: None)

    def compare_and_swap(self, key: str, expected: bytes | None, new: Any) -> bool:
        done = super().compare_and_swap(key, expected, new)
        if done and expected != new:
            self.swapped()
        return done


class FolderTrial(Trial):
    def place(self, name: str, fs: Any = None) -> Place:
        root = self.folder / name
        return Place(self.lake(LocalStore(root / "lake", fs or HastyFileSystem())), root)

    def copied(self, name: str) -> Path:
        return Path(shutil.copytree(self.folder / "prepared", self.folder / name))

    def _undisturbed(self) -> Iterator[Seen]:
        (self.folder / "prepared").mkdir(parents=True)
        for act in self.operation.prepare:
            act(self.place("prepared"))
        if self.operation.ages:
            past = time.time() - MONTH
            for path in (self.folder / "prepared" / "lake").rglob("*"):
                os.utime(path, (past, past))
        seen = [look(self.place("prepared").lake)] if self.operation.prepare else [{}]
        root = self.copied("whole")

        def looked() -> None:
            shutil.copytree(root, self.folder / "seen")
            seen.append(look(self.place("seen").lake))
            shutil.rmtree(self.folder / "seen")

        store = _Watched(root / "lake", HastyFileSystem())
        store.swapped = looked
        self.operation.run(Place(self.lake(store), root))
        seen.append(look(self.place("whole").lake))
        return iter(seen)

    def cases(self) -> list[tuple[str, int]]:
        root = self.copied("counted")
        disk = DisturbedDisk((root,))
        with disk.disturbing():
            self.operation.run(self.place("counted", disk))
        shutil.rmtree(root)
        return [(fault, nth) for nth in range(len(disk.calls) + 1) for fault in DISK_FAULTS]

    def problem(self, fault: str, nth: int) -> str | None:
        root = self.copied("disturbed")
        act, lasts = DISK_FAULTS[fault]
        disk = DisturbedDisk((root,), FaultPoint(nth, act, lasts))
        with disk.disturbing():
            outcome = self.outcome(self.place("disturbed", disk))
        if fault == "power lost":
            disk.tear()
        problem = self.judged(outcome, self.place("disturbed"))
        shutil.rmtree(root)
        return problem and f"{fault} at call {nth}, {disk.calls[nth : nth + 1]}: {problem}"


def names(operation: Operation) -> list[Any]:
    return [pytest.mark.spark] if operation.spark else []


EVERY = [pytest.param(operation, id=str(operation), marks=names(operation)) for operation in OPERATIONS]


@pytest.fixture
def session_of(request: pytest.FixtureRequest) -> Callable[[Operation], Any]:
    return lambda operation: request.getfixturevalue("session") if operation.spark else None


@HOURS
@pytest.mark.soak
@pytest.mark.parametrize("operation", EVERY)
def test_operation_in_a_folder_holds_at_every_call(operation, tmp_path, session_of):
    trial = FolderTrial(operation, tmp_path, session_of(operation))
    cases = trial.cases()
    assert len(cases) > 40
    found = [trial.problem(*case) for case in chosen(cases)]
    assert [problem for problem in found if problem] == []


# On a disk that is really full, also for Arrow and for temporary files


class FullDiskTrial(FolderTrial):
    """The folder is a disk of its own, of which only some bytes are left."""

    def cases(self) -> list[tuple[str, int]]:
        return [("room", room) for room in range(0, 64 << 10, 4 << 10)]

    def problem(self, fault: str, nth: int) -> str | None:
        root = self.copied("disturbed")
        filler = self.folder / "filler"
        filler.write_bytes(bytes(max(0, shutil.disk_usage(self.folder).free - nth)))
        outcome = self.outcome(self.place("disturbed"))
        filler.unlink()
        problem = self.judged(outcome, self.place("disturbed"))
        shutil.rmtree(root)
        return problem and f"{nth} bytes of room: {problem}"


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=4m"]
    mounted = subprocess.run(["mount", *options, "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting takes rights that we lack: {mounted.stderr.strip()}")
    (folder / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@HOURS
@pytest.mark.soak
@pytest.mark.parametrize(
    "operation", [one for one in OPERATIONS if not one.spark and (IN_FULL or one.name in IN_BUCKETS)], ids=str
)
def test_operation_on_a_full_disk_is_done_or_refused(operation, small_disk):
    trial = FullDiskTrial(operation, small_disk, None)
    found = [trial.problem(*case) for case in chosen(trial.cases())]
    assert [problem for problem in found if problem] == []


# In a bucket

REQUEST_FAULTS: dict[str, tuple[str, bool, Any]] = {
    "refused": (REFUSED, False, None),
    "lost": (LOST, False, None),
    "lost and sent again": (LOST, False, QUICK_RETRIES),
    "cut": (CUT, False, None),
    "down": (REFUSED, True, None),
}


class _WatchedBucket(CloudStore):
    swapped: Callable[[], None] = staticmethod(lambda: None)

    def compare_and_swap(self, key: str, expected: bytes | None, new: Any) -> bool:
        done = super().compare_and_swap(key, expected, new)
        if done and expected != new:
            self.swapped()
        return done


class BucketTrial(Trial):
    def __init__(self, operation: Operation, folder: Path, session: Any, s3: SmallS3) -> None:
        self.s3 = s3
        super().__init__(operation, folder, session)

    def place(self, name: str, retries: Any = None) -> Place:
        folder = self.folder / name
        if not folder.exists():
            shutil.copytree(self.folder / "prepared", folder)
        return Place(self.lake(self.s3.store(name, retries=retries)), folder)

    def _undisturbed(self) -> Iterator[Seen]:
        (self.folder / "prepared").mkdir(parents=True)
        for act in self.operation.prepare:
            act(self.place("prepared"))
        if self.operation.ages:
            self.s3.aged("prepared", MONTH)
        seen = [look(self.place("prepared").lake)]
        self.s3.copied("prepared", "whole")
        store = self.s3.store("whole", _WatchedBucket)
        store.swapped = lambda: seen.append(look(self.place("whole").lake))
        self.operation.run(Place(self.lake(store), self.place("whole").folder))
        seen.append(look(self.place("whole").lake))
        return iter(seen)

    def cases(self) -> list[tuple[str, int]]:
        self.s3.copied("prepared", "counted")
        self.s3.reset()
        self.operation.run(self.place("counted"))
        requests = self.s3.requests
        return [(fault, nth) for nth in range(len(requests)) for fault in REQUEST_FAULTS]

    def problem(self, fault: str, nth: int) -> str | None:
        kind, lasts, retries = REQUEST_FAULTS[fault]
        name = f"{fault} {nth}".replace(" ", "-")
        self.s3.copied("prepared", name)
        place = self.place(name, retries)
        self.s3.reset(lambda number, *_: kind if number == nth or (lasts and number > nth) else None)
        outcome = self.outcome(place)
        request = self.s3.requests[nth : nth + 1]
        self.s3.reset()
        problem = self.judged(outcome, self.place(name))
        self.s3.removed(name)
        shutil.rmtree(place.folder)
        return problem and f"{fault} at request {nth}, {request}: {problem}"


@pytest.fixture(scope="module")
def s3() -> Iterator[SmallS3]:
    with small_s3() as server:
        yield server


@pytest.fixture
def empty_s3(s3: SmallS3) -> SmallS3:
    s3.reset()
    s3.objects.clear()
    return s3


@HOURS
@pytest.mark.soak
@pytest.mark.parametrize("operation", [one for one in EVERY if IN_FULL or one.id in IN_BUCKETS])
def test_operation_in_a_bucket_holds_at_every_request(operation, tmp_path, session_of, empty_s3):
    trial = BucketTrial(operation, tmp_path, session_of(operation), empty_s3)
    cases = trial.cases()
    assert len(cases) > 20
    found = [trial.problem(*case) for case in chosen(cases)]
    assert [problem for problem in found if problem] == []
