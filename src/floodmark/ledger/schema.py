"""The layout of a dataset: data columns, event time, order of columns in slices, size of row groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from floodmark.chain.events import SetVocab
from floodmark.chain.schema import DataSchema, ExtraAttributes
from floodmark.chain.state import ChainState
from floodmark.errors import (
    BadColumnName,
    BadData,
    BadEventTime,
    BadOption,
    BadPrimaryKey,
    close_matches,
)
from floodmark.ledger.spark_schema import not_a_type, parse_spark_schema, parse_spark_type
from floodmark.ledger.strategy import read_note
from floodmark.ledger.types import arrow_schema, canonical_type, check_supported, field_from_odf, field_to_odf
from floodmark.storage.parquet import ROW_GROUP_ROWS, SYSTEM_TIME_TYPE, Vocabulary, system_fields

EVENT_TIME_KEY = "floodmark.dev/event-time"
HIDDEN_KEY = "floodmark.dev/hidden"
ROW_GROUP_SIZE_NOTE = "row_group_size"
SYSTEM_COLUMNS = ("offset", "op", "system_time")
"""The columns of every dataset whose names a user can choose with `vocab=`."""


@dataclass(frozen=True)
class Layout:
    """The columns of a dataset's records.

    `data` are the user's columns in the user's order. `event_time` names one of them; if it is None, the slices repeat
    the system time as event time. `hidden` names data columns that identify rows or that the dataset no longer has:
    they are written and hashed like all others, but are read only if a reader names them.
    """

    vocab: Vocabulary
    event_time: str | None
    data: pa.Schema
    hidden: tuple[str, ...] = ()

    @property
    def shown(self) -> pa.Schema:
        """The data columns that a reader gets by default."""
        return pa.schema([f for f in self.data if f.name not in self.hidden]) if self.hidden else self.data

    @property
    def event_time_has_zone(self) -> bool:
        """Whether event times are moments. Without a zone they are clock times, stored as if in UTC."""
        if self.event_time is None:
            return True
        declared = self.data.field(self.event_time).type
        return isinstance(declared, pa.TimestampType) and declared.tz is not None

    @property
    def slice_schema(self) -> pa.Schema:
        """The columns of a slice, in the order of the file."""
        return pa.schema([*system_fields(self.vocab), *self.payload_schema])

    @property
    def payload_schema(self) -> pa.Schema:
        """The columns of a slice after the first three: the event time, then the other data columns."""
        rest = [f for f in self.data if f.name != self.event_time]
        return pa.schema([self._event_time_field(), *rest])

    @property
    def read_schema(self) -> pa.Schema:
        """All columns for readers: offset, op and system time, then the data in the user's order."""
        return pa.schema([*system_fields(self.vocab), *self.data])

    def _event_time_field(self) -> pa.Field:
        if self.event_time is None:
            return pa.field(self.vocab.event_time, SYSTEM_TIME_TYPE, nullable=False)
        return self.data.field(self.event_time)

    def to_odf(self) -> DataSchema:
        """The schema in the form of a SetDataSchema event."""
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
        """The same layout with other columns and the same event time."""
        required = {f.name for f in self.data if not f.nullable}
        check_distinct(schema.names)
        fields = _checked(schema, self.vocab, self.event_time, required)
        return replace(self, data=pa.schema(fields))

    def with_fields(self, added: Iterable[pa.Field]) -> Layout:
        """The same layout with more columns at the end."""
        return self.with_schema(pa.schema([*self.data, *added]))


def vocabulary(event: SetVocab | None) -> Vocabulary:
    """The system column names that a SetVocab event sets."""
    default = Vocabulary()
    if event is None:
        return default
    return Vocabulary(
        offset=event.offset_column or default.offset,
        op=event.operation_type_column or default.op,
        system_time=event.system_time_column or default.system_time,
        event_time=event.event_time_column or default.event_time,
    )


def declare_vocab(vocab: Mapping[str, str] | None, event_time: str | None = None) -> SetVocab | None:
    """The SetVocab event for names of system columns that a user chose; None if they are the default names."""
    default = Vocabulary()
    own = _checked_vocab(vocab)
    given = {role: name for role, name in own.items() if name != getattr(default, role)}
    if not given and event_time is None:
        return None
    event = SetVocab(given.get("offset"), given.get("op"), given.get("system_time"), event_time)
    chosen = vocabulary(event)
    if event_time is not None:
        check_column_name(event_time, chosen)
    if twice := find_repeated([*chosen.reserved, chosen.event_time], ignore_case=True):
        raise BadOption(
            f"vocab={own!r} gives the name {twice[0]!r} to two columns (case is ignored)",
            hint=f"the columns {', '.join(SYSTEM_COLUMNS)} and event_time need four different names",
            setting="vocab",
            given=own,
        )
    return event


