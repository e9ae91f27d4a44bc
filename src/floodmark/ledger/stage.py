"""Staging: whatever the user handed over becomes parts, counted and with checked columns, before it gets offsets."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.engine import run, run_here
from floodmark.ledger.conform import check_columns
from floodmark.ledger.incoming import Batches, Files, Frame, Incoming, SparkFrame
from floodmark.ledger.layout import Layout
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import Part, parquet_parts, parquet_schema, table_parts
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.spark_types import arrow_schema
from floodmark.ledger.text_files import TextFile, guess_schema, stage_text, write_parquet
from floodmark.storage.errors import StorageError

_log = logging.getLogger(__name__)

HERE_BYTES = 64 << 20
"""Files smaller than this together are read by this process: starting Spark would take longer."""

FEW_CORES = 4
"""So many cores of this machine are kept busy by threads of one Python process."""

_QUICK_PARQUET = {
    "compression": "uncompressed",
    "parquet.enable.dictionary": "false",
    "parquet.block.size": str(32 << 20),
    "parquet.page.write-checksum.enabled": "false",
    "parquet.column.statistics.enabled": "false",
    "parquet.size.statistics.enabled": "false",
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",  # no .crc file beside each file
    "fs.file.impl.disable.cache": "true",
}
"""How Spark writes files that are read once, a moment later, and thrown away."""


@dataclass(frozen=True)
class Staged:
    """Parts ready to be finalised, and whether that is work for Spark or for this process."""

    parts: list[Part]
    run: Callable[..., list[Any]]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def incoming_schema(data: Incoming) -> pa.Schema:
    """The columns of the data, from as little of it as possible."""
    match data:
        case Frame(table):
            return table.schema
        case Batches(reader):
            return reader.schema
        case SparkFrame(frame):
            return arrow_schema(frame.schema)
        case Files(paths, "parquet"):
            return parquet_schema(str(paths[0]))
        case Files(paths, format_):
            guesses = (guess_schema(path, format_) for path in paths)
            return next((schema for schema in guesses if len(schema)), pa.schema([]))


def stage(
    data: Incoming,
    layout: Layout,
    folder: Path,
    objects: DatasetObjects,
    runtime: Runtime,
    row_group_size: int | None = None,
) -> Staged:
    """The parts of the data. Columns are checked first; values when the parts are finalised."""
    match data:
        case Frame(table):
            check_columns(table.schema, layout, "the data")
            return Staged(list(table_parts(table, row_group_size)), here())
        case Batches(reader):
            check_columns(reader.schema, layout, "the data")
            paths = [str(p) for p in write_parquet(iter(reader), folder)]
            return Staged(list(parquet_parts(paths, origin="the data")), here())
        case SparkFrame(frame):
            check_columns(arrow_schema(frame.schema), layout, "the data")
            return Staged(_stage_spark(frame, folder, objects), _beside_spark(runtime))
        case Files(paths, "parquet"):
            for path in paths:
                check_columns(parquet_schema(str(path)), layout, str(path))
            return Staged(list(parquet_parts([str(p.absolute()) for p in paths])), _runner(paths, runtime))
        case Files(paths, format_):
            tasks = [TextFile(path.absolute(), format_, layout, folder) for path in paths]
            runner = _runner(paths, runtime)
            parts = [part for staged in runner(tasks, stage_text) for part in staged]
            return Staged(parts, runner)


def _runner(paths: Sequence[Path], runtime: Runtime) -> Callable[..., list[Any]]:
    if sum(path.stat().st_size for path in paths) < HERE_BYTES:
        return here()
    return partial(run, session=runtime.session)


def _beside_spark(runtime: Runtime) -> Callable[..., list[Any]]:
    """Spark's tasks, unless it has but few cores and those are ours: then threads do the same, with less to hand over.

    Measured on 2 cores: 4.5 s against 5.6 s for the tasks of 10M rows. With many cores, Python's lock would show.
    """
    cores = runtime.session.local_cores()
    if cores is not None and cores <= FEW_CORES:
        return partial(run_here, threads=cores)
    return partial(run, session=runtime.session)


def here() -> Callable[..., list[Any]]:
    """Threads of this process."""
    return partial(run_here, threads=os.cpu_count() or 1)


def _stage_spark(frame: Any, folder: Path, objects: DatasetObjects) -> list[Part]:
    """Let Spark compute its frame once, into files that the finalising tasks can read.

    On a local store Spark writes Parquet itself, which is faster than handing every row to Python. A remote store is
    out of reach for a plain PySpark, so there the tasks write and upload.
    """
    if objects.is_local:
        target = folder / f"spark-{uuid.uuid4().hex}"
        frame.write.options(**_QUICK_PARQUET).parquet(target.absolute().as_uri())
        paths = sorted(str(p) for p in target.iterdir() if p.name.startswith("part-"))
        return list(parquet_parts(paths, origin="the data"))
    prefix = f"{objects.folder}/staging/{folder.name}"
    rows = frame.mapInArrow(partial(_upload, objects, prefix), "key string").collect()
    return list(parquet_parts(sorted(row["key"] for row in rows), objects.store, origin="the data"))


def _upload(objects: DatasetObjects, prefix: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    keys = []
    paths = list(write_parquet(batches, objects.store.staging()))
    for i, path in enumerate(paths):
        key = f"{prefix}/{partition:06d}-{i:04d}-{path.name}"
        objects.store.put_file(key, path)
        keys.append(key)
    yield pa.RecordBatch.from_pydict({"key": keys}, schema=pa.schema([("key", pa.string())]))


def discard_remote(objects: DatasetObjects, folder: Path) -> None:
    """Remove what a write staged in a remote store; a failure to do so says nothing about the write."""
    if objects.is_local:
        return
    prefix = f"{objects.folder}/staging/{folder.name}"
    try:
        for info in list(objects.store.list(prefix)):
            objects.store.delete(info.key)
    except StorageError as error:
        _log.warning("unfinished files may be left under %s (%s)", prefix, error)
