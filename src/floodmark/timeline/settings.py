"""The settings of a timeline: partitions, row group size, and when late rows are merged and updates run.

Also the bounds and labels of partitions by unit of time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import numpy as np

from floodmark.chain.state import ChainState
from floodmark.errors import BadOption, BadRange, close_matches
from floodmark.ledger.schema import ROW_GROUP_SIZE_NOTE, row_group_size_of
from floodmark.ledger.strategy import read_note
from floodmark.storage.arrays import I64

LateMerge = Literal["auto", "always"]
Mode = Literal["eager", "lazy"]

ROW_GROUP_SIZE = 100_000
LARGEST_ROW_GROUP_SIZE = 1 << 24
"""Row groups of up to 1.5 times this size must fit into memory."""

_NOTE = "timeline"


@dataclass(frozen=True)
class Settings:
    """The settings of a timeline, declared when its dataset is created."""

    partition_by: Unit
    row_group_size: int = ROW_GROUP_SIZE
    late_merge: LateMerge = "auto"  # "always": merge late rows in each update, as the seed does
    mode: Mode = "eager"  # "eager": each write updates the timeline; "lazy": update on demand

    def __str__(self) -> str:
        return (
            f"partition_by={self.partition_by!r}, row_group_size={self.row_group_size}, "
            f"late_merge={self.late_merge!r}, timeline={self.mode!r}"
        )

    @property
    def digest(self) -> str:
        """A hash of the settings that define the layout. Pieces of another layout cannot be used."""
        layout = json.dumps([self.partition_by, self.row_group_size])
        return hashlib.sha256(layout.encode()).hexdigest()[:16]


def declare(
    partition_by: str | None,
    row_group_size: int | None,
    late_merge: str | None,
    timeline: str | None,
    event_time: str | None,
) -> Settings | None:
    """The settings from a user's options; None without a timeline. Raises `BadOption` if the options do not match."""
    if partition_by is None:
        options = {"row_group_size": row_group_size, "late_merge": late_merge, "timeline": timeline}
        for name, given in options.items():
            if given is not None:
                raise BadOption(
                    f"{name}={given!r} is an option of timelines and needs partition_by=",
                    hint=f"add partition_by={UNITS[1]!r}, or one of {', '.join(UNITS)}",
                    setting=name,
                    given=given,
                )
        return None
    unit = _chosen("partition_by", partition_by, UNITS)
    if event_time is None:
        raise BadOption(
            f"partition_by={partition_by!r} needs event_time=: a timeline is sorted by event time",
            hint="name the column with the time of each event: event_time='at'",
            setting="event_time",
            given=event_time,
        )
    return Settings(
        partition_by=unit,
        row_group_size=ROW_GROUP_SIZE if row_group_size is None else _checked_size(row_group_size),
        late_merge="auto" if late_merge is None else _chosen("late_merge", late_merge, get_args(LateMerge)),
        mode="eager" if timeline is None else _chosen("timeline", timeline, get_args(Mode)),
    )


def settings_note(settings: Settings) -> dict[str, Any]:
    """The settings as they are stored in our attachment on the chain."""
    own = {"partition_by": settings.partition_by, "late_merge": settings.late_merge, "mode": settings.mode}
    return {ROW_GROUP_SIZE_NOTE: settings.row_group_size, _NOTE: own}


def read_settings(state: ChainState) -> Settings | None:
    """The settings on a chain; None without a timeline. Ignores a note of another form: another engine wrote it."""
    stored, size = read_note(state, _NOTE), row_group_size_of(state)
    if not isinstance(stored, dict) or size is None:
        return None
    try:
        return declare(stored["partition_by"], size, stored["late_merge"], stored["mode"], "known")
    except (KeyError, BadOption):
        return None


def _checked_size(given: object) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= LARGEST_ROW_GROUP_SIZE:
        return given
    raise BadOption(
        f"row_group_size={given!r} is not an integer from 1 to {LARGEST_ROW_GROUP_SIZE:,}",
        hint=f"leave it out for {ROW_GROUP_SIZE:,} rows",
        setting="row_group_size",
        given=given,
    )


