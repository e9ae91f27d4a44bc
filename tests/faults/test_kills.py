"""A writer that is killed at any moment has committed all that it said, nothing twice, and leaves nothing for long."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import floodmark as fm
from faults.writers import row
from floodmark.ledger import staging

NAME = "trips"
WRITERS = (1, 2)
ROUNDS = 20  # of two kills each


KILLED = """
import os, signal, sys
import floodmark as fm
from faults.writers import row
from floodmark.ledger import write

write.publish = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
fm.Lake(sys.argv[1])[sys.argv[2]].write(row(0, 1))
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


class Victim:
    """A writing process, which is started early, let go, and killed."""

    def __init__(self, lake: fm.Lake, writer: int, first: int) -> None:
        command = [sys.executable, "-m", "faults.writers", lake.store.url, NAME, str(writer), str(first)]
        self.writer, self._first = writer, first
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )

    def go(self) -> None:
        assert self._process.stdout
        assert self._process.stdout.readline() == "ready\n"
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def kill(self) -> int:
        """End the process; the number after the last that it said is committed."""
        assert self._process.poll() is None, "it ended by itself"
        self._process.kill()
        said, _ = self._process.communicate(timeout=60)
        numbers = [int(line) for line in said.split()]
        assert numbers == list(range(self._first, self._first + len(numbers)))
        return self._first + len(numbers)


def committed(lake: fm.Lake) -> dict[int, int]:
    """For each writer the number after the last that is there: whole, once each and in order."""
    dataset = lake[NAME]
    found = dataset.verify()
    assert found.problems == ()
    table = dataset.to_arrow()
    count = Counter(zip(*table.to_pydict().values(), strict=True))
    ends = {writer: 1 + max((n for w, n in count if w == writer), default=-1) for writer in WRITERS}
    assert count == {(w, n): 1 + n % 3 for w in WRITERS for n in range(ends[w])}
    return ends


@pytest.mark.slow
def test_writers_that_are_killed_lose_nothing_and_repeat_nothing(tmp_path):
    chance = random.Random(2026)
    lake = fm.Lake(tmp_path / "lake")
    lake.create(NAME, schema={"writer": "int64", "number": "int64"})
    said = dict.fromkeys(WRITERS, 0)
    for _ in range(ROUNDS):
        with Victim(lake, 1, said[1]) as one, Victim(lake, 2, said[2]) as other:
            one.go()
            other.go()
            for victim in chance.sample([one, other], 2):
                time.sleep(chance.uniform(0, 0.3))
                said[victim.writer] = victim.kill()
        ends = committed(lake)
        for writer in WRITERS:
            # The last one may have been committed without having been said: then the next victim says it again.
            assert ends[writer] - said[writer] in (0, 1)
    assert sum(said.values()) > ROUNDS
    lake[NAME].write(row(0, 0))
    # A folder that its writer had not locked yet is left alone for a minute: the writer may live.
    left = [entry.name for entry in lake.store.staging().iterdir() if entry.is_dir()]
    assert [name for name in left if not name.startswith("new-")] == []


def test_folder_of_a_writer_that_was_killed_goes_with_the_next_write(tmp_path):
    lake = fm.Lake(tmp_path / "lake")
    lake.create(NAME).write(row(0, 0))
    before = lake[NAME].head
    killed = subprocess.run([sys.executable, "-c", KILLED, lake.store.url, NAME], env=environment(), timeout=120)
    assert killed.returncode == -signal.SIGKILL
    [left] = lake.store.staging().iterdir()
    assert [path.name for path in left.iterdir() if path.name.startswith("slice-")]
    assert lake[NAME].head == before
    assert lake[NAME].write(row(0, 2)).start == 1
    assert list(lake.store.staging().iterdir()) == []
    assert lake[NAME].verify().ok


def test_file_that_a_killed_writer_left_goes_when_no_writer_can_need_it(tmp_path):
    lake = fm.Lake(tmp_path / "lake")
    dataset = lake.create(NAME)
    young, old = (lake.store.staging() / name for name in ("young", "old"))
    for path, age in ((young, 3600), (old, 3600 * 25)):
        path.write_bytes(b"half a block")
        os.utime(path, (time.time() - age,) * 2)
    dataset.write(row(0, 0))
    assert list(lake.store.staging().iterdir()) == [young]


def test_folder_of_a_writer_that_is_just_beginning_is_left_alone(tmp_path, monkeypatch):
    store = fm.Lake(tmp_path / "lake").store
    real = fcntl.flock

    def while_others_sweep(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            staging._sweep(store.staging())
        real(descriptor, operation)

    monkeypatch.setattr(staging.fcntl, "flock", while_others_sweep)
    with staging.staging_area(store) as folder:
        assert folder.is_dir()
        staging._sweep(store.staging())
        assert folder.is_dir()
    assert list(store.staging().iterdir()) == []
