"""A step as of one moment: its outputs, what they know of it, and its inputs, pinned before anything is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from floodmark.chain.events import SetTransform, TransformInput, TransformSql
from floodmark.chain.state import input_ids
from floodmark.derive.positions import NOTHING, check_on_chain, least_watermark
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import Snapshot
from floodmark.transform.changed.filters import canonical
from floodmark.transform.changed.inputs import PinnedInput, pin
from floodmark.transform.changed.shape import OutputKeys, Shape, resolve_shape
from floodmark.transform.errors import BadMeta, KeysChanged, OutputTaken
from floodmark.transform.lakes import LakeLike
from floodmark.transform.meta import TransformMeta
from floodmark.transform.meta.manifest import Manifest
from floodmark.transform.output import Follows, Output, check_keys, create_output, find_outputs, follows, same_transform

if TYPE_CHECKING:
    from floodmark.transform.batch_transform import BatchTransform

ENGINE = "floodmark"

RESET = "reset of "
"""What a reset puts before the version: no function has one like it."""

LOST = "lost"
"""The version where nobody can read what it was; others have a dash."""


@dataclass(frozen=True)
class PinnedStep:
    """What a run works on. Without a shape there is nothing to do: no input has the columns yet."""

    step: BatchTransform
    inputs: tuple[PinnedInput, ...]
    outputs: tuple[Output, ...]
    meta: TransformMeta
    shape: Shape | None
    version: str  # of the function and of what it is applied to

    @property
    def required_shape(self) -> Shape:
        assert self.shape is not None
        return self.shape

    @property
    def keys(self) -> pa.Schema:
        """The transform keys."""
        return self.required_shape.keys

    def named(self, offsets: Mapping[str, int]) -> dict[str, int]:
        """Offsets by dataset id as users have them: by the inputs' names."""
        return {given.name: offsets.get(given.dataset_id, NOTHING) for given in self.inputs}

    @property
    def heads(self) -> dict[str, int]:
        """By dataset id the newest record of each input, -1 for none."""
        return {given.dataset_id: given.head for given in self.inputs}

    @property
    def positions(self) -> dict[str, int]:
        """By dataset id how far each input is done."""
        return {given.dataset_id: self.meta.positions.get(given.dataset_id, NOTHING) for given in self.inputs}

    @property
    def transform(self) -> SetTransform:
        """The step as the chains of its outputs have it."""
        inputs = tuple(TransformInput(dataset_ref=given.dataset_id, alias=given.name) for given in self.inputs)
        function = self.step.function
        return SetTransform(inputs, TransformSql(ENGINE, version=function.version, query=function.source))

    @cached_property
    def stale(self) -> str | None:
        """Why everything has to be processed once more, if so."""
        meta, outputs = self.meta, self.outputs
        if meta.version is not None and meta.version.startswith(RESET):
            return "it was reset"
        if meta.version is not None and meta.version != self.version:
            is_same = meta.version.rpartition("-")[0] == self.step.function.version
            return (
                "its inputs, their columns, its outputs or its filters changed" if is_same else "its function changed"
            )
        missing = [output.name for output in outputs if output.is_untouched]
        if meta.version is not None and missing:
            return f"output {missing[0]!r} is new"
        left = [output for output in outputs if not output.is_untouched]
        if meta.version is None and left:
            return f"output {outputs[0].name!r} is new, and {left[0].name!r} is not"
        # A run that was killed between two outputs has committed another version's results to one of them.
        other = [o.name for o in left if not same_transform(o.present[1].state.transform, self.transform)]
        notes = [(output.name, follows(output)) for output in outputs[1:] if not output.is_untouched]
        other += [name for name, note in notes if note is not None and note.version != self.version]
        if other:
            return f"output {other[0]!r} has results of another version"
        last = meta.manifest.last_run.id if meta.manifest.last_run is not None else None
        ahead = [name for name, note in notes if note is not None and note.asked not in (None, last)]
        return f"output {ahead[0]!r} has results of a run that was cut short" if ahead else None

    @property
    def watermark(self) -> int | None:
        """The watermark that the outputs have once everything is processed."""
        present = [output.snapshot.state.watermark for output in self.outputs[:1] if output.snapshot is not None]
        return least_watermark([given.watermark for given in self.inputs], present[0] if present else None)

    @property
    def primary(self) -> Snapshot:
        """The first output, which has the meta."""
        return self.outputs[0].present[1]

    def has_nothing_to_do(self, now_ms: int) -> bool:
        """Whether a run would commit nothing, as far as positions tell: reads no data."""
        if self.shape is None:
            return True
        if self.stale is not None or self.heads != self.positions:
            return False
        if self.meta.version is not None and self.watermark != self.primary.state.watermark:
            return False
        return not self.has_due(now_ms)

    def has_due(self, now_ms: int) -> bool:
        """Whether failed keys are to be tried again by now; the manifest alone tells."""
        failed = self.meta.manifest.failed
        return failed is not None and failed.next_due is not None and failed.next_due <= now_ms

    def check_positions(self) -> None:
        """`InputDiverged` if an input does not hold the records any more that results refer to."""
        if self.shape is not None and self.stale is None:
            name = self.step.name
            remedy = f"`floodmark reset {name}` makes the next run compute everything from what there is"
            check_on_chain(f"step {name!r}", self.meta.manifest.read, self.inputs, remedy)

    def create_missing_outputs(self, lake: LakeLike) -> bool:
        """Create the outputs that do not exist, without rows; whether there were any."""
        missing = [output for output in self.outputs if output.snapshot is None]
        for output in missing:
            create_output(lake, output, self.keys, self.transform)
        return bool(missing)


