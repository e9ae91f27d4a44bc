"""SQL as text: where its statements and brackets end, so that bad input is refused before Spark is started.

What a query means, Spark's own parser says; nothing here decides how a view is refreshed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
      --[^\n]*                                   # a comment up to the end of the line
    | /\*(?:[^*]|\*(?!/))*\*/                    # or between stars
    | \b[rR](?:'[^']*'|"[^"]*")                  # raw text: a backslash is one
    | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*"
    | `(?:[^`]|``)*`
    | [A-Za-z_][A-Za-z0-9_]* | [;()]
    """,
    re.VERBOSE | re.DOTALL,
)
QUESTIONS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
"""What a statement begins with that only asks."""


@dataclass(frozen=True)
class Token:
    """A word, a bracket or a semicolon outside of quotes and comments."""

    text: str
    start: int


def tokens(text: str) -> Iterator[Token]:
    """The words, brackets and semicolons of a text; quoted names and values are none."""
    for found in _TOKEN.finditer(text):
        said = found.group()
        if said in (";", "(", ")") or ((said[0].isalpha() or said[0] == "_") and not said.endswith(("'", '"'))):
            yield Token(said, found.start())


def without_end(text: str) -> str:
    """A statement without the semicolons and the space that it ends with."""
    last = [token for token in tokens(text) if token.text == ";"]
    while last and not _says_anything(text[last[-1].start + 1 :]):
        text = text[: last.pop().start]
    return text.strip()


def has_several_statements(text: str) -> bool:
    """Whether a semicolon stands between two statements."""
    return any(token.text == ";" for token in tokens(without_end(text)))


def first_word(text: str) -> str | None:
    """What a statement begins with, brackets aside, in capitals; None if that is no word."""
    for token in tokens(text):
        if token.text != "(":
            return token.text.upper()
    return None


def closes_too_much(text: str) -> bool:
    """Whether a bracket is closed that the text has not opened: around it, it would end somebody else's."""
    depth = 0
    for token in tokens(text):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth < 0:
            return True
    return False


def _says_anything(text: str) -> bool:
    """Whether more than space and comments is left."""
    return bool(re.sub(r"--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/|;", "", text).strip())
