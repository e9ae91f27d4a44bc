"""Find rows by key: parse the user's keys, find current rows and all records with them, build retractions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import BadData, BadPrimaryKey, ReadOnlyDataset
from floodmark.ledger.casting import cast_column, cast_columns
from floodmark.ledger.data_input import SparkData, StreamData, TableData, recognise
from floodmark.ledger.moments import typed_array
from floodmark.ledger.schema import Layout
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import Strategy, strategy_of
from floodmark.rows import row_hash
from floodmark.rows.classify import APPEND, RETRACT, RowsWithOps
from floodmark.rows.key_entries import NO_ROW
from floodmark.rows.key_index import KeyIndex
from floodmark.rows.row_copies import RowReader
from floodmark.storage.arrays import I64, Hashes

_SCANNED_ROWS = 1 << 20
CAST_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError)


@dataclass(frozen=True)
class RowMatches:
    """Current rows: their offsets in the ledger and the hashes of their values."""

    offset: I64
    row: Hashes


def parse_keys(keys: Any, snapshot: Snapshot, name: str) -> pa.Table:
    """The user's keys as columns with the dataset's types: all columns of the key, or some of them.

    `keys` is a frame, a list of dicts or a dict; for a key of one column also a value or a list of values.
    """
    layout, strategy = snapshot.require_layout(name), require_key(snapshot, name)
    table = _as_table(keys, strategy, layout)
    unknown = [c for c in table.column_names if c not in strategy.key]
    if unknown or not table.column_names:
        raise BadPrimaryKey(
            f"{unknown[0]!r} is not a key column of {name!r}" if unknown else f"no key of {name!r} was given",
            hint=f"give {', '.join(strategy.key)}",
        )
    ordered = [c for c in strategy.key if c in table.column_names]
    columns = [cast_column(table.column(c), layout.data.field(c), "the keys") for c in ordered]
    for column, values in zip(ordered, columns, strict=True):
        if values.null_count and not layout.data.field(column).nullable:
            raise BadPrimaryKey(
                f"{values.null_count} of the keys have no value for {column!r}",
                hint="give a value for every column of the key",
                column=column,
            )
    return pa.table(columns, names=ordered)


def require_key(snapshot: Snapshot, name: str) -> Strategy:
    """The dataset's strategy. Raises `BadPrimaryKey` if it has no key."""
    strategy = strategy_of(snapshot.state)
    if not strategy.is_keyed:
        raise BadPrimaryKey(
            f"dataset {name!r} has no key: it is append-only", hint="create a dataset with key= to find rows by key"
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
        raise BadPrimaryKey("the keys are not a frame, dicts or (for a key of one column) plain values", hint=hint)
    [column] = strategy.key
    return pa.table({column: _array(rows, column, layout)})


def reusable_keys(keys: Any) -> Any:
    """Keys that can be read more than once: a stream or a Spark frame is read into this process."""
    return frame_table(keys) if _is_frame(keys) else keys


def _is_frame(keys: Any) -> bool:
    return isinstance(keys, pa.Table | pa.RecordBatch | pa.RecordBatchReader) or hasattr(keys, "columns")


def frame_table(frame: Any) -> pa.Table:
    """Read a frame of any kind into an Arrow table."""
    match recognise(frame):
        case TableData(table):
            return table
        case StreamData(reader):
            return reader.read_all()
        case SparkData(spark_frame):
            return spark_frame.toArrow()
        case _:
            raise BadData("files are not supported here", hint="read them into a frame first, or use write()")


def _array(values: list[Any], column: str, layout: Layout) -> pa.Array:
    """Plain values in the column's type if they fit: 7 matches an int8, but '2026-11-16' does not match a date."""
    data_type = layout.data.field(column).type if column in layout.data.names else None
    try:
        return typed_array(values, data_type)
    except CAST_ERRORS:
        try:
            return typed_array(values, None)  # the later cast raises an error that names the values
        except CAST_ERRORS as error:
            raise BadPrimaryKey(
                f"the keys given for {column!r} do not fit {data_type}: {error}", hint="give values of one type"
            ) from error


def find_rows(snapshot: Snapshot, index: KeyIndex, keys: pa.Table, rows: RowReader) -> RowMatches:
    """The current rows whose keys match in the given columns.

    Searches the key index if the columns are the whole key or its lookup prefix, else reads all current keys.
    """
    strategy = strategy_of(snapshot.state)
    keys = distinct_keys(keys)
    given = tuple(keys.column_names)
    hashes = row_hash.hash_rows(keys, given)
    if given == strategy.key:
        lookup = None if strategy.lookup == strategy.key else row_hash.hash_rows(keys, strategy.lookup)
        found = index.find(hashes, lookup)
        offset, row = found.offset, found.row
    elif given == strategy.lookup:
        _, entries = index.find_prefix(hashes)
        offset, row = entries.offset, entries.row
    else:
        offset, row = _scanned(index, hashes, given, rows, snapshot.purged_before)
    is_current = (offset != NO_ROW) & (offset >= snapshot.purged_before)
    return RowMatches(offset[is_current], row.take(is_current))


def _scanned(
    index: KeyIndex, keys: Hashes, columns: tuple[str, ...], rows: RowReader, purged_before: int
) -> tuple[I64, Hashes]:
    """The current rows with these keys, found by a scan of the columns of all current rows."""
    entries = index.live_between(0, 1 << 64)
    order = np.argsort(entries.offset)
    order = order[entries.offset[order] >= purged_before]
    narrow = rows.only(columns)
    matches: list[I64] = []
    for at in range(0, len(order), _SCANNED_ROWS):
        some = order[at : at + _SCANNED_ROWS]
        hashes = row_hash.hash_rows(narrow.from_slices(entries.offset[some]), columns)
        matches.append(some[hashes.among(keys)])
    positions = np.concatenate([np.empty(0, np.int64), *matches]).astype(np.int64)
    return entries.offset[positions], entries.row.take(positions)


@dataclass(frozen=True)
class LocatedRows:
    """Rows in offset order, and their offsets."""

    offsets: I64
    table: pa.Table


def current_rows(snapshot: Snapshot, keys: pa.Table, index: KeyIndex) -> pa.Table:
    """The current rows with these keys, in offset order, with the dataset's data columns."""
    return located_rows(snapshot, keys, index).table


def located_rows(snapshot: Snapshot, keys: pa.Table, index: KeyIndex) -> LocatedRows:
    """The same with their offsets."""
    rows = RowReader(snapshot.objects, snapshot.slices, snapshot.require_layout(snapshot.objects.folder))
    matches = find_rows(snapshot, index, keys, rows)
    order = np.argsort(matches.offset)
    offsets = matches.offset[order]
    return LocatedRows(offsets, rows.verified(offsets, matches.row.take(order)).select(rows.layout.data.names))


def history_filter(keys: pa.Table) -> pc.Expression | None:
    """A filter for Parquet that keeps all records with one of these keys, and maybe others; None if there is none."""
    # Floats are left out: as keys 0.0 equals -0.0 and NaN equals NaN, but not in Arrow and Parquet's statistics.
    exact = [f.name for f in keys.schema if not pa.types.is_floating(f.type)]
    parts = [pc.field(name).isin(keys.column(name).combine_chunks()) for name in exact]
    return reduce(lambda a, b: a & b, parts) if parts else None


def filter_by_keys(records: pa.Table, keys: pa.Table) -> pa.Table:
    """The records that have one of these keys."""
    names = keys.column_names
    return records.filter(pa.array(row_hash.hash_rows(records, names).among(row_hash.hash_rows(keys, names))))


def distinct_keys(keys: pa.Table) -> pa.Table:
    """The keys, each once."""
    return keys.take(pa.array(row_hash.hash_rows(keys, keys.column_names).first_positions()))


def check_can_retract(snapshot: Snapshot, name: str, method: str, kinds: tuple[str, ...]) -> None:
    """Refuse a method that retracts rows unless the dataset's strategy is one of these kinds."""
    strategy = require_key(snapshot, name)
    if strategy.kind not in kinds:
        raise ReadOnlyDataset(
            f"{method}() is not supported with {strategy} (dataset {name!r})",
            hint="use a dataset with merge='upsert': this one keeps all rows"
            if strategy.kind == "ledger"
            else "use write()",
        )


def deletion_batch(keys: Any, name: str, snapshot: Snapshot, index: KeyIndex, layout: Layout) -> RowsWithOps:
    """The batch that retracts the rows with these keys. Keys without all key columns match several rows."""
    strategy = require_key(snapshot, name)
    key_table = parse_keys(keys, snapshot, name)
    if tuple(key_table.column_names) == strategy.key:
        key_table = distinct_keys(key_table)
    else:
        key_table = _matching(key_table, snapshot, index, strategy.key)
    return RowsWithOps(retraction_rows(key_table, layout), np.full(key_table.num_rows, RETRACT, np.int32))


def chunk_batch(
    data: pa.Table, processed: Any, name: str, snapshot: Snapshot, index: KeyIndex, layout: Layout
) -> RowsWithOps:
    """The rows of a chunk, and retractions of current rows with keys in `processed` that the chunk lacks."""
    strategy = require_key(snapshot, name)
    if processed is None or snapshot.layout is None:  # a dataset without columns has no rows to retract
        return RowsWithOps(data)
    rows = cast_columns(data, layout, "the data")
    current = _matching(parse_keys(processed, snapshot, name), snapshot, index, strategy.key)
    absent = ~row_hash.hash_rows(current, strategy.key).among(row_hash.hash_rows(rows, strategy.key))
    retractions = retraction_rows(current.filter(pa.array(absent)), layout)
    table = pa.concat_tables([retractions, rows.select(retractions.column_names).cast(retractions.schema)])
    op = np.full(table.num_rows, APPEND, np.int32)
    op[: retractions.num_rows] = RETRACT
    return RowsWithOps(table, op)


def _matching(keys: pa.Table, snapshot: Snapshot, index: KeyIndex, key: tuple[str, ...]) -> pa.Table:
    """The whole keys of the current rows that match the given keys."""
    return current_rows(snapshot, keys, index).select(list(key))


def retraction_rows(keys: pa.Table, layout: Layout) -> pa.Table:
    """Rows that have only these keys, for operations that retract them."""
    columns = {
        f.name: keys.column(f.name) if f.name in keys.column_names else pa.nulls(keys.num_rows, f.type)
        for f in layout.data
    }
    return pa.table(columns)
