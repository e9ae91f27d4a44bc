"""Entry files: the keys that runs have processed, sorted by hash, in pages that are checked before they are believed.

A file is an Arrow IPC file of one record batch with a row for each page: the page's first hash (its fence), its
checksum, and its columns as lists. What all entries share (most often the run and its time) stands in the manifest
and not in the file. The manifest also has a digest of all fences and checksums, so a lookup bisects the fences in
memory, then the one page that can hold the key, and no other page is read.
"""

from __future__ import annotations

import hashlib
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.ledger.keys import radix
from floodmark.ledger.keys.entries import Mask
from floodmark.ledger.keys.records import I64, U64, Hashes
from floodmark.ledger.keys.search import BEFORE, UP_TO, bisect, bound
from floodmark.transform.meta.entries import Entries, ascends

PAGE_ROWS = 128
_CHECKED_AT_ONCE = 1 << 14  # pages
_WEIGHT = np.uint64(0x9E3779B97F4A7C15)
_SALT = np.uint64(0xD1342543DE82EF95)
_TYPES: dict[str, Any] = {"high": np.uint64, "low": np.uint64, "process_ts": np.int64, "run": np.uint32}
_SMALL: dict[str, Any] = {"first_high": np.uint64, "first_low": np.uint64, "sum": np.uint64}


class Damaged(Exception):
    """A file that is not what the manifest says."""


@dataclass(frozen=True)
class EntryFile:
    """An entry file as the manifest names it."""

    name: str  # the text of its SHA3-256 multihash
    entries: int
    size: int
    seal: str  # digest of its fences and checksums
    at: tuple[tuple[str, int], ...]  # where in the file each column begins
    process_ts: int | None  # None when the entries have their own
    runs: tuple[int, ...]  # the numbers that occur; a single one is not repeated in the file
    first: int  # the high half of the first hash
    last: int


def write_entries(folder: Path, entries: Entries, salt: str) -> EntryFile:
    """Write entries (at least one) into a folder; the file has the name that it gets in the store.

    The salt makes the content that of one commit alone: a file that was replaced is never written again, so
    removing it late cannot hit one that is in use.
    """
    runs = np.unique(_shared_or_all(entries.run))
    times = _shared_or_all(entries.process_ts)
    shared = int(times[0]) if (times == times[0]).all() else None
    columns: dict[str, npt.NDArray[Any]] = {"high": entries.hashes.high, "low": entries.hashes.low}
    if shared is None:
        columns["process_ts"] = entries.process_ts
    if len(runs) > 1:
        columns["run"] = entries.run
    pages = {name: _paged(column, _TYPES[name]) for name, column in columns.items()}
    small = {
        "first_high": np.ascontiguousarray(pages["high"][:, 0]),
        "first_low": np.ascontiguousarray(pages["low"][:, 0]),
        "sum": _checksums(pages, slice(None)),
    }
    temporary = folder / f".entries-{uuid.uuid4().hex}"
    name, at, size = _write_arrow(temporary, small, pages, salt)
    temporary.rename(folder / name)
    ends = int(entries.hashes.high[0]), int(entries.hashes.high[-1])
    return EntryFile(name, len(entries), size, _seal(small), at, shared, tuple(runs.tolist()), *ends)


