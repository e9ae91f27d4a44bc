"""Write data to a dataset: stage it, finalise slices, publish blocks.

A lost race is retried. A source state is committed only once.
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.chain.events import DatasetKind, MetadataEvent, SetDataSchema, SetVocab, SourceState
from floodmark.engine.progress import Progress
from floodmark.engine.session import Runtime
from floodmark.errors import CommitConflict, NothingToWrite, ReadOnlyDataset, UnknownColumns
from floodmark.ledger.block_attributes import BatchTally, tally_attributes
from floodmark.ledger.casting import conform_columns
from floodmark.ledger.commit import (
    Commit,
    data_events,
    describe_commit,
    empty_event,
    plan_blocks,
    publish,
    read_commit,
    unchanged_commit,
)
from floodmark.ledger.data_input import Incoming, TableData
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import Part, SlicePart
from floodmark.ledger.schema import Layout, derive_layout, row_group_size_of, rows_per_group, vocabulary
from floodmark.ledger.snapshot import Snapshot, load_snapshot
from floodmark.ledger.staging import StagedParts, discard_remote, incoming_schema, stage
from floodmark.ledger.strategy import Strategy, strategy_of
from floodmark.storage.parquet import SYSTEM_TIME_TYPE, SliceFile, write_slice
from floodmark.storage.pointer import MAX_RACES, attempt_numbers
from floodmark.storage.scratch import explain_write_errors, staging_area

_MS = 10**6
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WriteResult:
    """A commit and the snapshot after it."""

    commit: Commit
    snapshot: Snapshot


@dataclass
class Write(ABC):
    """One write to one dataset, from the incoming data to the commit. Subclasses decide how rows become records."""

    name: str
    runtime: Runtime
    data: Incoming
    source_state: SourceState | None
    progress: Progress
    _schema: pa.Schema | None = field(default=None, init=False, repr=False)

    def run(self, snapshot: Snapshot) -> WriteResult:
        """Stage, finalise and publish. If the head moves meanwhile, repeat only the work that depends on it."""
        self._check_takes_data(snapshot)
        if (first := self._committed_before(snapshot)) is not None:
            return WriteResult(first, snapshot)
        with staging_area(snapshot.objects.store) as folder:
            try:
                return self._run(snapshot, folder)
            except UnknownColumns as error:
                if snapshot.layout is not None or "evolve" not in error.hint:
                    raise
                # A dataset without columns cannot be evolved: another file of this write has decided them.
                hint = "drop it, or create the dataset with schema=, which has the columns of all files"
                raise UnknownColumns(error.message, hint=hint, columns=error.columns) from error
            finally:
                discard_remote(snapshot.objects, folder)

    @abstractmethod
    def _run(self, snapshot: Snapshot, folder: Path) -> WriteResult:
        """Stage, finalise and publish; `folder` is for unfinished files."""

    def _layout(self, snapshot: Snapshot) -> tuple[Layout, list[MetadataEvent]]:
        """The dataset's layout, and the events that define it. On the first write the layout comes from the data."""
        if snapshot.layout is not None:
            return snapshot.layout, []
        strategy = strategy_of(snapshot.state)
        if self._schema is None:
            self._schema = incoming_schema(self.data, strategy.key)
        schema = self._schema
        if len(schema) == 0:
            raise self._nothing()
        op = vocabulary(snapshot.state.vocab).op
        own = pa.schema([f for f in schema if not (strategy.takes_op and f.name == op)])
        used = (*strategy.key, vocabulary(snapshot.state.vocab).event_time)
        empty = [f.name for f in own if pa.types.is_null(f.type) and f.name not in used]
        if empty and len(empty) < len(own):
            _log.warning(
                "%r gets no column %s: it has no values, so no type; evolve() adds it when it has some",
                self.name,
                ", ".join(map(repr, empty)),
            )
            own = pa.schema([f for f in own if f.name not in empty])
        return first_layout(own, snapshot.state.vocab, strategy)

    def _check_has_rows(self, snapshot: Snapshot) -> None:
        """Refuse an empty frame as the first write: its columns often have no types."""
        if snapshot.layout is None and isinstance(self.data, TableData) and self.data.table.num_rows == 0:
            raise self._nothing()

    def _events_without_rows(self, snapshot: Snapshot, tally: BatchTally) -> list[MetadataEvent]:
        """The event of a write that changes no row: it records the source state. None without one."""
        if self.source_state is None:
            return []
        empty = replace(empty_event(snapshot.state), extra=tally_attributes(tally))
        return [replace(empty, new_source_state=self.source_state)]

    def _unchanged(self, snapshot: Snapshot, tally: BatchTally) -> WriteResult:
        """The result of a write that changed nothing."""
        snapshot.objects.head.make_durable()  # the commit that makes this write unnecessary must survive a crash
        return WriteResult(unchanged_commit(snapshot.head, snapshot.head_block, snapshot.state, tally), snapshot)

    def _system_time(self, snapshot: Snapshot) -> int:
        return next_system_time(snapshot, self.runtime)

    def _committed_before(self, snapshot: Snapshot) -> Commit | None:
        if self.source_state is None or (found := snapshot.find_state(self.source_state)) is None:
            return None
        # The earlier commit may be visible but not yet durable. It must be both before we acknowledge it.
        snapshot.objects.head.make_durable()
        return read_commit(snapshot.objects, found[0], self.source_state)

    def _nothing(self) -> NothingToWrite:
        return NothingToWrite(
            f"nothing to write to {self.name!r}: the data has no rows, and the dataset has no columns yet",
            hint="write rows first, or create the dataset with schema=; then a frame without rows changes nothing",
        )

    def _reloaded(self, snapshot: Snapshot) -> Snapshot:
        head = snapshot.objects.read_head()
        if head is None:
            raise CommitConflict(
                f"dataset {self.name!r} was dropped during the write", hint="create the dataset again, then write again"
            )
        return load_snapshot(snapshot.objects, head, {})

    def _check_takes_data(self, snapshot: Snapshot) -> None:
        if snapshot.state.dataset_kind is DatasetKind.DERIVATIVE:
            raise ReadOnlyDataset(
                f"dataset {self.name!r} is derived from other datasets and accepts no writes",
                hint="write to its inputs, then run the step or refresh the view",
            )

    def _lost(self) -> CommitConflict:
        return CommitConflict(
            f"nothing was written to {self.name!r}: the commit lost {MAX_RACES} races against other writers",
            hint="write again, or let fewer processes write to this dataset at the same time",
        )

    def _pause(self, race: int) -> None:
        jitter = self.runtime.random_bytes(1)[0] / 255
        self.runtime.sleep(min(0.02 * 2 ** min(race, 6), 1.0) * (0.5 + jitter))


