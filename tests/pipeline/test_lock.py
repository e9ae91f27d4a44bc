"""A lake has one run at a time; whoever comes second is told who is first."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.errors import Busy, StorageError
from floodmark.pipeline import run_lock
from floodmark.pipeline.run_lock import LOCK_KEY, hold_run_lock
from floodmark.storage.memory import MemoryStore
from floodmark.storage.opening import open_store
from floodmark.storage.store import ObjectInfo
from waiting import wait_until

SECOND = 10**9
NOW = 1_790_000_000 * SECOND
HOLD = """
import sys, time
from floodmark.pipeline.run_lock import hold_run_lock
from floodmark.storage.opening import open_store
with hold_run_lock(open_store(sys.argv[1]), time.time_ns):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["disk", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path):
    return open_store(tmp_path) if request.param == "disk" else MemoryStore()


def clock() -> int:
    return NOW


def test_second_run_is_told_who_is_running(store):
    with hold_run_lock(store, clock):
        with pytest.raises(Busy, match=f"process {os.getpid()} on ") as caught, hold_run_lock(store, clock):
            pass
        assert (caught.value.pid, caught.value.since) == (os.getpid(), "2026-09-21T14:13:20+00:00")
    with hold_run_lock(store, clock):
        pass


def test_lock_is_free_after_an_error(store):
    with pytest.raises(ZeroDivisionError), hold_run_lock(store, clock):
        raise ZeroDivisionError
    with hold_run_lock(store, clock):
        pass


@pytest.mark.process
def test_process_that_is_killed_leaves_no_lock(tmp_path: Path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(Busy, match=f"process {process.pid} "), hold_run_lock(open_store(tmp_path), clock):
            pass
        process.kill()
        process.wait()
    with hold_run_lock(open_store(tmp_path), clock):
        pass


@pytest.mark.parametrize("call", ["ftruncate", "close"])
def test_run_that_ended_is_not_reported_as_failed_when_its_lock_cannot_be_released(call, tmp_path, monkeypatch):
    real, failures = getattr(os, call), []

    def fail(*arguments):
        real(*arguments)
        failures.append(call)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken, hold_run_lock(open_store(tmp_path), clock):
        broken.setattr(run_lock.os, call, fail)
    assert failures
    with hold_run_lock(open_store(tmp_path), clock):
        pass


def test_lock_that_fails_is_an_error_of_ours(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(run_lock.fcntl, "flock", fail)
    with pytest.raises(StorageError, match="cannot be opened and locked"), hold_run_lock(open_store(tmp_path), clock):
        pass


def test_lock_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "lake" / "runs").mkdir(parents=True)
    (tmp_path / "lake" / "runs" / "lock").symlink_to(tmp_path / "outside")
    with pytest.raises(StorageError, match="symbolic link"), hold_run_lock(open_store(tmp_path / "lake"), clock):
        pass
    assert not (tmp_path / "outside").exists()


def test_lease_that_ran_out_may_be_taken():
    store, now = MemoryStore(), [NOW]
    held = hold_run_lock(store, lambda: now[0])
    held.__enter__()
    now[0] += int(run_lock.LEASE_SECONDS * SECOND) - 1
    with pytest.raises(Busy), hold_run_lock(store, lambda: now[0]):
        pass
    now[0] += 1
    with hold_run_lock(store, lambda: now[0]):
        taken = store.get(LOCK_KEY)
        held.__exit__(None, None, None)  # whose it is no more must not give it away
        assert store.get(LOCK_KEY) == taken


class _AgedStore(MemoryStore):
    """A store in which the lock was renewed some time ago."""

    renewed_ago = 0.0

    def stat(self, key: str) -> ObjectInfo | None:
        info = super().stat(key)
        return replace(info, modified=info.modified - self.renewed_ago) if info and key == LOCK_KEY else info


def test_lease_of_a_clock_a_year_ahead_ends_when_it_is_not_renewed():
    store, year = _AgedStore(), 365 * 86_400 * SECOND
    with hold_run_lock(store, lambda: NOW + year):
        with pytest.raises(Busy), hold_run_lock(store, lambda: NOW):
            pass
        store.renewed_ago = run_lock.LEASE_SECONDS + 1
        with hold_run_lock(store, lambda: NOW):
            pass


def test_lease_is_renewed_while_the_run_lasts():
    store = MemoryStore()
    times = iter(range(NOW, NOW + 10**6 * SECOND, SECOND))
    with hold_run_lock(store, lambda: next(times), lease_seconds=0.03):
        first = store.get(LOCK_KEY)
        wait_until(lambda: store.get(LOCK_KEY) != first)


class _DeafStore(MemoryStore):
    """Swaps, and loses the answer, every second time."""

    swaps = 0

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        self.swaps += 1
        done = super().compare_and_swap(key, expected, new)
        if self.swaps % 2 == 0:
            raise StorageError("no answer", hint="")
        return done


def test_lease_whose_renewal_got_no_answer_is_renewed_again_and_given_back():
    store = _DeafStore()
    times = iter(range(NOW, NOW + 10**6 * SECOND, SECOND))
    with hold_run_lock(store, lambda: next(times), lease_seconds=0.03):
        said = {store.get(LOCK_KEY)}

        def is_renewed_often() -> bool:
            said.add(store.get(LOCK_KEY))
            return len(said) > 5

        wait_until(is_renewed_often)
    assert store.get(LOCK_KEY) == b"{}"


def test_lock_that_says_nothing_readable_is_still_somebodys(tmp_path: Path):
    store = open_store(tmp_path)
    with hold_run_lock(store, clock):
        (tmp_path / LOCK_KEY).write_text("{")
        with pytest.raises(Busy, match="another run is active"), hold_run_lock(store, clock):
            pass


def test_full_disk_keeps_nobody_from_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Who holds the lock is said for others; what cannot be written there matters to nobody else."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = open_store(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with (
            hold_run_lock(store, clock),
            pytest.raises(Busy, match="another run is active"),
            hold_run_lock(store, clock),
        ):
            pass


class _LostStore(MemoryStore):
    """Cannot be reached any more once it is lost."""

    lost = False

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        if self.lost:
            raise StorageError("the network is gone", hint="")
        return super().compare_and_swap(key, expected, new)


def test_lease_that_cannot_be_given_back_is_no_error():
    store = _LostStore()
    with hold_run_lock(store, clock):
        store.lost = True


def test_lake_that_cannot_be_written_to_is_an_error_with_a_hint(tmp_path: Path, monkeypatch):
    def refused(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(run_lock.os, "open", refused)
    with (
        pytest.raises(StorageError, match="Read-only file system") as caught,
        hold_run_lock(open_store(tmp_path), clock),
    ):
        pass
    assert str(tmp_path / LOCK_KEY) in caught.value.message
    assert "check the disk" in caught.value.hint
