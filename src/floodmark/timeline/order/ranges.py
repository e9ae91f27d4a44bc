"""Ranges: the stretch of event time that a reader asks for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from floodmark.timeline.errors import BadRange
from floodmark.timeline.order.pieces import BEGINNING, END, Place

Moment = str | date | datetime | None
"""A time, a date (its first moment) or either as text; without a zone in UTC. None is before or after everything."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_BEFORE_ALL = -1  # no offset is this small: a place with it comes before every record of its time


@dataclass(frozen=True)
class Range:
    """All places in [first, end)."""

    first: Place = BEGINNING
    end: Place = END

    @property
    def is_empty(self) -> bool:
        return self.first >= self.end

    def meets(self, first: Place, last: Place) -> bool:
        """Whether records between these two places, both included, may lie in it."""
        return first < self.end and last >= self.first

    def holds(self, first: Place, last: Place) -> bool:
        """Whether all records between these two places, both included, lie in it."""
        return self.first <= first and last < self.end

    def after(self, place: Place) -> Range:
        """What is left of it from a place on."""
        return Range(max(self.first, place), self.end)


def parse_range(start: Moment, end: Moment) -> Range:
    """The range [start, end) as a user gives it."""
    first = BEGINNING if start is None else Place(_micros(start, start, end), _BEFORE_ALL)
    after = END if end is None else Place(_micros(end, start, end), _BEFORE_ALL)
    if first > after:
        raise BadRange(
            f"the range from {start} to {end} ends before it starts",
            hint="give the earlier time first",
            start=start,
            end=end,
        )
    return Range(first, after)


def _micros(given: object, start: Moment, end: Moment) -> int:
    """A moment in microseconds since the epoch."""
    match given:
        case date() if given != given:  # NaT of pandas is a date that equals nothing
            pass
        case datetime():
            return _since_epoch(given)
        case date():
            return _since_epoch(datetime(given.year, given.month, given.day))
        case str():
            with suppress(ValueError):
                return _since_epoch(datetime.fromisoformat(given))
    raise BadRange(
        f"{given!r} is no time",
        hint="give a time such as 2026-11-15 or 2026-11-15T12:00:00Z, a date or a datetime",
        start=start,
        end=end,
    )


def _since_epoch(moment: datetime) -> int:
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (aware - _EPOCH) // _MICROSECOND
