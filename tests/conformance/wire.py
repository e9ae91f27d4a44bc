"""The tables of the format, copied by hand from its description: an account of them beside the product's own.

`?` marks what may be absent; a number with `?` is written even when it is 0.
"""

from dataclasses import dataclass

from floodmark.chain import events, schema, source_steps

SCALARS = {"bool": "Bool", "i16": "Int16", "i32": "Int32", "u32": "Uint32", "u64": "Uint64"}
ENUMS = {
    "DatasetKind": "Int32",
    "TimeUnit": "Int16",
    "SourceOrdering": "Int32",
    "CompressionFormat": "Int32",
}

UNIONS = {
    "MetadataEvent": "AddData ExecuteTransform Seed SetPollingSource SetTransform SetVocab SetAttachments SetInfo"
    " SetLicense SetDataSchema AddPushSource DisablePushSource DisablePollingSource",
    "DataType": "Binary Bool Date Decimal Duration Float16 Float32 Float64 Int8 Int16 Int32 Int64 UInt8 UInt16"
    " UInt32 UInt64 List Map Null Option Struct Time Timestamp String",
    "Transform": "Sql",
    "Attachments": "Embedded",
    "MergeStrategy": "Append Ledger Snapshot ChangelogStream UpsertStream",
    "ReadStep": "Csv GeoJson EsriShapefile Parquet Json NdJson NdGeoJson",
    "FetchStep": "Url FilesGlob Container Mqtt EthereumLogs",
    "EventTimeSource": "FromMetadata FromPath FromSystemTime",
    "SourceCaching": "Forever",
    "PrepStep": "Decompress Pipe",
}

TABLES = """
MetadataBlock system_time:timestamp prev_block_hash:hash? sequence_number:u64 event:MetadataEvent
AddData prev_checkpoint:hash? prev_offset:u64? new_data:DataSlice? new_checkpoint:Checkpoint? new_watermark:timestamp? new_source_state:SourceState? extra:ExtraAttributes?
ExecuteTransform query_inputs:[ExecuteTransformInput] prev_checkpoint:hash? prev_offset:u64? new_data:DataSlice? new_checkpoint:Checkpoint? new_watermark:timestamp?
ExecuteTransformInput dataset_id:id prev_block_hash:hash? new_block_hash:hash? prev_offset:u64? new_offset:u64?
DataSlice logical_hash:hash physical_hash:hash offset_interval:OffsetInterval size:u64
OffsetInterval start:u64 end:u64
Checkpoint physical_hash:hash size:u64
SourceState source_name:string kind:string value:string
ExtraAttributes entries:string
Seed dataset_id:id dataset_kind:DatasetKind
SetTransform inputs:[TransformInput] transform:Transform
TransformInput dataset_ref:string alias:string?
TransformSql engine:string version:string? query:string? queries:[SqlQueryStep]? temporal_tables:[TemporalTable]?
SqlQueryStep alias:string? query:string
TemporalTable name:string primary_key:[string]
SetVocab offset_column:string? operation_type_column:string? system_time_column:string? event_time_column:string?
SetAttachments attachments:Attachments
AttachmentsEmbedded items:[AttachmentEmbedded]
AttachmentEmbedded path:string content:string
SetInfo description:string? keywords:[string]?
SetLicense short_name:string name:string spdx_id:string? website_url:string
SetDataSchema raw_arrow_schema:bytes? schema:DataSchema?
DataSchema fields:[DataField] extra:ExtraAttributes?
DataField name:string type:DataType extra:ExtraAttributes?
DataTypeBinary fixed_length:u64?
DataTypeBool
DataTypeDate
DataTypeDecimal precision:u32 scale:i32
DataTypeDuration unit:TimeUnit?
DataTypeFloat16
DataTypeFloat32
DataTypeFloat64
DataTypeInt8
DataTypeInt16
DataTypeInt32
DataTypeInt64
DataTypeUInt8
DataTypeUInt16
DataTypeUInt32
DataTypeUInt64
DataTypeList item_type:DataType fixed_length:u64?
DataTypeMap key_type:DataType value_type:DataType keys_sorted:bool?
DataTypeNull
DataTypeOption inner:DataType
DataTypeStruct fields:[DataField]
DataTypeTime unit:TimeUnit?
DataTypeTimestamp unit:TimeUnit? timezone:string?
DataTypeString
AddPushSource source_name:string read:ReadStep preprocess:Transform? merge:MergeStrategy
SetPollingSource fetch:FetchStep prepare:[PrepStepWrapper]? read:ReadStep preprocess:Transform? merge:MergeStrategy
PrepStepWrapper value:PrepStep
DisablePushSource source_name:string
DisablePollingSource
MergeStrategyAppend
MergeStrategyLedger primary_key:[string]
MergeStrategySnapshot primary_key:[string] compare_columns:[string]?
MergeStrategyChangelogStream primary_key:[string]
MergeStrategyUpsertStream primary_key:[string]
ReadStepCsv ddl_schema:[string]? separator:string? encoding:string? quote:string? escape:string? header:bool? infer_schema:bool? null_value:string? date_format:string? timestamp_format:string? schema:DataSchema?
ReadStepGeoJson ddl_schema:[string]? schema:DataSchema?
ReadStepEsriShapefile ddl_schema:[string]? sub_path:string? schema:DataSchema?
ReadStepParquet ddl_schema:[string]? schema:DataSchema?
ReadStepJson sub_path:string? ddl_schema:[string]? date_format:string? encoding:string? timestamp_format:string? schema:DataSchema?
ReadStepNdJson ddl_schema:[string]? date_format:string? encoding:string? timestamp_format:string? schema:DataSchema?
ReadStepNdGeoJson ddl_schema:[string]? schema:DataSchema?
FetchStepUrl url:string event_time:EventTimeSource? cache:SourceCaching? headers:[RequestHeader]?
RequestHeader name:string value:string
FetchStepFilesGlob path:string event_time:EventTimeSource? cache:SourceCaching? order:SourceOrdering?
FetchStepContainer image:string command:[string]? args:[string]? env:[EnvVar]?
EnvVar name:string value:string?
FetchStepMqtt host:string port:i32 username:string? password:string? topics:[MqttTopicSubscription]
MqttTopicSubscription path:string qos:i32?
FetchStepEthereumLogs chain_id:u64? node_url:string? filter:string? signature:string?
EventTimeSourceFromMetadata
EventTimeSourceFromPath pattern:string timestamp_format:string?
EventTimeSourceFromSystemTime
SourceCachingForever
PrepStepDecompress format:CompressionFormat sub_path:string?
PrepStepPipe command:[string]
"""  # noqa: E501


@dataclass(frozen=True)
class Field:
    name: str
    kind: str
    optional: bool


def _field(text: str) -> Field:
    name, kind = text.split(":")
    return Field(name, kind.removesuffix("?"), kind.endswith("?"))


def _member(union: str, name: str) -> str:
    return name if union == "MetadataEvent" else union + name


FIELDS = {line.split()[0]: tuple(map(_field, line.split()[1:])) for line in TABLES.strip().splitlines()}
MEMBERS = {union: tuple(_member(union, name) for name in names.split()) for union, names in UNIONS.items()}


def dataclass_of(name: str):
    """The product's class (or enum) of this name."""
    return next(vars(module)[name] for module in (events, schema, source_steps) if name in vars(module))
