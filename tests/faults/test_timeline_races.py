"""Writers, folds and readers of one timeline at once: it is the sorted ledger, and readers are not disturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import pytest

import floodmark as fm
from faults import timeline_writers, writers
from faults.timeline_runs import NAME, correct, in_order, narrow, problem_from_here_on, spread, timeline_problem
from faults.timeline_writers import create
from faults.writers import COUNT, Crew
from floodmark.dataset import Dataset
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from profiles import examples
from timeline.oracle import difference, expected, found
from waiting import PATIENCE

Work = Callable[[Dataset, int, int], list[int]]


def race(lake: fm.Lake, works: list[Work], times: int) -> set[int]:
    """All at once, each with a dataset object of its own; the ids that were written."""
    start = Barrier(len(works))

    def work(writer: int) -> list[int]:
        dataset = lake[NAME]
        start.wait(PATIENCE)
        return works[writer](dataset, writer, times)

    with ThreadPoolExecutor(len(works)) as pool:
        return {i for ids in pool.map(work, range(len(works))) for i in ids}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("options", "where"), [({}, "folder"), ({"late_merge": "always"}, "memory"), ({"timeline": "lazy"}, "memory")]
)
def test_two_writers_a_fold_and_a_reader_at_once(options, where, tmp_path):
    lake = fm.Lake(tmp_path / "lake" if where == "folder" else MemoryStore())
    create(lake, **options)
    works = [timeline_writers.write, timeline_writers.write, timeline_writers.fold, timeline_writers.read]
    ids = race(lake, works, examples(4))
    assert set(found(lake[NAME])["id"].to_pylist()) == ids
    assert problem_from_here_on(lake) is None


@pytest.mark.soak
def test_writers_that_correct_rows_and_a_fold_at_once(tmp_path):
    lake = fm.Lake(tmp_path / "lake")
    create(lake, key=["id"], merge="upsert")
    works = [timeline_writers.correct, timeline_writers.correct, timeline_writers.fold, timeline_writers.read]
    ids = race(lake, works, examples(4))
    assert set(found(lake[NAME])["id"].to_pylist()) == ids
    assert problem_from_here_on(lake) is None


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with writers.crew() as crew:
        yield crew


@pytest.mark.process
@pytest.mark.soak
def test_processes_write_fold_and_read_at_once(tmp_path, crew):
    lake = fm.Lake(tmp_path / "lake")
    create(lake)
    root = lake.store.url
    work: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        *((timeline_writers.write_in, (root, writer, examples(5))) for writer in range(2)),
        (timeline_writers.fold_in, (root, 2, examples(4))),
        (timeline_writers.read_in, (root, 3, examples(8))),
    ]
    assert len(work) == COUNT
    ids = {i for mine in crew.run(work) for i in mine}
    assert set(found(lake[NAME])["id"].to_pylist()) == ids
    assert problem_from_here_on(lake) is None


def test_reader_that_has_begun_reads_its_snapshot_to_the_end(tmp_path):
    """Whatever is merged, corrected and folded meanwhile."""
    lake = fm.Lake(tmp_path / "lake")
    create(lake, key=["id"], merge="upsert")
    in_order(lake)
    spread(lake)
    dataset = lake[NAME]
    right = expected(dataset)
    readers = [dataset.timeline_batches(columns=right.schema.names) for _ in range(4)]
    assert difference(readers[0].read_all(), right) is None
    for reader, step in zip(readers[1:], (narrow, correct, lambda lake: lake[NAME].fold()), strict=True):
        step(lake)
        assert difference(reader.read_all(), right) is None, step.__name__
    assert timeline_problem(dataset) is None


class Turnless(LocalStore):
    """A store that gives all writers a turn at once, as stores may."""

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        yield


class Overtaken(Turnless):
    """A store on which another writer moves the root just before we would."""

    rivals: tuple[Callable[[], Any], ...] = ()
    lost = 0

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        if key.endswith("/info/timeline/root") and self.rivals:
            rival, self.rivals = self.rivals[0], self.rivals[1:]
            rival()
            done = super().compare_and_swap(key, expected, new)
            self.lost += not done
            return done
        return super().compare_and_swap(key, expected, new)


@pytest.mark.parametrize("rival", [narrow, lambda lake: lake[NAME].fold()], ids=["write", "fold"])
@pytest.mark.parametrize("ours", [spread, lambda lake: lake[NAME].fold()], ids=["write", "fold"])
def test_writer_that_loses_the_root_starts_again_from_the_new_one(ours, rival, tmp_path):
    store = Overtaken(tmp_path / "lake")
    lake = fm.Lake(store)
    create(lake)
    in_order(lake)
    for number in range(3):
        lake[NAME].write(timeline_writers.batch(9, number))
    store.rivals = (lambda: rival(fm.Lake(Turnless(tmp_path / "lake"))),)
    ours(lake)
    assert not store.rivals, "the root was not moved"
    assert store.lost == 1
    assert timeline_problem(lake[NAME]) is None
    assert lake[NAME].timeline_stats().behind == 0
    assert problem_from_here_on(lake) is None
