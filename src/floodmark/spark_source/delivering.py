"""A batch job's writing: tasks leave files, and one commit makes all of them visible."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.dataset import Dataset
from floodmark.engine import Session
from floodmark.engine.errors import SessionLost
from floodmark.lake import Lake
from floodmark.ledger.errors import NothingToWrite
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.text_files import write_parquet
from floodmark.spark_source.options import Delivery, Place
from floodmark.storage.errors import StorageError
from floodmark.storage.store import Store

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Left:
    """A file that a task left: a plain one beside the lake's own, or an object of a bucket."""

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


def open_for_writing(place: Place) -> Dataset:
    """The dataset, in a process of Spark's that must not start a Spark of its own."""
    return Lake(place.lake, runtime=Runtime(session=WithoutSpark(), fold_at=None))[place.dataset]


def leave(objects: DatasetObjects, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> tuple[Left, ...]:
    """Write one task's rows to files that the commit finds.

    Those of a task that fails are removed here. A process that is killed leaves them to the next write: it sweeps
    files of a local lake that are a day old.
    """
    left: list[Left] = []
    store = objects.store
    try:
        for path in write_parquet((batch.cast(schema) for batch in batches), store.staging()):
            left.append(Left(str(path), is_object=False))  # noqa: PERF401  those before a failure have to be known
        return tuple(left) if objects.is_local else tuple(_uploaded(objects, left))
    except BaseException:
        discard(store, left)
        raise


def deliver(dataset: Dataset, files: Sequence[Left], schema: pa.Schema, delivery: Delivery | None) -> None:
    """Commit all files at once; nothing at all is committed where there are no rows."""
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
        discard(store, files)


def discard(store: Store, files: Iterable[Left]) -> None:
    """Remove files that tasks left; a failure to do so says nothing about the write."""
    for file in files:
        try:
            file.remove(store)
        except (StorageError, OSError) as error:
            _log.warning("an unfinished file may be left at %s (%s)", file.name, error)


def _uploaded(objects: DatasetObjects, left: list[Left]) -> Iterator[Left]:
    for i, file in enumerate(left):
        key = f"{objects.folder}/staging/spark-{uuid.uuid4().hex}/{i:04d}"
        objects.store.put_file(key, Path(file.name))
        left[i] = Left(key, is_object=True)
        yield left[i]


class WithoutSpark(Session):
    """No session: what would be work for Spark is left to whoever writes next."""

    def get(self) -> NoReturn:
        raise SessionLost("Spark's own processes start no Spark.", hint="The next write from a program does it.")