@dataclass
class OpenEntries:
    """An opened entry file."""

    file: EntryFile
    _small: dict[str, U64] = field(repr=False)
    _pages: dict[str, npt.NDArray[Any]] = field(repr=False)
    _checked: Mask = field(repr=False)

    @staticmethod
    def of(file: EntryFile, data: memoryview) -> OpenEntries:
        """The file from its bytes; `Damaged` when they are not what they should be."""
        if len(data) != file.size:
            raise Damaged(f"it has {len(data)} bytes, should have {file.size}")
        pages = -(-file.entries // PAGE_ROWS)
        # By position and not through Arrow's own metadata, which nothing protects from damage.
        at = dict(file.at)
        small = {name: np.frombuffer(data, kind, pages, at[name]) for name, kind in _SMALL.items()}
        if _seal(small) != file.seal:
            raise Damaged("its fences or checksums are damaged")
        columns = {
            name: np.frombuffer(data, kind, pages * PAGE_ROWS, at[name]).reshape(pages, PAGE_ROWS)
            for name, kind in _TYPES.items()
            if name in at
        }
        return OpenEntries(file, small, columns, np.zeros(pages, np.bool_))

    def find(self, hashes: Hashes) -> tuple[I64, Mask]:
        """For each hash its row, and whether there is one; where not, the row means nothing."""
        return self._find_many(hashes) if len(hashes) > len(self._checked) else self._find_few(hashes)

    def _find_few(self, hashes: Hashes) -> tuple[I64, Mask]:
        queries = [hashes.high, hashes.low]
        fence, _ = bound([self._small["first_high"], self._small["first_low"]], queries, UP_TO)
        page = np.maximum(fence - 1, 0)
        self._check(np.unique(page))
        # The page is the last one whose fence is not greater, so a row beyond its end cannot be the one.
        start = page * PAGE_ROWS
        end = np.minimum(start + PAGE_ROWS, self.file.entries)
        high, low = self._flat("high"), self._flat("low")
        found, _ = bisect([high, low], queries, start, end, BEFORE)
        there = found < end
        at = found[there]
        there[there] = (high[at] == hashes.high[there]) & (low[at] == hashes.low[there])
        return found, there

    def _find_many(self, hashes: Hashes) -> tuple[I64, Mask]:
        """The same when most pages are needed anyway: in the order of the hashes, so that memory is read once."""
        self._check(np.arange(len(self._checked)))
        order = slice(None) if ascends(hashes.high) else radix.stable_order(hashes.high)
        found, there = np.empty(len(hashes), np.int64), np.empty(len(hashes), np.bool_)
        ordered = hashes.take(order)
        high, low = self._flat("high"), self._flat("low")
        rows = np.searchsorted(high, ordered.high).astype(np.int64)
        at = np.minimum(rows, self.file.entries - 1)
        same_high = high[at] == ordered.high
        same = same_high & (low[at] == ordered.low)
        # Nearly never do two hashes share a high half.
        if len(rare := np.flatnonzero(same_high & ~same)):
            rows[rare], same[rare] = self._find_few(ordered.take(rare))
        found[order], there[order] = rows, same
        return found, there

    def process_ts(self, at: Any) -> Any:
        """The times of entries that were found."""
        return self._flat("process_ts")[at] if self.file.process_ts is None else self.file.process_ts

    def run(self, at: Any) -> Any:
        """The run numbers of entries that were found."""
        return self._flat("run")[at] if len(self.file.runs) > 1 else self.file.runs[0]

    def cut(self, highs: U64) -> I64:
        """The rows at which hashes with at least these high halves begin."""
        self._check(np.arange(len(self._checked)))
        return np.searchsorted(self._flat("high"), highs, "left").astype(np.int64)

    def slice(self, start: int, end: int) -> Entries:
        """The entries [start, end), not copied."""
        if start < end:
            self._check(np.arange(start // PAGE_ROWS, (end - 1) // PAGE_ROWS + 1))
        some = slice(start, end)
        count = end - start
        return Entries(
            Hashes(self._flat("high")[some], self._flat("low")[some]),
            np.broadcast_to(np.asarray(self.process_ts(some), np.int64), count),
            np.broadcast_to(np.asarray(self.run(some), np.uint32), count),
        )

    def _flat(self, name: str) -> Any:
        return self._pages[name].reshape(-1)[: self.file.entries]

    def _check(self, pages: I64) -> None:
        """Compare pages that this process has not touched yet with their checksums."""
        new = pages[~self._checked[pages]]
        for start in range(0, len(new), _CHECKED_AT_ONCE):
            some = new[start : start + _CHECKED_AT_ONCE]
            wrong = some[_checksums(self._pages, some) != self._small["sum"][some]]
            if len(wrong):
                raise Damaged(f"its page {wrong[0]} is damaged")
            self._checked[some] = True


class _Hashing:
    """A file that is hashed while it is written."""

    closed = False

    def __init__(self, path: Path) -> None:
        self.digest = hashlib.sha3_256()
        self.size = 0
        self._file = path.open("wb")
        self._beside = ThreadPoolExecutor(1)

    def write(self, data: Any) -> int:
        view = memoryview(data)
        hashed = self._beside.submit(self.digest.update, view)
        self._file.write(view)
        hashed.result()
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True
        self._file.close()
        self._beside.shutdown()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _write_arrow(
    path: Path, small: dict[str, U64], pages: dict[str, npt.NDArray[Any]], salt: str
) -> tuple[str, tuple[tuple[str, int], ...], int]:
    """Write the columns; the file's name, where in it each column begins, and its size."""
    arrays: dict[str, pa.Array] = {name: pa.array(column) for name, column in small.items()}
    for name, column in pages.items():
        arrays[name] = pa.FixedSizeListArray.from_arrays(pa.array(column.reshape(-1)), PAGE_ROWS)
    batch = pa.record_batch(arrays).replace_schema_metadata({"commit": salt})
    sink = _Hashing(path)
    try:
        with pa.PythonFile(sink, "w") as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
    finally:
        sink.close()
    with pa.memory_map(str(path)) as mapped:
        whole = mapped.read_buffer()
        written = pa.ipc.open_file(pa.BufferReader(whole)).get_batch(0)
        at = []
        for name in batch.schema.names:
            column = written.column(name)
            values = column.values if name in pages else column
            at.append((name, values.buffers()[1].address - whole.address))
    return Multihash(SHA3_256, sink.digest.digest()).text, tuple(at), sink.size


def _shared_or_all(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return column[:1] if column.strides == (0,) else column


def _paged(column: npt.NDArray[Any], kind: Any) -> npt.NDArray[Any]:
    count = -(-len(column) // PAGE_ROWS) * PAGE_ROWS
    whole = np.zeros(count, kind)
    whole[: len(column)] = column
    return whole.reshape(-1, PAGE_ROWS)


def _checksums(pages: dict[str, npt.NDArray[Any]], at: Any) -> U64:
    """One checksum for each of these pages: all its words, each times an odd number of its own, summed.

    A word that changes always changes the sum, and thousands of pages are one multiplication of matrices.
    """
    number = 1
    total: U64 = np.full(len(next(iter(pages.values()))[at]), _SALT, np.uint64)
    for name in sorted(pages):
        words = pages[name][at].view(np.uint64)
        weights = np.arange(number, number + words.shape[1], dtype=np.uint64) * _WEIGHT | np.uint64(1)
        total += words @ weights
        number += words.shape[1]
    return total


def _seal(small: dict[str, U64]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in _SMALL:
        digest.update(small[name].tobytes())
    return digest.hexdigest()
