"""The time axis of a picture: a stretch of time cut into cells, and where its labels stand."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

_SECOND = 10**6
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_STEPS = (
    *(base * 10**power for power in range(6) for base in (1, 2, 5)),
    *(count * _SECOND for count in (1, 2, 5, 10, 15, 30)),
    *(count * _MINUTE for count in (1, 2, 5, 10, 15, 30)),
    *(count * _HOUR for count in (1, 2, 3, 6, 12)),
    *(count * _DAY for count in (1, 2, 7)),
)
"""Microseconds between two labels, as people count them."""

_MONTHS = (1, 3, 6, 12)
_MONDAY = 4 * _DAY  # the first after 1970 began, so that labels seven days apart are Mondays
_ROOM = 3
"""Letters that are left free between two labels."""


@dataclass(frozen=True)
class Tick:
    """A label of the axis, and the cell at which it begins."""

    cell: int
    text: str


@dataclass(frozen=True)
class Axis:
    """The time [lo, hi) in microseconds, drawn as so many cells; a letter of a label is `letter` cells wide."""

    lo: int
    hi: int
    cells: int
    letter: int

    def cell(self, time: int) -> int:
        """The border between cells that is nearest to a time; times outside have the nearer end."""
        within = min(max(time, self.lo), self.hi) - self.lo
        return (2 * within * self.cells + (self.hi - self.lo)) // (2 * (self.hi - self.lo))

    def ticks(self) -> tuple[Tick, ...]:
        """As many round times as have room; the time at which the axis begins when none is round."""
        for times, form in self._scales():
            found = [Tick(self.cell(time), _shown(time, form)) for time in times]
            found = [tick for tick in found if tick.cell + len(tick.text) * self.letter <= self.cells]
            apart = all(self._is_apart(tick, following) for tick, following in itertools.pairwise(found))
            if found and apart:
                return tuple(found)
        return (Tick(0, _shown(self.lo, "us")),)

    def _is_apart(self, tick: Tick, following: Tick) -> bool:
        return tick.cell + (len(tick.text) + _ROOM) * self.letter <= following.cell

    def _scales(self) -> list[tuple[list[int], str]]:
        """The round times in the axis and how they are written, the finest that can have room first."""
        scales = []
        most = max(1, self.cells // (self.letter * (len("2026") + _ROOM)) + 1)
        for step in _STEPS:
            origin = _MONDAY if step == 7 * _DAY else 0
            first = -(-(self.lo - origin) // step) * step + origin
            if first < self.hi and (self.hi - 1 - first) // step < most:
                scales.append((list(range(first, self.hi, step)), self._form(step)))
        for months in _MONTHS:
            ends = np.array([self.lo - 1, self.hi - 1], "M8[us]").astype("M8[M]").astype(np.int64)
            low, high = (int(end) for end in ends)
            first = -(-(low + 1) // months) * months
            if first <= high and (high - first) // months < most:
                starts = np.arange(first, high + 1, months).astype("M8[M]").astype("M8[us]").astype(np.int64)
                scales.append((starts.tolist(), "year" if months == _MONTHS[-1] else "month"))
        return scales

    def _form(self, step: int) -> str:
        if step < _SECOND:
            return "us"
        if step < _MINUTE:
            return "second"
        if step < _DAY:
            return "minute" if self.hi - self.lo <= _DAY else "day and minute"
        return "day"


def _shown(time: int, form: str) -> str:
    text = str(np.datetime64(time, "us"))  # 2026-11-01T13:45:00.123456, whatever the year
    date, _, clock = text.partition("T")
    match form:
        case "us":
            return clock.rstrip("0").removesuffix(".")
        case "second":
            return clock[:8]
        case "minute":
            return clock[:5]
        case "day and minute":
            return f"{date[-5:]} {clock[:5]}"
        case "day":
            return date[-5:]
        case "month":
            return date[:-3]
        case _:
            return date[:-6]
