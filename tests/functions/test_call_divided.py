"""A user's function called on parts: retried, halved until what fails stands alone, in order, and nothing kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.engine.task import clear_frames
from floodmark.errors import BadResult
from floodmark.functions.call import CallFailure, call_with_halving
from floodmark.functions.on_error import Retry, retry_for


@dataclass(frozen=True)
class Part:
    items: tuple[int, ...]

    def halves(self) -> tuple[Part, Part] | None:
        middle = len(self.items) // 2
        return (Part(self.items[:middle]), Part(self.items[middle:])) if middle else None


class Function:
    """Returns the items it gets, raises at some of them the first few times, and notes every call."""

    def __init__(self, failing: dict[int, tuple[type[BaseException], int]]) -> None:
        self.failing = dict(failing)
        self.seen: list[tuple[int, ...]] = []

    def __call__(self, part: Part) -> tuple[int, ...]:
        self.seen.append(part.items)
        for item in part.items:
            error, times = self.failing.get(item, (ValueError, 0))
            if times:
                self.failing[item] = (error, times - 1)
                raise error(f"no {item}")
        return part.items


ALWAYS = 10**9
Outcome = tuple[tuple[int, ...], tuple[int, ...] | tuple[str, int]]


def outcomes(parts: list[Part], call: Callable[[Part], tuple[int, ...]], *rules: Retry) -> list[Outcome]:
    """What came of each part: what was returned, or the error's class and the number of attempts."""
    found: list[Outcome] = []
    for part, outcome in call_with_halving(parts, call, lambda error: retry_for(rules, error), lambda _: None):
        if isinstance(outcome, CallFailure):
            found.append((part.items, (type(outcome.error).__name__, outcome.attempts)))
            clear_frames(outcome.error)
        else:
            found.append((part.items, outcome))
    return found


@given(
    st.lists(st.integers(1, 9), max_size=6),
    st.dictionaries(st.integers(0, 30), st.just((ValueError, ALWAYS))),
    st.integers(1, 3),
)
def test_every_item_is_in_one_outcome_in_order_and_only_bad_ones_fail(sizes, failing, attempts):
    parts, start = [], 0
    for size in sizes:
        parts.append(Part(tuple(range(start, start + size))))
        start += size
    found = outcomes(parts, Function(failing), Retry(ValueError, attempts=attempts))
    assert [item for items, _ in found for item in items] == list(range(start))
    for items, outcome in found:
        expected = ("ValueError", attempts) if len(items) == 1 and items[0] in failing else items
        assert outcome == expected


def test_halves_share_the_retries_of_the_whole_and_a_single_part_gets_all():
    function = Function({2: (TimeoutError, ALWAYS)})
    found = outcomes([Part((0, 1, 2, 3))], function, Retry(TimeoutError, attempts=3))
    assert function.seen == [(0, 1, 2, 3)] * 3 + [(0, 1), (2, 3), (2,), (2,), (2,), (3,)]
    assert found == [((0, 1), (0, 1)), ((2,), ("TimeoutError", 3)), ((3,), (3,))]


def test_later_part_is_called_only_when_the_earlier_was_taken():
    function = Function({})
    steps = call_with_halving([Part((0,)), Part((1,))], function, lambda _: None, lambda _: None)
    assert function.seen == []
    next(steps)
    assert function.seen == [(0,)]


def test_pauses_are_those_of_the_rule():
    pauses: list[float] = []
    rule = Retry(ValueError, attempts=4, delay=0.5)
    ((_, outcome),) = call_with_halving([Part((1,))], Function({1: (ValueError, 2)}), lambda _: rule, pauses.append)
    assert outcome == (1,)
    assert pauses == [0.5, 1.0]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, BadResult])
def test_what_is_no_failure_of_the_part_passes_through(error, before):
    raised = iter([ValueError("first")] * before + [error("passes")])

    def call(part: Part) -> tuple[int, ...]:
        raise next(raised)

    with pytest.raises(error, match="passes"):
        outcomes([Part((0, 1))], call, Retry(Exception))


def test_exit_is_a_failure_of_the_item_that_asks_for_it():
    function = Function({1: (SystemExit, ALWAYS)})
    assert outcomes([Part((0, 1))], function) == [((0,), (0,)), ((1,), ("SystemExit", 1))]


def test_retried_error_does_not_show_the_errors_before_it():
    raised = iter([ValueError("first"), ValueError("second")])

    def call(part: Part) -> tuple[int, ...]:
        raise next(raised)

    ((_, outcome),) = call_with_halving([Part((0,))], call, lambda _: Retry(ValueError, attempts=2), lambda _: None)
    assert isinstance(outcome, CallFailure)
    assert outcome.error.__context__ is None


@pytest.mark.parametrize("times", [1, 2, ALWAYS])
def test_errors_hold_nothing_that_was_read(times: int):
    class Held:
        """Stands for what a call has read."""

    held: list[weakref.ref[Held]] = []
    function = Function({1: (ValueError, times)})

    def call(part: Part) -> tuple[int, ...]:
        read = Held()
        held.append(weakref.ref(read))
        return function(part)

    gc.collect()
    gc.disable()
    try:
        outcomes([Part((0, 1, 2))], call, Retry(ValueError, attempts=2))
        assert [reference() for reference in held] == [None] * len(held)
    finally:
        gc.enable()
