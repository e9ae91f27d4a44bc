"""The outputs of a step: found, made on its first run, and refused when they are somebody else's.

The first output is the primary one: its newest checkpoint is the transform meta. The others follow it, and the
checkpoint of each is a small note that says which one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from floodmark.chain.events import DatasetKind, SetTransform
from floodmark.chain.ids import DatasetId
from floodmark.chain.state import input_ids
from floodmark.derive import notes
from floodmark.derive.notes import BadNote, CommitNote
from floodmark.ledger.create import derived_layout
from floodmark.ledger.errors import DatasetExists
from floodmark.ledger.layout import fields_from, vocabulary
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.transform.errors import BadStep, KeysChanged, OutputTaken
from floodmark.transform.functions.returned import OutputShape
from floodmark.transform.lakes import DatasetLike, LakeLike
from floodmark.transform.specs import OutputSpec
from floodmark.transform.views.defined.stored import is_view


@dataclass(frozen=True)
class Output:
    """An output as of one head; without a dataset before the step's first run."""

    spec: OutputSpec
    name: str
    dataset: DatasetLike | None = None
    snapshot: Snapshot | None = None

    @property
    def id(self) -> DatasetId | None:
        return None if self.snapshot is None else self.snapshot.state.dataset_id

    @property
    def declared_key(self) -> tuple[str, ...] | None:
        """The key that it was made with, else the one it is declared with, if any."""
        if self.snapshot is not None:
            return strategy_of(self.snapshot.state).key
        return None if self.spec.key is None else tuple(self.spec.key)

    @property
    def made_by(self) -> tuple[str, ...] | None:
        """The transform keys that it was made with."""
        return None if self.snapshot is None else strategy_of(self.snapshot.state).lookup

    @property
    def is_untouched(self) -> bool:
        """Whether no run has committed to it yet."""
        return self.snapshot is None or not self.snapshot.state.inputs

    @property
    def present(self) -> tuple[DatasetLike, Snapshot]:
        assert self.dataset is not None
        assert self.snapshot is not None
        return self.dataset, self.snapshot

    def key(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Its key: the transform keys first, so that the rows of one are found together."""
        declared = self.declared_key or tuple(keys)
        return (*keys, *(name for name in declared if name not in keys))


def find_outputs(lake: LakeLike, specs: Sequence[OutputSpec], step: str) -> tuple[Output, ...]:
    """The outputs as they are now; those that take data from outside are refused."""
    return tuple(_found(lake, spec, step) for spec in specs)


def _found(lake: LakeLike, spec: OutputSpec, step: str) -> Output:
    if spec.name not in lake:
        return Output(spec, spec.name)
    dataset = lake[spec.name]
    snapshot = dataset.snapshot()
    if snapshot.state.dataset_kind is not DatasetKind.DERIVATIVE:
        raise OutputTaken(
            f"step {step!r} cannot write to {spec.name!r}: it is a dataset that data is written to",
            hint="name another output; the step makes it on its first run",
            step=step,
            output=spec.name,
        )
    if is_view(snapshot.state):
        raise OutputTaken(
            f"step {step!r} cannot write to {spec.name!r}: it is a view, and only its query makes its rows",
            hint="name another output; the step makes it on its first run",
            step=step,
            output=spec.name,
        )
    return Output(spec, spec.name, dataset, snapshot)


def check_keys(outputs: Sequence[Output], keys: Sequence[str], step: str) -> None:
    """Refuse outputs whose key lacks transform keys, or that were made with other keys or types."""
    wanted = tuple(keys)
    for output in outputs:
        declared = None if output.spec.key is None else tuple(output.spec.key)
        if declared is not None and (missing := [name for name in wanted if name not in declared]):
            raise BadStep(
                f"the key {list(declared)} of output {output.name!r} of step {step!r} lacks the transform key "
                f"{missing[0]!r}",
                hint="rows of different transform keys must have different keys: add it to the output's key",
                step=step,
                output=output.name,
            )
        if output.snapshot is None:
            continue
        made = strategy_of(output.snapshot.state)
        if made.lookup != wanted or (declared is not None and set(declared) != set(made.key)):
            now = declared if made.lookup == wanted and declared is not None else wanted
            before = made.key if made.lookup == wanted else made.lookup
            raise KeysChanged(
                f"{output.name!r} was made by transform keys {list(made.lookup)} with the key {list(made.key)}; "
                f"step {step!r} now has {list(now)} instead of {list(before)}",
                hint=f"drop {output.name!r}, and the next run makes it anew; or give the keys that it was made with",
                step=step,
                output=output.name,
            )
        _check_types(output, output.snapshot, step)


def _check_types(output: Output, snapshot: Snapshot, step: str) -> None:
    if snapshot.layout is None or output.spec.schema is None:
        return
    wanted, _ = derived_layout(fields_from(output.spec.schema), strategy_of(snapshot.state), snapshot.state.vocab)
    there = snapshot.layout.data
    for field in wanted.data:
        if field.name in there.names and there.field(field.name).type != field.type:
            raise BadStep(
                f"column {field.name!r} of output {output.name!r} is {there.field(field.name).type}, and step {step!r} "
                f"declares {field.type}",
                hint=f"drop {output.name!r}, and the next run makes it anew; or declare what it has",
                step=step,
                output=output.name,
            )


def create_output(lake: LakeLike, output: Output, keys: pa.Schema, transform: SetTransform) -> None:
    """Create the dataset of an output; it has no rows before the first commit."""
    spec = output.spec
    with suppress(DatasetExists):  # another run of the step was quicker
        lake.create_derived(
            output.name,
            key=output.key(keys.names),
            lookup=keys.names,
            event_time=spec.event_time,
            schema=spec.schema,
            transform=transform,
        )


def shape_of(output: Output, keys: pa.Schema) -> OutputShape:
    """What tasks have to know of an output."""
    snapshot = output.snapshot
    vocab = vocabulary(None if snapshot is None else snapshot.state.vocab)
    event_time = output.spec.event_time if snapshot is None else vocab.event_time if snapshot.state.vocab else None
    layout = None if snapshot is None else snapshot.layout
    if snapshot is not None and layout is None and output.spec.schema is not None:
        # Made by a run that came to no columns, before the schema was given.
        layout, _ = derived_layout(fields_from(output.spec.schema), strategy_of(snapshot.state), snapshot.state.vocab)
    return OutputShape(
        name=output.name,
        key=output.key(keys.names),
        keys=keys,
        layout=layout,
        event_time=event_time,
        vocab=vocab,
    )


# Whose an output is


@dataclass(frozen=True)
class Follows(CommitNote):
    """The note that is the checkpoint of an output that is not the first: whose results it has."""

    KIND = "floodmark.follows"

    primary: str
    step: str
    version: str
    """Of the step with all that is declared of it, as the meta has it; the chain knows the function's alone."""
    asked: str | None = None
    """The run that processed keys which were not pending: nobody would come back to them if it were cut short."""
    pinned: Mapping[str, int] | None = None
    """By dataset id the newest record of each input that the run could see, where the chain does not say so."""
    failed: str = ""
    """The keys that failed, whose rows were taken back, as `made.packed` has them."""


def follows(output: Output) -> Follows | None:
    """What the newest checkpoint of an output notes; None when it is none of ours, or the meta itself."""
    if output.snapshot is None or output.snapshot.state.checkpoint is None:
        return None
    try:
        return notes.read(output.snapshot.objects, output.snapshot.state.checkpoint).read_as(Follows)
    except BadNote:
        return None


def same_transform(chain: SetTransform | None, wanted: SetTransform) -> bool:
    """Whether the chain says already what the transform is: names and source text may differ."""
    if chain is None or input_ids(chain) != input_ids(wanted):
        return False
    return replace(chain.transform, query=None) == replace(wanted.transform, query=None)
