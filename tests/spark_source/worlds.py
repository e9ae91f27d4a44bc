"""What the tests of Spark's front door build their worlds from: Spark's classes, called as Spark calls them."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from floodmark import Lake
from floodmark.spark_source.source import FloodmarkSource, StreamReader


def numbers(start: int, end: int) -> pa.Table:
    """The rows start, …, end - 1."""
    return pa.table({"n": pa.array(range(start, end), pa.int64())})


def source(lake: Lake, dataset: str, **options: Any) -> FloodmarkSource:
    """The source that Spark makes of a format, its options and a name to load."""
    given = CaseInsensitiveDict()
    for name, value in {"lake": lake.store.url, "path": dataset, **options}.items():
        given[name] = str(value)
    return FloodmarkSource(given)


def load(given: FloodmarkSource, schema: StructType | None = None) -> pa.Table:
    """All rows that Spark would read; everything travels as it does between Spark's processes."""
    columns = given.schema() if schema is None else schema
    reader = given.reader(columns)
    task_reader = pickle.loads(pickle.dumps(reader))
    batches = [b for task in reader.partitions() for b in task_reader.read(pickle.loads(pickle.dumps(task)))]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def stream(lake: Lake, dataset: str, schema: StructType | None = None, **options: Any) -> StreamReader:
    """The reader of a stream."""
    given = source(lake, dataset, **options)
    reader = given.streamReader(given.schema() if schema is None else schema)
    assert isinstance(reader, StreamReader)
    return reader


def next_batch(reader: StreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], pa.Table]:
    """What Spark does for one micro-batch: asks how far, plans, and reads."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return end, between(reader, start, end)


def between(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
    batches = [b for task in reader.partitions(start, end) for b in reader.read(pickle.loads(pickle.dumps(task)))]
    return pa.Table.from_batches(batches) if batches else pa.table({})


ALL = ReadAllAvailable()


def most(rows: int) -> ReadMaxRows:
    return ReadMaxRows(rows)
