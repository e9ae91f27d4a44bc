"""The layout of a dataset: its data columns, its event time and the order of columns in its slices."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from floodmark.chain.events import SetVocab
from floodmark.chain.schema import DataSchema, ExtraAttributes
from floodmark.chain.state import ChainState
from floodmark.ledger.errors import (
    BadEventTime,
    BadPrimaryKey,
    DuplicateColumns,
    ReservedColumn,
    UnsupportedType,
)
from floodmark.ledger.strategy import noted
from floodmark.ledger.types import canonical, check_supported, field_from_odf, field_to_odf
from floodmark.storage.slices import ROW_GROUP_ROWS, SYSTEM_TIME_TYPE, Vocabulary, system_fields

EVENT_TIME_KEY = "floodmark.dev/event-time"
HIDDEN_KEY = "floodmark.dev/hidden"
ROW_GROUP_SIZE_NOTE = "row_group_size"


@dataclass(frozen=True)
class Layout:
    """What the records of a dataset look like.

    `data` are the user's columns in the user's order. `event_time` names one of them; when it is None, events have
    no time of their own and the slices repeat the system time. `hidden` names those among them that identify rows, or
    were there once: they are written, hashed and kept like all others, and shown only to whoever names them.
    """

    vocab: Vocabulary
    event_time: str | None
    data: pa.Schema
    hidden: tuple[str, ...] = ()

    @property
    def shown(self) -> pa.Schema:
        """The data columns that a reader sees who asks for none by name."""
        return pa.schema([f for f in self.data if f.name not in self.hidden]) if self.hidden else self.data

    @property
    def slice_schema(self) -> pa.Schema:
        """The columns of a slice, in the order in which they lie in the file."""
        return pa.schema([*system_fields(self.vocab), *self.payload_schema])

    @property
    def payload_schema(self) -> pa.Schema:
        """The columns of a slice after the first three: the event time, then the other data columns."""
        rest = [f for f in self.data if f.name != self.event_time]
        return pa.schema([self._event_time_field(), *rest])

    @property
    def read_schema(self) -> pa.Schema:
        """What a reader sees with the system columns: offset, op, system time, then the data as the user gave it."""
        return pa.schema([*system_fields(self.vocab), *self.data])

    def _event_time_field(self) -> pa.Field:
        if self.event_time is None:
            return pa.field(self.vocab.event_time, SYSTEM_TIME_TYPE, nullable=False)
        return self.data.field(self.event_time)

    def to_odf(self) -> DataSchema:
        """The schema as a SetDataSchema event holds it."""
        if self.event_time is None:
            note: Any = {"from": "system_time"}
        else:
            note = {"index": self.data.get_field_index(self.event_time)}
        notes = {EVENT_TIME_KEY: note}
        if self.hidden:
            notes[HIDDEN_KEY] = list(self.hidden)
        return DataSchema(
            fields=tuple(field_to_odf(f) for f in self.slice_schema),
            extra=ExtraAttributes.of(notes),
        )

    def with_schema(self, schema: pa.Schema) -> Layout:
        """The same layout with other columns; what its event time is does not change."""
        required = [f.name for f in self.data if not f.nullable]
        fields = _checked(schema, self.vocab, self.event_time, required)
        check_distinct(schema.names)
        return replace(self, data=pa.schema(fields))

    def with_fields(self, added: Iterable[pa.Field]) -> Layout:
        """The same layout with more columns at the end."""
        return self.with_schema(pa.schema([*self.data, *added]))


def vocabulary(event: SetVocab | None) -> Vocabulary:
    """The system column names that a SetVocab event gives."""
    usual = Vocabulary()
    if event is None:
        return usual
    return Vocabulary(
        offset=event.offset_column or usual.offset,
        op=event.operation_type_column or usual.op,
        system_time=event.system_time_column or usual.system_time,
        event_time=event.event_time_column or usual.event_time,
    )


def from_odf(schema: DataSchema, vocab: Vocabulary) -> Layout:
    """The layout that a chain's schema and vocabulary describe; chains from elsewhere included."""
    fields = [field_from_odf(f) for f in schema.fields]
    payload = [f for f in fields if f.name not in vocab.reserved]
    note = _event_time_note(schema)
    names = [f.name for f in payload]
    if note.get("from") == "system_time" or vocab.event_time not in names:
        data = [f for f in payload if f.name != vocab.event_time]
        return Layout(vocab, None, pa.schema(data), _hidden(schema, data))
    time_field = payload.pop(names.index(vocab.event_time))
    index = note.get("index", 0)
    payload.insert(index if isinstance(index, int) else 0, time_field)
    return Layout(vocab, vocab.event_time, pa.schema(payload), _hidden(schema, payload))


