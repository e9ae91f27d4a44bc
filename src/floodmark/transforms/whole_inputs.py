"""The snapshot of a `DatatableTransform`: its inputs, its outputs, and the note of each output's last run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.chain.events import SetTransform, TransformInput, TransformSql
from floodmark.derive import notes as notes_module
from floodmark.derive.changed_keys import find_changes
from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.key_shape import InputShape, KeyShape
from floodmark.derive.lost_records import LostRecords, find_lost_records
from floodmark.derive.notes import BadNote, CommitNote
from floodmark.derive.positions import NO_POSITION, bind_blocks
from floodmark.engine.rounds import TaskRunner
from floodmark.errors import BadMeta, BadStep, OutputTaken
from floodmark.transforms.outputs import StepOutput, find_outputs, refuse_shared
from floodmark.transforms.specs import snapshot_inputs

if TYPE_CHECKING:
    from floodmark.transforms.datatable_transform import DatatableTransform


ENGINE = "floodmark"
RESET = "reset"


@dataclass(frozen=True)
class DatatableNote(CommitNote):
    """The note in the checkpoint of an output: the step and version that computed it, and that run's numbers."""

    KIND = "floodmark.datatable"

    step: str
    version: str
    run: str = ""
    process_ts: int = 0  # milliseconds
    rows: int = 0
    seconds: float = 0.0
    positions: Mapping[str, int] = field(default_factory=dict)  # by dataset id the newest record that was read
    blocks: Mapping[str, str] = field(default_factory=dict)  # by dataset id the block that has this record

    @staticmethod
    def of(output: StepOutput) -> DatatableNote | None:
        """The note of an output; None if it has none, or one of another kind."""
        if output.snapshot is None or (checkpoint := output.snapshot.state.checkpoint) is None:
            return None
        try:
            return notes_module.load_note(output.snapshot.objects, checkpoint).read_as(DatatableNote)
        except BadNote as error:
            raise BadMeta(
                f"the checkpoint of {output.name!r} {error.problem}: the positions of its inputs are lost",
                hint=f"restore it from a copy of the dataset, or drop {output.name!r} and run the step again",
                file=checkpoint.text,
                dataset=output.name,
            ) from error


@dataclass(frozen=True)
class WholeStepSnapshot:
    """A step with the heads that a run works on."""

    step: DatatableTransform
    inputs: tuple[InputSnapshot, ...]
    outputs: tuple[StepOutput, ...]
    notes: tuple[DatatableNote | None, ...]  # by output
    version: str  # of the function, its inputs and their columns

    @property
    def has_inputs(self) -> bool:
        """Whether every input has columns; without them there is no frame for the function."""
        return all(given.layout is not None for given in self.inputs)

    @property
    def transform(self) -> SetTransform:
        """The event that describes the step in the chains of its outputs."""
        inputs = tuple(TransformInput(dataset_ref=given.dataset_id, alias=given.name) for given in self.inputs)
        function = self.step.function
        return SetTransform(inputs, TransformSql(ENGINE, version=function.version, query=function.source))

    def positions(self, number: int) -> dict[str, int]:
        """By dataset id the position in each input that an output was computed from; -1 for none."""
        note = self.notes[number]
        read: Mapping[str, int] = {} if note is None else note.positions
        return {given.dataset_id: read.get(given.dataset_id, NO_POSITION) for given in self.inputs}

    @cached_property
    def lost(self) -> tuple[LostRecords, ...]:
        """The inputs that were replaced by another copy since an output was computed."""
        notes = [note for note in self.notes if note is not None]
        read = [position for note in notes for position in bind_blocks(note.positions, note.blocks)]
        return tuple(find_lost_records(read, (), self.inputs).values())

    @property
    def why(self) -> str | None:
        """Why the function must be called; None if nothing changed since the last call."""
        if not self.has_inputs:
            return None
        if (stale := self.stale) is not None:
            return stale
        for number in range(len(self.outputs)):
            positions = self.positions(number)
            for given in self.inputs:
                if given.unread(positions[given.dataset_id]):
                    return f"{given.name!r} has new records"
        return None

    def count_unread(self, runner: TaskRunner) -> int | None:
        """The number of keys with new records, if these records change only columns that the function does not read.

        None if the function must be called: it reads all columns of an input, or one that changed.
        """
        if self.stale is not None or self.why is None:
            return None
        known = [self.positions(number) for number in range(len(self.outputs))]
        count = 0
        for spec, given in zip(self.step.inputs, self.inputs, strict=True):
            since = min(positions[given.dataset_id] for positions in known)
            if since == given.last_offset:
                continue
            if spec.columns is None or not given.strategy.key or since == NO_POSITION:
                return None
            found = find_changes(given, _shape(given, spec.columns), 0, since, runner, position=since)
            if len(found.changed):
                return None
            count += len(found.unchanged)
        return count

    @property
    def stale(self) -> str | None:
        """Why the function must be called even if no input has new records; None if it need not be."""
        for output, note in zip(self.outputs, self.notes, strict=True):
            if note is None:
                return f"{output.name!r} has no results yet"
            if note.version == RESET:
                return "it was reset"
            if note.version != self.version:
                return "its function, its inputs or their columns changed"
        return str(self.lost[0]) if self.lost else None


