"""Intake: new slices of the ledger as sorted pieces, by partition.

A slice that is in event-time order already is pointed at where it lies. Others, as those of keyed datasets, are sorted
into a file of the timeline's own, without the records that are dead by now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.ledger.layout import Layout
from floodmark.ledger.merge.batch import CORRECT_FROM, RETRACT
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.selection import NOBODY
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.storage.arrays import I64
from floodmark.timeline.change import tasks
from floodmark.timeline.errors import UnreadablePiece
from floodmark.timeline.order import partitions
from floodmark.timeline.order.pieces import BEGINNING, END, How, Piece
from floodmark.timeline.order.places import alive, micros, order, time_column
from floodmark.timeline.plan import planner
from floodmark.timeline.reading.gathering import gathered
from floodmark.timeline.reading.sources import PieceFiles
from floodmark.timeline.settings import Settings
from floodmark.timeline.stored.footers import RowGroup
from floodmark.timeline.stored.objects import TimelineObjects
from floodmark.timeline.stored.own_writing import GroupRows, pieces_of, write_groups
from floodmark.timeline.stored.packed_offsets import packed, unpacked

STEP_ROWS = 16_000_000
STEP_BYTES = 8 << 30
"""So many records, or bytes of them, are taken in at once, or one slice that has more."""

SORT_BYTES = 512 << 20
"""About so much of a slice is sorted at once, in memory; one that has more becomes several sorted copies."""

DeadWithin: TypeAlias = Callable[[Sequence[tuple[int, int]]], I64]
"""The dead offsets, sorted, in some ranges [low, high) of offsets, which ascend and are apart."""

ByPartition = dict[int, tuple[Piece, ...]]
"""Sorted pieces by the start of their partition."""


@dataclass(frozen=True)
class Arrival:
    """What came into a partition."""

    rows: int = 0  # records, the dead ones included
    bytes_in: int = 0  # of those records in the ledger's slices
    bytes_written: int = 0

    def __add__(self, other: Arrival) -> Arrival:
        return Arrival(self.rows + other.rows, self.bytes_in + other.bytes_in, self.bytes_written + other.bytes_written)


@dataclass(frozen=True)
class Intake:
    """The records of some slices: per partition and sorted part, pieces in order that do not overlap."""

    end: int  # the offset after the last record
    block: str  # of the last slice, in hex
    partitions: dict[int, list[tuple[Piece, ...]]]
    arrivals: dict[int, Arrival]
    killed_times: I64  # sorted: when the records happened that these ones took out of older slices
    rows: int
    bytes_in: int
    bytes_written: int  # of files


@dataclass(frozen=True)
class IntakeTask:
    """One slice to be looked at, and sorted if need be, wherever that happens."""

    objects: TimelineObjects
    layout: Layout
    file: str
    start: int
    end: int
    size: int
    settings: Settings
    is_keyed: bool
    version: int
    dead: I64 = field(default_factory=lambda: NOBODY, compare=False)  # those of this slice, sorted

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "dead": packed(self.dead)}  # a keyed dataset may have very many

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, dead=unpacked(state["dead"]))


@dataclass(frozen=True)
class TakenIn:
    """What one slice became: one sorted part, or several."""

    parts: tuple[ByPartition, ...]
    arrivals: dict[int, Arrival]
    killed_times: I64
    bytes_written: int


def incoming(
    name: str,
    snapshot: Snapshot,
    layout: Layout,
    settings: Settings,
    applied: int,
    dead: DeadWithin,
    runtime: Runtime,
    version: int,
) -> Intake | None:
    """The next records from offset `applied` on, as many as one step takes, as pieces; None when there are none.

    `dead` tells those of the snapshot, and `version` is that of the root which will have the pieces.
    """
    chosen = _next_slices(snapshot, applied)
    if chosen.num_rows == 0:
        return None
    rows = {column: chosen.column(column).to_pylist() for column in ("physical", "start", "end", "size", "block")}
    objects, is_keyed = TimelineObjects(snapshot.objects), strategy_of(snapshot.state).is_keyed
    work = []
    died = dead([(rows["start"][0], rows["end"][-1])])
    for physical, start, end, size in zip(rows["physical"], rows["start"], rows["end"], rows["size"], strict=True):
        file = objects.file(snapshot.objects.data_key(Multihash(SHA3_256, physical)))
        among = died[slice(*np.searchsorted(died, [start, end]))]
        work.append(IntakeTask(objects, layout, file, start, end, size, settings, is_keyed, version, among))
    total = sum(rows["size"])
    taken = tasks.run_tasks(f"sorting {name}", work, take_in, runtime, size=total, rows=_rows)
    return _together(taken, work, rows["block"][-1].hex(), total)


def _next_slices(snapshot: Snapshot, applied: int) -> pa.Table:
    """The rows of the slice index that come next: whole slices, at least one if there is any."""
    slices = snapshot.slices
    starts, ends = slices.column("start").to_numpy(), slices.column("end").to_numpy()
    first = int(np.searchsorted(starts, applied))
    if first == len(starts):
        return slices.slice(0, 0)
    by_rows = int(np.searchsorted(ends, starts[first] + STEP_ROWS, side="right")) - first
    by_size = int(np.searchsorted(np.cumsum(slices.column("size").to_numpy()[first:]), STEP_BYTES, side="right"))
    return slices.slice(first, max(min(by_rows, by_size), 1))


def _rows(task: IntakeTask) -> int:
    return task.end - task.start


def _together(taken: Sequence[TakenIn], work: Sequence[IntakeTask], block: str, size: int) -> Intake:
    found: defaultdict[int, list[tuple[Piece, ...]]] = defaultdict(list)
    arrivals: defaultdict[int, Arrival] = defaultdict(Arrival)
    for one in taken:
        for part in one.parts:
            for start, pieces in part.items():
                found[start].append(pieces)
        for start, arrival in one.arrivals.items():
            arrivals[start] += arrival
    killed = np.sort(np.concatenate([one.killed_times for one in taken]))
    # Each of these records is dead itself; the other dead of these slices are victims that came in with them.
    at_once = sum(len(task.dead) for task in work) - len(killed)
    return Intake(
        end=work[-1].end,
        block=block,
        partitions=dict(found),
        arrivals=dict(arrivals),
        killed_times=_spread(killed, len(killed) - at_once),
        rows=sum(map(_rows, work)),
        bytes_in=size,
        bytes_written=sum(one.bytes_written for one in taken),
    )


def _spread(values: I64, count: int) -> I64:
    """So many of the values, evenly chosen: which of them hit older records is not known, only how many."""
    if count >= len(values):
        return values
    return values[np.linspace(0, len(values) - 1, max(count, 0)).astype(np.int64)]


def take_in(task: IntakeTask) -> TakenIn:
    """One slice as sorted pieces: where it lies if it is in order, else from a copy that is put into the store."""
    files = PieceFiles(task.objects, task.layout)
    groups = files.row_groups(task.file)
    _check_rows(task, sum(g.rows for g in groups))
    whole = [_whole(task, number, group) for number, group in enumerate(groups)]
    times = np.concatenate([_times(files, piece) for piece in whole])
    offsets = np.arange(task.start, task.end)
    killed = _killed_times(files, whole, times) if task.is_keyed else NOBODY
    arrivals = _arrivals(task, times)
    if bool(np.all(times[1:] >= times[:-1])):  # offsets ascend in any case
        return TakenIn((_referenced(task, groups, times, offsets),), arrivals, killed, 0)
    parts: list[ByPartition] = []
    size = 0
    for lo, hi, tables in _portions(files, whole):
        rows = _living_in_order(task, times[lo:hi], offsets[lo:hi])
        if len(rows):
            part, bytes_written = _sorted_copy(task, tables, times[lo:hi][rows], offsets[lo:hi][rows], rows)
            parts.append(part)
            size += bytes_written
    for at, pieces in ((at, pieces) for part in parts for at, pieces in part.items()):
        arrivals[at] += Arrival(bytes_written=sum(p.size for p in pieces))
    return TakenIn(tuple(parts), arrivals, killed, size)


def _portions(files: PieceFiles, whole: Sequence[Piece]) -> Iterator[tuple[int, int, list[pa.Table]]]:
    """The rows [lo, hi) of a slice and their tables, so many row groups at a time as memory is meant to hold."""
    names = files.layout.slice_schema.names
    tables: list[pa.Table] = []
    lo = hi = 0
    for number, piece in enumerate(whole, 1):
        tables.append(files.read(piece, names))
        hi += piece.rows
        if number == len(whole) or sum(t.nbytes for t in tables) >= SORT_BYTES:
            yield lo, hi, tables
            lo, tables = hi, []


def _living_in_order(task: IntakeTask, times: I64, offsets: I64) -> I64:
    """Which of these rows live, in the order of their places."""
    positions = order(times, offsets)
    ordered = np.arange(len(times)) if positions is None else positions
    living = alive(offsets[ordered], task.dead, 0)
    return ordered if living is None else ordered[living]


def _check_rows(task: IntakeTask, found: int) -> None:
    if found != _rows(task):
        raise UnreadablePiece(
            f"the slice {task.file!r} in {task.objects.dataset.folder!r} has {found} records, not {_rows(task)}",
            hint="it was changed or damaged: verify() says more",
            file=task.file,
        )


def _whole(task: IntakeTask, number: int, group: RowGroup) -> Piece:
    """A row group of the slice, whose places are not known yet."""
    return Piece(
        file=task.file,
        row_group=number,
        row_lo=0,
        row_hi=group.rows,
        group_rows=group.rows,
        first=BEGINNING,
        last=END,
        offset_min=task.start,
        offset_max=task.end - 1,
        size=group.size,
        how=How.SLICE,
        since=task.version,
    )


def _times(files: PieceFiles, piece: Piece) -> I64:
    name = time_column(files.layout)
    return micros(files.read(piece, (name,)).column(name))


def _killed_times(files: PieceFiles, whole: Sequence[Piece], times: I64) -> I64:
    """The times of records that take older ones out: they repeat what these had."""
    name = files.layout.vocab.op
    ops = np.concatenate([files.read(piece, (name,)).column(name).to_numpy() for piece in whole])
    killed: I64 = times[(ops == RETRACT) | (ops == CORRECT_FROM)]
    return killed


def _arrivals(task: IntakeTask, times: I64) -> dict[int, Arrival]:
    at, counts = np.unique(partitions.starts(times, task.settings.partition_by), return_counts=True)
    shares = task.size * counts // max(len(times), 1)
    return {
        start: Arrival(rows, size)
        for start, rows, size in zip(at.tolist(), counts.tolist(), shares.tolist(), strict=True)
    }


def _partition_bounds(task: IntakeTask, times: I64) -> list[int]:
    """The rows at which partitions begin among sorted times, and the number of rows."""
    at = partitions.starts(times, task.settings.partition_by)
    return [0, *(np.flatnonzero(at[1:] != at[:-1]) + 1).tolist(), len(times)]


def _by_partition(task: IntakeTask, pieces: Sequence[Piece]) -> ByPartition:
    firsts = np.array([p.first.time for p in pieces], np.int64)
    found: defaultdict[int, list[Piece]] = defaultdict(list)
    for at, piece in zip(partitions.starts(firsts, task.settings.partition_by).tolist(), pieces, strict=True):
        found[at].append(piece)
    return {at: tuple(some) for at, some in found.items()}


def _referenced(task: IntakeTask, groups: Sequence[RowGroup], times: I64, offsets: I64) -> ByPartition:
    """Pieces of the slice itself, but for those that hold nothing but dead records."""
    ends = np.cumsum([0, *(g.rows for g in groups)], dtype=np.int64)
    bounds = sorted({*ends.tolist(), *_partition_bounds(task, times)})
    stretches: list[GroupRows] = []
    for lo, hi in pairwise(bounds):
        number = int(np.searchsorted(ends, lo, side="right")) - 1
        inner = [lo + cut for cut in planner.cuts(times[lo:hi], task.settings.row_group_size)]
        for first, last in pairwise([lo, *inner, hi]):
            stretches.append(GroupRows(number, first, last, first - int(ends[number])))
    made = pieces_of(task.file, groups, stretches, times, offsets, How.SLICE, task.version)
    # Here offsets ascend with places, so each piece has all offsets between its first and its last.
    low = np.searchsorted(task.dead, np.array([p.offset_min for p in made], np.int64))
    high = np.searchsorted(task.dead, np.array([p.offset_max + 1 for p in made], np.int64))
    made = tuple(replace(p, dead=dead) for p, dead in zip(made, (high - low).tolist(), strict=True))
    return _by_partition(task, [p for p in made if p.dead < p.rows])


def _sorted_copy(
    task: IntakeTask, tables: Sequence[pa.Table], times: I64, offsets: I64, positions: I64
) -> tuple[ByPartition, int]:
    """A file of the rows at these positions, and its pieces."""
    stretches = shared_groups(_partition_bounds(task, times), times, task.settings.row_group_size)
    last = {s.row_group: s.hi for s in stretches}
    bounds = [0, *(last[number] for number in sorted(last))]
    rows: Iterator[pa.Table] = (gathered(tables, positions[lo:hi]) for lo, hi in pairwise(bounds))
    made = write_groups(task.objects, task.layout, rows)
    pieces = pieces_of(made.name, made.groups, stretches, times, offsets, How.SORTED, task.version)
    return _by_partition(task, pieces), made.size


def shared_groups(bounds: Sequence[int], times: I64, most: int) -> list[GroupRows]:
    """Sorted rows as stretches of row groups: large partitions have their own, small neighbours share one."""
    stretches: list[GroupRows] = []
    group, begins, is_open = -1, 0, False
    for lo, hi in pairwise(bounds):
        is_small = hi - lo < max(most // 4, 1)
        if is_small and is_open and hi - begins <= most:
            stretches.append(GroupRows(group, lo, hi, lo - begins))
            continue
        for first, last in pairwise([lo, *(lo + cut for cut in planner.cuts(times[lo:hi], most)), hi]):
            group, begins = group + 1, first
            stretches.append(GroupRows(group, first, last))
        is_open = is_small
    return stretches
