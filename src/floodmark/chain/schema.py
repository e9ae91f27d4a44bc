"""The schema of a dataset as its chain holds it: fields, their types and extra attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self


class TimeUnit(Enum):
    """How fine a time is."""

    SECOND = 0
    MILLISECOND = 1
    MICROSECOND = 2
    NANOSECOND = 3


@dataclass(frozen=True)
class ExtraAttributes:
    """Free attributes: one JSON object, kept as the exact text that the block holds."""

    entries: str

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Self:
        """Attributes in their canonical text: compact, top-level keys sorted."""
        ordered = {key: attributes[key] for key in sorted(attributes)}
        return cls(json.dumps(ordered, separators=(",", ":"), ensure_ascii=False, allow_nan=False))

    @property
    def parsed(self) -> dict[str, Any]:
        """The attributes; ValueError when the text is not one JSON object."""
        value = json.loads(self.entries)
        if not isinstance(value, dict):
            raise ValueError(f"Extra attributes are not a JSON object: {self.entries[:100]!r}.")
        return value


@dataclass(frozen=True)
class DataTypeBinary:
    """Bytes, all of one length or any."""

    fixed_length: int | None = None


@dataclass(frozen=True)
class DataTypeBool:
    """True or false."""


@dataclass(frozen=True)
class DataTypeDate:
    """A calendar day."""


@dataclass(frozen=True)
class DataTypeDecimal:
    """An exact decimal number."""

    precision: int
    scale: int


@dataclass(frozen=True)
class DataTypeDuration:
    """A length of time."""

    unit: TimeUnit | None = None


@dataclass(frozen=True)
class DataTypeFloat16:
    """A 16-bit floating-point number."""


@dataclass(frozen=True)
class DataTypeFloat32:
    """A 32-bit floating-point number."""


@dataclass(frozen=True)
class DataTypeFloat64:
    """A 64-bit floating-point number."""


@dataclass(frozen=True)
class DataTypeInt8:
    """A signed 8-bit integer."""


@dataclass(frozen=True)
class DataTypeInt16:
    """A signed 16-bit integer."""


@dataclass(frozen=True)
class DataTypeInt32:
    """A signed 32-bit integer."""


@dataclass(frozen=True)
class DataTypeInt64:
    """A signed 64-bit integer."""


@dataclass(frozen=True)
class DataTypeUInt8:
    """An unsigned 8-bit integer."""


@dataclass(frozen=True)
class DataTypeUInt16:
    """An unsigned 16-bit integer."""


@dataclass(frozen=True)
class DataTypeUInt32:
    """An unsigned 32-bit integer."""


@dataclass(frozen=True)
class DataTypeUInt64:
    """An unsigned 64-bit integer."""


@dataclass(frozen=True)
class DataTypeList:
    """A sequence of items of one type."""

    item_type: DataType
    fixed_length: int | None = None


@dataclass(frozen=True)
class DataTypeMap:
    """Keys and their values."""

    key_type: DataType
    value_type: DataType
    keys_sorted: bool | None = None


@dataclass(frozen=True)
class DataTypeNull:
    """Nothing but nulls."""


@dataclass(frozen=True)
class DataTypeOption:
    """A value of the inner type, or null. Types without this wrapper are never null."""

    inner: DataType


@dataclass(frozen=True)
class DataTypeStruct:
    """A record inside a record."""

    fields: tuple[DataField, ...]


@dataclass(frozen=True)
class DataTypeTime:
    """A time of day."""

    unit: TimeUnit | None = None


@dataclass(frozen=True)
class DataTypeTimestamp:
    """A point in time."""

    unit: TimeUnit | None = None
    timezone: str | None = None


@dataclass(frozen=True)
class DataTypeString:
    """Text."""


DataType = (
    DataTypeBinary
    | DataTypeBool
    | DataTypeDate
    | DataTypeDecimal
    | DataTypeDuration
    | DataTypeFloat16
    | DataTypeFloat32
    | DataTypeFloat64
    | DataTypeInt8
    | DataTypeInt16
    | DataTypeInt32
    | DataTypeInt64
    | DataTypeUInt8
    | DataTypeUInt16
    | DataTypeUInt32
    | DataTypeUInt64
    | DataTypeList
    | DataTypeMap
    | DataTypeNull
    | DataTypeOption
    | DataTypeStruct
    | DataTypeTime
    | DataTypeTimestamp
    | DataTypeString
)


@dataclass(frozen=True)
class DataField:
    """A column, or a member of a struct."""

    name: str
    type: DataType
    extra: ExtraAttributes | None = None


@dataclass(frozen=True)
class DataSchema:
    """The columns of a dataset in their order."""

    fields: tuple[DataField, ...]
    extra: ExtraAttributes | None = None