def _chosen(setting: str, given: object, choices: Sequence[Any]) -> Any:
    if given in choices:
        return given
    near = close_matches(str(given), choices)
    raise BadOption(
        f"{setting}={given!r} is not a valid value",
        hint=f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(choices)}",
        setting=setting,
        given=given,
    )


# Partitions

Unit = Literal["hour", "day", "week", "month", "year"]
UNITS: tuple[Unit, ...] = get_args(Unit)

_HOUR = 3_600_000_000
_LENGTHS = {"hour": _HOUR, "day": 24 * _HOUR, "week": 7 * 24 * _HOUR}
_MONDAY = 4 * 24 * _HOUR
"""The first Monday of 1970 was 5 January."""

_CALENDAR = {"month": "datetime64[M]", "year": "datetime64[Y]"}

_LABELS = {
    "hour": r"\d{4}-\d\d-\d\d[T ]\d\d",
    "day": r"\d{4}-\d\d-\d\d",
    "week": r"\d{4}-W\d\d",
    "month": r"\d{4}-\d\d",
    "year": r"\d{4}",
}
_EXAMPLES = {"hour": "2026-11-01T13", "day": "2026-11-01", "week": "2026-W45", "month": "2026-11", "year": "2026"}
_REST = {"month": "-01", "year": "-01-01"}  # the suffix that makes a label a date
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def partition_starts(times_us: I64, unit: Unit) -> I64:
    """The start of the partition of each time, in microseconds since the epoch."""
    if unit in _CALENDAR:
        moments = times_us.astype("datetime64[us]").astype(_CALENDAR[unit])
        return moments.astype("datetime64[us]").astype(np.int64)
    length, first = _LENGTHS[unit], _first(unit)
    return (times_us - first) // length * length + first


def partition_end(start_us: int, unit: Unit) -> int:
    """The end of the partition with this start, which is the start of the next one."""
    if unit in _CALENDAR:
        following = np.datetime64(start_us, "us").astype(_CALENDAR[unit]) + 1
        return int(following.astype("datetime64[us]").astype(np.int64))
    return start_us + _LENGTHS[unit]


def partition_label(start_us: int, unit: Unit) -> str:
    """The partition's name, such as 2026-11-01T13, 2026-11-01, 2026-W45, 2026-11 or 2026."""
    start = _EPOCH + start_us * _MICROSECOND
    if unit == "week":
        year, week, _ = start.isocalendar()
        return f"{year:04d}-W{week:02d}"
    return start.isoformat()[: len(_EXAMPLES[unit])]


def parse_partition(text: str, unit: Unit) -> int:
    """The start of the partition with this label, or of the one with this time. Without a time zone it is UTC."""
    try:
        moment = datetime.fromisoformat(_as_time(text.strip(), unit))
    except ValueError as error:
        raise BadRange(
            f"{text!r} is not a partition by {unit}",
            hint=f"give a {unit} such as {_EXAMPLES[unit]}, or any time in it such as 2026-11-01T13:45",
            start=text,
            end=None,
        ) from error
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    micros = (aware - _EPOCH) // _MICROSECOND
    return int(partition_starts(np.array([micros], np.int64), unit)[0])


def _as_time(text: str, unit: Unit) -> str:
    """A label, or a shorter period that fits into one partition, as a time in the partition."""
    inside = [u for u in UNITS[: UNITS.index(unit) + 1] if u != "week" or unit == "week"]
    for finer in inside:
        if re.fullmatch(_LABELS[finer], text):
            return text + _REST.get(finer, "")
    if re.match(_LABELS["hour"] + ":", text):
        return text
    raise ValueError(f"{text!r} may be in several partitions")


def _first(unit: Unit) -> int:
    """A time at which a partition begins."""
    return _MONDAY if unit == "week" else 0
