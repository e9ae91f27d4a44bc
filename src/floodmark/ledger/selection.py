"""Selections: which files hold an interval of offsets, and what past an `as_of` names. Pure but for block reads."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.chain.errors import BadHash
from floodmark.chain.events import AddData, DatasetKind, ExecuteTransform, last_offset
from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.chain.walk import read_block, walk_back
from floodmark.ledger.commit import ends_transaction, to_nanos
from floodmark.ledger.errors import BadAsOf, Purged
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64

_SHORT_HASH = re.compile(r"[0-9a-f]{8}")

AsOf = int | str | datetime | Multihash | None


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of records in offset order: a slice, or what was alive of a few slices when they were folded."""

    key: str
    start: int
    end: int
    rows: int
    size: int

    @property
    def absent(self) -> int:
        """How many records between start and end it does not hold, because they were dead already."""
        return self.end - self.start - self.rows


NOBODY: I64 = np.empty(0, np.int64)
NOBODY.flags.writeable = False


@dataclass(frozen=True)
class Selection:
    """The records with offsets in [start, end) that are not dead, and the files that hold them, in offset order."""

    start: int
    end: int
    files: tuple[DataFile, ...]
    dead: I64 = field(
        default_factory=lambda: NOBODY, compare=False
    )  # sorted; what is absent from the files may be among them
    unfolded: Callable[[], Selection] | None = field(default=None, compare=False, repr=False)
    """The same records from slices alone, where folded files stand in for some. It does not travel to tasks."""

    @property
    def is_empty(self) -> bool:
        return not self.files

    @property
    def is_whole(self) -> bool:
        """Whether the files hold no record before or after the interval."""
        return self.is_empty or (self.files[0].start >= self.start and self.files[-1].end <= self.end)

    @cached_property
    def dead_rows(self) -> I64:
        """How many dead records each file holds."""
        if len(self.dead) == 0:
            return np.zeros(len(self.files), np.int64)
        starts = np.array([f.start for f in self.files], np.int64)
        ends = np.array([f.end for f in self.files], np.int64)
        absent = np.array([f.absent for f in self.files], np.int64)
        # Who is dead stays dead, so everything that a file has left out is among the dead between its ends.
        found: I64 = np.searchsorted(self.dead, ends) - np.searchsorted(self.dead, starts) - absent
        return found

    @property
    def has_dead(self) -> bool:
        """Whether a file holds a record that must be left out."""
        return bool(self.dead_rows.any())

    def __reduce__(self) -> tuple[Any, ...]:
        # Selections go to tasks, many at once: the distances between the dead are small numbers, the offsets are not.
        first = self.dead[:1].tolist()
        gaps = np.diff(self.dead)
        smallest = np.min_scalar_type(gaps.max(initial=0))
        return _unpickled, (self.start, self.end, self.files, first, gaps.astype(smallest))

    def part(self, first: int, last: int) -> Selection:
        """What the files [first, last) hold of it."""
        files = self.files[first:last]
        return self.of(files, max(self.start, files[0].start), min(self.end, files[-1].end))

    def of(self, files: tuple[DataFile, ...], start: int, end: int) -> Selection:
        """Some of the files, which hold the given offsets of it; only the dead among these come along."""
        low, high = np.searchsorted(self.dead, [start, end])
        return Selection(start, end, files, self.dead[low:high])


def _unpickled(start: int, end: int, files: tuple[DataFile, ...], first: list[int], gaps: Any) -> Selection:
    dead: I64 = np.cumsum(np.concatenate([np.array(first, np.int64), gaps.astype(np.int64)]))
    return Selection(start, end, files, dead)


