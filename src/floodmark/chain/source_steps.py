"""The parts of a source of a root dataset: how its data is fetched, prepared, read and merged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from floodmark.chain.schema import DataSchema


class SourceOrdering(Enum):
    """The order in which the files of a glob are read."""

    BY_EVENT_TIME = 0
    BY_NAME = 1


class CompressionFormat(Enum):
    """How a fetched file is compressed."""

    GZIP = 0
    ZIP = 1


# Merge strategies


@dataclass(frozen=True)
class MergeStrategyAppend:
    """Every row is a new record."""


@dataclass(frozen=True)
class MergeStrategyLedger:
    """Rows with a primary key that already exists are dropped."""

    primary_key: tuple[str, ...]


@dataclass(frozen=True)
class MergeStrategySnapshot:
    """Each batch is the whole state. The difference to the previous state is recorded."""

    primary_key: tuple[str, ...]
    compare_columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class MergeStrategyChangelogStream:
    """The rows of a batch contain their operations."""

    primary_key: tuple[str, ...]


@dataclass(frozen=True)
class MergeStrategyUpsertStream:
    """The newest row of a key replaces the previous one."""

    primary_key: tuple[str, ...]


MergeStrategy = (
    MergeStrategyAppend
    | MergeStrategyLedger
    | MergeStrategySnapshot
    | MergeStrategyChangelogStream
    | MergeStrategyUpsertStream
)


# Reading


@dataclass(frozen=True)
class ReadStepCsv:
    """Comma-separated values."""

    ddl_schema: tuple[str, ...] | None = None
    separator: str | None = None
    encoding: str | None = None
    quote: str | None = None
    escape: str | None = None
    header: bool | None = None
    infer_schema: bool | None = None
    null_value: str | None = None
    date_format: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True)
class ReadStepGeoJson:
    """One GeoJSON document."""

    ddl_schema: tuple[str, ...] | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True)
class ReadStepEsriShapefile:
    """An Esri shapefile."""

    ddl_schema: tuple[str, ...] | None = None
    sub_path: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True)
class ReadStepParquet:
    """Parquet."""

    ddl_schema: tuple[str, ...] | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True)
class ReadStepJson:
    """One JSON document."""

    sub_path: str | None = None
    ddl_schema: tuple[str, ...] | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True)
class ReadStepNdJson:
    """One JSON object per line."""

    ddl_schema: tuple[str, ...] | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True)
class ReadStepNdGeoJson:
    """One GeoJSON object per line."""

    ddl_schema: tuple[str, ...] | None = None
    schema: DataSchema | None = None


ReadStep = (
    ReadStepCsv
    | ReadStepGeoJson
    | ReadStepEsriShapefile
    | ReadStepParquet
    | ReadStepJson
    | ReadStepNdJson
    | ReadStepNdGeoJson
)


# Fetching


@dataclass(frozen=True)
class EventTimeSourceFromMetadata:
    """The event time is the modification time of the file."""


@dataclass(frozen=True)
class EventTimeSourceFromPath:
    """The event time is part of the path of the file."""

    pattern: str
    timestamp_format: str | None = None


@dataclass(frozen=True)
class EventTimeSourceFromSystemTime:
    """The event time is the moment when the file was fetched."""


EventTimeSource = EventTimeSourceFromMetadata | EventTimeSourceFromPath | EventTimeSourceFromSystemTime


@dataclass(frozen=True)
class SourceCachingForever:
    """Fetched data is never fetched again."""


SourceCaching = SourceCachingForever


@dataclass(frozen=True)
class RequestHeader:
    """A header of a web request."""

    name: str
    value: str


@dataclass(frozen=True)
class EnvVar:
    """An environment variable of a container."""

    name: str
    value: str | None = None


@dataclass(frozen=True)
class MqttTopicSubscription:
    """A subscription to a topic."""

    path: str
    qos: int | None = None


@dataclass(frozen=True)
class FetchStepUrl:
    """One web address."""

    url: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    headers: tuple[RequestHeader, ...] | None = None


@dataclass(frozen=True)
class FetchStepFilesGlob:
    """Files whose paths match a pattern."""

    path: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    order: SourceOrdering | None = None


@dataclass(frozen=True)
class FetchStepContainer:
    """The output of a container."""

    image: str
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None


@dataclass(frozen=True)
class FetchStepMqtt:
    """Messages of an MQTT broker."""

    host: str
    port: int
    username: str | None = None
    password: str | None = None
    topics: tuple[MqttTopicSubscription, ...] = ()


@dataclass(frozen=True)
class FetchStepEthereumLogs:
    """Logs of an Ethereum node."""

    chain_id: int | None = None
    node_url: str | None = None
    filter: str | None = None
    signature: str | None = None


FetchStep = FetchStepUrl | FetchStepFilesGlob | FetchStepContainer | FetchStepMqtt | FetchStepEthereumLogs


# Preparing


@dataclass(frozen=True)
class PrepStepDecompress:
    """Unpack the file, or one file inside it."""

    format: CompressionFormat
    sub_path: str | None = None


@dataclass(frozen=True)
class PrepStepPipe:
    """Send the file through a command."""

    command: tuple[str, ...]


PrepStep = PrepStepDecompress | PrepStepPipe


@dataclass(frozen=True)
class PrepStepWrapper:
    """One preparation step. The format has no vectors of unions, so a table wraps each step."""

    value: PrepStep
