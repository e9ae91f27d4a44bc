"""Stage incoming data: check its columns and cut it into counted parts, before the rows get offsets."""

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
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.engine.run import run_in_threads, run_on_spark
from floodmark.engine.session import Runtime
from floodmark.errors import StorageError, TypeMismatch
from floodmark.ledger.casting import check_columns
from floodmark.ledger.data_input import FileData, Format, Incoming, SparkData, StreamData, TableData
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import (
    PART_BYTES,
    ParquetPart,
    Part,
    parquet_parts,
    parquet_schema,
    table_parts,
    with_constants,
)
from floodmark.ledger.schema import Layout, quote_name
from floodmark.ledger.text_files import guess_columns, guess_hive_types, hive_row, read_text
from floodmark.ledger.types import arrow_schema, optional_columns, spark_schema
from floodmark.storage.scratch import explain_write_errors

_log = logging.getLogger(__name__)

HERE_BYTES = 64 << 20
"""Files with less than this in total are read by this process: to start Spark would take longer."""

FEW_CORES = 4
"""Up to this many cores, threads of one Python process are faster than Spark tasks."""

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
"""Options for Spark to write temporary files that are read once."""


@dataclass(frozen=True)
class StagedParts:
    """Parts ready to be finalised, and the function that runs the tasks: with Spark or in this process."""

    parts: list[Part]
    run: Callable[..., list[Any]]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def incoming_schema(data: Incoming, key: Sequence[str] = ()) -> pa.Schema:
    """The columns of the data, of which `key` identify its rows. Reads all values of text files, to find types."""
    match data:
        case TableData(table):
            return table.schema
        case StreamData(reader):
            return reader.schema
        case SparkData(frame):
            return arrow_schema(frame.schema)
        case FileData(paths, "parquet"):
            return _with_fields(parquet_schema(str(paths[0])), guess_hive_types(data, key))
        case FileData():
            return _with_fields(guess_columns(data, key), guess_hive_types(data, key))


def _with_fields(schema: pa.Schema, added: pa.Schema) -> pa.Schema:
    """The schema with the fields that it lacks; an empty one stays empty."""
    known = set(schema.names)
    return pa.schema([*schema, *(f for f in added if f.name not in known)]) if len(schema) else schema


def stage(
    data: Incoming,
    layout: Layout,
    folder: Path,
    objects: DatasetObjects,
    runtime: Runtime,
    row_group_size: int | None = None,
) -> StagedParts:
    """Cut the data into parts. Columns are checked here, values later when the parts are finalised."""
    match data:
        case TableData(table):
            check_columns(table.schema, layout, "the data")
            return StagedParts(list(table_parts(table, row_group_size)), thread_runner())
        case StreamData(reader):
            check_columns(reader.schema, layout, "the data")
            paths = [str(p) for p in write_parquet(iter(reader), folder)]
            return StagedParts(list(parquet_parts(paths, origin="the data")), thread_runner())
        case SparkData(frame):
            check_columns(arrow_schema(frame.schema), layout, "the data")
            parts = _stage_spark(with_typed_columns(frame, layout), folder, objects)
            return StagedParts(parts, _runner_after_spark(runtime))
        case FileData(paths, "parquet", hive):
            added = [hive_row(path, values, layout) for path, values in zip(paths, hive, strict=True)]
            for path, row in zip(paths, added, strict=True):
                check_columns(_with_fields(parquet_schema(str(path)), row.schema), layout, str(path))
            names = [str(path.absolute()) for path in paths]
            return StagedParts(list(parquet_parts(names, constants=added)), _runner(paths, runtime))
        case FileData(paths, format_, hive):
            tasks = [
                TextFile(path.absolute(), format_, layout, folder, hive_row(path, values, layout))
                for path, values in zip(paths, hive, strict=True)
            ]
            runner = _runner(paths, runtime)
            parts = [part for staged in runner(tasks, stage_text) for part in staged]
            return StagedParts(parts, runner)


def _runner(paths: Sequence[Path], runtime: Runtime) -> Callable[..., list[Any]]:
    if sum(path.stat().st_size for path in paths) < HERE_BYTES:
        return thread_runner()
    return partial(run_on_spark, session=runtime.session)


def _runner_after_spark(runtime: Runtime) -> Callable[..., list[Any]]:
    """Run tasks with Spark, or with threads if Spark has few cores and they are on this machine.

    Threads need no data transfer. On 2 cores, 10M rows took 4.5 s with threads and 5.6 s with Spark's tasks. With many
    cores, threads would wait for Python's global lock.
    """
    cores = runtime.session.local_cores()
    if cores is not None and cores <= FEW_CORES:
        return partial(run_in_threads, threads=cores)
    return partial(run_on_spark, session=runtime.session)


