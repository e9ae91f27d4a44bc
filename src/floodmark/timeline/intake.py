"""Intake: new slices of the ledger as sorted pieces, by partition.

A slice that is in event-time order already is pointed at where it lies. Others, as those of keyed datasets, are sorted
into a file of the timeline's own, without the records that are dead by now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.ledger.keys.records import I64
from floodmark.ledger.layout import Layout
from floodmark.ledger.merge.batch import CORRECT_FROM, RETRACT
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.selection import NOBODY
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.timeline import partitions, planner, tasks
from floodmark.timeline.errors import UnreadablePiece
from floodmark.timeline.gathering import gathered
from floodmark.timeline.objects import TimelineObjects
from floodmark.timeline.own_writing import Stretch, pieces_of, write_groups
from floodmark.timeline.pieces import BEGINNING, END, How, Piece
from floodmark.timeline.places import micros, order, time_column
from floodmark.timeline.settings import Settings
from floodmark.timeline.sources import PieceFiles, RowGroup

STEP_ROWS = 16_000_000
"""So many records are taken in at once, or one slice that has more."""

Stretches = dict[int, tuple[Piece, ...]]
"""The pieces of one slice, by the start of their partition."""


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
    """The records of some slices: per partition and slice, pieces in order that do not overlap."""

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


@dataclass(frozen=True)
class TakenIn:
    """What one slice became."""

    stretches: Stretches
    arrivals: dict[int, Arrival]
    killed_times: I64
    bytes_written: int


def incoming(
    name: str,
    snapshot: Snapshot,
    layout: Layout,
    settings: Settings,
    applied: int,
    dead: I64,
    runtime: Runtime,
    version: int,
) -> Intake | None:
    """The next records from offset `applied` on, `STEP_ROWS` at most, as pieces; None when there are none.

    `dead` are those of the snapshot, and `version` is that of the root which will have the pieces.
    """
    chosen = _next_slices(snapshot, applied)
    if chosen.num_rows == 0:
        return None
    rows = {column: chosen.column(column).to_pylist() for column in ("physical", "start", "end", "size", "block")}
    objects, is_keyed = TimelineObjects(snapshot.objects), strategy_of(snapshot.state).is_keyed
    work = []
    for physical, start, end, size in zip(rows["physical"], rows["start"], rows["end"], rows["size"], strict=True):
        file = objects.file(snapshot.objects.data_key(Multihash(SHA3_256, physical)))
        among = dead[slice(*np.searchsorted(dead, [start, end]))]
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
    last = int(np.searchsorted(ends, starts[first] + STEP_ROWS, side="right"))
    return slices.slice(first, max(last - first, 1))


def _rows(task: IntakeTask) -> int:
    return task.end - task.start


def _together(taken: Sequence[TakenIn], work: Sequence[IntakeTask], block: str, size: int) -> Intake:
    found: defaultdict[int, list[tuple[Piece, ...]]] = defaultdict(list)
    arrivals: defaultdict[int, Arrival] = defaultdict(Arrival)
    for one in taken:
        for start, pieces in one.stretches.items():
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
    positions = order(times, offsets)
    if positions is None:
        return TakenIn(_referenced(task, groups, times, offsets), arrivals, killed, 0)
    living = np.ones(len(times), np.bool_)
    living[task.dead - task.start] = False
    positions = positions[living[positions]]
    if len(positions) == 0:
        return TakenIn({}, arrivals, killed, 0)
    stretches, size = _sorted_copy(task, files, whole, times[positions], offsets[positions], positions)
    written = {at: Arrival(bytes_written=sum(p.size for p in pieces)) for at, pieces in stretches.items()}
    arrivals = {at: arrival + written.get(at, Arrival()) for at, arrival in arrivals.items()}
    return TakenIn(stretches, arrivals, killed, size)


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


def _by_partition(task: IntakeTask, pieces: Sequence[Piece]) -> Stretches:
    firsts = np.array([p.first.time for p in pieces], np.int64)
    found: defaultdict[int, list[Piece]] = defaultdict(list)
    for at, piece in zip(partitions.starts(firsts, task.settings.partition_by).tolist(), pieces, strict=True):
        found[at].append(piece)
    return {at: tuple(some) for at, some in found.items()}


def _referenced(task: IntakeTask, groups: Sequence[RowGroup], times: I64, offsets: I64) -> Stretches:
    """Pieces of the slice itself, but for those that hold nothing but dead records."""
    ends = np.cumsum([0, *(g.rows for g in groups)], dtype=np.int64)
    bounds = sorted({*ends.tolist(), *_partition_bounds(task, times)})
    stretches: list[Stretch] = []
    for lo, hi in pairwise(bounds):
        number = int(np.searchsorted(ends, lo, side="right")) - 1
        inner = [lo + cut for cut in planner.cuts(times[lo:hi], task.settings.row_group_size)]
        for first, last in pairwise([lo, *inner, hi]):
            stretches.append(Stretch(number, first, last, first - int(ends[number])))
    made = pieces_of(task.file, groups, stretches, times, offsets, How.SLICE, task.version)
    # Here offsets ascend with places, so each piece has all offsets between its first and its last.
    low = np.searchsorted(task.dead, np.array([p.offset_min for p in made], np.int64))
    high = np.searchsorted(task.dead, np.array([p.offset_max + 1 for p in made], np.int64))
    made = tuple(replace(p, dead=dead) for p, dead in zip(made, (high - low).tolist(), strict=True))
    return _by_partition(task, [p for p in made if p.dead < p.rows])


def _sorted_copy(
    task: IntakeTask, files: PieceFiles, whole: Sequence[Piece], times: I64, offsets: I64, positions: I64
) -> tuple[Stretches, int]:
    """A file of the rows at these positions, and its pieces."""
    stretches = packed(_partition_bounds(task, times), times, task.settings.row_group_size)
    last = {s.row_group: s.hi for s in stretches}
    bounds = [0, *(last[number] for number in sorted(last))]
    names = task.layout.slice_schema.names
    tables = [files.read(piece, names) for piece in whole]
    rows: Iterator[pa.Table] = (gathered(tables, positions[lo:hi]) for lo, hi in pairwise(bounds))
    made = write_groups(task.objects, task.layout, rows)
    pieces = pieces_of(made.name, made.groups, stretches, times, offsets, How.SORTED, task.version)
    return _by_partition(task, pieces), made.size


def packed(bounds: Sequence[int], times: I64, most: int) -> list[Stretch]:
    """Sorted rows as stretches of row groups: large partitions have their own, small neighbours share one."""
    stretches: list[Stretch] = []
    group, begins, is_open = -1, 0, False
    for lo, hi in pairwise(bounds):
        is_small = hi - lo < max(most // 4, 1)
        if is_small and is_open and hi - begins <= most:
            stretches.append(Stretch(group, lo, hi, lo - begins))
            continue
        for first, last in pairwise([lo, *(lo + cut for cut in planner.cuts(times[lo:hi], most)), hi]):
            group, begins = group + 1, first
            stretches.append(Stretch(group, first, last))
        is_open = is_small
    return stretches
