"""Entries of the key index: the newest row of each key, and kills: the offsets of dead records and what ended them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from floodmark.errors import bad_index
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage import document
from floodmark.storage.arrays import I64, U64, Hashes, Mask, is_group_start, stable_order
from floodmark.storage.document import DamagedDocument, Document
from floodmark.storage.facts import Natural
from floodmark.storage.scratch import Folder
from floodmark.storage.sorted_runs import Columns, RunFile, RunSpec, write_run

T = TypeVar("T")

_KEY = ("key_high", "key_low")
_LOOKUP = ("lookup_high", "lookup_low")
_VALUES = {"row_high": np.uint64, "row_low": np.uint64, "offset": np.int64}
_BY_KEY = RunSpec("keys", _KEY, _VALUES)
_BY_PREFIX = RunSpec("keys", (*_LOOKUP, *_KEY), _VALUES)


def run_spec(has_prefix: bool) -> RunSpec:
    """The columns of the index's sorted runs. With a lookup prefix, they are sorted by its hash first."""
    return _BY_PREFIX if has_prefix else _BY_KEY


@dataclass(frozen=True)
class KeyEntries:
    """Keys with their newest rows. The offset NO_ROW marks a key whose row was retracted."""

    key: Hashes
    row: Hashes
    offset: I64
    lookup: Hashes | None = None

    def __len__(self) -> int:
        return len(self.offset)

    def take(self, at: Any) -> KeyEntries:
        """The entries at these positions (indices, a mask or a slice)."""
        lookup = None if self.lookup is None else self.lookup.take(at)
        return KeyEntries(self.key.take(at), self.row.take(at), self.offset[at], lookup)

    @property
    def order_columns(self) -> list[U64]:
        """The columns that entries are sorted by, the most significant first."""
        return order_columns(self.key, self.lookup)

    @property
    def is_live(self) -> Mask:
        result: Mask = self.offset != NO_ROW
        return result

    @property
    def columns(self) -> Columns:
        """The entries as columns of a sorted run."""
        order = run_spec(self.lookup is not None).order
        values = {"row_high": self.row.high, "row_low": self.row.low, "offset": self.offset}
        return {**dict(zip(order, self.order_columns, strict=True)), **values}

    @staticmethod
    def of(columns: Columns) -> KeyEntries:
        """The entries in the columns of a sorted run."""
        key, row = (Hashes(columns[f"{name}_high"], columns[f"{name}_low"]) for name in ("key", "row"))
        lookup = Hashes(*(columns[name] for name in _LOOKUP)) if _LOOKUP[0] in columns else None
        return KeyEntries(key, row, columns["offset"], lookup)

    @staticmethod
    def none(lookup: Hashes | None) -> KeyEntries:
        """No entries; with empty lookup hashes if `lookup` is given."""
        empty = Hashes.joined([])
        return KeyEntries(empty, empty, np.empty(0, np.int64), None if lookup is None else empty)


@dataclass(frozen=True)
class KeyMatches:
    """The result of a lookup for each key."""

    offset: I64  # of the current row, NO_ROW without one
    row: Hashes  # of the current row, zeros without one
    seen: Mask  # whether the index has an entry for the key, also one for a retracted row


def order_columns(key: Hashes, lookup: Hashes | None) -> list[U64]:
    """The columns that entries are sorted by: the lookup hash, if it is separate, then the key hash."""
    prefix = [] if lookup is None else [lookup.high, lookup.low]
    return [*prefix, key.high, key.low]


# Kills

_KIND = "dead offsets"
_NUMBERS = ("offset", "killed_by")
_LIVE_OPS = (0, 3)
_SAMPLE = 4096


