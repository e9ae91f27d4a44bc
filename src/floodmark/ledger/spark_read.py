"""Reading through Spark: its own Parquet reader for whole files, reading tasks for everything else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import Selection
from floodmark.ledger.spark_mask import alive_filter, masked_stretches, total_bytes, unmasked
from floodmark.ledger.spark_types import spark_ready, spark_schema

NATIVE_SLICES = 1000
"""Spark lists every file that it reads; past this many, reading tasks are quicker."""

MASK_BYTES = 256 << 20
"""Masks travel with Spark's tasks; past this much (two billion records), reading tasks carry only their own dead."""

_VERIFY_PAGES = ("parquet.page.verify-checksum.enabled", "true")
"""Folded files have checksums in their pages; slices have none, which costs nothing."""

TASK_BYTES = 128 << 20
TASK_SLICES = 500


def spark_frame(scan: Scan, spark: Any) -> Any:
    """The records of a scan as a Spark frame, in no particular order."""
    if scan.selection.is_empty:
        return spark.createDataFrame([], spark_schema(scan.schema))
    by_tasks = not scan.objects.is_local or len(scan.selection.files) > NATIVE_SLICES
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
        return spark.createDataFrame([], spark_schema(scan.schema))
    stretches = _stretches(scan.selection)
    frame = spark.range(0, len(stretches), 1, len(stretches))
    read = partial(_read_stretches, [Scan(scan.objects, scan.layout, s, scan.columns) for s in stretches])
    return frame.mapInArrow(read, spark_schema(scan.schema))


def _read_stretches(scans: list[Scan], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for i in batch.column(0).to_pylist():
            ready = spark_ready(scans[i].schema)
            with scans[i].readable():
                for records in scans[i].batches():
                    yield records.cast(ready)


def _stretches(selection: Selection) -> list[Selection]:
    """The selection cut at files into tasks of bounded size; at least one file each."""
    sizes = np.cumsum([f.size for f in selection.files])
    cuts, done = [0], 0
    while cuts[-1] < len(selection.files):
        first = cuts[-1]
        last = int(np.searchsorted(sizes, done + TASK_BYTES, side="right"))
        last = min(max(last, first + 1), first + TASK_SLICES, len(selection.files))
        cuts.append(last)
        done = int(sizes[last - 1])
    return [selection.part(first, last) for first, last in pairwise(cuts)]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
