"""Finds the checkpoints of a fragment: those of the same computation, under every filter.

A value that was computed for one `where` is not computed again for another. A damaged checkpoint is ignored, so its
rows count as missing; a backfill, which computes them, also deletes it. Undamaged checkpoints that do not match, such
as values of another type, are never deleted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns import row_errors
from floodmark.columns.checkpoint_batch import ERROR, ERROR_TYPE, ROWADDR, is_carried
from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.columns.manifest import ColumnSegment
from floodmark.derive.checkpoint_key import DATA, RANGE, CheckpointKey, CheckpointPrefix, parse_key, range_key
from floodmark.errors import BadCheckpoint, ObjectNotFound
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64

_DATA_FIELDS = {
    "file": pa.string(),
    "src_data_files": pa.string(),
    "output_field_ids": pa.string(),
    "segment": pa.string(),
    "done": pa.binary(),
    "errors": pa.binary(),
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RangeCheckpoint:
    """A stored batch for the addresses [start, end) with the results of `rows`; those of `failed` rows are errors.

    If it is `carried`, no call gave these results: the records took them over from the records that they replaced.
    """

    key: str
    start: int
    end: int
    rows: BitMap
    failed: BitMap = field(default_factory=BitMap)
    carried: bool = False


@dataclass(frozen=True)
class DataCheckpoint:
    """A finished file of the addresses [start, end), possibly not yet committed. `done` are its computed rows.

    `segment` is the segment for a manifest, as JSON. `errors` has the errors of skipped rows, if any.
    """

    key: str
    start: int
    end: int
    file: str
    sources: str
    segment: str
    field_ids: tuple[int, ...]
    done: BitMap
    errors: pa.Table | None

    def error_column(self, offsets: I64) -> pa.Array | None:
        """The errors of some records, null for those without an error; None when the file has no errors."""
        return None if self.errors is None else row_errors.error_column(self.errors, offsets)


def encode_data_checkpoint(
    *, file: str, sources: str, field_ids: Sequence[int], segment: str, done: BitMap, errors: pa.Table | None
) -> pa.RecordBatch:
    """The batch that a data checkpoint stores."""
    skipped = None if errors is None or not errors.num_rows else _to_ipc(errors)
    row = [file, sources, json.dumps(sorted(field_ids)), segment, row_sets.pack(done), skipped]
    arrays = [pa.array([value], kind) for value, kind in zip(row, _DATA_FIELDS.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(_DATA_FIELDS.items())))


@dataclass(frozen=True)
class CheckpointFinder:
    """Finds checkpoints without changing anything, for plans.

    With the dataset id, it also finds finished fragments of the oldest format.
    """

    store: CheckpointStore
    dataset_id: str | None = None

    def ranges(
        self, prefix: CheckpointPrefix, fragment: int, column: pa.Field, within: tuple[int, int] | None = None
    ) -> list[RangeCheckpoint]:
        """The valid range checkpoints of a fragment, sorted by start.

        Checkpoints outside the addresses `within` are not read. A larger checkpoint of an older format is listed as one
        range. Its key only shows that it exists; it cannot be read by it.
        """
        found, keys = [], []
        if self._has_older:
            from floodmark.columns import legacy_checkpoints

            found = self._older(prefix, fragment, column)
            keys = legacy_checkpoints.range_keys(self.store, prefix, fragment)
        keys += self.store.list_any_where(prefix.text, fragment)
        return sorted([*found, *self.among(keys, column, within)], key=_sort_key)

    @cached_property
    def _has_older(self) -> bool:
        """Whether the store has any checkpoint of an older format. One listing saves all other searches for them."""
        return any(not name.startswith("fmt-") for name in self.store.group_names())

    def among(
        self, keys: Iterable[str], column: pa.Field, within: tuple[int, int] | None = None
    ) -> list[RangeCheckpoint]:
        """The valid range checkpoints among some keys of a fragment, sorted by start."""
        found = []
        for key in keys:
            parsed = parse_key(key)
            if parsed is None or parsed.kind != RANGE or not _overlap(parsed, within):
                continue
            batch = self._get_valid(key)
            if batch is None or not _is_of(batch, column):
                continue
            rows = _rows_of(batch, parsed)
            if isinstance(rows, str):
                self._discard(key, rows)
            else:
                found.append(RangeCheckpoint(key, parsed.start, parsed.end, rows, _failed(batch), is_carried(batch)))
        return sorted(found, key=_sort_key)

    def data(self, prefix: CheckpointPrefix, fragment: int) -> list[DataCheckpoint]:
        """The valid data checkpoints of a fragment, sorted by start. Their files may be missing."""
        found = []
        for key in self.store.list_any_where(prefix.text, fragment):
            parsed = parse_key(key)
            if parsed is None or parsed.kind != DATA:
                continue
            batch = self._get_valid(key)
            if batch is None:
                continue
            try:
                found.append(_data_of(batch, parsed, key))
            except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
                self._discard(key, f"it does not describe a file ({error})")
        return sorted(found, key=lambda checkpoint: (checkpoint.start, checkpoint.end, checkpoint.key))

    def _older(self, prefix: CheckpointPrefix, fragment: int, column: pa.Field) -> list[RangeCheckpoint]:
        """The checkpoints of older formats that are not ranges."""
        from floodmark.columns import legacy_checkpoints

        found = legacy_checkpoints.find(self.store, prefix, fragment, column, self.dataset_id)
        return [RangeCheckpoint(one.key, *one.bounds, row_sets.from_array(one.rows)) for one in found]

    def _get_valid(self, key: str) -> pa.RecordBatch | None:
        try:
            return self.store.get(key)
        except ObjectNotFound:
            return None  # removed since the listing
        except BadCheckpoint as error:
            self._discard(key, error.problem)
            return None

    def _discard(self, key: str, problem: str) -> None:
        _log.warning("The checkpoint %r cannot be used and its rows will be computed again: %s.", key, problem)


@dataclass(frozen=True)
class RepairingFinder(CheckpointFinder):
    """Finds checkpoints for a backfill: damaged ones are deleted, those of older formats are converted."""

    def _older(self, prefix: CheckpointPrefix, fragment: int, column: pa.Field) -> list[RangeCheckpoint]:
        from floodmark.columns import legacy_checkpoints

        legacy_checkpoints.adopt(self.store, prefix, fragment, column, self.dataset_id)
        return []  # they are ranges of the current format now

    def _discard(self, key: str, problem: str) -> None:
        _log.warning("The checkpoint %r is deleted and its rows will be computed again: %s.", key, problem)
        self.store.delete(key)


def find_ranges(
    store: CheckpointStore,
    prefix: CheckpointPrefix,
    fragment: int,
    column: pa.Field,
    within: tuple[int, int] | None = None,
    *,
    dataset_id: str | None = None,
) -> list[RangeCheckpoint]:
    """The valid range checkpoints of a fragment. Damaged ones are deleted."""
    return RepairingFinder(store, dataset_id).ranges(prefix, fragment, column, within)


def find_data(store: CheckpointStore, prefix: CheckpointPrefix, fragment: int) -> list[DataCheckpoint]:
    """The valid data checkpoints of a fragment. Damaged ones are deleted."""
    return RepairingFinder(store).data(prefix, fragment)


def free_range_key(store: CheckpointStore, prefix: CheckpointPrefix, fragment: int, start: int, end: int) -> str:
    """A key that covers a range. If another checkpoint has exactly this range, the end is moved up to a free one."""
    while store.has(key := range_key(prefix.text, fragment, start, end)):
        end += 1
    return key


def _sort_key(checkpoint: RangeCheckpoint) -> tuple[int, int, str]:
    return checkpoint.start, checkpoint.end, checkpoint.key


def _overlap(parsed: CheckpointKey, within: tuple[int, int] | None) -> bool:
    return within is None or (parsed.start < within[1] and within[0] < parsed.end)


def _is_of(batch: pa.RecordBatch, column: pa.Field) -> bool:
    """Whether the names and types of a batch's columns are those of a range checkpoint of this column."""
    expected = {ROWADDR: pa.int64(), column.name: column.type, ERROR: ERROR_TYPE}
    places = {name: batch.schema.get_field_index(name) for name in expected}
    return all(at >= 0 and batch.schema.field(at).type.equals(expected[name]) for name, at in places.items())


