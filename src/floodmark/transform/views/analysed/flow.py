"""Which columns of a query's result can be followed down to its tables, so that a part of both is the same.

A column `a` of an operator has a *trace*: a column for some tables below it, such that the rows of these tables with
values in any set S, and all rows of the others, give exactly the operator's rows with `a` in S. Every rule here keeps
that true. Where a trace names all tables, restricting the tables is restricting the result. Two laws carry the rules:

- traces of columns that are equal in every row can be united, as restricting by one and then by the other shows (so
  what an inner join or a filter says is equal is remembered: an operator above may give one of them a longer trace);
- columns with traces to all tables can be taken together: T may be any number of them.

An operator that is not known ends it (`NotInParts`): the query is then answered as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from floodmark.transform.views.analysed.plan_tree import Node

Trace = frozenset[tuple[int, str]]
"""Pairs of a table's number in the plan and its column."""

MOST_KEYS = 4
"""So many ways to tell rows apart are kept of each operator."""


class NotInParts(Exception):
    """The query cannot be refreshed in parts; the text says why, to a user."""


@dataclass(frozen=True)
class Attribute:
    """A column that an operator yields."""

    id: str
    name: str
    type: str


@dataclass(frozen=True)
class Table:
    """A dataset as it stands in a plan; one that stands there twice is two."""

    number: int
    alias: str


@dataclass(frozen=True)
class Flow:
    """What is known of the rows that an operator yields."""

    output: tuple[Attribute, ...]
    tables: tuple[Table, ...]
    traces: Mapping[str, Trace] = field(default_factory=dict)
    halves: Mapping[frozenset[str], Trace] = field(default_factory=dict)  # of full joins: what both coalesce to
    keys: tuple[frozenset[str], ...] = ()  # each: columns that no two rows have in common
    same: tuple[frozenset[str], ...] = ()  # each: columns that are equal in every row; no column is in two
    did: frozenset[str] = frozenset()  # "join", "group"


Pairs = tuple[tuple[str, str], ...]
"""Pairs of ids of columns that are equal."""


def united(traces: Mapping[str, Trace], same: Iterable[frozenset[str]]) -> dict[str, Trace]:
    """Traces where these columns are equal in every row."""
    made = dict(traces)
    for columns in same:
        traced = sorted(columns & traces.keys())
        for a in traced:
            for b in traced:
                made[a] = union_of(made[a], traces[b]) or made[a]
    return made


def classes(same: Iterable[Collection[str]]) -> tuple[frozenset[str], ...]:
    """Columns that are equal in every row, from some that are known to be: what equals one of them equals all."""
    found: list[frozenset[str]] = []
    for columns in same:
        touching = [known for known in found if known & set(columns)]
        found = [known for known in found if known not in touching]
        found.append(frozenset(columns).union(*touching))
    return tuple(found)


def union_of(one: Trace, other: Trace) -> Trace | None:
    """Both traces, None where they name different columns of a table."""
    union = one | other
    return union if len({number for number, _ in union}) == len(union) else None


def equalities(condition: Node) -> Pairs:
    """The pairs of plain columns of one type that a condition says are equal, whatever else it says."""
    found: list[tuple[str, str]] = []
    rest = [condition]
    while rest:
        part = rest.pop()
        if part.name == "And":
            rest += part.children
        elif part.name in ("EqualTo", "EqualNullSafe"):
            a, b = part.children
            are_plain = a.name == b.name == "AttributeReference"
            if are_plain and is_comparable(str(a["dataType"])) and a["dataType"] == b["dataType"]:
                found.append((a.id, b.id))
    return tuple(sorted(found))


_COMPARABLE = ("boolean", "byte", "short", "integer", "long", "string", "binary", "date", "timestamp", "timestamp_ntz")


def is_comparable(data_type: str) -> bool:
    """Whether values that Spark takes for equal are the same bytes: not so for floats (-0.0, NaN) and collations."""
    return data_type in _COMPARABLE or data_type.startswith("decimal(")
