"""Apply: one task calls the function on its rows and keeps what comes out in checkpoints of about the target duration.

A task that will be done within the target duration keeps everything in memory and stores it once, as the finished file
when it has all that the file needs. One that will take longer stores checkpoint after checkpoint, and gives back what
it has not begun when its patience ends, so that others can share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.assemble import store_segment
from floodmark.compute.checkpoints.batches import ROWADDR, Source, checkpoint_batch, of_run, run_of
from floodmark.compute.checkpoints.found import RangeCheckpoint, find_ranges
from floodmark.compute.checkpoints.keys import range_key
from floodmark.compute.functions.call import Computed
from floodmark.compute.work import Applied, MapBatchCheckpoint, RangeTask, Work, Written
from floodmark.engine.rounds import CheckpointSizer, fitting
from floodmark.storage.arrays import I64

CALL_BYTES = 64 << 20
"""How many bytes of input a function is handed at once at most; and what it returns should not have more, either."""

HELD_BYTES = 64 << 20
"""How much a task keeps in memory before it is stored."""

_CALLS = 16
"""A checkpoint is made by at least so many calls, so that one which takes far too long can be ended early."""

_TRACES = 1000
"""How many rows that fail keep their traceback, in one task."""

_LITTLE = 0.1
"""Work of so small a part of the target duration is not worth a checkpoint."""

_CUT = 1.5
"""A checkpoint that has taken so many times the target is stored as it is."""


def apply(work: Work, task: RangeTask, clock: Callable[[], float] = time.perf_counter) -> Applied:
    """Compute what is missing of a share; what an earlier attempt has stored is counted, and not computed again."""
    share = task.share
    within = (share.start, share.end)
    found = find_ranges(work.objects.checkpoints, work.prefix, share.fragment, work.column, within)
    stored = (BitMap.union(*[c.rows for c in found], BitMap(), BitMap()) & share.rows) - task.again
    run = _Run(work, task, share.rows - stored, {c.key for c in found}, clock)
    run.compute()
    done = run.finish([MapBatchCheckpoint(c.key, c.start, len(c.rows), c.end - c.start, 0) for c in found])
    return _with_earlier(work, done, found, stored) if stored else done


def _with_earlier(work: Work, done: Applied, found: list[RangeCheckpoint], rows: BitMap) -> Applied:
    """What was done, with the rows that an earlier attempt of the same run had stored: they were computed, too."""
    batches = [work.objects.checkpoints.get(checkpoint.key) for checkpoint in found]
    ours = [Source.of(batch, 0).only(rows, 0) for batch in batches if run_of(batch) == work.run]
    if not ours:
        return done
    seen = len(addresses.from_array(np.concatenate([s.offsets for s in ours])))
    failed = len(addresses.from_array(np.concatenate([s.offsets[s.failed] for s in ours])))
    return replace(done, computed=done.computed + seen - failed, failed=done.failed + failed, called=done.called + seen)


@dataclass
class _Held:
    """Computed rows that are not stored yet."""

    addresses: list[I64] = field(default_factory=list)
    batches: list[Computed] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, at: I64, computed: Computed, seconds: float) -> None:
        self.addresses.append(at)
        self.batches.append(computed)
        self.rows += len(at)
        self.bytes += computed.values.nbytes + sum(len(e.message) + len(e.traceback) for e in computed.errors)
        self.seconds += seconds


class _Run:
    """One attempt at a task."""

    def __init__(self, work: Work, task: RangeTask, todo: BitMap, found: set[str], clock: Callable[[], float]) -> None:
        self._work, self._task, self._clock = work, task, clock
        self._found = found
        self._base = task.base
        self._todo = todo
        sizes = task.sizes
        self._sizer = CheckpointSizer(sizes.minimum, sizes.maximum, sizes.target_seconds, sizes.start)
        self._adaptive = sizes.minimum < sizes.maximum
        self._held = _Held()
        self._cursor = todo.min() if todo else task.share.end  # everything before it is stored
        self._checkpoints: list[MapBatchCheckpoint] = []
        self._left = len(todo)
        self._computed = self._failed = self._called = self._value_bytes = 0
        self._seconds = 0.0
        self._began = clock()

    def compute(self) -> None:
        """Call the function until all is done or patience ends."""
        if not self._left:
            return
        caller = self._work.caller()
        step_rows, step_seconds = 0, 0.0  # of the checkpoint in the making, stored in the end or not
        rows = _Rows(self._work, self._task, self._todo)
        while self._left:
            batch, at = rows.take(self._next_call(self._sizer.size - step_rows))
            before = self._clock()
            computed = caller.compute(batch, at + self._base)
            seconds = self._clock() - before
            computed = self._with_few_traces(computed)
            self._count(computed, len(at), seconds)
            self._held.add(at, computed, seconds)
            step_rows, step_seconds = step_rows + len(at), step_seconds + seconds
            late = self._adaptive and step_seconds >= _CUT * self._task.sizes.target_seconds
            if step_rows < self._sizer.size and not late and self._held.bytes < HELD_BYTES and self._left:
                continue
            self._sizer.record(step_rows, step_seconds)
            rate = step_rows / max(step_seconds, 1e-9)
            step_rows, step_seconds = 0, 0.0
            if self._left and not self._waits(rate):
                self._store(int(at[-1]) + 1)
                if self._clock() - self._began >= self._task.patience:
                    return

    def _next_call(self, room: int) -> int:
        """How many rows to hand over: never past the checkpoint's end, and so few that it can be ended early."""
        most = min(room, self._task.call_rows, CALL_BYTES // max(1, self._value_bytes // max(1, self._computed)))
        return max(1, min(most, -(-self._sizer.size // _CALLS)) if self._adaptive else most)

    def _waits(self, rate: float) -> bool:
        """Whether storing can wait: so little would be lost, or the whole task is done within the target duration."""
        sizes, held = self._task.sizes, self._held
        if sizes.maximum < len(self._todo) or held.bytes >= HELD_BYTES:
            return False
        if held.seconds < _LITTLE * sizes.target_seconds:
            return True  # the first calls say little about the function's speed, too
        return not self._checkpoints and self._seconds + self._left / rate <= sizes.target_seconds

    def _with_few_traces(self, computed: Computed) -> Computed:
        """The same, without tracebacks once there are many: a function that fails everywhere fails in one place."""
        if not computed.errors or self._failed < _TRACES:
            return computed
        return replace(computed, errors=tuple(replace(error, traceback="") for error in computed.errors))

    def _count(self, computed: Computed, rows: int, seconds: float) -> None:
        self._left -= rows
        self._computed += rows - len(computed.errors)
        self._failed += len(computed.errors)
        self._called += computed.called
        self._value_bytes += computed.values.nbytes
        self._seconds += seconds

    def _store(self, end: int) -> None:
        """Make a checkpoint of what is held; it covers everything up to the address `end`."""
        held, self._held = self._held, _Held()
        share = self._task.share
        key = range_key(self._work.prefix.text, share.fragment, self._cursor, end)
        batch = checkpoint_batch(self._work.column, held.addresses, held.batches)
        if key in self._found:
            batch = _completed(batch, self._work.objects.checkpoints.get(key))
        self._work.objects.checkpoints.put(key, of_run(batch, self._work.run))
        stored = MapBatchCheckpoint(key, self._cursor, batch.num_rows, end - self._cursor, batch.num_rows)
        self._checkpoints.append(stored)
        self._cursor = end

    def finish(self, found: list[MapBatchCheckpoint]) -> Applied:
        """Store what is held, as the finished file if it is all of it."""
        share = self._task.share
        rest = BitMap() if not self._left else self._todo & addresses.span(self._cursor, share.end)
        written = None
        if self._held.rows:
            if self._task.direct is not None and not found and not self._checkpoints:
                written = self._write_segment(*self._task.direct)
            else:
                self._store(share.end)
        checkpoints = (*found, *self._checkpoints)
        counts = (self._computed, self._failed, self._called, self._seconds)
        return Applied(share, tuple(checkpoints), *counts, rest, written)

    def _write_segment(self, start: int, end: int) -> Written:
        batch = checkpoint_batch(self._work.column, self._held.addresses, self._held.batches)
        return store_segment(self._work, self._task.share.fragment, start, end, Source.of(batch, self._base))


def _completed(batch: pa.RecordBatch, older: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with the rows that only the one has which it replaces."""
    lacking = ~np.isin(older.column(ROWADDR).to_numpy(), batch.column(ROWADDR).to_numpy())
    both = pa.Table.from_batches([batch, older.filter(pa.array(lacking)).cast(batch.schema)])
    return both.sort_by(ROWADDR).combine_chunks().to_batches()[0]


class _Rows:
    """The rows of a task that are to be computed, as a stream from which any number can be taken."""

    def __init__(self, work: Work, task: RangeTask, todo: BitMap) -> None:
        self._inputs = list(work.inputs)
        self._offset = work.offset_name
        self._base = task.base
        wanted = addresses.to_array(todo)
        self._wanted = np.zeros(task.share.end, np.bool_)
        self._wanted[wanted] = True
        self._batches = work.read(task.selection, wanted + task.base)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0  # of those that wait

    def take(self, rows: int) -> tuple[pa.RecordBatch, I64]:
        """The next rows, at least one and at most so many, with their addresses; ends only when there are none."""
        while self._rows < rows and self._bytes < CALL_BYTES and (batch := next(self._batches, None)) is not None:
            if (chosen := self._chosen(batch)).num_rows:
                self._waiting.append(chosen)
                self._rows += chosen.num_rows
                self._bytes += int(chosen.nbytes)
        taken: list[pa.RecordBatch] = []
        room = CALL_BYTES
        while rows and self._waiting:
            first = self._waiting[0]
            part = first.slice(0, rows)
            part = part.slice(0, fitting(part, room))
            if taken and part.nbytes > room:
                break
            taken.append(part)
            rows, room = rows - part.num_rows, room - int(part.nbytes)
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
