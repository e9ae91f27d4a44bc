"""Reading through Spark: its own Parquet reader for whole files, reading tasks for everything else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import Selection, select
from floodmark.ledger.spark_types import spark_ready, spark_schema

NATIVE_SLICES = 1000
"""Spark lists every file that it reads; past this many, reading tasks are quicker."""

TASK_BYTES = 128 << 20
TASK_SLICES = 500


def spark_frame(scan: Scan, spark: Any) -> Any:
    """The records of a scan as a Spark frame, in no particular order."""
    if scan.selection.rows == 0:
        return spark.createDataFrame([], spark_schema(scan.schema))
    by_tasks = not scan.objects.is_local or scan.selection.slices.num_rows > NATIVE_SLICES
    if by_tasks or any(pa.types.is_time(t) for t in scan.layout.data.types):  # Spark's reader has no times of day
        return ordered_frame(scan, spark)
    return _native(scan, spark)


def _native(scan: Scan, spark: Any) -> Any:
    hashes = scan.selection.physical_hashes()
    paths = [scan.objects.store.local_path(scan.objects.data_key(h)) for h in hashes]
    frame = spark.read.schema(spark_schema(scan.layout.read_schema)).parquet(
        *[path.absolute().as_uri() for path in paths if path is not None]
    )
    if not scan.selection.is_whole:
        offset = frame[scan.layout.vocab.offset]
        frame = frame.where((offset >= scan.selection.start) & (offset < scan.selection.end))
    return frame.select(*[frame[_quoted(name)] for name in scan.columns])


def ordered_frame(scan: Scan, spark: Any) -> Any:
    """The records of a scan as a Spark frame in offset order: each task reads the next stretch of slices."""
    if scan.selection.rows == 0:
        return spark.createDataFrame([], spark_schema(scan.schema))
    stretches = _stretches(scan.selection)
    frame = spark.range(0, len(stretches), 1, len(stretches))
    read = partial(_read_stretches, [Scan(scan.objects, scan.layout, s, scan.columns) for s in stretches])
    return frame.mapInArrow(read, spark_schema(scan.schema))


def _read_stretches(scans: list[Scan], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for i in batch.column(0).to_pylist():
            ready = spark_ready(scans[i].schema)
            for records in scans[i].scanner().to_batches():
                yield records.cast(ready)


def _stretches(selection: Selection) -> list[Selection]:
    """The selection cut at slices into tasks of bounded size; at least one slice each."""
    slices = selection.slices
    sizes = np.cumsum(slices.column("size").to_numpy())
    cuts, done = [0], 0
    while cuts[-1] < slices.num_rows:
        first = cuts[-1]
        last = int(np.searchsorted(sizes, done + TASK_BYTES, side="right"))
        last = min(max(last, first + 1), first + TASK_SLICES, slices.num_rows)
        cuts.append(last)
        done = int(sizes[last - 1])
    stretches = []
    for first, last in pairwise(cuts):
        start = max(selection.start, slices.column("start")[first].as_py())
        end = min(selection.end, slices.column("end")[last - 1].as_py())
        stretches.append(select(slices, start, end))
    return stretches


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
