"""128-bit hashes of keys and rows, the same in every process, on every machine and in every release.

`H(seed, bytes)` is MurmurHash3_x64_128 that starts from a 128-bit seed (`h1, h2`). A value's seed names its column
and type. Then, with all words little-endian, 8 bytes, and all sums per half, mod 2**64:

- a number, date, time or boolean: `H(seed, its word)`; a decimal: `H(seed, its two words)`;
- text and bytes: `H(seed, the bytes)`, but blake2b of seed and bytes if they are longer than `LONG` bytes;
- a struct: `H(seed, sum of its members' hashes)`, and a row is a struct of its columns;
- a list: `H(seed, its length, sum of its items' hashes, each mixed with its position)`;
- null is zero: it adds nothing to a sum.

So neither the order of columns nor a column of nulls that was added later changes a hash. These rules must never
change: `docs/design/2026-11-18-keyed-datasets.md` lists them, and the tests compare with fixed values.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.errors import UnsupportedType
from floodmark.rows.murmur import HashBuffers, mix, murmur_bytes, murmur_words
from floodmark.storage.arrays import I64, U64, Hashes

LONG = 512
"""Values with more bytes are hashed separately: the vectorised hash takes as many steps as the longest value needs."""

BATCH_ROWS = 1 << 15
"""Rows per batch, so that six arrays of 8 bytes per row stay in a core's cache."""

_STEP1, _STEP2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95)
_NAN = np.uint64(0x7FF8000000000000)


