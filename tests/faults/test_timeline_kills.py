"""Writers that merge and fold, killed at any change of the disk while others read: what they logged is there once."""

from __future__ import annotations

import random
import threading

import pytest

import floodmark as fm
from faults import mortal, timeline_writers
from faults.mortal import Log
from faults.recording import HastyFileSystem
from faults.timeline_runs import NAME, problem_from_here_on, timeline_problem
from faults.timeline_writers import assert_ordered, create, written
from floodmark.storage.local import LocalStore
from profiles import IN_FULL, seeds
from timeline.oracle import found

pytestmark = pytest.mark.process

WRITER = 1
KILLS = 3  # per seed
OPTIONS = {
    "keyed": {"key": ["id"], "merge": "upsert"},
    "auto": {},
    "always": {"late_merge": "always"},
    "lazy": {"timeline": "lazy"},
}
CHOSEN = list(OPTIONS) if IN_FULL else ["keyed", "auto"]


class Reader(threading.Thread):
    """Reads the timeline again and again; what it sees only grows, in order, and nothing twice."""

    def __init__(self, lake: fm.Lake) -> None:
        super().__init__(daemon=True)
        self._dataset, self._over = lake[NAME], threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        seen: set[int] = set()
        try:
            while not self._over.wait(0.01):
                now = assert_ordered(found(self._dataset))
                assert seen <= now, f"rows have gone: {sorted(seen - now)[:10]}"
                seen = now
        except BaseException as error:
            self.error = error

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join()

    def __enter__(self) -> Reader:
        self.start()
        return self


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("options", CHOSEN)
def test_writer_that_is_killed_again_and_again_while_others_read(options, seed, tmp_path):
    chance = random.Random(seed)
    lake = fm.Lake(LocalStore(tmp_path / "lake", HastyFileSystem()))
    create(lake, **OPTIONS[options])
    log = Log(tmp_path / "log")
    with Reader(fm.Lake(tmp_path / "lake")) as reader:
        for _ in range(KILLS):
            nth = chance.randrange(20, 160)
            mortal.killed(timeline_writers.write_until_killed, lake.store.url, WRITER, nth, log.path)
            said = len(log.numbers())
            dataset = lake[NAME]
            ids = assert_ordered(found(dataset))
            assert ids in (written(WRITER, range(said)), written(WRITER, range(said + 1)))
            assert timeline_problem(dataset) is None
    assert reader.error is None, repr(reader.error)
    assert problem_from_here_on(lake) is None
