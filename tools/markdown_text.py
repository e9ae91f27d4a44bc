"""Plain text made safe to stand in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence


def escaped(text: str) -> str:
    """Text whose brackets, stars and bars stand for themselves, but for those in backticks, which is code."""
    pieces = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    return "".join(
        piece if index % 2 else re.sub(r"([\[\]<>*_|$\\])", r"\\\1", piece) for index, piece in enumerate(pieces)
    )


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table; the cells are Markdown already."""
    lines = ["| " + " | ".join(row) + " |" for row in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:]])
