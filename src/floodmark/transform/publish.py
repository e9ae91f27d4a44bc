"""Committing a wave of results: secondary outputs first, the primary one last, with the meta that says what was done.

A crash in between leaves the others ahead of the primary one for a while, never behind: the next run takes the same
results from their checkpoints, and rows that are there already are not written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.chain.events import MetadataEvent
from floodmark.derive.positions import blocks_at, chain_moves
from floodmark.engine import Progress
from floodmark.ledger.commit import Commit
from floodmark.ledger.keys import index as key_index
from floodmark.ledger.keys.index import KeyIndex
from floodmark.ledger.layout import Layout
from floodmark.ledger.merge.derive import (
    Moves,
    Results,
    SortedHashes,
    derive,
    derived_layout,
    evolved_layout,
    write_hashes,
)
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.storage.arrays import Hashes, starts_of_groups
from floodmark.storage.scratch import staging_area
from floodmark.transform.functions.returned import OutputShape
from floodmark.transform.made import Declared, Made, packed
from floodmark.transform.meta import Draft, Read, RunInfo, TransformMeta, no_failures
from floodmark.transform.meta.failed import failed_hashes
from floodmark.transform.output import Follows, same_transform
from floodmark.transform.pinned import PinnedStep
from floodmark.transform.tasks.checkpoints import Stored, results


@dataclass
class Publisher:
    """Commits the waves of one run. What it has committed, it knows; when somebody else commits, it stops."""

    pinned: PinnedStep
    runtime: Runtime
    run: RunInfo
    is_fresh: bool  # whether this run replaces everything
    is_asked: bool = False  # whether its keys may be pending nowhere
    meta: TransformMeta = field(init=False)
    snapshots: list[Snapshot] = field(init=False)
    caches: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.meta = self.pinned.meta
        self.snapshots = [output.present[1] for output in self.pinned.outputs]
        self.caches = [{} for _ in self.snapshots]

    def commit(
        self,
        stored: Sequence[Stored],
        shapes: Sequence[OutputShape],
        positions: Mapping[str, int],
        watermark: int | None,
        seconds: float,
        progress: Progress,
    ) -> list[Commit]:
        """Make these results visible, and with them the positions; `CommitConflict` when somebody else was quicker."""
        pinned = self.pinned
        processed = [hashes.read() for s in stored for hashes in s.processed]
        tables = [table for s in stored if (table := s.failed_table()) is not None]
        failures = pa.concat_tables([no_failures(pinned.keys), *tables])
        say = self.meta.fresh if self.is_fresh else self.meta.after
        heads = blocks_at(pinned.heads, pinned.inputs)
        read = Read(blocks_at(positions, pinned.inputs), {name: (pinned.heads[name], at) for name, at in heads.items()})
        given = (self.run, processed, failures, positions, pinned.version)
        draft = say(*given, name=pinned.step.name, seconds=seconds, read=read)
        asked = self.run.id if self.is_asked else None
        ahead = None if self.run.is_within(positions) else dict(self.run.pinned)
        failed = packed(failed_hashes(failures))
        note = Follows(str(pinned.outputs[0].id), pinned.step.name, pinned.version, asked, ahead, failed)
        made = self._made(failed)
        commits = []
        with staging_area(self.snapshots[0].objects.store) as folder:
            for number in range(len(pinned.outputs) - 1, -1, -1):
                objects = self.snapshots[number].objects
                is_primary = number == 0
                moved = Moves(
                    inputs=chain_moves(self.snapshots[number].state.inputs, positions, pinned.inputs),
                    definitions=self._definitions(number, shapes[number].layout),
                    checkpoint=draft.checkpoint if is_primary else note.checkpoint,
                    put=_Put(draft, objects, made, self._declared)
                    if is_primary
                    else _Put(note, objects, None, self._declared),
                    watermark=watermark,
                )
                leaving = self._leaving(number, processed, folder)
                found = results(stored, number)
                written = derive(
                    pinned.outputs[number].name,
                    self.runtime,
                    self.snapshots[number],
                    found if leaving is None else Results(found.rows, [*found.processed, leaving]),
                    moved,
                    progress,
                    self.caches[number],
                )
                self.snapshots[number] = written.snapshot
                commits.append(written.commit)
                if leaving is not None and leaving.store is not None:
                    leaving.store.delete(leaving.path)
        self.meta = draft.meta
        self.is_fresh = False
        draft.discard_superseded(self.snapshots[0].objects)
        return commits

    @property
    def has_committed(self) -> bool:
        return self.snapshots[0] is not self.pinned.primary

    def forget(self, version: str, progress: Progress) -> None:
        """Commit that nothing was processed, so that the next run processes everything; no row changes."""
        draft = self.meta.fresh(self.run, [], no_failures(self.pinned.keys), {}, version)
        objects = self.snapshots[0].objects
        moved = Moves(checkpoint=draft.checkpoint, put=_Put(draft, objects, None, None))
        name = self.pinned.outputs[0].name
        derive(name, self.runtime, self.snapshots[0], Results((), ()), moved, progress, self.caches[0])
        draft.discard_superseded(objects)

    def _made(self, failed: str) -> Made:
        heads = {given.dataset_id: given.snapshot.head.text for given in self.pinned.inputs}
        purged = {given.dataset_id: given.purged_before for given in self.pinned.inputs}
        run, step = self.run, self.pinned.step.name
        return Made(step, self.pinned.version, run.id, run.process_ts, dict(run.pinned), heads, purged, failed)

    @property
    def _declared(self) -> Declared:
        pinned = self.pinned
        columns = [spec.columns for spec in pinned.step.inputs]
        filters = pinned.step.filters
        return Declared.of(pinned.step.name, pinned.version, pinned.required_shape, columns, filters)

    def _definitions(self, number: int, layout: Layout | None) -> tuple[MetadataEvent, ...]:
        """What goes before the data: another transform, the first columns, or more of them."""
        snapshot, wanted = self.snapshots[number], self.pinned.transform
        events: list[MetadataEvent] = []
        if not same_transform(snapshot.state.transform, wanted):
            events.append(wanted)
        if layout is not None and snapshot.layout is None:
            events += derived_layout(layout.data, strategy_of(snapshot.state), snapshot.state.vocab)[1]
        elif layout is not None and snapshot.layout is not None and layout != snapshot.layout:
            events += evolved_layout(self.pinned.outputs[number].name, snapshot.layout, layout.data)[1]
        return tuple(events)

    def _leaving(self, number: int, processed: Sequence[Hashes], folder: Path) -> SortedHashes | None:
        """When everything was processed: what else an output holds, of keys that are gone, left out or unknown."""
        snapshot = self.snapshots[number]
        if not self.is_fresh or snapshot.state.last_offset is None:
            return None
        others = key_index.mended(snapshot, self.caches[number], lambda index: _others(index, processed))
        if len(others) == 0:
            return None
        return write_hashes(others, folder, snapshot.objects, f"{snapshot.objects.folder}/info/transform/leaving")


@dataclass(frozen=True)
class _Put:
    """Puts the files of a checkpoint where an output has them, and what is noted beside it."""

    what: Draft | Follows
    objects: DatasetObjects
    made: Made | None
    declared: Declared | None

    def __call__(self) -> None:
        self.what.put(self.objects)
        if self.declared is not None:
            self.declared.put_in(self.objects)
        if self.made is not None:
            self.made.put_beside(self.objects, self.what.checkpoint.physical_hash)


def _others(index: KeyIndex, processed: Sequence[Hashes]) -> Hashes:
    """The transform keys of an output's current rows that are none of these, each once."""
    live = index.live_between()
    keys = live.key if live.lookup is None else live.lookup
    keys = keys.take(starts_of_groups([keys.high, keys.low]))  # they are sorted
    return keys.take(~keys.among(Hashes.joined(list(processed))))
