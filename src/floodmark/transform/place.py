"""Where a user's file declares something: file and line, for errors that are found long after."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).parent.parent)


@dataclass(frozen=True)
class Place:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


def here() -> Place | None:
    """The line outside of Floodmark that the present call came from; None when there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        # A frozen dataclass makes its own __init__, which has no file.
        if not file.startswith((_OURS, "<")):
            return Place(file, frame.f_lineno)
        frame = frame.f_back
    return None
