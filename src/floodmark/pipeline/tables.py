"""Which datasets an SQL text reads, as far as the text tells: enough to order views, and to find a mistyped name.

Spark's parser has the last word when a view is declared; asking it would start a JVM.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
      (?P<nothing> --[^\n]* | /\*(?:[^*]|\*(?!/))*\*/ | \s+ )
    | (?P<text> \b[rR]?'(?:[^'\\]|\\.|'')*' | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" )
    | (?P<quoted> `(?:[^`]|``)*` )
    | (?P<word> [A-Za-z_0-9]+ )
    | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_ENDS = {"WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET", "WINDOW", "QUALIFY"}
_ENDS |= {"UNION", "EXCEPT", "INTERSECT", "MINUS", "SELECT"}
_NO_TABLES = {"VALUES", "LATERAL", "SELECT", "UNNEST", "EXPLODE", "ONLY"}


@dataclass(frozen=True)
class _Token:
    text: str
    is_name: bool

    @property
    def word(self) -> str:
        """The text in capitals if it can be a keyword."""
        return self.text.upper() if self.is_name else self.text


@dataclass
class _Level:
    """One pair of brackets: whether a SELECT or FROM clause is in it, and whether a table may come next."""

    selects: bool = False
    in_from: bool = False
    expects: bool = False


def tables(sql: str) -> tuple[str, ...]:
    """The names that stand where tables do, each once, without those that the text itself defines."""
    given = list(_tokens(sql))
    defined = _defined(given)
    found: dict[str, None] = {}
    levels = [_Level(selects=True)]
    at = 0
    while at < len(given):
        token, level = given[at], levels[-1]
        word = token.word
        if word == "(":
            # Tables may be put in brackets: from (a join b using (id)).
            levels.append(_Level(selects=level.expects, in_from=level.expects, expects=level.expects))
            level.expects = False
        elif word == ")":
            if len(levels) > 1:
                levels.pop()
        elif word == ",":
            level.expects = level.in_from
        elif word == "FROM" and token.is_name:
            before = [one.word for one in given[max(0, at - 2) : at]]
            if level.selects and before[-1:] != ["DISTINCT"]:  # not of `is distinct from`, nor of extract(year from t)
                level.in_from = level.expects = True
        elif word == "JOIN" and level.in_from:
            level.expects = True
        elif token.is_name and word in _ENDS and not level.expects:
            level.selects = level.selects or word == "SELECT"
            level.in_from = level.expects = False
        elif level.expects:
            level.expects = word == "LATERAL"
            name, at = _name(given, at)
            follows = given[at + 1].text if at + 1 < len(given) else ""
            if word in ("SELECT", "VALUES"):
                level.selects, level.in_from = True, False
            elif name is not None and follows != "(" and word not in _NO_TABLES and name.lower() not in defined:
                found[name] = None
        at += 1
    return tuple(found)


def _tokens(sql: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(sql):
        if match["quoted"]:
            yield _Token(match["quoted"][1:-1].replace("``", "`"), False)
        elif match["word"]:
            yield _Token(match["word"], True)
        elif match["sign"]:
            yield _Token(match["sign"], False)
        elif match["text"]:
            yield _Token("''", False)


def _name(given: list[_Token], at: int) -> tuple[str | None, int]:
    """The name that begins here, with its dots, and where it ends; None if it is none."""
    first = given[at].text
    if first == "''" or not re.fullmatch(r"[\w.-]+", first):
        return None, at
    name = first
    while at + 2 < len(given) and given[at + 1].text == "." and re.fullmatch(r"[\w.-]+", given[at + 2].text):
        name, at = f"{name}.{given[at + 2].text}", at + 2
    return name, at


def _defined(given: list[_Token]) -> set[str]:
    """The names of common table expressions: `with NAME as (`, `, NAME (a, b) as (`."""
    found: set[str] = set()
    if not any(token.word == "WITH" for token in given):
        return found
    for at, token in enumerate(given):
        if token.word != "AS" or at + 1 >= len(given) or given[at + 1].text != "(":
            continue
        before = at - 1
        if before >= 0 and given[before].text == ")":  # the names of its columns
            while before >= 0 and given[before].text != "(":
                before -= 1
            before -= 1
        if before >= 1 and given[before - 1].word in ("WITH", ",", "RECURSIVE"):
            found.add(given[before].text.lower())
    return found