def hash_rows(table: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> Hashes:
    """The hash of these columns for each row. It does not depend on the order of columns or on the table's chunks."""
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    chosen = whole.select(list(columns))
    rows = whole.num_rows
    result = Hashes(np.empty(rows, np.uint64), np.empty(rows, np.uint64))
    row = _Struct(b"", "", [(f.name, f.type) for f in chosen.schema], HashBuffers())
    start = 0
    for members, size in _batches(chosen, rows):
        high, low = row.hash_members(members, size)
        result.high[start : start + size] = high
        result.low[start : start + size] = low
        start += size
    return result


def _batches(table: pa.Table, rows: int) -> Iterator[tuple[list[pa.Array], int]]:
    """The columns in batches with one chunk per column."""
    if not table.num_columns:
        for start in range(0, rows, BATCH_ROWS):
            yield [], min(BATCH_ROWS, rows - start)
        return
    if max(column.num_chunks for column in table.columns) * BATCH_ROWS > 4 * rows + BATCH_ROWS:
        table = table.combine_chunks()  # many small chunks are slow: each batch costs as much as a thousand rows
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        yield batch.columns, batch.num_rows


class _Cells(ABC):
    """Hashes the values of one column or nested field."""

    def __init__(self, parent: bytes, name: str, type_name: str, buffers: HashBuffers) -> None:
        text = type_name.encode()
        self.seed = hashlib.blake2b(
            parent + struct.pack("<Q", len(text)) + text + name.encode(), digest_size=16, person=b"floodmark cell"
        ).digest()
        first, second = struct.unpack("<QQ", self.seed)
        self.starts = np.uint64(first), np.uint64(second)
        self.buffers = buffers

    @abstractmethod
    def hash(self, array: Any) -> tuple[U64, U64]:
        """The hash of each value of an array that is not empty and has no nulls. Valid until the next call."""

    def add_to(self, high: U64, low: U64, array: Any) -> None:
        """Add each value's hash to these sums. A null adds nothing."""
        nulls = array.null_count
        if nulls == len(array):
            return
        if nulls == 0:
            h1, h2 = self.hash(array)
            high += h1
            low += h2
        else:
            not_null = np.flatnonzero(_bits(array.buffers()[0], array.offset, len(array)))
            h1, h2 = self.hash(array.drop_null())
            high[not_null] += h1
            low[not_null] += h2


class _Words(_Cells):
    """Values of one word: integers, floats, booleans, dates and times."""

    def hash(self, array: Any) -> tuple[U64, U64]:
        word = self.buffers.array("word 0", len(array))
        types = pa.types
        t = array.type
        if types.is_boolean(t):
            word[:] = _bits(array.buffers()[1], array.offset, len(array))
        elif types.is_floating(t):
            _float_words(_values(array, f"<f{t.bit_width // 8}"), word)
        else:
            kind = "u" if types.is_unsigned_integer(t) else "i"
            word.view(np.int64)[:] = _values(array, f"<{kind}{t.bit_width // 8}")
        return murmur_words([word], self.starts, self.buffers)


class _Decimals(_Cells):
    """Decimals of 128 bits: two words, the lower word first."""

    def hash(self, array: Any) -> tuple[U64, U64]:
        both = _values(array, "<u8", per_row=2)
        words = [self.buffers.array(f"word {i}", len(array)) for i in range(2)]
        words[0][:], words[1][:] = both[0::2], both[1::2]
        return murmur_words(words, self.starts, self.buffers)


class _Bytes(_Cells):
    """Text and bytes."""

    def hash(self, array: Any) -> tuple[U64, U64]:
        bounds, data = _bounds(array), array.buffers()[-1]
        lengths = np.diff(bounds)
        is_long = lengths > LONG
        if not is_long.any():
            return murmur_bytes(data, bounds, self.starts, self.buffers)
        high, low = np.empty(len(array), np.uint64), np.empty(len(array), np.uint64)
        if not is_long.all():
            short = array.filter(pa.array(~is_long))
            high[~is_long], low[~is_long] = murmur_bytes(short.buffers()[-1], _bounds(short), self.starts, self.buffers)
        view, begun = memoryview(data), hashlib.blake2b(self.seed, digest_size=16, person=b"floodmark long")
        digests = bytearray()
        for start, stop in zip(bounds[:-1][is_long].tolist(), bounds[1:][is_long].tolist(), strict=True):
            hasher = begun.copy()
            hasher.update(view[start:stop])
            digests += hasher.digest()
        halves = np.frombuffer(digests, "<u8")
        high[is_long], low[is_long] = halves[0::2], halves[1::2]
        return high, low


class _List(_Cells):
    """Lists of fixed or variable length."""

    def __init__(self, parent: bytes, name: str, data_type: Any, buffers: HashBuffers) -> None:
        super().__init__(parent, name, _type_name(data_type, name), buffers)
        self.items = _cells(self.seed, "", data_type.value_type, buffers.inner)

    def hash(self, array: Any) -> tuple[U64, U64]:
        bounds = _bounds(array)
        sums = [np.zeros(len(bounds), np.uint64) for _ in range(2)]  # of all items before each bound
        carry = [np.uint64(0), np.uint64(0)]
        for start in range(bounds[0], bounds[-1], BATCH_ROWS):
            stop = min(start + BATCH_ROWS, int(bounds[-1]))
            halves = self._item_hashes(array.values.slice(start, stop - start), bounds, start)
            first, last = np.searchsorted(bounds, [start, stop], side="right")
            for i, half in enumerate(halves):
                np.cumsum(half, out=half)
                half += carry[i]
                sums[i][first:last] = half[bounds[first:last] - (start + 1)]
                carry[i] = half[-1]
        words = [self.buffers.array(f"word {i}", len(array)) for i in range(3)]
        words[0].view(np.int64)[:] = np.diff(bounds)
        words[1][:], words[2][:] = np.diff(sums[0]), np.diff(sums[1])
        return murmur_words(words, self.starts, self.buffers)

    def _item_hashes(self, items: Any, bounds: I64, start: int) -> tuple[U64, U64]:
        """The hashes of consecutive items, each mixed with its position in its list."""
        size = len(items)
        high, low = self.buffers.array("high", size), self.buffers.array("low", size)
        high.fill(0)
        low.fill(0)
        self.items.add_to(high, low, items)
        first, last = np.searchsorted(bounds, [start, start + size - 1], side="right")
        begins = bounds[first - 1 : last]
        counts = np.diff(np.append(np.maximum(begins, start), start + size))
        position = (np.arange(start + 1, start + size + 1) - np.repeat(begins, counts)).astype(np.uint64)
        spare = self.buffers.array("spare", size)
        for half, increment in ((high, _STEP1), (low, _STEP2)):
            half += position * increment
            mix(half, spare)
        return high, low


class _Struct(_Cells):
    """Structs and rows: members by name."""

    def __init__(
        self, parent: bytes, name: str, members: Sequence[tuple[str, pa.DataType]], buffers: HashBuffers
    ) -> None:
        # Members may be added later, so the seed does not depend on them.
        super().__init__(parent, name, "struct", buffers)
        self.members = [_cells(self.seed, member, t, buffers.inner) for member, t in members]

    def hash(self, array: Any) -> tuple[U64, U64]:
        return self.hash_members(array.flatten(), len(array))

    def hash_members(self, arrays: Sequence[Any], size: int) -> tuple[U64, U64]:
        sums = [self.buffers.array(f"word {i}", size) for i in range(2)]
        for half in sums:
            half.fill(0)
        for member, array in zip(self.members, arrays, strict=True):
            member.add_to(sums[0], sums[1], array)
        return murmur_words(sums, self.starts, self.buffers)


def _cells(parent: bytes, name: str, data_type: Any, buffers: HashBuffers) -> _Cells:
    types = pa.types
    if types.is_struct(data_type):
        return _Struct(parent, name, [(f.name, f.type) for f in data_type], buffers)
    if types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type):
        return _List(parent, name, data_type, buffers)
    type_name = _type_name(data_type, name)
    if types.is_decimal(data_type):
        return _Decimals(parent, name, type_name, buffers)
    if type_name.startswith(("string", "binary")):
        return _Bytes(parent, name, type_name, buffers)
    return _Words(parent, name, type_name, buffers)


