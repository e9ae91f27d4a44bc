"""What a check found: how it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from floodmark.errors import FloodmarkError

State = Literal["ok", "warn", "bad"]
"""`warn`: it works, but not as well as it should. `bad`: something does not work."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: State
    detail: str
    remedy: str = ""


Check = Callable[[], Iterable[Finding]]


def attempted(what: str, check: Check) -> Iterator[Finding]:
    """What a check finds; one that cannot be carried out is bad itself, and the others go on."""
    try:
        yield from check()
    except FloodmarkError as error:
        yield Finding(what, "bad", error.message, error.hint)
    except OSError as error:
        yield Finding(what, "bad", str(error), "check the disk, and who may read and write there")
