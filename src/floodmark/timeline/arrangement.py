"""The arrangement of a partition: which pieces stay, which are rewritten, and the order of both. Pure.

An arrangement has a `MergeJob` wherever a file must still be written. `finished` replaces each with the pieces of
that file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from operator import attrgetter

import numpy as np

from floodmark.storage.arrays import I64
from floodmark.timeline import cost, planner
from floodmark.timeline.cost import NarrowMerge, Stretch
from floodmark.timeline.piece_cuts import (
    ReadTimePoints,
    cut_at,
    cut_at_spans,
    cut_evenly,
    cut_piece,
    remove_range,
    settle,
    span,
)
from floodmark.timeline.pieces import Partition, Piece, TimePoint, WaitingRun, sort_positions

THIN = 32
"""Waiting pieces are cut at the spans of settled ones, unless a part would be smaller than 1/32 of a row group."""


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """Waiting runs that are merged into one run of a higher tier. The jobs are in time order."""

    tier: int
    jobs: tuple[MergeJob, ...]


@dataclass(frozen=True)
class Arrangement:
    """The planned state of a partition: pieces that stay and files to write, in time order."""

    before: Partition
    settled: tuple[Piece | MergeJob, ...]
    waiting: tuple[WaitingRun | PlannedRun, ...] = ()
    most: int = 0

    @property
    def jobs(self) -> list[MergeJob]:
        """The files to write. `finished` takes the results in this order."""
        return [*self.settled_jobs, *self.late_jobs]

    @property
    def settled_jobs(self) -> list[MergeJob]:
        return [each for each in self.settled if isinstance(each, MergeJob)]

    @property
    def late_jobs(self) -> list[MergeJob]:
        """The files of runs that keep waiting."""
        return [work for run in self.waiting if isinstance(run, PlannedRun) for work in run.jobs]

    def finished(self, written: Sequence[Sequence[Piece]], next_run: int, places: ReadTimePoints) -> Partition:
        """The partition after the pieces of each work were written. New runs get numbers from `next_run` on."""
        results = dict(zip(map(id, self.jobs), written, strict=True))
        settled: list[Piece] = []
        for each in self.settled:
            settled += results[id(each)] if isinstance(each, MergeJob) else [each]
        runs: list[WaitingRun] = []
        for run in self.waiting:
            if isinstance(run, WaitingRun):
                runs.append(run)
            elif pieces := [piece for work in run.jobs for piece in results[id(work)]]:
                parts = cut_at_spans(pieces, settled, max(1, self.most // THIN), places)
                runs.append(WaitingRun(next_run, run.tier, tuple(parts)))
                next_run += 1
        return replace(self.before, settled=tuple(settled), waiting=tuple(runs))


def arrange_always(
    partition: Partition, new: Sequence[Sequence[Piece]], killed: I64, most: int, places: ReadTimePoints
) -> Arrangement:
    """Merge all late rows now: the row groups that they fall into are rewritten, all others stay."""
    partition = with_dead(partition, killed)
    late = [*(p for run in partition.waiting for p in run.pieces), *(p for pieces in new for p in pieces)]
    settled = plan_jobs([(p,) for p in partition.settled], late, most, places)
    return Arrangement(partition, tuple(settled), (), most)


def arrange_auto(
    partition: Partition, new: Sequence[Sequence[Piece]], killed: I64, most: int, next_run: int, places: ReadTimePoints
) -> Arrangement:
    """Settle new pieces that fit into gaps, let the others wait, and merge what the cost rule selects.

    Each element of `new` may become a run; the runs get numbers from `next_run` on.
    """
    rows = sum(p.rows for pieces in new for p in pieces)
    runs = list(partition.waiting)
    late: list[Piece] = []
    for number, pieces in enumerate(new, next_run):
        found = settle(partition.settled, pieces, most, places)
        partition = replace(partition, settled=found.pieces)
        if found.rest:
            runs.append(WaitingRun(number, 0, found.rest))
    # Only after all pieces settled is it known which settled pieces the waiting ones overlap.
    for i in range(len(partition.waiting), len(runs)):
        parts = cut_at_spans(runs[i].pieces, partition.settled, max(1, most // THIN), places)
        runs[i] = replace(runs[i], pieces=tuple(parts))
        late += parts
    partition = replace(with_dead(partition, killed), waiting=tuple(runs))
    allowed = cost.allowance(most, rows)
    due = cost.select_due(partition.settled, runs, most, allowed)
    due = _add_automatic_folds(partition, due, most, allowed)
    middles = cost.find_narrow_merges(partition.settled, late, runs, due, most, places)
    return _arrange(partition, due, middles, most, places)


def _add_automatic_folds(partition: Partition, due: list[Stretch], most: int, allowed: int) -> list[Stretch]:
    """The stretches that are due, and those that an automatic fold adds within the allowance."""
    settled = partition.settled
    found = list(due)
    left = allowed - sum(p.rows for lo, hi in due for p in settled[lo:hi])
    for lo, hi in cost.find_automatic_folds(partition, most):
        rows = sum(p.rows for p in settled[lo:hi])
        if rows <= left and all(hi <= a or b <= lo for a, b in found):
            found.append((lo, hi))
            left -= rows
    return sorted(found)


def arrange_fold(partition: Partition, most: int, places: ReadTimePoints) -> Arrangement | None:
    """The partition with everything rewritten that a fold must rewrite; None when it needs no fold."""
    parts = [cut_at_spans(run.pieces, partition.settled, 1, places) for run in partition.waiting]
    runs = [replace(run, pieces=tuple(pieces)) for run, pieces in zip(partition.waiting, parts, strict=True)]
    partition = replace(partition, waiting=tuple(runs))
    stretches = cost.find_fold_stretches(partition, most)
    if not stretches:
        return None
    settled = partition.settled
    arranged: list[Piece | MergeJob] = []
    at = 0
    for lo, hi in stretches:
        arranged += settled[at:lo]
        for first, last in _split_for_files(partition, lo, hi, most):
            late, runs = remove_range(runs, *span(settled, first, last - 1), places)
            arranged.append(MergeJob((*settled[first:last], *late)))
        at = hi
    return Arrangement(partition, (*arranged, *settled[at:]), tuple(runs), most)


def _split_for_files(partition: Partition, lo: int, hi: int, most: int) -> list[Stretch]:
    """A stretch of settled pieces, cut into one part per file, so that no file and no task is too large."""
    over = cost.waiting_rows(partition.settled, partition.waiting)
    found: list[Stretch] = []
    rows = size = 0.0
    for i, piece in enumerate(partition.settled[lo:hi], lo):
        live = piece.rows - piece.dead + over[i]
        if found and files_for(rows, size, most) < 2:
            found[-1] = (found[-1][0], i + 1)
        else:
            found.append((i, i + 1))
            rows = size = 0.0
        rows, size = rows + live, size + piece.size * live / piece.rows
    if len(found) > 1 and rows < most:  # too little for a separate file
        found[-2:] = [(found[-2][0], hi)]
    return found


def with_dead(partition: Partition, killed: I64) -> Partition:
    """The partition, with the rows that died at these times added to the counts of the pieces that hold them."""
    settled = partition.settled
    if len(killed) == 0 or not settled:
        return partition
    starts = np.array([p.first.time for p in settled], np.int64)
    which = np.maximum(np.searchsorted(starts, killed, "right") - 1, 0)
    counts = np.bincount(which, minlength=len(settled)).tolist()
    counted = (replace(p, dead=p.dead + count) if count else p for p, count in zip(settled, counts, strict=True))
    return replace(partition, settled=tuple(counted))


def _arrange(
    partition: Partition, due: list[Stretch], middles: Sequence[NarrowMerge], most: int, places: ReadTimePoints
) -> Arrangement:
    """Merge the stretches that are due, and the middles of cut pieces, with the rows that wait there; merge runs."""
    settled = partition.settled
    runs = list(partition.waiting)
    arranged: list[Piece | MergeJob] = []
    cuts = {middle.index: middle for middle in middles}
    at = 0
    for region in _group_neighbours(due):
        lo, hi = region[0][0], region[-1][1]
        arranged += _cut_middles(settled, range(at, lo), cuts, runs, places)
        late, runs[:] = remove_range(runs, *span(settled, lo, hi - 1), places)
        groups = [settled[a:b] for a, b in region]
        arranged += _join_small_gaps(plan_jobs(groups, late, most, places), most)
        at = hi
    arranged += _cut_middles(settled, range(at, len(settled)), cuts, runs, places)
    left, higher = cost.merge_tiers(runs)
    waiting = [_plan_run(each, most, places) for each in higher]
    return Arrangement(partition, tuple(arranged), (*left, *waiting), most)


def _plan_run(found: cost.TierMerge, most: int, places: ReadTimePoints) -> PlannedRun:
    pieces = [p for run in found.runs for p in run.pieces]
    return PlannedRun(found.tier, tuple(MergeJob(tuple(some)) for some in cut_for_files(pieces, most, places)))


def _cut_middles(
    settled: Sequence[Piece],
    numbers: range,
    cuts: dict[int, NarrowMerge],
    runs: list[WaitingRun],
    places: ReadTimePoints,
) -> list[Piece | MergeJob]:
    """Settled pieces, some of them cut into three parts: one stays, the middle is merged, one stays."""
    found: list[Piece | MergeJob] = []
    for i in numbers:
        if i not in cuts:
            found.append(settled[i])
            continue
        middle, piece = cuts[i], settled[i]
        late, runs[:] = remove_range(runs, middle.lo, middle.hi, places)
        parts = cut_piece(piece, (middle.row_lo, middle.row_hi), places(piece))
        inside = [p for p in parts if p.row_lo == piece.row_lo + middle.row_lo]
        before = [p for p in parts if p.row_lo < inside[0].row_lo]
        after = [p for p in parts if p.row_lo > inside[0].row_lo]
        found += [*before, MergeJob((*inside, *late)), *after]
    return found


def _group_neighbours(due: list[Stretch]) -> list[list[Stretch]]:
    """Neighbouring stretches, grouped: each group gets one plan."""
    found: list[list[Stretch]] = []
    for stretch in due:
        if found and found[-1][-1][1] == stretch[0]:
            found[-1].append(stretch)
        else:
            found.append([stretch])
    return found


def _join_small_gaps(arranged: Sequence[Piece | MergeJob], most: int) -> list[Piece | MergeJob]:
    """Join a few rows from a gap with a neighbour that is rewritten anyway: this saves a small file."""
    found: list[Piece | MergeJob] = []
    for each in arranged:
        before = found[-1] if found else None
        goes_along = isinstance(before, MergeJob) and _is_small(each, most)
        if before and (goes_along or (isinstance(each, MergeJob) and _is_small(before, most))):
            found[-1] = _join(before, each)
        else:
            found.append(each)
    return found


def _is_small(each: Piece | MergeJob, most: int) -> bool:
    return 4 * each.rows < most and (isinstance(each, Piece) or each.chunks)


def _join(one: Piece | MergeJob, other: Piece | MergeJob) -> MergeJob:
    sources = [p for each in (one, other) for p in (each.sources if isinstance(each, MergeJob) else (each,))]
    return MergeJob(tuple(sources))


# Files to write

FILE_GROUPS = 16
FILE_BYTES = 1 << 30
"""The target size of a file, in row groups and in bytes. One task writes one file."""

_first = attrgetter("first")


@dataclass(frozen=True, eq=False)
class MergeJob:
    """Rows of some pieces that are written as consecutive new row groups."""

    sources: tuple[Piece, ...]
    chunks: bool = False  # only late rows: no row group may exceed the row group size

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.sources)


def files_for(rows: float, size: float, most: int) -> int:
    """The number of files for this many rows and bytes."""
    return max(1, ceil(rows / (FILE_GROUPS * most)), ceil(size / FILE_BYTES))


def plan_jobs(
    groups: Sequence[Sequence[Piece]], late: Sequence[Piece], most: int, places: ReadTimePoints
) -> list[Piece | MergeJob]:
    """The planner's actions as pieces and jobs. Each group of settled pieces counts as one; late rows are unsorted."""
    times, offsets = _time_points(late, places)
    bounds, numbers = planner.ranks([(g[0].first, g[-1].last) for g in groups], times, offsets)
    sizes = [sum(p.rows for p in group) for group in groups]
    known = [planner.RowGroupBounds(lo, hi, rows) for (lo, hi), rows in zip(bounds, sizes, strict=True)]
    actions = planner.plan(known, numbers, small=most // 4, most=most)
    edges = [TimePoint(int(times[row]), int(offsets[row])) for row in _starts(actions)]
    parts = iter(_distribute(late, edges, places))
    found: list[Piece | MergeJob] = []
    before: planner.Action | None = None
    for action in actions:
        if isinstance(action, planner.MergeLate):
            pieces = [p for group in groups[action.first : action.last + 1] for p in group]
            found.append(MergeJob((*pieces, *next(parts))))
        elif isinstance(action, planner.CopyRowGroup):
            group = groups[action.index]
            found += [MergeJob(tuple(group))] if len(group) > 1 or cost.is_dying(group[0]) else group
        elif not isinstance(before, planner.CopyLate):
            found += _separate_row_groups(next(parts), most, places)
        before = action
    return found


def _starts(actions: Sequence[planner.Action]) -> list[int]:
    """The number of the first late row of each action that takes late rows.

    Consecutive chunks count as one action: referenced rows are cut at the ends of their row groups, written rows
    evenly.
    """
    found: list[int] = []
    before: planner.Action | None = None
    for action in actions:
        follows = isinstance(action, planner.CopyLate) and isinstance(before, planner.CopyLate)
        if not isinstance(action, planner.CopyRowGroup) and not follows:
            found.append(action.late_lo)
        before = action
    return found


def _time_points(pieces: Sequence[Piece], places: ReadTimePoints) -> tuple[I64, I64]:
    """The time points of all rows of some pieces, in order."""
    if not pieces:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    found = [places(p) for p in pieces]
    times, offsets = (np.concatenate([each[i] for each in found]) for i in (0, 1))
    positions = sort_positions(times, offsets)
    return (times, offsets) if positions is None else (times[positions], offsets[positions])


def _distribute(late: Iterable[Piece], edges: Sequence[TimePoint], places: ReadTimePoints) -> list[list[Piece]]:
    """Late pieces, cut before each edge. The first edge is the time point of the first row."""
    shares: list[list[Piece]] = [[] for _ in edges]
    for piece in late:
        for part in cut_at(piece, edges, places):
            shares[_find_edge(edges, part.first)].append(part)
    return shares


def _find_edge(edges: Sequence[TimePoint], place: TimePoint) -> int:
    lo, hi = 0, len(edges)
    while hi - lo > 1:
        middle = (lo + hi) // 2
        lo, hi = (middle, hi) if edges[middle] <= place else (lo, middle)
    return lo


def _separate_row_groups(late: Sequence[Piece], most: int, places: ReadTimePoints) -> list[Piece | MergeJob]:
    """Late rows that become separate row groups: by reference if one piece has them and is large enough."""
    clusters: list[list[Piece]] = []
    end: TimePoint | None = None
    for piece in sorted(late, key=_first):
        if end is not None and piece.first <= end:
            clusters[-1].append(piece)
            end = max(end, piece.last)
        else:
            clusters.append([piece])
            end = piece.last
    joined: list[list[Piece]] = []
    for share in (share for cluster in clusters for share in cut_for_files(cluster, most, places)):
        goes_along = joined and _is_written(share, most) and _is_written(joined[-1], most)
        if goes_along and _fits([*joined[-1], *share], most):
            joined[-1] += share
        else:
            joined.append(share)
    found: list[Piece | MergeJob] = []
    for each in joined:
        found += cut_evenly(each[0], most, places) if len(each) == 1 else [MergeJob(tuple(each), chunks=True)]
    return found


def cut_for_files(cluster: list[Piece], most: int, places: ReadTimePoints) -> list[list[Piece]]:
    """Overlapping pieces, cut at time points into one part per file."""
    rows, size = sum(p.rows for p in cluster), sum(p.size for p in cluster)
    count = min(files_for(rows, size, most), rows)
    if len(cluster) < 2 or count < 2:
        return [cluster]
    times, offsets = _time_points(cluster, places)
    starts = [rows * i // count for i in range(count)]
    return _distribute(cluster, [TimePoint(int(times[row]), int(offsets[row])) for row in starts], places)


def _fits(pieces: Sequence[Piece], most: int) -> bool:
    return files_for(sum(p.rows for p in pieces), sum(p.size for p in pieces), most) < 2


def _is_written(cluster: Sequence[Piece], most: int) -> bool:
    return len(cluster) > 1 or 4 * cluster[0].rows < most
