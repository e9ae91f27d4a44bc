"""A writer that is killed at any moment has committed all that it said, nothing twice, and leaves nothing for long."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import floodmark as fm
from faults import mortal, writers
from faults.mortal import Log
from faults.recording import HastyFileSystem
from faults.writers import row
from floodmark.storage import scratch
from floodmark.storage.local import LocalStore
from profiles import seeds

NAME = "trips"
WRITERS = (1, 2)
KILLS = 4  # of each writer, per seed


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


@pytest.mark.process
@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
def test_writers_that_are_killed_lose_nothing_and_repeat_nothing(seed, tmp_path):
    chance = random.Random(seed)
    lake = fm.Lake(LocalStore(tmp_path / "lake", HastyFileSystem()))
    lake.create(NAME, schema={"writer": "int64", "number": "int64"})
    logs = {writer: Log(tmp_path / str(writer)) for writer in WRITERS}
    for _ in range(KILLS):
        with ExitStack() as both:
            for writer in WRITERS:
                work = (lake.store.url, NAME, writer, chance.randrange(80), logs[writer].path)
                both.enter_context(must_be_killed(writers.write_until_killed, *work))
        ends = committed(lake)
        for writer in WRITERS:
            said = logs[writer].numbers()
            assert said == list(range(len(said)))
            # The last one may have been committed without having been logged: then the next process logs it again.
            assert ends[writer] - len(said) in (0, 1)
    lake[NAME].write(row(0, 0))
    # A folder that its writer had not locked yet is left alone for a minute: the writer may live.
    left = [entry.name for entry in lake.store.staging().iterdir() if entry.is_dir()]
    assert [name for name in left if not name.startswith("new-")] == []


@contextmanager
def must_be_killed(function: Callable[..., None], *arguments: Any) -> Iterator[None]:
    with mortal.started(function, *arguments) as process:
        yield
        assert mortal.ended(process) == -signal.SIGKILL


@pytest.mark.process
def test_folder_of_a_writer_that_was_killed_goes_with_the_next_write(tmp_path):
    lake = fm.Lake(LocalStore(tmp_path / "lake", HastyFileSystem()))
    lake.create(NAME).write(row(0, 0))
    before = lake[NAME].head
    mortal.killed(writers.write_until_killed, lake.store.url, NAME, 1, 2, tmp_path / "log")
    [left] = [path for path in lake.store.staging().iterdir() if path.is_dir()]
    assert [path.name for path in left.iterdir() if path.name.startswith("slice-")]
    assert lake[NAME].head == before
    assert lake[NAME].write(row(0, 2)).start == 1
    assert [path for path in lake.store.staging().iterdir() if path.is_dir()] == []
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
            scratch._sweep(store.staging())
        real(descriptor, operation)

    monkeypatch.setattr(scratch.fcntl, "flock", while_others_sweep)
    with scratch.staging_area(store) as folder:
        assert folder.is_dir()
        scratch._sweep(store.staging())
        assert folder.is_dir()
    assert list(store.staging().iterdir()) == []
