"""The objects of a timeline in its store: their keys and names, and manifests as bytes.

Also which own files hold purged records, offsets packed for tasks, and the weighted cache of the timeline.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.chain.ids import Multihash
from floodmark.errors import BadManifest, ObjectNotFound
from floodmark.ledger.objects import DerivedObjects
from floodmark.storage import document
from floodmark.storage.arrays import I64
from floodmark.storage.document import DamagedDocument
from floodmark.storage.parquet import ChecksummedFile, has_records
from floodmark.storage.pointer import Pointer
from floodmark.storage.store import ObjectInfo
from floodmark.timeline.pieces import Bundle, Partition, Piece, PieceOrigin, TimePoint, WaitingRun


@dataclass(frozen=True)
class TimelineObjects(DerivedObjects):
    """The keys and objects of a dataset's timeline."""

    FOLDER = "info/timeline"

    @property
    def root_key(self) -> str:
        """The only object that changes: it has the applied offset and names the manifests."""
        return f"{self.folder}/root"

    @property
    def root(self) -> Pointer:
        return Pointer(self.store, self.root_key)

    def key(self, file: str) -> str:
        """The key of a piece's file, a slice or an own file. Pieces name files relative to the dataset's folder."""
        return f"{self.dataset.folder}/{file}"

    def file(self, key: str) -> str:
        """The name of the file under a key, relative to the dataset's folder."""
        return key.removeprefix(f"{self.dataset.folder}/")

    def replaced_key(self, name: str) -> str:
        """The key of the note for a file or manifest that no root names; its age is the time since then."""
        return f"{self.folder}/replaced/{name}"

    def turn(self) -> AbstractContextManager[None]:
        """Wait for the turn to change this timeline, and hold it."""
        return self.store.turn(self.root_key)

    def replaced(self) -> Iterator[ObjectInfo]:
        return self.store.list(f"{self.folder}/replaced")


def is_own(file: str) -> bool:
    """Whether a piece's file belongs to the timeline, not to the ledger."""
    return file.startswith(f"{FOLDER}/")


def last_name(key: str) -> str:
    """The last part of a key, which is the name of its note."""
    return key.rpartition("/")[2]


# Own files

FOLDER = "info/timeline/files"
"""The folder of own files, relative to the dataset's folder."""

_NAME = re.compile(rf"{FOLDER}/(f[0-9a-f]+)-([0-9]+)-([0-9a-f]{{8}})")


@dataclass(frozen=True)
class OwnFile:
    """The parts of an own file's name. Pages have checksums in the file; the checksum of the tail is in the name."""

    physical_hash: Multihash
    tail: int  # the number of bytes after the last page
    tail_checksum: int  # CRC-32

    @property
    def name(self) -> str:
        """The name, relative to the dataset's folder."""
        return f"{FOLDER}/{self.physical_hash.text}-{self.tail}-{self.tail_checksum:08x}"


def make_own_file(file: ChecksummedFile) -> OwnFile:
    """The name of a file that was just written."""
    return OwnFile(file.physical_hash, file.tail, file.tail_checksum)


def parse_own_file(name: str) -> OwnFile | None:
    """Parse the name of an own file; None for any other name, such as that of a slice."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    text, tail, checksum = match.groups()
    return OwnFile(Multihash.parse(text), int(tail), int(checksum, 16))


def repair_hint(file: str) -> str:
    """The hint about a piece's file that cannot be read. Own files can be rebuilt from the ledger, slices cannot."""
    if file.startswith(f"{FOLDER}/"):
        return "run fold(): it rebuilds the file from the ledger, which has the rows"
    return "run verify(): the file is a slice of the ledger, and verify() reports what is damaged"


# The bytes of a manifest

_KIND = "timeline manifest"
_SIZE = 8

_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
"""Columns have little in common, so each is compressed alone. Then the whole is compressed again, for the metadata."""

_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)
"""For a few kilobytes, starting threads costs more than reading."""

_PARTITIONS = ("start", "settled", "runs", "rows_in", "bytes_in", "bytes_written")
_RUNS = ("id", "tier", "pieces")
_SIGNED = ("start", "first_time", "first_offset", "last_time", "last_offset")
_PIECES = (
    *("file", "row_group", "row_lo", "row_hi", "group_rows"),
    *("first_time", "first_offset", "last_time", "last_offset"),
    *("offset_min", "offset_max", "size", "how", "since", "dead"),
)