def derive(schema: pa.Schema, vocab: Vocabulary, event_time: str | None, key: Sequence[str] = ()) -> Layout:
    """The layout of a dataset whose first data has this Arrow schema. The columns of its key take no nulls."""
    names = schema.names
    if event_time is None and vocab.event_time in names:
        event_time = vocab.event_time  # the standard's own name for it
    if event_time is not None and event_time not in names:
        near = difflib.get_close_matches(event_time, names, 1)
        raise BadEventTime(
            f"the event time column {event_time!r} is not in the data",
            hint=f"did you mean {near[0]!r}?" if near else f"the data has {', '.join(names) or 'no columns'}",
            column=event_time,
        )
    fields = _checked(schema, vocab, event_time, key)
    check_distinct(names)
    _check_key(key, fields)
    return Layout(vocab, event_time, pa.schema(fields))


def check_distinct(names: list[str]) -> None:
    """Refuse columns of one name. Spark and DuckDB do not tell capitals apart, so neither does a dataset."""
    lower = [name.lower() for name in names]
    twice = [name for name in names if lower.count(name.lower()) > 1]
    if twice:
        raise DuplicateColumns(
            f"columns {' and '.join(repr(name) for name in twice[:2])} have one name (capitals do not count)",
            hint="rename one of them",
            columns=twice,
        )


def check_column_name(name: str, vocab: Vocabulary) -> None:
    """Refuse a name that no data column can have."""
    if not name:
        raise ReservedColumn("a column has no name", hint="give it one", column=name)
    if name.lower() in [reserved.lower() for reserved in vocab.reserved]:
        raise ReservedColumn(
            f"column name {name!r} belongs to the system columns ({', '.join(vocab.reserved)})",
            hint=f"rename it, for instance to {name + '_'!r}",
            column=name,
        )


def fields_from(schema: pa.Schema | Mapping[str, Any]) -> pa.Schema:
    """A schema from a pa.Schema, or from names and types (Arrow types or their names, such as 'int64')."""
    if isinstance(schema, pa.Schema):
        return schema
    return pa.schema([pa.field(name, _named_type(name, t)) for name, t in dict(schema).items()])


def _named_type(column: str, given: Any) -> pa.DataType:
    if isinstance(given, pa.DataType):
        return given
    try:
        return pa.type_for_alias(given)
    except (AttributeError, ValueError) as error:  # AttributeError: not even text
        raise UnsupportedType(
            f"column {column!r}: {given!r} is no type",
            hint="give a pyarrow type or its name, such as 'int64', 'string' or 'timestamp[us]'",
            column=column,
            data_type=str(given),
        ) from error


def _check_key(key: Sequence[str], fields: list[pa.Field]) -> None:
    """Refuse a key whose columns are not there, or have no order."""
    types = {f.name: f.type for f in fields}
    for name in key:
        if name not in types:
            near = difflib.get_close_matches(name, list(types), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the data has {', '.join(types) or 'no columns'}"
            raise BadPrimaryKey(f"the key column {name!r} is not in the data", hint=hint, column=name)
        if pa.types.is_nested(types[name]):
            raise BadPrimaryKey(
                f"the key column {name!r} has type {types[name]}",
                hint="a key is made of plain values: numbers, text, dates, times",
                column=name,
            )


def _checked(
    fields: Iterable[pa.Field], vocab: Vocabulary, event_time: str | None, required: Sequence[str]
) -> list[pa.Field]:
    checked = []
    for field in fields:
        check_column_name(field.name, vocab)
        if event_time is None and field.name.lower() == vocab.event_time.lower():
            raise ReservedColumn(
                f"column name {field.name!r} belongs to the event time, which this dataset takes from the system time",
                hint=f"rename it, for instance to {field.name + '_'!r}, or create a dataset with event_time=",
                column=field.name,
            )
        data_type = canonical(field.type, field.name)
        check_supported(data_type, field.name)
        if field.name == event_time and not (pa.types.is_timestamp(data_type) or pa.types.is_date(data_type)):
            raise BadEventTime(
                f"the event time column {field.name!r} has type {field.type}",
                hint="an event time is a timestamp or a date: cast the column first",
                column=field.name,
            )
        checked.append(
            pa.field(field.name, data_type, nullable=field.name != event_time and field.name not in required)
        )
    return checked


def _hidden(schema: DataSchema, data: Sequence[pa.Field]) -> tuple[str, ...]:
    """The columns that the chain says are hidden; a name alone hides none, so a user's own may be called the same."""
    names = None if schema.extra is None else schema.extra.parsed.get(HIDDEN_KEY)
    return tuple(f.name for f in data if f.name in names) if isinstance(names, list) else ()


def _event_time_note(schema: DataSchema) -> dict[str, Any]:
    if schema.extra is None:
        return {}
    note = schema.extra.parsed.get(EVENT_TIME_KEY, {})
    return note if isinstance(note, dict) else {}


# Row groups of slices


def row_group_size_of(state: ChainState) -> int | None:
    """The most rows that a row group of a slice may have, as the chain notes it; None where nobody cares."""
    size = noted(state, ROW_GROUP_SIZE_NOTE)
    return size if isinstance(size, int) and not isinstance(size, bool) and size >= 1 else None


def even_rows(rows: int, size: int | None) -> int:
    """How many rows each row group of a slice gets: as many as may be, and the last not much fewer than the others."""
    if size is None or rows == 0:
        return ROW_GROUP_ROWS
    return -(-rows // -(-rows // size))
