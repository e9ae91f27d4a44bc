"""A batch job's reading: the rows or records that its options ask for, cut into tasks of bounded bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from floodmark.dataset import Dataset
from floodmark.lake import Lake
from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import interval
from floodmark.ledger.spark_read import reading_tasks, task_batches
from floodmark.spark_source.columns import named_columns
from floodmark.spark_source.errors import OperationsHidden
from floodmark.spark_source.options import Interval, Place, Rows


def open_dataset(place: Place) -> Dataset:
    """The dataset of a place."""
    return Lake(place.lake)[place.dataset]


def rows_scan(dataset: Dataset, rows: Rows, pinned: int | None = None) -> Scan:
    """What a batch job reads, with all columns that it gets unless it names some.

    `pinned` is the offset after the last record when the frame was made: its later readings see nothing newer.
    """
    if rows.changes is not None:
        until = rows.changes.until if rows.changes.until is not None or pinned is None else pinned - 1
        scan = records_scan(dataset, Interval(rows.changes.since, until))
    else:
        moved = pinned is not None and pinned != dataset.snapshot().next_offset
        scan = dataset.scan(as_of=pinned - 1 if rows.as_of is None and moved and pinned is not None else rows.as_of)
    return scan if rows.system else replace(scan, columns=_without_system(scan))


def records_scan(dataset: Dataset, within: Interval) -> Scan:
    """The records of an interval, with system columns."""
    snapshot = dataset.snapshot()
    layout = snapshot.require_layout(dataset.name)
    selection = interval(snapshot, dataset.name, within.since, within.until)
    return Scan(snapshot.objects, layout, selection, (*layout.vocab.reserved, *layout.shown.names))


def narrowed(scan: Scan, schema: Any, dataset: Dataset) -> Scan:
    """The same scan with the columns of a Spark schema only."""
    return replace(scan, columns=named_columns(scan.full_schema, schema, dataset.name))


def check_operations_shown(dataset: Dataset, columns: Sequence[str]) -> None:
    """Refuse records that cannot be told apart: of a keyed dataset some say that a row is gone, or was another."""
    vocab = dataset.snapshot().require_layout(dataset.name).vocab
    if vocab.op not in columns and dataset.strategy.kind not in ("append", "ledger"):
        raise OperationsHidden(
            f"records of {dataset.name!r} change and retract rows, and without {vocab.op!r} nobody can tell",
            hint=f'add .option("system", "true"), or a schema that has {vocab.op!r}',
            name=dataset.name,
        )


def tasks(scan: Scan) -> list[Scan]:
    """The scan cut into tasks of bounded bytes, in offset order."""
    return [] if scan.selection.is_empty else reading_tasks(scan)


def task_rows(task: Scan, fitting: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one task in exactly the types that Spark expects: it compares them before it takes any."""
    for batch in task_batches(task):
        yield batch if batch.schema.equals(fitting) else batch.cast(fitting)


def _without_system(scan: Scan) -> tuple[str, ...]:
    reserved = scan.layout.vocab.reserved
    return tuple(name for name in scan.columns if name not in reserved)
