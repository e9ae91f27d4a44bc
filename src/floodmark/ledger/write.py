"""Writing: stage, finalise, publish; one retry rule for lost races, and no commit twice for one source state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.chain.events import DatasetKind, MetadataEvent, SetDataSchema, SetVocab, SourceState
from floodmark.engine import Progress
from floodmark.ledger import finalise as finalising
from floodmark.ledger.commit import Commit, data_events, describe_commit, plan_blocks, publish, read_commit
from floodmark.ledger.errors import CommitConflict, NothingToWrite, ReadOnlyDataset
from floodmark.ledger.incoming import Frame, Incoming
from floodmark.ledger.layout import Layout, derive, row_group_size_of, vocabulary
from floodmark.ledger.parts import Part
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.snapshot import Snapshot, load_at
from floodmark.ledger.stage import Staged, discard_remote, incoming_schema, stage
from floodmark.ledger.strategy import Strategy, strategy_of
from floodmark.storage.retry import MAX_RACES, races
from floodmark.storage.scratch import staging_area
from floodmark.storage.slices import SliceFile

_MS = 10**6


@dataclass(frozen=True)
class Written:
    """A commit and the snapshot after it."""

    commit: Commit
    snapshot: Snapshot


@dataclass
class Write(ABC):
    """One write to one dataset, from the data handed over to the commit. What becomes of the data, subclasses say."""

    name: str
    runtime: Runtime
    data: Incoming
    source_state: SourceState | None
    progress: Progress

    def run(self, snapshot: Snapshot) -> Written:
        """Stage, finalise and publish; when the head moves meanwhile, only what depends on it is done again."""
        self._check_takes_data(snapshot)
        if (first := self._committed_before(snapshot)) is not None:
            return Written(first, snapshot)
        with staging_area(snapshot.objects.store) as folder:
            try:
                return self._run(snapshot, folder)
            finally:
                discard_remote(snapshot.objects, folder)

    @abstractmethod
    def _run(self, snapshot: Snapshot, folder: Path) -> Written:
        """Stage, finalise, publish, with a folder for unfinished files."""

    def _layout(self, snapshot: Snapshot) -> tuple[Layout, list[MetadataEvent]]:
        """The dataset's columns; on a first write those of the data, and the event that sets them."""
        if snapshot.layout is not None:
            return snapshot.layout, []
        schema = incoming_schema(self.data)
        if len(schema) == 0:
            raise self._nothing()
        strategy = strategy_of(snapshot.state)
        op = vocabulary(snapshot.state.vocab).op
        own = pa.schema([f for f in schema if not (strategy.takes_op and f.name == op)])
        return first_layout(own, snapshot.state.vocab, strategy)

    def _system_time(self, snapshot: Snapshot) -> int:
        """Now, in whole milliseconds, and never before the chain's newest block."""
        previous = snapshot.state.system_time or 0
        now = self.runtime.clock() // _MS * _MS
        return max(now, -(-previous // _MS) * _MS)

    def _committed_before(self, snapshot: Snapshot) -> Commit | None:
        if self.source_state is None or (found := snapshot.find_state(self.source_state)) is None:
            return None
        # It may be visible and not yet durable: what we acknowledge must be both.
        snapshot.objects.head.confirm()
        return read_commit(snapshot.objects, found[0], self.source_state)

    def _nothing(self) -> NothingToWrite:
        return NothingToWrite(
            f"nothing to write to {self.name!r}: the data has no rows", hint="no block was added to the dataset"
        )

    def _reloaded(self, snapshot: Snapshot) -> Snapshot:
        head = snapshot.objects.read_head()
        if head is None:
            raise CommitConflict(f"dataset {self.name!r} was dropped while it was written to", hint="create it again")
        return load_at(snapshot.objects, head, {})

    def _check_takes_data(self, snapshot: Snapshot) -> None:
        if snapshot.state.dataset_kind is DatasetKind.DERIVATIVE:
            raise ReadOnlyDataset(
                f"dataset {self.name!r} is derived from others and takes no outside data",
                hint="write to its inputs, then run the step, or refresh the view",
            )

    def _lost(self) -> CommitConflict:
        return CommitConflict(
            f"the write to {self.name!r} lost {MAX_RACES} races against other writers and did not happen",
            hint="write again, or let fewer processes write to this dataset at once",
        )

    def _pause(self, race: int) -> None:
        jitter = self.runtime.random_bytes(1)[0] / 255
        self.runtime.sleep(min(0.02 * 2 ** min(race, 6), 1.0) * (0.5 + jitter))


@dataclass
class Append(Write):
    """Every row becomes a record."""

    def _run(self, snapshot: Snapshot, folder: Path) -> Written:
        objects = snapshot.objects
        if isinstance(self.data, Frame) and self.data.table.num_rows == 0:
            raise self._nothing()  # before its columns, which often have no types then
        layout, definitions = self._layout(snapshot)
        staged = stage(self.data, layout, folder, objects, self.runtime, row_group_size_of(snapshot.state))
        if staged.rows == 0:
            raise self._nothing()
        self.progress.start(f"writing {self.name}", staged.rows)
        parts: list[Part] = staged.parts
        system_time = self._system_time(snapshot)
        slices = self._finalise(staged, parts, snapshot, layout, system_time, folder)
        # From here on nobody else who takes turns can move the head, so a long write is not overtaken again and again.
        with objects.turn():
            for race in races(MAX_RACES, self._pause):
                if race:
                    snapshot = self._reloaded(snapshot)
                    if (first := self._committed_before(snapshot)) is not None:
                        return Written(first, snapshot)
                    now_layout, definitions = self._layout(snapshot)
                    # The same columns: what was cast, sorted and hashed stays so. Others: from the start.
                    parts = finalising.again(slices, layout, staged.parts) if now_layout == layout else staged.parts
                    layout, system_time = now_layout, self._system_time(snapshot)
                    slices = self._finalise(staged, parts, snapshot, layout, system_time, folder)
                if objects.read_head() == snapshot.head:
                    events = [*definitions, *data_events(snapshot.state, slices, self.source_state)]
                    planned, state = plan_blocks(snapshot.state, events, system_time)
                    if publish(objects, snapshot.head, slices, planned):
                        commit = describe_commit(planned[len(definitions) :], self.source_state)
                        return Written(commit, snapshot.after(planned, state))
        raise self._lost()

    def _finalise(
        self, staged: Staged, parts: list[Part], snapshot: Snapshot, layout: Layout, system_time: int, folder: Path
    ) -> list[SliceFile]:
        at, size = system_time // _MS, row_group_size_of(snapshot.state)
        tasks = finalising.plan(parts, snapshot.next_offset, at, layout, folder, snapshot.objects, size)
        slices: list[SliceFile] = staged.run(tasks, finalising.finalise, progress=self.progress, weight=_rows)
        return slices


def first_layout(schema: pa.Schema, vocab: SetVocab | None, strategy: Strategy) -> tuple[Layout, list[MetadataEvent]]:
    """The layout of a dataset without one yet, and the event that gives it."""
    declared = None if vocab is None else vocab.event_time_column
    layout = derive(schema, vocabulary(vocab), declared, strategy.key)
    strategy.check_compared(layout.data.names)
    return layout, [SetDataSchema(schema=layout.to_odf())]


def _rows(task: Any) -> int:
    return int(task.part.rows)
