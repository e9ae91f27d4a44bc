"""Merging one bucket: look its keys up, classify its rows, and write what they become as a slice."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.ledger.attributes import Tally
from floodmark.ledger.conform import as_declared
from floodmark.ledger.errors import BadOperation, DuplicateKeys
from floodmark.ledger.finalise import with_event_time
from floodmark.ledger.keys import hashing
from floodmark.ledger.keys.addition import Addition, install, write_addition
from floodmark.ledger.keys.entries import Entries
from floodmark.ledger.keys.index import KeyIndex
from floodmark.ledger.keys.records import NOT_THERE, Records
from floodmark.ledger.keys.rows import Rows, write_copy
from floodmark.ledger.layout import Layout, even_rows
from floodmark.ledger.merge import classify
from floodmark.ledger.merge.batch import APPEND, Batch
from floodmark.ledger.merge.buckets import Bucket
from floodmark.ledger.merge.classify import Changes, Conflict, Known
from floodmark.ledger.merge.results import ResultBucket
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.strategy import Strategy
from floodmark.storage.arrays import I64, Hashes, integer_order
from floodmark.storage.scratch import explained
from floodmark.storage.slices import SliceFile, write_slice

_SHOWN_KEYS = 5

AnyBucket = Bucket | ResultBucket


@dataclass(frozen=True)
class Held:
    """What a dataset holds, as far as a merge needs it: its key index, its rows, and where they begin."""

    index: KeyIndex
    rows: Rows
    purged_before: int
    strategy: Strategy
    layout: Layout


@dataclass(frozen=True)
class Outlook:
    """How many records a bucket becomes; and which, where they are not too many to carry around."""

    records: int
    tally: Tally
    are_all_rows: bool = False  # each row of the bucket is a new record: nothing has to be looked up again
    changes: Changes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class MergeTask:
    """One bucket to be merged; what follows `objects` counts only once a slice is made of it."""

    bucket: AnyBucket
    folder: Path
    objects: DatasetObjects
    outlook: Outlook | None = None
    start: int = 0
    system_time_ms: int = 0
    row_group_size: int | None = None

    @property
    def rows(self) -> int:
        return self.bucket.rows


@dataclass(frozen=True)
class MadeSlice:
    """The slice of a bucket and the derived files that go with it; no copy where it would stay on another machine."""

    file: SliceFile
    addition: Addition
    copy: Path | None

    def discard(self) -> None:
        """Remove the files of a slice that is not needed."""
        found = [self.file.path, self.copy]
        if self.addition.folder is not None:
            found += [self.addition.folder / name for name in self.addition.names]
        for path in found:
            if path is not None:
                path.unlink(missing_ok=True)


def guesses(held: Held, tasks: Sequence[MergeTask]) -> list[Outlook]:
    """What buckets of a first load mostly become: one record for each row. Empty where that would be rash.

    A task that is given a guess finds out whether it is right on its way, and then looking first was not needed.
    """
    if held.index.end or held.strategy.kind == "changelog" or not all(task.objects.is_local for task in tasks):
        return []
    return [Outlook(t.rows, Tally(new=t.rows), are_all_rows=True) for t in tasks]


def look(held: Held, task: MergeTask) -> Outlook:
    """Classify a bucket, to know how many offsets it needs."""
    changes = _classified(held, task.bucket, task.bucket.load())
    return Outlook(len(changes), changes.tally, changes.tally.new == task.rows == len(changes))


def look_here(held: Held, task: MergeTask) -> Outlook:
    """The same in this process, where the answer can be kept."""
    changes = _classified(held, task.bucket, task.bucket.load())
    return Outlook(len(changes), changes.tally, changes=changes)


def try_slice(held: Held, task: MergeTask) -> MadeSlice | None:
    """The slice of a bucket if the guess about it is right, else None."""
    batch = task.bucket.load()
    if batch.op is not None:
        return None
    made = _made(held, task, batch)
    if made.addition.run is not None and made.addition.run.entries == task.rows:
        return made
    made.discard()  # some rows have one key
    return None


def make_slice(held: Held, task: MergeTask) -> MadeSlice:
    """Write the records of a bucket in the strategy's order, and what the key index needs to know of them."""
    return _made(held, task, task.bucket.load())


