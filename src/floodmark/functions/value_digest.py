"""Digests of Python values by type and content. They are the same in every process and independent of memory order."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import hashlib
import logging
import pathlib
import re
import struct
import types
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from floodmark.errors import UnsupportedType
from floodmark.storage.logical_hash import column_digests


@dataclass(frozen=True)
class FormBranch:
    """Parts, some of which contain references that are not resolved yet."""

    tag: str
    parts: tuple[Form, ...]
    sorts: bool
    """Whether the order of the parts does not count."""


@dataclass(frozen=True)
class DefinitionRef:
    """A reference to the digest of a definition (a function or a class), by its number."""

    definition: int


Form: TypeAlias = bytes | DefinitionRef | FormBranch

OtherEncoder: TypeAlias = Callable[[Any, str], Form]
"""Encodes a value that is not plain, or raises. The text is the path to the value."""


class CannotEncode(Exception):
    """A value of this type has no canonical form, so it has no digest."""

    def __init__(self, value: object, path: str, why: str = "") -> None:
        super().__init__(why)
        self.value_type = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        self.path = path
        self.why = why


@dataclass
class Encoder:
    """Encodes values. `other` encodes values that are not plain: functions, classes and their objects."""

    other: OtherEncoder
    _parents: set[int] = field(default_factory=set)

    def encode(self, value: Any, path: str) -> Form:
        """The form of a value; `path` is shown in errors."""
        simple = _SIMPLE.get(type(value))
        if simple is not None:
            return simple(value)
        if id(value) in self._parents:
            raise CannotEncode(value, path, "it contains itself")
        self._parents.add(id(value))
        try:
            return self._nested(value, path)
        finally:
            self._parents.discard(id(value))

    def items(self, tag: str, values: Any, path: str) -> Form:
        """The form of a sequence."""
        return ordered_form(tag, [self.encode(value, f"{path}[{at}]") for at, value in enumerate(values)])

    def members(self, tag: str, values: Any, path: str) -> Form:
        """The form of a set."""
        return unordered_form(tag, [self.encode(value, path) for value in values])

    def pairs(self, tag: str, values: Any, path: str) -> Form:
        """The form of a mapping whose order does not count."""
        return unordered_form(tag, [self._pair(key, value, path) for key, value in values.items()])

    def _pair(self, key: Any, value: Any, path: str) -> Form:
        return ordered_form("pair", [self.encode(key, path), self.encode(value, f"{path}[{key!r:.40}]")])

    def _nested(self, value: Any, path: str) -> Form:
        kind = type(value)
        if kind in (tuple, list):
            return self.items(kind.__name__, value, path)
        if kind in (set, frozenset):
            return self.members("set", value, path)
        if kind in (dict, types.MappingProxyType):
            return self.pairs("dict", value, path)
        if kind is collections.Counter:
            return self.pairs("Counter", value, path)
        if kind is collections.OrderedDict:
            return ordered_form("OrderedDict", [self._pair(key, item, path) for key, item in value.items()])
        if kind is collections.defaultdict:
            return ordered_form(
                "defaultdict", [self.encode(value.default_factory, path), self.pairs("dict", value, path)]
            )
        if kind is collections.deque:
            return ordered_form("deque", [self.encode(value.maxlen, path), self.items("items", value, path)])
        if kind is slice:
            return self.items("slice", (value.start, value.stop, value.step), path)
        if isinstance(value, np.ndarray) and kind.__module__.partition(".")[0] == "numpy":
            return self._numpy(value, path)
        if isinstance(value, np.generic):
            return self._numpy(np.asarray(value), path)
        try:
            arrow = _arrow(value)
        except UnsupportedType as error:
            raise CannotEncode(value, path, error.message) from error
        return self.other(value, path) if arrow is None else arrow

    def _numpy(self, value: Any, path: str) -> Form:
        if isinstance(value, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(value)
            return ordered_form("masked", [self._numpy(mask, path), self._numpy(value.filled(), path)])
        shape = leaf("shape", repr(tuple(int(n) for n in value.shape)))
        if value.dtype.hasobject:
            return ordered_form("objects", [shape, self.items("items", value.reshape(-1).tolist(), path)])
        content = leaf("numpy", repr(value.dtype.descr), np.ascontiguousarray(value).tobytes())
        return ordered_form("ndarray", [shape, content])


def _float(value: float) -> bytes:
    return leaf("float", "nan" if value != value else struct.pack(">d", value))


def _zone(zone: dt.tzinfo | None) -> str:
    if zone is None:
        return ""
    if isinstance(zone, zoneinfo.ZoneInfo) and zone.key:
        return zone.key
    return str(zone.utcoffset(None))


def _time(value: dt.datetime | dt.time) -> bytes:
    return leaf(type(value).__name__, value.replace(tzinfo=None).isoformat(), str(value.fold), _zone(value.tzinfo))


def _path(value: pathlib.PurePath) -> bytes:
    return leaf("path", value.as_posix())


def _pattern(value: re.Pattern[Any]) -> bytes:
    return leaf("pattern", type(value.pattern).__name__, value.pattern, str(value.flags))


_SIMPLE: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: leaf("None"),
    type(...): lambda _: leaf("..."),
    type(NotImplemented): lambda _: leaf("NotImplemented"),
    bool: lambda value: leaf("bool", str(value)),
    int: lambda value: leaf("int", hex(value)),
    float: _float,
    complex: lambda value: leaf("complex", _float(value.real), _float(value.imag)),
    str: lambda value: leaf("str", value),
    bytes: lambda value: leaf("bytes", value),
    bytearray: lambda value: leaf("bytearray", bytes(value)),
    range: lambda value: leaf("range", str(value.start), str(value.stop), str(value.step)),
    dt.date: lambda value: leaf("date", value.isoformat()),
    dt.datetime: _time,
    dt.time: _time,
    dt.timedelta: lambda value: leaf("timedelta", str(value.days), str(value.seconds), str(value.microseconds)),
    dt.timezone: lambda value: leaf("zone", _zone(value)),
    zoneinfo.ZoneInfo: lambda value: leaf("zone", _zone(value)),
    decimal.Decimal: lambda value: leaf("Decimal", str(value)),
    fractions.Fraction: lambda value: leaf("Fraction", str(value)),
    uuid.UUID: lambda value: leaf("UUID", value.bytes),
    re.Pattern: _pattern,
    pathlib.PurePosixPath: _path,
    type(pathlib.Path()): _path,
    logging.Logger: lambda _: leaf("logger"),  # logging does not change results
    logging.RootLogger: lambda _: leaf("logger"),
    type(np.dtype(float)): lambda value: leaf("dtype", repr(value.descr)),
}


def _arrow(value: Any) -> bytes | None:
    """The digest of Arrow types and data, and of frames that can export Arrow data."""
    if isinstance(value, np.dtype):
        return leaf("dtype", repr(value.descr))
    if isinstance(value, pa.DataType):
        return leaf("arrow type", str(value))
    if isinstance(value, pa.Field):
        return leaf("arrow field", str(value))
    if isinstance(value, pa.Schema):
        return leaf("arrow schema", value.to_string(show_schema_metadata=False, show_field_metadata=False))
    if isinstance(value, pa.Scalar):
        return leaf("arrow scalar", _arrow_data(pa.chunked_array([pa.array([value], value.type)])))
    if isinstance(value, pa.Array):
        return leaf("arrow array", _arrow_data(pa.chunked_array([value])))
    if isinstance(value, pa.ChunkedArray):
        return leaf("arrow array", _arrow_data(value))
    if hasattr(type(value), "__arrow_c_stream__"):
        table = pa.table(value)
        names = [leaf("name", name) for name in table.column_names]
        return leaf("arrow table", *names, *(_arrow_data(column) for column in table.columns))
    return None


def _arrow_data(values: pa.ChunkedArray) -> bytes:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    nulls = column_digests(values.is_null()) if pa.types.is_struct(values.type) else []
    return leaf("values", str(values.type), *column_digests(values), *nulls)


def leaf(tag: str, *data: str | bytes) -> bytes:
    """The digest of texts or bytes. The tag separates values of different types: 1, "1" and True."""
    digest = hashlib.sha256()
    for item in (tag, *data):
        content = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item
        digest.update(len(content).to_bytes(8))
        digest.update(content)
    return digest.digest()


def ordered_form(tag: str, parts: Iterable[Form]) -> Form:
    """The form of parts whose order counts."""
    return _branch(FormBranch(tag, tuple(parts), sorts=False))


def unordered_form(tag: str, parts: Iterable[Form]) -> Form:
    """The form of parts whose order does not count."""
    return _branch(FormBranch(tag, tuple(parts), sorts=True))


def resolve_form(form: Form, digests: Sequence[bytes]) -> bytes:
    """The digest of a form, given the digests of all definitions."""
    if isinstance(form, bytes):
        return form
    if isinstance(form, DefinitionRef):
        return digests[form.definition]
    parts = [resolve_form(part, digests) for part in form.parts]
    return leaf(form.tag, *(sorted(parts) if form.sorts else parts))


def resolve_definitions(contents: Sequence[Form]) -> list[bytes]:
    """The digests of definitions from their forms, which may refer to each other in circles.

    Each round includes definitions one step further away, until no more definitions become different.
    """
    digests = [b""] * len(contents)
    different = 0
    while True:
        digests = [resolve_form(content, digests) for content in contents]
        count = len(set(digests))
        if count == different:
            return digests
        different = count


def _branch(branch: FormBranch) -> Form:
    return resolve_form(branch, ()) if all(isinstance(part, bytes) for part in branch.parts) else branch
