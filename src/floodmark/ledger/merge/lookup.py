"""Finding rows by key: the keys a user gives, the current rows that have them, and every record that ever had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.ledger.conform import cast_column
from floodmark.ledger.errors import BadPrimaryKey, NullKey, UnsupportedData
from floodmark.ledger.incoming import Batches, Frame, SparkFrame, recognise
from floodmark.ledger.keys import hashing
from floodmark.ledger.keys.index import KeyIndex
from floodmark.ledger.keys.records import NOT_THERE
from floodmark.ledger.keys.rows import Rows
from floodmark.ledger.layout import Layout
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import Strategy, strategy_of
from floodmark.storage.arrays import I64, Hashes

_SCANNED_ROWS = 1 << 20
NO_SUCH_VALUE = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, OverflowError)


@dataclass(frozen=True)
class Matches:
    """Current rows: their offsets in the ledger and the hashes of their values."""

    offset: I64
    row: Hashes


def given_keys(keys: Any, snapshot: Snapshot, name: str) -> pa.Table:
    """The keys a user names, as columns of the dataset's types: all columns of the key, or some of them.

    A frame, a list of dicts, one dict; with a key of one column also its values alone.
    """
    layout, strategy = snapshot.require_layout(name), require_key(snapshot, name)
    table = _as_table(keys, strategy, layout)
    unknown = [c for c in table.column_names if c not in strategy.key]
    if unknown or not table.column_names:
        raise BadPrimaryKey(
            f"{unknown[0]!r} is no column of the key of {name!r}" if unknown else f"no key of {name!r} was given",
            hint=f"give {', '.join(strategy.key)}",
        )
    ordered = [c for c in strategy.key if c in table.column_names]
    columns = [cast_column(table.column(c), layout.data.field(c), "the keys") for c in ordered]
    for column, values in zip(ordered, columns, strict=True):
        if values.null_count and not layout.data.field(column).nullable:
            raise NullKey(
                f"{values.null_count} of the keys have no value for {column!r}",
                hint="every part of a key needs a value",
                column=column,
            )
    return pa.table(columns, names=ordered)


def require_key(snapshot: Snapshot, name: str) -> Strategy:
    """The dataset's strategy, if it has a key."""
    strategy = strategy_of(snapshot.state)
    if not strategy.is_keyed:
        raise BadPrimaryKey(
            f"dataset {name!r} has no key: it is append-only", hint="create a dataset with key= to look rows up by it"
        )
    return strategy


def _as_table(keys: Any, strategy: Strategy, layout: Layout) -> pa.Table:
    rows: list[Any]
    if _is_frame(keys):
        return frame_table(keys)
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        rows = keys.to_pylist()
    elif isinstance(keys, list | tuple | set | frozenset | range | np.ndarray) or hasattr(keys, "to_list"):
        rows = keys.tolist() if isinstance(keys, np.ndarray) else list(keys)
    else:
        rows = [keys]  # one key
    if not rows:
        return pa.table({name: _array([], name, layout) for name in strategy.key})
    if all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
        return pa.table({n: _array([row.get(n) for row in rows], n, layout) for n in names})
    if any(isinstance(row, Mapping) for row in rows) or len(strategy.key) != 1:
        hint = f"give dicts or a frame with {', '.join(strategy.key)}"
        raise BadPrimaryKey("the keys are not a frame, dicts or (with a key of one column) plain values", hint=hint)
    [column] = strategy.key
    return pa.table({column: _array(rows, column, layout)})


def held_keys(keys: Any) -> Any:
    """Keys that can be looked at more than once: a stream or a Spark frame is read into this process."""
    return frame_table(keys) if _is_frame(keys) else keys


def _is_frame(keys: Any) -> bool:
    return isinstance(keys, pa.Table | pa.RecordBatch | pa.RecordBatchReader) or hasattr(keys, "columns")


def frame_table(frame: Any) -> pa.Table:
    """A frame of any kind as an Arrow table in this process."""
    match recognise(frame):
        case Frame(table):
            return table
        case Batches(reader):
            return reader.read_all()
        case SparkFrame(spark_frame):
            return spark_frame.toArrow()
        case _:
            raise UnsupportedData("files are no frame here", hint="read them into a frame first, or use write()")


