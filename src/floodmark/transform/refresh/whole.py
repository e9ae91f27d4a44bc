"""Where a step that works on whole datasets stands: its inputs, pinned, and what its outputs say they were made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from floodmark.chain.events import SetTransform, TransformInput, TransformSql
from floodmark.derive import notes
from floodmark.derive.notes import BadNote, CommitNote
from floodmark.derive.positions import NOTHING, bound, check_on_chain
from floodmark.transform.changed.inputs import PinnedInput, pin
from floodmark.transform.errors import BadMeta, BadStep, KeysChanged, OutputTaken
from floodmark.transform.output import Output, find_outputs

if TYPE_CHECKING:
    from floodmark.transform.refresh.datatable import DatatableTransform

ENGINE = "floodmark"
RESET = "reset"


@dataclass(frozen=True)
class Note(CommitNote):
    """The checkpoint of an output: which step made it, by which version, and how that run went."""

    KIND = "floodmark.datatable"

    step: str
    version: str
    run: str = ""
    process_ts: int = 0  # milliseconds
    rows: int = 0
    seconds: float = 0.0
    positions: Mapping[str, int] = field(default_factory=dict)  # by dataset id the newest record that was read
    blocks: Mapping[str, str] = field(default_factory=dict)  # those that hold these records

    @staticmethod
    def of(output: Output) -> Note | None:
        """What an output says; None if it says nothing, or something that is not ours."""
        if output.snapshot is None or (checkpoint := output.snapshot.state.checkpoint) is None:
            return None
        try:
            return notes.read(output.snapshot.objects, checkpoint).read_as(Note)
        except BadNote as error:
            raise BadMeta(
                f"the checkpoint of {output.name!r} {error.problem}: what it was made of is not known any more",
                hint=f"put it back from a copy of the dataset, or drop {output.name!r} and run the step again",
                file=checkpoint.text,
                dataset=output.name,
            ) from error


@dataclass(frozen=True)
class WholeStep:
    """A step as of one moment; nothing that is read later is newer."""

    step: DatatableTransform
    inputs: tuple[PinnedInput, ...]
    outputs: tuple[Output, ...]
    notes: tuple[Note | None, ...]
    version: str  # of the function and of what it is given

    @property
    def has_inputs(self) -> bool:
        """Whether every input has columns; before that there is no frame to give to the function."""
        return all(given.layout is not None for given in self.inputs)

    @property
    def transform(self) -> SetTransform:
        """The step as the chains of its outputs have it."""
        inputs = tuple(TransformInput(dataset_ref=given.dataset_id, alias=given.name) for given in self.inputs)
        function = self.step.function
        return SetTransform(inputs, TransformSql(ENGINE, version=function.version, query=function.source))

    def positions(self, number: int) -> dict[str, int]:
        """By dataset id how far an output has seen each input, -1 for not at all."""
        note = self.notes[number]
        read: Mapping[str, int] = {} if note is None else note.positions
        return {given.dataset_id: read.get(given.dataset_id, NOTHING) for given in self.inputs}

    def check_positions(self) -> None:
        """`InputDiverged` if an input does not hold the records any more that an output was made of."""
        if self.stale is not None:
            return
        name = self.step.name
        remedy = f"`floodmark reset {name}` makes the next run call the function with what there is"
        for note in self.notes:
            if note is not None:
                check_on_chain(f"step {name!r}", bound(note.positions, note.blocks), self.inputs, remedy)

    @property
    def why(self) -> str | None:
        """Why the function is to be called; None when nothing has changed since it was."""
        if not self.has_inputs:
            return None
        if (stale := self.stale) is not None:
            return stale
        for number in range(len(self.outputs)):
            positions = self.positions(number)
            for given in self.inputs:
                if positions[given.dataset_id] != given.head:
                    return f"{given.name!r} has new records"
        return None

    @property
    def stale(self) -> str | None:
        """Why it is to be called even if no input had moved."""
        for output, note in zip(self.outputs, self.notes, strict=True):
            if note is None:
                return f"{output.name!r} is not made yet"
            if note.version == RESET:
                return "it was reset"
            if note.version != self.version:
                return "its function changed, or what it is given"
        return None


def pin_whole(step: DatatableTransform, lake: Any) -> WholeStep:
    """A step as it stands now. Outputs come first: what they have seen can then not be newer than the inputs."""
    outputs = find_outputs(lake, step.outputs, step.name)
    inputs = pin(lake, step.inputs)
    notes = tuple(Note.of(output) for output in outputs)
    found = WholeStep(step, inputs, outputs, notes, _version(step, inputs))
    for output, note in zip(outputs, notes, strict=True):
        _check_owner(found, output, note)
    return found


def output_key(step: DatatableTransform, output: Output, inputs: Sequence[PinnedInput]) -> tuple[str, ...]:
    """What identifies a row of an output: as declared, as it was made, or what the keys of all inputs share."""
    declared, made = output.spec.key, output.declared_key
    if declared is not None and made is not None and tuple(declared) != made:
        raise KeysChanged(
            f"{output.name!r} was made with the key {list(made)}; step {step.name!r} now has {list(declared)}",
            hint=f"drop {output.name!r}, and the next run makes it anew; or give the key that it was made with",
            step=step.name,
            output=output.name,
        )
    if made:
        return made
    shared = [name for name in inputs[0].shown_key if all(name in given.shown_key for given in inputs)]
    if not shared:
        hidden = [given.name for given in inputs if given.strategy.key and not given.shown_key]
        why = f"view {hidden[0]!r} has none of its own columns" if hidden else "its inputs share none"
        raise BadStep(
            f"step {step.name!r} cannot make {output.name!r}: it has no key, and {why}",
            hint=f"say which columns identify a row: OutputSpec({output.name!r}, key=['id'])",
            step=step.name,
            output=output.name,
        )
    return tuple(shared)


def _version(step: DatatableTransform, inputs: Sequence[PinnedInput]) -> str:
    given = [
        [one.dataset_id, None if spec.columns is None else sorted(spec.columns)]
        for one, spec in zip(inputs, step.inputs, strict=True)
    ]
    return f"{step.function.version}-{hashlib.sha3_256(json.dumps(given).encode()).hexdigest()[:8]}"


def _check_owner(found: WholeStep, output: Output, note: Note | None) -> None:
    """Refuse an output that holds the results of another step: the two would undo each other's work."""
    if output.is_untouched:
        return
    name = found.step.name
    if note is not None and (note.step == name or note.version == found.version):
        return
    whose = "another step" if note is None else f"step {note.step!r}"
    same = "" if note is None else f"; if both are the same step, go on with name={note.step!r}"
    raise OutputTaken(
        f"step {name!r} cannot write to {output.name!r}: it holds the results of {whose}",
        hint=f"name another output, or drop {output.name!r}{same}",
        step=name,
        output=output.name,
    )