def thread_runner() -> Callable[..., list[Any]]:
    """Run tasks with threads of this process."""
    return partial(run_in_threads, threads=os.cpu_count() or 1)


def with_typed_columns(frame: Any, layout: Layout) -> Any:
    """The frame with the dataset's types for columns of nulls without a type, which Spark cannot write."""
    from pyspark.sql import functions
    from pyspark.sql.types import NullType

    if not any(isinstance(field.dataType, NullType) for field in frame.schema.fields):
        return frame
    declared = {field.name: field.dataType for field in spark_schema(layout.data).fields}
    columns = []
    for field in frame.schema.fields:
        column = functions.col(quote_name(field.name))
        if not isinstance(field.dataType, NullType):
            columns.append(column)
        elif field.name in declared:  # others have no values, and the dataset need not have them
            columns.append(column.cast(declared[field.name]).alias(field.name))
    return frame.select(*columns)


def _stage_spark(frame: Any, folder: Path, objects: DatasetObjects) -> list[Part]:
    """Let Spark compute its frame once, into files that the finalising tasks can read.

    With a local store, Spark writes Parquet itself, which is faster than sending every row to Python. Plain PySpark
    cannot write to a remote store, so there Python tasks write and upload the files.
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
    """Remove the files that a write staged in a remote store. An error is only logged: the write itself is complete."""
    if objects.is_local:
        return
    prefix = f"{objects.folder}/staging/{folder.name}"
    try:
        for info in list(objects.store.list(prefix)):
            objects.store.delete(info.key)
    except StorageError as error:
        _log.warning("unfinished files may be left under %s (%s)", prefix, error)


# CSV and JSON files


@dataclass(frozen=True)
class TextFile:
    """One CSV or JSON file to be staged."""

    path: Path
    format: Format
    layout: Layout
    folder: Path
    constants: pa.RecordBatch


def stage_text(file: TextFile) -> list[ParquetPart]:
    """Parse one file into Parquet parts without system columns."""
    batches = read_text(file.path, file.format, file.layout)
    if file.constants.num_columns:
        batches = (_with_folder_values(batch, file) for batch in batches if batch.num_rows)
    paths = [str(p) for p in write_parquet(batches, file.folder)]
    return list(parquet_parts(paths, origin=str(file.path)))


def _with_folder_values(batch: pa.RecordBatch, file: TextFile) -> pa.RecordBatch:
    values = file.constants
    table = with_constants(pa.Table.from_batches([batch]), values)
    if file.format == "json":  # its rows have all columns of the dataset, with null for absent ones
        for name in values.schema.names:
            filled = pc.coalesce(table.column(name), values.column(name)[0])
            table = table.set_column(table.schema.get_field_index(name), name, filled)
    return table.combine_chunks().to_batches()[0]


def _parquet_columns(schema: pa.Schema) -> pa.Schema:
    """The columns of a staged file. Parquet has neither seconds nor dates with a time of day, and would change some."""
    return optional_columns(pa.schema([f.with_type(_parquet_type(f.type)) for f in schema]))


def _parquet_type(t: Any) -> pa.DataType:
    if pa.types.is_date64(t):
        return pa.date32()
    return pa.timestamp("ms", t.tz) if pa.types.is_timestamp(t) and t.unit == "s" else t


def _cast_for_parquet(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    try:
        return batch.cast(columns)
    except pa.ArrowInvalid as error:
        raise TypeMismatch(
            f"a time of the data does not fit: {error}", hint="cast dates to date32, and times to timestamp[us]"
        ) from error


def write_parquet(batches: Iterator[pa.RecordBatch], folder: Path) -> Iterator[Path]:
    """Write batches to Parquet files of bounded size, which are fast to write and read."""
    writer: Any = None
    size = 0
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if writer is None:
                path = folder / f"stage-{uuid.uuid4().hex}"
                columns = _parquet_columns(batch.schema)
                with explain_write_errors("staged rows", folder):
                    writer = pq.ParquetWriter(path, columns, compression="none", use_dictionary=False)
                size = 0
                yield path
            rows = _cast_for_parquet(batch, columns)
            with explain_write_errors("staged rows", folder):
                writer.write_batch(rows)
            size += batch.nbytes
            if size >= PART_BYTES:
                with explain_write_errors("staged rows", folder):
                    writer.close()
                writer = None
    finally:
        if writer is not None:
            with explain_write_errors("staged rows", folder):
                writer.close()
