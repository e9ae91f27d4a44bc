"""The axes of a picture: their marks, the text of a mark, and the position of a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from summary.figures import Scale

_STEPS = (1, 2, 5, 10)
_MARKS = 5
_MOST_DECADES = 3
"""A longer logarithmic axis has marks only at powers of ten."""


@dataclass(frozen=True)
class Axis:
    """The range of an axis, and its marks."""

    low: float
    high: float
    marks: tuple[float, ...]
    scale: Scale

    def place(self, value: float) -> float:
        """The position of a value: 0 is the low end, 1 the high end."""
        if self.scale == "log":
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


def axis(values: Sequence[float], scale: Scale) -> Axis:
    """An axis that covers all values, with round numbers at both ends. A logarithmic one ignores values up to 0."""
    return _logarithmic([value for value in values if value > 0]) if scale == "log" else _linear(values)


def _linear(values: Sequence[float]) -> Axis:
    low, high = min(values, default=0.0), max(values, default=1.0)
    high = high if high > low else low + 1.0
    step = _step((high - low) / _MARKS)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    count = round((high - low) / step)
    return Axis(low, high, tuple(low + number * step for number in range(count + 1)), "linear")


def _step(least: float) -> float:
    """The smallest round step of at least this size."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


def _logarithmic(values: Sequence[float]) -> Axis:
    least, most = min(values, default=1.0), max(values, default=10.0)
    decades = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    grid = [step * 10.0**decade for decade in decades for step in _STEPS[:-1]]
    low, high = max(mark for mark in grid if mark <= least), min(mark for mark in grid if mark > most)
    is_long = high / low > 10.0**_MOST_DECADES
    marks = [mark for mark in grid if low <= mark <= high and (not is_long or _is_power(mark))]
    return Axis(low, high, tuple(marks), "log")


def _is_power(mark: float) -> bool:
    return abs(math.log10(mark) - round(math.log10(mark))) < 1e-9


def written(value: float) -> str:
    """The short text of a mark: 10k, 2.5M, 0.05."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}" if abs(value) > 1e-12 else "0"
