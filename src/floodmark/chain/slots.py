"""What a slot of a table can hold, and how each kind of it is written and read.

`tables` says which slots each table has; the classes here do the rest, for all tables alike.
"""

from __future__ import annotations

import struct
from calendar import isleap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from enum import Enum
from typing import Any, Protocol

from floodmark.chain.errors import BadDatasetId, BadHash, CorruptBlock, UnencodableBlock
from floodmark.chain.flat import Entry, Reader, Writer

Places = tuple[int, ...]
"""Where the slots of a table are."""

NANOS_PER_SECOND = 1_000_000_000
SECONDS_PER_DAY = 86_400
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_TIME = struct.Struct("<iHxxII")  # year, day of the year, second of the day, nanosecond

_BYTE = tuple(bytes([n]) for n in range(256))


class Kind(Protocol):
    """A kind of slot."""

    slots: int
    """How many slots of the vtable one field takes."""

    def write(self, writer: Writer, slot: int, value: Any, entries: list[Entry]) -> None:
        """Place what the value refers to, and add the slot's own part to `entries`."""
        ...

    def read(self, reader: Reader, places: Places, slot: int) -> Any:
        """The value of a slot that is there."""
        ...


class Scalar:
    """A number inside the table."""

    slots = 1

    def __init__(self, code: str) -> None:
        layout = struct.Struct(f"<{code}")
        self._pack, self._unpack, self._width = layout.pack, layout.unpack_from, layout.size
        self.omitted = bytes(layout.size)

    @property
    def default(self) -> Any:
        """What a number reads as that was left out because it is 0."""
        return self.read(Reader(self.omitted), (0,), 0)

    def write(self, writer: Writer, slot: int, value: Any, entries: list[Entry]) -> None:  # noqa: ARG002
        """Numbers are aligned to their own width."""
        entries.append((slot, self._width, self._pack(value)))

    def read(self, reader: Reader, places: Places, slot: int) -> Any:
        """The number."""
        return self._unpack(reader.data, places[slot])[0]


class Enumerated(Scalar):
    """A member of an enum, as its number."""

    def __init__(self, code: str, enum: type[Enum]) -> None:
        super().__init__(code)
        self._enum = enum

    def write(self, writer: Writer, slot: int, value: Any, entries: list[Entry]) -> None:
        """As its number."""
        super().write(writer, slot, self._enum(value).value, entries)

    def read(self, reader: Reader, places: Places, slot: int) -> Any:
        """The member."""
        return self._enum(super().read(reader, places, slot))


class Timestamp:
    """A point in time, a struct inside the table."""

    slots = 1

    def write(self, writer: Writer, slot: int, value: Any, entries: list[Entry]) -> None:
        """Aligned as the block's version says."""
        entries.append((slot, writer.timestamp_align, pack_time(value)))

    def read(self, reader: Reader, places: Places, slot: int) -> Any:
        """Nanoseconds since the epoch."""
        return unpack_time(reader.data, places[slot])


def pack_time(nanos: int) -> bytes:
    """The 16 bytes of a point in time; ValueError outside the years 1 to 9999."""
    seconds, nanosecond = divmod(nanos, NANOS_PER_SECOND)
    days, second = divmod(seconds, SECONDS_PER_DAY)
    try:
        year = date.fromordinal(_EPOCH_DAY + days).year
    except OverflowError as error:
        raise ValueError("outside the years 1 to 9999") from error
    return _TIME.pack(year, _EPOCH_DAY + days - date(year, 1, 1).toordinal() + 1, second, nanosecond)


def unpack_time(data: bytes, at: int) -> int:
    """The point in time that these 16 bytes hold; ValueError when there is no such point."""
    stamp: tuple[int, int, int, int] = _TIME.unpack_from(data, at)
    year, ordinal, second, nanosecond = stamp
    first = date(year, 1, 1).toordinal()
    if not 1 <= ordinal <= 365 + isleap(year):
        raise ValueError(f"year {year} has no day {ordinal}")
    if second >= SECONDS_PER_DAY or nanosecond >= NANOS_PER_SECOND:
        raise ValueError(f"a day has no second {second}.{nanosecond:09}")
    return ((first + ordinal - 1 - _EPOCH_DAY) * SECONDS_PER_DAY + second) * NANOS_PER_SECOND + nanosecond


class _Reference:
    """Something placed elsewhere that the slot refers to."""

    slots = 1

    def write(self, writer: Writer, slot: int, value: Any, entries: list[Entry]) -> None:
        entries.append((slot, 4, self.place(writer, value)))

    def read(self, reader: Reader, places: Places, slot: int) -> Any:
        return self.read_at(reader, reader.reference(places[slot]))

    def place(self, writer: Writer, value: Any) -> int:
        raise NotImplementedError

    def read_at(self, reader: Reader, at: int) -> Any:
        raise NotImplementedError


class Blob(_Reference):
    """A vector of bytes that stands for a value."""

    def __init__(self, to_bytes: Callable[[Any], bytes], from_bytes: Callable[[bytes], Any]) -> None:
        self._to_bytes, self._from_bytes = to_bytes, from_bytes

    def place(self, writer: Writer, value: Any) -> int:
        """The bytes as they are."""
        data = self._to_bytes(value)
        return writer.vector(data, len(data))

    def read_at(self, reader: Reader, at: int) -> Any:
        """The value."""
        start, size = reader.vector(at, 1)
        return self._from_bytes(reader.data[start : start + size])


