"""Metadata blocks as bytes and back, byte for byte as other implementations of the format write them."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from typing import Any

from floodmark.chain import events as e
from floodmark.chain import schema as s
from floodmark.chain import source_steps as c
from floodmark.chain.events import MetadataBlock
from floodmark.chain.flatbuffers import (
    Blob,
    EnumKind,
    Natural,
    OptionalField,
    Reader,
    Scalar,
    SlotKind,
    TableKind,
    Text,
    Timestamp,
    UnionKind,
    VectorOf,
    Writer,
)
from floodmark.chain.ids import DatasetId, Multihash
from floodmark.errors import ChainError, CorruptBlock, UnsupportedBlockVersion

VERSION = 3
BLOCK_KIND = 0x400000

_CACHED_BYTES = 1 << 13  # decoded blocks of more bytes are not cached

# Version 2 differs only in its timestamps, which are not aligned.
_TIMESTAMP_ALIGN = {2: 1, 3: 4}


@dataclass(frozen=True)
class _Manifest:
    """The outer layer of every block: the kind and version of its content."""

    kind: int
    version: int
    content: bytes


_MANIFEST = TableKind(_Manifest)
BYTES = Blob(bytes, bytes)

BOOL, I32, I64, U32, U64 = Scalar("?"), Scalar("i"), Scalar("q"), Scalar("I"), Natural()
_MANIFEST.declare(I64, I32, BYTES)


def encode(block: MetadataBlock, version: int = VERSION) -> bytes:
    """The bytes of a block. Equal blocks have equal bytes. Their SHA3-256 is the hash of the block."""
    if version not in _TIMESTAMP_ALIGN:
        raise _unsupported(version)
    try:
        content = _written(BLOCK, block, version)
    except ChainError as error:
        raise ChainError(f"Block {block.sequence_number}: {error.message}", **error.facts) from error
    return _written(_MANIFEST, _Manifest(BLOCK_KIND, version, content), version)


def decode(data: bytes) -> MetadataBlock:
    """The block in these bytes; `CorruptBlock` or `UnsupportedBlockVersion` if they cannot be decoded."""
    return _decode_once(bytes(data)) if len(data) <= _CACHED_BYTES else _decode(bytes(data))


def _decode(data: bytes) -> MetadataBlock:
    manifest = _read(_MANIFEST, data)
    assert isinstance(manifest, _Manifest)
    if manifest.kind != BLOCK_KIND:
        raise CorruptBlock(f"These bytes are of kind 0x{manifest.kind:x}, not a metadata block.")
    if manifest.version not in _TIMESTAMP_ALIGN:
        raise _unsupported(manifest.version)
    block = _read(BLOCK, manifest.content)
    assert isinstance(block, MetadataBlock)
    return block


_decode_once = functools.lru_cache(maxsize=512)(_decode)
"""Blocks are immutable, and every call on a dataset reads the same few: schema, key, newest data."""


def _written(table: TableKind, value: object, version: int) -> bytes:
    writer = Writer(_TIMESTAMP_ALIGN[version])
    return writer.finished(table.place(writer, value))


def _read(table: TableKind, data: bytes) -> object:
    reader = Reader(data)
    try:
        return table.read_at(reader, reader.root())
    except struct.error as error:
        raise CorruptBlock(f"The block is cut short after {len(data)} bytes.") from error


def _unsupported(version: int) -> UnsupportedBlockVersion:
    return UnsupportedBlockVersion(
        f"Block version {version} is not one of {', '.join(map(str, _TIMESTAMP_ALIGN))}.",
        hint="Install a newer release of Floodmark: a newer or much older tool wrote this dataset.",
        version=version,
    )


TEXT, TEXTS, TIMESTAMP = Text(), VectorOf(Text()), Timestamp()
HASH = Blob(lambda value: value.bytes, Multihash.from_bytes)
DATASET_ID = Blob(lambda value: value.bytes, DatasetId.from_bytes)
DATASET_KIND, TIME_UNIT = EnumKind("i", e.DatasetKind), EnumKind("h", s.TimeUnit)
ORDERING, COMPRESSION = EnumKind("i", c.SourceOrdering), EnumKind("i", c.CompressionFormat)

EVENT, DATA_TYPE = UnionKind("MetadataEvent"), UnionKind("DataType")
TRANSFORM, ATTACHMENTS = UnionKind("Transform"), UnionKind("Attachments")
FETCH, PREP, READ, MERGE = (
    UnionKind("FetchStep"),
    UnionKind("PrepStep"),
    UnionKind("ReadStep"),
    UnionKind("MergeStrategy"),
)
EVENT_TIME, CACHING = UnionKind("EventTimeSource"), UnionKind("SourceCaching")

_TABLES: dict[type[Any], TableKind] = {}


def _table(cls: type[Any], *kinds: SlotKind | OptionalField) -> TableKind:
    table = _TABLES[cls] = TableKind(cls)
    table.declare(*kinds)
    return table


def _members(union: UnionKind, *classes: type[Any]) -> None:
    """Give the members the codes 1, 2, … in this order."""
    union.declare({code: _TABLES[cls] for code, cls in enumerate(classes, start=1)})


opt = OptionalField

# Schemas
EXTRA = _table(s.ExtraAttributes, TEXT)
FIELD = _table(s.DataField, TEXT, DATA_TYPE, opt(EXTRA))
SCHEMA = _table(s.DataSchema, VectorOf(FIELD), opt(EXTRA))
for plain in (
    *(s.DataTypeBool, s.DataTypeDate, s.DataTypeNull, s.DataTypeString),
    *(s.DataTypeFloat16, s.DataTypeFloat32, s.DataTypeFloat64),
    *(s.DataTypeInt8, s.DataTypeInt16, s.DataTypeInt32, s.DataTypeInt64),
    *(s.DataTypeUInt8, s.DataTypeUInt16, s.DataTypeUInt32, s.DataTypeUInt64),
):
    _table(plain)
_table(s.DataTypeBinary, opt(U64))
_table(s.DataTypeDecimal, U32, I32)
_table(s.DataTypeDuration, opt(TIME_UNIT))
_table(s.DataTypeList, DATA_TYPE, opt(U64))
_table(s.DataTypeMap, DATA_TYPE, DATA_TYPE, opt(BOOL))
_table(s.DataTypeOption, DATA_TYPE)
_table(s.DataTypeStruct, VectorOf(FIELD))
_table(s.DataTypeTime, opt(TIME_UNIT))
_table(s.DataTypeTimestamp, opt(TIME_UNIT), opt(TEXT))
_members(
    DATA_TYPE,
    *(s.DataTypeBinary, s.DataTypeBool, s.DataTypeDate, s.DataTypeDecimal, s.DataTypeDuration),
    *(s.DataTypeFloat16, s.DataTypeFloat32, s.DataTypeFloat64),
    *(s.DataTypeInt8, s.DataTypeInt16, s.DataTypeInt32, s.DataTypeInt64),
    *(s.DataTypeUInt8, s.DataTypeUInt16, s.DataTypeUInt32, s.DataTypeUInt64),
    *(s.DataTypeList, s.DataTypeMap, s.DataTypeNull, s.DataTypeOption, s.DataTypeStruct),
    *(s.DataTypeTime, s.DataTypeTimestamp, s.DataTypeString),
)

# Sources
_table(c.MergeStrategyAppend)
_table(c.MergeStrategyLedger, TEXTS)
_table(c.MergeStrategySnapshot, TEXTS, opt(TEXTS))
_table(c.MergeStrategyChangelogStream, TEXTS)
_table(c.MergeStrategyUpsertStream, TEXTS)
_members(
    MERGE,
    *(c.MergeStrategyAppend, c.MergeStrategyLedger, c.MergeStrategySnapshot),
    *(c.MergeStrategyChangelogStream, c.MergeStrategyUpsertStream),
)

_table(
    c.ReadStepCsv,
    *(opt(TEXTS), opt(TEXT), opt(TEXT), opt(TEXT), opt(TEXT), opt(BOOL), opt(BOOL)),
    *(opt(TEXT), opt(TEXT), opt(TEXT), opt(SCHEMA)),
)
_table(c.ReadStepGeoJson, opt(TEXTS), opt(SCHEMA))
_table(c.ReadStepEsriShapefile, opt(TEXTS), opt(TEXT), opt(SCHEMA))
_table(c.ReadStepParquet, opt(TEXTS), opt(SCHEMA))
_table(c.ReadStepJson, opt(TEXT), opt(TEXTS), opt(TEXT), opt(TEXT), opt(TEXT), opt(SCHEMA))
_table(c.ReadStepNdJson, opt(TEXTS), opt(TEXT), opt(TEXT), opt(TEXT), opt(SCHEMA))
_table(c.ReadStepNdGeoJson, opt(TEXTS), opt(SCHEMA))
_members(
    READ,
    *(c.ReadStepCsv, c.ReadStepGeoJson, c.ReadStepEsriShapefile, c.ReadStepParquet),
    *(c.ReadStepJson, c.ReadStepNdJson, c.ReadStepNdGeoJson),
)

_table(c.EventTimeSourceFromMetadata)
_table(c.EventTimeSourceFromPath, TEXT, opt(TEXT))
_table(c.EventTimeSourceFromSystemTime)
_members(EVENT_TIME, c.EventTimeSourceFromMetadata, c.EventTimeSourceFromPath, c.EventTimeSourceFromSystemTime)
_table(c.SourceCachingForever)
_members(CACHING, c.SourceCachingForever)

HEADER = _table(c.RequestHeader, TEXT, TEXT)
ENV_VAR = _table(c.EnvVar, TEXT, opt(TEXT))
TOPIC = _table(c.MqttTopicSubscription, TEXT, opt(I32))
_table(c.FetchStepUrl, TEXT, opt(EVENT_TIME), opt(CACHING), opt(VectorOf(HEADER)))
_table(c.FetchStepFilesGlob, TEXT, opt(EVENT_TIME), opt(CACHING), opt(ORDERING))
_table(c.FetchStepContainer, TEXT, opt(TEXTS), opt(TEXTS), opt(VectorOf(ENV_VAR)))
_table(c.FetchStepMqtt, TEXT, I32, opt(TEXT), opt(TEXT), VectorOf(TOPIC))
_table(c.FetchStepEthereumLogs, opt(U64), opt(TEXT), opt(TEXT), opt(TEXT))
_members(
    FETCH,
    *(c.FetchStepUrl, c.FetchStepFilesGlob, c.FetchStepContainer, c.FetchStepMqtt, c.FetchStepEthereumLogs),
)

_table(c.PrepStepDecompress, COMPRESSION, opt(TEXT))
_table(c.PrepStepPipe, TEXTS)
_members(PREP, c.PrepStepDecompress, c.PrepStepPipe)
PREPARE = VectorOf(_table(c.PrepStepWrapper, PREP))

# Definitions
QUERY = _table(e.SqlQueryStep, opt(TEXT), TEXT)
TEMPORAL_TABLE = _table(e.TemporalTable, TEXT, TEXTS)
_table(e.TransformSql, TEXT, opt(TEXT), opt(TEXT), opt(VectorOf(QUERY)), opt(VectorOf(TEMPORAL_TABLE)))
_members(TRANSFORM, e.TransformSql)
_table(e.AttachmentsEmbedded, VectorOf(_table(e.AttachmentEmbedded, TEXT, TEXT)))
_members(ATTACHMENTS, e.AttachmentsEmbedded)

# Data
INTERVAL = _table(e.OffsetInterval, U64, U64)
SLICE = _table(e.DataSlice, HASH, HASH, INTERVAL, U64)
CHECKPOINT = _table(e.Checkpoint, HASH, U64)
SOURCE_STATE = _table(e.SourceState, TEXT, TEXT, TEXT)
INPUT = _table(e.ExecuteTransformInput, DATASET_ID, opt(HASH), opt(HASH), opt(U64), opt(U64))

# Events
_table(
    e.AddData,
    *(opt(HASH), opt(U64), opt(SLICE), opt(CHECKPOINT), opt(TIMESTAMP), opt(SOURCE_STATE), opt(EXTRA)),
)
_table(
    e.ExecuteTransform,
    *(VectorOf(INPUT), opt(HASH), opt(U64), opt(SLICE), opt(CHECKPOINT), opt(TIMESTAMP)),
)
_table(e.Seed, DATASET_ID, DATASET_KIND)
_table(e.SetPollingSource, FETCH, opt(PREPARE), READ, opt(TRANSFORM), MERGE)
_table(e.SetTransform, VectorOf(_table(e.TransformInput, TEXT, opt(TEXT))), TRANSFORM)
_table(e.SetVocab, opt(TEXT), opt(TEXT), opt(TEXT), opt(TEXT))
_table(e.SetAttachments, ATTACHMENTS)
_table(e.SetInfo, opt(TEXT), opt(TEXTS))
_table(e.SetLicense, TEXT, TEXT, opt(TEXT), TEXT)
_table(e.SetDataSchema, opt(BYTES), opt(SCHEMA))
_table(e.AddPushSource, TEXT, READ, opt(TRANSFORM), MERGE)
_table(e.DisablePushSource, TEXT)
_table(e.DisablePollingSource)
_members(
    EVENT,
    *(
        e.AddData,
        e.ExecuteTransform,
        e.Seed,
        e.SetPollingSource,
        e.SetTransform,
        e.SetVocab,
        e.SetAttachments,
    ),
    *(e.SetInfo, e.SetLicense, e.SetDataSchema, e.AddPushSource),
    *(e.DisablePushSource, e.DisablePollingSource),
)

BLOCK = _table(e.MetadataBlock, TIMESTAMP, opt(HASH), U64, EVENT)