def _rows_of(batch: pa.RecordBatch, parsed: CheckpointKey) -> BitMap | str:
    """The addresses that a range checkpoint has, or a text that describes its damage."""
    if batch.column(ROWADDR).null_count:
        return "a row has no address"
    rows: I64 = batch.column(ROWADDR).to_numpy()
    if not len(rows):
        return BitMap()
    if rows[0] < parsed.start or rows[-1] >= parsed.end:
        return f"its rows {rows[0]} to {rows[-1]} are not within [{parsed.start}, {parsed.end})"
    if (np.diff(rows) <= 0).any():
        return "its rows are not in order"
    first, last = int(rows[0]), int(rows[-1])
    return row_sets.span(first, last + 1) if last - first == len(rows) - 1 else row_sets.from_array(rows)


def _failed(batch: pa.RecordBatch) -> BitMap:
    """The addresses of the skipped rows of a batch whose rows are in order."""
    errors = batch.column(ERROR)
    if errors.null_count == len(errors):
        return BitMap()
    return row_sets.from_array(batch.column(ROWADDR).to_numpy()[errors.is_valid().to_numpy(zero_copy_only=False)])


def _data_of(batch: pa.RecordBatch, parsed: CheckpointKey, key: str) -> DataCheckpoint:
    if batch.num_rows != 1:
        raise ValueError(f"it has {batch.num_rows} rows")
    row = {name: batch.column(name).cast(kind)[0].as_py() for name, kind in _DATA_FIELDS.items()}
    if missing := [name for name, value in row.items() if value is None and name != "errors"]:
        raise ValueError(f"it has no {missing[0]}")
    ColumnSegment.from_json(row["segment"])  # raises ValueError here, so later code can rely on it
    done = row_sets.unpack(row["done"])
    if done and (done.min() < parsed.start or done.max() >= parsed.end):
        raise ValueError(f"its rows {done.min()} to {done.max()} are not within [{parsed.start}, {parsed.end})")
    field_ids = tuple(int(number) for number in json.loads(row["output_field_ids"]))
    errors = None if row["errors"] is None else _from_ipc(row["errors"])
    names = (row["file"], row["src_data_files"], row["segment"])
    return DataCheckpoint(key, parsed.start, parsed.end, *names, field_ids, done, errors)


def _to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _from_ipc(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
