"""The snapshot of a step: its inputs, its outputs and its meta as of one set of heads, and why everything is stale."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from floodmark.chain.events import SetTransform, TransformInput, TransformSql
from floodmark.chain.ids import SHA3_256, BlockRef, Multihash
from floodmark.chain.state import parse_input_ids
from floodmark.chain.walk import walk_back
from floodmark.derive.inputs import InputSnapshot, LakeLike
from floodmark.derive.key_shape import KeyShape, OutputKeys
from floodmark.derive.lost_records import LostRecords, find_lost_records
from floodmark.derive.positions import NO_POSITION, bind_blocks, blocks_at, minimum_watermark
from floodmark.errors import BadMeta, BadStep, OutputTaken
from floodmark.functions.on_error import is_due
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.position import BEFORE_ALL, Position, has_records_of
from floodmark.ledger.snapshot import Snapshot
from floodmark.transforms.key_resolution import output_keys, resolve_shape
from floodmark.transforms.meta import TransformMeta
from floodmark.transforms.meta_entries import MetaManifest
from floodmark.transforms.outputs import (
    SecondaryNote,
    StepOutput,
    check_keys,
    create_output,
    find_outputs,
    read_secondary_note,
    same_transform,
)
from floodmark.transforms.run_scope import canonical_filters
from floodmark.transforms.specs import snapshot_inputs

if TYPE_CHECKING:
    from floodmark.transforms.batch_transform import BatchTransform


ENGINE = "floodmark"

RESET = "reset of "
"""The prefix of the version after a reset; no version of a function has it."""

LOST = "lost"
"""The version of damaged meta; all other versions contain a dash."""


@dataclass(frozen=True)
class StepSnapshot:
    """A step with the heads that a run works on."""

    step: BatchTransform
    inputs: tuple[InputSnapshot, ...]
    outputs: tuple[StepOutput, ...]
    meta: TransformMeta
    shape: KeyShape | None  # None if a transform key has no type yet: there is nothing to do
    version: str  # of the function and of its declaration
    lost: tuple[LostRecords, ...] = ()  # of inputs that were replaced since the last run; the meta does not count them

    @property
    def required_shape(self) -> KeyShape:
        assert self.shape is not None
        return self.shape

    @property
    def keys(self) -> pa.Schema:
        """The transform keys."""
        return self.required_shape.keys

    def named(self, offsets: Mapping[str, int]) -> dict[str, int]:
        """These offsets (by dataset id) by the inputs' names."""
        return {given.name: offsets.get(given.dataset_id, NO_POSITION) for given in self.inputs}

    @property
    def last_offsets(self) -> dict[str, int]:
        """By dataset id the newest record of each input, -1 for none."""
        return {given.dataset_id: given.last_offset for given in self.inputs}

    @property
    def newest(self) -> tuple[Position, ...]:
        """The newest record of each input, with its block."""
        return tuple(bind_blocks(self.last_offsets, blocks_at(self.last_offsets, self.inputs)))

    def has_records(self, position: Position) -> bool:
        """Whether an input still has the records up to a position."""
        return any(g.dataset_id == position.dataset_id and position.is_on(g.snapshot) for g in self.inputs)

    @property
    def positions(self) -> dict[str, int]:
        """By dataset id the position in each input."""
        return {given.dataset_id: self.meta.positions.get(given.dataset_id, NO_POSITION) for given in self.inputs}

    @property
    def transform(self) -> SetTransform:
        """The event that describes the step in the chains of its outputs."""
        names = {given.dataset_id: given.name for given in self.inputs}  # a dataset may be several inputs
        inputs = tuple(TransformInput(dataset_ref=dataset_id, alias=name) for dataset_id, name in names.items())
        function = self.step.function
        return SetTransform(inputs, TransformSql(ENGINE, version=function.version, query=function.source))

    @cached_property
    def stale(self) -> str | None:
        """Why everything has to be processed again; None if only changed keys have to be."""
        return self._unknown_rest or self._other_results

    @property
    def _other_results(self) -> str | None:
        """Why the outputs do not have the results of this version; None if they have."""
        meta, outputs = self.meta, self.outputs
        if meta.version is not None and meta.version.startswith(RESET):
            return "it was reset"
        if meta.version is not None and meta.version != self.version:
            is_same = meta.version.rpartition("-")[0] == self.step.function.version
            return (
                "its inputs, their columns, its outputs or its filters changed" if is_same else "its function changed"
            )
        missing = [output.name for output in outputs if output.is_untouched]
        if meta.version is not None and meta.manifest.last_run is not None and missing:
            return f"output {missing[0]!r} is new"
        # Without a version, the first output has no results: if there were runs, they committed only failures.
        left = [o for o in (outputs if meta.version is not None else outputs[1:]) if not o.is_untouched]
        if meta.version is None and left:
            return f"output {outputs[0].name!r} is new, and {left[0].name!r} is not"
        # A run that was killed between two commits has left results of another version in one output.
        other = [
            o.name
            for o in left
            if not o.is_shared and not same_transform(o.existing[1].state.transform, self.transform)
        ]
        notes = [(output.name, read_secondary_note(output)) for output in outputs[1:] if not output.is_untouched]
        other += [name for name, note in notes if note is not None and note.version != self.version]
        if other:
            return f"output {other[0]!r} has results of another version"
        last = meta.manifest.last_run.id if meta.manifest.last_run is not None else None
        ahead = [name for name, note in notes if note is not None and note.asked not in (None, last)]
        if ahead:
            return f"output {ahead[0]!r} has results of an interrupted run"
        if replaced := [output.name for output in outputs[1:] if self._was_replaced(output)]:
            return f"output {replaced[0]!r} was replaced by another copy of it"
        return None

    def _was_replaced(self, output: StepOutput) -> bool:
        """Whether an output that is not the first lacks results, or has results of records that an input lost."""
        if output.is_untouched:
            return False
        snapshot = output.existing[1]
        head = self.meta.manifest.outputs.get(str(output.id))
        if head is None or head.hash == snapshot.head:
            return False
        if not _is_on_chain(head, snapshot):
            return True
        read = {str(one.dataset_id): one.block_hash for one in snapshot.state.inputs}
        if (note := read_secondary_note(output)) is not None:
            read |= {name: Multihash(SHA3_256, bytes.fromhex(block)) for name, block in note.blocks.items()}
        chains = {given.dataset_id: given.snapshot for given in self.inputs}
        return any(
            block is not None and name in chains and not has_records_of(chains[name], block)
            for name, block in read.items()
        )

    @property
    def watermark(self) -> int | None:
        """The watermark of the outputs after everything is processed."""
        if self.outputs[0].snapshot is not None and self.outputs[0].is_shared:
            return self.outputs[0].snapshot.state.watermark  # users move it
        present = [output.snapshot.state.watermark for output in self.outputs[:1] if output.snapshot is not None]
        return minimum_watermark([given.watermark for given in self.inputs], present[0] if present else None)

    @property
    def primary(self) -> Snapshot:
        """The snapshot of the first output, which has the meta."""
        return self.outputs[0].existing[1]

    def has_nothing_to_do(self, now_ms: int) -> bool:
        """Whether a run would commit nothing, as far as the positions show. Reads no data."""
        if self.shape is None:
            return True
        if self.stale is not None or any(self.has_news(dataset_id, at) for dataset_id, at in self.last_offsets.items()):
            return False
        if self.lost or self.meta.manifest.has_lost:
            return False
        if self.meta.version is not None and self.watermark != self.primary.state.watermark:
            return False
        return not self.has_due(now_ms)

    def has_news(self, dataset_id: str, position: int) -> bool:
        """Whether a new position in an input would tell more than that the step has written to it."""
        if position == self.meta.positions.get(dataset_id, NO_POSITION):
            return False
        [given, *_] = [given for given in self.inputs if given.dataset_id == dataset_id]
        return not given.has_own or given.unread(self.positions[dataset_id]) > 0

    def has_due(self, now_ms: int) -> bool:
        """Whether failed keys are due. Reads only the manifest."""
        failed = self.meta.manifest.failed
        return failed is not None and failed.next_due is not None and is_due(failed.next_due, now_ms)

    def without_lost_records(self) -> StepSnapshot:
        """The snapshot in which the meta does not count records that inputs lost.

        If it is not known how much the inputs still have, everything is stale.
        """
        manifest = self.meta.manifest
        if self.shape is None or not manifest.read or self.stale is not None:
            return self
        on_chain = [
            Position(str(one.dataset_id), one.offset, one.block_hash.digest.hex())
            for one in self.primary.state.inputs
            if one.offset is not None and one.block_hash is not None
        ]
        lost = find_lost_records(manifest.read, [*manifest.earlier, *on_chain], self.inputs)
        if not lost:
            return self
        found = replace(self, lost=tuple(lost.values()))
        return found if found.stale is not None else replace(found, meta=self.meta.without_lost(found.lost))

    @property
    def _unknown_rest(self) -> str | None:
        """Why the records that inputs lost make everything stale; None if they do not."""
        purged = {given.dataset_id: given.purged_before for given in self.inputs}
        for one in self.lost:
            if one.kept.offset == BEFORE_ALL or one.kept.offset + 1 < purged[one.dataset_id]:
                return f"input {one.input!r} was replaced by another copy of it"
        return None

    def create_missing_outputs(self, lake: LakeLike) -> bool:
        """Create the missing outputs, without rows; whether any was missing."""
        missing = [output for output in self.outputs if output.snapshot is None]
        for output in missing:
            create_output(lake, output, self.keys, self.transform)
        return bool(missing)


