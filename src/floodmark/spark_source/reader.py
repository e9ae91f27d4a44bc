"""Reads of batch and streaming jobs: the requested rows or records in tasks of bounded bytes, and stream positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from floodmark.dataset import Dataset
from floodmark.errors import BadOption, RecordsPurged, StreamLost
from floodmark.lake import Lake
from floodmark.ledger.position import BEFORE_ALL, Position
from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import Selection, select_interval, without_carried
from floodmark.ledger.spark_read import reading_tasks, task_batches
from floodmark.spark_source.options import (
    EARLIEST,
    LATEST,
    DatasetAddress,
    RecordInterval,
    RowsOptions,
    check_named_columns,
)


def open_dataset(place: DatasetAddress) -> Dataset:
    """Open the dataset that the options name."""
    return Lake(place.lake)[place.dataset]


def rows_scan(dataset: Dataset, rows: RowsOptions, snapshot_end: int | None = None) -> Scan:
    """The scan of a batch job, with the columns that it gets by default.

    `snapshot_end` is the end of the records when the frame was created: every read of the frame sees the same rows.
    """
    if rows.changes is not None:
        until = rows.changes.until if rows.changes.until is not None or snapshot_end is None else snapshot_end - 1
        scan = records_scan(dataset, RecordInterval(rows.changes.since, until))
    else:
        has_moved = snapshot_end is not None and snapshot_end != dataset.snapshot().next_offset
        scan = dataset.scan(
            as_of=snapshot_end - 1 if rows.as_of is None and has_moved and snapshot_end is not None else rows.as_of
        )
    return scan if rows.system else replace(scan, columns=_without_system(scan))


def records_scan(dataset: Dataset, within: RecordInterval) -> Scan:
    """A scan of the records of an interval, with system columns."""
    snapshot = dataset.snapshot()
    layout = snapshot.require_layout(dataset.name)
    selection = select_interval(snapshot, dataset.name, within.since, within.until)
    return Scan(snapshot.objects, layout, selection, (*layout.vocab.reserved, *layout.shown.names))


def narrow_scan(scan: Scan, schema: Any, dataset: Dataset) -> Scan:
    """Restrict a scan to the columns of a Spark schema."""
    return replace(scan, columns=check_named_columns(scan.full_schema, schema, dataset.name))


def check_operations_shown(dataset: Dataset, columns: Sequence[str]) -> None:
    """Refuse records of a keyed dataset without their operation: some of them retract or correct rows."""
    vocab = dataset.snapshot().require_layout(dataset.name).vocab
    if vocab.op not in columns and dataset.strategy.kind not in ("append", "ledger"):
        raise BadOption(
            f"records of {dataset.name!r} change and retract rows and cannot be read without {vocab.op!r}",
            hint=f'add .option("system", "true"), or a schema with {vocab.op!r}',
            name=dataset.name,
        )


def cut_scan(scan: Scan) -> list[Scan]:
    """Cut a scan into tasks of bounded bytes, in offset order."""
    return [] if scan.selection.is_empty else reading_tasks(scan)


def task_rows(task: Scan, fitting: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one task in exactly the types that Spark expects, because Spark compares the types first."""
    for batch in task_batches(task):
        yield batch if batch.schema.equals(fitting) else batch.cast(fitting)


def _without_system(scan: Scan) -> tuple[str, ...]:
    reserved = scan.layout.vocab.reserved
    return tuple(name for name in scan.columns if name not in reserved)


# Streams


NEVER = 1 << 62
"""Later than all records."""


