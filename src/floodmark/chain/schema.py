"""The schema of a dataset in its chain: fields, types and extra attributes, and the rules of schema evolution."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from floodmark.errors import (
    Rule,
    RuleBroken,
)


class TimeUnit(Enum):
    """The resolution of a time."""

    SECOND = 0
    MILLISECOND = 1
    MICROSECOND = 2
    NANOSECOND = 3


@dataclass(frozen=True)
class ExtraAttributes:
    """Free attributes: one JSON object, as the exact text in the block."""

    entries: str

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Self:
        """Attributes from a mapping, as canonical text: compact, with sorted top-level keys."""
        ordered = {key: attributes[key] for key in sorted(attributes)}
        return cls(json.dumps(ordered, separators=(",", ":"), ensure_ascii=False, allow_nan=False))

    @property
    def parsed(self) -> dict[str, Any]:
        """The attributes as a dict; `ValueError` if the text is not a JSON object."""
        try:
            value = json.loads(self.entries)
        except RecursionError as error:
            raise ValueError("Extra attributes are nested too deep.") from error
        if not isinstance(value, dict):
            raise ValueError(f"Extra attributes are not a JSON object: {self.entries[:100]!r}.")
        return value

    @property
    def known(self) -> dict[str, Any]:
        """The same; no attributes if the text is anything else, because another writer may have stored it."""
        try:
            return self.parsed
        except ValueError:
            return {}


@dataclass(frozen=True)
class DataTypeBinary:
    """Bytes of a fixed or variable length."""

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
    """Only nulls."""


@dataclass(frozen=True)
class DataTypeOption:
    """A value of the inner type, or null. Types without this wrapper are never null."""

    inner: DataType


@dataclass(frozen=True)
class DataTypeStruct:
    """A group of named fields."""

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


# Evolution

_HINT = "Add an optional field under a new name, or write to a new dataset."


def check_evolution(old: DataSchema, new: DataSchema) -> None:
    """Refuse a new schema unless it only adds optional fields, reorders them or changes extra attributes."""
    check_field_names(new)
    if old == new:
        raise RuleBroken(
            "The new schema equals the current one.", hint="Keep the current schema.", rule=Rule.SCHEMA_UNCHANGED
        )
    _check_fields("", old.fields, new.fields)


def check_field_names(schema: DataSchema) -> None:
    """Refuse a schema with two fields of the same name."""
    _check_names("", schema.fields)


def describe(type_: DataType) -> str:
    """A type as text: `Int64`, `Option<List<String>>`, `Decimal(10, 2)`."""
    name = type(type_).__name__.removeprefix("DataType")
    match type_:
        case DataTypeOption(inner):
            return f"{name}<{describe(inner)}>"
        case DataTypeList(item_type, None):
            return f"{name}<{describe(item_type)}>"
        case DataTypeList(item_type, fixed_length):
            return f"{name}<{describe(item_type)}, {fixed_length}>"
        case DataTypeMap(key_type, value_type):
            return f"{name}<{describe(key_type)}, {describe(value_type)}>"
        case DataTypeStruct(fields):
            return f"{name}<{', '.join(f'{field.name}: {describe(field.type)}' for field in fields)}>"
    values = [getattr(value, "name", value) for value in vars(type_).values() if value is not None]
    return f"{name}({', '.join(map(str, values))})" if values else name


def _check_names(path: str, fields: tuple[DataField, ...]) -> None:
    seen: set[str] = set()
    for field in fields:
        name = path + field.name
        if field.name in seen:
            raise RuleBroken(
                f"Two fields have the name {name!r}.", hint="Rename one of them.", field=name, rule=Rule.DUPLICATE_FIELD
            )
        seen.add(field.name)
        _check_names_inside(name, field.type)


def _check_names_inside(path: str, type_: DataType) -> None:
    match type_:
        case DataTypeStruct(fields):
            _check_names(path + ".", fields)
        case DataTypeOption(inner):
            _check_names_inside(path, inner)
        case DataTypeList(item_type):
            _check_names_inside(path + "[]", item_type)
        case DataTypeMap(key_type, value_type):
            _check_names_inside(path + "{key}", key_type)
            _check_names_inside(path + "{value}", value_type)


def _check_fields(path: str, old: tuple[DataField, ...], new: tuple[DataField, ...]) -> None:
    new_types = {field.name: field.type for field in new}
    for field in old:
        name = path + field.name
        if field.name not in new_types:
            raise RuleBroken(
                f"Field {name!r} is missing from the new schema.", hint=_HINT, field=name, rule=Rule.FIELD_REMOVED
            )
        _check_type(name, field.type, new_types[field.name])
    old_names = {field.name for field in old}
    for field in new:
        if field.name not in old_names and not isinstance(field.type, DataTypeOption):
            name = path + field.name
            message = f"The new field {name!r} is a required {describe(field.type)}."
            hint = "Make it optional: existing records do not have it."
            raise RuleBroken(message, hint=hint, field=name, rule=Rule.NEW_FIELD_REQUIRED)


def _check_type(path: str, old: DataType, new: DataType) -> None:
    old_inner = old.inner if isinstance(old, DataTypeOption) else old
    new_inner = new.inner if isinstance(new, DataTypeOption) else new
    if type(old_inner) is not type(new_inner):
        raise _type_changed(path, old, new)
    if isinstance(old, DataTypeOption) is not isinstance(new, DataTypeOption):
        before, after = ("optional", "required") if isinstance(old, DataTypeOption) else ("required", "optional")
        message = f"Field {path!r} was {before} and is {after} now."
        raise RuleBroken(
            message, hint=f"Keep it {before}.", field=path, old=old, new=new, rule=Rule.FIELD_OPTIONALITY_CHANGED
        )
    match old_inner, new_inner:
        case DataTypeStruct(old_fields), DataTypeStruct(new_fields):
            _check_fields(path + ".", old_fields, new_fields)
        case DataTypeList(old_item, old_length), DataTypeList(new_item, new_length) if old_length == new_length:
            _check_type(path + "[]", old_item, new_item)
        case (
            DataTypeMap(old_key, old_value, old_sorted),
            DataTypeMap(new_key, new_value, new_sorted),
        ) if old_sorted == new_sorted:
            _check_type(path + "{key}", old_key, new_key)
            _check_type(path + "{value}", old_value, new_value)
        case DataTypeOption(), DataTypeOption():
            _check_type(path, old_inner, new_inner)
        case _:
            if old_inner != new_inner:
                raise _type_changed(path, old, new)


def _type_changed(path: str, old: DataType, new: DataType) -> RuleBroken:
    message = f"Field {path!r} was {describe(old)} and is {describe(new)} now."
    return RuleBroken(message, hint=_HINT, field=path, old=old, new=new, rule=Rule.FIELD_TYPE_CHANGED)
