"""The clock: blocks are stamped with it, and what is old enough to be removed is told by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from floodmark.doctor.finding import Finding

EARLIEST = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
LATEST = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
SOME = 5.0
MUCH = 3600.0
"""Seconds apart: from the first on it is said, from the second on it does harm."""

_SET = "set the clock of this machine, best by NTP"


def check_clock(now: Callable[[], float] = time.time) -> Finding:
    """Whether it can be right at all, and goes forward."""
    first, second = now(), now()
    if not EARLIEST <= first < LATEST:
        return Finding("clock", "bad", f"it says {_text(first)}", _SET)
    if second < first:
        return Finding("clock", "bad", f"it went back by {first - second:.6f} s while it was looked at", _SET)
    return Finding("clock", "ok", _text(first))


def check_file_times(
    store_time: Callable[[], float], now: Callable[[], float] = time.time, where: str = "the lake"
) -> Finding:
    """The time of two new objects, one after the other, against the clock of this machine."""
    what = "object times"
    before = now()
    first, second = store_time(), store_time()
    after = now()
    if second < first - 1:  # file systems may count whole seconds
        return Finding(what, "bad", f"an object is {first - second:.1f} s older than one made before it", _SET)
    apart = before - first if first < before else max(0.0, first - after)
    side = "behind" if first < before else "ahead of"
    detail = f"those of {where} are {apart:.1f} s {side} this machine's clock"
    if apart > MUCH:
        return Finding(what, "bad", detail, f"{_SET}, or that of the server; gc tells young from old by these times")
    if apart > SOME:
        return Finding(what, "warn", detail, f"{_SET}, or that of the server")
    return Finding(what, "ok", f"those of {where} agree with this machine's clock")


def check_newest(newest: float | None, name: str = "", now: Callable[[], float] = time.time) -> Finding:
    """The newest block's time against the clock: one that is yet to come was stamped by another clock."""
    what = "newest block"
    if newest is None:
        return Finding(what, "ok", "there is none yet")
    ahead = newest - now()
    detail = f"that of {name!r} is from {_text(newest)}"
    if ahead > SOME:
        remedy = (
            f"{_SET}, or that of whoever wrote it; until then new blocks get the same time, and as_of= a time is off"
        )
        return Finding(what, "bad" if ahead > MUCH else "warn", f"{detail}, {ahead:,.0f} s from now", remedy)
    return Finding(what, "ok", detail)


def _text(moment: float) -> str:
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat(sep=" ", timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{moment} seconds after 1970"
