"""Intake: turn new slices of the ledger into sorted pieces by partition.

A slice that is already in event-time order is referenced in the ledger. Other slices, such as those of keyed datasets,
are sorted into the timeline's own files, without dead records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.engine.session import Runtime
from floodmark.errors import UnreadablePiece
from floodmark.ledger.schema import Layout
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.rows.classify import CORRECT_FROM, RETRACT
from floodmark.storage.arrays import I64
from floodmark.timeline import planner, tasks
from floodmark.timeline import settings as timeline_settings
from floodmark.timeline.bundles import RowGroup
from floodmark.timeline.interleave import take_rows
from floodmark.timeline.manifest import TimelineObjects, pack_offsets, unpack_offsets
from floodmark.timeline.piece_files import GroupRows, PieceFiles, make_pieces, write_groups
from floodmark.timeline.pieces import (
    MAX_POINT,
    MIN_POINT,
    Piece,
    PieceOrigin,
    live_mask,
    micros,
    sort_positions,
    time_column,
)
from floodmark.timeline.settings import Settings

STEP_ROWS = 16_000_000
STEP_BYTES = 8 << 30
"""The most records and bytes that one step takes in, unless a single slice is larger."""

SORT_BYTES = 512 << 20
"""About this much of a slice is sorted in memory at once. A larger slice becomes several sorted copies."""

DeadLookup: TypeAlias = Callable[[Sequence[tuple[int, int]]], I64]
"""The sorted dead offsets within some ranges [low, high) of offsets. The ranges ascend and do not touch."""

ByPartition = dict[int, tuple[Piece, ...]]
"""Sorted pieces by the start of their partition."""


@dataclass(frozen=True)
class Arrival:
    """The records that came into a partition, in figures."""

    rows: int = 0  # records, including dead ones
    bytes_in: int = 0  # their bytes in the ledger's slices
    bytes_written: int = 0

    def __add__(self, other: Arrival) -> Arrival:
        return Arrival(self.rows + other.rows, self.bytes_in + other.bytes_in, self.bytes_written + other.bytes_written)


@dataclass(frozen=True)
class TimelineIntake:
    """The records of some slices: for each partition its sorted parts, each a tuple of pieces that do not overlap."""

    end: int  # the offset after the last record
    block: str  # of the last slice, in hex
    partitions: dict[int, list[tuple[Piece, ...]]]
    arrivals: dict[int, Arrival]
    killed_times: I64  # sorted event times of the records in older slices that these records replace or retract
    rows: int
    bytes_in: int
    bytes_written: int  # of files


@dataclass(frozen=True)
class IntakeTask:
    """One slice to check and, if needed, sort. It can be pickled and run on any worker."""

    objects: TimelineObjects
    layout: Layout
    file: str
    start: int
    end: int
    size: int
    settings: Settings
    is_keyed: bool
    version: int
    dead: I64 = field(default_factory=lambda: NO_OFFSETS, compare=False)  # sorted dead offsets of this slice

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "dead": pack_offsets(self.dead)}  # a keyed dataset may have very many

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, dead=unpack_offsets(state["dead"]))


@dataclass(frozen=True)
class SortedSlice:
    """The result of one slice: one or more sorted parts."""

    parts: tuple[ByPartition, ...]
    arrivals: dict[int, Arrival]
    killed_times: I64
    bytes_written: int


def take_next_slices(
    name: str,
    snapshot: Snapshot,
    layout: Layout,
    settings: Settings,
    applied: int,
    dead: DeadLookup,
    runtime: Runtime,
    version: int,
) -> TimelineIntake | None:
    """The next records from offset `applied` on as pieces, as many as one step takes; None if there are none.

    `dead` looks up dead offsets as of the snapshot. `version` is the version of the root that will name the pieces.
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
    sorted_slices = tasks.run_tasks(f"sorting {name}", work, sort_slice, runtime, size=total, rows=_task_rows)
    return _collect(sorted_slices, work, rows["block"][-1].hex(), total)


def _next_slices(snapshot: Snapshot, applied: int) -> pa.Table:
    """The next rows of the slice index: whole slices, at least one if any is left."""
    slices = snapshot.slices
    starts, ends = slices.column("start").to_numpy(), slices.column("end").to_numpy()
    first = int(np.searchsorted(starts, applied))
    if first == len(starts):
        return slices.slice(0, 0)
    by_rows = int(np.searchsorted(ends, starts[first] + STEP_ROWS, side="right")) - first
    by_size = int(np.searchsorted(np.cumsum(slices.column("size").to_numpy()[first:]), STEP_BYTES, side="right"))
    return slices.slice(first, max(min(by_rows, by_size), 1))