@dataclass(frozen=True)
class FollowedDataset:
    """A dataset that a stream reads. Every call uses its current head."""

    dataset: Dataset

    def head(self) -> StreamPosition:
        """The position of the newest record."""
        snapshot = self.dataset.snapshot()
        newest = snapshot.next_offset - 1
        return StreamPosition(str(self.dataset.id), newest, snapshot.next_offset, snapshot.block_of(newest) or "")

    def initial(self, starting: int | str) -> StreamPosition:
        """The start of a new query; refused if records at the start are purged or do not exist yet."""
        head = self.head()
        if starting == LATEST:
            return head
        first = 0 if starting == EARLIEST else int(starting)
        if first > head.offset + 1:
            raise BadOption(
                f"startingOffset={first}, but {self.dataset.name!r} ends at offset {head.offset}",
                hint='use "latest" to start with the records that are written from now on',
                option="startingOffset",
            )
        start = self._with_block(replace(head, offset=first + BEFORE_ALL))
        self._check_not_purged(start)
        return start

    def next_end(self, start: StreamPosition, most: int | None, target: StreamPosition | None) -> StreamPosition:
        """The end of the next batch."""
        head = self.head()
        self._check_follows(start, head)
        self._check_not_purged(start)
        return self._with_block(next_position(start, head, most, target))

    def between(self, start: StreamPosition, end: StreamPosition, schema: Any) -> list[Scan]:
        """The tasks that read the records after `start`, up to and including `end`."""
        head = self.head()
        self._check_follows(start, head)
        self._check_follows(end, head)
        if start.offset >= end.offset:
            return []
        self._check_not_purged(start)
        scan = narrow_scan(records_scan(self.dataset, RecordInterval(start.offset, end.offset)), schema, self.dataset)
        check_operations_shown(self.dataset, scan.columns)
        new = self._without_carried(scan.selection, start)
        return [] if new.is_empty else cut_scan(replace(scan, selection=new))

    def _with_block(self, position: StreamPosition) -> StreamPosition:
        return replace(position, block=self.dataset.snapshot().block_of(position.offset) or "")

    def _check_follows(self, position: StreamPosition, head: StreamPosition) -> None:
        """Refuse a position that is not in this dataset, or not any more."""
        check_follows(position, head, self.dataset.name)
        read = Position(position.dataset, position.offset, position.block)
        if position.block and not read.is_on(self.dataset.snapshot()):
            raise StreamLost(
                f"the query has read {self.dataset.name!r} up to offset {position.offset}, which is another record now",
                hint="start with a new checkpointLocation: the dataset was replaced by an older copy and written "
                "since, and what the query passed on cannot be taken back",
                name=self.dataset.name,
                expected=position.block,
                found=self.dataset.snapshot().block_of(position.offset),
            )

    def _without_carried(self, selection: Selection, start: StreamPosition) -> Selection:
        """The records without rows that purges carried since the query started: it has read them before."""
        since = [one for one in self.dataset.snapshot().carried if one.start >= start.began]
        return without_carried(selection, since, start.offset + 1)

    def _check_not_purged(self, start: StreamPosition) -> None:
        """Refuse to continue after purged records: a stream that skipped them would be wrong without an error."""
        snapshot = self.dataset.snapshot()
        if start.offset + 1 < snapshot.purged_before:
            raise RecordsPurged(
                f"the stream reads {self.dataset.name!r} from offset {start.offset + 1} on, "
                f"but records before {snapshot.purged_before} are purged",
                hint="start a new query with a new checkpointLocation at the records that remain: "
                f'.option("startingOffset", "{snapshot.purged_before}")',
                purged_before=snapshot.purged_before,
            )


@dataclass(frozen=True)
class StreamPosition:
    """The unique id of a dataset, and the offset of the last record that was read; -1 before the first.

    `began` is the offset after the newest record when the query started, or NEVER if a checkpoint does not have it.
    `block` is the block of the last record that was read; it is empty before the first.
    """

    dataset: str
    offset: int
    began: int = NEVER
    block: str = ""

    def to_json(self) -> dict[str, Any]:
        """The form that Spark stores in the query's checkpoint."""
        return {"dataset": self.dataset, "offset": self.offset, "began": self.began, "block": self.block}


def parse_position(given: Any, name: str) -> StreamPosition:
    """Parse a position that Spark stored."""
    match given:
        case {"dataset": str(dataset), "offset": int(offset)} if offset >= BEFORE_ALL:
            began, block = given.get("began", NEVER), given.get("block", "")
            began, block = began if isinstance(began, int) else NEVER, block if isinstance(block, str) else ""
            return StreamPosition(dataset, offset, began, block)
    raise StreamLost(
        f"the query's checkpoint has the position {given!r} in {name!r}, which Floodmark did not write",
        hint="start the query with a new checkpointLocation: a checkpoint belongs to one query and its sources",
        name=name,
    )


def next_position(
    start: StreamPosition, head: StreamPosition, most: int | None, target: StreamPosition | None
) -> StreamPosition:
    """The end of the next batch: the head or the target of an availableNow run, but at most `most` records."""
    end = head.offset if target is None else min(head.offset, target.offset)
    if most is not None:
        end = min(end, start.offset + most)
    return replace(start, offset=max(end, start.offset))


def check_follows(position: StreamPosition, head: StreamPosition, name: str) -> None:
    """Refuse a position in another dataset or beyond the end of this one."""
    if position.dataset != head.dataset:
        raise StreamLost(
            f"the query was reading another dataset named {name!r} ({position.dataset}), which does not exist any more",
            hint="start the query with a new checkpointLocation: its offsets do not belong to this dataset",
            name=name,
            expected=position.dataset,
            found=head.dataset,
        )
    if position.offset > head.offset:
        raise StreamLost(
            f"the query has read {name!r} up to offset {position.offset}, but it ends at {head.offset}",
            hint="start with a new checkpointLocation: the lake is older than the query, perhaps restored from a copy",
            name=name,
            expected=position.offset,
            found=head.offset,
        )