def encode(bundle: Bundle) -> bytes:
    """A bundle as a document."""
    partitions, runs, pieces, files = _columns(bundle)
    tables = [
        _shuffled_table(_PARTITIONS, partitions),
        _shuffled_table(_RUNS, runs),
        _shuffled_table(_PIECES, _to_differences(pieces)),
    ]
    tables.append(pa.table({"file": pa.array(files, pa.string())}))
    sink = pa.BufferOutputStream()
    for table in tables:
        with pa.ipc.new_stream(sink, table.schema, options=_WRITE_OPTIONS) as writer:
            writer.write_table(table)
    plain = sink.getvalue()
    packed: bytes = pa.compress(plain, codec="zstd", asbytes=True)
    return document.encode(_KIND, 1, {}, {"data": plain.size.to_bytes(_SIZE, "little") + packed}, align=1)


def decode(data: bytes, key: str = "") -> Bundle:
    """A bundle from the bytes under a key. Raises `BadManifest` if `encode` did not write them."""
    try:
        body = document.decode(data, _KIND, key).section("data")
        with document.parsing(key):
            return _parse(body)
    except DamagedDocument as error:
        raise BadManifest(
            f"the timeline's manifest {key!r} is damaged: {error.problem}",
            hint="run fold(): it rebuilds the timeline from the ledger",
            key=key,
        ) from error


def _parse(body: memoryview) -> Bundle:
    size = int.from_bytes(body[:_SIZE], "little")
    if size > _LARGEST:
        raise ValueError(f"it has {size:,} bytes")
    source = pa.BufferReader(pa.decompress(pa.py_buffer(body[_SIZE:]), size, codec="zstd"))
    partitions, runs, pieces, files = (pa.ipc.open_stream(source, options=_READ_OPTIONS).read_all() for _ in range(4))
    files.validate(full=True)
    return _bundle(
        _numbers(partitions), _numbers(runs), _from_differences(_numbers(pieces)), files.column(0).to_pylist()
    )


_LARGEST = 1 << 30
"""The most bytes of a manifest before compression: the size that it claims is allocated before it is read."""


def digest_of(data: bytes) -> str:
    """The name of an encoded manifest: its digest."""
    return hashlib.sha3_256(data).hexdigest()


def _columns(bundle: Bundle) -> tuple[list[I64], list[I64], list[I64], list[str]]:
    """A bundle as columns of numbers: partitions, runs, and pieces in the order of both; and the file names."""
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


def _shuffled_table(names: Sequence[str], columns: Sequence[I64]) -> pa.Table:
    """Numbers as a byte-shuffled table: all lowest bytes first. This compresses better."""
    shuffled = [c.view(np.uint8).reshape(-1, 8).T.copy().reshape(-1).view(np.int64) for c in columns]
    return pa.table([pa.array(c) for c in shuffled], names=list(names))


def _numbers(table: pa.Table) -> list[I64]:
    table.validate()
    columns = [c.combine_chunks().to_numpy() for c in table.columns]
    return [c.view(np.uint8).reshape(8, -1).T.copy().reshape(-1).view(np.int64) for c in columns]


def _to_differences(columns: Sequence[I64]) -> list[I64]:
    """The columns of pieces as differences from values they are usually near; overflow wraps around and back."""
    file, group, lo, hi, rows, time, offset, last_time, last_offset, low, high, size, how, since, dead = columns
    return [
        *(file, group, lo, rows - hi, rows),
        *(np.diff(time, prepend=np.int64(0)), offset - low, last_time - time, high - last_offset),
        *(low, high - low, size, how, since, dead),
    ]


def _from_differences(columns: Sequence[I64]) -> list[I64]:
    """The inverse of `_to_differences`."""
    file, group, lo, below, rows, time_delta, offset, lasting, last_offset, low, span, size, how, since, dead = columns
    time, high = np.cumsum(time_delta), low + span
    return [
        *(file, group, lo, rows - below, rows),
        *(time, offset + low, lasting + time, high - last_offset),
        *(low, high, size, how, since, dead),
    ]