def _checked_vocab(vocab: Mapping[str, str] | None) -> dict[str, str]:
    try:
        given = {} if vocab is None else dict(vocab)
    except (TypeError, ValueError) as error:
        raise BadOption(
            f"vocab={vocab!r} is not a mapping of names", hint='give names as in {"offset": "_offset"}', setting="vocab"
        ) from error
    for role, name in given.items():
        if role not in SYSTEM_COLUMNS:
            hint = f"its names are {', '.join(SYSTEM_COLUMNS)}"
            raise BadOption(
                f"vocab={given!r} names {role!r}, which is not a system column",
                hint="use event_time= for the column with the event time" if role == "event_time" else hint,
                setting="vocab",
                given=given,
            )
        if not isinstance(name, str) or not name:
            raise BadOption(
                f"vocab={given!r}: {name!r} is not a column name",
                hint="give a text that is not empty",
                setting="vocab",
                given=given,
            )
    return given


def layout_from_odf(schema: DataSchema, vocab: Vocabulary) -> Layout:
    """The layout for a chain's schema and vocabulary, also for chains of other tools."""
    fields = [field_from_odf(f) for f in schema.fields]
    payload = [f for f in fields if f.name not in vocab.reserved]
    note = _event_time_note(schema)
    names = [f.name for f in payload]
    if note.get("from") == "system_time" or vocab.event_time not in names:
        data = [f for f in payload if f.name != vocab.event_time]
        return Layout(vocab, None, pa.schema(data), _hidden(schema, data))
    time_field = payload.pop(names.index(vocab.event_time))
    index = note.get("index", 0)
    payload.insert(index if index in range(len(payload) + 1) else 0, time_field)
    return Layout(vocab, vocab.event_time, pa.schema(payload), _hidden(schema, payload))


def derive_layout(schema: pa.Schema, vocab: Vocabulary, event_time: str | None, key: Sequence[str] = ()) -> Layout:
    """The layout of a dataset whose first data has this Arrow schema. Key columns are not nullable."""
    names = schema.names
    if event_time is None and vocab.event_time in names:
        event_time = vocab.event_time  # ODF's default name
    if event_time is not None and event_time not in names:
        near = close_matches(event_time, names)
        raise BadEventTime(
            f"the event time column {event_time!r} is not in the data",
            hint=f"did you mean {near[0]!r}?" if near else f"the data has {', '.join(names) or 'no columns'}",
            column=event_time,
        )
    check_distinct(names)
    fields = _checked(schema, vocab, event_time, key)
    _check_key(key, fields)
    return Layout(vocab, event_time, pa.schema(fields))


def check_distinct(names: list[str]) -> None:
    """Refuse two columns with the same name. Case is ignored, as in Spark and DuckDB."""
    if twice := find_repeated(names, ignore_case=True):
        raise BadColumnName(
            f"columns {' and '.join(repr(name) for name in twice[:2])} have the same name (case is ignored)",
            hint="rename one of them",
            columns=twice,
        )


def find_repeated(names: Sequence[str], *, ignore_case: bool = False) -> list[str]:
    """The names that occur several times, each as often as it occurs."""
    alike = [name.lower() for name in names] if ignore_case else names
    counts = Counter(alike)
    return [name for name, as_counted in zip(names, alike, strict=True) if counts[as_counted] > 1]


def check_column_name(name: str, vocab: Vocabulary) -> None:
    """Refuse a name that no data column can have."""
    if not name:
        raise BadColumnName("a column has no name", hint="give the column a name", column=name)
    if "\x00" in name:
        raise BadColumnName(
            f"column name {name!r} has a NUL character, which SQL cannot name", hint="rename it", column=name
        )
    for role, reserved in zip(SYSTEM_COLUMNS, vocab.reserved, strict=True):
        if name.lower() == reserved.lower():
            raise BadColumnName(
                f"column name {name!r} is reserved for the system columns ({', '.join(vocab.reserved)})",
                hint=f"rename it, for example to {name + '_'!r}; "
                f"or create a dataset with vocab={{{role!r}: {'_' + role!r}}}, which can have this column",
                column=name,
            )


