"""Write to a dataset with a key: split the rows by key, look keys up, classify the rows, and commit only changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.chain.events import MetadataEvent
from floodmark.engine.run import run_on_spark
from floodmark.engine.session import Runtime
from floodmark.errors import ObjectNotFound, UnreadableSlice
from floodmark.ledger.append import Write, WriteResult
from floodmark.ledger.block_attributes import BatchTally
from floodmark.ledger.casting import check_columns
from floodmark.ledger.commit import (
    PlannedBlock,
    data_events,
    describe_commit,
    plan_blocks,
    publish,
)
from floodmark.ledger.data_input import Incoming, SparkData
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import PART_BYTES
from floodmark.ledger.schema import Layout, row_group_size_of
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.staging import StagedParts, incoming_schema, stage, thread_runner, with_typed_columns
from floodmark.ledger.strategy import MergeKind, Strategy, strategy_of
from floodmark.ledger.types import arrow_schema
from floodmark.rows import bucket_merge, key_index_loader
from floodmark.rows.bucket_merge import AnyBucket, BucketMergeTask, MergedSlice, MergeEstimate, TargetState
from floodmark.rows.buckets import (
    Bucket,
    MemoryBucket,
    ResultBucket,
    SortTask,
    group_buckets,
    load_bucket,
    sort_part,
    sort_spark_frame,
)
from floodmark.rows.classify import Ops, RowsWithOps, accepted_layout, make_batch
from floodmark.rows.key_index import KeyIndex
from floodmark.rows.row_copies import RowReader, store_copy
from floodmark.storage.pointer import MAX_RACES, attempt_numbers
from floodmark.storage.scratch import SortedFile

_log = logging.getLogger(__name__)
_MS = 10**6
UNPACKED_RATIO = 4
"""A row's size in memory divided by its size in Parquet, roughly."""
_REPEATED_BYTES = 256 << 20
_MOST_RANGES = 4096

BatchBuilder = Callable[[Snapshot, KeyIndex, Layout], RowsWithOps]
"""Builds a batch that depends on the dataset's rows. It is called again if the head moves."""


@dataclass(frozen=True)
class PreparedMerge:
    """The slices of a batch for one head, ready to commit."""

    index: KeyIndex
    batch_buckets: BatchBuckets
    layout: Layout
    definitions: list[MetadataEvent]
    system_time: int
    tally: BatchTally
    merged_slices: list[MergedSlice]


