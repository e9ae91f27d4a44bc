"""Tasks of a run: the work that all tasks share, one task, its result, and `run_task`, which a worker calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.engine.call_size import CallTimes
from floodmark.engine.task import TaskRaised
from floodmark.errors import FloodmarkError
from floodmark.functions.failures import FAILURE_FIELDS
from floodmark.functions.step_call import ChunkCallResult, call_chunk, fail_uncalled_chunk
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64, Hashes, HashIndex
from floodmark.transforms.chunk_results import (
    Attempts,
    ChunkEntries,
    NewResults,
    ResultRows,
    SeenColumns,
    StoredChunk,
    cast_rows,
    join_columns,
    join_seen_columns,
    undecided_columns,
    with_known_columns,
    with_learnt_columns,
)
from floodmark.transforms.failed_keys import failed_column, failed_hashes
from floodmark.transforms.result_lookup import FailedAttempts, OpenResultIndex, ResultIndex, gone_identity, identity
from floodmark.transforms.stored_results import ChunkStore

if TYPE_CHECKING:
    from floodmark.derive.key_shape import KeyShape
    from floodmark.functions.on_error import OnError
    from floodmark.functions.step_function import StepFunction
    from floodmark.functions.step_result import OutputShape
    from floodmark.transforms.chunks import Chunk
    from floodmark.transforms.meta import TransformMeta
    from floodmark.transforms.work_units import KeysUnit, RangeUnit


class Unit(Protocol):
    """A unit of work: some keys whose rows are read together."""

    @property
    def rows(self) -> int:
        """The approximate number of rows."""
        ...

    def halves(self) -> tuple[Unit, Unit] | None:
        """The same keys in two units; None if there is only one key."""
        ...


@dataclass(frozen=True)
class TransformWork:
    """What all tasks of a wave share: the function, its inputs as of one snapshot, and its outputs."""

    store: ChunkStore
    shape: KeyShape
    inputs: Any  # a TaskInput for each input
    outputs: tuple[OutputShape, ...]
    function: StepFunction
    on_error: OnError
    chunk_size: int
    attempted: TransformMeta  # has the attempts of failed keys
    checked: TransformMeta | None  # filters out processed rows of ranges; None if there cannot be any
    now_ms: int
    target_seconds: float = 10.0
    found: ResultIndex | None = None  # stored results of earlier runs
    seen: SeenColumns = ()  # the columns seen so far, of outputs whose columns are not all known

    def chunks(self, unit: Unit, chunk_size: int) -> Iterator[Chunk]:
        from floodmark.transforms.chunk_reader import read_chunks

        return read_chunks(cast("RangeUnit | KeysUnit", unit), self.shape, self.inputs, chunk_size, self.checked)

    def chunks_of_keys(self, unit: Unit) -> Iterator[Chunk]:
        """The keys of a unit, without their rows if possible: reading the rows may have crashed the worker."""
        from floodmark.transforms.chunks import Chunk
        from floodmark.transforms.work_units import KeysUnit

        if not isinstance(unit, KeysUnit):
            return self.chunks(unit, 1)
        keys = unit.load()
        return iter([Chunk(keys, self.shape.hash_keys(keys), ())])


@dataclass(frozen=True)
class RemainingUnit:
    """A unit to process, without the keys that these stored chunks already have."""

    unit: Unit
    done: tuple[StoredChunk, ...] = ()


@dataclass(frozen=True)
class TransformTask:
    """One task: process the keys of these units, without the keys that the `inherited` chunks have."""

    id: str
    units: tuple[Unit, ...]
    chunk_size: int
    patience: float  # seconds after which a task that will take far longer returns its rest
    inherited: tuple[StoredChunk, ...] = ()  # chunks that earlier tasks of this run stored
    runs_first: bool = False  # other tasks wait for its columns, so it returns its rest when it has learnt them
    lost: TaskRaised | None = None  # the error if its only key crashed every worker; the key is not tried again

    @property
    def rows(self) -> int:
        return sum(unit.rows for unit in self.units)

    def __str__(self) -> str:
        more = f" and {len(self.units) - 1} more" if len(self.units) > 1 else ""
        return f"to process {self.rows:,} rows ({self.units[0]}{more})"


@dataclass(frozen=True)
class TransformTaskResult:
    """The result of a task."""

    stored: tuple[StoredChunk, ...]  # including the inherited chunks
    inherited: tuple[StoredChunk, ...]
    outputs: tuple[OutputShape, ...]  # with the columns that were learnt
    seen: SeenColumns  # the columns that this task has seen
    used: BitMap  # positions in the index of stored results
    rest: tuple[Unit, ...]  # units that were not finished; keys of them in `stored` must not be processed again
    done: int  # processed rows of the task's units, for progress; another task counts the rest
    calls: int
    rows: int  # the rows that the function's speed was measured with
    seconds: float  # the time that these rows took
    times: CallTimes  # of its calls

    @property
    def left(self) -> list[RemainingUnit]:
        """The work for other tasks; only the first unit may be partly done."""
        return [RemainingUnit(unit, self.inherited if n else self.stored) for n, unit in enumerate(self.rest)]

    @property
    def failed(self) -> int:
        """The number of keys that failed in this task."""
        known = {one.id for one in self.inherited}
        return sum(one.failed for one in self.stored if one.id not in known)


# Running a task

HELD_BYTES = 64 << 20
"""The bytes of results that a task keeps in memory before it stores them."""

FAR_LONGER = 3.0
"""A task returns its rest if the rest would take this many times the target duration."""

_TRACES = 1000
"""How many failed keys of one task keep their traceback."""

_LONGEST_TRACE = 16_000
_KEY_BYTES = 40


def run_task(
    work: TransformWork, task: TransformTask, clock: Callable[[], float] = time.perf_counter
) -> TransformTaskResult:
    """Process the keys of a task's units that have no stored results yet."""
    earlier = work.store.of_tasks([task.id], work.outputs)
    run = _Run(work, task, earlier, clock)
    try:
        rest = run.process() if task.lost is None else run.give_up(task.lost)
    except FloodmarkError:
        run.store()  # keep the results from before the error
        raise
    run.store()
    return run.applied(rest)


