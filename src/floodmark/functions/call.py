"""Call a user's function. A failed call is repeated, then halved until only the failing rows or keys remain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self, TypeVar

from floodmark.engine.task import clear_frames
from floodmark.errors import BadResult
from floodmark.functions.on_error import Retry

RERAISED_ERRORS = (MemoryError, KeyboardInterrupt, BadResult)
"""Errors that are always raised, because no row caused them. SystemExit is not one: a library may call sys.exit()."""

RetryRule = Callable[[BaseException], Retry | None]


class Halvable(Protocol):
    """The rows or keys of one call. `halves` returns None for a single row or key."""

    def halves(self) -> tuple[Self, Self] | None: ...


@dataclass(frozen=True)
class CallFailure:
    """The last error of a part that failed as often as the rules allow.

    Call `clear_frames` on the error after its traceback is recorded: its frames reference all the data that was read.
    """

    error: BaseException
    attempts: int


Part = TypeVar("Part", bound=Halvable)
Result = TypeVar("Result")


def call_with_halving(
    parts: Iterable[Part], call: Callable[[Part], Result], again: RetryRule, sleep: Callable[[float], None]
) -> Iterator[tuple[Part, Result | CallFailure]]:
    """Call a function on every part. Yield in order each result, or the error of a single row or key that still fails.

    `again` returns the rule that decides how a failed call is repeated.
    """
    for whole in parts:
        # A stack: the next part is last. Each part has the count of how often every rule was used for it.
        waiting: list[tuple[Part, Counter[Retry]]] = [(whole, Counter())]
        while waiting:
            part, spent = waiting.pop()
            outcome, halves = _call_part(part, call, again, sleep, spent)
            if halves is None:
                yield part, outcome
            else:
                waiting += [(halves[1], spent.copy()), (halves[0], spent.copy())]


def _call_part(
    part: Part, call: Callable[[Part], Result], again: RetryRule, sleep: Callable[[float], None], spent: Counter[Retry]
) -> tuple[Result | CallFailure, tuple[Part, Part] | None]:
    """Call one part; return its outcome, and its halves if it failed and can be split.

    This is a separate function, because an error's traceback must not include the generator's frame: `clear_frames`
    would close it.
    """
    try:
        return call(part), None
    except RERAISED_ERRORS:
        raise
    except BaseException as error:
        failed = error
    halves = part.halves()
    # Halves of a part that failed repeatedly rarely succeed, so they share its retries. A single row or key gets every
    # call that the rule allows.
    outcome = retry_call(partial(call, part), failed, again, sleep, Counter() if halves is None else spent)
    if not isinstance(outcome, CallFailure):
        return outcome, None
    if halves is not None:
        clear_frames(outcome.error)
    return outcome, halves


def retry_call(
    call: Callable[[], Result],
    error: BaseException,
    again: RetryRule,
    sleep: Callable[[float], None],
    spent: Counter[Retry],
) -> Result | CallFailure:
    """Repeat a call that raised `error` by the rules for its errors; `spent` counts how often each rule was used."""
    attempts = 1
    while True:
        retry = again(error)
        if retry is not None:
            spent[retry] += 1
        if retry is None or spent[retry] >= retry.attempts:
            return CallFailure(error, attempts)
        clear_frames(error)
        sleep(retry.pause(spent[retry]))
        attempts += 1
        try:
            return call()
        except RERAISED_ERRORS:
            raise
        except BaseException as repeated:
            error = repeated
