"""Chooses how many rows a call of a user's function gets, from the times of earlier calls.

A call may have a fixed cost: a request to a server, a kernel on a GPU. Then many small calls are slow, and what they
take says nothing about a row. So the cost of a call is fitted as `fixed + per_row * rows`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median_low

MIN_CALLS = 16
"""The number of calls per checkpoint if calls have no fixed cost. Then one that takes too long can be stored early."""

_WORTH = 10
"""The rows of a call should take this many times its fixed cost, if that fits the target duration."""
_WORTH_LONG = 4
"""The same for a call whose fixed cost is so high that it cannot fit the target duration."""
_NEWEST = 3  # calls that are kept per size class
_GROWTH = 10  # per call, while the cost is as the fit says
_MOST_GROWTH = 100
_RISK = 3  # a call may take this multiple of the target if its cost turns out to be per row
_CHANGE = 2.0  # three calls in a row that take this multiple of the time, or this fraction: the speed has changed
_WORSE = 1.3  # a size at which a row costs this multiple of a row in smaller calls is too large
_ONCE_WORSE = 2.0  # the same while the size has only been measured once or twice
_STEADY = 8  # after this many calls a size that was too slow once or twice is tried again
_SHARE = 0.2  # ... if this part of the time of a call is its fixed cost
_MIN_SECONDS = 1e-9  # a clock may show no elapsed time
_UNLIMITED = 1 << 40


@dataclass(frozen=True)
class CallCost:
    """The seconds that a call takes: a fixed part, and a part for each row."""

    fixed: float
    per_row: float

    def of(self, rows: int) -> float:
        return self.fixed + self.per_row * rows

    def worth(self, target_seconds: float) -> int:
        """The rows of a call with which its fixed cost hardly matters, if such a call fits the target duration."""
        seconds = min(_WORTH * self.fixed, max(target_seconds - self.fixed, _WORTH_LONG * self.fixed))
        return max(1, int(min(seconds / max(self.per_row, 1e-18), _UNLIMITED)))


@dataclass(frozen=True)
class _SizeClass:
    """The newest calls with about the same number of rows: less than twice as many as in another one."""

    number: int
    rows: float
    seconds: float
    least: float  # seconds per row, of the fastest call
    calls: int


@dataclass(frozen=True)
class CallTimes:
    """Rows and seconds of calls: the newest few of each size class, oldest first."""

    calls: tuple[tuple[int, float], ...] = ()
    trend: int = 0
    """How many calls in a row took far longer than expected; negative for far shorter."""
    steady: int = 0
    """The number of calls since the last one that took far longer than expected."""

    def after(self, rows: int, seconds: float) -> CallTimes:
        """With one more call. If the speed of the function has changed, all earlier calls are forgotten."""
        call = (rows, max(seconds, _MIN_SECONDS))
        same = [c for c in self.calls if c[0].bit_length() == rows.bit_length()]
        calls = [*self.calls, call]
        if len(same) == _NEWEST:
            calls.remove(same[0])
        expected = CallTimes(self.calls[: len(self.calls) - abs(self.trend)])._expected(rows)
        if expected is None:
            return CallTimes(tuple(calls), self.trend, self.steady + 1)
        is_slow, is_fast = call[1] > _CHANGE * expected, call[1] < expected / _CHANGE
        trend = max(self.trend, 0) + 1 if is_slow else min(self.trend, 0) - 1 if is_fast else 0
        if abs(trend) == _NEWEST:
            return CallTimes(tuple(calls[1 - _NEWEST :]))  # the first one may have had both speeds
        return CallTimes(tuple(calls), trend, 0 if is_slow else self.steady + 1)

    def _expected(self, rows: int) -> float | None:
        """The seconds that a call was expected to take; None for a size that is larger than all before."""
        if same := [c for c in self.calls if c[0].bit_length() == rows.bit_length()]:
            return rows * median_low(s / n for n, s in same)
        is_between = any(n > rows for n, _ in self.calls)
        return self.cost.of(rows) if is_between and self.cost is not None else None

    @staticmethod
    def joined(parts: Iterable[CallTimes]) -> CallTimes:
        """The calls of several tasks, some of which may have begun with the same calls."""
        groups: dict[int, list[tuple[int, float]]] = {}
        for call in dict.fromkeys(call for part in parts for call in part.calls):
            groups.setdefault(call[0].bit_length(), []).append(call)
        return CallTimes(tuple(call for calls in groups.values() for call in calls[-_NEWEST:]))

    @cached_property
    def _classes(self) -> list[_SizeClass]:
        groups: dict[int, list[tuple[int, float]]] = {}
        for rows, seconds in self.calls:
            groups.setdefault(rows.bit_length(), []).append((rows, seconds))
        classes = [
            _SizeClass(
                k,
                median_low(n for n, _ in calls),
                median_low(s for _, s in calls),
                min(s / n for n, s in calls),
                len(calls),
            )
            for k, calls in sorted(groups.items())
        ]
        return _without_outliers(classes)

    @property
    def cost(self) -> CallCost | None:
        """The cost of a call, by least squares of relative errors; None until two sizes were measured."""
        if len(self._classes) < 2:
            return None
        weights = [(1 / c.seconds**2, c.rows, c.seconds) for c in self._classes]
        w = sum(weight for weight, _, _ in weights)
        mean_rows = sum(weight * n for weight, n, _ in weights) / w
        mean_seconds = sum(weight * s for weight, _, s in weights) / w
        spread = sum(weight * (n - mean_rows) ** 2 for weight, n, _ in weights)
        slope = sum(weight * (n - mean_rows) * (s - mean_seconds) for weight, n, s in weights) / spread
        if slope <= 0:
            return CallCost(mean_seconds, 0.0)
        fixed = mean_seconds - slope * mean_rows
        if fixed > 0:
            return CallCost(fixed, slope)
        per_row = sum(weight * n * s for weight, n, s in weights) / sum(weight * n * n for weight, n, _ in weights)
        return CallCost(0.0, per_row)

    def worth(self, target_seconds: float) -> int:
        """The rows of a call with which its fixed cost hardly matters; as many as were measured while it is unknown."""
        if self.cost is None:
            return max((rows for rows, _ in self.calls), default=1)
        return self.cost.worth(target_seconds)

    def next_rows(self, short: int, target_seconds: float) -> int:
        """The rows of the next call: `short`, or more if calls have a fixed cost, or another size to find out."""
        if not self.calls:
            return short
        cost = self.cost
        if cost is None:
            return self._another_size(target_seconds)
        return max(1, min(max(short, cost.worth(target_seconds)), self._growth(target_seconds), self._most(cost)))

    def _another_size(self, target_seconds: float) -> int:
        """A size in another class, with which a call fits the target duration even if its whole cost is per row."""
        only = self._classes[-1]
        size = int(only.rows * min(_MOST_GROWTH, target_seconds / only.seconds))
        if size.bit_length() != only.number and size:
            return size
        return max(1, 1 << (only.number - 2)) if only.number > 1 else 2

    def _growth(self, target_seconds: float) -> int:
        """The largest size that the measurements allow: a fit of small calls may be wrong for large ones."""
        largest = self._classes[-1]
        least = _GROWTH if len(self._classes) > 2 else 2
        growth = max(least, min(_MOST_GROWTH, _RISK * target_seconds / largest.seconds))
        return int(largest.rows * growth)

    def _most(self, cost: CallCost) -> int:
        """The largest size at which a row does not cost much more than in smaller calls, as if memory were short."""
        best = self._classes[0]
        for c in self._classes[1:]:
            is_sure = c.calls == _NEWEST
            if c.least > best.least * (_WORSE if is_sure else _ONCE_WORSE):
                smallest = 1 << (c.number - 1)
                if not is_sure and self.steady >= _STEADY and cost.fixed > _SHARE * cost.of(smallest):
                    return smallest  # try it again
                is_next = c.number == best.number + 1
                return int(best.rows if is_next else min(smallest - 1, math.sqrt(best.rows * c.rows)))
            if c.least < best.least:
                best = c
        return _UNLIMITED


def _without_outliers(classes: Sequence[_SizeClass]) -> list[_SizeClass]:
    """Calls of a larger size cannot be faster: if they were, the size that was measured less often does not count.

    So a first call that loaded a model does not count once a larger one was faster.
    """
    kept: list[_SizeClass] = []
    for c in classes:
        while kept and kept[-1].seconds > c.seconds and kept[-1].calls <= c.calls:
            kept.pop()
        if not kept or kept[-1].seconds <= c.seconds:
            kept.append(c)
    return kept
