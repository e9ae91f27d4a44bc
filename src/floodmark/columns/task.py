"""One task of a backfill: calls the function on its rows and stores the results in checkpoints.

A checkpoint takes about the target duration. A task that is shorter keeps its results in memory and stores them once,
directly as a column file if it computes all rows of the file. A longer task stores several checkpoints. When its
patience ends, it returns the rows that it has not started, so that other tasks can compute them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns.assemble import store_segment
from floodmark.columns.checkpoint_batch import ROWADDR, OffsetValues, encode_checkpoint, mark_run, read_run
from floodmark.columns.checkpoints import RangeCheckpoint, find_ranges
from floodmark.columns.work import ColumnJob, MapBatchCheckpoint, RangeResult, RangeTask, WrittenSegment
from floodmark.derive.checkpoint_key import range_key
from floodmark.engine.call_size import MIN_CALLS
from floodmark.engine.rounds import CheckpointSizer, rows_that_fit
from floodmark.functions.column_call import BatchValues
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64

CALL_BYTES = 64 << 20
"""The maximum size of the input of one call, and the intended maximum size of its result."""

UNSTORED_BYTES = 64 << 20
"""How many bytes of results a task keeps in memory before it stores them."""

_MAX_TRACES = 1000
"""How many failed rows of a task keep their traceback."""

_MIN_WORK = 0.1
"""Less work than this fraction of the target duration is not worth a checkpoint."""

_CUT_FACTOR = 1.5
"""A checkpoint that has taken this multiple of the target duration is stored early."""


def compute_share(work: ColumnJob, task: RangeTask, clock: Callable[[], float] = time.perf_counter) -> RangeResult:
    """Compute the missing rows of a share. Rows that an earlier attempt stored are counted, not computed again."""
    share = task.share
    within = (share.start, share.end)
    found = find_ranges(work.checkpoints, work.prefix, share.fragment, work.column, within)
    stored = (BitMap.union(*[c.rows for c in found], BitMap(), BitMap()) & share.rows) - task.again
    run = _TaskRun(work, task, share.rows - stored, {c.key for c in found}, clock)
    run.compute()
    done = run.finish([MapBatchCheckpoint(c.key, c.start, len(c.rows), c.end - c.start, 0) for c in found])
    return _with_earlier(work, done, found, stored) if stored else done


def _with_earlier(work: ColumnJob, done: RangeResult, found: list[RangeCheckpoint], rows: BitMap) -> RangeResult:
    """The result with the rows that an earlier attempt of the same run stored: this run computed them, too."""
    batches = [work.checkpoints.get(checkpoint.key) for checkpoint in found]
    ours = [OffsetValues.of(batch, 0).only(rows, 0) for batch in batches if read_run(batch) == work.run]
    if not ours:
        return done
    seen = len(row_sets.from_array(np.concatenate([s.offsets for s in ours])))
    failed = len(row_sets.from_array(np.concatenate([s.offsets[s.failed] for s in ours])))
    return replace(done, computed=done.computed + seen - failed, failed=done.failed + failed, called=done.called + seen)


@dataclass
class _UnstoredRows:
    """Computed rows that are not stored yet."""

    addresses: list[I64] = field(default_factory=list)
    batches: list[BatchValues] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, at: I64, computed: BatchValues, seconds: float) -> None:
        self.addresses.append(at)
        self.batches.append(computed)
        self.rows += len(at)
        self.bytes += computed.values.nbytes + sum(len(e.message) + len(e.traceback) for e in computed.errors)
        self.seconds += seconds


class _TaskRun:
    """One attempt at a task."""

    def __init__(
        self, work: ColumnJob, task: RangeTask, todo: BitMap, found: set[str], clock: Callable[[], float]
    ) -> None:
        self._work, self._task, self._clock = work, task, clock
        self._found = found
        self._base = task.base
        self._todo = todo
        sizes = task.sizes
        self._sizer = CheckpointSizer(sizes.minimum, sizes.maximum, sizes.target_seconds, sizes.start)
        self._adaptive = sizes.minimum < sizes.maximum
        self._times = task.times
        self._held = _UnstoredRows()
        self._cursor = todo.min() if todo else task.share.end  # all rows before it are stored
        self._checkpoints: list[MapBatchCheckpoint] = []
        self._left = len(todo)
        self._computed = self._failed = self._called = self._value_bytes = 0
        self._seconds = 0.0
        self._patience = task.patience
        self._began = clock()

    def compute(self) -> None:
        """Call the function until all rows are computed or the patience ends."""
        if not self._left:
            return
        caller = self._work.caller()
        step_rows, step_seconds = 0, 0.0  # of the current checkpoint, even if it is not stored in the end
        rows = _RowStream(self._work, self._task, self._todo)
        while self._left:
            batch, at = rows.take(self._next_call(step_rows))
            before = self._clock()
            computed = caller.compute(batch, at + self._base)
            seconds = self._clock() - before
            computed = self._with_few_traces(computed)
            self._measure(len(at), seconds)
            self._count(computed, len(at), seconds)
            self._held.add(at, computed, seconds)
            step_rows, step_seconds = step_rows + len(at), step_seconds + seconds
            late = self._adaptive and step_seconds >= _CUT_FACTOR * self._task.sizes.target_seconds
            if step_rows < self._sizer.size and not late and self._held.bytes < UNSTORED_BYTES and self._left:
                continue
            self._sizer.record(step_rows, step_seconds)
            rate = step_rows / max(step_seconds, 1e-9)
            step_rows, step_seconds = 0, 0.0
            if self._left and not self._waits(rate):
                self._store(int(at[-1]) + 1)
                if self._clock() - self._began >= self._patience:
                    return

    def _next_call(self, step_rows: int) -> int:
        """The rows of the next call: few enough to end the checkpoint early, or more if calls have a fixed cost."""
        limit = self._sizer.size - step_rows
        most = min(self._task.call_rows, CALL_BYTES // max(1, self._value_bytes // max(1, self._computed)))
        if not self._adaptive:
            return max(1, min(limit, most))
        sizes = self._task.sizes
        rows = self._times.next_rows(min(limit, -(-self._sizer.size // MIN_CALLS)), sizes.target_seconds)
        return max(1, min(rows, most, sizes.maximum - step_rows))

    def _measure(self, rows: int, seconds: float) -> None:
        if not self._seconds and self._task.times.calls:  # the first call may have loaded a model
            self._began = self._clock()
            self._patience = max(self._patience, seconds)
        if self._adaptive:
            self._times = self._times.after(rows, seconds)

    def _waits(self, rate: float) -> bool:
        """Whether storing can wait: little work would be lost, or the task ends within the target duration."""
        sizes, held = self._task.sizes, self._held
        if sizes.maximum < len(self._todo) or held.bytes >= UNSTORED_BYTES:
            return False
        if held.seconds < _MIN_WORK * sizes.target_seconds:
            return True  # and the first calls show little about the speed of the function
        return not self._checkpoints and self._seconds + self._left / rate <= sizes.target_seconds

    def _with_few_traces(self, computed: BatchValues) -> BatchValues:
        """The same without tracebacks, once many were kept: many failures usually have the same cause."""
        if not computed.errors or self._failed < _MAX_TRACES:
            return computed
        return replace(computed, errors=tuple(replace(error, traceback="") for error in computed.errors))

    def _count(self, computed: BatchValues, rows: int, seconds: float) -> None:
        self._left -= rows
        self._computed += rows - len(computed.errors)
        self._failed += len(computed.errors)
        self._called += computed.called
        self._value_bytes += computed.values.nbytes
        self._seconds += seconds

    def _store(self, end: int) -> None:
        """Store the held rows as a checkpoint that covers all addresses up to `end`."""
        held, self._held = self._held, _UnstoredRows()
        share = self._task.share
        key = range_key(self._work.prefix.text, share.fragment, self._cursor, end)
        batch = encode_checkpoint(self._work.column, held.addresses, held.batches)
        if key in self._found:
            batch = _completed(batch, self._work.checkpoints.get(key))
        self._work.checkpoints.put(key, mark_run(batch, self._work.run))
        stored = MapBatchCheckpoint(key, self._cursor, batch.num_rows, end - self._cursor, batch.num_rows)
        self._checkpoints.append(stored)
        self._cursor = end

    def finish(self, found: list[MapBatchCheckpoint]) -> RangeResult:
        """Store the held rows, directly as the column file if they are all of its rows."""
        share = self._task.share
        rest = BitMap() if not self._left else self._todo & row_sets.span(self._cursor, share.end)
        written = None
        if self._held.rows:
            if self._task.direct is not None and not found and not self._checkpoints:
                written = self._write_segment(*self._task.direct)
            else:
                self._store(share.end)
        checkpoints = (*found, *self._checkpoints)
        counts = (self._computed, self._failed, self._called, self._seconds)
        return RangeResult(share, tuple(checkpoints), *counts, rest, written, self._times)

    def _write_segment(self, start: int, end: int) -> WrittenSegment:
        batch = encode_checkpoint(self._work.column, self._held.addresses, self._held.batches)
        return store_segment(self._work, self._task.share.fragment, start, end, OffsetValues.of(batch, self._base))


def _completed(batch: pa.RecordBatch, older: pa.RecordBatch) -> pa.RecordBatch:
    """A batch, plus the rows that only the older batch has, which it replaces."""
    lacking = ~np.isin(older.column(ROWADDR).to_numpy(), batch.column(ROWADDR).to_numpy())
    both = pa.Table.from_batches([batch, older.filter(pa.array(lacking)).cast(batch.schema)])
    return both.sort_by(ROWADDR).combine_chunks().to_batches()[0]


class _RowStream:
    """The rows that a task has to compute, as a stream from which any number can be taken."""

    def __init__(self, work: ColumnJob, task: RangeTask, todo: BitMap) -> None:
        self._inputs = list(work.inputs)
        self._offset = work.offset_name
        self._base = task.base
        wanted = row_sets.to_array(todo)
        self._wanted = np.zeros(task.share.end, np.bool_)
        self._wanted[wanted] = True
        self._batches = work.read(task.selection, wanted + task.base)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0  # of the waiting batches

    def take(self, rows: int) -> tuple[pa.RecordBatch, I64]:
        """The next rows with their addresses: at least one, at most `rows`. Must not be called after the last row."""
        while self._rows < rows and self._bytes < CALL_BYTES and (batch := next(self._batches, None)) is not None:
            if (chosen := self._chosen(batch)).num_rows:
                self._waiting.append(chosen)
                self._rows += chosen.num_rows
                self._bytes += int(chosen.nbytes)
        taken: list[pa.RecordBatch] = []
        free_bytes = CALL_BYTES
        while rows and self._waiting:
            first = self._waiting[0]
            part = first.slice(0, rows)
            part = part.slice(0, rows_that_fit(part, free_bytes))
            if taken and part.nbytes > free_bytes:
                break
            taken.append(part)
            rows, free_bytes = rows - part.num_rows, free_bytes - int(part.nbytes)
            rest = [first.slice(part.num_rows)] if part.num_rows < first.num_rows else []
            self._waiting[:1] = rest
            self._rows -= part.num_rows
            self._bytes -= int(first.nbytes) - sum(int(batch.nbytes) for batch in rest)
        joined = taken[0] if len(taken) == 1 else pa.concat_batches(taken)
        at: I64 = joined.column(self._offset).to_numpy() - self._base
        return joined.select(self._inputs), at

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.column(self._offset).to_numpy() - self._base
        kept = self._wanted[at]
        return batch if kept.all() else batch.filter(pa.array(kept))