def _type_name(data_type: Any, column: str) -> str:
    """The name of a type for a seed. These names are our own, because Arrow's names may change between releases."""
    t = data_type
    types = pa.types
    if types.is_boolean(t):
        return "bool"
    if types.is_integer(t):
        return f"{'int' if types.is_signed_integer(t) else 'uint'}{t.bit_width}"
    if types.is_floating(t):
        return f"float{t.bit_width}"
    if types.is_string(t) or types.is_large_string(t):
        return "string"
    if types.is_binary(t) or types.is_large_binary(t):
        return "binary"
    if types.is_fixed_size_binary(t) and not types.is_decimal(t):
        return f"binary({t.byte_width})"
    if types.is_date32(t):
        return "date"
    if types.is_time(t):
        return f"time({t.unit})"
    if types.is_timestamp(t):
        return f"timestamp({t.unit})" if t.tz is None else f"timestamp({t.unit}, {t.tz})"
    if types.is_decimal128(t):
        return f"decimal({t.precision}, {t.scale})"
    if types.is_fixed_size_list(t):
        return f"list({t.list_size}) of {_type_name(t.value_type, column)}"
    if types.is_list(t) or types.is_large_list(t):
        return f"list of {_type_name(t.value_type, column)}"
    if types.is_struct(t):
        return "struct"
    if types.is_null(t):
        return "null"
    raise UnsupportedType(
        f"column {column!r} has type {t}, which cannot be hashed for keys and rows",
        hint="cast it to the dataset's type first",
        column=column,
        data_type=str(t),
    )


def _bounds(array: Any) -> I64:
    """The start of each value's bytes or items, and the end of the last value."""
    t = array.type
    types = pa.types
    if types.is_fixed_size_binary(t) or types.is_fixed_size_list(t):
        width = t.byte_width if types.is_fixed_size_binary(t) else t.list_size
        even: I64 = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * width
        return even
    wide = types.is_large_string(t) or types.is_large_binary(t) or types.is_large_list(t)
    width = 8 if wide else 4
    raw = np.frombuffer(array.buffers()[1], f"<i{width}", len(array) + 1, array.offset * width)
    bounds: I64 = raw.astype(np.int64)
    return bounds


def _values(array: Any, kind: str, per_row: int = 1) -> npt.NDArray[Any]:
    dtype = np.dtype(kind)
    skipped = array.offset * per_row * dtype.itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array) * per_row, skipped)


def _bits(buffer: pa.Buffer, offset: int, size: int) -> npt.NDArray[np.uint8]:
    first, end = offset // 8, (offset + size + 7) // 8
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8, end - first, first), bitorder="little")
    return bits[offset - 8 * first :][:size]


def _float_words(values: npt.NDArray[Any], out: U64) -> None:
    """The bits of floats as 64-bit floats. -0.0 becomes 0.0, and all NaNs become one NaN."""
    floats = out.view(np.float64)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        floats[:] = values
        floats += 0.0
        out[np.isnan(floats)] = _NAN
