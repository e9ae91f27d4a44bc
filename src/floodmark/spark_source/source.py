"""The classes that Spark calls; each only says it in Spark's words. The one module that needs Spark to be imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

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

from floodmark.ledger.scan import Scan
from floodmark.ledger.spark_types import arrow_schema, spark_schema
from floodmark.spark_source.delivering import Left, deliver, discard, leave, open_for_writing
from floodmark.spark_source.errors import SourceError
from floodmark.spark_source.following import Following
from floodmark.spark_source.options import Delivery, Options, Place, Rows, Stream
from floodmark.spark_source.positions import Position, from_json
from floodmark.spark_source.queries import batch_delivery, query_of_checkpoint
from floodmark.spark_source.reading import (
    check_operations_shown,
    narrowed,
    open_dataset,
    rows_scan,
    task_rows,
    tasks,
)


@dataclass
class Task(InputPartition):
    """What one task of Spark's reads."""

    scan: Scan


@dataclass
class Written(WriterCommitMessage):
    """What one task of Spark's left for the commit."""

    files: tuple[Left, ...] = field(default=())


class FloodmarkSource(DataSource):
    """Datasets, by the name "floodmark"."""

    lake: str | None = None
    """Where datasets are if no option says it."""

    pinned: int | None = None
    """The offset after the last record when Spark asked for the columns: all readings of one frame see the same."""

    @classmethod
    def name(cls) -> str:
        return "floodmark"

    def schema(self) -> StructType:
        options = self._options
        options.check_known()
        dataset = open_dataset(options.place())
        self.pinned = dataset.snapshot().next_offset
        scan = rows_scan(dataset, Rows(None, options.changes, options.system), self.pinned)
        columns: StructType = spark_schema(scan.schema)
        return columns

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._options.place(), self._options.rows(), schema, self.pinned)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        return StreamReader(self._options.place(), self._options.stream(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _check_appends(overwrite)
        return BatchWriter(self._options.place(), arrow_schema(schema), self._options.delivery())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        _check_appends(overwrite)
        return StreamWriter(self._options.place(), arrow_schema(schema), self._options.checkpoint())

    @property
    def _options(self) -> Options:
        return Options(self.options, self.lake)


class BatchReader(DataSourceReader):
    """The rows of a dataset, or the records of an interval."""

    def __init__(self, place: Place, rows: Rows, schema: StructType, pinned: int | None) -> None:
        self._place, self._rows, self._schema, self._pinned = place, rows, schema, pinned

    def partitions(self) -> Sequence[InputPartition]:
        return [Task(task) for task in tasks(self._scan())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._schema)

    def _scan(self) -> Scan:
        dataset = open_dataset(self._place)
        scan = narrowed(rows_scan(dataset, self._rows, self._pinned), self._schema, dataset)
        if self._rows.changes is not None:
            check_operations_shown(dataset, scan.columns)
        return scan


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The records of a dataset as they come."""

    def __init__(self, place: Place, stream: Stream, schema: StructType) -> None:
        self._place, self._stream, self._schema = place, stream, schema
        self._target: Position | None = None

    @cached_property
    def _following(self) -> Following:
        return Following(open_dataset(self._place))

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's names, here and below
        return self._following.initial(self._stream.starting).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._stream.most is None else ReadMaxRows(self._stream.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._following.head()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        position = from_json(start, self._place.dataset)
        return self._following.upto(position, _most(limit), self._target).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._following.head().to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = (from_json(at, self._place.dataset) for at in (start, end))
        return [Task(task) for task in self._following.between(first, last, self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._schema)


class BatchWriter(DataSourceArrowWriter):
    """Rows for a dataset: nothing is there before all tasks are done, then everything is."""

    def __init__(self, place: Place, schema: pa.Schema, delivery: Delivery | None) -> None:
        self._place, self._schema, self._delivery = place, schema, delivery
        open_for_writing(place).snapshot()  # an unknown dataset is found before anything is computed

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._place, self._schema, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        deliver(open_for_writing(self._place), _left(messages), self._schema, self._delivery)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._place, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """The same for the batches of a streaming query, each of which is written once."""

    def __init__(self, place: Place, schema: pa.Schema, checkpoint: str) -> None:
        self._place, self._schema, self._checkpoint = place, schema, checkpoint
        open_for_writing(place).snapshot()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._place, self._schema, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        delivery = batch_delivery(query_of_checkpoint(self._checkpoint), batchId)
        deliver(open_for_writing(self._place), _left(messages), self._schema, delivery)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        _abort(self._place, messages)


def _check_appends(overwrite: bool) -> None:
    if overwrite:
        raise SourceError(
            "a dataset is a ledger: what is in it is never overwritten",
            hint='append; a dataset with merge="snapshot" takes each write as the whole of its rows',
        )


def _write(place: Place, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Written:
    return Written(leave(open_for_writing(place).snapshot().objects, batches, schema))


def _abort(place: Place, messages: list[WriterCommitMessage | None]) -> None:
    discard(open_for_writing(place).snapshot().objects.store, _left(messages))


def _left(messages: list[WriterCommitMessage | None]) -> list[Left]:
    return [file for message in messages if isinstance(message, Written) for file in message.files]


def _read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, Task):  # where there is nothing to read, Spark hands over a partition of its own
        yield from task_rows(partition.scan, to_arrow_schema(schema, timezone="UTC"))


def _most(limit: ReadLimit) -> int | None:
    match limit:
        case ReadAllAvailable():
            return None
        case ReadMaxRows(max_rows=rows):
            return rows
    raise SourceError(f"the limit {limit} is none that a dataset knows", hint="use maxRecordsPerTrigger")
