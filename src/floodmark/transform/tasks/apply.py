"""Apply: one task calls the function on its keys and keeps the results in checkpoints of about the target duration.

What is known already is not called again: results that an earlier run has left, and those that an attempt at this very
task had stored before its worker died. What a task holds in memory is bounded; a crash costs what it has computed since
its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.engine import Raised
from floodmark.errors import FloodmarkError
from floodmark.storage.arrays import I64, Hashes, HashIndex
from floodmark.transform.functions.call import Called, call_chunk, not_called
from floodmark.transform.functions.returned import OutputShape
from floodmark.transform.meta.failed import FACTS, failed_column, failed_hashes
from floodmark.transform.rows.chunk import Chunk
from floodmark.transform.tasks.columns import brought, joined_columns, known_columns, learnt, seen_columns, undecided
from floodmark.transform.tasks.reuse import Known, Tried, gone_identity, identity
from floodmark.transform.tasks.stored import Attempts, Entries, Fresh, Rows, Stored
from floodmark.transform.tasks.work import Applied, Task, Unit, Work

HELD_BYTES = 64 << 20
"""How many bytes of results a task keeps in memory before they are stored."""

FAR_LONGER = 3.0
"""A task that would take so many times the target duration from now on gives its rest back."""

_TRACES = 1000
"""How many keys that fail keep their traceback, in one task."""

_LONGEST_TRACE = 16_000
_KEY_BYTES = 40


def apply(work: Work, task: Task, clock: Callable[[], float] = time.perf_counter) -> Applied:
    """Process what is not known yet of a task's units."""
    earlier = work.store.of_tasks([task.id], work.outputs)
    run = _Run(work, task, earlier, clock)
    try:
        rest = run.process() if task.lost is None else run.give_up(task.lost)
    except FloodmarkError:
        run.store()  # what the function has done before it failed for good
        raise
    run.store()
    return run.applied(rest)


@dataclass
class _Held:
    """Results that are not stored yet."""

    rows: list[list[Rows]]  # by output
    entries: list[Entries] = field(default_factory=list)
    gone: list[Hashes] = field(default_factory=list)
    failed: list[pa.Table] = field(default_factory=list)
    bytes: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.entries and not self.gone

    def add(self, chunk: Chunk, called: Called) -> None:
        for held, *rows in zip(self.rows, called.rows, called.key_hashes, called.hashes, strict=True):
            if (some := Rows(*rows)).table.num_rows:
                held.append(some)
                self.bytes += int(some.table.nbytes) + 2 * _KEY_BYTES * some.table.num_rows
        self.entries.append(Entries(chunk.hashes, chunk.signature, _failed_at(chunk, called)))
        self.bytes += _KEY_BYTES * len(chunk)
        if called.failed.num_rows:
            self.failed.append(called.failed)
            self.bytes += int(called.failed.nbytes)

    def add_gone(self, gone: Hashes) -> None:
        self.gone.append(gone)
        self.bytes += _KEY_BYTES * len(gone)

    def fresh(self) -> Fresh:
        return Fresh(
            rows=tuple(Rows.joined(held) if held else None for held in self.rows),
            entries=Entries.joined(self.entries),
            gone=Hashes.joined(self.gone),
            failed=pa.concat_tables(self.failed) if self.failed else None,
        )


