"""How data comes into a root dataset: where it is fetched, how it is read, how it merges with the rest."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from floodmark.chain.schema import DataSchema


class SourceOrdering(Enum):
    """The order in which the files of a glob are taken."""

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
    """Rows whose primary key was seen before are dropped."""

    primary_key: tuple[str, ...]


@dataclass(frozen=True)
class MergeStrategySnapshot:
    """A batch is the whole state; the difference to the last one is recorded."""

    primary_key: tuple[str, ...]
    compare_columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class MergeStrategyChangelogStream:
    """The batch carries its own operations."""

    primary_key: tuple[str, ...]


@dataclass(frozen=True)
class MergeStrategyUpsertStream:
    """The newest row of a key replaces the one before."""

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
    """Event time is when the file was last changed."""


@dataclass(frozen=True)
class EventTimeSourceFromPath:
    """Event time is part of the file's path."""

    pattern: str
    timestamp_format: str | None = None


@dataclass(frozen=True)
class EventTimeSourceFromSystemTime:
    """Event time is when the file was fetched."""


EventTimeSource = EventTimeSourceFromMetadata | EventTimeSourceFromPath | EventTimeSourceFromSystemTime


@dataclass(frozen=True)
class SourceCachingForever:
    """What was fetched once is never fetched again."""


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
    """A topic to listen to."""

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
    """What a container prints."""

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
    """One step of preparation; the format has no vectors of unions, so each is wrapped in a table."""

    value: PrepStep
