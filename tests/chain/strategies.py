"""Random valid chains, built by a naive model that knows the rules in its own way."""

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from floodmark.chain import schema as s
from floodmark.chain.events import (
    AddData,
    AddPushSource,
    AttachmentEmbedded,
    AttachmentsEmbedded,
    Checkpoint,
    DatasetKind,
    DataSlice,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataBlock,
    OffsetInterval,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
    SqlQueryStep,
    TransformInput,
    TransformSql,
)
from floodmark.chain.ids import LOGICAL, DatasetId, Multihash
from floodmark.chain.source_steps import FetchStepUrl, MergeStrategyAppend, ReadStepParquet
from floodmark.chain.wire import encode

ROOT, DERIVATIVE = DatasetKind.ROOT, DatasetKind.DERIVATIVE


def a_hash(seed) -> Multihash:
    """Some hash, another one for another seed."""
    return Multihash.sha3_256(repr(seed).encode())


def an_id(seed) -> DatasetId:
    """Some dataset id, another one for another seed."""
    return DatasetId(a_hash(("id", seed)).digest)


def a_slice(start: int, end: int) -> DataSlice:
    """A slice of records, both offsets included."""
    logical = Multihash(LOGICAL, a_hash(("logical", start, end)).digest)
    return DataSlice(logical, a_hash(("physical", start, end)), OffsetInterval(start, end), size=100)


def a_transform(*names: str, version: int = 0) -> SetTransform:
    """A transform of the datasets with these names."""
    inputs = tuple(TransformInput(an_id(name).text, name) for name in names)
    queries = (SqlQueryStep(alias="step", query=f"select {version}"), SqlQueryStep(query="select * from step"))
    return SetTransform(inputs, TransformSql("floodmark", queries=queries))


SCHEMA = s.DataSchema(
    (
        s.DataField("offset", s.DataTypeInt64()),
        s.DataField("name", s.DataTypeOption(s.DataTypeString())),
        s.DataField("tags", s.DataTypeList(s.DataTypeStruct((s.DataField("tag", s.DataTypeString()),)))),
    )
)


@dataclass
class Model:
    """A chain being built, with plain variables for all that the next block depends on."""

    kind: DatasetKind
    blocks: list[tuple[Multihash, MetadataBlock]] = field(default_factory=list)
    time: int = 1_600_000_000 * 10**9
    last_offset: int | None = None
    checkpoint: Multihash | None = None
    watermark: int | None = None
    source_state: SourceState | None = None
    schema: s.DataSchema | None = None
    vocab: SetVocab | None = None
    transform: SetTransform | None = None
    inputs: dict[str, tuple[Multihash | None, int | None]] = field(default_factory=dict)
    input_names: tuple[str, ...] = ()
    executed: tuple[str, ...] = ()

    def add(self, event, seconds: int = 1) -> None:
        """Put the event on the chain."""
        self.time += seconds * 10**9
        prev = self.blocks[-1][0] if self.blocks else None
        block = MetadataBlock(
            system_time=self.time, prev_block_hash=prev, sequence_number=len(self.blocks), event=event
        )
        self.blocks.append((Multihash.sha3_256(encode(block)), block))

    def seed(self) -> None:
        self.add(Seed(an_id("this"), self.kind))

    def set_schema(self) -> None:
        if self.schema is None:
            self.schema = SCHEMA
        else:
            extra = s.DataField(f"new{len(self.blocks)}", s.DataTypeOption(s.DataTypeInt32()))
            self.schema = replace(self.schema, fields=(extra, *self.schema.fields))
        self.add(SetDataSchema(schema=self.schema))

    def set_vocab(self) -> None:
        self.vocab = SetVocab(event_time_column=f"time{len(self.blocks)}")
        self.add(self.vocab)

    def set_transform(self, names: tuple[str, ...]) -> None:
        self.transform = a_transform(*names, version=len(self.blocks))
        self.input_names = names
        self.add(self.transform)

    def data(self, rows: int, later: int, with_state: bool, with_checkpoint: bool, moves: list[int]) -> None:
        """A data block that adds rows, moves the watermark by `later` seconds, and so on; never a no-op."""
        if self.schema is None:
            rows = 0
        number = len(self.blocks)
        derivative = self.kind is DERIVATIVE
        moved = any(moves[: len(self.input_names)]) if derivative else with_state
        if not (rows or later or with_checkpoint or moved):
            later = 1
        if later:
            self.watermark = (1_500_000_000 * 10**9 if self.watermark is None else self.watermark) + later * 10**9
        start = 0 if self.last_offset is None else self.last_offset + 1
        common = {
            "prev_checkpoint": self.checkpoint,
            "prev_offset": self.last_offset,
            "new_data": a_slice(start, start + rows - 1) if rows else None,
            "new_checkpoint": Checkpoint(a_hash(("checkpoint", number)), 7) if with_checkpoint else None,
            "new_watermark": self.watermark,
        }
        if rows:
            self.last_offset = start + rows - 1
        if with_checkpoint:
            self.checkpoint = a_hash(("checkpoint", number))
        if derivative:
            inputs = [self._input(name, move) for name, move in zip(self.input_names, [*moves, 0, 0, 0], strict=False)]
            self.executed = self.input_names
            self.add(ExecuteTransform(tuple(inputs), **common))
        else:
            if with_state:
                self.source_state = SourceState("source", "odf/test", f"state {number}")
            self.add(AddData(**common, new_source_state=self.source_state))

    def _input(self, name: str, move: int) -> ExecuteTransformInput:
        """An input that moves to a new block, and `move - 1` records further."""
        prev_block, prev_offset = self.inputs.get(name, (None, None)) if name in self.executed else (None, None)
        new_block = a_hash(("input block", name, len(self.blocks))) if move else None
        new_offset = (-1 if prev_offset is None else prev_offset) + move - 1 if move > 1 else None
        self.inputs[name] = (
            prev_block if new_block is None else new_block,
            prev_offset if new_offset is None else new_offset,
        )
        return ExecuteTransformInput(an_id(name), prev_block, new_block, prev_offset, new_offset)