def _task_rows(task: IntakeTask) -> int:
    return task.end - task.start


def _collect(sorted_slices: Sequence[SortedSlice], work: Sequence[IntakeTask], block: str, size: int) -> TimelineIntake:
    found: defaultdict[int, list[tuple[Piece, ...]]] = defaultdict(list)
    arrivals: defaultdict[int, Arrival] = defaultdict(Arrival)
    for one in sorted_slices:
        for part in one.parts:
            for start, pieces in part.items():
                found[start].append(pieces)
        for start, arrival in one.arrivals.items():
            arrivals[start] += arrival
    killed = np.sort(np.concatenate([one.killed_times for one in sorted_slices]))
    # Each of these records is dead itself. The other dead records of these slices were killed by records among them.
    at_once = sum(len(task.dead) for task in work) - len(killed)
    return TimelineIntake(
        end=work[-1].end,
        block=block,
        partitions=dict(found),
        arrivals=dict(arrivals),
        killed_times=_sample_evenly(killed, len(killed) - at_once),
        rows=sum(map(_task_rows, work)),
        bytes_in=size,
        bytes_written=sum(one.bytes_written for one in sorted_slices),
    )


def _sample_evenly(values: I64, count: int) -> I64:
    """`count` of the values, evenly chosen. Only the number of hits in older records is known, not which ones."""
    if count >= len(values):
        return values
    return values[np.linspace(0, len(values) - 1, max(count, 0)).astype(np.int64)]


def sort_slice(task: IntakeTask) -> SortedSlice:
    """One slice as sorted pieces: of the slice itself if it is in order, else of a sorted copy in the store."""
    files = PieceFiles(task.objects, task.layout)
    groups = files.row_groups(task.file)
    _check_rows(task, sum(g.rows for g in groups))
    whole = [_row_group_piece(task, number, group) for number, group in enumerate(groups)]
    times = np.concatenate([_times(files, piece) for piece in whole])
    offsets = np.arange(task.start, task.end)
    killed = _killed_times(files, whole, times) if task.is_keyed else NO_OFFSETS
    arrivals = _arrivals(task, times)
    if bool(np.all(times[1:] >= times[:-1])):  # offsets ascend in any case
        return SortedSlice((_referenced(task, groups, times, offsets),), arrivals, killed, 0)
    parts: list[ByPartition] = []
    size = 0
    for lo, hi, tables in _portions(files, whole):
        rows = _live_in_order(task, times[lo:hi], offsets[lo:hi])
        if len(rows):
            part, bytes_written = _sorted_copy(task, tables, times[lo:hi][rows], offsets[lo:hi][rows], rows)
            parts.append(part)
            size += bytes_written
    for at, pieces in ((at, pieces) for part in parts for at, pieces in part.items()):
        arrivals[at] += Arrival(bytes_written=sum(p.size for p in pieces))
    return SortedSlice(tuple(parts), arrivals, killed, size)


def _portions(files: PieceFiles, whole: Sequence[Piece]) -> Iterator[tuple[int, int, list[pa.Table]]]:
    """Portions of a slice: rows [lo, hi) and their tables, about `SORT_BYTES` at a time."""
    names = files.layout.slice_schema.names
    tables: list[pa.Table] = []
    lo = hi = 0
    for number, piece in enumerate(whole, 1):
        tables.append(files.read(piece, names))
        hi += piece.rows
        if number == len(whole) or sum(t.nbytes for t in tables) >= SORT_BYTES:
            yield lo, hi, tables
            lo, tables = hi, []


def _live_in_order(task: IntakeTask, times: I64, offsets: I64) -> I64:
    """The positions of the live rows, in timeline order."""
    positions = sort_positions(times, offsets)
    ordered = np.arange(len(times)) if positions is None else positions
    live = live_mask(offsets[ordered], task.dead, 0)
    return ordered if live is None else ordered[live]


def _check_rows(task: IntakeTask, found: int) -> None:
    if found != _task_rows(task):
        raise UnreadablePiece(
            f"the slice {task.file!r} in {task.objects.dataset.folder!r} has {found} records, not {_task_rows(task)}",
            hint="the slice was changed or damaged: run verify() for details",
            file=task.file,
        )


