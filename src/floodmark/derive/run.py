"""The loop of every derived thing: pin, return if there is nothing to do, take the turn, attempt, retry lost races."""

# ruff: noqa: ARG002  the defaults of methods that subclasses override
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Generic, TypeVar

from floodmark.errors import LostRace, Unreadable
from floodmark.storage.errors import StorageError
from floodmark.storage.retry import races

TRIES = 20

S = TypeVar("S")
R = TypeVar("R")


class Derivation(Generic[S, R]):
    """One run of a derived thing: what is its own. `S` is the pinned state, `R` the report.

    A subclass imports what only `attempt` needs inside `attempt`, so that an idle run stays cheap.
    """

    replaced: ClassVar[tuple[type[Exception], ...]] = (StorageError, OSError)
    """Errors that count only if the pinned state is still current: others may have removed what was read."""

    _repaired = False

    def pin(self) -> S:
        """Read the present state: own state first, then inputs, so that it is never ahead of them."""
        raise NotImplementedError

    def idle(self, state: S) -> R | None:
        """The report if there is nothing to do. Reads positions and heads, no data."""
        return None

    def prepare(self, state: S) -> bool:
        """Create what must exist before the turn can be taken, such as outputs; whether anything was missing.

        If so, the state is pinned again: another run may have created and filled it.
        """
        return False

    def turn(self, state: S) -> AbstractContextManager[None]:
        """Exclude other runs of the same thing. By default none: the caller holds the turn."""
        return nullcontext()

    def attempt(self, state: S) -> R:
        """Plan, compute and commit from one pinned state, in one commit or several."""
        raise NotImplementedError

    def moved(self, state: S) -> bool:
        """Whether others have committed to the thing since it was pinned, or since this run's last commit."""
        return False

    def is_stale(self, state: S) -> bool:
        """Whether to pin again once the turn is held: another run may have ended since, with or without a commit."""
        return self.moved(state)

    def inputs_moved(self, state: S) -> bool:
        """Whether an input has changed since it was pinned."""
        return False

    def repair(self, state: S, error: Unreadable) -> bool:
        """Whether another attempt may succeed although nothing has moved.

        By default once: the failed read has deleted a damaged index or checkpoint, which is then rebuilt.
        """
        is_first, self._repaired = not self._repaired, True
        return is_first


def run(thing: Derivation[S, R], tries: int = TRIES) -> R:
    """Bring a derived thing up to date. With nothing to do: no turn, no JVM, nothing written."""

    def pin() -> tuple[S, R | None]:
        state = thing.pin()
        report = thing.idle(state)
        if report is None and thing.prepare(state):
            state = thing.pin()
            report = thing.idle(state)
        return state, report

    state, report = pin()
    if report is not None:
        return report
    problem: Exception | None = None
    with thing.turn(state):
        for race in races(tries):
            if race or thing.is_stale(state):
                state, report = pin()
                if report is not None:
                    return report
            try:
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