def fields_from(schema: Any) -> pa.Schema:
    """A schema from a pa.Schema, a Spark StructType, Spark's text ("id int, v string"), or types by name.

    A type is an Arrow or Spark type, or the name of one, such as 'int64' or 'bigint'.
    """
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        return parse_spark_schema(schema)
    if _is_of_spark(schema) and hasattr(schema, "fields"):
        return arrow_schema(schema)
    try:
        named = dict(schema)
    except (TypeError, ValueError):
        named = None
    if named is None or (isinstance(schema, list | tuple | set) and any(isinstance(pair, str) for pair in schema)):
        raise BadData(
            f"{schema!r} is not a schema",
            hint="give types by column, {'id': 'int64'}, text, 'id int, v string', a pyarrow schema or a StructType",
        )
    return pa.schema([pa.field(name, _named_type(name, t)) for name, t in named.items()])


def _is_of_spark(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "pyspark"


def _named_type(column: str, given: Any) -> pa.DataType:
    if isinstance(given, pa.DataType):
        return given
    if _is_of_spark(given) and hasattr(given, "simpleString"):
        return parse_spark_type(column, given.simpleString())
    if isinstance(given, str):
        with suppress(ValueError):
            return pa.type_for_alias(given)
        return parse_spark_type(column, given)
    raise not_a_type(column, given)


def _check_key(key: Sequence[str], fields: list[pa.Field]) -> None:
    """Refuse key columns that are missing or have a nested type."""
    types = {f.name: f.type for f in fields}
    for name in key:
        if name not in types:
            near = close_matches(name, list(types))
            hint = f"did you mean {near[0]!r}?" if near else f"the data has {', '.join(types) or 'no columns'}"
            raise BadPrimaryKey(f"the key column {name!r} is not in the data", hint=hint, column=name)
        if pa.types.is_nested(types[name]):
            raise BadPrimaryKey(
                f"the key column {name!r} has type {types[name]}",
                hint="use key columns with plain values: numbers, text, dates or times",
                column=name,
            )


def _checked(
    fields: Iterable[pa.Field], vocab: Vocabulary, event_time: str | None, required: Container[str]
) -> list[pa.Field]:
    checked = []
    for field in fields:
        check_column_name(field.name, vocab)
        if event_time is None and field.name.lower() == vocab.event_time.lower():
            raise BadColumnName(
                f"column name {field.name!r} is reserved: this dataset uses the system time as event time",
                hint=f"rename it, for example to {field.name + '_'!r}, or create a dataset with event_time=",
                column=field.name,
            )
        data_type = canonical_type(field.type, field.name)
        check_supported(data_type, field.name)
        if field.name == event_time and not (pa.types.is_timestamp(data_type) or pa.types.is_date(data_type)):
            raise BadEventTime(
                f"the event time column {field.name!r} has type {field.type}",
                hint="cast the column to a timestamp or a date first",
                column=field.name,
            )
        checked.append(
            pa.field(field.name, data_type, nullable=field.name != event_time and field.name not in required)
        )
    return checked


def _hidden(schema: DataSchema, data: Sequence[pa.Field]) -> tuple[str, ...]:
    """The columns that the chain marks as hidden. A name alone hides nothing, so users may use the same names."""
    names = None if schema.extra is None else schema.extra.known.get(HIDDEN_KEY)
    hidden = {name for name in names if isinstance(name, str)} if isinstance(names, list) else ()
    return tuple(f.name for f in data if f.name in hidden)


def _event_time_note(schema: DataSchema) -> dict[str, Any]:
    if schema.extra is None:
        return {}
    note = schema.extra.known.get(EVENT_TIME_KEY, {})
    return note if isinstance(note, dict) else {}


# Row groups of slices


def row_group_size_of(state: ChainState) -> int | None:
    """The most rows per row group of a slice, from the chain's notes; None if not set."""
    size = read_note(state, ROW_GROUP_SIZE_NOTE)
    return size if isinstance(size, int) and not isinstance(size, bool) and size >= 1 else None


def rows_per_group(rows: int, size: int | None) -> int:
    """Rows per row group of a slice: at most `size`, with the last group about as large as the others."""
    if size is None or rows == 0:
        return ROW_GROUP_ROWS
    return -(-rows // -(-rows // size))


def quote_name(name: str) -> str:
    """A name quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