def _made(held: Held, task: MergeTask, batch: Batch) -> MadeSlice:
    changes = _changes(held, task, batch)
    layout, strategy = held.layout, held.strategy
    data = _values(held, batch, changes)
    order = _slice_order(data, layout, strategy)
    if order is not None:
        data = data.take(pa.array(order))
    at: Any = slice(None) if order is None else order
    data = as_declared(data, layout)
    ops = changes.op[at]
    is_near = task.folder.exists()  # else this is a worker that the committing process does not share files with
    folder = task.folder if is_near else task.objects.store.staging()
    path, copy = folder / f"slice-{uuid.uuid4().hex}", folder / f"rows-{uuid.uuid4().hex}"
    try:
        with explained(f"a slice of {len(changes):,} records", folder):
            write_copy(copy, data)
            made = write_slice(
                path,
                with_event_time(data, layout, task.system_time_ms),
                vocab=layout.vocab,
                start=task.start,
                system_time_ms=task.system_time_ms,
                known_digests={},
                ops=ops,
                row_group_rows=even_rows(len(changes), task.row_group_size),
            )
            lookup = None if strategy.lookup == strategy.key else hashing.hash_rows(data, strategy.lookup)
            records = Records(task.start, changes.key.take(at), changes.row.take(at), ops, changes.old[at], lookup)
            addition = write_addition(folder, records)
    except BaseException:
        path.unlink(missing_ok=True)
        copy.unlink(missing_ok=True)
        raise
    if not task.objects.is_local:
        task.objects.store.put_file(task.objects.data_key(made.physical_hash), path)
        made = replace(made, path=None)
    if is_near:
        return MadeSlice(made, addition, copy)
    copy.unlink()
    return MadeSlice(made, install(task.objects, addition), None)


def _changes(held: Held, task: MergeTask, batch: Batch) -> Changes:
    """What the bucket becomes, from what was found out about it before, as far as that goes."""
    known = task.outlook
    if known is not None and known.changes is not None:
        return known.changes
    if known is not None and known.are_all_rows:
        rows = np.arange(len(batch), dtype=np.int64)
        op = np.full(len(batch), APPEND, np.int32)
        return Changes(op, rows, np.full(len(batch), NOT_THERE), batch.key, batch.row, known.tally)
    return _classified(held, task.bucket, batch)


def _classified(held: Held, bucket: AnyBucket, batch: Batch) -> Changes:
    known = _known(held, batch)
    try:
        match held.strategy.kind:
            case "ledger":
                return classify.ledger(batch.key, batch.row, known)
            case "snapshot":
                missing_key, missing = _missing(held, bucket, batch)
                differs = None if held.strategy.compare is None else _comparison(held, batch, known)
                return classify.snapshot(batch.key, batch.row, known, missing, missing_key, differs)
            case "changelog":
                assert batch.op is not None  # checked with the columns
                return classify.changelog(batch.key, batch.row, batch.op, known)
            case _:
                return classify.upsert(batch.key, batch.row, batch.op, known)
    except Conflict as conflict:
        raise _refusal(conflict, batch, held.strategy) from None


def _known(held: Held, batch: Batch) -> Known:
    if held.index.end == 0:  # a first load need not search what is not there
        nothing = np.zeros(len(batch), np.uint64)
        return Known(np.full(len(batch), NOT_THERE), Hashes(nothing, nothing), np.zeros(len(batch), dtype=bool))
    found = held.index.find(batch.key, batch.lookup)
    # What is purged can neither be repeated nor replaced: such a key begins anew, as if the index were made again.
    purged = (found.offset != NOT_THERE) & (found.offset < held.purged_before)
    return Known(np.where(purged, NOT_THERE, found.offset), found.row, found.seen & ~purged)


def _missing(held: Held, bucket: AnyBucket, batch: Batch) -> tuple[Hashes, Known]:
    """The current rows in the bucket's range of hashes whose keys the batch does not have.

    Of all rows in a snapshot; of those of the processed keys in a transform's result.
    """
    if isinstance(bucket, ResultBucket):
        entries = _of_processed(held, bucket, batch)
    else:
        entries = held.index.live_between(bucket.low, bucket.high)
    kept = ~entries.key.among(batch.key) & (entries.offset >= held.purged_before)
    offset = entries.offset[kept]
    return entries.key.take(kept), Known(offset, entries.row.take(kept), np.ones(len(offset), dtype=bool))


