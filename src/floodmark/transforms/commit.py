"""Commit a wave of results: the primary output last, with the transform meta, and the notes that each commit carries.

After a crash in between, the other outputs are ahead of the primary one, never behind. The next run takes the same
results from their stored chunks and does not write existing rows again.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from floodmark.chain.events import MetadataEvent
from floodmark.chain.ids import BlockRef, Multihash
from floodmark.derive import notes
from floodmark.derive.commit import CommitMoves, KeyResults, commit_results, evolve_layout, write_hashes
from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.key_shape import KeyShape
from floodmark.derive.notes import CommitNote, N
from floodmark.derive.own_records import find_own_records, is_own
from floodmark.derive.positions import NO_POSITION, blocks_at, find_chain_moves
from floodmark.engine.progress import Progress
from floodmark.engine.session import Runtime
from floodmark.errors import ObjectNotFound
from floodmark.functions.failures import empty_failed_keys
from floodmark.functions.step_result import OutputShape
from floodmark.ledger.commit import Commit
from floodmark.ledger.create import derived_layout
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import Layout
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.rows import key_index_loader
from floodmark.rows.buckets import SortedHashes
from floodmark.rows.key_index import KeyIndex
from floodmark.storage.arrays import I64, Hashes, is_group_start
from floodmark.storage.scratch import staging_area
from floodmark.storage.store import ObjectInfo
from floodmark.transforms.chunk_results import StoredChunk, results
from floodmark.transforms.existing_keys import have_rows
from floodmark.transforms.failed_keys import failed_hashes, is_stale, with_first_times, with_stale
from floodmark.transforms.meta import MetaDraft, ReadBlocks, TransformMeta
from floodmark.transforms.meta_entries import RunInfo
from floodmark.transforms.outputs import SecondaryNote, same_transform
from floodmark.transforms.run_scope import Filters, canonical_filters
from floodmark.transforms.snapshot import StepSnapshot


@dataclass
class Publisher:
    """Commits the waves of one run. It tracks the heads of its own commits; a commit by another writer stops it."""

    step_snapshot: StepSnapshot
    runtime: Runtime
    run: RunInfo
    replaces_all: bool  # whether the next commit replaces everything
    is_requested: bool = False  # whether keys were requested, so that they may not be pending
    meta: TransformMeta = field(init=False)
    snapshots: list[Snapshot] = field(init=False)
    caches: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.meta = self.step_snapshot.meta
        self.snapshots = [output.existing[1] for output in self.step_snapshot.outputs]
        self.caches = [{} for _ in self.snapshots]

    def commit(
        self,
        stored: Sequence[StoredChunk],
        shapes: Sequence[OutputShape],
        positions: Mapping[str, int],
        watermark: int | None,
        seconds: float,
        progress: Progress,
        *,
        is_complete: bool = False,
    ) -> list[Commit]:
        """Commit these results and the positions; `CommitConflict` if another writer committed first.

        If the run is complete, no key is left to process.
        """
        step_snapshot = self.step_snapshot
        processed = [hashes.read() for s in stored for hashes in s.processed]
        failures = self.failures(stored)
        failing = failed_hashes(failures)
        kept = failing.take(is_stale(failures))
        prepare = self.meta.fresh if self.replaces_all else self.meta.after
        given = (self.run, processed, self._with_found_rows(failures), positions, step_snapshot.version)
        read = self._read_blocks(positions)
        asked = self.run.id if self.is_requested else None
        shared = [output.is_shared for output in step_snapshot.outputs]
        is_on_chain = self.run.is_within(positions) and not any(shared) and not self._chain_is_ahead
        ahead = None if is_on_chain else dict(self.run.last_offsets)
        skipped = pack_hashes(failing.take(~is_stale(failures)))
        name = step_snapshot.step.name
        seen = {} if ahead is None else {dataset_id: block for dataset_id, (_, block) in read.seen.items()}
        note = SecondaryNote(str(step_snapshot.outputs[0].id), name, step_snapshot.version, asked, ahead, skipped, seen)
        provenance, declared = self._provenance(skipped), self._declared(shapes)
        commits = []
        with staging_area(self.snapshots[0].objects.store) as folder:
            replaced, temporary = self._replaced_keys(stored, kept, folder)
            for number in range(len(step_snapshot.outputs) - 1, -1, -1):
                objects = self.snapshots[number].objects
                put = _Put(note, objects, None, declared)
                if number == 0:
                    heads = self._other_heads
                    draft = prepare(
                        *given, name=name, seconds=seconds, read=replace(read, outputs=heads), is_complete=is_complete
                    )
                    put = _Put(draft, objects, provenance, declared)
                moved = CommitMoves(
                    inputs={}
                    if shared[number]
                    else find_chain_moves(self.snapshots[number].state.inputs, positions, step_snapshot.inputs),
                    definitions=self._definitions(number, shapes[number].layout),
                    checkpoint=put.what.checkpoint,
                    put=put,
                    watermark=None if shared[0] else watermark,
                )
                if (leaving := self._leaving_keys(number, processed, folder)) is not None:
                    temporary.append(leaving)
                others = [] if leaving is None else [leaving]
                written = commit_results(
                    step_snapshot.outputs[number].name,
                    self.runtime,
                    self.snapshots[number],
                    results(stored, number, [*replaced, *others]),
                    moved,
                    progress,
                    self.caches[number],
                )
                self.snapshots[number] = written.snapshot
                commits.append(written.commit)
        for file in temporary:
            if file.store is not None:
                file.store.delete(file.path)
        self.meta = draft.meta
        self.replaces_all = False
        draft.discard_superseded(self.snapshots[0].objects)
        for number, output in enumerate(step_snapshot.outputs):
            if output.is_shared:
                output.follow(self.snapshots[number])
        return commits

    def refuse(self, stored: Sequence[StoredChunk], problem: str, seconds: float, progress: Progress) -> None:
        """Commit only the failures of these results: no row and no position changes."""
        step_snapshot, objects = self.step_snapshot, self.snapshots[0].objects
        failures = self._with_found_rows(self.failures(stored))
        draft = self.meta.refused(
            self.run,
            failures,
            step_snapshot.version,
            problem,
            name=step_snapshot.step.name,
            seconds=seconds,
            read=self._read_blocks(self.meta.positions),
        )
        # If its version is in place, the failed keys are processed keys of this run.
        has_claims = draft.meta.version == step_snapshot.version
        provenance = replace(self._provenance(""), has_claims=has_claims)
        moved = CommitMoves(checkpoint=draft.checkpoint, put=_Put(draft, objects, provenance, None))
        output, nothing = step_snapshot.outputs[0], KeyResults((), ())
        written = commit_results(output.name, self.runtime, self.snapshots[0], nothing, moved, progress, self.caches[0])
        draft.discard_superseded(objects)
        if output.is_shared:
            output.follow(written.snapshot)

    def failures(self, stored: Sequence[StoredChunk]) -> pa.Table:
        """The failed keys of these results."""
        tables = [table for s in stored if (table := s.failed_table()) is not None]
        return pa.concat_tables([empty_failed_keys(self.step_snapshot.keys), *tables])

    def _with_found_rows(self, failures: pa.Table) -> pa.Table:
        """The failures: `stale` only if an output has rows of the key, and `since` the first failure of the version."""
        if failures.num_rows == 0:
            return failures
        pairs = zip(self.step_snapshot.outputs, self.snapshots, strict=True)
        outputs = [InputSnapshot(output.name, str(output.id), snapshot) for output, snapshot in pairs]
        failures = with_stale(failures, is_stale(failures) & have_rows(outputs, failed_hashes(failures)))
        before = self.meta.of_version(self.step_snapshot.version).failed()
        return with_first_times(before, failures) if before.num_rows else failures

    def _replaced_keys(
        self, stored: Sequence[StoredChunk], kept: Hashes, folder: Path
    ) -> tuple[list[SortedHashes], list[SortedHashes]]:
        """The keys whose rows these results replace, without the failed keys that keep theirs; and temporary files."""
        with_failures = [s.called for s in stored if s.called is not None and s.failed]
        if not len(kept):
            return [hashes for s in stored for hashes in s.processed], []
        called = Hashes.joined([hashes.read() for hashes in with_failures])
        rest = _write_temporary(called.take(~called.among(kept)), folder, self.snapshots[0].objects)
        others = [hashes for s in stored for hashes in s.processed if hashes not in with_failures]
        return [*others, rest], [rest]

    @property
    def _chain_is_ahead(self) -> bool:
        """Whether an output's chain names records that an input lost: the positions of a chain cannot move back."""
        positions = [position for snapshot in self.snapshots for position in snapshot.state.inputs]
        return any(p.offset is not None and p.offset > self.run.up_to(str(p.dataset_id)) for p in positions)

    @property
    def _other_heads(self) -> dict[str, BlockRef]:
        """By dataset id, the heads of the outputs that are not the first."""
        states = [snapshot.state for snapshot in self.snapshots[1:]]
        return {str(state.dataset_id): state.head for state in states if state.head is not None}

    def _read_blocks(self, positions: Mapping[str, int]) -> ReadBlocks:
        step_snapshot = self.step_snapshot
        heads = blocks_at(step_snapshot.last_offsets, step_snapshot.inputs)
        seen = {name: (step_snapshot.last_offsets[name], block) for name, block in heads.items()}
        return ReadBlocks(
            blocks_at({**dict.fromkeys(step_snapshot.last_offsets, NO_POSITION), **positions}, step_snapshot.inputs),
            seen,
            self.meta.manifest.outputs,
        )

    @property
    def has_committed(self) -> bool:
        return self.snapshots[0] is not self.step_snapshot.primary

    def forget(self, version: str, progress: Progress) -> None:
        """Commit an empty meta, so that the next run processes everything. No row changes."""
        draft = self.meta.fresh(self.run, [], empty_failed_keys(self.step_snapshot.keys), {}, version)
        objects = self.snapshots[0].objects
        moved = CommitMoves(checkpoint=draft.checkpoint, put=_Put(draft, objects, None, None))
        name = self.step_snapshot.outputs[0].name
        commit_results(name, self.runtime, self.snapshots[0], KeyResults((), ()), moved, progress, self.caches[0])
        draft.discard_superseded(objects)

    def _provenance(self, failed: str) -> RunProvenance:
        heads = {given.dataset_id: given.snapshot.head.text for given in self.step_snapshot.inputs}
        purged = {given.dataset_id: given.purged_before for given in self.step_snapshot.inputs}
        run, step = self.run, self.step_snapshot.step.name
        return RunProvenance(
            step,
            self.step_snapshot.version,
            run.id,
            run.process_ts,
            dict(run.last_offsets),
            heads,
            purged,
            failed=failed,
        )

    def _declared(self, shapes: Sequence[OutputShape]) -> StepDeclaration:
        step_snapshot = self.step_snapshot
        columns = [spec.columns for spec in step_snapshot.step.inputs]
        name, version, shape = step_snapshot.step.name, step_snapshot.version, step_snapshot.required_shape
        absent = {output.name: sorted(output.absent) for output in shapes if output.absent}
        return StepDeclaration.of(name, version, shape, columns, step_snapshot.step.filters, absent)

    def _definitions(self, number: int, layout: Layout | None) -> tuple[MetadataEvent, ...]:
        """The events that precede the data: a changed transform, and the first or additional columns."""
        snapshot, transform = self.snapshots[number], self.step_snapshot.transform
        events: list[MetadataEvent] = []
        is_shared = self.step_snapshot.outputs[number].is_shared
        if not is_shared and not same_transform(snapshot.state.transform, transform):
            events.append(transform)
        if layout is not None and snapshot.layout is None:
            events += derived_layout(layout.data, strategy_of(snapshot.state), snapshot.state.vocab)[1]
        elif layout is not None and snapshot.layout is not None and layout != snapshot.layout:
            events += evolve_layout(self.step_snapshot.outputs[number].name, snapshot.layout, layout.data)[1]
        return tuple(events)

    def _leaving_keys(self, number: int, processed: Sequence[Hashes], folder: Path) -> SortedHashes | None:
        """After everything was processed: the keys with rows in an output that were not processed. They are removed."""
        snapshot = self.snapshots[number]
        if not self.replaces_all or snapshot.state.last_offset is None:
            return None
        own = find_own_records(snapshot) if self.step_snapshot.outputs[number].is_shared else None
        others = key_index_loader.with_repair(
            snapshot, self.caches[number], lambda index: _other_keys(index, processed, own)
        )
        if len(others) == 0:
            return None
        return _write_temporary(others, folder, snapshot.objects)


