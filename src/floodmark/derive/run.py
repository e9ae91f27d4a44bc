"""The run loop of everything derived: read the state, return if idle, take the turn, attempt, retry lost races."""

# ruff: noqa: ARG002  the defaults of methods that subclasses override

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import ClassVar, Generic, TypeVar

from floodmark.engine.progress import Progress
from floodmark.engine.spark_launch import explain_dead_jvm
from floodmark.errors import LostRace, StorageError, Unreadable
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.pointer import attempt_numbers
from floodmark.storage.scratch import explain_disk_errors
from floodmark.storage.store import Store

TRIES = 20

S = TypeVar("S")
R = TypeVar("R")


class Derivation(Generic[S, R]):
    """The specific part of a derived thing's run. `S` is the state that the run starts from, `R` the report.

    A subclass imports what only `attempt` needs inside `attempt`, so that an idle run stays cheap.
    """

    replaced: ClassVar[tuple[type[Exception], ...]] = (StorageError, OSError)
    """Errors that are raised only if the state is still current; otherwise others may have removed what was read."""

    _repaired = False

    def take_snapshot(self) -> S:
        """Read the current state: first its own state, then the inputs, so that it is never ahead of them."""
        raise NotImplementedError

    def idle(self, state: S) -> R | None:
        """The report if there is nothing to do. Reads positions and heads, no data."""
        return None

    def prepare(self, state: S) -> bool:
        """Create what must exist before the turn can be taken, such as outputs; returns whether anything was missing.

        If so, the state is read again, because another run may have created and filled it.
        """
        return False

    def turn(self, state: S) -> AbstractContextManager[None]:
        """Exclude other runs of the same thing. The default excludes none, because the caller has the turn."""
        return nullcontext()

    def attempt(self, state: S) -> R:
        """Plan, compute and commit from one state, in one or more commits."""
        raise NotImplementedError

    def moved(self, state: S) -> bool:
        """Whether others have committed since the state was read, or since this run's last commit."""
        return False

    def is_stale(self, state: S) -> bool:
        """Whether to read the state again under the turn: another run may have ended, with or without a commit."""
        return self.moved(state)

    def inputs_moved(self, state: S) -> bool:
        """Whether an input has changed since the state was read."""
        return False

    def repair(self, state: S, error: Unreadable) -> bool:
        """Whether another attempt may succeed although nothing has moved.

        By default this is so once: the failed read has deleted a damaged index or checkpoint, which is then rebuilt.
        """
        is_first, self._repaired = not self._repaired, True
        return is_first


def run_derivation(thing: Derivation[S, R], tries: int = TRIES) -> R:
    """Bring a derived thing up to date. An idle run takes no turn, starts no JVM and writes nothing."""

    def read_state() -> tuple[S, R | None]:
        state = thing.take_snapshot()
        report = thing.idle(state)
        if report is None and thing.prepare(state):
            state = thing.take_snapshot()
            report = thing.idle(state)
        return state, report

    state, report = read_state()
    if report is not None:
        return report
    problem: Exception | None = None
    with thing.turn(state):
        for race in attempt_numbers(tries):
            if race or thing.is_stale(state):
                state, report = read_state()
                if report is not None:
                    return report
            try:
                with explain_dead_jvm(), explain_disk_errors():
                    return thing.attempt(state)
            except LostRace as error:
                problem = error
            except Unreadable as error:
                if not (thing.moved(state) or thing.inputs_moved(state) or thing.repair(state, error)):
                    raise
                problem = error
            except thing.replaced as error:
                if not thing.moved(state):
                    raise
                problem = error
    assert problem is not None
    raise problem


_SILENCE = 1.0
"""The seconds that a run waits for another one before the progress line shows it."""


@contextmanager
def take_turn(store: Store, key: str, other: str, progress: Progress) -> Iterator[None]:
    """Wait for the `other` run that has the turn of this key. On stores without turns, both runs proceed."""
    show_waiting = threading.Timer(_SILENCE, progress.start, (f"waiting for {other}", None))
    show_waiting.daemon = True
    show_waiting.start()
    with ExitStack() as stack:
        try:
            stack.enter_context(store.turn(key))
        finally:
            show_waiting.cancel()
            show_waiting.join()
            progress.finish()
        yield


def take_dataset_turn(objects: DatasetObjects, other: str, progress: Progress) -> AbstractContextManager[None]:
    """Wait for the `other` run that computes the rows of the same dataset."""
    return take_turn(objects.store, f"{objects.folder}/info/transform/run", other, progress)
