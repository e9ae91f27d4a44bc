"""Merge one bucket: look up its keys, classify its rows, and write the resulting records as a slice."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import BadPrimaryKey, DuplicateKeys
from floodmark.ledger.append import with_event_time
from floodmark.ledger.block_attributes import BatchTally
from floodmark.ledger.casting import with_declared_fields
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.python_values import python_list
from floodmark.ledger.schema import Layout, rows_per_group
from floodmark.ledger.strategy import Strategy
from floodmark.rows import classify, row_hash
from floodmark.rows.buckets import Bucket, ResultBucket
from floodmark.rows.classify import APPEND, Batch, Changes, KeyStates, MergeConflict
from floodmark.rows.key_entries import NO_ROW, IndexDelta, IndexRecords, KeyEntries, store_delta, write_delta
from floodmark.rows.key_index import KeyIndex
from floodmark.rows.row_copies import RowReader, write_copy
from floodmark.storage.arrays import I64, Hashes, integer_order
from floodmark.storage.parquet import SliceFile, write_slice
from floodmark.storage.scratch import explain_write_errors

_SHOWN_KEYS = 5

AnyBucket = Bucket | ResultBucket


@dataclass(frozen=True)
class TargetState:
    """The state of a dataset that a merge needs: key index, rows by offset, and the first offset that is not purged."""

    index: KeyIndex
    rows: RowReader
    purged_before: int
    strategy: Strategy
    layout: Layout


@dataclass(frozen=True)
class MergeEstimate:
    """How many records a bucket becomes; in this process also which records."""

    records: int
    tally: BatchTally
    are_all_rows: bool = False  # each row of the bucket is a new record, so no second lookup is needed
    changes: Changes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class BucketMergeTask:
    """One bucket to merge. The fields after `objects` are used only to write the slice."""

    bucket: AnyBucket
    folder: Path
    objects: DatasetObjects
    estimate: MergeEstimate | None = None
    start: int = 0
    system_time_ms: int = 0
    row_group_size: int | None = None

    @property
    def rows(self) -> int:
        return self.bucket.rows


@dataclass(frozen=True)
class MergedSlice:
    """The slice of a bucket and its derived files. No copy if the task ran on a machine without shared files."""

    file: SliceFile
    delta: IndexDelta
    copy: Path | None

    def discard(self) -> None:
        """Remove the files of a slice that is not needed."""
        paths = [self.file.path, self.copy]
        if isinstance(self.delta.folder, Path):
            paths += [self.delta.folder / name for name in self.delta.names]
        for path in paths:
            if path is not None:
                path.unlink(missing_ok=True)


def first_load_estimates(target: TargetState, tasks: Sequence[BucketMergeTask]) -> list[MergeEstimate]:
    """The estimates for a first load: one record per row. Empty for others, or if a wrong estimate is expensive.

    A task checks its estimate while it writes the slice. If it is right, no separate lookup is needed.
    """
    if target.index.end or target.strategy.kind == "changelog" or not all(task.objects.is_local for task in tasks):
        return []
    return [MergeEstimate(t.rows, BatchTally(new=t.rows), are_all_rows=True) for t in tasks]


def estimate(target: TargetState, task: BucketMergeTask) -> MergeEstimate:
    """Classify a bucket to find out how many offsets it needs."""
    changes = _classified(target, task.bucket, task.bucket.load())
    return MergeEstimate(len(changes), changes.tally, changes.tally.new == task.rows == len(changes))


def estimate_here(target: TargetState, task: BucketMergeTask) -> MergeEstimate:
    """The same in this process, where the changes can be kept."""
    changes = _classified(target, task.bucket, task.bucket.load())
    return MergeEstimate(len(changes), changes.tally, changes=changes)


def write_slice_if_all_new(target: TargetState, task: BucketMergeTask) -> MergedSlice | None:
    """Write the slice of a bucket, assuming one record per row; None if that is wrong."""
    batch = task.bucket.load()
    assert batch.op is None  # only changelogs and deletions have operations, and neither is a first load of many rows
    new_slice = _write_slice(target, task, batch)
    if new_slice.delta.run is not None and new_slice.delta.run.entries == task.rows:
        return new_slice
    new_slice.discard()  # several rows have the same key
    return None


def write_merged_slice(target: TargetState, task: BucketMergeTask) -> MergedSlice:
    """Write the records of a bucket in the strategy's order, and their entries for the key index."""
    return _write_slice(target, task, task.bucket.load())