@dataclass(frozen=True)
class _Put:
    """Writes the files of a checkpoint, and the notes that belong to it, to an output's folder."""

    what: MetaDraft | SecondaryNote
    objects: DatasetObjects
    made: RunProvenance | None
    declared: StepDeclaration | None

    def __call__(self) -> None:
        self.what.put(self.objects)
        if self.declared is not None:
            self.declared.put_in(self.objects)
        if self.made is not None:
            self.made.put_for(self.objects, self.what.checkpoint.physical_hash)


def _write_temporary(hashes: Hashes, folder: Path, objects: DatasetObjects) -> SortedHashes:
    """A file of key hashes that only one commit needs; in a bucket it must be deleted afterwards."""
    return write_hashes(hashes, folder, objects, f"{objects.folder}/info/transform/leaving")


def _other_keys(index: KeyIndex, processed: Sequence[Hashes], own: I64 | None) -> Hashes:
    """The transform keys of an output's current rows, each once, without the processed keys.

    With `own`, only rows at these offsets: users wrote the others.
    """
    live = index.live_between()
    keys = live.key if live.lookup is None else live.lookup
    if own is not None:
        keys = keys.take(is_own(live.offset, own))
    keys = keys.take(is_group_start([keys.high, keys.low]))  # the keys are sorted
    return keys.take(~keys.among(Hashes.joined(list(processed))))


