"""Runs: immutable sorted files of key index entries, memory-mapped, bisected by page and checked page by page.

The file is an uncompressed Arrow IPC file of one record batch. Beside it lies a small file with the first entry of
every page (a fence) and a checksum per page and column: a lookup bisects the fences in memory, then the one page that
can hold the key. No page is believed before its checksum was seen to be right, once per process.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.ledger.keys.entries import Entries
from floodmark.ledger.keys.records import I64, U64, Hashes
from floodmark.ledger.keys.sealed import bad, open_sealed, write_sealed
from floodmark.ledger.keys.search import BEFORE, UP_TO, Probes, bisect, bound

PAGE_ROWS = 64
_WEIGHT, _SALT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95)
_KEY = ("key_high", "key_low")
_LOOKUP = ("lookup_high", "lookup_low")
_VALUE = ("row_high", "row_low", "offset")

Point = tuple[int, ...]
"""The order columns of one entry."""


@dataclass(frozen=True)
class RunFile:
    """A run as the manifest names it: its two files, how much they hold, and its first and last entry."""

    name: str  # of the file with the fences and checksums; that of the entries follows from it
    entries: int
    size: int
    fence_size: int
    first: Point
    last: Point

    @property
    def data_name(self) -> str:
        return self.name.removesuffix(".fences") + ".arrow"

    @property
    def names(self) -> tuple[str, str]:
        return self.data_name, self.name


def write_run(folder: Path, start: int, end: int, entries: Entries) -> RunFile:
    """Write sorted entries (at least one) of the records [start, end) as a run into a folder."""
    columns = _named(entries)
    temporary = folder / f".run-{uuid.uuid4().hex}"
    positions, size = _write_arrow(temporary, columns)
    order = [name for name in columns if name not in _VALUE]
    fences = {f"fence.{name}": np.ascontiguousarray(columns[name][::PAGE_ROWS]) for name in order}
    pages = _pages(len(entries))
    sums = {f"sums.{name}": _checksums(column, PAGE_ROWS, pages) for name, column in columns.items()}
    meta = {"entries": len(entries), "size": size, "page_rows": PAGE_ROWS, "columns": positions, "order": order}
    name = write_sealed(folder, f"{start:012d}-{end:012d}", ".fences", meta, {**fences, **sums})
    ends = [tuple(int(columns[c][at]) for c in order) for at in (0, -1)]
    run = RunFile(name, len(entries), size, (folder / name).stat().st_size, ends[0], ends[1])
    temporary.rename(folder / run.data_name)
    return run


@dataclass
class Run:
    """An opened run."""

    file: RunFile
    probes: Probes
    _columns: dict[str, Any] = field(repr=False)
    _fences: list[U64] = field(repr=False)
    _sums: dict[str, npt.NDArray[np.uint32]] = field(repr=False)
    _checked: dict[str, npt.NDArray[np.bool_]] = field(repr=False)
    _page_rows: int = PAGE_ROWS
    damaged: bool = False

    def __len__(self) -> int:
        return self.file.entries

    @property
    def has_lookup(self) -> bool:
        return len(self._fences) == 4

    @property
    def fences(self) -> list[U64]:
        """The first entry of every page: the order columns."""
        return self._fences

    @property
    def page_rows(self) -> int:
        return self._page_rows

    def place(self, queries: Sequence[U64], last: Any) -> I64:
        """For each query (the first so many order columns) the row where `last` begins to fail."""
        found, _ = self._bisected(queries, last, last)
        return found

    def find(self, queries: Sequence[U64]) -> tuple[I64, npt.NDArray[np.bool_]]:
        """For each full query its row, and whether there is one; where not, the row means nothing."""
        # The page is the last one whose fence is not greater, so a row beyond its end cannot be the one.
        found, page_ends = self._bisected(queries, UP_TO, BEFORE)
        there = found < page_ends
        at = found[there]
        same = np.ones(len(at), np.bool_)
        for name, query in zip(self._order, queries, strict=True):
            same &= self._columns[name][at] == query[there]
        there[there] = same
        return found, there

    def rows(self, at: I64) -> Entries:
        """The entries at these rows."""
        self._check(self._columns, self._pages_of(at))
        return self._entries(at)

    def slice(self, start: int, end: int) -> Entries:
        """The entries [start, end), not copied."""
        if start < end:
            self._check(self._columns, np.arange(start // self._page_rows, (end - 1) // self._page_rows + 1))
        return self._entries(slice(start, end))

    def _bisected(self, queries: Sequence[U64], last_of_fences: Any, last: Any) -> tuple[I64, I64]:
        """The place of each query in the page that the fences lead to, and the end of that page."""
        names = self._order[: len(queries)]
        fence, seen = bound(self._fences[: len(queries)], queries, last_of_fences)
        page = np.maximum(fence - 1, 0)
        low = page * self._page_rows
        self._check(names, self._pages_of(low))
        high = np.minimum(low + self._page_rows, len(self))
        found, more = bisect([self._columns[name] for name in names], queries, low, high, last)
        self.probes.values += seen + more
        return found, high

    @property
    def _order(self) -> tuple[str, ...]:
        return (*_LOOKUP, *_KEY) if self.has_lookup else _KEY

    def _entries(self, at: Any) -> Entries:
        columns = self._columns
        lookup = Hashes(columns["lookup_high"][at], columns["lookup_low"][at]) if self.has_lookup else None
        return Entries(
            Hashes(columns["key_high"][at], columns["key_low"][at]),
            Hashes(columns["row_high"][at], columns["row_low"][at]),
            columns["offset"][at],
            lookup,
        )

    def _pages_of(self, rows: I64) -> I64:
        """The pages in which these rows are, each once."""
        marks = np.zeros(-(-len(self) // self._page_rows), np.bool_)
        marks[rows // self._page_rows] = True
        return np.flatnonzero(marks)

    def _check(self, names: Any, pages: I64) -> None:
        """Compare pages that this process has not touched yet with their checksums."""
        for name in names:
            new = pages[~self._checked[name][pages]]
            if len(new) == 0:
                continue
            sums = _checksums(self._columns[name], self._page_rows, new)
            wrong = new[sums != self._sums[name][new]]
            if len(wrong):
                self.damaged = True
                raise bad(self.file.data_name, f"page {wrong[0]} of column {name!r} is damaged")
            self._checked[name][new] = True
            self.probes.pages += len(new)
            self.probes.page_bytes += len(new) * self._page_rows * 8


def open_run(file: RunFile, data: memoryview, fences: memoryview, probes: Probes) -> Run:
    """A run from the bytes of its two files; `BadIndex` when they are not what they should be."""
    sealed = open_sealed(file.name, fences)
    meta = sealed.meta
    if (meta["entries"], meta["size"]) != (file.entries, file.size) or len(data) != file.size:
        raise bad(file.data_name, f"{len(data)} bytes, should be {meta['size']}")
    # By position and not through Arrow's own metadata, which nothing protects from damage.
    columns = {
        name: np.frombuffer(data, np.int64 if name == "offset" else np.uint64, file.entries, position)
        for name, position in meta["columns"].items()
    }
    sums = {name: sealed.array(f"sums.{name}", np.uint32) for name in columns}
    checked = {name: np.zeros(len(sums[name]), np.bool_) for name in columns}
    fence_columns = [sealed.array(f"fence.{name}", np.uint64) for name in meta["order"]]
    return Run(file, probes, columns, fence_columns, sums, checked, meta["page_rows"])


def _named(entries: Entries) -> dict[str, Any]:
    named: dict[str, Any] = {}
    if entries.lookup is not None:
        named |= {"lookup_high": entries.lookup.high, "lookup_low": entries.lookup.low}
    named |= {"key_high": entries.key.high, "key_low": entries.key.low}
    named |= {"row_high": entries.row.high, "row_low": entries.row.low, "offset": entries.offset}
    return {name: np.ascontiguousarray(column) for name, column in named.items()}


def _write_arrow(path: Path, columns: dict[str, Any]) -> tuple[dict[str, int], int]:
    """Write columns as an Arrow IPC file; where in the file each begins, and the file's size."""
    batch = pa.record_batch({name: pa.array(column) for name, column in columns.items()})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.memory_map(str(path)) as file:
        whole = file.read_buffer()
        written = pa.ipc.open_file(pa.BufferReader(whole)).get_batch(0)
        positions = {name: written.column(name).buffers()[1].address - whole.address for name in written.schema.names}
        return positions, whole.size


def _checksums(values: Any, page_rows: int, pages: I64) -> npt.NDArray[np.uint32]:
    """One checksum for each of these pages of a column: its words, each times an odd number of its own, summed.

    A word that changes always changes the sum of 64 bits, of which 32 are kept; and unlike a CRC, thousands of
    pages are one multiplication of matrices.
    """
    words = values.view(np.uint64)
    weights = np.arange(1, page_rows + 1, dtype=np.uint64) * _WEIGHT | np.uint64(1)
    whole = len(words) // page_rows
    matrix = words[: whole * page_rows].reshape(whole, page_rows)
    sums = np.empty(len(pages), np.uint64)
    full = pages < whole
    sums[full] = (matrix if len(pages) > whole else matrix[pages[full]]) @ weights
    rest = words[whole * page_rows :]
    sums[~full] = rest @ weights[: len(rest)] if len(rest) else 0
    sums += _SALT  # so that a page of zeros has a checksum that is none
    return ((sums >> np.uint64(32)) ^ (sums & np.uint64(0xFFFFFFFF))).astype(np.uint32)


def _pages(entries: int) -> I64:
    return np.arange(-(-entries // PAGE_ROWS), dtype=np.int64)