def _is_on_chain(block: BlockRef, snapshot: Snapshot) -> bool:
    """Whether a block is on the chain of a dataset."""
    for found, _, content in walk_back(snapshot.objects.get_block, snapshot.head):
        if content.sequence_number <= block.sequence_number:
            return found == block.hash
    return False


MetaLoader = Callable[[Snapshot], TransformMeta]
"""Reads the meta of a step from its primary output."""


def load_meta(primary: Snapshot) -> TransformMeta:
    """The meta of the newest commit of a primary output; `BadMeta` if it is damaged."""
    return TransformMeta.load(primary.objects, primary.state.checkpoint)


def load_meta_or_lost(primary: Snapshot) -> TransformMeta:
    """The meta of a primary output; if it is damaged, an empty meta of version LOST."""
    try:
        return load_meta(primary)
    except BadMeta:
        return TransformMeta(primary.objects, primary.state.checkpoint, MetaManifest(version=LOST))


def snapshot_step(step: BatchTransform, lake: LakeLike, load: MetaLoader = load_meta) -> StepSnapshot:
    """Take a snapshot of a step, and refuse outputs that do not fit it.

    Outputs are read before inputs, so that their positions cannot be beyond the inputs' heads.
    """
    outputs = find_outputs(lake, step.outputs, step.name)
    primary = outputs[0].snapshot
    nothing = TransformMeta.load(DatasetObjects(lake.store, "nowhere"), None)
    meta = nothing if primary is None else load(primary)
    _check_own_exists(step, lake)
    inputs = _mark_own(snapshot_inputs(lake, step.inputs), outputs, step.name)
    keys = [
        OutputKeys(output.name, output.declared_key, _columns(output, meta), output.has_declared_key, output.is_shared)
        for output in outputs
    ]
    declared = step.transform_keys
    if declared is not None and (stored := outputs[0].stored_transform_keys) is not None:
        of_outputs = output_keys(declared, keys)
        if of_outputs != stored:
            check_keys(outputs, of_outputs, step.name)
    shape = resolve_shape(inputs, step.inputs, declared, keys)
    if shape is None:
        return StepSnapshot(step, inputs, outputs, meta, None, "")
    check_keys(outputs, shape.names, step.name)
    _check_types(meta, shape, outputs[0], step.name)
    step_snapshot = StepSnapshot(step, inputs, outputs, meta, shape, _version(step, shape, outputs))
    _check_owner(step_snapshot)
    known = replace(step_snapshot, meta=meta.without_unused_version(step_snapshot.version))
    return known.without_lost_records()