# Notes of commits


@dataclass(frozen=True)
class RunProvenance(CommitNote):
    """The provenance of a commit of a step's first output: its run, and how far that run read each input."""

    KIND: ClassVar[str] = "floodmark.made"

    step: str
    version: str  # of the function and of its declaration, as in the meta
    run: str
    process_ts: int  # milliseconds
    last_offsets: Mapping[str, int]  # by dataset id the newest record, -1 for none
    blocks: Mapping[str, str]  # by dataset id the head, which has the columns at that time
    purged: Mapping[str, int]  # by dataset id the first record that was not purged at that time
    has_claims: bool = True  # False for a refused run of a version that is not in place: its meta has no keys of it
    failed: str = ""  # the keys that failed and were skipped, packed: their rows, if any, were retracted

    def put_for(self, objects: DatasetObjects, checkpoint: Multihash) -> None:
        """Store it under the name of the commit's checkpoint."""
        objects.store.put_if_absent(provenance_key(objects, checkpoint), notes.sealed(self.to_bytes()))

    @staticmethod
    def beside(objects: DatasetObjects, checkpoint: Multihash) -> RunProvenance | None:
        """The provenance of the commit with this checkpoint; None if it has none."""
        return read_note(objects, provenance_key(objects, checkpoint), RunProvenance)