def _array(values: list[Any], column: str, layout: Layout) -> pa.Array:
    """Plain values as the column's type where it takes them, so that 7 finds an int8 and '2026-11-16' no date."""
    wanted = layout.data.field(column).type if column in layout.data.names else None
    try:
        return pa.array(values, wanted)
    except NO_SUCH_VALUE:
        try:
            return pa.array(values)  # the cast then says what does not fit
        except NO_SUCH_VALUE as error:
            raise BadPrimaryKey(
                f"the keys given for {column!r} do not fit {wanted}: {error}", hint="give values of one type"
            ) from error


def find_rows(snapshot: Snapshot, index: KeyIndex, keys: pa.Table, rows: Rows) -> Matches:
    """The current rows with these keys, or whose keys begin with them: by search if the columns are the key or its
    declared prefix, else by looking at all current keys."""
    strategy = strategy_of(snapshot.state)
    keys = distinct(keys)
    given = tuple(keys.column_names)
    hashes = hashing.hash_rows(keys, given)
    if given == strategy.key:
        lookup = None if strategy.lookup == strategy.key else hashing.hash_rows(keys, strategy.lookup)
        found = index.find(hashes, lookup)
        offset, row = found.offset, found.row
    elif given == strategy.lookup:
        _, entries = index.find_prefix(hashes)
        offset, row = entries.offset, entries.row
    else:
        offset, row = _scanned(index, hashes, given, rows, snapshot.purged_before)
    kept = (offset != NOT_THERE) & (offset >= snapshot.purged_before)
    return Matches(offset[kept], row.take(kept))


def _scanned(
    index: KeyIndex, wanted: Hashes, columns: tuple[str, ...], rows: Rows, purged_before: int
) -> tuple[I64, Hashes]:
    """By looking at these columns of all current rows, some at a time."""
    entries = index.live_between(0, 1 << 64)
    order = np.argsort(entries.offset)
    order = order[entries.offset[order] >= purged_before]
    narrow = rows.only(columns)
    there: list[I64] = []
    for at in range(0, len(order), _SCANNED_ROWS):
        some = order[at : at + _SCANNED_ROWS]
        hashes = hashing.hash_rows(narrow.from_slices(entries.offset[some]), columns)
        there.append(some[hashes.among(wanted)])
    found = np.concatenate([np.empty(0, np.int64), *there]).astype(np.int64)
    return entries.offset[found], entries.row.take(found)


@dataclass(frozen=True)
class LocatedRows:
    """Rows in offset order, and the offset of each."""

    offsets: I64
    table: pa.Table


def current_rows(snapshot: Snapshot, keys: pa.Table, index: KeyIndex) -> pa.Table:
    """The current rows with these keys in offset order, with the dataset's data columns."""
    return located_rows(snapshot, keys, index).table


def located_rows(snapshot: Snapshot, keys: pa.Table, index: KeyIndex) -> LocatedRows:
    """The same with their offsets."""
    rows = Rows(snapshot.objects, snapshot.slices, snapshot.require_layout(snapshot.objects.folder))
    matches = find_rows(snapshot, index, keys, rows)
    order = np.argsort(matches.offset)
    offsets = matches.offset[order]
    return LocatedRows(offsets, rows.verified(offsets, matches.row.take(order)).select(rows.layout.data.names))


def history_filter(keys: pa.Table) -> pc.Expression | None:
    """A filter that keeps every record with one of these keys, and maybe others: what Parquet can skip by."""
    # Among floats, 0.0 and -0.0 are one key and NaN is one too, which neither Arrow nor Parquet's statistics know.
    exact = [f.name for f in keys.schema if not pa.types.is_floating(f.type)]
    parts = [pc.field(name).isin(keys.column(name).combine_chunks()) for name in exact]
    return reduce(lambda a, b: a & b, parts) if parts else None


def with_keys(records: pa.Table, keys: pa.Table) -> pa.Table:
    """Those of the records that have one of these keys."""
    names = keys.column_names
    return records.filter(pa.array(hashing.hash_rows(records, names).among(hashing.hash_rows(keys, names))))


def distinct(keys: pa.Table) -> pa.Table:
    """Every key once."""
    return keys.take(pa.array(hashing.hash_rows(keys, keys.column_names).first_of_each()))