@dataclass
class KeyedWrite(Write):
    """A write that merges one batch by key."""

    cache: dict[str, Any] = field(default_factory=dict)
    now: str | None = None
    kind: MergeKind | None = None  # merges this batch with another strategy: a delete is an upsert in all of them
    rebuild: BatchBuilder | None = None

    def _run(self, snapshot: Snapshot, folder: Path) -> WriteResult:
        objects = snapshot.objects
        self._check_has_rows(snapshot)
        intake = BatchIntake(self.data, objects, self.runtime, folder)
        prepared = self._prepare(snapshot, intake, None)
        with objects.turn():
            for race in attempt_numbers(MAX_RACES, self._pause):
                if race:
                    snapshot = self._reloaded(snapshot)
                    if (first := self._committed_before(snapshot)) is not None:
                        return WriteResult(first, snapshot)
                    prepared = self._prepare(snapshot, intake, prepared)
                if prepared is not None and objects.read_head() == snapshot.head:
                    result = self._commit(snapshot, prepared)
                    if result is not None:
                        return result
        raise self._lost()

    def _strategy(self, snapshot: Snapshot) -> Strategy:
        strategy = strategy_of(snapshot.state)
        return strategy if self.kind is None else replace(strategy, kind=self.kind, compare=None)

    # From the data to slices

    def _prepare(self, snapshot: Snapshot, intake: BatchIntake, before: PreparedMerge | None) -> PreparedMerge | None:
        """Classify the rows and write slices, with an intact key index; None if a purge removed slices meanwhile."""
        try:
            return key_index_loader.with_repair(
                snapshot, self.cache, lambda index: self._prepared(snapshot, index, intake, before)
            )
        except (ObjectNotFound, UnreadableSlice):
            if snapshot.objects.read_head() == snapshot.head:
                raise
            return None

    def _prepared(
        self, snapshot: Snapshot, index: KeyIndex, intake: BatchIntake, before: PreparedMerge | None
    ) -> PreparedMerge:
        layout, definitions = self._layout(snapshot)
        strategy = self._strategy(snapshot)
        batch = self._taken(snapshot, index, intake, layout, before)
        self.progress.start(f"writing {self.name}", batch.rows)
        at = self._system_time(snapshot)
        opened = self.cache.setdefault("rows", {}) if snapshot.objects.is_local else {}  # remote copies fill memory
        rows = RowReader(snapshot.objects, snapshot.slices, layout, opened)
        target = TargetState(index, rows, snapshot.purged_before, strategy, layout)
        buckets = _bounded(batch.buckets, snapshot, index, strategy)
        size = row_group_size_of(snapshot.state)
        tasks = [BucketMergeTask(bucket, intake.folder, snapshot.objects, row_group_size=size) for bucket in buckets]
        tally, slices = self._merge_buckets(target, batch, tasks, snapshot.next_offset, at)
        return PreparedMerge(index, batch, layout, definitions, at, tally, slices)

    def _taken(
        self, snapshot: Snapshot, index: KeyIndex, intake: BatchIntake, layout: Layout, before: PreparedMerge | None
    ) -> BatchBuckets:
        """The rows as buckets."""
        strategy = self._strategy(snapshot)
        if self.rebuild is not None:
            built = self.rebuild(snapshot, index, layout)
            return bucket_in_memory(built.table, layout, strategy, built.op)
        if before is not None and before.layout == layout:
            return before.batch_buckets  # the rows do not depend on the head, only on the layout
        return intake.take(layout, strategy)

    def _merge_buckets(
        self, target: TargetState, batch: BatchBuckets, tasks: list[BucketMergeTask], start: int, at: int
    ) -> tuple[BatchTally, list[MergedSlice]]:
        """Write the slices of all buckets, with offsets from `start`. Returns the tally and the slices."""
        if len(tasks) == 1:
            estimated = bucket_merge.estimate_here(target, tasks[0])
            planned = _planned(tasks, [estimated], start, at)
            return self._tally([estimated]), [bucket_merge.write_merged_slice(target, task) for task in planned]
        run_tasks = partial(batch.run, progress=self.progress, weight=_weight)
        if estimates := bucket_merge.first_load_estimates(target, tasks):
            tried = run_tasks(
                _planned(tasks, estimates, start, at), partial(bucket_merge.write_slice_if_all_new, target)
            )
            if all(one is not None for one in tried):
                return self._tally(estimates), tried
            for one in tried:
                if one is not None:
                    one.discard()
            self.progress.start(f"writing {self.name}", batch.rows)
        estimates = batch.run(tasks, partial(bucket_merge.estimate, target))
        return self._tally(estimates), run_tasks(
            _planned(tasks, estimates, start, at), partial(bucket_merge.write_merged_slice, target)
        )

    def _tally(self, estimates: Sequence[MergeEstimate]) -> BatchTally:
        return sum((o.tally for o in estimates), BatchTally(now=self.now))

    # From slices to a commit

    def _commit(self, snapshot: Snapshot, prepared: PreparedMerge) -> WriteResult | None:
        """Commit the slices; None if another writer moved the head first."""
        tally = prepared.tally
        if tally.duplicates:
            rows = "1 row" if tally.duplicates == 1 else f"{tally.duplicates} rows"
            _log.warning("a later row of the same key replaced %s of the batch for %r", rows, self.name)
        events = self._events(snapshot, prepared)
        if not events:
            return self._unchanged(snapshot, tally)
        planned, state = plan_blocks(snapshot.state, events, prepared.system_time)
        if not publish(snapshot.objects, snapshot.head, [m.file for m in prepared.merged_slices], planned):
            return None
        after = snapshot.after(planned, state)
        if prepared.merged_slices:
            self._derive(after, prepared)
        return self._committed(planned, prepared, after)

    def _committed(self, planned: list[PlannedBlock], prepared: PreparedMerge, after: Snapshot) -> WriteResult:
        return WriteResult(describe_commit(planned, self.source_state, prepared.tally), after)

    def _events(self, snapshot: Snapshot, prepared: PreparedMerge) -> list[MetadataEvent]:
        """The events of the commit; none if there is nothing to commit."""
        if prepared.merged_slices:
            files = [m.file for m in prepared.merged_slices]
            data = data_events(snapshot.state, files, self.source_state, prepared.tally)
            return [*prepared.definitions, *data]
        if snapshot.layout is None:
            raise self._nothing()
        return self._events_without_rows(snapshot, prepared.tally)

    def _derive(self, after: Snapshot, prepared: PreparedMerge) -> None:
        """Add the committed records to the key index and the row copies."""
        try:
            at = (after.head_block.sequence_number, after.head.digest)
            prepared.index.extended(at, after.next_offset, [m.delta for m in prepared.merged_slices])
            for merged in prepared.merged_slices:
                if merged.copy is not None:
                    store_copy(after.objects, merged.file.physical_hash, merged.copy)
        except Exception:
            # The commit has happened, so no error may be raised. Missing files are written again when they are needed.
            _log.warning("the key index and row copies of %r lack its newest commit", self.name, exc_info=True)