@dataclass(frozen=True)
class StepDeclaration(CommitNote):
    """The declaration of one version of a step: its transform keys, and the columns of its inputs."""

    KIND: ClassVar[str] = "floodmark.declared"

    step: str
    version: str
    keys: Sequence[str]
    inputs: Sequence[Mapping[str, Any]]
    """Of each input the dataset, the columns of its keys, the columns of the function, and more of its `InputShape`."""
    way: str  # map, keyed or cross
    filters: Any = None  # the step's own filters in canonical form
    absent: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by output the columns that it does not return

    @staticmethod
    def of(
        step: str,
        version: str,
        shape: KeyShape,
        columns: Sequence[Sequence[str] | None],
        filters: Filters,
        absent: Mapping[str, Sequence[str]],
    ) -> StepDeclaration:
        inputs = [
            {
                "dataset": given.dataset_id,
                "keys": dict(given.keys),
                "columns": None if names is None else list(names),
                "required": given.required,
                "side": given.side,
                "joins": dict(given.joins),
                "through": list(given.through),
            }
            for given, names in zip(shape.inputs, columns, strict=True)
        ]
        kept = None if filters is None else canonical_filters(filters)
        return StepDeclaration(step, version, list(shape.names), inputs, shape.kind, kept, absent)

    def put_in(self, objects: DatasetObjects) -> None:
        """Store it. A version that comes back may have more columns absent: then both declarations are kept."""
        key = declaration_key(objects, self.version)
        if self.absent:
            text = json.dumps(self.absent, sort_keys=True)
            key = f"{key}-{hashlib.sha3_256(text.encode()).hexdigest()[:32]}"
        objects.store.put_if_absent(key, notes.sealed(self.to_bytes()))

    @staticmethod
    def named(objects: DatasetObjects, version: str) -> StepDeclaration | None:
        """The declaration of a version of the step that an output has; None if it has none.

        Its absent columns are those that it ever did not return.
        """
        first = declaration_key(objects, version)
        keys = [info.key for info in list_declarations(objects)]
        of_version = [key for key in sorted(keys) if key.startswith(first)]
        found = [one for key in of_version if (one := read_note(objects, key, StepDeclaration)) is not None]
        if not found:
            return None
        absent: dict[str, set[str]] = {}
        for one in found:
            for output, names in one.absent.items():
                absent.setdefault(output, set()).update(names)
        return replace(found[0], absent={output: sorted(names) for output, names in absent.items()})

    @staticmethod
    def all_of(objects: DatasetObjects) -> list[StepDeclaration]:
        """The declarations of all versions of the step that an output ever had results of."""
        keys = sorted(info.key for info in list_declarations(objects))
        return [declared for key in keys if (declared := read_note(objects, key, StepDeclaration)) is not None]