def _check_own_exists(step: BatchTransform, lake: LakeLike) -> None:
    read = {name.lower() for name in step.input_names}
    for name in step.output_names:
        if name.lower() in read and name not in lake:
            raise BadStep(
                f"step {step.name!r} reads its output {name!r}, which does not exist",
                hint=f"create it before the first run: lake.create({name!r}, key=…)",
                step=step.name,
                output=name,
            )


def _mark_own(inputs: tuple[InputSnapshot, ...], outputs: Sequence[StepOutput], step: str) -> tuple[InputSnapshot, ...]:
    """The inputs, with a mark on those that the step writes to: its own records there are not changes."""
    written = {str(output.id): number for number, output in enumerate(outputs) if output.snapshot is not None}
    for given in inputs:
        number = written.get(given.dataset_id)
        if number is not None and not outputs[number].is_shared:
            raise OutputTaken(
                f"step {step!r} reads its output {given.name!r}, which only steps write to",
                hint=f"drop it, and create it before the first run: lake.create({given.name!r}, key=…)",
                step=step,
                output=given.name,
            )
        if number:
            raise OutputTaken(
                f"step {step!r} reads its output {given.name!r}, which is not its first",
                hint="name it first: the first output is written last, so that a crash cannot apply a change twice",
                step=step,
                output=given.name,
            )
    return tuple(replace(given, has_own=given.dataset_id in written) for given in inputs)