TEXTS = st.sampled_from(["a", "b", "Öl", ""])
OTHER_EVENTS = st.one_of(
    st.builds(SetInfo, description=TEXTS),
    st.builds(SetLicense, short_name=TEXTS, name=TEXTS, website_url=TEXTS),
    st.builds(DisablePushSource, source_name=TEXTS),
    st.builds(DisablePollingSource),
    st.builds(lambda text: SetAttachments(AttachmentsEmbedded((AttachmentEmbedded("README", text),))), TEXTS),
    st.builds(lambda name: AddPushSource(source_name=name, read=ReadStepParquet(), merge=MergeStrategyAppend()), TEXTS),
    st.builds(
        lambda url: SetPollingSource(fetch=FetchStepUrl(url), read=ReadStepParquet(), merge=MergeStrategyAppend()),
        TEXTS,
    ),
)
INPUT_NAMES = st.sampled_from([("x",), ("x", "y"), ("y", "x"), ("z", "x", "y")])
DATA = st.tuples(
    st.integers(0, 5), st.integers(0, 2), st.booleans(), st.booleans(), st.lists(st.integers(0, 3), max_size=3)
)
STEPS = st.lists(st.sampled_from(["data", "data", "data", "schema", "vocab", "transform", "other"]), max_size=6)


@st.composite
def models(draw, kind: DatasetKind | None = None) -> Model:
    """Chains with every kind of event; each has data, a watermark, a checkpoint and a source state or inputs,
    and data blocks after that."""
    model = Model(kind or draw(st.sampled_from(DatasetKind)))

    def steps() -> None:
        for step in draw(STEPS):
            if step == "data":
                model.data(*draw(DATA))
            elif step == "schema":
                model.set_schema()
            elif step == "vocab":
                model.set_vocab()
            elif step == "transform" and model.kind is DERIVATIVE:
                model.set_transform(draw(INPUT_NAMES))
            else:
                model.add(draw(OTHER_EVENTS), seconds=draw(st.integers(0, 1)))

    model.seed()
    if model.kind is DERIVATIVE:
        model.set_transform(draw(INPUT_NAMES.filter(lambda names: len(names) > 1)))
    if model.kind is DERIVATIVE or draw(st.booleans()):
        model.data(0, 1, draw(st.booleans()), draw(st.booleans()), [])
    if draw(st.booleans()):
        steps()
    model.set_schema()
    if model.kind is DERIVATIVE:
        model.set_transform(draw(INPUT_NAMES.filter(lambda names: len(names) > 1)))
    model.data(3, 1, True, True, [2, 1, 3])
    model.data(*draw(DATA))
    steps()
    return model
