"""`Analysis`: how a view's query is refreshed, which columns it reads, and which columns its rows have."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import pyarrow as pa

from floodmark.errors import ViewChanged
from floodmark.ledger.schema import Layout, check_distinct, derive_layout, vocabulary
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import schema_from_text, schema_to_text, strategy_of
from floodmark.views.delta_rules import OperatorRule

RefreshKind = Literal["rows", "groups", "join", "changes", "whole"]
REFRESH_KINDS: tuple[RefreshKind, ...] = get_args(RefreshKind)

OFFSET_COLUMN = "floodmark_offset"
ROW_COLUMN = "floodmark_row"
COPY_COLUMN = "floodmark_copy"
KEY_PREFIX = "floodmark_key_"
RESERVED_PREFIX = "floodmark_"

ROW_TYPE = pa.int64()
COPY_TYPE = pa.int32()
_NO_COLUMNS = pa.schema([])


@dataclass(frozen=True)
class InputSchema:
    """A dataset as a query sees it. An append-only one has no key; `offset` is the name of its offset column."""

    dataset_id: str
    name: str
    schema: pa.Schema  # what queries see: data and computed columns
    key: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    offset: str = "offset"
    hidden: pa.Schema = field(default_factory=lambda: _NO_COLUMNS)  # of a view: the columns that queries do not see

    def type_of(self, column: str) -> pa.DataType:
        """The type of a column, including hidden columns and the offset."""
        if column == self.offset:
            return pa.int64()
        owner = self.hidden if column in self.hidden.names else self.schema
        return owner.field(column).type


@dataclass(frozen=True)
class InputUse:
    """What a query reads from one dataset. `alias` is the dataset's name in the query, even after a rename."""

    alias: str
    dataset_id: str
    keys: tuple[tuple[str, str], ...]  # T: the view's column, and the input's column (or offset) that it equals
    columns: tuple[str, ...]  # the columns that the query reads, in the input's order
    computed: tuple[str, ...]  # the computed columns that the query or the view's functions read

    def to_json(self) -> dict[str, Any]:
        return {
            "alias": self.alias,
            "dataset": self.dataset_id,
            "keys": [list(pair) for pair in self.keys],
            "columns": list(self.columns),
            "computed": list(self.computed),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> InputUse:
        keys = tuple((str(name), str(column)) for name, column in document["keys"])
        return cls(
            document["alias"], document["dataset"], keys, tuple(document["columns"]), tuple(document["computed"])
        )


@dataclass(frozen=True)
class Analysis:
    """How a view is refreshed.

    T (`t`) is a set of columns with this property: the query over only the input rows with certain values of T gives
    exactly the view's rows with these values. A view of kind `whole` has no T, and `why` is the reason. In a view of
    kind `changes`, T only identifies the view's rows: changes are carried through the operators by `rules`. So they are
    in a view of kind `groups` that has rules.
    """

    kind: RefreshKind
    why: str | None
    sources: tuple[InputUse, ...]
    columns: pa.Schema  # the columns that users see, in order; includes the columns of functions
    t: tuple[str, ...]
    key: tuple[str, ...]  # T comes first
    hidden: pa.Schema  # columns of the key that users do not see
    query: str  # the query to run, with the injected columns; its result has the columns in any order
    identity: bool  # whether `with_identity` is applied to the result
    inject: Mapping[str, tuple[tuple[str, str], ...]]  # alias → (name in the query's table, column of the input)
    schemas: str  # `schemas_digest` of the inputs when the query was analysed
    settings: Mapping[str, str] = field(default_factory=dict)  # the Spark settings that affect the meaning of the query
    rules: OperatorRule | None = None  # how each operator is maintained; None for kinds that need no rules

    @property
    def carries_changes(self) -> bool:
        """Whether changes are carried through its operators, from the newest records to the rows of the view."""
        return self.kind == "changes" or (self.kind == "groups" and self.rules is not None)

    @property
    def lookup(self) -> tuple[str, ...]:
        """The columns of the key by which rows are looked up."""
        return self.t or self.key

    @property
    def stored(self) -> pa.Schema:
        """The columns of the view's slices: first the visible ones, then the hidden ones."""
        return pa.schema([*self.columns, *self.hidden])

    def source(self, alias: str) -> InputUse:
        """The input with this name in the query."""
        return next(s for s in self.sources if s.alias.lower() == alias.lower())

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "why": self.why,
            "sources": [source.to_json() for source in self.sources],
            "columns": schema_to_text(self.columns),
            "t": list(self.t),
            "key": list(self.key),
            "hidden": schema_to_text(self.hidden),
            "query": self.query,
            "identity": self.identity,
            "inject": {alias: [list(pair) for pair in pairs] for alias, pairs in self.inject.items()},
            "schemas": self.schemas,
            "settings": dict(self.settings),
            "rules": None if self.rules is None else self.rules.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Analysis:
        """Read what `to_json` wrote; KeyError, TypeError or ValueError if it is invalid."""
        if document["kind"] not in REFRESH_KINDS:
            raise ValueError(f"unknown kind of view {document['kind']!r}")
        return cls(
            kind=document["kind"],
            why=document["why"],
            sources=tuple(InputUse.from_json(source) for source in document["sources"]),
            columns=schema_from_text(document["columns"]),
            t=tuple(document["t"]),
            key=tuple(document["key"]),
            hidden=schema_from_text(document["hidden"]),
            query=document["query"],
            identity=bool(document["identity"]),
            inject={
                alias: tuple((str(name), str(column)) for name, column in pairs)
                for alias, pairs in document["inject"].items()
            },
            schemas=document["schemas"],
            settings={str(name): str(value) for name, value in document["settings"].items()},
            rules=None if document["rules"] is None else OperatorRule.from_json(document["rules"]),
        )


def schemas_digest(sources: Iterable[InputSchema]) -> str:
    """A digest of the datasets' schemas and keys. Names and order do not affect it."""
    seen = sorted(
        [
            source.dataset_id,
            [[f.name, str(f.type)] for f in source.schema],
            list(source.key),
            sorted(source.computed),
            source.offset,
            [[f.name, str(f.type)] for f in source.hidden],
        ]
        for source in sources
    )
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:32]


