"""Purge: remove old slices for good. The chain and the offsets stay, and the chain records what was purged.

In a dataset with a key, old slices may have current rows. The commit of the purge first repeats these in new slices,
marked as carried, so only history is lost. A reader that has read the old slices skips the carried rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.chain.events import AddData, ExecuteTransform, MetadataEvent
from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.chain.walk import read_block
from floodmark.engine.session import Runtime
from floodmark.errors import ChainError, CommitConflict, ObjectNotFound, StorageError, UnreadableSlice
from floodmark.ledger.append import next_system_time
from floodmark.ledger.block_attributes import BatchTally, carried_attributes, purge_attributes, purge_state
from floodmark.ledger.casting import cast_columns
from floodmark.ledger.commit import PlannedBlock, data_events, empty_event, plan_blocks, publish
from floodmark.ledger.create import refuse_derivative
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import PART_BYTES
from floodmark.ledger.scan import Scan
from floodmark.ledger.schema import row_group_size_of
from floodmark.ledger.selection import purge_end, select
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.rows import bucket_merge, key_index_loader
from floodmark.rows.bucket_merge import BucketMergeTask, MergedSlice, MergeEstimate, TargetState
from floodmark.rows.buckets import MemoryBucket
from floodmark.rows.classify import APPEND, Changes, hash_batch
from floodmark.rows.fold import drop_purged
from floodmark.rows.key_index import KeyIndex
from floodmark.rows.key_index_files import RunCache
from floodmark.rows.live_rows import without_dead_files
from floodmark.rows.row_copies import RowReader, store_copy
from floodmark.storage.arrays import I64
from floodmark.storage.pointer import MAX_RACES, attempt_numbers
from floodmark.storage.scratch import staging_area

_log = logging.getLogger(__name__)
_MS = 10**6


@dataclass(frozen=True)
class PurgeReport:
    """The result of a purge: the removed slices, records and bytes. Offsets below `before` cannot be read any more."""

    before: int
    slices: int
    records: int
    bytes: int
    carried: int = 0
    """How many current rows among the removed records were kept: they have new offsets."""


@dataclass(frozen=True)
class _Plan:
    """What a purge will do: its report, and the slices with the carried rows."""

    report: PurgeReport
    index: KeyIndex | None = field(default=None, repr=False)
    made: Sequence[MergedSlice] = ()
    system_time: int = 0


def purge(
    name: str, before: int | str | date | datetime, load: Callable[[], Snapshot], runtime: Runtime, cache: RunCache
) -> tuple[PurgeReport, Snapshot]:
    """Commit the purge of all whole slices before a point, then delete them. Also returns the snapshot after it.

    `cache` has the opened files of the dataset's key index.
    """
    snapshot = load()
    with snapshot.objects.turn(), staging_area(snapshot.objects.store) as folder:
        for _ in attempt_numbers(MAX_RACES):
            snapshot = load()
            check_can_purge(snapshot, name)
            try:
                plan = _plan(name, snapshot, before, runtime, cache, folder)
            except (ObjectNotFound, UnreadableSlice):
                if not snapshot.has_moved:
                    raise
                continue  # another purge removed slices meanwhile
            if (after := _commit(snapshot, plan)) is not None:
                remove_purged(after.objects, after)
                return plan.report, after
    raise CommitConflict(
        f"{name!r} was not purged: the commit lost {MAX_RACES} races against other writers", hint="try again"
    )


def check_can_purge(snapshot: Snapshot, name: str) -> None:
    """Refuse the purge of a derived dataset, or of one without columns."""
    refuse_derivative(
        snapshot,
        name,
        "its chain cannot record a purge",
        "purge its inputs; to free space here, drop it, then run the step or declare the view again",
    )
    snapshot.require_layout(name)


def plan_purge(snapshot: Snapshot, end: int, dead: I64 | None = None) -> PurgeReport:
    """The effect of a purge of all records before offset `end`, which is the start of a slice.

    `dead` are the dead offsets of a dataset with a key. Slices at the end that have only current rows stay as they are.
    """
    slices = snapshot.slices
    gone = slices.filter(pc.less_equal(slices.column("end"), end))
    if dead is not None:
        starts, ends = (gone.column(name).to_numpy() for name in ("start", "end"))
        has_history = np.searchsorted(dead, ends) > np.searchsorted(dead, starts)
        gone = gone.slice(0, int(np.flatnonzero(has_history)[-1]) + 1 if has_history.any() else 0)
    if gone.num_rows == 0:
        return PurgeReport(snapshot.purged_before, 0, 0, 0)
    before = int(gone.column("end")[-1].as_py())
    size = pc.sum(gone.column("size")).as_py()
    carried = 0
    if dead is not None:
        low, high = np.searchsorted(dead, [snapshot.purged_before, before])
        carried = before - snapshot.purged_before - int(high - low)
    return PurgeReport(before, gone.num_rows, before - snapshot.purged_before, size, carried)


def _plan(
    name: str,
    snapshot: Snapshot,
    before: int | str | date | datetime,
    runtime: Runtime,
    cache: RunCache,
    folder: Path,
) -> _Plan:
    """The purge of one snapshot, with the slices of the carried rows in a folder or in the store."""
    end = purge_end(snapshot, name, before)
    if not strategy_of(snapshot.state).is_keyed:
        return _Plan(plan_purge(snapshot, end), system_time=next_system_time(snapshot, runtime))

    def prepared(index: KeyIndex) -> _Plan:
        report, at = plan_purge(snapshot, end, index.dead()), next_system_time(snapshot, runtime)
        made = list(_carry(name, snapshot, index, report.before, at, folder)) if report.carried else []
        return _Plan(report, index, made, at)

    return key_index_loader.with_repair(snapshot, cache, prepared)


def _carry(name: str, snapshot: Snapshot, index: KeyIndex, before: int, at: int, folder: Path) -> Iterator[MergedSlice]:
    """Write slices with the current rows among the records before an offset."""
    layout, strategy = snapshot.require_layout(name), strategy_of(snapshot.state)
    target = TargetState(index, RowReader(snapshot.objects, snapshot.slices, layout), 0, strategy, layout)
    offset = layout.vocab.offset
    dead = index.dead()
    # From slices, so that a damaged folded file cannot stop a purge.
    records = select(snapshot, snapshot.purged_before, before)
    live = without_dead_files(replace(records, dead=dead[slice(*np.searchsorted(dead, [records.start, records.end]))]))
    scan = Scan(snapshot.objects, layout, live, (offset, *layout.data.names))
    start = snapshot.next_offset
    for rows in _parts(scan):
        offsets = rows.column(offset).to_numpy()
        data = cast_columns(rows.drop_columns([offset]), layout, f"the rows of {name!r}")
        batch = hash_batch(data, layout, strategy, None)
        order = np.arange(len(batch), dtype=np.int64)
        tally = BatchTally()
        changes = Changes(np.full(len(batch), APPEND, np.int32), order, offsets, batch.key, batch.row, tally)
        task = BucketMergeTask(
            MemoryBucket(batch),
            folder,
            snapshot.objects,
            MergeEstimate(len(batch), tally, changes=changes),
            start,
            at // _MS,
            row_group_size_of(snapshot.state),
        )
        yield bucket_merge.write_merged_slice(target, task)
        start += len(batch)


def _parts(scan: Scan) -> Iterator[pa.Table]:
    """The rows of a scan in tables of about `PART_BYTES`."""
    waiting: list[pa.RecordBatch] = []
    with scan.readable():
        for batch in scan.batches() if scan.selection.files else ():
            waiting.append(batch)
            if sum(b.nbytes for b in waiting) >= PART_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _commit(snapshot: Snapshot, plan: _Plan) -> Snapshot | None:
    """Commit the carried rows and the purge by one move of the head; None if another writer moved it first."""
    report = plan.report
    if report.slices == 0:
        snapshot.objects.head.make_durable()  # the commit that made this purge unnecessary must survive a crash
        return snapshot
    planned, state = plan_blocks(snapshot.state, _events(snapshot, plan), plan.system_time)
    if not publish(snapshot.objects, snapshot.head, [m.file for m in plan.made], planned):
        return None
    after = snapshot.after(planned, state)
    if plan.made:
        _derive(after, plan, planned[-2])
    return after


def _events(snapshot: Snapshot, plan: _Plan) -> list[MetadataEvent]:
    report, files = plan.report, [m.file for m in plan.made]
    events: list[AddData] = [
        replace(e, extra=carried_attributes(file.event_time_min, file.event_time_max, part, len(files), report.before))
        for part, (e, file) in enumerate(zip(data_events(snapshot.state, files, None), files, strict=True))
    ]
    empty = empty_event(snapshot.state)
    if events and (data := events[-1].new_data) is not None:
        empty = replace(empty, prev_offset=data.offset_interval.end, new_watermark=events[-1].new_watermark)
    mark = purge_attributes(report.slices, report.bytes, report.carried)
    return [*events, replace(empty, new_source_state=purge_state(report.before), extra=mark)]


def _derive(after: Snapshot, plan: _Plan, last: PlannedBlock) -> None:
    """Add the carried rows to the key index and to the row copies."""
    assert plan.index is not None
    try:
        index: Any = plan.index
        for made in plan.made:
            index = index.with_deltas(made.delta.end, [made.delta])
            if made.copy is not None:
                store_copy(after.objects, made.file.physical_hash, made.copy)
        block_hash, _, block = last
        index.kept((block.sequence_number, block_hash.digest))
    except Exception:
        # The commit has happened, so no error may be raised. Missing files are written again when they are needed.
        _log.warning("the key index of %s lacks the rows that the purge carried", after.objects.folder, exc_info=True)


def _is_purged(objects: DatasetObjects, row: Mapping[str, Any], snapshot: Snapshot) -> bool:
    """Whether the chain, too, says that a slice of the index is purged. Otherwise the index is wrong."""
    block_hash = Multihash(SHA3_256, row["block"])
    event = read_block(block_hash, objects.get_block(block_hash)).event
    data = event.new_data if isinstance(event, AddData | ExecuteTransform) else None
    if data is not None and data.offset_interval.start == row["start"]:
        is_rewritten = row["start"] in snapshot.erased_records.column("start").to_pylist()
        if data.offset_interval.end < snapshot.purged_before:
            return is_rewritten or data.physical_hash.digest == row["physical"]
    _log.warning("the slice index of %s names a purged slice that the chain does not; it stays", objects.folder)
    return False


def remove_purged(objects: DatasetObjects, snapshot: Snapshot) -> None:
    """Delete the files of all purged slices, also those that an earlier purge could not delete."""
    try:
        slices = snapshot.all_slices
        existing = {info.key for info in objects.store.list(objects.data_prefix)}
    except StorageError as error:  # the purge is already committed, so it must not fail
        _log.warning("the purged slices cannot be listed (%s); the next purge deletes them", error)
        return
    gone = slices.filter(pc.less_equal(slices.column("end"), snapshot.purged_before))
    for row in gone.to_pylist():
        physical = Multihash(SHA3_256, row["physical"])
        try:
            if objects.data_key(physical) in existing and not _is_purged(objects, row, snapshot):
                continue
            objects.store.delete(objects.data_key(physical))
            objects.store.delete(objects.rows_key(physical.text))
        except (StorageError, ChainError) as error:
            _log.warning("a purged slice could not be deleted (%s); the next purge tries again", error)
    try:
        drop_purged(objects, snapshot.purged_before)
    except StorageError as error:
        _log.warning("folded files with purged rows could not be deleted (%s); the next purge tries again", error)