def _write_slice(target: TargetState, task: BucketMergeTask, batch: Batch) -> MergedSlice:
    changes = _changes(target, task, batch)
    layout, strategy = target.layout, target.strategy
    data = _values(target, batch, changes)
    order = _slice_order(data, layout, strategy)
    if order is not None:
        data = data.take(pa.array(order))
    at: Any = slice(None) if order is None else order
    data = with_declared_fields(data, layout)
    ops = changes.op[at]
    is_shared = task.folder.exists()  # False in a worker that does not share files with the committing process
    folder = task.folder if is_shared else task.objects.store.staging()
    path, copy = folder / f"slice-{uuid.uuid4().hex}", folder / f"rows-{uuid.uuid4().hex}"
    try:
        with explain_write_errors(f"a slice of {len(changes):,} records", folder):
            write_copy(copy, data)
            file = write_slice(
                path,
                with_event_time(data, layout, task.system_time_ms),
                vocab=layout.vocab,
                start=task.start,
                system_time_ms=task.system_time_ms,
                known_digests={},
                ops=ops,
                row_group_rows=rows_per_group(len(changes), task.row_group_size),
            )
            lookup = None if strategy.lookup == strategy.key else row_hash.hash_rows(data, strategy.lookup)
            records = IndexRecords(task.start, changes.key.take(at), changes.row.take(at), ops, changes.old[at], lookup)
            delta = write_delta(folder, records)
    except BaseException:
        path.unlink(missing_ok=True)
        copy.unlink(missing_ok=True)
        raise
    if not task.objects.is_local:
        task.objects.store.put_file(task.objects.data_key(file.physical_hash), path)
        file = replace(file, path=None)
    if is_shared:
        return MergedSlice(file, delta, copy)
    copy.unlink()
    return MergedSlice(file, store_delta(task.objects, delta), None)


def _changes(target: TargetState, task: BucketMergeTask, batch: Batch) -> Changes:
    """The changes of a bucket, from its estimated if that is enough, else by a new classification."""
    estimated = task.estimate
    if estimated is not None and estimated.changes is not None:
        return estimated.changes
    if estimated is not None and estimated.are_all_rows:
        rows = np.arange(len(batch), dtype=np.int64)
        op = np.full(len(batch), APPEND, np.int32)
        return Changes(op, rows, np.full(len(batch), NO_ROW), batch.key, batch.row, estimated.tally)
    return _classified(target, task.bucket, batch)


def _classified(target: TargetState, bucket: AnyBucket, batch: Batch) -> Changes:
    known = _known(target, batch)
    try:
        match target.strategy.kind:
            case "ledger":
                return classify.ledger(batch.key, batch.row, known)
            case "snapshot":
                missing_key, missing = _missing(target, bucket, batch)
                differs = None if target.strategy.compare is None else _comparison(target, batch, known)
                return classify.snapshot(batch.key, batch.row, known, missing, missing_key, differs)
            case "changelog":
                assert batch.op is not None  # checked together with the columns
                return classify.changelog(batch.key, batch.row, batch.op, known)
            case _:
                return classify.upsert(batch.key, batch.row, batch.op, known)
    except MergeConflict as conflict:
        raise _refusal(conflict, batch, target.strategy) from None


def _known(target: TargetState, batch: Batch) -> KeyStates:
    if target.index.end == 0:  # a first load: the index is empty
        nothing = np.zeros(len(batch), np.uint64)
        return KeyStates(np.full(len(batch), NO_ROW), Hashes(nothing, nothing), np.zeros(len(batch), dtype=bool))
    found = target.index.find(batch.key, batch.lookup)
    # A purged row can neither be repeated nor replaced, so its key counts as new, as it would in a rebuilt index.
    purged = (found.offset != NO_ROW) & (found.offset < target.purged_before)
    return KeyStates(np.where(purged, NO_ROW, found.offset), found.row, found.seen & ~purged)


def _missing(target: TargetState, bucket: AnyBucket, batch: Batch) -> tuple[Hashes, KeyStates]:
    """The current rows in the bucket's range of hashes whose keys are not in the batch.

    For a snapshot these are rows of any key, for a transform's result only rows of the processed keys.
    """
    if isinstance(bucket, ResultBucket):
        entries = _of_processed(target, bucket, batch)
    else:
        entries = target.index.live_between(bucket.low, bucket.high)
    kept = ~entries.key.among(batch.key) & (entries.offset >= target.purged_before)
    offset = entries.offset[kept]
    return entries.key.take(kept), KeyStates(offset, entries.row.take(kept), np.ones(len(offset), dtype=bool))


