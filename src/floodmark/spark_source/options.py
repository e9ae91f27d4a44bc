"""The options of `spark.read`, `spark.readStream` and `df.write`, and the columns that a Spark schema names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.errors import BadOption, UnknownColumns, close_matches
from floodmark.ledger.position import Position
from floodmark.ledger.types import spark_schema

_WHERE = ("lake", "path", "dataset")
_ROWS = ("as_of", "changes", "since", "until", "system")
_STREAM = ("system", "startingOffset", "maxRecordsPerTrigger")
_WRITE = ("source", "state")
_RESERVED = ("paths",)  # set by Spark for load(["a", "b"]), which has its own error

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class DatasetAddress:
    """The lake and the name of a dataset."""

    lake: str
    dataset: str


@dataclass(frozen=True)
class RecordInterval:
    """Records with offsets in (since, until]; None means no limit."""

    since: int | Position | None = None
    until: int | Position | None = None


@dataclass(frozen=True)
class RowsOptions:
    """What a batch job reads: the current rows, now or as of an earlier time, or the records of an interval."""

    as_of: str | None
    changes: RecordInterval | None
    system: bool


@dataclass(frozen=True)
class StreamOptions:
    """What a streaming job reads: records from an offset on, at most `most` per trigger."""

    starting: int | str
    most: int | None
    system: bool


@dataclass(frozen=True)
class Delivery:
    """The identity of a write. A delivery that was written already is not written again."""

    source: str
    state: str


_TABLE_KEY = "floodmark"
"""The key in the metadata of a table's columns that has the options of CREATE TABLE."""


def table_options(given: Mapping[str, str], source: str) -> dict[str, str] | None:
    """The options of CREATE TABLE … USING floodmark OPTIONS (…); None if Spark does not create a table.

    Spark passes them together with its own properties and those of TBLPROPERTIES.
    """
    known = {name.lower(): value for name, value in given.items()}
    if known.get("provider", "").lower() != source:
        return None
    options = {name.removeprefix("option."): value for name, value in known.items() if name.startswith("option.")}
    return options | ({"path": known["path"]} if "path" in known else {})


def with_table_options(columns: Any, options: Mapping[str, str]) -> Any:
    """A Spark schema whose columns carry the options of a table.

    Spark passes no options when it reads a table, but it keeps the metadata of the columns. For INSERT this does not
    work: the columns that are written may have the metadata of another table, from which they were read.
    """
    from pyspark.sql.types import StructField, StructType

    note = {_TABLE_KEY: json.dumps(dict(options))}
    return StructType([StructField(f.name, f.dataType, f.nullable, {**f.metadata, **note}) for f in columns.fields])


def stored_table_options(columns: Any) -> dict[str, str]:
    """The options that `with_table_options` added to a schema; empty for other schemas."""
    notes = [field.metadata[_TABLE_KEY] for field in columns.fields if _TABLE_KEY in (field.metadata or {})]
    return dict(json.loads(notes[0])) if notes else {}


