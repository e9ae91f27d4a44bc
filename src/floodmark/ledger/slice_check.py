"""Checking one file of a dataset against what its block says of it, down to the column that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.chain.events import Checkpoint, DataSlice
from floodmark.chain.hashes import Multihash
from floodmark.ledger.layout import Layout
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.errors import NoHashRule, ObjectNotFound, StorageError
from floodmark.storage.logical_hash import compose, table_digests
from floodmark.storage.slices import recorded_digests

_UNREADABLE = (OSError, pa.ArrowException, KeyError, UnicodeDecodeError)
"""What pyarrow raises on damaged files."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: what kind of object, which one, what about it."""

    kind: str
    object: str
    message: str
    block: int | None = None
    column: str | None = None


@dataclass(frozen=True)
class SliceCheck:
    """A slice to be checked."""

    objects: DatasetObjects
    block: int
    block_hash: Multihash
    data: DataSlice
    layout: Layout | None  # None: not known

    @property
    def size(self) -> int:
        return self.data.size

    def problem(self, message: str, column: str | None = None) -> Problem:
        interval = self.data.offset_interval
        where = f"slice of offsets {interval.start}–{interval.end} (block {self.block}, {self.block_hash.short})"
        return Problem(
            "data", self.objects.data_key(self.data.physical_hash), f"{where}: {message}", self.block, column
        )


@dataclass(frozen=True)
class CheckpointCheck:
    """A checkpoint to be checked, or a file that one consists of."""

    objects: DatasetObjects
    block: int | None  # None: no block names it
    checkpoint: Checkpoint
    is_newest: bool  # those before it are of no use any more, so they may be gone

    @property
    def size(self) -> int:
        return self.checkpoint.size

    def problem(self, message: str) -> Problem:
        key = self.objects.checkpoint_key(self.checkpoint.physical_hash)
        what = "a file of the checkpoints" if self.block is None else f"checkpoint of block {self.block}"
        return Problem("checkpoint", key, f"{what}: {message}", self.block)


def check(task: SliceCheck | CheckpointCheck) -> list[Problem]:
    """Everything that is wrong with one file."""
    if isinstance(task, CheckpointCheck):
        return list(_check_checkpoint(task))
    return list(_check_slice(task))


def _check_checkpoint(task: CheckpointCheck) -> Iterator[Problem]:
    wanted = task.checkpoint
    try:
        data = task.objects.store.get(task.objects.checkpoint_key(wanted.physical_hash))
    except ObjectNotFound:
        if task.is_newest:
            yield task.problem("the file is missing")
        return
    except StorageError as error:
        yield task.problem(error.message)
        return
    if len(data) != wanted.size:
        yield task.problem(f"{len(data)} bytes, should be {wanted.size}")
    if Multihash.sha3_256(data) != wanted.physical_hash:
        yield task.problem("its bytes do not hash to its name")


def _check_slice(task: SliceCheck) -> Iterator[Problem]:
    try:
        data = task.objects.store.get(task.objects.data_key(task.data.physical_hash))
    except ObjectNotFound:
        yield task.problem("the file is missing")
        return
    except StorageError as error:
        yield task.problem(error.message)
        return
    if len(data) != task.data.size:
        yield task.problem(f"{len(data)} bytes, should be {task.data.size}")
    intact = Multihash.sha3_256(data) == task.data.physical_hash
    if not intact:
        yield task.problem("its bytes do not hash to its name")
    try:
        yield from _check_content(task, data, intact)
    except (*_UNREADABLE, NoHashRule) as error:
        yield task.problem(f"it cannot be read as a slice: {error}")


def _check_content(task: SliceCheck, data: bytes, intact: bool) -> Iterator[Problem]:
    file = pq.ParquetFile(pa.BufferReader(data))
    table = yield from _columns(task, file)
    if table is None:
        return
    digests = table_digests(table)
    logical = compose(table.schema, [d for name in table.column_names for d in digests[name]])
    if logical != task.data.logical_hash:
        yield from _differing_columns(task, file, digests)
    if intact:
        yield from _check_records(task, table)


def _columns(task: SliceCheck, file: pq.ParquetFile) -> Any:
    """Read column by column, so that a damaged one is named; the table, or None when one cannot be read."""
    columns = {}
    for name in file.schema_arrow.names:
        try:
            column = file.read(columns=[name], use_threads=False).column(name)
        except _UNREADABLE as error:
            yield task.problem(f"column {name!r} cannot be read: {error}", name)
            continue
        if len(column) == task.data.rows:
            columns[name] = column
        else:
            yield task.problem(f"column {name!r} has {len(column)} values, should be {task.data.rows}", name)
    if len(columns) != len(file.schema_arrow.names):
        return None
    return pa.table(columns, schema=file.schema_arrow.remove_metadata())


def _differing_columns(task: SliceCheck, file: pq.ParquetFile, digests: dict[str, list[bytes]]) -> Iterator[Problem]:
    try:
        recorded = recorded_digests(file.metadata)
    except ValueError:
        recorded = None
    wrong = [
        name
        for name, parts in digests.items()
        if recorded is not None and recorded.get(name) != [part.hex() for part in parts]
    ]
    for name in wrong:
        yield task.problem(f"column {name!r} does not hold what was written", name)
    if not wrong:
        yield task.problem("its records do not have the logical hash that the block says")


def _check_records(task: SliceCheck, table: pa.Table) -> Iterator[Problem]:
    """The columns are those of the schema in force, the offsets are the block's."""
    if task.layout is None:
        return  # the rules say so when there was none
    wanted = {f.name: f.type for f in task.layout.slice_schema}
    for field in table.schema:
        if field.name not in wanted:
            yield task.problem(f"column {field.name!r} is not in the dataset's schema", field.name)
        elif not field.type.equals(wanted[field.name]):
            yield task.problem(f"column {field.name!r} is {field.type}, not {wanted[field.name]}", field.name)
    vocab, interval = task.layout.vocab, task.data.offset_interval
    if vocab.offset not in table.column_names:
        yield task.problem(f"there is no {vocab.offset!r} column", vocab.offset)
        return
    offsets = table.column(vocab.offset).to_numpy()
    if not np.array_equal(offsets, np.arange(interval.start, interval.end + 1)):
        yield task.problem(f"the offsets are not {interval.start} to {interval.end} in order", vocab.offset)
    if vocab.op in table.column_names:
        bounds: Any = pc.min_max(table.column(vocab.op))
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if low is not None and not 0 <= low <= high <= 3:
            yield task.problem(f"operations are {low} to {high}, should be within 0 to 3", vocab.op)
