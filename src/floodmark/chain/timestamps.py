"""Points in time as blocks hold them: year, day of the year, second of the day, nanosecond."""

from __future__ import annotations

import struct
from calendar import isleap
from datetime import date

NANOS_PER_SECOND = 1_000_000_000
SECONDS_PER_DAY = 86_400
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_STRUCT = struct.Struct("<iHxxII")

WIDTH = _STRUCT.size


def pack(nanos: int) -> bytes:
    """The 16 bytes of a point in time; ValueError outside the years 1 to 9999."""
    seconds, nanosecond = divmod(nanos, NANOS_PER_SECOND)
    days, second = divmod(seconds, SECONDS_PER_DAY)
    try:
        year = date.fromordinal(_EPOCH_DAY + days).year
    except OverflowError as error:
        raise ValueError("outside the years 1 to 9999") from error
    return _STRUCT.pack(year, _EPOCH_DAY + days - date(year, 1, 1).toordinal() + 1, second, nanosecond)


def unpack(data: bytes, at: int) -> int:
    """The point in time that these 16 bytes hold; ValueError when there is no such point."""
    stamp: tuple[int, int, int, int] = _STRUCT.unpack_from(data, at)
    year, ordinal, second, nanosecond = stamp
    first = date(year, 1, 1).toordinal()
    if not 1 <= ordinal <= 365 + isleap(year):
        raise ValueError(f"year {year} has no day {ordinal}")
    if second >= SECONDS_PER_DAY or nanosecond >= NANOS_PER_SECOND:
        raise ValueError(f"a day has no second {second}.{nanosecond:09}")
    return ((first + ordinal - 1 - _EPOCH_DAY) * SECONDS_PER_DAY + second) * NANOS_PER_SECOND + nanosecond