@dataclass(frozen=True)
class Kills:
    """Offsets of dead records, in ascending order, and for each the offset of the record that ended it."""

    offset: I64
    killed_by: I64

    def __len__(self) -> int:
        return len(self.offset)

    def before(self, end: int) -> I64:
        """The offsets below `end` that were ended by records below `end`."""
        upto = int(np.searchsorted(self.offset, end))
        result: I64 = self.offset[:upto][self.killed_by[:upto] < end]
        return result

    def by_others(self, start: int, end: int) -> Kills:
        """Those where another record, with its offset in [start, end), ended the record."""
        chosen = (self.killed_by >= start) & (self.killed_by < end) & (self.killed_by != self.offset)
        return Kills(self.offset[chosen], self.killed_by[chosen])


@dataclass(frozen=True)
class KillsFile:
    """A reference to a file of kills, as in the manifest."""

    name: str
    kills: Natural
    size: Natural


@dataclass
class OpenKills:
    """An open file of kills."""

    file: KillsFile
    _document: Document = field(repr=False)

    def kills(self) -> Kills:
        offset, killed_by = (self._parsed(name, lambda data: np.frombuffer(data, np.int64)) for name in _NUMBERS)
        if len(offset) != len(killed_by):
            raise bad_index(self.file.name, f"it has {len(offset)} offsets, and {len(killed_by)} that ended them")
        return Kills(offset, killed_by)

    def bitmap(self) -> BitMap64:
        return self._parsed("bitmap", lambda data: BitMap64.deserialize(bytes(data)))

    def check(self) -> None:
        """Read the whole file. Raises `BadIndex` if it is damaged."""
        for name in self._document.sections:
            self._section(name)

    def _section(self, name: str) -> memoryview:
        return self._parsed(name, lambda data: data)

    def _parsed(self, name: str, parse: Callable[[memoryview], T]) -> T:
        try:
            with document.parsing(self.file.name):
                return parse(self._document.section(name))
        except DamagedDocument as error:
            raise bad_index(self.file.name, error.problem) from error


