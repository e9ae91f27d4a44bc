"""The classes that Spark calls, and `register`. Only this module imports Spark at import time."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from floodmark.errors import BadOption, FloodmarkError
from floodmark.lake import Lake
from floodmark.ledger.scan import Scan
from floodmark.ledger.types import arrow_schema, spark_schema
from floodmark.spark_source.options import (
    DatasetAddress,
    Delivery,
    RowsOptions,
    SourceOptions,
    StreamOptions,
    stored_table_options,
    table_options,
    with_table_options,
)
from floodmark.spark_source.reader import (
    FollowedDataset,
    StreamPosition,
    check_operations_shown,
    cut_scan,
    narrow_scan,
    open_dataset,
    parse_position,
    rows_scan,
    task_rows,
)
from floodmark.spark_source.writer import (
    TaskFile,
    batch_delivery,
    check_has_batches,
    commit_task_files,
    open_for_writing,
    query_of_checkpoint,
    remove_task_files,
    write_task_files,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class ScanPartition(InputPartition):
    """The scan of one Spark task."""

    scan: Scan


@dataclass
class TaskFiles(WriterCommitMessage):
    """The files that one Spark task wrote for the commit."""

    files: tuple[TaskFile, ...] = field(default=())


P = ParamSpec("P")
R = TypeVar("R")


def brief_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Let Spark show our errors without tracebacks, which would hide the message, in a process that Spark started."""

    @functools.wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> R:
        try:
            return method(*args, **options)
        except FloodmarkError:
            started = getattr(sys.modules.get("__main__"), "__spec__", None)
            if started is not None and started.name.startswith("pyspark."):
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the process ends after this error
            raise

    return call


class FloodmarkSource(DataSource):
    """The Spark data source "floodmark"."""

    lake: str | None = None
    """The default lake, used without the `lake` option."""

    snapshot_end: int | None = None
    """The end of the records when Spark requested the columns, so that all reads of a frame see the same rows."""

    @classmethod
    def name(cls) -> str:
        return "floodmark"

    @brief_errors
    def schema(self) -> StructType:
        of_table = table_options(self.options, self.name())
        options = self._options() if of_table is None else SourceOptions(of_table, self.lake)
        options.check()
        dataset = open_dataset(options.place())
        self.snapshot_end = dataset.snapshot().next_offset
        scan = rows_scan(dataset, RowsOptions(None, options.changes, options.system), self.snapshot_end)
        columns: StructType = spark_schema(scan.schema)
        return columns if of_table is None else with_table_options(columns, of_table)

    @brief_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options(schema)
        return BatchReader(options.place(), options.rows(), schema, self.snapshot_end)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        return StreamReader(self._options(schema), schema)

    @brief_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = self._writing(overwrite)
        return BatchWriter(options.place(), arrow_schema(schema), options.delivery())

    @brief_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = self._writing(overwrite)
        return StreamWriter(options.place(), arrow_schema(schema), options.checkpoint())

    def _options(self, schema: StructType | None = None) -> SourceOptions:
        """The given options, and those of CREATE TABLE if Spark reads a table."""
        given = SourceOptions(self.options, self.lake)
        stored = {} if schema is None or given.names_dataset else stored_table_options(schema)
        return SourceOptions({**stored, **self.options}, self.lake) if stored else given

    def _writing(self, overwrite: bool) -> SourceOptions:
        """The options of a write."""
        if overwrite:
            raise BadOption(
                "a dataset is a ledger and cannot be overwritten",
                hint='use the append mode; to replace all rows by each write, create the dataset with merge="snapshot"',
            )
        options = self._options()
        if not options.names_dataset:
            raise BadOption(
                "no dataset is given: Spark does not tell a Python source into which table it inserts",
                hint='write the frame: spark.sql("select …").write.format("floodmark").mode("append").save("trips")',
                option="path",
            )
        return options


