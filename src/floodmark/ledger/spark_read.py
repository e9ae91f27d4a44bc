"""Read records as Spark frames: with Spark's Parquet reader where possible, else with our own reading tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.engine.session import make_empty_frame, make_frame
from floodmark.ledger.scan import Scan
from floodmark.ledger.schema import quote_name
from floodmark.ledger.selection import Selection
from floodmark.ledger.types import spark_ready, spark_schema
from floodmark.storage.arrays import I64
from floodmark.storage.parquet import ROW_GROUP_ROWS

NATIVE_SLICES = 1000
"""Spark lists every file that it reads. With more files than this, reading tasks are faster."""

MASK_BYTES = 256 << 20
"""The most bytes of masks (two billion records) to send with Spark's tasks. A reading task gets only its own dead."""

_VERIFY_PAGES = ("parquet.page.verify-checksum.enabled", "true")

BATCH_ROWS = 1 << 14
"""Records per batch for Spark: a batch should still be in the processor's cache when Spark reads it."""

TASK_BYTES = 128 << 20
TASK_SLICES = 500

LEAST_BYTES = 8 << 20
"""With less data than this, a task takes less time than its start."""

LEAST_TASKS = 2 * pa.cpu_count()
"""The least number of tasks if files are large enough, so that no core waits long for the last task."""


def spark_frame(scan: Scan, spark: Any) -> Any:
    """The records of a scan as a Spark frame, in no particular order."""
    if scan.selection.is_empty:
        return make_empty_frame(spark, spark_schema(scan.schema))
    by_tasks = scan.needs_side_columns() or not scan.objects.is_local or len(scan.selection.files) > NATIVE_SLICES
    if by_tasks or any(pa.types.is_time(t) for t in scan.layout.data.types):  # Spark's reader lacks times of day
        return ordered_frame(scan, spark)
    scan.check_local_files()
    stretches = masked_stretches(scan.selection)
    if bitmap_bytes(stretches) > MASK_BYTES:
        return ordered_frame(scan, spark)
    frames = [_native(scan, stretch, spark).where(live_filter(scan, stretch, spark)) for stretch in stretches]
    if not (clean := without_dead(scan.selection)).is_empty:
        frames.append(_native(scan, clean, spark))
    return reduce(
        lambda a, b: a.unionAll(b), [f.select(*[f[quote_name(name)] for name in scan.columns]) for f in frames]
    )


def _native(scan: Scan, selection: Selection, spark: Any) -> Any:
    paths = [scan.objects.store.local_path(f.key) for f in selection.files]
    reader = spark.read.schema(spark_schema(scan.layout.read_schema)).option(*_VERIFY_PAGES)
    frame = reader.parquet(*[path.absolute().as_uri() for path in paths if path is not None])
    if not selection.is_whole:
        offset = frame[quote_name(scan.layout.vocab.offset)]
        frame = frame.where((offset >= selection.start) & (offset < selection.end))
    return frame


def ordered_frame(scan: Scan, spark: Any) -> Any:
    """The records of a scan as a Spark frame in offset order: each task reads the next part of the selection."""
    if scan.selection.is_empty:
        return make_empty_frame(spark, spark_schema(scan.schema))
    tasks = reading_tasks(scan)
    frame = spark.range(0, len(tasks), 1, len(tasks))
    return frame.mapInArrow(partial(_read_tasks, tasks), spark_schema(scan.schema))


def reading_tasks(scan: Scan) -> list[Scan]:
    """The scan cut into tasks of bounded size, in offset order."""
    return [replace(scan, selection=part) for part in _parts(scan.selection)]


def task_batches(task: Scan) -> Iterator[pa.RecordBatch]:
    """The records of one task, in types and batch sizes that suit Spark."""
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


