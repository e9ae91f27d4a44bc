"""Writers that merge and fold are killed at any moment while somebody reads: what they said is there, once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import floodmark as fm
from faults.timeline_runs import NAME, problem_from_here_on, timeline_problem
from faults.timeline_writers import assert_ordered, create, written
from timeline.oracle import found

WRITER = 1


class Victim:
    """A writing process, which is started early, let go, and killed."""

    def __init__(self, lake: fm.Lake, first: int) -> None:
        command = [sys.executable, "-m", "faults.timeline_writers", lake.store.url, str(WRITER), str(first)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        self._next = first
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> Victim:
        assert self._process.stdout
        assert self._process.stdin
        assert self._process.stdout.readline() == "ready\n"
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def await_commits(self, count: int) -> None:
        assert self._process.stdout
        for _ in range(count):
            assert int(self._process.stdout.readline()) == self._next
            self._next += 1

    def kill(self) -> int:
        """End the process; the number after the last that it said is committed."""
        assert self._process.poll() is None, "it ended by itself"
        self._process.kill()
        said, _ = self._process.communicate(timeout=60)
        return self._next + len(said.split())


class Reader(threading.Thread):
    """Reads the timeline again and again; what it sees only grows, in order, and nothing twice."""

    def __init__(self, lake: fm.Lake) -> None:
        super().__init__(daemon=True)
        self._dataset, self._over = lake[NAME], threading.Event()
        self.reads = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        seen: set[int] = set()
        while not self._over.is_set():
            try:
                now = assert_ordered(found(self._dataset))
                assert seen <= now, f"rows have gone: {sorted(seen - now)[:10]}"
            except BaseException as error:
                self.error = error
                return
            seen, self.reads = now, self.reads + 1
            time.sleep(0.01)

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join(60)

    def __enter__(self) -> Reader:
        self.start()
        return self


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"late_merge": "always"}, {"key": ["id"], "merge": "upsert"}, {"timeline": "lazy"}],
    ids=["auto", "always", "keyed", "lazy"],
)
def test_writer_that_is_killed_again_and_again_while_somebody_reads(options, tmp_path):
    chance = random.Random(2026)
    lake = fm.Lake(tmp_path / "lake")
    create(lake, **options)
    said, kills = 0, 5
    with Reader(fm.Lake(tmp_path / "lake")) as reader:
        for _ in range(kills):
            with Victim(lake, said) as victim:
                victim.await_commits(chance.randrange(2, 7))
                time.sleep(chance.uniform(0, 0.15))
                said = victim.kill()
            dataset = lake[NAME]
            ids = assert_ordered(found(dataset))
            assert ids in (written(WRITER, range(said)), written(WRITER, range(said + 1)))
            assert timeline_problem(dataset) is None
    assert reader.error is None, repr(reader.error)
    assert reader.reads > kills
    assert said > kills
    assert problem_from_here_on(lake) is None