def select(snapshot: Snapshot, start: int, end: int, folded: Sequence[DataFile] = ()) -> Selection:
    """The records with offsets in [start, end), from the given folded files and from the slices for the rest."""
    slices = snapshot.slices
    starts, ends = slices.column("start").to_numpy(), slices.column("end").to_numpy()
    # Offsets are dense and slices in order, so two searches find them.
    low = int(np.searchsorted(ends, start, side="right"))
    high = int(np.searchsorted(starts, end, side="left"))
    if start >= end or low >= high:
        return Selection(start, start, ())
    wanted = np.zeros(len(starts), np.bool_)
    wanted[low:high] = True
    for file in folded:
        first, last = np.searchsorted(starts, [file.start, file.end])
        wanted[first:last] = False
    rest = slice_files(snapshot.objects, slices.filter(pa.array(wanted)))
    return Selection(start, end, tuple(sorted([*rest, *folded], key=lambda f: f.start)) if folded else rest)


def slice_files(objects: DatasetObjects, slices: pa.Table) -> tuple[DataFile, ...]:
    """The files of these rows of the slice index."""
    columns = (slices.column(name).to_pylist() for name in ("physical", "start", "end", "size"))
    return tuple(
        DataFile(objects.data_key(Multihash(SHA3_256, digest)), start, end, end - start, size)
        for digest, start, end, size in zip(*columns, strict=True)
    )


def interval(snapshot: Snapshot, name: str, since: int | None, until: int | None) -> Selection:
    """The records with offsets in (since, until], as far as there are any."""
    start = 0 if since is None else max(_offset(since, "since") + 1, 0)
    end = snapshot.next_offset if until is None else min(_offset(until, "until") + 1, snapshot.next_offset)
    if start < min(snapshot.purged_before, end):
        raise Purged(
            f"records {start} to {min(snapshot.purged_before, end) - 1} of {name!r} are purged",
            hint=f"the first record that is left is {snapshot.purged_before}: ask since {snapshot.purged_before - 1}",
            purged_before=snapshot.purged_before,
        )
    return select(snapshot, start, end)


def _offset(given: Any, what: str) -> int:
    """An offset as a plain int; a float, most of all NaN, would lose records without a word."""
    try:
        if not isinstance(given, bool):
            return operator.index(given)
    except TypeError:
        pass
    raise TypeError(f"{what}={given!r} is no offset: give an integer")


def present(snapshot: Snapshot, name: str, as_of: AsOf) -> tuple[int, int]:
    """The offsets [start, end) of all records that can be read, now or as of a point in the past."""
    end = snapshot.next_offset if as_of is None else end_of(snapshot, name, as_of)
    if as_of is not None and snapshot.purged_before and end <= snapshot.purged_before:
        raise Purged(
            f"the state of {name!r} as of {as_of} is purged",
            hint=f"the oldest state that is left ends at offset {snapshot.purged_before}",
            purged_before=snapshot.purged_before,
        )
    return min(snapshot.purged_before, end), end


def end_of(snapshot: Snapshot, name: str, as_of: AsOf) -> int:
    """The offset after the last record as of an offset, a block's hash (whole or its last digits) or a time.

    In a derivative a point inside a transaction stands for the end of the one before it: part of one is no state.
    """
    end = _point(snapshot, name, as_of)
    return _whole_transactions(snapshot, end) if snapshot.state.dataset_kind is DatasetKind.DERIVATIVE else end


def _whole_transactions(snapshot: Snapshot, end: int) -> int:
    """The end of the last transaction that ends at or before this offset; reads no more blocks than one of them has."""
    slices = snapshot.slices
    ends = slices.column("end").to_numpy()
    for i in range(int(np.searchsorted(ends, end, side="right")) - 1, -1, -1):
        if int(ends[i]) == snapshot.next_offset:
            return int(ends[i])
        block_hash = Multihash(SHA3_256, slices.column("block")[i].as_py())
        event = read_block(block_hash, snapshot.objects.get_block(block_hash)).event
        if not isinstance(event, ExecuteTransform) or ends_transaction(event):
            return int(ends[i])
    return 0


