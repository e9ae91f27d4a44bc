"""Selections: the files that contain an interval of offsets, and the offsets that an `as_of` stands for.

Nothing here reads anything except blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.chain.events import AddData, DatasetKind, ExecuteTransform, last_offset
from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.chain.walk import read_block, walk_back
from floodmark.errors import BadId, BadPosition, RecordsPurged
from floodmark.ledger.commit import ends_transaction
from floodmark.ledger.moments import MissingZone, parse_moment, to_nanos
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.position import Position, first_after, offset_of
from floodmark.ledger.snapshot import CarriedRecords, Snapshot
from floodmark.storage.arrays import I64

_SHORT_HASH = re.compile(r"[0-9a-f]{8}")

AsOf = int | str | date | datetime | Multihash | None


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of records in offset order: a slice, or a folded file with the live records of several slices."""

    key: str
    start: int
    end: int
    rows: int
    size: int

    @property
    def absent(self) -> int:
        """How many records between start and end it lacks, because they were dead when it was folded."""
        return self.end - self.start - self.rows


NO_OFFSETS: I64 = np.empty(0, np.int64)
NO_OFFSETS.flags.writeable = False


@dataclass(frozen=True)
class Selection:
    """The live records with offsets in [start, end), and the files that contain them, in offset order."""

    start: int
    end: int
    files: tuple[DataFile, ...]
    dead: I64 = field(
        default_factory=lambda: NO_OFFSETS, compare=False
    )  # sorted; may include records that the files already lack
    unfolded: Callable[[], Selection] | None = field(default=None, compare=False, repr=False)
    """Selects the same records from slices only; None without folded files. It is not sent to tasks."""

    @property
    def is_empty(self) -> bool:
        return not self.files

    @property
    def is_whole(self) -> bool:
        """Whether the files contain no record before or after the interval."""
        return self.is_empty or (self.files[0].start >= self.start and self.files[-1].end <= self.end)

    @cached_property
    def dead_rows(self) -> I64:
        """How many dead records each file contains."""
        if len(self.dead) == 0:
            return np.zeros(len(self.files), np.int64)
        starts = np.array([f.start for f in self.files], np.int64)
        ends = np.array([f.end for f in self.files], np.int64)
        absent = np.array([f.absent for f in self.files], np.int64)
        # Dead records stay dead, so all records that a file lacks are among the dead between its start and end.
        counts: I64 = np.searchsorted(self.dead, ends) - np.searchsorted(self.dead, starts) - absent
        return counts

    @property
    def has_dead(self) -> bool:
        """Whether a file contains a record that must be skipped."""
        return bool(self.dead_rows.any())

    def __reduce__(self) -> tuple[Any, ...]:
        # Many selections are sent to tasks. Gaps between dead offsets are small numbers, so they take less space.
        first = self.dead[:1].tolist()
        gaps = np.diff(self.dead)
        smallest = np.min_scalar_type(gaps.max(initial=0))
        return _unpickled, (self.start, self.end, self.files, first, gaps.astype(smallest))

    def part(self, first: int, last: int) -> Selection:
        """The part of the selection in the files [first, last)."""
        files = self.files[first:last]
        return self.of(files, max(self.start, files[0].start), min(self.end, files[-1].end))

    def of(self, files: tuple[DataFile, ...], start: int, end: int) -> Selection:
        """The selection of [start, end) in some of its files, with only the dead records in that interval."""
        low, high = np.searchsorted(self.dead, [start, end])
        return Selection(start, end, files, self.dead[low:high])


def _unpickled(start: int, end: int, files: tuple[DataFile, ...], first: list[int], gaps: Any) -> Selection:
    dead: I64 = np.cumsum(np.concatenate([np.array(first, np.int64), gaps.astype(np.int64)]))
    return Selection(start, end, files, dead)


def select(snapshot: Snapshot, start: int, end: int, folded: Sequence[DataFile] = ()) -> Selection:
    """Select the records with offsets in [start, end): from the folded files, and from slices for the rest."""
    slices = snapshot.slices
    starts, ends = slices.column("start").to_numpy(), slices.column("end").to_numpy()
    erased = snapshot.erased[slice(*np.searchsorted(snapshot.erased, [start, end]))]
    # Offsets have no gaps and slices are in order, so two searches are enough.
    low = int(np.searchsorted(ends, start, side="right"))
    high = int(np.searchsorted(starts, end, side="left"))
    if start >= end or low >= high:
        return Selection(start, start, ())
    is_selected = np.zeros(len(starts), np.bool_)
    is_selected[low:high] = True
    for file in folded:
        first, last = np.searchsorted(starts, [file.start, file.end])
        is_selected[first:last] = False
    rest = slice_files(snapshot.objects, slices.filter(pa.array(is_selected)))
    return Selection(start, end, tuple(sorted([*rest, *folded], key=lambda f: f.start)) if folded else rest, erased)


def slice_files(objects: DatasetObjects, slices: pa.Table) -> tuple[DataFile, ...]:
    """The files of these rows of the slice index."""
    columns = (slices.column(name).to_pylist() for name in ("physical", "start", "end", "size"))
    return tuple(
        DataFile(objects.data_key(Multihash(SHA3_256, digest)), start, end, end - start, size)
        for digest, start, end, size in zip(*columns, strict=True)
    )


def without_carried(selection: Selection, carried: Sequence[CarriedRecords], start: int) -> Selection:
    """The selection without the carried rows that a reader of all records below `start` has read already."""
    known = {one.start for one in carried if one.before <= start}
    if not known:
        return selection
    return replace(selection, files=tuple(f for f in selection.files if f.start not in known))