class BatchReader(DataSourceReader):
    """Reads the rows of a dataset, or the records of an interval."""

    def __init__(self, place: DatasetAddress, rows: RowsOptions, schema: StructType, snapshot_end: int | None) -> None:
        self._place, self._rows, self._schema, self._snapshot_end = place, rows, schema, snapshot_end

    @brief_errors
    def partitions(self) -> Sequence[InputPartition]:
        return [ScanPartition(task) for task in cut_scan(self._scan())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._schema)

    def _scan(self) -> Scan:
        dataset = open_dataset(self._place)
        scan = narrow_scan(rows_scan(dataset, self._rows, self._snapshot_end), self._schema, dataset)
        if self._rows.changes is not None:
            check_operations_shown(dataset, scan.columns)
        return scan


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams the records of a dataset.

    Options are parsed when they are needed: Spark hides an error that is raised while it creates a reader.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._target: StreamPosition | None = None

    @cached_property
    def _place(self) -> DatasetAddress:
        return self._options.place()

    @cached_property
    def _stream(self) -> StreamOptions:
        return self._options.stream()

    @cached_property
    def _following(self) -> FollowedDataset:
        return FollowedDataset(open_dataset(self._place))

    @brief_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's names, here and below
        return self._following.initial(self._stream.starting).to_json()

    @brief_errors
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._stream.most is None else ReadMaxRows(self._stream.most)

    @brief_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._following.head()

    @brief_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        position = parse_position(start, self._place.dataset)
        return self._following.next_end(position, _max_rows(limit), self._target).to_json()

    @brief_errors
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._following.head().to_json()

    @brief_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = (parse_position(at, self._place.dataset) for at in (start, end))
        return [ScanPartition(task) for task in self._following.between(first, last, self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._schema)


class BatchWriter(DataSourceArrowWriter):
    """Writes rows to a dataset in one commit after all tasks have finished."""

    def __init__(self, place: DatasetAddress, schema: pa.Schema, delivery: Delivery | None) -> None:
        self._place, self._schema, self._delivery = place, schema, delivery
        open_for_writing(place).snapshot()  # raises for an unknown dataset before any task runs

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        return _write(self._place, self._schema, iterator)

    @brief_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_task_files(open_for_writing(self._place), _task_files(messages), self._schema, self._delivery)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._place, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a streaming query exactly once."""

    def __init__(self, place: DatasetAddress, schema: pa.Schema, checkpoint: str) -> None:
        self._place, self._schema, self._checkpoint = place, schema, checkpoint
        open_for_writing(place).snapshot()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        return _write(self._place, self._schema, iterator)

    @brief_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        delivery, dataset = (
            batch_delivery(query_of_checkpoint(self._checkpoint), batchId),
            open_for_writing(self._place),
        )
        check_has_batches(dataset)
        commit_task_files(dataset, _task_files(messages), self._schema, delivery)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        _abort(self._place, messages)


def _write(place: DatasetAddress, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> TaskFiles:
    return TaskFiles(write_task_files(open_for_writing(place).snapshot().objects, batches, schema))


def _abort(place: DatasetAddress, messages: list[WriterCommitMessage | None]) -> None:
    remove_task_files(open_for_writing(place).snapshot().objects.store, _task_files(messages))


def _task_files(messages: list[WriterCommitMessage | None]) -> list[TaskFile]:
    return [file for message in messages if isinstance(message, TaskFiles) for file in message.files]


def _read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, ScanPartition):  # if there are no tasks, Spark passes its own partition
        yield from task_rows(partition.scan, to_arrow_schema(schema, timezone="UTC"))


def _max_rows(limit: ReadLimit) -> int | None:
    match limit:
        case ReadAllAvailable():
            return None
        case ReadMaxRows(max_rows=rows):
            return rows
    raise BadOption(f"the limit {limit} is not supported", hint="use maxRecordsPerTrigger")


def register(spark: SparkSession, lake: Lake | str | Path | None = None) -> None:
    """Let a Spark session read and write datasets by `format("floodmark")`.

    `lake` is the default lake. The `lake` option of a reader or writer overrides it.
    """
    _use_this_python(spark)
    if lake is None:
        spark.dataSource.register(FloodmarkSource)
    else:
        store = (lake if isinstance(lake, Lake) else Lake(lake)).store
        spark.dataSource.register(type("FloodmarkSource", (FloodmarkSource,), {"lake": store.url}))


def _use_this_python(spark: SparkSession) -> None:
    """Let the Python processes of a local session be like this one, unless the user chose another Python.

    Without PYSPARK_PYTHON, Spark starts the first `python3` of the PATH, which may not have Floodmark.
    """
    context = getattr(spark, "sparkContext", None) if type(spark).__module__ == "pyspark.sql.session" else None
    if context is None or not context.master.startswith("local"):
        return  # Spark Connect has no context, and on a cluster this interpreter's path may not exist
    chosen = ("spark.pyspark.python", "spark.pyspark.driver.python")
    if "PYSPARK_PYTHON" not in os.environ and not any(context.getConf().get(name) for name in chosen):
        context.pythonExec = sys.executable
