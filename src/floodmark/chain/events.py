"""Everything a metadata block can hold, one frozen dataclass per table of the format.

Fields have the names and the order of the format; unions are Python unions; an optional field is None when it
is absent. Schemas live in `schema`, the parts of a source in `sources`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from floodmark.chain.hashes import Multihash
from floodmark.chain.ids import DatasetId
from floodmark.chain.schema import DataSchema, ExtraAttributes
from floodmark.chain.sources import FetchStep, MergeStrategy, PrepStepWrapper, ReadStep

Nanos = int
"""A point in time: nanoseconds since 1970-01-01T00:00:00Z."""


class DatasetKind(Enum):
    """Whether a dataset takes data from outside or computes it from other datasets."""

    ROOT = 0
    DERIVATIVE = 1


# Data


@dataclass(frozen=True)
class OffsetInterval:
    """Offsets `start` to `end`, both included: blocks hold closed intervals."""

    start: int
    end: int


@dataclass(frozen=True)
class DataSlice:
    """A Parquet file of records."""

    logical_hash: Multihash
    physical_hash: Multihash
    offset_interval: OffsetInterval
    size: int

    @property
    def rows(self) -> int:
        """How many records the slice holds."""
        return self.offset_interval.end - self.offset_interval.start + 1


@dataclass(frozen=True)
class Checkpoint:
    """A file with the state of the computation."""

    physical_hash: Multihash
    size: int


@dataclass(frozen=True)
class SourceState:
    """How far a source has been read."""

    source_name: str
    kind: str
    value: str


@dataclass(frozen=True)
class AddData:
    """Records came in from outside, or the watermark or the state of a source moved."""

    prev_checkpoint: Multihash | None = None
    prev_offset: int | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Nanos | None = None
    new_source_state: SourceState | None = None
    extra: ExtraAttributes | None = None


@dataclass(frozen=True)
class ExecuteTransformInput:
    """What a transaction read of one input: the blocks and offsets after `prev`, up to and with `new`.

    An absent `new` is an empty interval.
    """

    dataset_id: DatasetId
    prev_block_hash: Multihash | None = None
    new_block_hash: Multihash | None = None
    prev_offset: int | None = None
    new_offset: int | None = None

    @property
    def last_block_hash(self) -> Multihash | None:
        """The block up to which this input has been read, this transaction included."""
        return self.new_block_hash if self.new_block_hash is not None else self.prev_block_hash

    @property
    def last_offset(self) -> int | None:
        """The offset up to which this input has been read, this transaction included."""
        return self.new_offset if self.new_offset is not None else self.prev_offset


@dataclass(frozen=True)
class ExecuteTransform:
    """Records were computed from the inputs, or the position in an input or the watermark moved."""

    query_inputs: tuple[ExecuteTransformInput, ...]
    prev_checkpoint: Multihash | None = None
    prev_offset: int | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Nanos | None = None


# Definitions


@dataclass(frozen=True)
class Seed:
    """The first block: gives the dataset its id."""

    dataset_id: DatasetId
    dataset_kind: DatasetKind


@dataclass(frozen=True)
class TransformInput:
    """A dataset that a transform reads, and the name it has in there."""

    dataset_ref: str
    alias: str | None = None


@dataclass(frozen=True, kw_only=True)
class SqlQueryStep:
    """One query of several; the last one has no alias, it is the result."""

    alias: str | None = None
    query: str


@dataclass(frozen=True)
class TemporalTable:
    """A table that an input is seen as, with one row per key."""

    name: str
    primary_key: tuple[str, ...]


@dataclass(frozen=True)
class TransformSql:
    """A transform as the text of its queries."""

    engine: str
    version: str | None = None
    query: str | None = None
    queries: tuple[SqlQueryStep, ...] | None = None
    temporal_tables: tuple[TemporalTable, ...] | None = None


Transform = TransformSql


@dataclass(frozen=True)
class SetTransform:
    """What a derivative dataset is computed from, and how."""

    inputs: tuple[TransformInput, ...]
    transform: Transform


@dataclass(frozen=True)
class SetVocab:
    """The names of the system columns, where they are not the usual ones."""

    offset_column: str | None = None
    operation_type_column: str | None = None
    system_time_column: str | None = None
    event_time_column: str | None = None


@dataclass(frozen=True)
class AttachmentEmbedded:
    """A text file kept in the chain."""

    path: str
    content: str


@dataclass(frozen=True)
class AttachmentsEmbedded:
    """Text files kept in the chain."""

    items: tuple[AttachmentEmbedded, ...]


Attachments = AttachmentsEmbedded


@dataclass(frozen=True)
class SetAttachments:
    """Files that come with the dataset, such as a README."""

    attachments: Attachments


@dataclass(frozen=True)
class SetInfo:
    """What the dataset is about."""

    description: str | None = None
    keywords: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SetLicense:
    """The terms under which the data may be used."""

    short_name: str
    name: str
    spdx_id: str | None = None
    website_url: str


@dataclass(frozen=True)
class SetDataSchema:
    """The columns of the dataset from here on."""

    raw_arrow_schema: bytes | None = None  # how older writers put it; read, never written by us
    schema: DataSchema | None = None


@dataclass(frozen=True, kw_only=True)
class AddPushSource:
    """A way by which others push data in."""

    source_name: str
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


@dataclass(frozen=True, kw_only=True)
class SetPollingSource:
    """A place from which data is fetched."""

    fetch: FetchStep
    prepare: tuple[PrepStepWrapper, ...] | None = None
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


@dataclass(frozen=True)
class DisablePushSource:
    """A push source takes no more data."""

    source_name: str


@dataclass(frozen=True)
class DisablePollingSource:
    """Nothing is fetched any more."""


MetadataEvent = (
    AddData
    | ExecuteTransform
    | Seed
    | SetPollingSource
    | SetTransform
    | SetVocab
    | SetAttachments
    | SetInfo
    | SetLicense
    | SetDataSchema
    | AddPushSource
    | DisablePushSource
    | DisablePollingSource
)

DataEvent = AddData | ExecuteTransform

ROUTINE = (AddData, ExecuteTransform)
"""The events that a dataset in use has any number of; all others are rare."""


@dataclass(frozen=True, kw_only=True)
class MetadataBlock:
    """One link of the chain."""

    system_time: Nanos
    prev_block_hash: Multihash | None = None
    sequence_number: int
    event: MetadataEvent


def kind(event: MetadataEvent) -> str:
    """The event's kind as indexes name it: `AddData`, `Seed`, …"""
    return type(event).__name__


ROUTINE_KINDS = frozenset(event.__name__ for event in ROUTINE)


# A data block alone says where the chain stands: what it does not move, it carries.


def last_offset(event: DataEvent) -> int | None:
    """The last offset of the chain once this event is in it; None while there are no records."""
    return event.new_data.offset_interval.end if event.new_data is not None else event.prev_offset


def next_offset(event: DataEvent) -> int:
    """The offset that the next record will get."""
    last = last_offset(event)
    return 0 if last is None else last + 1


def checkpoint(event: DataEvent) -> Multihash | None:
    """The checkpoint that is valid once this event is in the chain."""
    return event.new_checkpoint.physical_hash if event.new_checkpoint is not None else event.prev_checkpoint


def rows(event: DataEvent) -> int:
    """How many records this event adds."""
    return event.new_data.rows if event.new_data is not None else 0


def source_state(event: DataEvent) -> SourceState | None:
    """The source state that this event carries."""
    return event.new_source_state if isinstance(event, AddData) else None
