"""Metadata blocks and their events: one frozen dataclass per table of the format.

Fields have the names and the order of the format. Unions are Python unions. An optional field is None when it
is absent. Schemas are in `schema`, the parts of a source in `source_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from floodmark.chain.arrow_schema import read_arrow_schema
from floodmark.chain.ids import DatasetId, Multihash
from floodmark.chain.schema import DataSchema, ExtraAttributes
from floodmark.chain.source_steps import FetchStep, MergeStrategy, PrepStepWrapper, ReadStep
from floodmark.errors import CorruptBlock

Nanos = int
"""A point in time: nanoseconds since 1970-01-01T00:00:00Z."""


class DatasetKind(Enum):
    """Whether a dataset gets its data from outside or computes it from other datasets."""

    ROOT = 0
    DERIVATIVE = 1


# Data


@dataclass(frozen=True)
class OffsetInterval:
    """Offsets `start` to `end`, both included: intervals in blocks are closed."""

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
        """The number of records in the slice."""
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
    """Adds records from outside, or moves the watermark or the state of a source."""

    prev_checkpoint: Multihash | None = None
    prev_offset: int | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Nanos | None = None
    new_source_state: SourceState | None = None
    extra: ExtraAttributes | None = None


@dataclass(frozen=True)
class ExecuteTransformInput:
    """The part of one input that a transaction read: blocks and offsets after `prev`, up to and including `new`.

    Without `new` the interval is empty.
    """

    dataset_id: DatasetId
    prev_block_hash: Multihash | None = None
    new_block_hash: Multihash | None = None
    prev_offset: int | None = None
    new_offset: int | None = None

    @property
    def last_block_hash(self) -> Multihash | None:
        """The last block of this input that was read, by this transaction or before it."""
        return self.new_block_hash if self.new_block_hash is not None else self.prev_block_hash

    @property
    def last_offset(self) -> int | None:
        """The last offset of this input that was read, by this transaction or before it."""
        return self.new_offset if self.new_offset is not None else self.prev_offset


@dataclass(frozen=True)
class ExecuteTransform:
    """Adds records computed from the inputs, or moves the position in an input or the watermark."""

    query_inputs: tuple[ExecuteTransformInput, ...]
    prev_checkpoint: Multihash | None = None
    prev_offset: int | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Nanos | None = None


# Definitions


@dataclass(frozen=True)
class Seed:
    """The event of the first block. It gives the dataset its id."""

    dataset_id: DatasetId
    dataset_kind: DatasetKind


@dataclass(frozen=True)
class TransformInput:
    """A dataset that a transform reads, and its name in the queries."""

    dataset_ref: str
    alias: str | None = None


@dataclass(frozen=True, kw_only=True)
class SqlQueryStep:
    """One of several queries. The last one is the result and has no alias."""

    alias: str | None = None
    query: str


@dataclass(frozen=True)
class TemporalTable:
    """A view of an input as a table with one row per key."""

    name: str
    primary_key: tuple[str, ...]


@dataclass(frozen=True)
class TransformSql:
    """A transform, defined by the text of its queries."""

    engine: str
    version: str | None = None
    query: str | None = None
    queries: tuple[SqlQueryStep, ...] | None = None
    temporal_tables: tuple[TemporalTable, ...] | None = None


Transform = TransformSql


@dataclass(frozen=True)
class SetTransform:
    """Sets the inputs and the transform of a derivative dataset."""

    inputs: tuple[TransformInput, ...]
    transform: Transform


@dataclass(frozen=True)
class SetVocab:
    """Sets the names of system columns that differ from the defaults."""

    offset_column: str | None = None
    operation_type_column: str | None = None
    system_time_column: str | None = None
    event_time_column: str | None = None


@dataclass(frozen=True)
class AttachmentEmbedded:
    """A text file stored in the chain."""

    path: str
    content: str


@dataclass(frozen=True)
class AttachmentsEmbedded:
    """Text files stored in the chain."""

    items: tuple[AttachmentEmbedded, ...]


Attachments = AttachmentsEmbedded


@dataclass(frozen=True)
class SetAttachments:
    """Attaches files to the dataset, such as a README."""

    attachments: Attachments


@dataclass(frozen=True)
class SetInfo:
    """Sets the description and the keywords of the dataset."""

    description: str | None = None
    keywords: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SetLicense:
    """Sets the license of the data."""

    short_name: str
    name: str
    spdx_id: str | None = None
    website_url: str


@dataclass(frozen=True)
class SetDataSchema:
    """Sets the columns of the dataset from this block on."""

    raw_arrow_schema: bytes | None = None  # the form of older writers: we read it and never write it
    schema: DataSchema | None = None

    @property
    def columns(self) -> DataSchema | None:
        """The columns in either form; None if there is no schema, or none that can be read (rule 8 refuses both)."""
        if self.schema is not None or self.raw_arrow_schema is None:
            return self.schema
        try:
            return read_arrow_schema(self.raw_arrow_schema)
        except CorruptBlock:
            return None


@dataclass(frozen=True, kw_only=True)
class AddPushSource:
    """Adds a source that pushes data into the dataset."""

    source_name: str
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


@dataclass(frozen=True, kw_only=True)
class SetPollingSource:
    """Sets the source from which data is fetched."""

    fetch: FetchStep
    prepare: tuple[PrepStepWrapper, ...] | None = None
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


@dataclass(frozen=True)
class DisablePushSource:
    """Disables a push source: it accepts no more data."""

    source_name: str


@dataclass(frozen=True)
class DisablePollingSource:
    """Disables the polling source: nothing more is fetched."""


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

ROUTINE_EVENTS = (AddData, ExecuteTransform)
"""Events that repeat for as long as a dataset is used. All other events are rare."""


@dataclass(frozen=True, kw_only=True)
class MetadataBlock:
    """One entry of the chain."""

    system_time: Nanos
    prev_block_hash: Multihash | None = None
    sequence_number: int
    event: MetadataEvent


def kind(event: MetadataEvent) -> str:
    """The kind of an event, as indexes store it: `AddData`, `Seed`, …"""
    return type(event).__name__


ROUTINE_KINDS = frozenset(event.__name__ for event in ROUTINE_EVENTS)


# The newest data block alone describes the state of the chain: it repeats the values that it does not change.


def last_offset(event: DataEvent) -> int | None:
    """The last offset of the chain after this event; None if there are no records."""
    return event.new_data.offset_interval.end if event.new_data is not None else event.prev_offset


def next_offset(event: DataEvent) -> int:
    """The offset of the next record after this event."""
    last = last_offset(event)
    return 0 if last is None else last + 1


def checkpoint(event: DataEvent) -> Multihash | None:
    """The current checkpoint after this event."""
    return event.new_checkpoint.physical_hash if event.new_checkpoint is not None else event.prev_checkpoint


def rows(event: DataEvent) -> int:
    """The number of records that this event adds."""
    return event.new_data.rows if event.new_data is not None else 0


def source_state(event: DataEvent) -> SourceState | None:
    """The source state in this event, if any."""
    return event.new_source_state if isinstance(event, AddData) else None