class Text(_Reference):
    """A string: UTF-8 with a zero after it that its length does not count."""

    def place(self, writer: Writer, value: Any) -> int:
        """The text and its zero."""
        data = value.encode()
        return writer.vector(data + b"\0", len(data))

    def read_at(self, reader: Reader, at: int) -> Any:
        """The text."""
        start, size = reader.vector(at, 1)
        if reader.data[start + size : start + size + 1] != b"\0":
            raise CorruptBlock("A string has no end.")
        return str(reader.data[start : start + size], "utf-8")


class VectorOf(_Reference):
    """A vector of strings or tables."""

    def __init__(self, item: _Reference) -> None:
        self._item = item

    def place(self, writer: Writer, value: Any) -> int:
        """Every item, then the references to them."""
        return writer.references([self._item.place(writer, item) for item in value])

    def read_at(self, reader: Reader, at: int) -> Any:
        """The items as a tuple."""
        start, count = reader.vector(at, 4)
        places = range(start, start + 4 * count, 4)
        return tuple([self._item.read_at(reader, reader.reference(place)) for place in places])


@dataclass(frozen=True)
class Optional:
    """A slot that may be absent; a number in it is written even when it is 0."""

    kind: Kind


class Table(_Reference):
    """A dataclass as a table: its fields in order, each with the kind of its slot."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls
        self.width = 0
        self._slots: list[tuple[str, int, Kind, bool, bytes | None, Any]] = []

    def declare(self, *kinds: Kind | Optional) -> None:
        """Say what the fields hold; apart from the constructor because types refer to each other."""
        names = [field.name for field in fields(self.cls)]
        for name, declared in zip(names, kinds, strict=True):
            optional = isinstance(declared, Optional)
            kind = declared.kind if isinstance(declared, Optional) else declared
            omitted, default = None, None
            if isinstance(kind, Scalar) and not optional:
                omitted, default = kind.omitted, kind.default
            self._slots.append((name, self.width, kind, optional, omitted, default))
            self.width += kind.slots

    def place(self, writer: Writer, value: Any) -> int:
        """First everything the fields refer to, then the table."""
        if value.__class__ is not self.cls:
            raise UnencodableBlock(f"Expected {self.cls.__name__}, not {value!r}.")
        writer.descend()
        entries: list[Entry] = []
        for name, slot, kind, optional, omitted, _ in self._slots:
            field = getattr(value, name)
            if field is None and optional:
                continue
            try:
                kind.write(writer, slot, field, entries)
            except (struct.error, ValueError, TypeError, AttributeError) as error:
                message = f"{self.cls.__name__}.{name} cannot hold {field!r}: {error}."
                raise UnencodableBlock(message, table=self.cls.__name__, field=name, value=field) from error
            if omitted is not None and entries[-1][2] == omitted:
                entries.pop()
        writer.depth -= 1
        return writer.table(entries)

    def read_at(self, reader: Reader, at: int) -> Any:
        """The dataclass."""
        reader.descend()
        places = reader.table(at, self.width)
        values: dict[str, Any] = {}
        for name, slot, kind, optional, omitted, default in self._slots:
            if not places[slot]:
                if not optional and omitted is None:
                    raise CorruptBlock(f"{self.cls.__name__}.{name} is missing.")
                values[name] = default
                continue
            try:
                values[name] = kind.read(reader, places, slot)
            except (ValueError, BadHash, BadDatasetId) as error:
                message = f"{self.cls.__name__}.{name} cannot be read: {error}."
                raise CorruptBlock(message, table=self.cls.__name__, field=name) from error
        reader.depth -= 1
        return self.cls(**values)


class Union:
    """One of several tables: a byte that says which, and a reference to it."""

    slots = 2

    def __init__(self, name: str) -> None:
        self.name = name
        self._tables: dict[int, Table] = {}
        self._codes: dict[type[Any], int] = {}

    def declare(self, members: Mapping[int, Table]) -> None:
        """Say which tables it can be; apart from the constructor because types refer to each other."""
        self._tables.update(members)
        self._codes.update({table.cls: code for code, table in members.items()})

    def write(self, writer: Writer, slot: int, value: Any, entries: list[Entry]) -> None:
        """The code first, then the reference."""
        code = self._codes.get(value.__class__)
        if code is None:
            raise UnencodableBlock(f"{value!r} is not a {self.name}.", value=value)
        target = self._tables[code].place(writer, value)
        entries.append((slot, 1, _BYTE[code]))
        entries.append((slot + 1, 4, target))

    def read(self, reader: Reader, places: Places, slot: int) -> Any:
        """The member."""
        code = reader.data[places[slot]]
        table = self._tables.get(code)
        if table is None:
            raise CorruptBlock(f"{self.name} has no member {code}.")
        if not places[slot + 1]:
            raise CorruptBlock(f"A {self.name} has a type and no value.")
        return table.read_at(reader, reader.reference(places[slot + 1]))