class SourceOptions:
    """The options from Spark: texts by case-insensitive names."""

    def __init__(self, given: Mapping[str, str], lake: str | None = None) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._lake = lake

    @property
    def names_dataset(self) -> bool:
        """Whether a dataset is given. It is not for INSERT INTO a table."""
        return bool(self._given.get("path") or self._given.get("dataset"))

    def place(self) -> DatasetAddress:
        """The dataset that `load` or `save` names, in the lake of the option, or of `register_table`."""
        if "paths" in self._given:
            raise BadOption(
                "a frame can read only one dataset", hint="load each dataset separately and union them", option="paths"
            )
        lake = self._given.get("lake", self._lake)
        if not lake:
            hint = 'add .option("lake", "/path/of/the/lake"), or give it once: floodmark.register(spark, lake)'
            raise BadOption("no lake is given", hint=hint, option="lake")
        if "://" not in lake and not Path(lake).is_absolute():
            hint = f"give an absolute path, such as {str(Path('/data') / lake)!r}: Spark processes run in other folders"
            raise BadOption(f"lake={lake!r} is a relative path", hint=hint, option="lake")
        named = {self._given[name] for name in ("path", "dataset") if self._given.get(name)}
        if len(named) != 1:
            raise BadOption(
                "two datasets are given, by path and by dataset" if named else "no dataset is given",
                hint='name it: .load("trips"); in SQL, without a list of columns: '
                "create table t using floodmark options (dataset 'trips')",
                option="dataset",
            )
        return DatasetAddress(lake, named.pop())

    def rows(self) -> RowsOptions:
        """The options of `spark.read`."""
        self._check_known((*_WHERE, *_ROWS), "reading")
        changes = self._changes()
        as_of = self._given.get("as_of")
        if as_of is not None and changes is not None:
            raise BadOption(
                "as_of reads the rows at one time, but changes, since and until read the records between two offsets",
                hint="leave out as_of, or leave out changes, since and until",
                option="as_of",
            )
        return RowsOptions(as_of, changes, self._flag("system", changes is not None))

    def stream(self) -> StreamOptions:
        """The options of `spark.readStream`."""
        self._check_known((*_WHERE, *_STREAM), "streaming")
        return StreamOptions(self._starting(), self._most(), self._flag("system", False))

    def delivery(self) -> Delivery | None:
        """The delivery of `df.write`, if `source` and `state` are given."""
        self._check_known((*_WHERE, *_WRITE), "writing")
        source, state = self._given.get("source"), self._given.get("state")
        if source is not None and state is not None:
            return Delivery(source, state)
        if source is not None or state is not None:
            raise BadOption(
                "source and state must be given together",
                hint="give both: the source, and how far it was read",
                option="state",
            )
        return None

    def checkpoint(self) -> str:
        """The checkpoint location of a streaming query that writes. Spark also passes the query's name."""
        self._check_known((*_WHERE, "checkpointLocation", "queryName"), "writing a stream to")
        location = self._given.get("checkpointlocation")
        if not location:
            hint = 'add .option("checkpointLocation", "/data/checkpoints/trips"): it identifies a batch'
            raise BadOption("no checkpointLocation is given", hint=hint, option="checkpointLocation")
        return location

    @property
    def system(self) -> bool:
        """Whether system columns are requested. It is needed before Spark chooses a batch or a stream."""
        return self._flag("system", self._changes() is not None)

    @property
    def changes(self) -> RecordInterval | None:
        """The requested interval of records; None for rows and for a stream."""
        return self._changes()

    def check(self) -> None:
        """Refuse options that neither a batch nor a stream has, and values that no stream takes."""
        self._check_known(dict.fromkeys((*_WHERE, *_ROWS, *_STREAM)), "reading")
        self._starting()
        self._most()

    def _changes(self) -> RecordInterval | None:
        since, until = self._position("since"), self._position("until")
        reads_changes = self._flag("changes", since is not None or until is not None)
        if not reads_changes and (since is not None or until is not None):
            raise BadOption(
                "since and until cannot be used with changes=false", hint="leave out changes=false", option="changes"
            )
        return RecordInterval(since, until) if reads_changes else None

    def _starting(self) -> int | str:
        text = self._given.get("startingoffset", EARLIEST)
        if text.lower() in (EARLIEST, LATEST):
            return text.lower()
        number = self._number("startingOffset")
        if number is None or number < 0:
            hint = 'give the offset of the first record to read, "earliest" or "latest"'
            raise BadOption(f"startingOffset={text!r} is not an offset", hint=hint, option="startingOffset")
        return number

    def _most(self) -> int | None:
        most = self._number("maxRecordsPerTrigger")
        if most is not None and most < 1:
            hint = "give at least 1, or leave it out to read all available records"
            raise BadOption(f"maxRecordsPerTrigger={most} is too small", hint=hint, option="maxRecordsPerTrigger")
        return most

    def _position(self, name: str) -> int | Position | None:
        text = self._given.get(name)
        return Position.parse(text) if text is not None and "/" in text else self._number(name)

    def _number(self, name: str) -> int | None:
        text = self._given.get(name.lower())
        if text is None:
            return None
        try:
            return int(text)
        except ValueError as error:
            raise BadOption(f"{name}={text!r} is not a whole number", hint="give an integer", option=name) from error

    def _flag(self, name: str, default: bool) -> bool:
        text = self._given.get(name.lower(), str(default)).lower()
        if text not in ("true", "false"):
            raise BadOption(f"{name}={text!r} is neither true nor false", hint="give true or false", option=name)
        return text == "true"

    def _check_known(self, names: Iterable[str], doing: str) -> None:
        known = {name.lower(): name for name in (*names, *_RESERVED)}
        for name in self._given:
            if name not in known:
                near = close_matches(name, known)
                usable = ", ".join(n for n in known.values() if n not in (*_RESERVED, "path"))
                hint = f"did you mean {known[near[0]]!r}?" if near else f"use one of these: {usable}"
                raise BadOption(f"{name!r} is not an option for {doing} a dataset", hint=hint, option=name)


def check_named_columns(schema: pa.Schema, requested: Any, name: str) -> tuple[str, ...]:
    """The columns that a Spark schema names. The dataset must have each of them with the same type."""
    known = {field.name: field for field in spark_schema(schema).fields}
    for field in requested.fields:
        column = known.get(field.name)
        if column is None:
            near = close_matches(field.name, known)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise UnknownColumns(f"dataset {name!r} has no column {field.name!r}", hint=hint)
        actual_type, requested_type = column.dataType.simpleString(), field.dataType.simpleString()
        if actual_type != requested_type:
            hint = f"use {actual_type} in the schema and cast the column afterwards"
            raise UnknownColumns(f"column {field.name!r} of {name!r} is {actual_type}, not {requested_type}", hint=hint)
        if column.nullable and not field.nullable:
            hint = "leave out NOT NULL in the schema"
            raise UnknownColumns(f"column {field.name!r} of {name!r} may be null", hint=hint)
    return tuple(field.name for field in requested.fields)
