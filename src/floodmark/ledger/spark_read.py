"""Reading through Spark: its own Parquet reader for whole files, reading tasks for everything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.engine.frames import make_empty_frame
from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import Selection
from floodmark.ledger.spark_mask import alive_filter, masked_stretches, total_bytes, unmasked
from floodmark.ledger.spark_types import spark_ready, spark_schema
from floodmark.storage.slices import ROW_GROUP_ROWS

NATIVE_SLICES = 1000
"""Spark lists every file that it reads; past this many, reading tasks are quicker."""

MASK_BYTES = 256 << 20
"""Masks travel with Spark's tasks; past this much (two billion records), reading tasks carry only their own dead."""

_VERIFY_PAGES = ("parquet.page.verify-checksum.enabled", "true")
"""Folded files have checksums in their pages; slices have none, which costs nothing."""

BATCH_ROWS = 1 << 14
"""How many records Spark is handed at once: what it takes over should still be in the processor's cache."""

TASK_BYTES = 128 << 20
TASK_SLICES = 500

LEAST_BYTES = 8 << 20
"""Below this, the work of a task is no more than the trouble of starting it."""

TASKS = 2 * pa.cpu_count()
"""As many tasks there are at least where files are large enough, so that no core waits long for the last one."""


def spark_frame(scan: Scan, spark: Any) -> Any:
    """The records of a scan as a Spark frame, in no particular order."""
    if scan.selection.is_empty:
        return make_empty_frame(spark, spark_schema(scan.schema))
    by_tasks = scan.needs_beside() or not scan.objects.is_local or len(scan.selection.files) > NATIVE_SLICES
    if by_tasks or any(pa.types.is_time(t) for t in scan.layout.data.types):  # Spark's reader has no times of day
        return ordered_frame(scan, spark)
    stretches = masked_stretches(scan.selection)
    if total_bytes(stretches) > MASK_BYTES:
        return ordered_frame(scan, spark)
    frames = [_native(scan, stretch, spark).where(alive_filter(scan, stretch, spark)) for stretch in stretches]
    if not (clean := unmasked(scan.selection)).is_empty:
        frames.append(_native(scan, clean, spark))
    return reduce(lambda a, b: a.unionAll(b), [f.select(*[f[_quoted(name)] for name in scan.columns]) for f in frames])


def _native(scan: Scan, selection: Selection, spark: Any) -> Any:
    paths = [scan.objects.store.local_path(f.key) for f in selection.files]
    reader = spark.read.schema(spark_schema(scan.layout.read_schema)).option(*_VERIFY_PAGES)
    frame = reader.parquet(*[path.absolute().as_uri() for path in paths if path is not None])
    if not selection.is_whole:
        offset = frame[_quoted(scan.layout.vocab.offset)]
        frame = frame.where((offset >= selection.start) & (offset < selection.end))
    return frame


def ordered_frame(scan: Scan, spark: Any) -> Any:
    """The records of a scan as a Spark frame in offset order: each task reads the next stretch of files."""
    if scan.selection.is_empty:
        return make_empty_frame(spark, spark_schema(scan.schema))
    tasks = reading_tasks(scan)
    frame = spark.range(0, len(tasks), 1, len(tasks))
    return frame.mapInArrow(partial(_read_tasks, tasks), spark_schema(scan.schema))


def reading_tasks(scan: Scan) -> list[Scan]:
    """The scan cut into tasks of bounded size, in offset order."""
    return [replace(scan, selection=stretch) for stretch in _stretches(scan.selection)]


def task_batches(task: Scan) -> Iterator[pa.RecordBatch]:
    """The records of one task in types and portions that Spark takes."""
    ready = spark_ready(task.schema)
    with task.readable():
        for records in task.batches():
            fitting = records.cast(ready)
            for first in range(0, fitting.num_rows, BATCH_ROWS):
                yield fitting.slice(first, BATCH_ROWS)


def _read_tasks(tasks: list[Scan], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for i in batch.column(0).to_pylist():
            yield from task_batches(tasks[i])


def _stretches(selection: Selection) -> list[Selection]:
    """The selection cut into tasks of bounded size, between files and in large ones between row groups."""
    total = sum(f.size for f in selection.files)
    most = min(TASK_BYTES, max(LEAST_BYTES, total // TASKS))
    return [stretch for part in _groups(selection, most) for stretch in _cut(part, most)]


def _groups(selection: Selection, most: int) -> Iterator[Selection]:
    """The selection cut at files; at least one file each."""
    sizes = np.cumsum([f.size for f in selection.files])
    first, done = 0, 0
    while first < len(selection.files):
        last = int(np.searchsorted(sizes, done + most, side="right"))
        last = min(max(last, first + 1), first + TASK_SLICES, len(selection.files))
        yield selection.part(first, last)
        first, done = last, int(sizes[last - 1])


def _cut(part: Selection, most: int) -> Iterator[Selection]:
    """One large file cut where its row groups end.

    Not one from which records were left out: how many of the dead are in a part of it, nobody knows.
    """
    file = part.files[0]
    count = -(-file.size // most)
    if len(part.files) > 1 or count < 2 or file.absent:
        yield part
        return
    step = -(-file.rows // count // ROW_GROUP_ROWS) * ROW_GROUP_ROWS
    for start in range(file.start, file.end, step):
        low, high = max(start, part.start), min(start + step, part.end)
        if low < high:
            yield part.of(part.files, low, high)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
