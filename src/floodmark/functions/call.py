"""Calling a user's function: a call that fails is repeated, then halved, until what fails stands alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self, TypeVar

from floodmark.engine.task import let_go
from floodmark.errors import BadFunctionResult
from floodmark.functions.on_error import Retry

PASSING = (MemoryError, KeyboardInterrupt, BadFunctionResult)
"""Not failures of what the function was called with. SystemExit is one: a library may call sys.exit()."""

Again = Callable[[BaseException], Retry | None]


class Divisible(Protocol):
    """What one call gets: rows or keys that can be halved; None when there is a single one."""

    def halves(self) -> tuple[Self, Self] | None: ...


@dataclass(frozen=True)
class GaveUp:
    """The last error of a part that was called as often as the rules allow.

    Call `let_go` on the error once its traceback is written down: the frames in it hold all that was read.
    """

    error: BaseException
    attempts: int


Part = TypeVar("Part", bound=Divisible)
Result = TypeVar("Result")


def call_divided(
    parts: Iterable[Part], call: Callable[[Part], Result], again: Again, sleep: Callable[[float], None]
) -> Iterator[tuple[Part, Result | GaveUp]]:
    """Call a function on every part; yield each result, or the single row or key that keeps failing, in order.

    `again` gives the rule by which a call that raised is repeated.
    """
    for whole in parts:
        # The next part is last; with each goes how often every rule was used on the way to it.
        waiting: list[tuple[Part, Counter[Retry]]] = [(whole, Counter())]
        while waiting:
            part, spent = waiting.pop()
            outcome, halves = _settle(part, call, again, sleep, spent)
            if halves is None:
                yield part, outcome
            else:
                waiting += [(halves[1], spent.copy()), (halves[0], spent.copy())]


def _settle(
    part: Part, call: Callable[[Part], Result], again: Again, sleep: Callable[[float], None], spent: Counter[Retry]
) -> tuple[Result | GaveUp, tuple[Part, Part] | None]:
    """The outcome of one part, and its halves if it failed and has any.

    A function of its own: an error's traceback must not hold the generator's frame, which `let_go` would close.
    """
    try:
        return call(part), None
    except PASSING:
        raise
    except BaseException as error:
        failed = error
    halves = part.halves()
    # A large part that failed again and again rarely does better when halved, so its halves share its retries; a part
    # that stands alone gets every call that the rule allows.
    outcome = call_again(partial(call, part), failed, again, sleep, Counter() if halves is None else spent)
    if not isinstance(outcome, GaveUp):
        return outcome, None
    if halves is not None:
        let_go(outcome.error)
    return outcome, halves


def call_again(
    call: Callable[[], Result],
    error: BaseException,
    again: Again,
    sleep: Callable[[float], None],
    spent: Counter[Retry],
) -> Result | GaveUp:
    """Repeat a call that raised `error` as the rules of its errors say; `spent` counts how often each was used."""
    attempts = 1
    while True:
        retry = again(error)
        if retry is not None:
            spent[retry] += 1
        if retry is None or spent[retry] >= retry.attempts:
            return GaveUp(error, attempts)
        let_go(error)
        sleep(retry.pause(spent[retry]))
        attempts += 1
        try:
            return call()
        except PASSING:
            raise
        except BaseException as repeated:
            error = repeated