@dataclass
class _Buffer:
    """Results in memory that are not stored yet."""

    rows: list[list[ResultRows]]  # by output
    entries: list[ChunkEntries] = field(default_factory=list)
    gone: list[Hashes] = field(default_factory=list)
    failed: list[pa.Table] = field(default_factory=list)
    bytes: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.entries and not self.gone

    def add(self, chunk: Chunk, called: ChunkCallResult) -> None:
        for buffered, *rows in zip(self.rows, called.rows, called.key_hashes, called.hashes, strict=True):
            if (some := ResultRows(*rows)).table.num_rows:
                buffered.append(some)
                self.bytes += int(some.table.nbytes) + 2 * _KEY_BYTES * some.table.num_rows
        self.entries.append(ChunkEntries(chunk.hashes, chunk.signature, _failed_attempts(chunk, called)))
        self.bytes += _KEY_BYTES * len(chunk)
        if called.failed.num_rows:
            self.failed.append(called.failed)
            self.bytes += int(called.failed.nbytes)

    def add_gone(self, gone: Hashes) -> None:
        self.gone.append(gone)
        self.bytes += _KEY_BYTES * len(gone)

    def fresh(self) -> NewResults:
        return NewResults(
            rows=tuple(ResultRows.joined(rows) if rows else None for rows in self.rows),
            entries=ChunkEntries.joined(self.entries),
            gone=Hashes.joined(self.gone),
            failed=pa.concat_tables(self.failed) if self.failed else None,
        )


