"""Times that callers give: a time without a zone is refused, unless it is compared with a column that has none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from floodmark.chain.events import Nanos
from floodmark.ledger.python_values import check_same_kind

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MissingZone(ValueError):
    """A time without a time zone, which may be any of 24 hours."""

    def __init__(self, given: object) -> None:
        text = given if isinstance(given, str) else given.isoformat() if isinstance(given, datetime) else repr(given)
        self.message = f"the time {text} has no time zone"
        self.hint = (
            f"add one, as in {text}Z for UTC or {text}{local_offset()} for this machine's zone; "
            "in Python, datetime.now(UTC), or moment.astimezone() for local time"
        )
        super().__init__(self.message)


def parse_moment(given: object, *, in_plain_column: bool = False) -> datetime | None:
    """A time, a date (midnight in UTC), or either as text; None for anything else.

    Raises `MissingZone` for a time without a zone. With `in_plain_column` the time is compared with a column that has
    no zone either: its times are stored as if in UTC, so such a time is too.
    """
    match given:
        case date() if given != given:  # pandas' NaT is a date that does not equal itself
            return None
        case datetime():
            moment = given
        case date():
            return datetime(given.year, given.month, given.day, tzinfo=UTC)
        case str():
            with suppress(ValueError):
                return parse_moment(date.fromisoformat(given))
            try:
                moment = datetime.fromisoformat(given)
            except ValueError:
                return None
        case _:
            return None
    if moment.tzinfo is not None:
        return moment
    if not in_plain_column:
        raise MissingZone(given)
    return moment.replace(tzinfo=UTC)


def typed_array(values: Sequence[Any], data_type: pa.DataType | None) -> pa.Array:
    """Plain values in a type, or Arrow's error if they do not fit. Times have a zone exactly if the type has one."""
    if isinstance(data_type, pa.TimestampType):
        for value in values:
            if isinstance(value, datetime) and value == value and (value.tzinfo is None) != (data_type.tz is None):
                needed = "none" if data_type.tz is None else "one, as in datetime(…, tzinfo=UTC)"
                raise pa.ArrowTypeError(
                    f"{value} has {'no' if data_type.tz else 'a'} time zone, but must have {needed}"
                )
    array = pa.array(values, data_type)
    check_same_kind(values, array.type)
    return array


def to_nanos(moment: datetime) -> Nanos:
    """A time with a zone as nanoseconds since the epoch, cut to microseconds."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def local_offset() -> str:
    """This machine's present offset from UTC, such as +01:00."""
    return datetime.now().astimezone().isoformat()[-6:]