def list_provenance(objects: DatasetObjects) -> Iterator[ObjectInfo]:
    """The stored run provenance of an output; the last part of each key is the name of a checkpoint."""
    return objects.store.list(f"{objects.folder}/info/transform/made")


def list_declarations(objects: DatasetObjects) -> Iterator[ObjectInfo]:
    """The stored declarations of the versions of a step."""
    return objects.store.list(f"{objects.folder}/info/transform/declared")


def pack_hashes(hashes: Hashes) -> str:
    """Hashes of keys as text."""
    return base64.b64encode(np.concatenate([hashes.high, hashes.low]).astype("<u8").tobytes()).decode()


def unpack_hashes(text: str) -> Hashes:
    """The inverse of `pack_hashes`."""
    both = np.frombuffer(base64.b64decode(text), "<u8").astype(np.uint64)
    return Hashes(*np.split(both, 2))


def provenance_key(objects: DatasetObjects, checkpoint: Multihash) -> str:
    return f"{objects.folder}/info/transform/made/{checkpoint.text}"


def declaration_key(objects: DatasetObjects, version: str) -> str:
    # A version may be any text that a user chose, so it is hashed.
    return f"{objects.folder}/info/transform/declared/{hashlib.sha3_256(version.encode()).hexdigest()}"


def read_note(objects: DatasetObjects, key: str, kind: type[N]) -> N | None:
    """A note outside of the chain; None if it is missing or damaged."""
    try:
        return notes.parse_sealed(objects.store.get(key), key).read_as(kind)
    except ObjectNotFound:
        return None