class _Run:
    """One attempt at a task, by one worker."""

    def __init__(
        self, work: TransformWork, task: TransformTask, earlier: list[StoredChunk], clock: Callable[[], float]
    ) -> None:
        self._work, self._task, self._clock = work, task, clock
        self._stored = list({s.id: s for s in (*task.inherited, *earlier)}.values())
        self._outputs = with_known_columns(work.outputs, self._stored)
        before = [work.seen, *(s.undecided for s in self._stored)]
        self._seen = list(join_seen_columns(self._outputs, before, work.function.name))
        self._mine = _identities(work, self._stored)
        self._found: OpenResultIndex | None = None if work.found is None else work.found.open()
        self._tried = FailedAttempts.of(work.attempted.failed())
        self._buffer = self._empty_buffer()
        self._used = BitMap()
        self._calls = self._traces = 0
        self._pace: list[tuple[int, float]] = []  # rows and seconds of the first call, and of the others
        self._times = CallTimes()
        self._rows = 0  # rows of the task that were processed
        self._began = self._since = clock()

    def process(self) -> tuple[Unit, ...]:
        """Process the units. Returns the rest if it takes too long, or if others wait for columns that it learnt."""
        units = self._task.units
        for number, unit in enumerate(units):
            chunks = self._work.chunks(unit, self._task.chunk_size)
            for chunk in chunks:
                known = self._outputs
                self._process(chunk)
                is_over = self._calls and (self._lasts_too_long() or self._is_waited_for(known))
                if is_over:
                    is_begun = next(chunks, None) is not None
                    return units[number if is_begun else number + 1 :]
        return ()

    def give_up(self, lost: TaskRaised) -> tuple[Unit, ...]:
        """Store the key that crashed every worker as failed."""
        work = self._work
        done = HashIndex.of(Hashes.joined([hashes.read() for s in self._stored for hashes in s.processed]))
        for unit in self._task.units:
            for chunk in work.chunks_of_keys(unit):
                self._add_gone(chunk)
                if len(chunk) and not done.has(chunk.hashes)[0]:
                    attempts = self._tried.before(chunk.hashes)
                    what = (work.function, chunk, self._outputs, work.on_error, attempts, work.now_ms)
                    self._buffer.add(chunk, fail_uncalled_chunk(*what, lost.error, lost.trace[-_LONGEST_TRACE:]))
        return ()

    def _process(self, chunk: Chunk) -> None:
        self._add_gone(chunk)
        for part in self._to_call(chunk):
            self._call(part)
        self._rows += max(len(chunk) + len(chunk.gone), chunk.rows)
        if self._buffer.bytes >= HELD_BYTES or self._clock() - self._since >= self._work.target_seconds:
            self.store()

    def _is_waited_for(self, known: tuple[OutputShape, ...]) -> bool:
        """Whether other tasks wait for columns that were just learnt."""
        return self._task.runs_first and self._outputs is not known

    def _to_call(self, chunk: Chunk) -> list[Chunk]:
        """The keys of a chunk without stored results, as chunks with exactly these keys."""
        if not len(chunk):
            return []
        if not len(self._mine) and self._found is None:
            return [chunk]
        identities = identity(chunk.hashes, chunk.signature)
        done = self._mine.has(identities)
        if self._found is not None:
            at = self._found.find(identities)
            used = np.flatnonzero(~done & (at >= 0))
            self._used |= row_sets.from_array(at[used])
            done |= at >= 0
        return chunk.chosen(np.flatnonzero(~done)) if done.any() else [chunk]

    def _call(self, chunk: Chunk) -> None:
        before = self._clock()
        attempts: I64 = self._tried.before(chunk.hashes)
        work = self._work
        called = call_chunk(work.function, chunk, self._outputs, work.on_error, attempts, work.now_ms, time.sleep)
        called = self._limit_traces(called)
        self._buffer.add(chunk, self._learn_columns(called))
        self._calls += called.calls
        self._measure(max(len(chunk), chunk.rows), self._clock() - before)

    def _measure(self, rows: int, seconds: float) -> None:
        self._times = self._times.after(rows, seconds)
        if len(self._pace) < 2:
            self._pace.append((rows, seconds))
        else:
            self._pace[1] = (self._pace[1][0] + rows, self._pace[1][1] + seconds)

    def _speed(self) -> tuple[int, float]:
        """Rows and the seconds they took. The first call may include imports or the loading of a model, so it counts
        only if there was no other call and it took too long."""
        if not self._pace or (len(self._pace) == 1 and self._pace[0][1] < self._task.patience):
            return 0, 0.0
        return self._pace[-1]

    def _learn_columns(self, called: ChunkCallResult) -> ChunkCallResult:
        """The result, cast to the columns of the outputs. The first rows of an output decide its columns."""
        rows, keys = list(called.rows), list(called.key_hashes)
        outputs = list(self._outputs)
        for n, shape in enumerate(outputs):
            if shape.layout is not None or not rows[n].num_rows:
                continue
            seen = join_columns([self._seen[n], rows[n].schema], shape, self._work.function.name)
            assert seen is not None  # there are rows
            self._seen[n] = seen
            if undecided_columns(seen):
                continue
            outputs[n] = with_learnt_columns(shape, seen)
            mine = cast_rows(ResultRows(rows[n], keys[n], called.hashes[n]), outputs[n], seen)
            rows[n], keys[n] = mine.table, mine.key
            self._buffer.rows[n] = [cast_rows(buffered, outputs[n], seen) for buffered in self._buffer.rows[n]]
        if all(ours is theirs for ours, theirs in zip(outputs, self._outputs, strict=True)):
            return called
        self._outputs = tuple(outputs)
        return replace(called, rows=tuple(rows), key_hashes=tuple(keys))

    def _limit_traces(self, called: ChunkCallResult) -> ChunkCallResult:
        """The result, without tracebacks after many failures: they are probably all the same."""
        failed = called.failed
        self._traces += failed.num_rows
        if not failed.num_rows or self._traces <= _TRACES:
            return called
        at = failed.num_columns - len(FAILURE_FIELDS) + FAILURE_FIELDS.get_field_index("traceback")
        none = pa.array([""] * failed.num_rows, failed.schema.field(at).type)
        return replace(called, failed=failed.set_column(at, failed.schema.field(at), none))

    def _add_gone(self, chunk: Chunk) -> None:
        gone = chunk.gone
        if len(gone) and len(self._mine):
            gone = gone.take(~self._mine.has(gone_identity(gone)))
        if len(gone):
            self._buffer.add_gone(gone)

    def _lasts_too_long(self) -> bool:
        elapsed = self._clock() - self._began
        if elapsed < self._task.patience:
            return False
        left = max(0, self._task.rows - self._rows)
        return left * elapsed / max(self._rows, 1) > FAR_LONGER * self._work.target_seconds

    def _empty_buffer(self) -> _Buffer:
        return _Buffer([[] for _ in self._outputs])

    def store(self) -> None:
        """Store the buffered results."""
        if not self._buffer.is_empty:
            buffer, self._buffer = self._buffer, self._empty_buffer()
            pairs = list(zip(self._outputs, self._seen, strict=True))
            for n, (shape, seen) in enumerate(pairs):
                if shape.layout is None:
                    buffer.rows[n] = [cast_rows(rows, shape, seen) for rows in buffer.rows[n]]
            columns = tuple(seen if shape.layout is None else None for shape, seen in pairs)
            fresh = replace(buffer.fresh(), undecided=columns)
            self._stored.append(self._work.store.put(self._task.id, self._outputs, fresh))
        self._since = self._clock()

    def applied(self, rest: tuple[Unit, ...]) -> TransformTaskResult:
        rows, seconds = self._speed()
        return TransformTaskResult(
            stored=tuple(self._stored),
            inherited=self._task.inherited,
            outputs=self._outputs,
            seen=tuple(
                seen if shape.layout is None else shape.layout.data
                for shape, seen in zip(self._outputs, self._seen, strict=True)
            ),
            used=self._used,
            rest=rest,
            done=self._task.rows - sum(unit.rows for unit in rest),
            rows=rows,
            calls=self._calls,
            seconds=seconds,
            times=self._times,
        )


def _identities(work: TransformWork, stored: list[StoredChunk]) -> HashIndex:
    """The identities in stored chunks of this run. They have the same snapshot, so their gone keys count, too."""
    parts = []
    for s in stored:
        entries = work.store.entries(s)
        parts.append(identity(entries.hashes, entries.signature))
        if s.gone is not None:
            parts.append(gone_identity(s.gone.read()))
    return HashIndex.of(Hashes.joined(parts))


def _failed_attempts(chunk: Chunk, called: ChunkCallResult) -> Attempts:
    """For each key of a chunk the number of its failed attempt; 0 if it did not fail."""
    attempts = np.zeros(len(chunk), np.int32)
    if called.failed.num_rows:
        at = failed_hashes(called.failed).positions_in(chunk.hashes)
        attempts[at] = failed_column(called.failed, "attempts").to_numpy()
    return attempts
