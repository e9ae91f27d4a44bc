"""Retries: attempts after a lost race, and reads that repeat while the state moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

MAX_RACES = 50
READ_TRIES = 20

S = TypeVar("S")
T = TypeVar("T")


def races(tries: int, pause: Callable[[int], None] | None = None) -> Iterator[int]:
    """Number the attempts 0, 1, …; call `pause` with the number of lost races before each repeated attempt.

    The first repeat comes at once: whoever lost a race usually wins the next one.
    """
    for race in range(tries):
        if race > 1 and pause is not None:
            pause(race - 1)
        yield race


def read_steadily(
    pin: Callable[[], S],
    ask: Callable[[S], T],
    moved: Callable[[S], bool],
    *,
    replaced: tuple[type[Exception], ...] = (),
    doubted: Callable[[T], bool] = lambda _: False,
    tries: int = READ_TRIES,
) -> T:
    """Ask again while others replace what is read.

    An error of the kinds `replaced`, or an answer that is `doubted`, counts only if the pinned state is still current.
    After the last try it counts in any case.
    """
    for left in reversed(range(tries)):
        state = pin()
        try:
            found = ask(state)
        except replaced:
            if not left or not moved(state):
                raise
            continue
        if not left or not doubted(found) or not moved(state):
            return found
    raise ValueError("no tries")