def _of_processed(held: Held, bucket: ResultBucket, batch: Batch) -> Entries:
    """The current rows of the processed keys; those that the batch has may be left out."""
    if held.index.end == 0:
        return Entries.none(None)
    processed = bucket.load_processed()
    if held.strategy.lookup != held.strategy.key:
        return held.index.find_prefix(processed)[1]
    rest = processed.take(~processed.among(batch.key))
    found = held.index.find(rest)
    there = np.flatnonzero(found.offset != NOT_THERE)
    return Entries(rest.take(there), found.row.take(there), found.offset[there])


def _comparison(held: Held, batch: Batch, known: Known) -> classify.Differs:
    """Whether rows differ in the columns that a snapshot compares."""
    assert held.strategy.compare is not None
    columns = held.strategy.compare

    def differs(rows: I64, offsets: I64) -> Any:
        new = hashing.hash_rows(batch.table.select(list(columns)).take(pa.array(rows)), columns)
        old = hashing.hash_rows(held.rows.verified(offsets, known.row.take(rows)), columns)
        return ~new.same(old)

    return differs


def _values(held: Held, batch: Batch, changes: Changes) -> pa.Table:
    """The values of every record, in the order of the changes."""
    repeats = changes.source == NOT_THERE
    if not repeats.any():
        if len(changes) == len(batch) and (changes.source == np.arange(len(batch))).all():
            return batch.table
        return batch.table.take(pa.array(changes.source))
    incoming = batch.table.take(pa.array(changes.source[~repeats]))
    old = held.rows.verified(changes.old[repeats], changes.row.take(repeats))
    position = np.empty(len(changes), np.int64)
    position[~repeats] = np.arange(incoming.num_rows)
    position[repeats] = incoming.num_rows + np.arange(old.num_rows)
    both = pa.concat_tables([incoming, old.select(incoming.column_names).cast(incoming.schema)])
    return both.combine_chunks().take(pa.array(position))


def _refusal(conflict: Conflict, batch: Batch, strategy: Strategy) -> DuplicateKeys | BadOperation:
    keys = batch.table.select(list(strategy.key)).take(pa.array(conflict.rows[:_SHOWN_KEYS])).to_pylist()
    shown = "; ".join(", ".join(f"{name}={value!r}" for name, value in key.items()) for key in keys)
    more = f" and {len(conflict.rows) - len(keys)} more" if len(conflict.rows) > len(keys) else ""
    if strategy.kind == "changelog":
        return BadOperation(
            f"the batch has {conflict.reason}: {shown}{more}",
            hint="nothing was written: a changelog must continue what the dataset holds; look at history()",
            keys=keys,
        )
    return DuplicateKeys(
        f"the batch has {conflict.reason}: {shown}{more}",
        hint="nothing was written: keep one row for each key, or use merge='upsert', where the last one wins",
        keys=keys,
    )


# The order of records inside a slice: by event time in a ledger, by key where rows can change


def _slice_order(data: pa.Table, layout: Layout, strategy: Strategy) -> I64 | None:
    """What puts records in order, those that are equal in it staying as they are; None if they are in order."""
    if strategy.kind == "ledger":
        return None if layout.event_time is None else _order(data, (layout.event_time,))
    return _order(data, strategy.key)


def _order(data: pa.Table, columns: tuple[str, ...]) -> I64 | None:
    if len(columns) == 1 and (values := _as_integers(data.column(columns[0]).combine_chunks())) is not None:
        return None if (values[1:] >= values[:-1]).all() else integer_order(values)
    arrival = pa.array(np.arange(data.num_rows, dtype=np.int64))
    # Arrow's sort is not stable on its own: where a record stood is the last key.
    table = pa.table({**{f"k{i}": data.column(name) for i, name in enumerate(columns)}, "arrival": arrival})
    order: Any = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    return order.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _as_integers(column: Any) -> Any:
    """The values of a column whose order is that of integers, else None."""
    if column.null_count:
        return None
    if pa.types.is_integer(column.type):
        return column.to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(column.type):
        wide = pa.int64() if column.type.bit_width == 64 else pa.int32()
        return column.view(wide).to_numpy(zero_copy_only=False)
    return None
