"""What plans of changes are made of: reads of tables and states, terms, stages, and the limits of what is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from floodmark.views.catalyst import Catalyst
from floodmark.views.operator_columns import expression_id, plain_column
from floodmark.views.query_plan import PlanNode
from floodmark.views.state_plan import StatePlan

Version = Literal["now", "before"]


@dataclass(frozen=True)
class Read:
    """Rows that a plan reads under a name: of a table, of the state of an operator, or the keys of a stage.

    With `among`, only the rows whose `columns` have values that occur in columns of another read are needed.
    """

    name: str
    kind: Literal["now", "before", "changes", "keys"]
    table: str | None = None
    columns: tuple[str, ...] = ()
    among: Values | None = None
    state: str | None = None  # the rows of a state, not of a table

    @property
    def is_small(self) -> bool:
        """Whether it is about as small as the changes."""
        return self.kind in ("changes", "keys") or self.among is not None


@dataclass(frozen=True)
class Values:
    """The values of some columns of a read."""

    read: Read
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Limit:
    """Only the rows whose columns `ids` have these values are needed."""

    ids: tuple[int, ...]
    values: Values


@dataclass(frozen=True)
class Rows:
    """A plan of rows, the reads that it needs in this order, and where the values of its columns come from."""

    plan: Any
    reads: tuple[Read, ...]
    sources: Mapping[int, Values] = field(default_factory=dict)


@dataclass(frozen=True)
class Term(Rows):
    """A plan of changes, with a weight column; it has no rows if its seed has none."""

    seed: Read = field(kw_only=True)


@dataclass(frozen=True)
class Stage:
    """Keys whose rows, groups or partitions changed: the distinct rows of some terms.

    They are the keys of the operator with this number, counted from the top of the query.
    """

    keys: Read
    terms: tuple[Term, ...]
    operator: int

    @property
    def changed(self) -> tuple[Read, ...]:
        """The reads of what it finds."""
        return (self.keys,)


@dataclass(frozen=True)
class OperatorState:
    """An operator that keeps a state, and the reads of those of its rows that a refresh changed."""

    name: str
    operator: int
    plan: StatePlan
    whole: Rows  # computes its content
    added: Read
    removed: Read


@dataclass(frozen=True)
class StateStage:
    """The changes of the input of an operator that keeps a state."""

    state: OperatorState
    terms: tuple[Term, ...]

    @property
    def operator(self) -> int:
        return self.state.operator

    @property
    def changed(self) -> tuple[Read, ...]:
        """The reads of what it finds."""
        return (self.state.added, self.state.removed)


@dataclass(frozen=True)
class DeltaPlan:
    """The stages of a query's changes, in order, the terms of the changes, and the whole query.

    The states are in an order in which each is computed from those before it.
    """

    stages: tuple[Stage | StateStage, ...]
    changes: tuple[Term, ...]
    states: tuple[OperatorState, ...]
    whole: Rows
    tables: tuple[str, ...]  # every occurrence of a table
    columns: Mapping[str, tuple[str, ...]]  # by table, the columns that the plans read

    @property
    def reads(self) -> tuple[Read, ...]:
        """All that the stages and the terms of the changes read, each once."""
        terms = [*(term for stage in self.stages for term in stage.terms), *self.changes]
        return tuple(dict.fromkeys(read for term in terms for read in term.reads))


@dataclass(frozen=True)
class BuiltPlan:
    """The plans of a definition, with what combines them."""

    catalyst: Catalyst
    plan: DeltaPlan


def key_column(number: int) -> str:
    """The name of a column of keys."""
    return f"floodmark_k{number}"


# Limits


def find_best_limit(limits: Iterable[Limit], columns: Mapping[int, str]) -> tuple[tuple[str, ...], Values | None]:
    """The limit that leaves the fewest rows: the one with the most of these columns, by which rows can be found."""
    best: tuple[tuple[str, ...], Values | None] = ((), None)
    for limit in limits:
        pairs = [
            (columns[one], name) for one, name in zip(limit.ids, limit.values.columns, strict=True) if one in columns
        ]
        if len(pairs) > len(best[0]) and len({own for own, _ in pairs}) == len(pairs):
            own, names = zip(*pairs, strict=True)
            best = (tuple(own), Values(limit.values.read, tuple(names)))
    return best


def limits_within(limits: Sequence[Limit], ids: Iterable[int]) -> list[Limit]:
    known = frozenset(ids)
    return rename_limits(limits, {one: one for one in known})


def rename_limits(limits: Sequence[Limit], below: Mapping[int, int]) -> list[Limit]:
    """The limits under the ids of an operator's input, without columns that it does not have."""
    found = []
    for limit in limits:
        kept = [(below[one], name) for one, name in zip(limit.ids, limit.values.columns, strict=True) if one in below]
        if kept:
            ids, names = zip(*kept, strict=True)
            found.append(Limit(tuple(ids), Values(limit.values.read, tuple(names))))
    return found


def key_limits(keys: Read, ids: Sequence[int | None]) -> list[Limit]:
    known = [(one, key_column(n)) for n, one in enumerate(ids) if one is not None]
    if not known:
        return []
    plain, names = zip(*known, strict=True)
    return [Limit(tuple(plain), Values(keys, tuple(names)))]


def rename_sources(sources: Mapping[int, Values], below: Mapping[int, int]) -> dict[int, Values]:
    """The sources under the ids of an operator; `below` has the id of its input for each."""
    return {above: sources[own] for above, own in below.items() if own in sources}


def join_sources(how: str, left: Rows, right: Rows) -> dict[int, Values]:
    """Where the values of a join's columns come from. A side that may be filled with nulls is left out."""
    match how:
        case "Inner" | "Cross":
            return {**left.sources, **right.sources}
        case "RightOuter":
            return dict(right.sources)
        case "FullOuter":
            return {}
        case _:
            return dict(left.sources)


def passed_columns(expressions: Iterable[PlanNode]) -> dict[int, int]:
    """The columns that an operator passes on: the id above, and the id below."""
    return {expression_id(item): column for item in expressions if (column := plain_column(item)) is not None}