def adds_row(op: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """A mask of the records that add a row: new rows, and the new values of corrections."""
    result: npt.NDArray[np.bool_] = (op == _LIVE_OPS[0]) | (op == _LIVE_OPS[1])
    return result


def kills_of(records: IndexRecords, order: I64, first: npt.NDArray[np.bool_]) -> Kills:
    """The records that these records end, given the order that groups them by key and a mask of the group starts.

    A record ends the record before it in its group, if that one added a row. The first record of a group ends the row
    that was current before the batch. A record that adds no row is never current: it ends itself.
    """
    offset, live = records.start + order, adds_row(records.op)[order]
    old = records.old[order]
    ends_previous = np.flatnonzero(~first[1:] & live[:-1]) + 1
    ends_old = np.flatnonzero(first & (old >= 0))
    never = offset[~live]
    ended = np.concatenate([offset[ends_previous - 1], old[ends_old], never])
    ended_by = np.concatenate([offset[ends_previous], offset[ends_old], never])
    return _sorted(ended, ended_by)


def write_kills(folder: Folder, start: int, end: int, kills: Kills) -> KillsFile:
    """Write the kills (at least one) of the records [start, end) into a folder."""
    sections = {"bitmap": bitmap_of(kills).serialize(), "offset": kills.offset, "killed_by": kills.killed_by}
    data = document.encode(_KIND, 1, {"kills": len(kills)}, sections)
    name = f"{start:012d}-{end:012d}-{document.header_digest(data)}.dead"
    (folder / name).write_bytes(data)
    return KillsFile(name, len(kills), len(data))


def open_kills(file: KillsFile, data: memoryview) -> OpenKills:
    """Open a file of kills from its bytes. Raises `BadIndex` if its header does not match its name."""
    try:
        return OpenKills(file, document.decode_named(data, _KIND, file.name))
    except DamagedDocument as error:
        raise bad_index(file.name, error.problem) from error


def bitmap_of(kills: Kills) -> BitMap64:
    return BitMap64(kills.offset.astype(np.uint64).data)


def offsets_of(bitmap: BitMap64) -> I64:
    """The offsets in a bitmap, ascending."""
    return np.array(bitmap.to_array(), np.uint64).astype(np.int64)


def merge_kills(parts: Sequence[Kills], limit: int) -> Iterator[Kills]:
    """Merge kills into chunks of about `limit`, in ascending order."""
    cuts: list[int] = []
    if sum(map(len, parts)) > limit:
        stride = max(1, limit // _SAMPLE)
        cuts = np.sort(np.concatenate([p.offset[::_SAMPLE] for p in parts]))[stride::stride].tolist()
    low = [0] * len(parts)
    for cut in [*cuts, None]:
        high = [len(p) if cut is None else int(np.searchsorted(p.offset, cut)) for p in parts]
        together = [(p.offset[a:b], p.killed_by[a:b]) for p, a, b in zip(parts, low, high, strict=True)]
        low = high
        chunk = _sorted(np.concatenate([o for o, _ in together]), np.concatenate([k for _, k in together]))
        if len(chunk):
            yield chunk


def _sorted(ended: I64, ended_by: I64) -> Kills:
    order = np.argsort(ended, kind="stable")
    return Kills(ended[order], ended_by[order])


# Additions: the index files for new records


@dataclass(frozen=True)
class IndexDelta:
    """The index files of the records [start, end), and the folder with them; None once they are in the store."""

    start: int
    end: int
    run: RunFile | None
    dead: KillsFile | None
    folder: Folder | None

    @property
    def names(self) -> list[str]:
        return [file.name for file in (self.run, self.dead) if file is not None]


def write_delta(folder: Folder, records: IndexRecords) -> IndexDelta:
    """Write the entries and the kills of these records into a folder."""
    if len(records) == 0:
        return IndexDelta(records.start, records.end, None, None, folder)
    columns = order_columns(records.key, records.lookup)
    order = stable_order(columns)
    first = is_group_start([c[order] for c in columns])
    last = np.append(first[1:], np.True_)
    kills = kills_of(records, order, first)
    stem, spec = f"{records.start:012d}-{records.end:012d}", run_spec(records.lookup is not None)
    run = write_run(folder, spec, stem, _entries(records, order[last]).columns)
    dead = write_kills(folder, records.start, records.end, kills) if len(kills) else None
    return IndexDelta(records.start, records.end, run, dead, folder)


def store_delta(objects: DatasetObjects, addition: IndexDelta) -> IndexDelta:
    """Put the files of an addition into the store. For tasks whose folder the driver cannot read."""
    if isinstance(addition.folder, Path):
        for name in addition.names:
            objects.store.put_derived_file(objects.key_file_key(name), addition.folder / name)
    return replace(addition, folder=None)


def _entries(records: IndexRecords, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> KeyEntries:
    """The entries for the records at these positions. A record that adds no row marks its key as without a row."""
    live = adds_row(records.op[at])
    row = records.row.take(at)
    nothing = np.uint64(0)
    return KeyEntries(
        key=records.key.take(at),
        row=Hashes(np.where(live, row.high, nothing), np.where(live, row.low, nothing)),
        offset=np.where(live, records.start + at, NO_ROW).astype(np.int64),
        lookup=None if records.lookup is None else records.lookup.take(at),
    )


NO_ROW = -1
"""The offset of a key without a current row."""


@dataclass(frozen=True)
class IndexRecords:
    """Consecutive records from offset `start`, in offset order, as input of the key index."""

    start: int
    key: Hashes
    row: Hashes  # over all data columns
    op: npt.NDArray[np.int32]
    old: I64  # the key's current row before the batch, an offset below `start`; NO_ROW without one
    lookup: Hashes | None = None  # over the declared prefix of the key; None if the prefix is the whole key

    def __len__(self) -> int:
        return len(self.op)

    @property
    def end(self) -> int:
        return self.start + len(self)