@dataclass
class Append(Write):
    """A write that adds every row as a new record."""

    def _run(self, snapshot: Snapshot, folder: Path) -> WriteResult:
        objects = snapshot.objects
        self._check_has_rows(snapshot)
        layout, definitions = self._layout(snapshot)
        staged = stage(self.data, layout, folder, objects, self.runtime, row_group_size_of(snapshot.state))
        if staged.rows == 0:
            if snapshot.layout is None:
                raise self._nothing()
            if self.source_state is None:
                return self._unchanged(snapshot, BatchTally())
        self.progress.start(f"writing {self.name}", staged.rows)
        parts: list[Part] = staged.parts
        system_time = self._system_time(snapshot)
        slices = self._finalise(staged, parts, snapshot, layout, system_time, folder)
        # While we hold the turn, other writers that take turns cannot move the head, so a long write is not starved.
        with objects.turn():
            for race in attempt_numbers(MAX_RACES, self._pause):
                if race:
                    snapshot = self._reloaded(snapshot)
                    if (first := self._committed_before(snapshot)) is not None:
                        return WriteResult(first, snapshot)
                    now_layout, definitions = self._layout(snapshot)
                    # With the same layout, reuse rows that are cast, sorted and hashed. With a new layout, start over.
                    parts = parts_for_retry(slices, layout, staged.parts) if now_layout == layout else staged.parts
                    layout, system_time = now_layout, self._system_time(snapshot)
                    slices = self._finalise(staged, parts, snapshot, layout, system_time, folder)
                if objects.read_head() == snapshot.head:
                    data = data_events(snapshot.state, slices, self.source_state)
                    events = [*definitions, *(data or self._events_without_rows(snapshot, BatchTally()))]
                    planned, state = plan_blocks(snapshot.state, events, system_time)
                    if publish(objects, snapshot.head, slices, planned):
                        commit = describe_commit(planned[len(definitions) :], self.source_state)
                        return WriteResult(commit, snapshot.after(planned, state))
        raise self._lost()

    def _finalise(
        self, staged: StagedParts, parts: list[Part], snapshot: Snapshot, layout: Layout, system_time: int, folder: Path
    ) -> list[SliceFile]:
        at, size = system_time // _MS, row_group_size_of(snapshot.state)
        tasks = finalise_tasks(parts, snapshot.next_offset, at, layout, folder, snapshot.objects, size)
        slices: list[SliceFile] = staged.run(tasks, finalise, progress=self.progress, weight=_rows)
        return slices