def _of_processed(target: TargetState, bucket: ResultBucket, batch: Batch) -> KeyEntries:
    """The current rows of the processed keys. Rows whose keys are in the batch may be left out."""
    if target.index.end == 0:
        return KeyEntries.none(None)
    processed = bucket.load_processed()
    if target.strategy.lookup != target.strategy.key:
        return target.index.find_prefix(processed)[1]
    rest = processed.take(~processed.among(batch.key))
    found = target.index.find(rest)
    existing = np.flatnonzero(found.offset != NO_ROW)
    return KeyEntries(rest.take(existing), found.row.take(existing), found.offset[existing])


def _comparison(target: TargetState, batch: Batch, known: KeyStates) -> classify.RowComparison:
    """A function that compares rows in the columns that a snapshot compares."""
    assert target.strategy.compare is not None
    columns = target.strategy.compare

    def differs(rows: I64, offsets: I64) -> Any:
        new = row_hash.hash_rows(batch.table.select(list(columns)).take(pa.array(rows)), columns)
        old = row_hash.hash_rows(target.rows.verified(offsets, known.row.take(rows)), columns)
        return ~new.same(old)

    return differs


def _values(target: TargetState, batch: Batch, changes: Changes) -> pa.Table:
    """The values of every record, in the order of the changes."""
    repeats = changes.source == NO_ROW
    if not repeats.any():
        if len(changes) == len(batch) and (changes.source == np.arange(len(batch))).all():
            return batch.table
        return batch.table.take(pa.array(changes.source))
    incoming = batch.table.take(pa.array(changes.source[~repeats]))
    old = target.rows.verified(changes.old[repeats], changes.row.take(repeats))
    position = np.empty(len(changes), np.int64)
    position[~repeats] = np.arange(incoming.num_rows)
    position[repeats] = incoming.num_rows + np.arange(old.num_rows)
    both = pa.concat_tables([incoming, old.select(incoming.column_names).cast(incoming.schema)])
    return both.combine_chunks().take(pa.array(position))


def _refusal(conflict: MergeConflict, batch: Batch, strategy: Strategy) -> DuplicateKeys | BadPrimaryKey:
    found = batch.table.select(list(strategy.key)).take(pa.array(conflict.rows[:_SHOWN_KEYS]))
    values = zip(*(python_list(column) for column in found.columns), strict=True)
    keys = [dict(zip(found.column_names, row, strict=True)) for row in values]
    shown = "; ".join(", ".join(f"{name}={value!r}" for name, value in key.items()) for key in keys)
    more = f" and {len(conflict.rows) - len(keys)} more" if len(conflict.rows) > len(keys) else ""
    if strategy.kind == "changelog":
        return BadPrimaryKey(
            f"the batch has {conflict.reason}: {shown}{more}",
            hint="give changes that continue the current rows of the dataset: see history() (nothing was written)",
            keys=keys,
        )
    return DuplicateKeys(
        f"the batch has {conflict.reason}: {shown}{more}",
        hint="keep one row per key, or use merge='upsert', where the last row wins (nothing was written)",
        keys=keys,
    )


# The order of records in a slice: by event time with merge strategy ledger, by key with the others


def _slice_order(data: pa.Table, layout: Layout, strategy: Strategy) -> I64 | None:
    """The positions that sort the records, stable; None if they are already in order."""
    if strategy.kind == "ledger":
        return None if layout.event_time is None else _order(data, (layout.event_time,))
    return _order(data, strategy.key)


def _order(data: pa.Table, columns: tuple[str, ...]) -> I64 | None:
    if len(columns) == 1 and (values := _as_integers(data.column(columns[0]).combine_chunks())) is not None:
        return None if (values[1:] >= values[:-1]).all() else integer_order(values)
    arrival = pa.array(np.arange(data.num_rows, dtype=np.int64))
    # Arrow's sort is not stable, so the position of a record is the last sort key.
    table = pa.table({**{f"k{i}": data.column(name) for i, name in enumerate(columns)}, "arrival": arrival})
    order: Any = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    return order.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _as_integers(column: Any) -> Any:
    """The values of a column that sorts like integers, else None."""
    if column.null_count:
        return None
    if pa.types.is_integer(column.type):
        return column.to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(column.type):
        wide = pa.int64() if column.type.bit_width == 64 else pa.int32()
        return column.view(wide).to_numpy(zero_copy_only=False)
    return None