def layout_of(view: str, analysis: Analysis, snapshot: Snapshot) -> Layout:
    """The layout for the query's current columns, combined with the columns of older records.

    The order is: visible columns as in the query, hidden columns, and retired columns that the query no longer has.
    Newer records have null in retired columns, and users do not see them. Every column is nullable, because the values
    of inputs may be null.
    """
    columns = analysis.stored
    present = snapshot.layout
    if present is None:
        layout = derive_layout(columns, vocabulary(snapshot.state.vocab), None, analysis.key)
        nullable = pa.schema([f.with_nullable(True) for f in layout.data])
        return replace(layout, data=nullable, hidden=tuple(f.name for f in analysis.hidden))
    key = strategy_of(snapshot.state).key
    if key != tuple(analysis.key):
        raise ViewChanged(
            f"the key of view {view!r} is {_listed(key)}, and its query now has the key {_listed(analysis.key)}",
            hint=f"give it another name, or drop {view!r} and declare it again",
            view=view,
            what="its key changed",
        )
    now, before = set(columns.names), set(present.data.names)
    retired = [f for f in present.data if f.name not in now]
    _check_spelling(view, columns, retired)
    kept = [_check_type(view, f, present.data.field(f.name)) if f.name in before else f for f in columns]
    fields = [f.with_nullable(True) for f in [*kept, *retired]]
    return replace(present, data=pa.schema(fields), hidden=tuple(f.name for f in [*analysis.hidden, *retired]))


def _check_spelling(view: str, columns: pa.Schema, retired: Sequence[pa.Field]) -> None:
    """Refuse a column whose name differs only in case from a column of older records."""
    check_distinct(columns.names)
    spelled = {f.name.lower(): f.name for f in retired}
    for name in columns.names:
        if (before := spelled.get(name.lower())) is not None:
            raise ViewChanged(
                f"view {view!r} has or had a column {before!r}, and its query now spells it {name!r}",
                hint=f"name it {before!r} in the query, or give the view another name",
                view=view,
                column=name,
                what=f"column {before!r} is spelled {name!r} now",
            )


def _check_type(view: str, column: pa.Field, present: pa.Field) -> pa.Field:
    """The column with the type of older records. A type change is refused, because later values might not fit."""
    if column.type != present.type:
        raise ViewChanged(
            f"column {present.name!r} of view {view!r} is {present.type}, and its query now gives {column.type}",
            hint=f"cast it in the query, give the column another name, or drop {view!r} and declare it again",
            view=view,
            column=present.name,
            what=f"column {present.name!r} has another type",
        )
    return present


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def content_version(definition_version: str, analysis: Analysis) -> str:
    """A version of a view's content: its definition, plus every part of its analysis that affects its records."""
    parts = [
        [[f.name, str(f.type)] for f in analysis.columns],
        [[f.name, str(f.type)] for f in analysis.hidden],
        list(analysis.key),
        list(analysis.t),
        analysis.identity,
        sorted([use.dataset_id, [list(pair) for pair in use.keys]] for use in analysis.sources),
    ]
    return f"{definition_version}-{hashlib.sha3_256(json.dumps(parts).encode()).hexdigest()[:8]}"