Load = Callable[[Snapshot], TransformMeta]
"""What a primary output knows of its step."""


def noted(primary: Snapshot) -> TransformMeta:
    """The meta as the newest commit has it; `BadMeta` when it is damaged."""
    return TransformMeta.load(primary.objects, primary.state.checkpoint)


def whatever_is_left(primary: Snapshot) -> TransformMeta:
    """The same, and where it is damaged one of a version that nobody has: all that was known is lost."""
    try:
        return noted(primary)
    except BadMeta:
        return TransformMeta(primary.objects, primary.state.checkpoint, Manifest(version=LOST))


def pin_step(step: BatchTransform, lake: LakeLike, load: Load = noted) -> PinnedStep:
    """A step as it stands now; whatever does not go together is refused.

    Outputs come first: what they know can then not be newer than what is pinned of the inputs.
    """
    outputs = find_outputs(lake, step.outputs, step.name)
    primary = outputs[0].snapshot
    nothing = TransformMeta.load(DatasetObjects(lake.store, "nowhere"), None)
    meta = nothing if primary is None else load(primary)
    inputs = pin(lake, step.inputs)
    keys = [OutputKeys(output.name, output.declared_key, _columns(output, meta)) for output in outputs]
    wanted = step.transform_keys
    if wanted is not None and (made := outputs[0].made_by) is not None and tuple(wanted) != made:
        check_keys(outputs, wanted, step.name)
    shape = resolve_shape(inputs, step.inputs, wanted, keys)
    if shape is None:
        return PinnedStep(step, inputs, outputs, meta, None, "")
    check_keys(outputs, shape.names, step.name)
    _check_types(meta, shape, outputs[0], step.name)
    pinned = PinnedStep(step, inputs, outputs, meta, shape, _version(step, shape, outputs))
    _check_owner(pinned)
    return pinned


def _columns(output: Output, meta: TransformMeta) -> pa.Schema | None:
    """The columns of an output, or as much as is known of them while it has none: the types of keys must stay."""
    if output.snapshot is not None and output.snapshot.layout is not None:
        return output.snapshot.layout.data
    return meta.transform_keys if meta.version not in (None, LOST) else None


