"""The outputs of a step: find them, create them on the first run, and refuse datasets of other steps.

The first output is the primary one: its newest checkpoint is the transform meta. The checkpoint of every other output
is a small note that names the primary one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from floodmark.chain.events import DatasetKind, SetTransform
from floodmark.chain.ids import DatasetId
from floodmark.chain.state import parse_input_ids
from floodmark.derive import notes
from floodmark.derive.inputs import DatasetLike, LakeLike
from floodmark.derive.notes import BadNote, CommitNote
from floodmark.errors import (
    BadData,
    BadStep,
    DatasetExists,
    DuplicateKeys,
    OutputTaken,
    TypeMismatch,
    UnsupportedType,
)
from floodmark.functions.step_result import OutputShape
from floodmark.ledger.create import derived_layout
from floodmark.ledger.schema import declare_vocab, fields_from, vocabulary
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import is_view, strategy_of
from floodmark.transforms.specs import OutputSpec


@dataclass(frozen=True)
class StepOutput:
    """An output as of one head. Before the step's first run it has no dataset."""

    spec: OutputSpec
    name: str
    dataset: DatasetLike | None = None
    snapshot: Snapshot | None = None

    @property
    def id(self) -> DatasetId | None:
        return None if self.snapshot is None else self.snapshot.state.dataset_id

    @property
    def declared_key(self) -> tuple[str, ...] | None:
        """The key that the dataset was created with; if it does not exist, the declared key, if any."""
        if self.snapshot is not None:
            return strategy_of(self.snapshot.state).key
        return None if self.spec.key is None else tuple(self.spec.key)

    @property
    def has_declared_key(self) -> bool:
        """Whether a user chose the key, for the step or for the dataset: such a key may lack transform keys."""
        return self.spec.key is not None or self.is_shared

    @property
    def stored_transform_keys(self) -> tuple[str, ...] | None:
        """The transform keys that the dataset was created with."""
        return None if self.snapshot is None else strategy_of(self.snapshot.state).lookup

    @property
    def is_shared(self) -> bool:
        """Whether users may write to it, too, because `Lake.create` made it and not a run of the step."""
        return self.snapshot is not None and self.snapshot.state.dataset_kind is DatasetKind.ROOT

    @property
    def is_untouched(self) -> bool:
        """Whether no run has committed to it yet."""
        if self.snapshot is not None and self.is_shared:
            return self.snapshot.state.checkpoint is None
        return self.snapshot is None or not self.snapshot.state.inputs

    @property
    def existing(self) -> tuple[DatasetLike, Snapshot]:
        assert self.dataset is not None
        assert self.snapshot is not None
        return self.dataset, self.snapshot

    def follow(self, snapshot: Snapshot) -> None:
        """Update the timeline of a dataset that users made, after a commit that left this snapshot."""
        dataset: Any = self.dataset
        dataset.parts.follow(snapshot)

    def key(self, keys: Sequence[str]) -> tuple[str, ...]:
        """The key for these transform keys: they come first, so that the rows of one key are found together."""
        return self.key_of(self.declared_key or tuple(keys), keys)

    @staticmethod
    def key_of(declared: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
        """A declared key after the transform keys."""
        return (*keys, *(name for name in declared if name not in keys))

    def adds_keys(self, keys: Sequence[str]) -> bool:
        """Whether its rows get the transform keys as columns, because the declared key has none of them."""
        return self.spec.key is not None and not self.is_shared and not set(self.spec.key) & set(keys)

    def schema(self, keys: pa.Schema) -> Any:
        """The declared schema, with the transform keys if the rows get them; None if there is none."""
        if self.spec.schema is None or not self.adds_keys(keys.names):
            return self.spec.schema
        declared = fields_from(self.spec.schema)
        return pa.schema([*(field for field in keys if field.name not in declared.names), *declared])


def find_outputs(lake: LakeLike, specs: Sequence[OutputSpec], step: str) -> tuple[StepOutput, ...]:
    """The current outputs; views, and datasets that cannot be upserted to are refused."""
    return tuple(_find(lake, spec, step) for spec in specs)


def _find(lake: LakeLike, spec: OutputSpec, step: str) -> StepOutput:
    if spec.name not in lake:
        return StepOutput(spec, spec.name)
    dataset = lake[spec.name]
    snapshot = dataset.snapshot()
    strategy = strategy_of(snapshot.state)
    if snapshot.state.dataset_kind is DatasetKind.ROOT and strategy.kind != "upsert":
        raise OutputTaken(
            f"step {step!r} cannot write to {spec.name!r}: the dataset was created with {strategy}",
            hint="create it with key= and merge='upsert'; or choose a new name for the output: a run creates it",
            step=step,
            output=spec.name,
        )
    if is_view(snapshot.state):
        raise OutputTaken(
            f"step {step!r} cannot write to {spec.name!r}: it is a view, so its rows come from its query",
            hint="choose a new name for the output; the first run creates it",
            step=step,
            output=spec.name,
        )
    check_declared_names(spec, snapshot, step)
    return StepOutput(spec, spec.name, dataset, snapshot)


def check_declared_names(spec: OutputSpec, snapshot: Snapshot, step: str) -> None:
    """Refuse an output that was created with other system columns, or another event time, than declared."""
    vocab = snapshot.state.vocab
    present, wanted = vocabulary(vocab).reserved, vocabulary(declare_vocab(spec.vocab)).reserved
    other = ""
    if spec.vocab is not None and present != wanted:
        other = f"the system columns {', '.join(present)}, not {', '.join(wanted)}"
    event_time = None if vocab is None else vocab.event_time_column
    if spec.event_time is not None and spec.event_time != event_time:
        other = f"the event time {event_time!r}, not {spec.event_time!r}"
    if other:
        raise BadStep(
            f"output {spec.name!r} of step {step!r} exists with {other}",
            hint=f"drop {spec.name!r}: the next run creates it again; or declare what it was created with",
            step=step,
            output=spec.name,
        )


def refuse_shared(outputs: Sequence[StepOutput], step: str) -> None:
    """Refuse outputs that users write to: the step would remove their rows."""
    for output in outputs:
        if output.is_shared:
            raise OutputTaken(
                f"step {step!r} cannot write to {output.name!r}: it is a dataset with its own writes, and the step "
                "replaces all rows of its output",
                hint="choose a new name for the output; the first run creates it",
                step=step,
                output=output.name,
            )


def check_keys(outputs: Sequence[StepOutput], keys: Sequence[str], step: str) -> None:
    """Refuse outputs whose key lacks transform keys, or that were created with other keys or types."""
    transform_keys = tuple(keys)
    for output in outputs:
        declared = None if output.spec.key is None else tuple(output.spec.key)
        if output.snapshot is None:
            continue
        stored = strategy_of(output.snapshot.state)
        if output.is_shared and set(stored.lookup) != set(transform_keys):
            raise OutputTaken(
                f"step {step!r} cannot write to {output.name!r}: its rows are looked up by {list(stored.lookup)}, and "
                f"the transform keys are {list(transform_keys)}",
                hint=f"create it with lookup={list(transform_keys)} and a key that starts with these columns",
                step=step,
                output=output.name,
            )
        has_keys = output.is_shared or stored.lookup == transform_keys
        is_other = declared is not None and set(output.key_of(declared, transform_keys)) != set(stored.key)
        if not has_keys or is_other:
            now = declared if has_keys and declared is not None else transform_keys
            before = stored.key if has_keys else stored.lookup
            raise OutputTaken(
                f"{output.name!r} was created with the transform keys {list(stored.lookup)} and the key "
                f"{list(stored.key)}; step {step!r} now has {list(now)} instead of {list(before)}",
                hint=f"drop {output.name!r}: the next run creates it again; or declare the keys of its creation",
                step=step,
                output=output.name,
            )
        _check_types(output, output.snapshot, transform_keys, step)


def _check_types(output: StepOutput, snapshot: Snapshot, keys: Sequence[str], step: str) -> None:
    if snapshot.layout is None or output.spec.schema is None:
        return
    stored = snapshot.layout.data
    fields = fields_from(output.schema(pa.schema([stored.field(name) for name in keys])))
    declared, _ = derived_layout(fields, strategy_of(snapshot.state), snapshot.state.vocab)
    for column in declared.data:
        if column.name in stored.names and stored.field(column.name).type != column.type:
            raise BadStep(
                f"column {column.name!r} of output {output.name!r} is {stored.field(column.name).type}, but step "
                f"{step!r} declares {column.type}",
                hint=f"drop {output.name!r}: the next run creates it again; or declare the stored type",
                step=step,
                output=output.name,
            )


def create_output(lake: LakeLike, output: StepOutput, keys: pa.Schema, transform: SetTransform) -> None:
    """Create the dataset of an output; it has no rows before the first commit."""
    spec = output.spec
    with suppress(DatasetExists):  # another run of the step created it first
        lake.create_derived(
            output.name,
            key=output.key(keys.names),
            lookup=keys.names,
            event_time=spec.event_time,
            schema=output.schema(keys),
            transform=transform,
            vocab=spec.vocab,
        )


def shape_of(output: StepOutput, keys: pa.Schema) -> OutputShape:
    """The properties of an output that tasks need."""
    snapshot = output.snapshot
    event = declare_vocab(output.spec.vocab, output.spec.event_time) if snapshot is None else snapshot.state.vocab
    event_time = None if event is None else event.event_time_column
    layout = None if snapshot is None else snapshot.layout
    if snapshot is not None and layout is None and output.spec.schema is not None:
        # An earlier run without schema= created the dataset, but had no rows and so no columns.
        fields = fields_from(output.schema(keys))
        layout, _ = derived_layout(fields, strategy_of(snapshot.state), snapshot.state.vocab)
    return OutputShape(
        name=output.name,
        key=output.key(keys.names),
        keys=keys,
        layout=layout,
        event_time=event_time,
        vocab=vocabulary(event),
        adds_keys=output.adds_keys(keys.names),
    )


# The owner of an output


@dataclass(frozen=True)
class SecondaryNote(CommitNote):
    """The note in the checkpoint of every output that is not the first: the step whose results it has."""

    KIND = "floodmark.follows"

    primary: str
    """The id of the first output."""
    step: str
    version: str
    """Of the step with its declaration, as in the meta; the chain has only the version of the function."""
    asked: str | None = None
    """The run, if it processed keys that were not pending: no later run would process them if it was interrupted."""
    last_offsets: Mapping[str, int] | None = None
    """By dataset id the newest record of each input that the run could see, if it is beyond the chain's position."""
    failed: str = ""
    """The keys that failed and were skipped, so that their rows were retracted: see `pack_hashes` (commit.py)."""
    blocks: Mapping[str, str] = field(default_factory=dict)
    """By dataset id the blocks that have the records of `last_offsets`."""


def read_secondary_note(output: StepOutput) -> SecondaryNote | None:
    """The note in the newest checkpoint of an output; None if it is another note or the meta."""
    if output.snapshot is None or output.snapshot.state.checkpoint is None:
        return None
    try:
        return notes.load_note(output.snapshot.objects, output.snapshot.state.checkpoint).read_as(SecondaryNote)
    except BadNote:
        return None


def same_transform(chain: SetTransform | None, transform: SetTransform) -> bool:
    """Whether the chain already has this transform: names and source text may differ."""
    if chain is None or parse_input_ids(chain) != parse_input_ids(transform):
        return False
    return replace(chain.transform, query=None) == replace(transform.transform, query=None)


# Errors about rows


@contextmanager
def explain_row_errors(output: str) -> Iterator[None]:
    """Raise errors about rows again with the name of the output, and a hint that says what to declare."""
    try:
        yield
    except BadData as error:
        facts = {"output": output, **error.facts}
        message = error.message if repr(output) in error.message else f"output {output!r}: {error.message}"
        raise type(error)(message, hint=_hint(error, output), **facts) from error


def _hint(error: BadData, output: str) -> str:
    if isinstance(error, DuplicateKeys):
        return f"nothing was written: return one row per key, or declare another key: OutputSpec({output!r}, key=[…])"
    if isinstance(error, UnsupportedType):
        return error.hint.replace("give schema=", f"declare the type: OutputSpec({output!r}, schema=…)")
    if isinstance(error, TypeMismatch):
        return f"{error.hint}; or drop the output and declare the type: OutputSpec({output!r}, schema=…)"
    declaration = rf"drop the output, if it exists, and declare OutputSpec({output!r}, \1)"
    return re.sub(r"create a dataset with (vocab=\{[^}]*\})", declaration, error.hint)
