"""How much of each fragment is computed, as one line of characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_FEWEST = 4
"""A fragment that has at least so many characters is a bar of its own."""

_WIDEST = 40
"""So many characters are enough for a fragment."""


@dataclass(frozen=True)
class Part:
    """The rows of a fragment: all, those computed, and those with a value of an older function."""

    rows: int
    done: int
    kept: int

    def __add__(self, other: Part) -> Part:
        return Part(self.rows + other.rows, self.done + other.done, self.kept + other.kept)


@dataclass(frozen=True)
class Marks:
    """The characters of a bar."""

    done: str
    partly: str
    kept: str
    nothing: str
    border: str

    def legend(self, bars: Sequence[str]) -> str:
        """What the characters mean that occur in some bars."""
        meanings = [
            (self.done, "computed"),
            (self.partly, "in part"),
            (self.kept, "an older value"),
            (self.nothing, "not yet"),
        ]
        return ", ".join(f"{mark} {meaning}" for mark, meaning in meanings if any(mark in bar for bar in bars))


DRAWN = Marks("█", "▒", "░", "·", "│")
PLAIN = Marks("#", "+", "o", ".", "|")


def marks_for(encoding: str | None) -> Marks:
    """Blocks, or plain characters where the output cannot have them."""
    try:
        "".join(vars(DRAWN).values()).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return DRAWN


def per_mark(parts: int, width: int) -> int:
    """How many fragments one character stands for; 0 when each fragment has several."""
    return 0 if parts * (_FEWEST + 1) - 1 <= width else -(-parts // width)


def bar(parts: Sequence[Part], width: int, marks: Marks) -> str:
    """Each fragment as a bar of its own, or as one character, or some of them together as one.

    Only what is computed as a whole looks like it, and only what lacks everything looks like that.
    """
    if not parts:
        return ""
    together = per_mark(len(parts), width)
    if together:
        groups = [parts[at : at + together] for at in range(0, len(parts), together)]
        return "".join(_mark(sum(group, Part(0, 0, 0)), marks) for group in groups)
    each = min(_WIDEST, (width - len(parts) + 1) // len(parts))
    return marks.border.join(_long(part, each, marks) for part in parts)


def _mark(part: Part, marks: Marks) -> str:
    if part.done == part.rows:
        return marks.done
    return marks.partly if part.done else marks.kept if part.kept else marks.nothing


def _long(part: Part, width: int, marks: Marks) -> str:
    if part.done == part.rows:
        return marks.done * width
    done = part.done * width // part.rows
    partly = 1 if part.done * width % part.rows else 0
    kept = min(width - done - partly, -(-part.kept * width // part.rows))
    return (
        marks.done * done + marks.partly * partly + marks.kept * kept + marks.nothing * (width - done - partly - kept)
    )


def percent(done: int, rows: int) -> str:
    """``83.3 %``, rounded down: 100 % is all of it, and 0 % nothing."""
    if done == rows:
        return "100 %"
    if done == 0:
        return "0 %"
    tenths = 1000 * done // rows
    return f"{tenths // 10}.{tenths % 10} %" if tenths else "<0.1 %"
