"""Manifests: the pieces of neighbouring partitions as one small immutable object, named by its hash.

Every update of a partition writes its manifest anew, so bytes count: numbers are stored as differences from those that
they usually resemble, which leaves zstd little to keep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import islice

import numpy as np
import pyarrow as pa

from floodmark.storage import document
from floodmark.storage.arrays import I64
from floodmark.storage.document import Damaged
from floodmark.timeline.errors import BadManifest
from floodmark.timeline.order.pieces import Bundle, How, Partition, Piece, Place, Run

_KIND = "timeline manifest"
_SIZE = 8

_EACH_BY_ITSELF = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
"""Columns have little in common: compressed apart, then once more as a whole for what describes them."""

_ALONE = pa.ipc.IpcReadOptions(use_threads=False)
"""Threads cost more than a few kilobytes."""

_PARTITIONS = ("start", "settled", "runs", "rows_in", "bytes_in", "bytes_written")
_RUNS = ("id", "tier", "pieces")
_PIECES = (
    *("file", "row_group", "row_lo", "row_hi", "group_rows"),
    *("first_time", "first_offset", "last_time", "last_offset"),
    *("offset_min", "offset_max", "size", "how", "since", "dead"),
)


def encode(bundle: Bundle) -> bytes:
    """A bundle as a document."""
    partitions, runs, pieces, files = _columns(bundle)
    tables = [_table(_PARTITIONS, partitions), _table(_RUNS, runs), _table(_PIECES, _apart(pieces))]
    tables.append(pa.table({"file": pa.array(files, pa.string())}))
    sink = pa.BufferOutputStream()
    for table in tables:
        with pa.ipc.new_stream(sink, table.schema, options=_EACH_BY_ITSELF) as writer:
            writer.write_table(table)
    plain = sink.getvalue()
    packed: bytes = pa.compress(plain, codec="zstd", asbytes=True)
    return document.encode(_KIND, 1, {}, {"data": plain.size.to_bytes(_SIZE, "little") + packed}, align=1)


def decode(data: bytes, key: str = "") -> Bundle:
    """A bundle from the bytes under a key; `BadManifest` for any that `encode` did not make."""
    try:
        body = document.decode(data, _KIND, key).section("data")
    except Damaged as error:
        raise BadManifest(
            f"the timeline's manifest {key!r} is damaged: {error.problem}",
            hint="fold() makes the timeline anew from the ledger",
            key=key,
        ) from error
    size = int.from_bytes(body[:_SIZE], "little")
    source = pa.BufferReader(pa.decompress(pa.py_buffer(body[_SIZE:]), size, codec="zstd"))
    partitions, runs, pieces, files = (pa.ipc.open_stream(source, options=_ALONE).read_all() for _ in range(4))
    return _bundle(_numbers(partitions), _numbers(runs), _together(_numbers(pieces)), files.column(0).to_pylist())


def digest_of(data: bytes) -> str:
    """What an encoded manifest is named by."""
    return hashlib.sha3_256(data).hexdigest()


def _columns(bundle: Bundle) -> tuple[list[I64], list[I64], list[I64], list[str]]:
    """A bundle as columns of numbers: partitions, runs, pieces in the order of both, and the names of files."""
    partitions = [
        (p.start, len(p.settled), len(p.waiting), p.rows_in, p.bytes_in, p.bytes_written) for p in bundle.partitions
    ]
    runs = [(r.id, r.tier, len(r.pieces)) for p in bundle.partitions for r in p.waiting]
    pieces = [piece for p in bundle.partitions for piece in p.pieces]
    number: dict[str, int] = {}
    rows = [
        (
            number.setdefault(p.file, len(number)),
            *(p.row_group, p.row_lo, p.row_hi, p.group_rows),
            *p.first,
            *p.last,
            *(p.offset_min, p.offset_max, p.size, p.how, p.since, p.dead),
        )
        for p in pieces
    ]
    tables = (_transposed(partitions, _PARTITIONS), _transposed(runs, _RUNS), _transposed(rows, _PIECES))
    return *tables, list(number)


def _transposed(rows: Sequence[tuple[int, ...]], names: Sequence[str]) -> list[I64]:
    return list(np.array(rows, np.int64).reshape(-1, len(names)).T.copy())


def _table(names: Sequence[str], columns: Sequence[I64]) -> pa.Table:
    """Numbers as a table of their bytes, the lowest of all first: bytes of one kind lie together for the compressor."""
    shuffled = [c.view(np.uint8).reshape(-1, 8).T.copy().reshape(-1).view(np.int64) for c in columns]
    return pa.table([pa.array(c) for c in shuffled], names=list(names))


def _numbers(table: pa.Table) -> list[I64]:
    columns = [c.combine_chunks().to_numpy() for c in table.columns]
    return [c.view(np.uint8).reshape(8, -1).T.copy().reshape(-1).view(np.int64) for c in columns]


def _apart(columns: Sequence[I64]) -> list[I64]:
    """The columns of pieces as differences from what they are often near to; overflow wraps around and back."""
    file, group, lo, hi, rows, time, offset, last_time, last_offset, low, high, size, how, since, dead = columns
    return [
        *(file, group, lo, rows - hi, rows),
        *(np.diff(time, prepend=np.int64(0)), offset - low, last_time - time, high - last_offset),
        *(low, high - low, size, how, since, dead),
    ]


def _together(columns: Sequence[I64]) -> list[I64]:
    """What `_apart` took apart."""
    file, group, lo, below, rows, step, offset, lasting, last_offset, low, span, size, how, since, dead = columns
    time, high = np.cumsum(step), low + span
    return [
        *(file, group, lo, rows - below, rows),
        *(time, offset + low, lasting + time, high - last_offset),
        *(low, high, size, how, since, dead),
    ]


def _bundle(partitions: list[I64], runs: list[I64], pieces: list[I64], files: list[str]) -> Bundle:
    rows = iter(list(zip(*(c.tolist() for c in pieces), strict=True)))
    lasting = iter(list(zip(*(c.tolist() for c in runs), strict=True)))
    hows = tuple(How)

    def take(count: int) -> tuple[Piece, ...]:
        return tuple(
            Piece(files[f], g, lo, hi, n, Place(t0, o0), Place(t1, o1), low, high, size, hows[how], since, dead)
            for f, g, lo, hi, n, t0, o0, t1, o1, low, high, size, how, since, dead in islice(rows, count)
        )

    found = []
    for start, settled, waiting, rows_in, bytes_in, bytes_written in zip(
        *(c.tolist() for c in partitions), strict=True
    ):
        kept = take(settled)
        over = tuple(Run(number, tier, take(count)) for number, tier, count in islice(lasting, waiting))
        found.append(Partition(start, kept, over, rows_in, bytes_in, bytes_written))
    return Bundle(tuple(found))