def _point(snapshot: Snapshot, name: str, as_of: AsOf) -> int:
    match as_of:
        case bool():
            raise _bad(name, as_of, "give an offset, a block hash or a time")
        case int():
            if not -1 <= as_of < snapshot.next_offset:
                last = snapshot.next_offset - 1
                raise _bad(name, as_of, f"offsets go from 0 to {last}" if last >= 0 else "it has no records yet")
            return as_of + 1
        case Multihash():
            return _end_at_block(snapshot, name, as_of)
        case datetime() if as_of == as_of:
            return _end_at_time(snapshot, to_nanos(as_of))
        case str():
            return _end_at_text(snapshot, name, as_of)
        case _:
            raise _bad(name, as_of, "give an offset, a block hash or a time")


def _end_at_text(snapshot: Snapshot, name: str, as_of: str) -> int:
    try:
        return _end_at_block(snapshot, name, Multihash.parse(as_of))
    except BadHash:
        pass
    if _SHORT_HASH.fullmatch(as_of) and (end := _end_where(snapshot, lambda block: block.short == as_of)) is not None:
        return end
    if as_of.isdigit():
        return _point(snapshot, name, int(as_of))
    try:
        return _end_at_time(snapshot, to_nanos(datetime.fromisoformat(as_of)))
    except ValueError:
        pass
    raise _bad(name, as_of, "give an offset, a block's hash as the log shows it, or a time such as 2026-11-15T12:00Z")


def _end_at_block(snapshot: Snapshot, name: str, wanted: Multihash) -> int:
    end = _end_where(snapshot, lambda block: block == wanted)
    if end is None:
        raise _bad(name, wanted.short, "no block of this dataset's chain has this hash: see its log")
    return end


def _end_where(snapshot: Snapshot, is_wanted: Callable[[Multihash], bool]) -> int | None:
    """The end as of the newest block that is wanted: by the index if it has data, else by walking the chain."""
    slices = snapshot.slices
    for i, digest in enumerate(slices.column("block").to_pylist()):
        if is_wanted(Multihash(SHA3_256, digest)):
            return int(slices.column("end")[i].as_py())
    for block_hash, _, block in walk_back(snapshot.objects.get_block, snapshot.head):
        if is_wanted(block_hash):
            event = block.event
            if isinstance(event, AddData | ExecuteTransform):
                last = last_offset(event)
                return 0 if last is None else last + 1
            earlier = slices.filter(pc.less(slices.column("sequence_number"), block.sequence_number))
            return int(earlier.column("end")[-1].as_py()) if earlier.num_rows else 0
    return None


def _end_at_time(snapshot: Snapshot, nanos: int) -> int:
    times = snapshot.slices.column("system_time").to_numpy()
    count = int(np.searchsorted(times, nanos, side="right"))
    return int(snapshot.slices.column("end")[count - 1].as_py()) if count else 0


def purge_end(snapshot: Snapshot, name: str, before: int | str | date | datetime) -> int:
    """The first offset that a purge keeps: whole slices only, all of whose records lie before the given point."""
    slices = snapshot.slices
    match before:
        case bool():
            raise _bad(name, before, "purge before an offset or a time")
        case int():
            kept = pc.greater(slices.column("end"), max(min(before, snapshot.next_offset), 0))
        case _:
            micros = moment(name, before) // 1000
            kept = pc.fill_null(pc.greater_equal(slices.column("event_max"), micros), True)
    position: Any = pc.index(kept, True)
    first_kept = position.as_py()
    if first_kept < 0:
        return snapshot.next_offset
    return int(slices.column("start")[first_kept].as_py())


def moment(name: str, given: object) -> int:
    """A time, date or text such as 2026-11-15T12:00:00Z in nanoseconds since the epoch."""
    match given:
        case date() if given != given:  # NaT of pandas is a date that equals nothing
            pass
        case datetime():
            return to_nanos(given)
        case date():
            return to_nanos(datetime(given.year, given.month, given.day))
        case str():
            with suppress(ValueError):
                return to_nanos(datetime.fromisoformat(given))
    raise _bad(name, given, "give a time such as 2026-11-15 or 2026-11-15T12:00:00Z")


def _bad(name: str, as_of: object, hint: str) -> BadAsOf:
    return BadAsOf(f"dataset {name!r} has no point {as_of!r}", hint=hint)
