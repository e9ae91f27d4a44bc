"""A generator that is given up does not wait for the threads that work for it: it may be the garbage collector."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pyarrow as pa
import pytest

from floodmark.engine.run import GeneratorThreads
from floodmark.ledger.side_columns import OffsetBatch, with_side_columns
from floodmark.timeline.read import _read_ahead
from waiting import PATIENCE


class Held:
    """Work that is not done before it is let go."""

    def __init__(self) -> None:
        self.begun, self.go, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, *_: object) -> list[pa.Array]:
        self.begun.set()
        self.go.wait(PATIENCE)
        self.ended.set()
        return [pa.array([1])]


class Values:
    """Columns beside the records: those of the first batch are there, the next take long."""

    def __init__(self, held: Held) -> None:
        self._held, self._first = held, True

    def take(self, offsets: range) -> list[pa.Array]:
        first, self._first = self._first, False
        return [pa.array([1])] if first else self._held()


def plain(held: Held) -> Iterator[object]:
    with GeneratorThreads(1) as threads:
        threads.submit(held)
        yield


def beside(held: Held) -> Iterator[object]:
    batch = pa.record_batch({"a": [1]})
    located = [OffsetBatch(range(n, n + 1), batch) for n in range(3)]
    return with_side_columns(located, Values(held), pa.schema([("b", pa.int64())]))  # type: ignore[arg-type]


def timeline(held: Held) -> Iterator[object]:
    return _read_ahead(iter([[]] * 20), held)  # type: ignore[list-item, arg-type]


@pytest.mark.parametrize("generator", [plain, beside, timeline])
def test_closing_does_not_wait_for_what_threads_have_begun(generator):
    held = Held()
    given_up = generator(held)
    next(given_up)
    assert held.begun.wait(PATIENCE)
    given_up.close()
    assert not held.ended.is_set()
    held.go.set()
    assert held.ended.wait(PATIENCE)


@pytest.mark.parametrize("error", [GeneratorExit, KeyError])
def test_what_was_not_begun_is_left_when_a_generator_is_given_up_or_fails(error):
    held = Held()
    waiting: list[Future[object]] = []

    def generator() -> Iterator[None]:
        with GeneratorThreads(1) as threads:
            waiting.extend(threads.submit(held) for _ in range(3))
            yield

    given_up = generator()
    next(given_up)
    assert held.begun.wait(PATIENCE)
    waiting[-1].add_done_callback(lambda _: held.go.set())  # cancelled last
    with pytest.raises(error):
        given_up.throw(error())
    assert [future.cancelled() for future in waiting] == [False, True, True]


def test_one_that_runs_to_its_end_has_waited():
    ended = []

    def generator() -> Iterator[int]:
        with GeneratorThreads(2) as threads:
            threads.submit(ended.append, 1)
            yield 1

    assert list(generator()) == [1]
    assert ended == [1]


COLLECTED = """
import gc, threading
from floodmark.engine.run import GeneratorThreads

def generator():
    with GeneratorThreads(1) as threads:
        yield threads.submit(int).result()

class Box:  # which only the collector finds
    def __init__(self):
        self.me, self.generator = self, generator()
        next(self.generator)

real = threading._maintain_shutdown_locks

def collecting():  # as the list that is made in there may set it off
    gc.collect()
    real()

gc.disable()
Box()
threading._maintain_shutdown_locks = collecting
thread = threading.Thread(target=int)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not hasattr(threading, "_maintain_shutdown_locks"), reason="of Python 3.12 and before")
def test_one_that_is_collected_while_a_thread_is_being_started_does_not_stop_that():
    subprocess.run([sys.executable, "-c", COLLECTED], check=True)
