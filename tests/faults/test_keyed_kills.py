"""A writer that upserts and is killed at any moment: what it said is there, and the next write sees what is there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import floodmark as fm
from faults.keyed_writers import KEYS, NAME, SCHEMA, assert_agree, rows, table
from ledger.keyed.naive import Naive

WRITER = 1
KILLS = 8


class Victim:
    """A writing process, which is started early, let go, and killed."""

    def __init__(self, lake: fm.Lake, first: int) -> None:
        command = [sys.executable, "-m", "faults.keyed_writers", lake.store.url, str(WRITER), str(first)]
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


def modelled(end: int) -> Naive:
    """What the writer's batches up to a number come to."""
    model = Naive("upsert", ("id",))
    for number in range(end):
        model.write(rows(WRITER, number))
    return model


@pytest.mark.slow
def test_writer_that_is_killed_again_and_again_agrees_with_its_model(tmp_path):
    chance = random.Random(2026)
    lake = fm.Lake(tmp_path / "lake")
    lake.create(NAME, key=["id"], merge="upsert", schema=SCHEMA)
    said = 0
    for _ in range(KILLS):
        with Victim(lake, said) as victim:
            victim.await_commits(chance.randrange(4))
            time.sleep(chance.uniform(0, 0.2))
            said = victim.kill()
        dataset = lake[NAME]
        found = dataset.count() and dataset.changes_arrow().num_rows
        model = modelled(said)
        if found != len(model.records):
            # The last one may have been committed without having been said: then the next victim says it again.
            model = modelled(said + 1)
        assert_agree(dataset, model)
        assert dataset.verify().problems == ()
    assert said > KILLS
    batch = [{"id": key, "by": "end"} for key in KEYS]
    lake[NAME].write(table(batch))
    assert lake[NAME].to_arrow().to_pylist() == batch
    left = [entry.name for entry in lake.store.staging().iterdir() if entry.is_dir()]
    assert [name for name in left if not name.startswith("new-")] == []
