"""Committing what a transform computed: one transaction of data, positions and checkpoint, or nothing at all.

It never rebases: its results belong to the positions that it moves, so when the head is another one, whoever computed
them plans again (`CommitConflict`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.chain.events import Checkpoint, DatasetKind, ExecuteTransform, MetadataEvent, Nanos, SetDataSchema
from floodmark.chain.hashes import Multihash
from floodmark.chain.ids import DatasetId
from floodmark.engine import Progress, run
from floodmark.ledger.attributes import Tally
from floodmark.ledger.commit import Planned, TransformMoves, ends_transaction, plan_blocks, transform_events, unneeded
from floodmark.ledger.conform import fits
from floodmark.ledger.create import derived_layout
from floodmark.ledger.errors import CommitConflict, NoSchema, ReadOnlyDataset, UnfitResult
from floodmark.ledger.fold import fold_if_due
from floodmark.ledger.incoming import Frame, Incoming
from floodmark.ledger.keys.index import KeyIndex
from floodmark.ledger.layout import Layout, from_odf, vocabulary
from floodmark.ledger.merge.intake import Intake, Taken
from floodmark.ledger.merge.results import (
    Results,
    SortedHashes,
    result_batch,
    result_buckets,
    write_hashes,
    write_results,
)
from floodmark.ledger.merge.write import UNPACKED, Merge, Prepared
from floodmark.ledger.parts import PART_BYTES
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.stage import FEW_CORES, here, incoming_schema
from floodmark.ledger.strategy import strategy_of
from floodmark.ledger.types import canonical
from floodmark.ledger.write import Written

__all__ = [
    "Moves",
    "Results",
    "SortedHashes",
    "derive",
    "derive_snapshot",
    "derived_layout",
    "evolved_layout",
    "write_hashes",
    "write_results",
]

SLICE_BYTES = PART_BYTES
"""About so many bytes of results become one slice, rows that are repeated included."""

HERE_ROWS = 1 << 20
"""So many rows and processed keys are merged by threads of this process; more by Spark, unless it has no more cores."""


def _nothing_to_put() -> None:
    """There are no files to go before the blocks."""


@dataclass(frozen=True)
class Moves:
    """What moves with the records: inputs, checkpoint, watermark; and the definitions that go before them."""

    inputs: Mapping[DatasetId, tuple[Multihash, int | None]] = field(default_factory=dict)
    """The block and the offset up to and with which an input was read; one that is not named did not move."""
    definitions: tuple[MetadataEvent, ...] = ()
    checkpoint: Checkpoint | None = None
    put: Callable[[], None] = _nothing_to_put
    """Puts the files of the checkpoint, durably; called before any block is written."""
    watermark: Nanos | None = None


def derive(
    name: str,
    runtime: Runtime,
    snapshot: Snapshot,
    results: Results,
    moves: Moves,
    progress: Progress,
    cache: dict[str, Any],
) -> Written:
    """Commit the results of some keys on top of a snapshot, in one move of its head.

    What the output holds of the processed keys and the results lack is retracted, what is the same is not written.
    `CommitConflict` when the head has moved. Nothing changed and nothing moved: no block, and the present head.
    """
    way = _DeriveResults(name, runtime, Frame(pa.table({})), None, progress, cache, moves=moves, results=results)
    return _finished(name, runtime, cache, way.run(snapshot))


def derive_snapshot(
    name: str,
    runtime: Runtime,
    snapshot: Snapshot,
    data: Incoming,
    moves: Moves,
    progress: Progress,
    cache: dict[str, Any],
) -> Written:
    """The same for a result that is all that the output is to hold: what it lacks is retracted."""
    way = _Derive(name, runtime, data, None, progress, cache, kind="snapshot", moves=moves)
    return _finished(name, runtime, cache, way.run(snapshot))


def evolved_layout(name: str, layout: Layout, schema: pa.Schema) -> tuple[Layout, list[MetadataEvent]]:
    """The layout when results have these columns from now on, and the event that says so; none when they are the same.

    A result may bring new columns. It cannot lack one or give it another type: older records have them as they are.
    """
    hint = "return it as before, or drop the output (lake.drop) and let the step make it again, or declare another one"
    for known in layout.data:
        at = schema.get_field_index(known.name)
        if at < 0:
            message = f"the result for {name!r} has no column {known.name!r} any more"
            raise UnfitResult(message, hint=hint, column=known.name)
        if not fits(schema.field(at).type, known.type):
            message = f"column {known.name!r} of {name!r} is {known.type}, the result has {schema.field(at).type}"
            raise UnfitResult(message, hint=hint, column=known.name)
    added = [pa.field(f.name, canonical(f.type, f.name)) for f in schema if layout.data.get_field_index(f.name) < 0]
    if not added:
        return layout, []
    new = layout.with_fields(added)
    return new, [SetDataSchema(schema=new.to_odf())]


def _finished(name: str, runtime: Runtime, cache: dict[str, Any], written: Written) -> Written:
    if written.commit.rows:
        fold_if_due(name, written.snapshot, cache, runtime)
    return written


@dataclass
class _Derive(Merge):
    """One transaction of a transform."""

    moves: Moves = field(default_factory=Moves)

    def _check_takes_data(self, snapshot: Snapshot) -> None:
        if snapshot.state.dataset_kind is not DatasetKind.DERIVATIVE:
            raise ReadOnlyDataset(
                f"dataset {self.name!r} takes its data from outside and cannot be the output of a transform",
                hint="declare an output with another name",
            )

    def _run(self, snapshot: Snapshot, folder: Path) -> Written:
        objects = snapshot.objects
        intake = Intake(self.data, objects, self.runtime, folder)
        prepared = self._prepare(snapshot, intake, None)
        with objects.turn():
            if prepared is not None and objects.read_head() == snapshot.head:
                done = self._commit(snapshot, prepared)
                if done is not None:
                    return done
        raise CommitConflict(
            f"{self.name!r} has moved on since its step planned this run, and nothing was committed",
            hint="run the step again: it plans from the new head",
        )

    def _layout(self, snapshot: Snapshot) -> tuple[Layout, list[MetadataEvent]]:
        """The columns as the definitions leave them; those of a first whole result where nothing says them."""
        definitions = list(self.moves.definitions)
        _, state = plan_blocks(snapshot.state, definitions, self._system_time(snapshot))
        if state.schema is not None:
            return from_odf(state.schema, vocabulary(state.vocab)), definitions
        layout, first = self._first_layout(snapshot)
        return layout, [*definitions, *first]

    def _first_layout(self, snapshot: Snapshot) -> tuple[Layout, list[MetadataEvent]]:
        if isinstance(self.data, Frame) and not self.data.table.num_columns:
            raise self._nothing()
        return derived_layout(incoming_schema(self.data), strategy_of(snapshot.state), snapshot.state.vocab)

    def _events(self, snapshot: Snapshot, prepared: Prepared) -> list[MetadataEvent]:
        files = [m.file for m in prepared.made]
        _, state = plan_blocks(snapshot.state, prepared.definitions, prepared.system_time)
        moves = self.moves
        moved = TransformMoves(moves.inputs, moves.checkpoint, moves.watermark)
        events = transform_events(state, files, moved)
        if files and not ends_transaction(events[-1]):
            # Who reads the past must see where a transaction ends, and nothing else of this one says so.
            note = _note(state.next_offset, prepared.tally)
            moved = replace(moved, checkpoint=Checkpoint(Multihash.sha3_256(note), len(note)))
            events = transform_events(state, files, moved)
            snapshot.objects.store.put_if_absent(snapshot.objects.checkpoint_key(Multihash.sha3_256(note)), note)
        if events:
            moves.put()
        return [*prepared.definitions, *events]

    def _committed(self, planned: list[Planned], prepared: Prepared, after: Snapshot) -> Written:
        if not any(isinstance(block.event, ExecuteTransform) for _, _, block in planned):
            return Written(unneeded(after.head, after.head_block, after.state, prepared.tally), after)
        return super()._committed(planned, prepared, after)


@dataclass
class _DeriveResults(_Derive):
    """A transaction whose rows and processed keys lie in files."""

    results: Results = field(default_factory=lambda: Results((), ()))
    kind: Any = "snapshot"  # of the processed keys

    def _first_layout(self, snapshot: Snapshot) -> tuple[Layout, list[MetadataEvent]]:
        if self.results.rows:
            raise NoSchema(
                f"the output {self.name!r} has no columns yet", hint="results that have rows come with a SetDataSchema"
            )
        # Keys without a single row: there is nothing to be looked up, and no columns are needed for it.
        key = pa.schema([pa.field(column, pa.string()) for column in strategy_of(snapshot.state).key])
        return Layout(vocabulary(snapshot.state.vocab), None, key), []

    def _taken(
        self,
        snapshot: Snapshot,
        index: KeyIndex,
        intake: Intake,  # noqa: ARG002  the rows are taken in already
        layout: Layout,
        before: Prepared | None,  # noqa: ARG002  nothing comes before: it never rebases
    ) -> Taken:
        strategy = self._strategy(snapshot)
        results = self.results
        nothing = result_batch(pa.schema([f.with_nullable(True) for f in layout.data]).empty_table(), layout, strategy)
        rows = sum(sum(f.rows) for f in results.rows)
        keys = sum(sum(p.rows) for p in results.processed)
        # One row of a key, or as many as its new result has: a guess that only decides how large slices become.
        repeated = min(index.live_count, max(keys, rows))
        width = UNPACKED * snapshot.size / max(snapshot.records, 1)
        buckets = result_buckets(results, nothing, repeated, width, SLICE_BYTES)
        if rows + keys <= HERE_ROWS or (self.runtime.session.is_local and (os.cpu_count() or 1) <= FEW_CORES):
            return Taken(buckets, here())
        return Taken(buckets, partial(run, session=self.runtime.session))


def _note(offset: int, tally: Tally) -> bytes:
    """A checkpoint for a transaction that has none: what it came to, and from which offset on."""
    counts = {name: value for name, value in asdict(tally).items() if value}
    return json.dumps({"floodmark.dev/transaction": {"offset": offset, "tally": counts}}).encode()
