"""Plain text escaped for Markdown, and tables."""

from __future__ import annotations

import re
from collections.abc import Sequence


def escaped(text: str) -> str:
    """Text with Markdown characters escaped, except in backticks, which is code."""
    pieces = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    return "".join(
        piece if index % 2 else re.sub(r"([\[\]<>*_|$\\])", r"\\\1", piece) for index, piece in enumerate(pieces)
    )


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table. The cells must already be Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:]])
