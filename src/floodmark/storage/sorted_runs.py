"""Sorted runs: immutable files of entries sorted by hash, in pages with checksums.

A run has hash columns, by which it is sorted, and value columns. Its file starts with the columns: plain arrays,
padded to whole pages. The footer is a document with the first entry of each page (the fences) and a checksum per page
and column. The digest of the footer's header is part of the file name. So equal names mean equal content, and no data
is hashed to compute a name. Runs in the chain of trust are named by the SHA3-256 of the file instead, and their
manifest has the digest of the footer's header.

A lookup bisects the fences in memory, then the one page that can contain the entry. Each process compares the checksum
of a page before it first uses the page.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.errors import ObjectNotFound
from floodmark.storage import document
from floodmark.storage.arrays import (
    BEFORE,
    I64,
    U64,
    UP_TO,
    Mask,
    bisect,
    search_rows,
)
from floodmark.storage.document import DamagedDocument
from floodmark.storage.facts import Natural
from floodmark.storage.file_cache import drop_copy, read_object
from floodmark.storage.scratch import Folder, rename_in
from floodmark.storage.store import Store

PAGE_ROWS = 64
END_OF_HASHES = 2**64

_CHECKED_AT_ONCE = 1 << 14  # pages
_WEIGHT, _SALT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95)

_MAX_CACHED_RUNS = 256
_process_runs: dict[str, Any] = {}
"""Runs that this process has opened for tasks, by name."""

Columns = dict[str, npt.NDArray[Any]]
Segment = Sequence["RunFile"]
T = TypeVar("T")


@dataclass(frozen=True)
class RunSpec:
    """The columns of one kind of run."""

    kind: str
    order: tuple[str, ...]  # of 64-bit hashes: high and low halves in turn
    values: Mapping[str, npt.DTypeLike]
    digest: Literal["pages", "data"] = "pages"
    """What names a run: the digest of the footer, which has the checksums of all pages, or the SHA3-256 of the file."""

    @property
    def types(self) -> dict[str, npt.DTypeLike]:
        return {**dict.fromkeys(self.order, np.uint64), **self.values}


@dataclass(frozen=True)
class RunFile:
    """The description of a run in a manifest."""

    name: str
    entries: Natural
    size: Natural
    footer_size: Natural
    first: tuple[int, ...]  # the order columns of the first entry
    last: tuple[int, ...]
    seal: str = ""  # the digest of the footer's header, for a run named by its SHA3-256


@dataclass
class LookupCounts:
    """Counts of the work of lookups, for benchmarks."""

    values: int = 0  # compared with a query
    pages: int = 0  # of a column, compared with their checksums
    page_bytes: int = 0


# Writing


def write_run(folder: Folder, spec: RunSpec, stem: str, columns: Columns, salt: str = "") -> RunFile:
    """Write sorted entries (at least one) to a file in a folder. Its name starts with `stem`.

    Equal entries with equal salts have equal names. A value column with a single value is stored as one value.
    """
    constants = {name: columns[name][0].item() for name in spec.values if _is_constant(columns[name])}
    stored = {name: kind for name, kind in spec.types.items() if name not in constants}
    positions: dict[str, int] = {}
    sections: dict[str, npt.NDArray[Any]] = {}
    for name in spec.order:
        sections[f"fence.{name}"] = np.ascontiguousarray(columns[name][::PAGE_ROWS])
    temporary = f".run-{uuid.uuid4().hex}"
    is_sealed, digest = spec.digest == "data", hashlib.sha3_256()
    with (folder / temporary).open("wb") as file, ThreadPoolExecutor(1) as hashing:
        for name, kind in stored.items():
            positions[name] = file.tell()
            pages = _to_pages(np.ascontiguousarray(columns[name], kind))
            sections[f"sums.{name}"] = np.concatenate([_checksums(part) for part in pages])
            for part in pages:
                if is_sealed:
                    hashing.submit(digest.update, part.data)
                file.write(part.data)
        entries = len(columns[spec.order[0]])
        facts: dict[str, Any] = {
            "entries": entries,
            "page_rows": PAGE_ROWS,
            "order": spec.order,
            "columns": {name: [positions[name], np.dtype(kind).str] for name, kind in stored.items()},
            "constants": {name: [value, np.dtype(spec.values[name]).str] for name, value in constants.items()},
        }
        facts |= {"salt": salt} if salt else {}
        footer = document.encode(_document_kind(spec.kind), 1, facts, sections)
        file.write(footer)
        size = file.tell()
    seal = document.header_digest(footer)
    digest.update(footer)
    name = Multihash(SHA3_256, digest.digest()).text if is_sealed else f"{stem}-{seal}.run"
    rename_in(folder, temporary, name)
    first, last = (tuple(int(columns[c][at]) for c in spec.order) for at in (0, -1))
    return RunFile(name, entries, size, len(footer), first, last, seal if is_sealed else "")


def _document_kind(kind: str) -> str:
    return f"sorted run of {kind}"


def _is_constant(column: npt.NDArray[Any]) -> bool:
    if column.strides == (0,):  # a broadcast value
        return True
    return bool(column[0] == column[-1] and (column == column[0]).all())


def _to_pages(column: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """A column as pages, one per row: the full pages, not copied, and the last page, padded with zeros."""
    whole = len(column) // PAGE_ROWS * PAGE_ROWS
    pages = [column[:whole].reshape(-1, PAGE_ROWS)] if whole else []
    if whole < len(column):
        last = np.zeros((1, PAGE_ROWS), column.dtype)
        last[0, : len(column) - whole] = column[whole:]
        pages.append(last)
    return pages


def _checksums(pages: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """One checksum per page: the sum of its 64-bit words, each multiplied by a different odd number.

    A changed word always changes the 64-bit sum, of which 32 bits are stored. Unlike CRCs, the checksums of thousands
    of pages are one matrix multiplication.
    """
    words = pages.view(np.uint64)
    weights = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * _WEIGHT | np.uint64(1)
    sums = words @ weights + _SALT  # with the salt, a page of zeros does not have the checksum zero
    return ((sums >> np.uint64(32)) ^ (sums & np.uint64(0xFFFFFFFF))).astype(np.uint32)


# Reading


@dataclass
class SortedRun:
    """An opened run. Its methods raise `DamagedDocument` if the checksum of a page does not match."""

    file: RunFile
    order: tuple[str, ...]
    fences: list[U64]
    """The first entry of every page: the order columns."""
    page_rows: int
    probes: LookupCounts
    _pages: Columns = field(repr=False)  # one row per page
    _constants: Columns = field(repr=False)  # broadcast to all entries
    _sums: dict[str, npt.NDArray[np.uint32]] = field(repr=False)
    _checked: dict[str, Mask] = field(repr=False)

    def __len__(self) -> int:
        return self.file.entries

    def find(self, queries: Sequence[U64]) -> tuple[I64, Mask]:
        """For each full query: its row, and whether it exists. If not, the row is undefined.

        Many queries are faster in ascending order, because they read memory in order.
        """
        # Many queries need most pages. With more order columns, the first column alone is not selective enough.
        is_many = len(queries[0]) > len(self.fences[0]) and len(self.order) == 2
        return self._find_many(queries) if is_many else self._find_few(queries)

    def place(self, queries: Sequence[U64], last: Any) -> I64:
        """For each query (of one or more order columns): the first row that is not before it by `last`."""
        rows, _ = self._bisect(queries, last, last)
        return rows

    def take(self, rows: I64, names: Iterable[str] | None = None) -> Columns:
        """The entries at these rows, with all columns or some."""
        return self._columns(rows, self._pages_of(rows), names)

    def slice(self, start: int, end: int) -> Columns:
        """The entries [start, end), not copied."""
        pages = np.arange(start // self.page_rows, -(-end // self.page_rows) if start < end else 0)
        return self._columns(slice(start, end), pages, None)

    def _find_few(self, queries: Sequence[U64]) -> tuple[I64, Mask]:
        # The page is the last one whose fence is not greater than the query. So a row after its end is not a match.
        rows, page_ends = self._bisect(queries, UP_TO, BEFORE)
        exists = rows < page_ends
        at = rows[exists]
        same = np.ones(len(at), np.bool_)
        for name, query in zip(self.order, queries, strict=True):
            same &= self._flat(name)[at] == query[exists]
        exists[exists] = same
        return rows, exists

    def _find_many(self, queries: Sequence[U64]) -> tuple[I64, Mask]:
        high, low = self.order
        self._check(self.order, np.arange(len(self.fences[0])))
        rows = np.searchsorted(self._flat(high), queries[0]).astype(np.int64)
        self.probes.values += len(rows) * len(self).bit_length()
        at = np.minimum(rows, len(self) - 1)
        same_high = self._flat(high)[at] == queries[0]
        same = same_high & (self._flat(low)[at] == queries[1])
        # Two different hashes almost never share a high half.
        if len(rare := np.flatnonzero(same_high & ~same)):
            rows[rare], same[rare] = self._find_few([q[rare] for q in queries])
        return rows, same

    def _bisect(self, queries: Sequence[U64], last_of_fences: Any, last: Any) -> tuple[I64, I64]:
        """For each query: its row in the page that the fences give, and the end of that page."""
        names = self.order[: len(queries)]
        fence, comparisons = search_rows(self.fences[: len(queries)], queries, last_of_fences)
        page = np.maximum(fence - 1, 0)
        low = page * self.page_rows
        self._check(names, self._pages_of(low))
        high = np.minimum(low + self.page_rows, len(self))
        rows, page_comparisons = bisect([self._flat(name) for name in names], queries, low, high, last)
        self.probes.values += comparisons + page_comparisons
        return rows, high

    def _flat(self, name: str) -> npt.NDArray[Any]:
        return self._pages[name].reshape(-1)[: len(self)]

    def _columns(self, at: Any, pages: I64, names: Iterable[str] | None) -> Columns:
        chosen = [*self._pages, *self._constants] if names is None else list(names)
        self._check([name for name in chosen if name in self._pages], pages)
        return {n: self._constants[n][at] if n in self._constants else self._flat(n)[at] for n in chosen}

    def _pages_of(self, rows: I64) -> I64:
        """The distinct pages of these rows."""
        marks = np.zeros(len(self.fences[0]), np.bool_)
        marks[rows // self.page_rows] = True
        return np.flatnonzero(marks)

    def _check(self, names: Iterable[str], pages: I64) -> None:
        """Compare the checksums of pages that this process has not used yet."""
        for name in names:
            new = pages[~self._checked[name][pages]]
            for start in range(0, len(new), _CHECKED_AT_ONCE):
                batch = new[start : start + _CHECKED_AT_ONCE]
                are_neighbours = batch[-1] - batch[0] + 1 == len(batch)
                chosen = self._pages[name][batch[0] : batch[-1] + 1] if are_neighbours else self._pages[name][batch]
                wrong = batch[_checksums(chosen) != self._sums[name][batch]]
                if len(wrong):
                    raise DamagedDocument(self.file.name, f"page {wrong[0]} of column {name!r} is damaged")
                self._checked[name][batch] = True
                self.probes.pages += len(batch)
                self.probes.page_bytes += chosen.nbytes


def open_run(file: RunFile, kind: str, data: memoryview, probes: LookupCounts) -> SortedRun:
    """Open a run from the bytes of its file; `DamagedDocument` if they are not the bytes of this run."""
    if len(data) != file.size:
        raise DamagedDocument(file.name, f"it has {len(data)} bytes instead of {file.size}")
    if file.footer_size > file.size:
        raise DamagedDocument(file.name, f"its footer has {file.footer_size} of {file.size} bytes")
    footer = document.decode_named(data[file.size - file.footer_size :], _document_kind(kind), file.name, file.seal)
    with document.parsing(file.name):
        return _parse(file, footer, data, probes)


def _parse(file: RunFile, footer: document.Document, data: memoryview, probes: LookupCounts) -> SortedRun:
    facts = footer.facts
    entries, page_rows = facts["entries"], facts["page_rows"]
    if entries != file.entries or page_rows != PAGE_ROWS:
        raise ValueError(f"it has {entries} entries instead of {file.entries}")
    pages = -(-entries // page_rows)
    columns = {
        name: np.frombuffer(data, kind, pages * page_rows, position).reshape(pages, page_rows)
        for name, (position, kind) in facts["columns"].items()
    }
    order = tuple(facts["order"])
    fences = [footer.array(f"fence.{name}", np.uint64) for name in order]
    sums = {name: footer.array(f"sums.{name}", np.uint32) for name in columns}
    if not order or {len(part) for part in (*fences, *sums.values())} != {pages} or not columns.keys() >= set(order):
        raise ValueError("its pages do not fit its entries")
    if {len(file.first), len(file.last)} != {len(order)}:
        raise ValueError("its bounds do not fit its columns")
    return SortedRun(
        file=file,
        order=order,
        fences=fences,
        page_rows=page_rows,
        probes=probes,
        _pages=columns,
        _constants={
            name: np.broadcast_to(np.array(value, kind), entries) for name, (value, kind) in facts["constants"].items()
        },
        _sums=sums,
        _checked={name: np.zeros(pages, np.bool_) for name in columns},
    )


class RunFiles:
    """The runs in one folder of a store. After unpickling, the cache of the process is used."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        kind: str,
        bad: Callable[[str, str], Exception],
        cache: dict[str, Any] | None = None,
    ) -> None:
        self.store = store
        self.prefix = prefix  # of the keys of the files
        self.kind = kind
        self.cache = process_cache() if cache is None else cache
        self.probes = LookupCounts()
        self._bad = bad
        """Builds the error for a file from its name and the problem."""

    def __reduce__(self) -> tuple[Any, ...]:
        return RunFiles, (self.store, self.prefix, self.kind, self._bad)

    def key(self, name: str) -> str:
        return self.prefix + name

    def ask(self, file: RunFile, question: Callable[[SortedRun], T]) -> T:
        """Call `question` with an opened run; raise the error of this folder if the file is missing or damaged."""
        try:
            return question(self._open(file))
        except DamagedDocument as error:
            self.forget([file.name])
            if not drop_copy(self.store, self.key(file.name), self.kind):
                raise self._bad(file.name, error.problem) from error
        # The local copy was damaged. The stored file may be intact.
        try:
            return question(self._open(file))
        except DamagedDocument as error:
            self.forget([file.name])
            raise self._bad(file.name, error.problem) from error

    def forget(self, names: Iterable[str]) -> None:
        """Remove runs from the cache."""
        for name in names:
            self.cache.pop(self._cache_key(name), None)

    def read(self, name: str, size: int, check: Callable[[memoryview], None] = lambda _: None) -> memoryview:
        """The bytes of a file, memory-mapped if possible; `DamagedDocument` if it cannot be read."""
        try:
            return self._read(name, size, check)
        except (ObjectNotFound, FileNotFoundError) as error:
            raise DamagedDocument(name, "it is missing") from error
        except OSError as error:
            raise DamagedDocument(name, str(error)) from error

    def _read(self, name: str, size: int, check: Callable[[memoryview], None]) -> memoryview:
        return read_object(self.store, self.key(name), size, self.kind, check)

    def _cache_key(self, name: str) -> str:
        # A run with the same name in another store is another file, which may be damaged.
        return f"{self.store.url} {self.key(name)}"

    def _open(self, file: RunFile) -> SortedRun:
        run: SortedRun | None = self.cache.get(self._cache_key(file.name))
        if run is None:
            data = self.read(file.name, file.size, partial(_check_fetched, file))
            run = open_run(file, self.kind, data, self.probes)
            self.cache[self._cache_key(file.name)] = run
        return run


def _check_fetched(file: RunFile, data: memoryview) -> None:
    if file.seal and Multihash.sha3_256(data).text != file.name:
        raise DamagedDocument(file.name, "the hash of its bytes does not match its name")


def process_cache() -> dict[str, Any]:
    """The runs that this process has opened for tasks and metas. Above the limit, the oldest are removed."""
    while len(_process_runs) > _MAX_CACHED_RUNS:
        _process_runs.pop(next(iter(_process_runs.copy())), None)  # a copy: other threads add runs
    return _process_runs