def _bounded(
    buckets: Sequence[AnyBucket], snapshot: Snapshot, index: KeyIndex, strategy: Strategy
) -> Sequence[AnyBucket]:
    """The buckets. A single bucket is split if the old rows that it may repeat would not fit into one slice."""
    if len(buckets) != 1 or not isinstance(buckets[0], MemoryBucket):
        return buckets
    repeated = index.live_count if strategy.kind == "snapshot" else min(buckets[0].rows, index.live_count)
    expected = UNPACKED_RATIO * snapshot.size * repeated // max(snapshot.records, 1)
    ranges = min(-(-expected // _REPEATED_BYTES), _MOST_RANGES)
    return buckets[0].split(ranges) if ranges > 1 else buckets


def _planned(
    tasks: Sequence[BucketMergeTask], estimates: Sequence[MergeEstimate], start: int, at: int
) -> list[BucketMergeTask]:
    """The tasks whose buckets become records, with the offsets of these records."""
    starts = accumulate((o.records for o in estimates), initial=start)
    return [
        replace(task, start=first, system_time_ms=at // _MS, estimate=estimated)
        for task, estimated, first in zip(tasks, estimates, starts, strict=False)
        if estimated.records
    ]


def _weight(task: BucketMergeTask) -> int:
    return task.rows


Runner = Callable[..., list[Any]]


@dataclass(frozen=True)
class BatchBuckets:
    """The buckets of a batch, and the function that runs their tasks: with Spark or in this process."""

    buckets: Sequence[Bucket | ResultBucket]
    run: Runner

    @property
    def rows(self) -> int:
        return sum(bucket.rows for bucket in self.buckets)


@dataclass
class BatchIntake:
    """The data of one write. A stream can be read only once, so staged files are reused even if the layout changes."""

    data: Incoming
    objects: DatasetObjects
    runtime: Runtime
    folder: Path
    _staged: StagedParts | None = field(default=None, repr=False)

    def take(self, layout: Layout, strategy: Strategy) -> BatchBuckets:
        """Check and hash the rows, and split them into buckets: in memory if they are few, else in files."""
        if isinstance(self.data, SparkData) and not self.objects.is_local:
            # With a local store Spark stages Parquet files, which takes half the time of sending rows to Python.
            return self._split(
                self._sort_frame(layout, strategy),
                partial(run_on_spark, session=self.runtime.session),
                layout,
                strategy,
            )
        if self._staged is None:
            accepted = accepted_layout(layout, strategy, incoming_schema(self.data)) if strategy.takes_op else layout
            self._staged = stage(self.data, accepted, self.folder, self.objects, self.runtime)
        staged = self._staged
        if not staged.parts:
            return bucket_in_memory(_no_rows(layout, strategy), layout, strategy)
        if len(staged.parts) == 1:
            return BatchBuckets([load_bucket(staged.parts, layout, strategy)], thread_runner())
        tasks = [SortTask(part, layout, strategy, self.folder, self.objects) for part in staged.parts]
        return self._split(staged.run(tasks, sort_part), staged.run, layout, strategy)

    def _sort_frame(self, layout: Layout, strategy: Strategy) -> list[SortedFile]:
        assert isinstance(self.data, SparkData)
        frame = self.data.frame
        schema = arrow_schema(frame.schema)
        check_columns(schema, accepted_layout(layout, strategy, schema), "the data")
        return sort_spark_frame(with_typed_columns(frame, layout), layout, strategy, self.folder, self.objects)

    def _split(self, files: list[SortedFile], runner: Runner, layout: Layout, strategy: Strategy) -> BatchBuckets:
        if not files:
            return bucket_in_memory(_no_rows(layout, strategy), layout, strategy)
        small = sum(f.size for f in files) <= PART_BYTES
        return BatchBuckets(group_buckets(files), thread_runner() if small else runner)


def bucket_in_memory(table: pa.Table, layout: Layout, strategy: Strategy, op: Ops | None = None) -> BatchBuckets:
    """Rows in memory as one bucket."""
    return BatchBuckets([MemoryBucket(make_batch(table, layout, strategy, "the data", op))], thread_runner())


def _no_rows(layout: Layout, strategy: Strategy) -> pa.Table:
    table = pa.schema([f.with_nullable(True) for f in layout.data]).empty_table()
    return table.append_column(layout.vocab.op, pa.array([], pa.int32())) if strategy.takes_op else table
