"""What is known of a view's query: how it is kept up to date, what it reads, and what its rows look like."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pyarrow as pa

Kind = Literal["rows", "groups", "join", "whole"]
KINDS: tuple[Kind, ...] = get_args(Kind)

OFFSET = "floodmark_offset"
ROW = "floodmark_row"
COPY = "floodmark_copy"
KEY_PREFIX = "floodmark_key_"
RESERVED_PREFIX = "floodmark_"

ROW_TYPE = pa.int64()
COPY_TYPE = pa.int32()
_NO_COLUMNS = pa.schema([])


@dataclass(frozen=True)
class SourceSchema:
    """A dataset as a query can see it. An append-only one has no key; `offset` is what its offset column is called."""

    dataset_id: str
    name: str
    schema: pa.Schema  # what queries see: data and computed columns
    key: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    offset: str = "offset"
    hidden: pa.Schema = field(default_factory=lambda: _NO_COLUMNS)  # of a view: what its rows have besides

    def type_of(self, column: str) -> pa.DataType:
        """The type of a column, be it hidden or the offset."""
        if column == self.offset:
            return pa.int64()
        owner = self.hidden if column in self.hidden.names else self.schema
        return owner.field(column).type


@dataclass(frozen=True)
class SourceUse:
    """What a query reads of one dataset. `alias` is the dataset's name in the query, whatever it is called by now."""

    alias: str
    dataset_id: str
    keys: tuple[tuple[str, str], ...]  # T: the view's column, and the source's column that it is (or its offset)
    columns: tuple[str, ...]  # what the query's table needs, in the source's order
    computed: tuple[str, ...]  # the computed ones among them and among the inputs of the view's functions

    def to_json(self) -> dict[str, Any]:
        return {
            "alias": self.alias,
            "dataset": self.dataset_id,
            "keys": [list(pair) for pair in self.keys],
            "columns": list(self.columns),
            "computed": list(self.computed),
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> SourceUse:
        keys = tuple((str(name), str(column)) for name, column in said["keys"])
        return cls(said["alias"], said["dataset"], keys, tuple(said["columns"]), tuple(said["computed"]))


@dataclass(frozen=True)
class Analysis:
    """How a view is kept up to date.

    T (`t`) are columns such that the sources' rows with some values of T, and the same query over them, give exactly
    the view's rows with these values. A view of kind `whole` has none, and `why` says what put it there.
    """

    kind: Kind
    why: str | None
    sources: tuple[SourceUse, ...]
    columns: pa.Schema  # what users see, in their order; columns of functions included
    t: tuple[str, ...]
    key: tuple[str, ...]  # T comes first
    hidden: pa.Schema  # columns of the key that users do not see
    query: str  # what is run: with what was spliced in; its result has the columns by name, in some order
    identity: bool  # whether `with_identity` goes over the result
    inject: Mapping[str, tuple[tuple[str, str], ...]]  # alias → (name in the query's table, the source's column)
    schemas: str  # `schemas_digest` of the sources as they were
    settings: Mapping[str, str] = field(default_factory=dict)  # those of Spark that decide what the query means

    @property
    def lookup(self) -> tuple[str, ...]:
        """The columns of the key by which rows are found together."""
        return self.t or self.key

    @property
    def stored(self) -> pa.Schema:
        """The columns of the view's slices: what users see, and then the hidden ones."""
        return pa.schema([*self.columns, *self.hidden])

    def source(self, alias: str) -> SourceUse:
        """The source that the query calls so."""
        return next(s for s in self.sources if s.alias.lower() == alias.lower())

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "why": self.why,
            "sources": [source.to_json() for source in self.sources],
            "columns": _schema_to_text(self.columns),
            "t": list(self.t),
            "key": list(self.key),
            "hidden": _schema_to_text(self.hidden),
            "query": self.query,
            "identity": self.identity,
            "inject": {alias: [list(pair) for pair in pairs] for alias, pairs in self.inject.items()},
            "schemas": self.schemas,
            "settings": dict(self.settings),
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Analysis:
        """What `to_json` wrote; KeyError, TypeError or ValueError when it is something else."""
        if said["kind"] not in KINDS:
            raise ValueError(f"there is no kind of view {said['kind']!r}")
        return cls(
            kind=said["kind"],
            why=said["why"],
            sources=tuple(SourceUse.from_json(source) for source in said["sources"]),
            columns=_schema_from_text(said["columns"]),
            t=tuple(said["t"]),
            key=tuple(said["key"]),
            hidden=_schema_from_text(said["hidden"]),
            query=said["query"],
            identity=bool(said["identity"]),
            inject={
                alias: tuple((str(name), str(column)) for name, column in pairs)
                for alias, pairs in said["inject"].items()
            },
            schemas=said["schemas"],
            settings={str(name): str(value) for name, value in said["settings"].items()},
        )


def schemas_digest(sources: Iterable[SourceSchema]) -> str:
    """A digest of what datasets look like to queries; their names and the order in which they come play no part."""
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


def _schema_to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def _schema_from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