def _row_group_piece(task: IntakeTask, number: int, group: RowGroup) -> Piece:
    """A row group of the slice as a piece with unknown bounds."""
    return Piece(
        file=task.file,
        row_group=number,
        row_lo=0,
        row_hi=group.rows,
        group_rows=group.rows,
        first=MIN_POINT,
        last=MAX_POINT,
        offset_min=task.start,
        offset_max=task.end - 1,
        size=group.size,
        how=PieceOrigin.SLICE,
        since=task.version,
    )


def _times(files: PieceFiles, piece: Piece) -> I64:
    name = time_column(files.layout)
    return micros(files.read(piece, (name,)).column(name))


def _killed_times(files: PieceFiles, whole: Sequence[Piece], times: I64) -> I64:
    """The event times of retracting and correcting records: each repeats the time of the record that it kills."""
    name = files.layout.vocab.op
    ops = np.concatenate([files.read(piece, (name,)).column(name).to_numpy() for piece in whole])
    killed: I64 = times[(ops == RETRACT) | (ops == CORRECT_FROM)]
    return killed


def _arrivals(task: IntakeTask, times: I64) -> dict[int, Arrival]:
    at, counts = np.unique(timeline_settings.partition_starts(times, task.settings.partition_by), return_counts=True)
    shares = task.size * counts // max(len(times), 1)
    return {
        start: Arrival(rows, size)
        for start, rows, size in zip(at.tolist(), counts.tolist(), shares.tolist(), strict=True)
    }


def _partition_bounds(task: IntakeTask, times: I64) -> list[int]:
    """The rows at which partitions begin among sorted times, and the total number of rows."""
    at = timeline_settings.partition_starts(times, task.settings.partition_by)
    return [0, *(np.flatnonzero(at[1:] != at[:-1]) + 1).tolist(), len(times)]


def _by_partition(task: IntakeTask, pieces: Sequence[Piece]) -> ByPartition:
    firsts = np.array([p.first.time for p in pieces], np.int64)
    found: defaultdict[int, list[Piece]] = defaultdict(list)
    for at, piece in zip(
        timeline_settings.partition_starts(firsts, task.settings.partition_by).tolist(), pieces, strict=True
    ):
        found[at].append(piece)
    return {at: tuple(some) for at, some in found.items()}


def _referenced(task: IntakeTask, groups: Sequence[RowGroup], times: I64, offsets: I64) -> ByPartition:
    """Pieces of the slice itself, without those that hold only dead records."""
    ends = np.cumsum([0, *(g.rows for g in groups)], dtype=np.int64)
    bounds = sorted({*ends.tolist(), *_partition_bounds(task, times)})
    stretches: list[GroupRows] = []
    for lo, hi in pairwise(bounds):
        number = int(np.searchsorted(ends, lo, side="right")) - 1
        inner = [lo + cut for cut in planner.cuts(times[lo:hi], task.settings.row_group_size)]
        for first, last in pairwise([lo, *inner, hi]):
            stretches.append(GroupRows(number, first, last, first - int(ends[number])))
    pieces = make_pieces(task.file, groups, stretches, times, offsets, PieceOrigin.SLICE, task.version)
    # The slice is in order, so each piece has all offsets between its first and its last.
    low = np.searchsorted(task.dead, np.array([p.offset_min for p in pieces], np.int64))
    high = np.searchsorted(task.dead, np.array([p.offset_max + 1 for p in pieces], np.int64))
    pieces = tuple(replace(p, dead=dead) for p, dead in zip(pieces, (high - low).tolist(), strict=True))
    return _by_partition(task, [p for p in pieces if p.dead < p.rows])


def _sorted_copy(
    task: IntakeTask, tables: Sequence[pa.Table], times: I64, offsets: I64, positions: I64
) -> tuple[ByPartition, int]:
    """Write a file of the rows at these positions; its pieces and its size."""
    stretches = shared_groups(_partition_bounds(task, times), times, task.settings.row_group_size)
    last = {s.row_group: s.hi for s in stretches}
    bounds = [0, *(last[number] for number in sorted(last))]
    rows: Iterator[pa.Table] = (take_rows(tables, positions[lo:hi]) for lo, hi in pairwise(bounds))
    file = write_groups(task.objects, task.layout, rows)
    pieces = make_pieces(file.name, file.groups, stretches, times, offsets, PieceOrigin.SORTED, task.version)
    return _by_partition(task, pieces), file.size


def shared_groups(bounds: Sequence[int], times: I64, most: int) -> list[GroupRows]:
    """Sorted rows as stretches of row groups: large partitions get separate row groups, small neighbours share one."""
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
