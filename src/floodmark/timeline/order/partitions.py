"""Partitions: hours, days, weeks, months and years of event time, in UTC. Weeks begin on Monday."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from floodmark.timeline.errors import BadRange

Unit = Literal["hour", "day", "week", "month", "year"]
UNITS: tuple[Unit, ...] = get_args(Unit)

I64 = npt.NDArray[np.int64]

_HOUR = 3_600_000_000
_LENGTHS = {"hour": _HOUR, "day": 24 * _HOUR, "week": 7 * 24 * _HOUR}
_MONDAY = 4 * 24 * _HOUR
"""1970 began on a Thursday; its first Monday was the fifth of January."""

_CALENDAR = {"month": "datetime64[M]", "year": "datetime64[Y]"}

_LABELS = {
    "hour": r"\d{4}-\d\d-\d\d[T ]\d\d",
    "day": r"\d{4}-\d\d-\d\d",
    "week": r"\d{4}-W\d\d",
    "month": r"\d{4}-\d\d",
    "year": r"\d{4}",
}
_EXAMPLES = {"hour": "2026-11-01T13", "day": "2026-11-01", "week": "2026-W45", "month": "2026-11", "year": "2026"}
_REST = {"month": "-01", "year": "-01-01"}  # what makes a label a date
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def starts(times_us: I64, unit: Unit) -> I64:
    """When the partition of each time begins; all in microseconds since the epoch."""
    if unit in _CALENDAR:
        moments = times_us.astype("datetime64[us]").astype(_CALENDAR[unit])
        return moments.astype("datetime64[us]").astype(np.int64)
    length, first = _LENGTHS[unit], _first(unit)
    return (times_us - first) // length * length + first


def end(start_us: int, unit: Unit) -> int:
    """When the partition that begins then ends: the beginning of the next one."""
    if unit in _CALENDAR:
        following = np.datetime64(start_us, "us").astype(_CALENDAR[unit]) + 1
        return int(following.astype("datetime64[us]").astype(np.int64))
    return start_us + _LENGTHS[unit]


def label(start_us: int, unit: Unit) -> str:
    """The partition's name, such as 2026-11-01T13, 2026-11-01, 2026-W45, 2026-11 or 2026."""
    start = _EPOCH + start_us * _MICROSECOND
    if unit == "week":
        year, week, _ = start.isocalendar()
        return f"{year:04d}-W{week:02d}"
    return start.isoformat()[: len(_EXAMPLES[unit])]


def parse(text: str, unit: Unit) -> int:
    """When the partition begins that has this label, or that this date or time lies in; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(_as_time(text.strip(), unit))
    except ValueError as error:
        raise BadRange(
            f"{text!r} names no {unit}",
            hint=f"name a {unit} as in {_EXAMPLES[unit]}, or any time in it as in 2026-11-01T13:45",
            start=text,
            end=None,
        ) from error
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    micros = (aware - _EPOCH) // _MICROSECOND
    return int(starts(np.array([micros], np.int64), unit)[0])


def _as_time(text: str, unit: Unit) -> str:
    """A label, or something that cannot reach into another partition, as a time that lies in the partition."""
    inside = [u for u in UNITS[: UNITS.index(unit) + 1] if u != "week" or unit == "week"]
    for finer in inside:
        if re.fullmatch(_LABELS[finer], text):
            return text + _REST.get(finer, "")
    if re.match(_LABELS["hour"] + ":", text):
        return text
    raise ValueError(f"{text!r} may lie in several partitions")


def _first(unit: Unit) -> int:
    """A moment at which a partition begins."""
    return _MONDAY if unit == "week" else 0