def next_system_time(snapshot: Snapshot, runtime: Runtime) -> int:
    """The current time in whole milliseconds, never before the chain's newest block."""
    previous = snapshot.state.system_time or 0
    return max(runtime.clock() // _MS * _MS, -(-previous // _MS) * _MS)


def first_layout(schema: pa.Schema, vocab: SetVocab | None, strategy: Strategy) -> tuple[Layout, list[MetadataEvent]]:
    """The layout of a dataset that has none yet, and the event that defines it."""
    declared = None if vocab is None else vocab.event_time_column
    layout = derive_layout(schema, vocabulary(vocab), declared, strategy.key)
    strategy.check_compared(layout.data.names)
    return layout, [SetDataSchema(schema=layout.to_odf())]


def _rows(task: Any) -> int:
    return int(task.part.rows)


@dataclass(frozen=True)
class FinaliseTask:
    """Everything a task needs to write one part as a slice, in any process."""

    part: Part
    start: int
    system_time_ms: int
    layout: Layout
    folder: Path
    objects: DatasetObjects
    row_group_size: int | None = None


def finalise_tasks(
    parts: Sequence[Part],
    start: int,
    system_time_ms: int,
    layout: Layout,
    folder: Path,
    objects: DatasetObjects,
    row_group_size: int | None,
) -> list[FinaliseTask]:
    """One task per part, with consecutive offsets from `start`."""
    starts = accumulate((part.rows for part in parts), initial=start)
    return [
        FinaliseTask(part, at, system_time_ms, layout, folder, objects, row_group_size)
        for part, at in zip(parts, starts, strict=False)
    ]


def finalise(task: FinaliseTask) -> SliceFile:
    """Write one part as a slice. With a remote store, upload it at once: no other process can read the local file."""
    part, layout = task.part, task.layout
    if isinstance(part, SlicePart):
        data, digests = part.load(), part.digests
    else:
        data, digests = conform_columns(part.load(), layout, part.where), {}
    data = with_event_time(data, layout, task.system_time_ms)
    folder = task.folder if task.objects.is_local else task.objects.store.staging()
    path = folder / f"slice-{uuid.uuid4().hex}"
    try:
        with explain_write_errors(f"a slice of {part.rows:,} rows", folder):
            slice_file = write_slice(
                path,
                data,
                vocab=layout.vocab,
                start=task.start,
                system_time_ms=task.system_time_ms,
                known_digests=digests,
                row_group_rows=rows_per_group(data.num_rows, task.row_group_size),
            )
        if task.objects.is_local:
            return slice_file
        task.objects.store.put_file(task.objects.data_key(slice_file.physical_hash), path)
        return replace(slice_file, path=None)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def with_event_time(data: pa.Table, layout: Layout, system_time_ms: int) -> pa.Table:
    """The data columns with the event time first. A dataset without an event time column gets the system time."""
    if layout.event_time is not None:
        return data
    times = pa.array(np.full(data.num_rows, system_time_ms, dtype=np.int64)).cast(SYSTEM_TIME_TYPE)
    return data.add_column(0, layout.payload_schema.field(0), times)


def parts_for_retry(slice_files: Sequence[SliceFile], layout: Layout, parts: Sequence[Part]) -> list[Part]:
    """The parts for the next attempt after a lost race: finished slices with digests, if their files still exist."""
    data = set(layout.data.names)
    columns = [name for name in layout.payload_schema.names if name in data]
    return [
        part
        if done.path is None or not done.path.exists()  # uploaded, or moved into the store before the race was lost
        else SlicePart(done.rows, done.path, tuple(columns), {name: done.digests[name] for name in columns})
        for done, part in zip(slice_files, parts, strict=True)
    ]