def _columns(output: StepOutput, meta: TransformMeta) -> pa.Schema | None:
    """The columns of an output. If it has none yet, the transform keys of the meta: their types must not change."""
    if output.snapshot is not None and output.snapshot.layout is not None:
        return output.snapshot.layout.data
    return meta.transform_keys if meta.version not in (None, LOST) else None


def _version(step: BatchTransform, shape: KeyShape, outputs: Sequence[StepOutput]) -> str:
    """The function's version, and a digest of everything else that results depend on. Names are not part of it."""
    inputs = [
        [given.dataset_id, dict(given.keys), None if spec.columns is None else sorted(spec.columns), given.required]
        for spec, given in zip(step.inputs, shape.inputs, strict=True)
    ]
    parts = [inputs, [[f.name, str(f.type)] for f in shape.keys], [output.key(shape.names) for output in outputs]]
    if any(given.through for given in shape.inputs) or step.transform_keys not in (None, shape.names):
        parts.append([[given.side, dict(given.joins), given.through] for given in shape.inputs])
    if step.filters is not None:
        parts.append(canonical_filters(step.filters))
    return f"{step.function.version}-{hashlib.sha3_256(json.dumps(parts).encode()).hexdigest()[:8]}"


def _check_types(meta: TransformMeta, shape: KeyShape, output: StepOutput, step: str) -> None:
    """Refuse transform keys whose types differ from those of the processed keys: their hashes would differ."""
    if meta.version in (None, LOST):
        return
    before = {field.name: field.type for field in meta.transform_keys}
    for field in shape.keys:
        if before.get(field.name) != field.type:
            raise OutputTaken(
                f"the transform key {field.name!r} of step {step!r} has type {field.type}, but had "
                f"{before.get(field.name)} when {output.name!r} was created",
                hint=f"drop {output.name!r}: the next run creates it again",
                step=step,
                output=output.name,
            )


def _check_owner(step_snapshot: StepSnapshot) -> None:
    """Refuse outputs that have the results of another step: two steps would overwrite each other's results.

    It is the same step if its name is the same, or if its function and inputs are.
    """
    step, meta = step_snapshot.step, step_snapshot.meta
    primary = step_snapshot.outputs[0]
    note = read_secondary_note(primary)
    if note is not None and note.step == step.name:
        raise _wrong_first_output(step_snapshot, note)
    if note is not None:
        raise _output_taken(primary.name, step.name, note.step, ", as an output that is not its first")
    if meta.version is None and not primary.is_untouched:
        raise _output_taken(primary.name, step.name, None, "")
    if meta.version == LOST:
        chain = step_snapshot.primary.state.transform
        if primary.is_shared:
            pass  # its chain does not name the step
        elif chain is None or parse_input_ids(chain) != parse_input_ids(step_snapshot.transform):
            raise _output_taken(primary.name, step.name, None, "")
    elif (
        meta.version not in (None, step_snapshot.version, RESET + step_snapshot.version)
        and meta.manifest.name != step.name
    ):
        raise _output_taken(primary.name, step.name, meta.manifest.name, "")
    for output in step_snapshot.outputs[1:]:
        if output.is_untouched:
            continue
        note = read_secondary_note(output)
        if note is None:
            raise _output_taken(output.name, step.name, None, "")
        mine = primary.id is not None and note.primary == str(primary.id)
        if not mine and note.step != step.name:
            raise _output_taken(output.name, step.name, note.step, "")


def _wrong_first_output(step_snapshot: StepSnapshot, note: SecondaryNote) -> OutputTaken:
    """The error for outputs of the same step in another order, or without its first one."""
    step, names = step_snapshot.step.name, [output.name for output in step_snapshot.outputs]
    first = [output.name for output in step_snapshot.outputs if str(output.id) == note.primary]
    what, hint = f"its first output is no longer among {names}", "name that output first again"
    if first:
        what, hint = (
            f"its first output is {first[0]!r}",
            f"give outputs={[*first, *(n for n in names if n not in first)]}",
        )
    return OutputTaken(
        f"step {step!r} cannot have {names[0]!r} as its first output: {what}, which has the meta of processed keys",
        hint=f"{hint}; or drop the step's outputs: the next run creates them again",
        step=step,
        output=names[0],
        owner=step,
    )


def _output_taken(output: str, step: str, other: str | None, how: str) -> OutputTaken:
    whose = "another step" if other is None else f"step {other!r}"
    same = "" if other is None else f"; if both are the same step, give it name={other!r}"
    return OutputTaken(
        f"step {step!r} cannot write to {output!r}: it has the results of {whose}{how}",
        hint=f"name another output, or drop {output!r}{same}",
        step=step,
        output=output,
        owner=other,
    )