def _bundle(partitions: list[I64], runs: list[I64], pieces: list[I64], files: list[str]) -> Bundle:
    rows = iter(list(zip(*(c.tolist() for c in pieces), strict=True)))
    lasting = iter(list(zip(*(c.tolist() for c in runs), strict=True)))
    hows = tuple(PieceOrigin)
    _check_numbers(partitions, runs, pieces)

    def take(count: int) -> tuple[Piece, ...]:
        return tuple(
            Piece(files[f], g, lo, hi, n, TimePoint(t0, o0), TimePoint(t1, o1), low, high, size, hows[how], since, dead)
            for f, g, lo, hi, n, t0, o0, t1, o1, low, high, size, how, since, dead in islice(rows, count)
        )

    found = []
    for start, settled, waiting, rows_in, bytes_in, bytes_written in zip(
        *(c.tolist() for c in partitions), strict=True
    ):
        kept = take(settled)
        over = tuple(WaitingRun(number, tier, take(count)) for number, tier, count in islice(lasting, waiting))
        found.append(Partition(start, kept, over, rows_in, bytes_in, bytes_written))
    if next(rows, None) is not None or next(lasting, None) is not None:
        raise ValueError("it has pieces that no partition has")
    return Bundle(tuple(found))


def _check_numbers(partitions: list[I64], runs: list[I64], pieces: list[I64]) -> None:
    """Refuse numbers below 0 where there is no such thing. Python would count them from the end."""
    counted = zip((*_PARTITIONS, *_RUNS, *_PIECES), (*partitions, *runs, *pieces), strict=True)
    for name, column in counted:
        if name not in _SIGNED and len(column) and column.min() < 0:
            raise ValueError(f"{name} is {column.min()}")


# Purged records in own files

_REQUESTS = 8
"""The number of footers read in parallel."""


def files_with_purged(objects: TimelineObjects, files: Sequence[str], purged_before: int) -> list[str]:
    """The own files among `files` that hold records before an offset. Only their footers are read.

    An unreadable file counts, since it may hold such records; a missing file does not.
    """
    if not files or purged_before <= 0:
        return []
    with ThreadPoolExecutor(min(_REQUESTS, len(files))) as reading:
        oldest = reading.map(partial(_smallest_offset, objects), files)
        return [
            file for file, offset in zip(files, oldest, strict=True) if offset is not None and offset < purged_before
        ]


def list_files_with(objects: TimelineObjects, offsets: I64) -> list[str]:
    """The own files that have one of these records, named by the root or not."""
    if len(offsets) == 0:
        return []
    return [objects.file(info.key) for info in objects.files() if has_records(objects.store, info.key, offsets)]


def _smallest_offset(objects: TimelineObjects, file: str) -> int | None:
    """The smallest offset in a file: -1 if unknown, None if the file is missing. The first column has the offsets."""
    try:
        with objects.store.open(objects.key(file)) as source:
            metadata = pq.read_metadata(source)
    except (ObjectNotFound, FileNotFoundError):
        return None
    except (OSError, pa.ArrowException):
        return -1
    found = [metadata.row_group(i).column(0).statistics for i in range(metadata.num_row_groups)]
    return min((int(s.min) if s is not None and s.has_min_max else -1 for s in found), default=None)


# Offsets packed for tasks

PackedOffsets = tuple[list[int], npt.NDArray[Any]]
"""The first offset, if any, and the distance from each offset to the next: these numbers are small."""


def pack_offsets(offsets: I64) -> PackedOffsets:
    """Ascending offsets, packed."""
    gaps = np.diff(offsets)
    return offsets[:1].tolist(), gaps.astype(np.min_scalar_type(gaps.max(initial=0)))


def unpack_offsets(parts: PackedOffsets) -> I64:
    """The inverse of `pack_offsets`."""
    first, gaps = parts
    offsets: I64 = np.cumsum(np.concatenate([np.array(first, np.int64), gaps.astype(np.int64)]))
    return offsets


# The cache

K = TypeVar("K")
V = TypeVar("V")


class WeightedCache(Generic[K, V]):
    """A cache with a limit on the total weight of its values. It drops the least recently used ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Cache a value, unless it exceeds the limit alone or the key is already cached."""
        with self._lock:
            if weight > self._most or key in self._kept:
                return
            self._kept[key] = (value, weight)
            self._weight += weight
            while self._weight > self._most:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._weight -= dropped

    def drop(self, key: K) -> None:
        """Remove a value from the cache."""
        with self._lock:
            if key in self._kept:
                self._weight -= self._kept.pop(key)[1]