def _version(step: BatchTransform, shape: Shape, outputs: Sequence[Output]) -> str:
    """The function's version, and a digest of what else a result depends on. Names are no part of it."""
    inputs = [
        [given.dataset_id, dict(given.keys), None if spec.columns is None else sorted(spec.columns), given.required]
        for spec, given in zip(step.inputs, shape.inputs, strict=True)
    ]
    parts = [inputs, [[f.name, str(f.type)] for f in shape.keys], [output.key(shape.names) for output in outputs]]
    if step.filters is not None:
        parts.append(canonical(step.filters))
    return f"{step.function.version}-{hashlib.sha3_256(json.dumps(parts).encode()).hexdigest()[:8]}"


def _check_types(meta: TransformMeta, shape: Shape, output: Output, step: str) -> None:
    """Refuse keys of other types than those that the processed keys were hashed with."""
    if meta.version in (None, LOST):
        return
    before = {field.name: field.type for field in meta.transform_keys}
    for field in shape.keys:
        if before.get(field.name) != field.type:
            raise KeysChanged(
                f"the transform key {field.name!r} of step {step!r} has type {field.type}, and had "
                f"{before.get(field.name)} when {output.name!r} was made",
                hint=f"drop {output.name!r}, and the next run makes it anew",
                step=step,
                output=output.name,
            )


def _check_owner(pinned: PinnedStep) -> None:
    """Refuse outputs that hold the results of another step.

    A step is the same under another name as long as its function and inputs are, and with another function as long as
    its name is. Where both differ nobody can tell, and two steps would undo each other's work.
    """
    step, meta = pinned.step, pinned.meta
    primary = pinned.outputs[0]
    note = follows(primary)
    if note is not None and note.step == step.name:
        raise _not_first(pinned, note)
    if note is not None:
        raise _taken(primary.name, step.name, note.step, "as an output that is not its first")
    if meta.version is None and not primary.is_untouched:
        raise _taken(primary.name, step.name, None, "")
    if meta.version == LOST:
        chain = pinned.primary.state.transform
        if chain is None or input_ids(chain) != input_ids(pinned.transform):
            raise _taken(primary.name, step.name, None, "")
    elif meta.version not in (None, pinned.version, RESET + pinned.version) and meta.manifest.name != step.name:
        raise _taken(primary.name, step.name, meta.manifest.name, "")
    for output in pinned.outputs[1:]:
        if output.is_untouched:
            continue
        note = follows(output)
        if note is None:
            raise _taken(output.name, step.name, None, "")
        mine = primary.id is not None and note.primary == str(primary.id)
        if not mine and note.step != step.name:
            raise _taken(output.name, step.name, note.step, "")


def _not_first(pinned: PinnedStep, note: Follows) -> OutputTaken:
    """The outputs of the same step in another order, or without the one that was the first."""
    step, names = pinned.step.name, [output.name for output in pinned.outputs]
    first = [output.name for output in pinned.outputs if str(output.id) == note.primary]
    what, hint = f"the output that was its first is not among {names} any more", "name that one first again"
    if first:
        what, hint = (
            f"its first output is {first[0]!r}",
            f"give outputs={[*first, *(n for n in names if n not in first)]}",
        )
    return OutputTaken(
        f"step {step!r} cannot have {names[0]!r} as its first output: {what}, which knows what was processed",
        hint=f"{hint}; or drop its outputs, and the next run makes them anew",
        step=step,
        output=names[0],
        owner=step,
    )


def _taken(output: str, step: str, other: str | None, how: str) -> OutputTaken:
    whose = "another step" if other is None else f"step {other!r}"
    same = "" if other is None else f"; if both are the same step, go on with name={other!r}"
    return OutputTaken(
        f"step {step!r} cannot write to {output!r}: it holds the results of {whose}{' ' + how if how else ''}",
        hint=f"name another output, or drop {output!r}{same}",
        step=step,
        output=output,
        owner=other,
    )
