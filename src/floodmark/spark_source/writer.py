"""Writes of batch and streaming jobs: tasks write files, and one commit adds all their rows to a dataset."""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.dataset import Dataset
from floodmark.engine.session import Runtime, Session
from floodmark.errors import EngineError, NothingToWrite, StorageError, StreamLost
from floodmark.lake import Lake
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.position import has_records_of
from floodmark.ledger.staging import write_parquet
from floodmark.ledger.witness import read_witness
from floodmark.spark_source.options import DatasetAddress, Delivery
from floodmark.storage.opening import open_store
from floodmark.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskFile:
    """A file that a task wrote: a file in the staging area of a local lake, or an object in a bucket."""

    name: str
    is_object: bool

    def batches(self, store: Store) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(store.open(self.name) if self.is_object else self.name) as file:
            yield from file.iter_batches()

    def remove(self, store: Store) -> None:
        if self.is_object:
            store.delete(self.name)
        else:
            Path(self.name).unlink(missing_ok=True)


def open_for_writing(place: DatasetAddress) -> Dataset:
    """Open a dataset in a Spark process, which must not start another Spark."""
    return Lake(place.lake, runtime=Runtime(session=NoSparkSession(), fold_at=None))[place.dataset]


def write_task_files(
    objects: DatasetObjects, batches: Iterator[pa.RecordBatch], schema: pa.Schema
) -> tuple[TaskFile, ...]:
    """Write one task's rows to files for the commit.

    If the task fails, its files are removed. If its process is killed, a later write to the local lake removes the
    files when they are a day old.
    """
    left: list[TaskFile] = []
    store = objects.store
    try:
        for path in write_parquet((batch.cast(schema) for batch in batches), store.staging()):
            left.append(TaskFile(str(path), is_object=False))  # noqa: PERF401  needed to remove the files after a failure
        return tuple(left) if objects.is_local else tuple(_upload(objects, left))
    except BaseException:
        remove_task_files(store, left)
        raise


def commit_task_files(
    dataset: Dataset, files: Sequence[TaskFile], schema: pa.Schema, delivery: Delivery | None
) -> None:
    """Commit all files in one commit. Without rows there is no commit."""
    store = dataset.snapshot().objects.store
    batches = (batch.cast(schema) for file in files for batch in file.batches(store))
    rows = pa.RecordBatchReader.from_batches(schema, batches)
    try:
        with contextlib.suppress(NothingToWrite):
            if delivery is None:
                dataset.write(rows)
            else:
                dataset.write(rows, source=delivery.source, state=delivery.state)
    finally:
        remove_task_files(store, files)


def remove_task_files(store: Store, files: Iterable[TaskFile]) -> None:
    """Remove the files of tasks. If that fails, only a warning is logged, because the write may have succeeded."""
    for file in files:
        try:
            file.remove(store)
        except (StorageError, OSError) as error:
            _log.warning("could not remove the temporary file %s (%s)", file.name, error)


def _upload(objects: DatasetObjects, left: list[TaskFile]) -> Iterator[TaskFile]:
    for i, file in enumerate(left):
        key = f"{objects.folder}/staging/spark-{uuid.uuid4().hex}/{i:04d}"
        objects.store.put_file(key, Path(file.name))
        left[i] = TaskFile(key, is_object=True)
        yield left[i]


class NoSparkSession(Session):
    """A session that refuses to start Spark. Work that needs Spark is left to the next write from a program."""

    def get(self) -> NoReturn:
        raise EngineError(
            "a Spark process cannot start another Spark", hint="write from a program: its next write does this work"
        )


# Streams


@dataclass(frozen=True)
class Sink:
    """A `foreachBatch` function that writes a micro-batch to a dataset."""

    lake: Lake
    dataset: str
    source: str | None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        runtime = replace(self.lake.runtime, session=Session(batch.sparkSession))
        query = query_of_batch(batch) if self.source is None else self.source
        delivery = batch_delivery(query, batch_id)
        # An empty batch leaves no commit, so a repeated one is not recognised; but it is empty again.
        with contextlib.suppress(NothingToWrite):
            dataset = Lake(self.lake.store, runtime=runtime)[self.dataset]
            check_has_batches(dataset)
            dataset.write(batch, source=delivery.source, state=delivery.state)

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark Connect calls it in another process, which does not have this one's clock and session.
        return _restore_sink, (self.lake.store, self.dataset, self.source)


def _restore_sink(store: Store, dataset: str, source: str | None) -> Sink:
    return Sink(Lake(store), dataset, source)


def stream_sink(lake: Lake | str | Path, dataset: str, *, source: str | None = None) -> Sink:
    """A function for `df.writeStream.foreachBatch` that writes each micro-batch to a dataset exactly once.

    The commit records the query and the batch, so a batch that Spark repeats after a crash is not written again. The
    query is identified by the id in its checkpoint. Give a `source` only if that id is not available (Spark Connect),
    and a new `source` with each new checkpoint, because the batches are then numbered from 0 again.
    """
    opened = lake if isinstance(lake, Lake) else Lake(lake)
    return Sink(opened, opened[dataset].name, source)


_QUERY_ID = "sql.streaming.queryId"
"""The local property of Spark jobs that has the id of their streaming query."""

_METADATA = "metadata"
"""The file in a query's checkpoint that has the query's id. Spark writes it when the query first starts."""


def batch_delivery(query: str, batch_id: int) -> Delivery:
    """The delivery of one batch of a query. With a new checkpoint the query has a new id and batches start from 0."""
    return Delivery(f"spark query {query}", f"batch {batch_id}")


def check_has_batches(dataset: Dataset) -> None:
    """Refuse a dataset that lost blocks which this machine has seen: batches of the query may have been among them."""
    snapshot = dataset.snapshot()
    seen = read_witness(snapshot.objects)
    if seen is not None and not has_records_of(snapshot, seen.block):
        raise StreamLost(
            f"{dataset.name!r} was replaced by an older copy of it: it lost block {seen.sequence_number}, so batches "
            "that the query has written may be missing",
            hint="write them again by a query with a new checkpointLocation; or, if nothing is missing, run "
            f"`floodmark verify {dataset.name} --expect {snapshot.head.text}` first",
            name=dataset.name,
            expected=seen.block.text,
            found=snapshot.head.text,
        )


def query_of_batch(batch: DataFrame) -> str:
    """The id of the query that calls `foreachBatch`."""
    from pyspark.sql import SparkSession

    session = batch.sparkSession
    # A Spark Connect session is another class and has no context.
    query = session.sparkContext.getLocalProperty(_QUERY_ID) if type(session) is SparkSession else None
    if query is None:
        raise StreamLost(
            "cannot determine the streaming query of this batch",
            hint="call it from foreachBatch; with Spark Connect, name the stream: stream_sink(lake, dataset, source=…)",
        )
    return query


def query_of_checkpoint(location: str) -> str:
    """The id of the query with this checkpoint location."""
    # Hadoop writes file:/folder instead of file:///folder.
    folder = location.removeprefix("file:") if location.startswith("file:/") else location
    try:
        query = json.loads(open_store(folder).get(_METADATA))["id"]
    except (StorageError, ValueError, KeyError) as error:
        raise StreamLost(
            f"cannot read the query id of the checkpoint {location!r}: {error}",
            hint="give an absolute checkpointLocation, or use foreachBatch(floodmark.stream_sink(lake, dataset))",
        ) from error
    return str(query)
