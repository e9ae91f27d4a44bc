"""Sets of row addresses: bitmaps, converted to and from arrays, ranges and bytes without a Python step per row."""

from __future__ import annotations

import array

import numpy as np
from pyroaring import BitMap

from floodmark.storage import document
from floodmark.storage.arrays import I64
from floodmark.storage.document import DamagedDocument

_LIMIT = 1 << 32  # a BitMap contains unsigned 32-bit numbers
_KIND = "row set"
_FEW_RUNS = 16  # from this many rows per run on, adding runs is faster than adding rows


def span(start: int, end: int) -> BitMap:
    """All addresses of [start, end)."""
    _check_bounds(start, max(start, end))
    return BitMap(range(start, max(start, end)))


def from_array(addresses: I64) -> BitMap:
    """The set of these addresses, in any order."""
    if len(addresses) == 0:
        return BitMap()
    first, last = int(addresses.min()), int(addresses.max())
    _check_bounds(first, last + 1)
    starts, ends = _runs(addresses)
    if len(starts) * _FEW_RUNS <= len(addresses):
        result = BitMap()
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            result.add_range(start, end)
        return result
    # pyroaring reads an array.array of 32-bit items without a step per element.
    items = array.array("I")
    items.frombytes(np.ascontiguousarray(addresses, dtype=np.uint32).tobytes())
    return BitMap(items)


def to_array(rows: BitMap) -> I64:
    """The addresses in ascending order."""
    return np.frombuffer(rows.to_array(), dtype=np.uint32).astype(np.int64)


def ranges(rows: BitMap) -> list[tuple[int, int]]:
    """The set as maximal [start, end) ranges, in ascending order."""
    starts, ends = _runs(to_array(rows))
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def cut(rows: BitMap, most: int) -> list[tuple[int, int]]:
    """Ascending [start, end) ranges that cover all members, with at most `most` members each.

    A range starts at a member and ends after a member. It also covers addresses between them that are not in the set.
    """
    if most < 1:
        raise ValueError(f"a range cannot hold at most {most} rows")
    members = to_array(rows)
    starts = members[::most]
    lasts = members[np.minimum(np.arange(len(starts)) * most + most, len(members)) - 1]
    return list(zip(starts.tolist(), (lasts + 1).tolist(), strict=True))


def pack(rows: BitMap) -> bytes:
    """The set as bytes with a checksum. Equal sets give equal bytes."""
    body = rows.copy()
    body.run_optimize()  # smaller, and the bytes do not depend on the history of the set
    return document.encode(_KIND, 1, {}, {"rows": body.serialize()}, align=1)


def unpack(data: bytes | memoryview) -> BitMap:
    """Read the bytes of `pack`; `ValueError` if they are damaged.

    Damaged bytes never reach the bitmap library, which would read many of them as another set.
    """
    try:
        body = bytes(document.decode(data, _KIND, "the set of rows").section("rows"))
        with document.parsing("the set of rows"):
            found = BitMap.deserialize(body)
            if found.serialize() != body:  # the library reads many damaged bytes as another set
                raise ValueError("its bytes are of another set")
            return found
    except DamagedDocument as error:
        raise ValueError(str(error)) from error


def _runs(addresses: I64) -> tuple[I64, I64]:
    """The starts and ends of runs of consecutive addresses."""
    if len(addresses) == 0:
        return addresses, addresses
    breaks = np.flatnonzero(np.diff(addresses) != 1)
    starts = addresses[np.concatenate(([0], breaks + 1))]
    ends = addresses[np.concatenate((breaks, [len(addresses) - 1]))] + 1
    return starts, ends


def _check_bounds(start: int, end: int) -> None:
    if start < 0 or end > _LIMIT:
        raise ValueError(f"row addresses [{start}, {end}) are not within [0, {_LIMIT})")