def select_interval(
    snapshot: Snapshot, name: str, since: int | Position | None, until: int | Position | None
) -> Selection:
    """Select the existing records with offsets in (since, until]. Raises `BadPosition` if `since` is not among them.

    After a position, rows that a purge has carried since it was made are left out. A plain offset does not tell what
    its reader has read.
    """
    start = first_after(snapshot, name, since)
    last = offset_of(snapshot, name, until, "until")
    end = snapshot.next_offset if last is None else min(last + 1, snapshot.next_offset)
    if start < min(snapshot.purged_before, end):
        raise RecordsPurged(
            f"records {start} to {min(snapshot.purged_before, end) - 1} of {name!r} are purged",
            hint=f"read since {snapshot.purged_before - 1}: the first record left is {snapshot.purged_before}",
            purged_before=snapshot.purged_before,
        )
    selection = select(snapshot, start, end)
    if not isinstance(since, Position):
        return selection
    return without_carried(selection, [one for one in snapshot.carried if one.start >= since.records], start)


def readable_offsets(snapshot: Snapshot, name: str, as_of: AsOf) -> tuple[int, int]:
    """The offsets [start, end) of all records that can be read, now or as of a point in the past."""
    end = snapshot.next_offset if as_of is None else end_as_of(snapshot, name, as_of)
    # A purge that carries rows keeps those of the newest state only, so no state before it can be read.
    oldest = max(snapshot.purged_before, snapshot.carried_end - 1)
    if as_of is not None and snapshot.purged_before and end <= oldest:
        raise RecordsPurged(
            f"the state of {name!r} as of {as_of} is purged",
            hint=f"give a later point: the oldest state left ends at offset {oldest}",
            purged_before=snapshot.purged_before,
        )
    return min(snapshot.purged_before, end), end


def end_as_of(snapshot: Snapshot, name: str, as_of: AsOf) -> int:
    """The offset after the last record as of an offset, a block's hash (whole or its last digits) or a time.

    In a derivative, a point inside a transaction stands for the end of the transaction before it.
    """
    end = _point(snapshot, name, as_of)
    return _whole_transactions(snapshot, end) if snapshot.state.dataset_kind is DatasetKind.DERIVATIVE else end


def _whole_transactions(snapshot: Snapshot, end: int) -> int:
    """The end of the last transaction that ends at or before this offset. Reads at most one transaction's blocks."""
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
        case date():  # or a datetime
            return _end_at_time(snapshot, parse_time(name, as_of))
        case str():
            return _end_at_text(snapshot, name, as_of)
        case _:
            raise _bad(name, as_of, "give an offset, a block hash or a time")


def _end_at_text(snapshot: Snapshot, name: str, as_of: str) -> int:
    try:
        return _end_at_block(snapshot, name, Multihash.parse(as_of))
    except BadId:
        pass
    if _SHORT_HASH.fullmatch(as_of) and (end := _end_where(snapshot, lambda block: block.short == as_of)) is not None:
        return end
    if as_of.isdigit():
        return _point(snapshot, name, int(as_of))
    hint = "give an offset, a block's hash as the log shows it, or a time such as 2026-11-15T12:00Z"
    return _end_at_time(snapshot, parse_time(name, as_of, hint=hint))


def _end_at_block(snapshot: Snapshot, name: str, block_hash: Multihash) -> int:
    end = _end_where(snapshot, lambda block: block == block_hash)
    if end is None:
        raise _bad(name, block_hash.short, "give the hash of a block in the dataset's log")
    return end


def _end_where(snapshot: Snapshot, matches: Callable[[Multihash], bool]) -> int | None:
    """The end as of the newest block that matches: from the index if the block has data, else from the chain."""
    slices = snapshot.slices
    for i, digest in enumerate(slices.column("block").to_pylist()):
        if matches(Multihash(SHA3_256, digest)):
            return int(slices.column("end")[i].as_py())
    for block_hash, _, block in walk_back(snapshot.objects.get_block, snapshot.head):
        if matches(block_hash):
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
    """The first offset that a purge keeps. A purge removes whole slices with all records before the given point."""
    slices = snapshot.slices
    match before:
        case bool():
            raise _bad(name, before, "give an offset or a time")
        case int():
            is_kept = pc.greater(slices.column("end"), max(min(before, snapshot.next_offset), 0))
        case _:
            is_plain = snapshot.layout is not None and not snapshot.layout.event_time_has_zone
            micros = parse_time(name, before, in_plain_column=is_plain) // 1000
            is_kept = pc.fill_null(pc.greater_equal(slices.column("event_max"), micros), True)
    position: Any = pc.index(is_kept, True)
    first_kept = position.as_py()
    if first_kept < 0:
        return snapshot.next_offset
    return int(slices.column("start")[first_kept].as_py())


def parse_time(
    name: str,
    given: object,
    *,
    in_plain_column: bool = False,
    hint: str = "give a time such as 2026-11-15 or 2026-11-15T12:00:00Z",
) -> int:
    """A time, a date or text such as 2026-11-15T12:00:00Z as nanoseconds since the epoch."""
    try:
        moment = parse_moment(given, in_plain_column=in_plain_column)
    except MissingZone as error:
        raise BadPosition(f"{error.message} (dataset {name!r})", hint=error.hint) from error
    if moment is None:
        raise _bad(name, given, hint)
    return to_nanos(moment)


def _bad(name: str, as_of: object, hint: str) -> BadPosition:
    return BadPosition(f"dataset {name!r} has no point {as_of!r}", hint=hint)
