"""Verify a dataset: check every block against the rules and every file against its hashes, and list all problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.chain import rules
from floodmark.chain.events import AddData, Checkpoint, DataSlice, ExecuteTransform, MetadataBlock, source_state
from floodmark.chain.ids import Multihash
from floodmark.chain.state import EMPTY, ChainState, apply_block
from floodmark.chain.walk import walk_back
from floodmark.engine.progress import Progress
from floodmark.engine.run import run_in_threads, run_on_spark
from floodmark.engine.session import Runtime
from floodmark.errors import BadId, ChainError, ObjectNotFound, StorageError, UnsupportedType
from floodmark.ledger import snapshot as snapshots
from floodmark.ledger.block_attributes import ErasedSlice, Erasure, erasure_of, purged_before
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import Layout, layout_from_odf, vocabulary
from floodmark.ledger.types import blank_value
from floodmark.ledger.witness import Witness, read_witness, write_witness
from floodmark.storage.logical_hash import compose_hash, hashes_alike, table_digests
from floodmark.storage.parquet import recorded_digests

SPARK_BYTES = 2 << 30
"""With more data than this, Spark's tasks check the files."""

_THREADS = 2


@dataclass(frozen=True)
class VerifyReport:
    """The result of a verification: how much was checked, and the problems found."""

    name: str
    blocks: int = 0
    slices: int = 0
    checkpoints: int = 0
    bytes: int = 0
    purged_slices: int = 0
    problems: tuple[VerifyProblem, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@dataclass
class _Chain:
    """A chain's blocks, oldest first. If a block cannot be read, the blocks before it are not here."""

    blocks: list[tuple[Multihash, MetadataBlock]]
    problems: list[VerifyProblem]
    reaches_seed: bool


def verify(
    name: str, objects: DatasetObjects, runtime: Runtime, progress: Progress, expect: Multihash | None = None
) -> VerifyReport:
    """Check one dataset as of its present head.

    The chain must have the block `expect`, by default the newest block that this machine has seen.
    """
    seen = read_witness(objects)  # before the head: another process may commit in between
    try:
        head = objects.read_head()
    except ChainError as error:
        return VerifyReport(name, problems=(VerifyProblem("head", objects.head_key, str(error)),))
    if head is None:
        problem = VerifyProblem("head", objects.head_key, "the head is missing, so the newest block is not known")
        return VerifyReport(name, problems=(problem,))
    chain = _read_chain(objects, head)
    problems = list(chain.problems)
    if chain.reaches_seed:
        problems += _check_witness(objects, name, chain, seen if expect is None else Witness(-1, expect))
    checks: list[SliceCheck | CheckpointCheck] = []
    state = EMPTY
    states = [source_state(event) for event in _events(chain)]
    purge_offset = max((purged_before(s) for s in states if s is not None), default=0)
    purged = 0
    checkpoints: dict[Multihash, tuple[int, Checkpoint]] = {}
    replaced = {one.start: one for erasure in _erasures(chain) for one in erasure.slices}
    for block_hash, block in chain.blocks:
        if chain.reaches_seed:
            problems += [_broken(block_hash, block, error) for error in rules.problems(state, block)]
        state = apply_block(state, block_hash, block)
        event = block.event
        if not isinstance(event, AddData | ExecuteTransform):
            continue
        if event.new_data is not None:
            if event.new_data.offset_interval.end < purge_offset:
                purged += 1
            else:
                layout = _layout(state) if chain.reaches_seed else None  # the block with the schema may be missing
                data, erasure = event.new_data, replaced.get(event.new_data.offset_interval.start)
                erased: tuple[int, ...] = ()
                if erasure is not None:
                    data = _rewritten(data, erasure)
                    erased = erasure.erased
                checks.append(SliceCheck(objects, block.sequence_number, block_hash, data, layout, erased))
        if event.new_checkpoint is not None:
            checkpoints[event.new_checkpoint.physical_hash] = (block.sequence_number, event.new_checkpoint)
    checks += _checkpoint_checks(objects, checkpoints, state.checkpoint)
    size = sum(c.size for c in checks)
    runner: Any = (
        partial(run_on_spark, session=runtime.session)
        if size > SPARK_BYTES
        else partial(run_in_threads, threads=_THREADS)
    )
    progress.start(f"verifying {name}", sum(map(_rows, checks)))
    try:
        for in_file in runner(checks, check_file, progress=progress, weight=_rows):
            problems += in_file
    finally:
        progress.finish()
    problems += _erasure_problems(objects, chain, replaced)
    if not problems:
        problems += _check_index(objects, head, chain)
        write_witness(objects, Witness(chain.blocks[-1][1].sequence_number, head))
    return VerifyReport(
        name=name,
        blocks=len(chain.blocks),
        slices=sum(isinstance(c, SliceCheck) for c in checks),
        checkpoints=sum(isinstance(c, CheckpointCheck) for c in checks),
        bytes=size,
        purged_slices=purged,
        problems=tuple(problems),
    )


def _read_chain(objects: DatasetObjects, head: Multihash) -> _Chain:
    blocks: list[tuple[Multihash, MetadataBlock]] = []
    problems: list[VerifyProblem] = []
    try:
        for block_hash, _, block in walk_back(objects.get_block, head):
            blocks.append((block_hash, block))
    except ObjectNotFound as error:
        missing = blocks[-1][1].prev_block_hash if blocks else head
        named_by = f"block {blocks[-1][1].sequence_number}" if blocks else "the head"
        message = f"block {missing}, named by {named_by}, is missing; the blocks before it cannot be checked"
        problems.append(VerifyProblem("block", error.key, message))
    except (ChainError, StorageError) as error:
        damaged = blocks[-1][1].prev_block_hash if blocks else head
        key = objects.block_key(damaged) if damaged is not None else objects.head_key
        problems.append(VerifyProblem("block", key, f"{error.message} The blocks before it cannot be checked."))
    return _Chain(blocks[::-1], problems, reaches_seed=not problems)


def _check_witness(objects: DatasetObjects, name: str, chain: _Chain, seen: Witness | None) -> Iterator[VerifyProblem]:
    """Check that a block that was once on the chain still is."""
    if seen is None or any(block_hash == seen.block for block_hash, _ in chain.blocks):
        return
    head, newest = chain.blocks[-1]
    if seen.sequence_number < 0:
        message = f"block {seen.block} is not on the chain"
    else:
        message = f"was at block {seen.sequence_number} ({seen.block.short}), is at block {newest.sequence_number} now"
    hint = f"if this is right, for example after restoring a copy: floodmark verify {name} --expect {head}"
    yield VerifyProblem("head", objects.head_key, f"{message}: newer blocks were lost or replaced; {hint}")


def _checkpoint_checks(
    objects: DatasetObjects, named: Mapping[Multihash, tuple[int, Checkpoint]], newest: Multihash | None
) -> Iterator[CheckpointCheck]:
    """Checks for the checkpoints that blocks name, and for all other checkpoint files that are named by a hash."""
    for physical, (block, checkpoint) in named.items():
        yield CheckpointCheck(objects, block, checkpoint, physical == newest)
    for info in list(objects.checkpoints()):
        try:
            physical = Multihash.parse(info.key.rsplit("/", 1)[-1])
        except BadId:
            continue  # never read as a checkpoint
        if physical not in named:
            yield CheckpointCheck(objects, None, Checkpoint(physical, info.size), is_newest=False)


def _check_index(objects: DatasetObjects, head: Multihash, chain: _Chain) -> Iterator[VerifyProblem]:
    """Check that the slice index lists the same slices as the chain."""
    snapshot = snapshots.load_snapshot(objects, head, {})
    replaced = {one.start: one for erasure in _erasures(chain) for one in erasure.slices}
    indexed = [(row["start"], row["end"] - 1, row["physical"]) for row in snapshot.all_slices.to_pylist()]
    slices = [e.new_data for e in _events(chain) if e.new_data is not None]
    now = [
        _rewritten(s, replaced[s.offset_interval.start]) if s.offset_interval.start in replaced else s for s in slices
    ]
    chained = [(s.offset_interval.start, s.offset_interval.end, s.physical_hash.digest) for s in now]
    if indexed != chained:
        key = objects.index_key("")
        yield VerifyProblem(
            "index", key, f"the slice index lists {len(indexed)} slices, not the chain's {len(chained)}"
        )


def _erasures(chain: _Chain) -> Iterator[Erasure]:
    """What was erased, oldest first."""
    for _, block in chain.blocks:
        if (erasure := erasure_of(block.event)) is not None:
            yield erasure


def _rewritten(data: DataSlice, erasure: ErasedSlice) -> DataSlice:
    """A slice as an erasure left it: the block has the hashes of the file that is gone."""
    after, logical = Multihash.parse(erasure.after), Multihash.parse(erasure.logical)
    return replace(data, physical_hash=after, logical_hash=logical, size=erasure.size)


def _erasure_problems(
    objects: DatasetObjects, chain: _Chain, replaced: Mapping[int, ErasedSlice]
) -> Iterator[VerifyProblem]:
    """Check that each erasure replaced the file that the chain names, and that this file is gone."""
    files = {e.new_data.offset_interval.start: e.new_data.physical_hash.text for e in _events(chain) if e.new_data}
    named = {one.after for one in replaced.values()}
    for erasure in _erasures(chain):
        for one in erasure.slices:
            key = objects.data_key(Multihash.parse(one.before))
            if files.get(one.start) != one.before:
                message = f"an erasure replaced a file of record {one.start} that the chain does not name"
                yield VerifyProblem("erasure", key, message)
            files[one.start] = one.after
            if one.before not in named and objects.store.stat(key) is not None:
                message = f"the file has erased records of the slice from record {one.start} on; {_AGAIN}"
                yield VerifyProblem("erasure", key, message)


def _events(chain: _Chain) -> Iterator[AddData | ExecuteTransform]:
    for _, block in chain.blocks:
        if isinstance(block.event, AddData | ExecuteTransform):
            yield block.event


def _layout(state: ChainState) -> Layout | None:
    return None if state.schema is None else layout_from_odf(state.schema, vocabulary(state.vocab))


def _broken(block_hash: Multihash, block: MetadataBlock, error: ChainError) -> VerifyProblem:
    return VerifyProblem("rule", block_hash.text, error.message, block=block.sequence_number)


def _rows(task: SliceCheck | CheckpointCheck) -> int:
    return task.data.rows if isinstance(task, SliceCheck) else 0


_AGAIN = "erase the key again to delete it"

# Checks of single files

_UNREADABLE = (OSError, pa.ArrowException, KeyError, UnicodeDecodeError)
"""What pyarrow raises for damaged files."""


@dataclass(frozen=True)
class VerifyProblem:
    """One problem: the kind of object, its key, and a message."""

    kind: str
    object: str
    message: str
    block: int | None = None
    column: str | None = None


@dataclass(frozen=True)
class SliceCheck:
    """The check of one slice."""

    objects: DatasetObjects
    block: int
    block_hash: Multihash
    data: DataSlice
    layout: Layout | None  # None: not known
    erased: tuple[int, ...] = ()  # the offsets of records that must have no values

    @property
    def size(self) -> int:
        return self.data.size

    def problem(self, message: str, column: str | None = None) -> VerifyProblem:
        interval = self.data.offset_interval
        where = f"slice of offsets {interval.start}–{interval.end} (block {self.block}, {self.block_hash.short})"
        return VerifyProblem(
            "data", self.objects.data_key(self.data.physical_hash), f"{where}: {message}", self.block, column
        )


@dataclass(frozen=True)
class CheckpointCheck:
    """The check of one checkpoint file."""

    objects: DatasetObjects
    block: int | None  # None: no block names it
    checkpoint: Checkpoint
    is_newest: bool  # older checkpoints are not needed any more, so their files may be missing

    @property
    def size(self) -> int:
        return self.checkpoint.size

    def problem(self, message: str) -> VerifyProblem:
        key = self.objects.checkpoint_key(self.checkpoint.physical_hash)
        what = "a file of the checkpoints" if self.block is None else f"checkpoint of block {self.block}"
        return VerifyProblem("checkpoint", key, f"{what}: {message}", self.block)


def check_file(task: SliceCheck | CheckpointCheck) -> list[VerifyProblem]:
    """All problems of one file."""
    if isinstance(task, CheckpointCheck):
        return list(_check_checkpoint(task))
    return list(_check_slice(task))


def _check_checkpoint(task: CheckpointCheck) -> Iterator[VerifyProblem]:
    expected = task.checkpoint
    try:
        data = task.objects.store.get(task.objects.checkpoint_key(expected.physical_hash))
    except ObjectNotFound:
        if task.is_newest:
            yield task.problem("the file is missing")
        return
    except StorageError as error:
        yield task.problem(error.message)
        return
    if len(data) != expected.size:
        yield task.problem(f"the file has {len(data)} bytes, should be {expected.size}")
    if Multihash.sha3_256(data) != expected.physical_hash:
        yield task.problem("its content does not match the hash in its name")


def _check_slice(task: SliceCheck) -> Iterator[VerifyProblem]:
    try:
        data = task.objects.store.get(task.objects.data_key(task.data.physical_hash))
    except ObjectNotFound:
        yield task.problem("the file is missing")
        return
    except StorageError as error:
        yield task.problem(error.message)
        return
    if len(data) != task.data.size:
        yield task.problem(f"the file has {len(data)} bytes, should be {task.data.size}")
    intact = Multihash.sha3_256(data) == task.data.physical_hash
    if not intact:
        yield task.problem("its content does not match the hash in its name")
    try:
        yield from _check_content(task, data, intact)
    except (*_UNREADABLE, UnsupportedType) as error:
        yield task.problem(f"it cannot be read as a slice: {error}")


def _check_content(task: SliceCheck, data: bytes, intact: bool) -> Iterator[VerifyProblem]:
    file = pq.ParquetFile(pa.BufferReader(data))
    table = yield from _columns(task, file)
    if table is None:
        return
    digests = table_digests(table)
    logical = compose_hash(table.schema, [d for name in table.column_names for d in digests[name]])
    if logical != task.data.logical_hash:
        yield from _differing_columns(task, file, digests)
    if intact:
        yield from _check_records(task, table)


def _columns(task: SliceCheck, file: pq.ParquetFile) -> Any:
    """Read column by column, so that a problem names its column. Returns the table, or None if a column is damaged."""
    columns, schema = {}, file.schema_arrow
    for name in schema.names:
        try:
            column = file.read(columns=[name], use_threads=False).column(name)
        except _UNREADABLE as error:
            yield task.problem(f"column {name!r} cannot be read: {error}", name)
            continue
        if len(column) == task.data.rows:
            columns[name] = column
        else:
            yield task.problem(f"column {name!r} has {len(column)} values, should be {task.data.rows}", name)
    if len(columns) != len(schema):
        return None
    return pa.table(columns, schema=schema.remove_metadata())


def _erased_values(task: SliceCheck, table: pa.Table) -> Iterator[VerifyProblem]:
    """Erased records have no values: nulls, or the same value in all of them where nulls are not allowed."""
    assert task.layout is not None
    at = np.array(task.erased, np.int64) - task.data.offset_interval.start
    present = set(table.column_names) if len(at) else set()
    for column in task.layout.data:
        if column.name not in present or column.name == task.layout.event_time:
            continue
        values = table.column(column.name).take(pa.array(at)).to_pylist()
        blank = None if column.nullable else blank_value(column.type)
        if any(value != blank for value in values):
            yield task.problem(f"column {column.name!r} still has values of erased records", column.name)


def _differing_columns(
    task: SliceCheck, file: pq.ParquetFile, digests: dict[str, list[bytes]]
) -> Iterator[VerifyProblem]:
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
        yield task.problem(f"column {name!r} does not contain the values that were written", name)
    if not wrong:
        yield task.problem("its records do not match the logical hash in the block")


def _check_records(task: SliceCheck, table: pa.Table) -> Iterator[VerifyProblem]:
    """Check the columns against the schema at that block, and the offsets against the block."""
    if task.layout is None:
        return  # a missing schema breaks a rule, which is a problem of the chain
    expected = {f.name: f.type for f in task.layout.slice_schema}
    for column in table.schema:
        if column.name not in expected:
            yield task.problem(f"column {column.name!r} is not in the dataset's schema", column.name)
        elif not hashes_alike(column.type, expected[column.name]):
            yield task.problem(f"column {column.name!r} is {column.type}, not {expected[column.name]}", column.name)
    vocab, interval = task.layout.vocab, task.data.offset_interval
    if vocab.offset not in table.column_names:
        yield task.problem(f"column {vocab.offset!r} is missing", vocab.offset)
        return
    offsets = table.column(vocab.offset).to_numpy()
    if not np.array_equal(offsets, np.arange(interval.start, interval.end + 1)):
        yield task.problem(f"the offsets are not {interval.start} to {interval.end} in order", vocab.offset)
    yield from _erased_values(task, table)
    if vocab.op in table.column_names:
        bounds: Any = pc.min_max(table.column(vocab.op))
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if low is not None and not 0 <= low <= high <= 3:
            yield task.problem(f"operations are {low} to {high}, should be within 0 to 3", vocab.op)