class _Run:
    """One attempt at a task."""

    def __init__(self, work: Work, task: Task, earlier: list[Stored], clock: Callable[[], float]) -> None:
        self._work, self._task, self._clock = work, task, clock
        self._stored = list({s.id: s for s in (*task.inherited, *earlier)}.values())
        self._outputs = known_columns(work.outputs, self._stored)
        before = [work.seen, *(s.undecided for s in self._stored)]
        self._seen = list(seen_columns(self._outputs, before, work.function.name))
        self._mine = _identities(work, self._stored)
        self._found: Known | None = None if work.found is None else work.found.open()
        self._tried = Tried.of(work.attempted.failed())
        self._held = self._nothing()
        self._used = BitMap()
        self._calls = self._traces = 0
        self._pace: list[tuple[int, float]] = []  # rows and seconds of the first call, and of the others
        self._rows = 0  # of the task's that have been looked at
        self._began = self._since = clock()

    def process(self) -> tuple[Unit, ...]:
        """Call the function until all is done, or something has been learnt or lasts too long; what was left over."""
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

    def give_up(self, lost: Raised) -> tuple[Unit, ...]:
        """Write the key down as failed that no worker lives through."""
        work = self._work
        done = HashIndex.of(Hashes.joined([hashes.read() for s in self._stored for hashes in s.processed]))
        for unit in self._task.units:
            for chunk in work.chunks_of_keys(unit):
                self._add_gone(chunk)
                if len(chunk) and not done.has(chunk.hashes)[0]:
                    attempts = self._tried.before(chunk.hashes)
                    what = (work.function, chunk, self._outputs, work.on_error, attempts, work.now_ms)
                    self._held.add(chunk, not_called(*what, lost.error, lost.trace[-_LONGEST_TRACE:]))
        return ()

    def _process(self, chunk: Chunk) -> None:
        self._add_gone(chunk)
        for part in self._to_call(chunk):
            self._call(part)
        self._rows += max(len(chunk) + len(chunk.gone), chunk.rows)
        if self._held.bytes >= HELD_BYTES or self._clock() - self._since >= self._work.target_seconds:
            self.store()

    def _is_waited_for(self, known: tuple[OutputShape, ...]) -> bool:
        """Whether others can begin now, since something was learnt that was not known before."""
        return self._task.goes_ahead and self._outputs is not known

    def _to_call(self, chunk: Chunk) -> list[Chunk]:
        """The keys of a chunk whose results are not known, as chunks that hold no others."""
        if not len(chunk):
            return []
        if not len(self._mine) and self._found is None:
            return [chunk]
        wanted = identity(chunk.hashes, chunk.signature)
        done = self._mine.has(wanted)
        if self._found is not None:
            at = self._found.find(wanted)
            used = np.flatnonzero(~done & (at >= 0))
            self._used |= addresses.from_array(at[used])
            done |= at >= 0
        return chunk.chosen(np.flatnonzero(~done)) if done.any() else [chunk]

    def _call(self, chunk: Chunk) -> None:
        before = self._clock()
        attempts: I64 = self._tried.before(chunk.hashes)
        work = self._work
        called = call_chunk(work.function, chunk, self._outputs, work.on_error, attempts, work.now_ms, time.sleep)
        called = self._with_few_traces(called)
        self._held.add(chunk, self._learnt(called))
        self._calls += called.calls
        self._time(max(len(chunk), chunk.rows), self._clock() - before)

    def _time(self, rows: int, seconds: float) -> None:
        if len(self._pace) < 2:
            self._pace.append((rows, seconds))
        else:
            self._pace[1] = (self._pace[1][0] + rows, self._pace[1][1] + seconds)

    def _speed(self) -> tuple[int, float]:
        """Rows and the seconds they took. The first call may have had to import or to load a model: it says little,
        unless it is all there is and would alone have been too long."""
        if not self._pace or (len(self._pace) == 1 and self._pace[0][1] < self._task.patience):
            return 0, 0.0
        return self._pace[-1]

    def _learnt(self, called: Called) -> Called:
        """The same, cast to the columns of the outputs: the first rows of one decide which it has."""
        rows, keys = list(called.rows), list(called.key_hashes)
        outputs = list(self._outputs)
        for n, shape in enumerate(outputs):
            if shape.layout is not None or not rows[n].num_rows:
                continue
            seen = joined_columns([self._seen[n], rows[n].schema], shape, self._work.function.name)
            assert seen is not None  # there are rows
            self._seen[n] = seen
            if undecided(seen):
                continue
            outputs[n] = learnt(shape, seen)
            mine = brought(Rows(rows[n], keys[n], called.hashes[n]), outputs[n], seen)
            rows[n], keys[n] = mine.table, mine.key
            self._held.rows[n] = [brought(held, outputs[n], seen) for held in self._held.rows[n]]
        if all(ours is theirs for ours, theirs in zip(outputs, self._outputs, strict=True)):
            return called
        self._outputs = tuple(outputs)
        return replace(called, rows=tuple(rows), key_hashes=tuple(keys))

    def _with_few_traces(self, called: Called) -> Called:
        """The same, without tracebacks once there are many: a function that fails everywhere fails in one place."""
        failed = called.failed
        self._traces += failed.num_rows
        if not failed.num_rows or self._traces <= _TRACES:
            return called
        at = failed.num_columns - len(FACTS) + FACTS.get_field_index("traceback")
        none = pa.array([""] * failed.num_rows, failed.schema.field(at).type)
        return replace(called, failed=failed.set_column(at, failed.schema.field(at), none))

    def _add_gone(self, chunk: Chunk) -> None:
        gone = chunk.gone
        if len(gone) and len(self._mine):
            gone = gone.take(~self._mine.has(gone_identity(gone)))
        if len(gone):
            self._held.add_gone(gone)

    def _lasts_too_long(self) -> bool:
        elapsed = self._clock() - self._began
        if elapsed < self._task.patience:
            return False
        left = max(0, self._task.rows - self._rows)
        return left * elapsed / max(self._rows, 1) > FAR_LONGER * self._work.target_seconds

    def _nothing(self) -> _Held:
        return _Held([[] for _ in self._outputs])

    def store(self) -> None:
        """Make a checkpoint of what is held."""
        if not self._held.is_empty:
            held, self._held = self._held, self._nothing()
            pairs = list(zip(self._outputs, self._seen, strict=True))
            for n, (shape, seen) in enumerate(pairs):
                if shape.layout is None:
                    held.rows[n] = [brought(rows, shape, seen) for rows in held.rows[n]]
            columns = tuple(seen if shape.layout is None else None for shape, seen in pairs)
            fresh = replace(held.fresh(), undecided=columns)
            self._stored.append(self._work.store.put(self._task.id, self._outputs, fresh))
        self._since = self._clock()

    def applied(self, rest: tuple[Unit, ...]) -> Applied:
        rows, seconds = self._speed()
        return Applied(
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
        )


def _identities(work: Work, stored: list[Stored]) -> HashIndex:
    """What checkpoints of this run have: their inputs are pinned as ours are, so the gone keys count, too."""
    parts = []
    for s in stored:
        entries = work.store.entries(s)
        parts.append(identity(entries.hashes, entries.signature))
        if s.gone is not None:
            parts.append(gone_identity(s.gone.read()))
    return HashIndex.of(Hashes.joined(parts))


def _failed_at(chunk: Chunk, called: Called) -> Attempts:
    """For each key of a chunk the attempt at which it failed, else 0."""
    attempts = np.zeros(len(chunk), np.int32)
    if called.failed.num_rows:
        at = failed_hashes(called.failed).positions_in(chunk.hashes)
        attempts[at] = failed_column(called.failed, "attempts").to_numpy()
    return attempts