def _parts(selection: Selection) -> list[Selection]:
    """The selection cut into parts of bounded size, between files, and between row groups of large files."""
    total = sum(f.size for f in selection.files)
    most = min(TASK_BYTES, max(LEAST_BYTES, total // LEAST_TASKS))
    return [part for group in _groups(selection, most) for part in _cut(group, most)]


def _groups(selection: Selection, most: int) -> Iterator[Selection]:
    """The selection cut between files; each group has at least one file."""
    sizes = np.cumsum([f.size for f in selection.files])
    first, done = 0, 0
    while first < len(selection.files):
        last = int(np.searchsorted(sizes, done + most, side="right"))
        last = min(max(last, first + 1), first + TASK_SLICES, len(selection.files))
        yield selection.part(first, last)
        first, done = last, int(sizes[last - 1])


def _cut(part: Selection, most: int) -> Iterator[Selection]:
    """Cut one large file where its row groups end.

    A folded file that lacks records is not cut: the number of dead records in a part of it is not known.
    """
    file = part.files[0]
    count = -(-file.size // most)
    if len(part.files) > 1 or count < 2 or file.absent:
        yield part
        return
    stride = -(-file.rows // count // ROW_GROUP_ROWS) * ROW_GROUP_ROWS
    for start in range(file.start, file.end, stride):
        low, high = max(start, part.start), min(start + stride, part.end)
        if low < high:
            yield part.of(part.files, low, high)


# Masks of dead records

STRETCH_OFFSETS = 1 << 28
"""The most offsets that one bitmap spans: 32 MB."""

_BITS = 64


def without_dead(selection: Selection) -> Selection:
    """The part of a selection in files without dead records."""
    clean = tuple(f for f, dead in zip(selection.files, selection.dead_rows.tolist(), strict=True) if dead == 0)
    if not clean:
        return Selection(selection.start, selection.start, ())
    return Selection(max(selection.start, clean[0].start), min(selection.end, clean[-1].end), clean)


def masked_stretches(selection: Selection) -> list[Selection]:
    """The files with dead records, in groups that are close enough for one bitmap each."""
    groups: list[list[int]] = []
    for i in np.flatnonzero(selection.dead_rows).tolist():
        if groups and selection.files[i].end - selection.files[groups[-1][0]].start <= STRETCH_OFFSETS:
            groups[-1].append(i)
        else:
            groups.append([i])
    stretches = []
    for group in groups:
        files = tuple(selection.files[i] for i in group)
        start, end = max(selection.start, files[0].start), min(selection.end, files[-1].end)
        stretches.append(selection.of(files, start, end))
    return stretches


def bitmap_bytes(stretches: list[Selection]) -> int:
    """The total size of the bitmaps of these stretches."""
    return sum((s.end - s.start) // 8 for s in stretches)


def live_filter(scan: Scan, stretch: Selection, spark: Any) -> Any:
    """The condition that keeps the live records of a stretch."""
    from pyspark.sql import functions as F  # noqa: N812 -- the usual alias

    words = make_frame(spark, pa.table({"words": _one_list(bitmap(stretch.dead, stretch.start, stretch.end))}))
    bit = F.col(quote_name(scan.layout.vocab.offset)) - F.lit(stretch.start)
    word = F.get(words.scalar(), F.shiftright(bit, 6).cast("int"))
    dead = F.getbit(word, bit.bitwiseAND(F.lit(_BITS - 1)).cast("int"))
    return F.coalesce(dead, F.lit(0)) == F.lit(0)


def bitmap(dead: I64, start: int, end: int) -> I64:
    """The dead offsets in [start, end) as bits: bit i of word w is the offset start + 64 · w + i."""
    bits = np.zeros(-(-(end - start) // _BITS) * _BITS, np.bool_)
    bits[dead - start] = True
    words: I64 = np.packbits(bits, bitorder="little").view("<i8").astype(np.int64, copy=False)
    return words


def _one_list(words: I64) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(words)], pa.int32()), pa.array(words))


def table_frame(table: pa.Table, spark: Any) -> Any:
    """A table as a Spark frame."""
    # One batch: Spark stops at the first batch without rows and would lose the batches after it.
    ready = table.cast(spark_ready(table.schema)).combine_chunks()
    return make_frame(spark, ready, spark_schema(table.schema))
