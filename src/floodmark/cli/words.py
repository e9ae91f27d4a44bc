"""Numbers and times as people say them."""

from __future__ import annotations

from datetime import datetime

_STEPS = [("minute", 60), ("hour", 3600), ("day", 86400), ("month", 30 * 86400), ("year", 365 * 86400)]


def many(count: int, noun: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size(count: int) -> str:
    """``812 B``, ``2.7 KB``, ``1.2 GB``."""
    if count < 1000:
        return f"{count} B"
    value = count / 1000
    for unit in ("KB", "MB", "GB"):
        if value < 999.95:
            return f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def short(version: str) -> str:
    """The version of a function; of a fingerprint, enough to tell it from others."""
    return version if len(version) <= 16 else f"{version[:12]}…"


def ago(moment: datetime, now: datetime) -> str:
    """``3 minutes ago``; a time that is yet to come is given as it is, for some clock must be wrong."""
    passed = int((now - moment).total_seconds())
    if passed < -60:
        return clock(moment)
    if passed < 5:
        return "just now"
    noun, length = "second", 1
    for step, seconds in _STEPS:
        if passed >= seconds:
            noun, length = step, seconds
    return f"{many(passed // length, noun)} ago"


def clock(moment: datetime) -> str:
    """A time to the second, in UTC when it has a zone."""
    return moment.isoformat(sep=" ", timespec="seconds")