def snapshot_whole_step(step: DatatableTransform, lake: Any) -> WholeStepSnapshot:
    """Take a snapshot of a step. Outputs are read first, so that their positions cannot be beyond the inputs' heads."""
    outputs = find_outputs(lake, step.outputs, step.name)
    refuse_shared(outputs, step.name)
    inputs = snapshot_inputs(lake, step.inputs)
    notes = tuple(DatatableNote.of(output) for output in outputs)
    step_snapshot = WholeStepSnapshot(step, inputs, outputs, notes, _version(step, inputs))
    for output, note in zip(outputs, notes, strict=True):
        _check_owner(step_snapshot, output, note)
    return step_snapshot


def resolve_output_key(
    step: DatatableTransform, output: StepOutput, inputs: Sequence[InputSnapshot]
) -> tuple[str, ...]:
    """The key of an output: as created, as declared, or the columns that the keys of all inputs share."""
    declared, stored = output.spec.key, output.declared_key
    if declared is not None and stored is not None and tuple(declared) != stored:
        raise OutputTaken(
            f"{output.name!r} was created with the key {list(stored)}; step {step.name!r} now has {list(declared)}",
            hint=f"drop {output.name!r}: the next run creates it again; or declare the key that it was created with",
            step=step.name,
            output=output.name,
        )
    if stored:
        return stored
    shared = [name for name in inputs[0].shown_key if all(name in given.shown_key for given in inputs)]
    if not shared:
        hidden = [given.name for given in inputs if given.strategy.key and not given.shown_key]
        why = f"view {hidden[0]!r} has no key in its visible columns" if hidden else "the keys of its inputs differ"
        raise BadStep(
            f"step {step.name!r} cannot create {output.name!r}: no key is declared, and {why}",
            hint=f"declare which columns identify a row: OutputSpec({output.name!r}, key=['id'])",
            step=step.name,
            output=output.name,
        )
    return tuple(shared)


def _shape(given: InputSnapshot, columns: Sequence[str]) -> KeyShape:
    """The input by its own key, with these columns to read."""
    assert given.layout is not None
    key = given.strategy.key
    schema = pa.schema([given.layout.data.field(name) for name in key])
    read = pa.schema([given.layout.data.field(name) for name in columns])
    mine = InputShape(
        given.name, given.dataset_id, {n: n for n in key}, key, key, read, False, True, compared=tuple(columns)
    )
    return KeyShape(schema, (mine,), "map")


def _version(step: DatatableTransform, inputs: Sequence[InputSnapshot]) -> str:
    given = [
        [one.dataset_id, None if spec.columns is None else sorted(spec.columns)]
        for one, spec in zip(inputs, step.inputs, strict=True)
    ]
    return f"{step.function.version}-{hashlib.sha3_256(json.dumps(given).encode()).hexdigest()[:8]}"


def _check_owner(step_snapshot: WholeStepSnapshot, output: StepOutput, note: DatatableNote | None) -> None:
    """Refuse an output that has the results of another step: the two would overwrite each other's results."""
    if output.is_untouched:
        return
    name = step_snapshot.step.name
    if note is not None and (note.step == name or note.version == step_snapshot.version):
        return
    whose = "another step" if note is None else f"step {note.step!r}"
    same = "" if note is None else f"; if both are the same step, give it name={note.step!r}"
    raise OutputTaken(
        f"step {name!r} cannot write to {output.name!r}: it has the results of {whose}",
        hint=f"name another output, or drop {output.name!r}{same}",
        step=name,
        output=output.name,
    )
