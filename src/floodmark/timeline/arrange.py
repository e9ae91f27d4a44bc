"""Arranging a partition: which pieces stay, which are written, and where each belongs when new rows came in. Pure.

An arrangement has gaps where files are still to be written; `finished` fills them with what the merges made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from floodmark.ledger.keys.records import I64
from floodmark.timeline import cost, fold_plan, planner
from floodmark.timeline.cost import Middle, Stretch
from floodmark.timeline.pieces import Partition, Piece, Place, Run
from floodmark.timeline.places import order
from floodmark.timeline.settle import PlacesOf, at_spans, cut, cut_at, even, settle, span, without

THIN = 256
"""Waiting rows are known by span unless they are fewer there than this part of a row group."""

FILE_GROUPS = 16
"""About so many row groups go into one file, which one task writes."""

_first = attrgetter("first")


@dataclass(frozen=True, eq=False)
class Work:
    """Rows of some pieces that become new row groups, one after the other."""

    sources: tuple[Piece, ...]
    chunks: bool = False  # late rows alone, none of whose row groups may be larger than it should

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.sources)


@dataclass(frozen=True, eq=False)
class NextRun:
    """Waiting runs that become one of a higher tier."""

    tier: int
    work: Work


@dataclass(frozen=True)
class Arranged:
    """A partition as it will be: pieces and what is to be written, in order."""

    before: Partition
    settled: tuple[Piece | Work, ...]
    waiting: tuple[Run | NextRun, ...] = ()
    most: int = 0

    @property
    def works(self) -> list[Work]:
        """What is to be written; `finished` takes the results in this order."""
        late = [run.work for run in self.waiting if isinstance(run, NextRun)]
        return [*(each for each in self.settled if isinstance(each, Work)), *late]

    def finished(self, written: Sequence[Sequence[Piece]], next_run: int, places: PlacesOf) -> Partition:
        """The partition, when the pieces of each work are there. New runs are numbered from `next_run` on."""
        results = dict(zip(map(id, self.works), written, strict=True))
        settled: list[Piece] = []
        for each in self.settled:
            settled += results[id(each)] if isinstance(each, Work) else [each]
        runs: list[Run] = []
        for run in self.waiting:
            if isinstance(run, Run):
                runs.append(run)
            elif pieces := results[id(run.work)]:
                parts = at_spans(pieces, settled, max(1, self.most // THIN), places)
                runs.append(Run(next_run, run.tier, tuple(parts)))
                next_run += 1
        return replace(self.before, settled=tuple(settled), waiting=tuple(runs))


def always(partition: Partition, new: Sequence[Sequence[Piece]], killed: I64, most: int, places: PlacesOf) -> Arranged:
    """One plan for all late rows: the row groups that they belong into are rewritten, all others stay."""
    partition = with_dead(partition, killed)
    late = [*(p for run in partition.waiting for p in run.pieces), *(p for pieces in new for p in pieces)]
    settled = _planned([(p,) for p in partition.settled], late, most, places)
    return Arranged(partition, tuple(settled), (), most)


def auto(
    partition: Partition, new: Sequence[Sequence[Piece]], killed: I64, most: int, next_run: int, places: PlacesOf
) -> Arranged:
    """New pieces settle where there is room; others wait, and what the cost rule says is merged.

    The runs that they make are numbered from `next_run` on, one for each.
    """
    rows = sum(p.rows for pieces in new for p in pieces)
    runs = list(partition.waiting)
    late: list[Piece] = []
    for number, pieces in enumerate(new, next_run):
        found = settle(partition.settled, pieces, most, places)
        partition = replace(partition, settled=found.pieces)
        if found.rest:
            runs.append(Run(number, 0, found.rest))
    # Only now it is known over what they lie.
    for i in range(len(partition.waiting), len(runs)):
        parts = at_spans(runs[i].pieces, partition.settled, max(1, most // THIN), places)
        runs[i] = replace(runs[i], pieces=tuple(parts))
        late += parts
    partition = replace(with_dead(partition, killed), waiting=tuple(runs))
    allowed = cost.allowance(most, rows)
    due = cost.due(partition.settled, runs, most, allowed)
    due = _with_folds(partition, due, most, allowed)
    middles = cost.middles(partition.settled, late, runs, due, most, places)
    return _rewritten(partition, due, middles, most, places)


def _with_folds(partition: Partition, due: list[Stretch], most: int, allowed: int) -> list[Stretch]:
    """What is due, and what a fold by itself adds to it within what is allowed."""
    settled = partition.settled
    found = list(due)
    left = allowed - sum(p.rows for lo, hi in due for p in settled[lo:hi])
    for lo, hi in fold_plan.by_itself(partition, most):
        rows = sum(p.rows for p in settled[lo:hi])
        if rows <= left and all(hi <= a or b <= lo for a, b in found):
            found.append((lo, hi))
            left -= rows
    return sorted(found)


def folded(partition: Partition, most: int, places: PlacesOf) -> Arranged | None:
    """Everything that a fold asks for rewritten; None when the partition is as it should be."""
    parts = [at_spans(run.pieces, partition.settled, 1, places) for run in partition.waiting]
    runs = [replace(run, pieces=tuple(pieces)) for run, pieces in zip(partition.waiting, parts, strict=True)]
    partition = replace(partition, waiting=tuple(runs))
    stretches = fold_plan.stretches(partition, most)
    if not stretches:
        return None
    settled = partition.settled
    arranged: list[Piece | Work] = []
    at = 0
    for lo, hi in stretches:
        arranged += settled[at:lo]
        for first, last in _shares(partition, lo, hi, most):
            late, runs = without(runs, *span(settled, first, last - 1), places)
            arranged.append(Work((*settled[first:last], *late)))
        at = hi
    return Arranged(partition, (*arranged, *settled[at:]), tuple(runs), most)


def _shares(partition: Partition, lo: int, hi: int, most: int) -> list[Stretch]:
    """A stretch of settled pieces cut into what one file each takes, so that no file and no task is too large."""
    over = cost.waiting_rows(partition.settled, partition.waiting)
    found: list[Stretch] = []
    rows = 0.0
    for i in range(lo, hi):
        living = partition.settled[i].rows - partition.settled[i].dead + over[i]
        if found and rows < FILE_GROUPS * most:
            found[-1] = (found[-1][0], i + 1)
            rows += living
        else:
            found.append((i, i + 1))
            rows = living
    if len(found) > 1 and rows < most:  # too little for a file of its own
        found[-2:] = [(found[-2][0], hi)]
    return found


def with_dead(partition: Partition, killed: I64) -> Partition:
    """The same, with rows that died at these times counted where they are."""
    settled = partition.settled
    if len(killed) == 0 or not settled:
        return partition
    starts = np.array([p.first.time for p in settled], np.int64)
    which = np.maximum(np.searchsorted(starts, killed, "right") - 1, 0)
    counts = np.bincount(which, minlength=len(settled)).tolist()
    counted = (replace(p, dead=p.dead + count) if count else p for p, count in zip(settled, counts, strict=True))
    return replace(partition, settled=tuple(counted))


def _rewritten(
    partition: Partition, due: list[Stretch], middles: Sequence[Middle], most: int, places: PlacesOf
) -> Arranged:
    """The stretches that are due and the middles of cut pieces merged with what waits there; runs put together."""
    settled = partition.settled
    runs = list(partition.waiting)
    arranged: list[Piece | Work] = []
    cuts = {middle.index: middle for middle in middles}
    at = 0
    for region in _regions(due):
        lo, hi = region[0][0], region[-1][1]
        arranged += _with_middles(settled, range(at, lo), cuts, runs, places)
        late, runs[:] = without(runs, *span(settled, lo, hi - 1), places)
        groups = [settled[a:b] for a, b in region]
        arranged += _with_gaps(_planned(groups, late, most, places), most)
        at = hi
    arranged += _with_middles(settled, range(at, len(settled)), cuts, runs, places)
    left, gathered = cost.gathered(runs)
    waiting = [NextRun(each.tier, Work(tuple(p for run in each.runs for p in run.pieces))) for each in gathered]
    return Arranged(partition, tuple(arranged), (*left, *waiting), most)


def _with_middles(
    settled: Sequence[Piece], numbers: range, cuts: dict[int, Middle], runs: list[Run], places: PlacesOf
) -> list[Piece | Work]:
    """Settled pieces, some of them cut into what stays before, what is merged, and what stays after."""
    found: list[Piece | Work] = []
    for i in numbers:
        if i not in cuts:
            found.append(settled[i])
            continue
        middle, piece = cuts[i], settled[i]
        late, runs[:] = without(runs, middle.lo, middle.hi, places)
        parts = cut(piece, (middle.row_lo, middle.row_hi), places(piece))
        inside = [p for p in parts if p.row_lo == piece.row_lo + middle.row_lo]
        before = [p for p in parts if p.row_lo < inside[0].row_lo]
        after = [p for p in parts if p.row_lo > inside[0].row_lo]
        found += [*before, Work((*inside, *late)), *after]
    return found


def _regions(due: list[Stretch]) -> list[list[Stretch]]:
    """Stretches that are neighbours, together: one plan is made for them."""
    found: list[list[Stretch]] = []
    for stretch in due:
        if found and found[-1][-1][1] == stretch[0]:
            found[-1].append(stretch)
        else:
            found.append([stretch])
    return found


def _planned(
    groups: Sequence[Sequence[Piece]], late: Sequence[Piece], most: int, places: PlacesOf
) -> list[Piece | Work]:
    """The planner's actions for settled pieces, some of which are taken as one, and late rows in any order."""
    times, offsets = _places(late, places)
    bounds, numbers = planner.ranks([(g[0].first, g[-1].last) for g in groups], times, offsets)
    sizes = [sum(p.rows for p in group) for group in groups]
    known = [planner.Bounds(lo, hi, rows) for (lo, hi), rows in zip(bounds, sizes, strict=True)]
    actions = planner.plan(known, numbers, small=most // 4, most=most)
    edges = [Place(int(times[row]), int(offsets[row])) for row in _starts(actions)]
    parts = iter(_shared_out(late, edges, places))
    found: list[Piece | Work] = []
    before: planner.Action | None = None
    for action in actions:
        if isinstance(action, planner.Merge):
            pieces = [p for group in groups[action.first : action.last + 1] for p in group]
            found.append(Work((*pieces, *next(parts))))
        elif isinstance(action, planner.CopyRowGroup):
            group = groups[action.index]
            found += [Work(tuple(group))] if len(group) > 1 or cost.is_dying(group[0]) else group
        elif not isinstance(before, planner.CopyLate):
            found += _standing_alone(next(parts), most, places)
        before = action
    return found


def _starts(actions: Sequence[planner.Action]) -> list[int]:
    """At which late row each action that takes some begins.

    Chunks that follow each other are one: what is referenced is cut where its row groups end, what is written evenly.
    """
    found: list[int] = []
    before: planner.Action | None = None
    for action in actions:
        follows = isinstance(action, planner.CopyLate) and isinstance(before, planner.CopyLate)
        if not isinstance(action, planner.CopyRowGroup) and not follows:
            found.append(action.late_lo)
        before = action
    return found


def _places(pieces: Sequence[Piece], places: PlacesOf) -> tuple[I64, I64]:
    """The places of the rows of some pieces, in order."""
    if not pieces:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    found = [places(p) for p in pieces]
    times, offsets = (np.concatenate([each[i] for each in found]) for i in (0, 1))
    positions = order(times, offsets)
    return (times, offsets) if positions is None else (times[positions], offsets[positions])


def _shared_out(late: Iterable[Piece], edges: Sequence[Place], places: PlacesOf) -> list[list[Piece]]:
    """Late pieces cut before each of these places, the first of which is that of the first row."""
    shares: list[list[Piece]] = [[] for _ in edges]
    for piece in late:
        for part in cut_at(piece, edges, places):
            shares[_last_at_most(edges, part.first)].append(part)
    return shares


def _last_at_most(edges: Sequence[Place], place: Place) -> int:
    lo, hi = 0, len(edges)
    while hi - lo > 1:
        middle = (lo + hi) // 2
        lo, hi = (middle, hi) if edges[middle] <= place else (lo, middle)
    return lo


def _standing_alone(late: Sequence[Piece], most: int, places: PlacesOf) -> list[Piece | Work]:
    """Late rows that become row groups of their own: by reference where one piece has them, and has enough."""
    clusters: list[list[Piece]] = []
    end: Place | None = None
    for piece in sorted(late, key=_first):
        if end is not None and piece.first <= end:
            clusters[-1].append(piece)
            end = max(end, piece.last)
        else:
            clusters.append([piece])
            end = piece.last
    joined: list[list[Piece]] = []
    for share in (share for cluster in clusters for share in _bounded(cluster, most, places)):
        goes_along = joined and _is_written(share, most) and _is_written(joined[-1], most)
        if goes_along and sum(p.rows for p in (*joined[-1], *share)) <= FILE_GROUPS * most:
            joined[-1] += share
        else:
            joined.append(share)
    found: list[Piece | Work] = []
    for each in joined:
        found += even(each[0], most, places) if len(each) == 1 else [Work(tuple(each), chunks=True)]
    return found


def _bounded(cluster: list[Piece], most: int, places: PlacesOf) -> list[list[Piece]]:
    """Pieces that overlap, cut at places into what one file each takes."""
    rows = sum(p.rows for p in cluster)
    if len(cluster) < 2 or rows <= FILE_GROUPS * most:
        return [cluster]
    times, offsets = _places(cluster, places)
    count = -(-rows // (FILE_GROUPS * most))
    starts = [rows * i // count for i in range(count)]
    return _shared_out(cluster, [Place(int(times[row]), int(offsets[row])) for row in starts], places)


def _is_written(cluster: Sequence[Piece], most: int) -> bool:
    return len(cluster) > 1 or 4 * cluster[0].rows < most


def _with_gaps(arranged: Sequence[Piece | Work], most: int) -> list[Piece | Work]:
    """Few rows from a gap go along with a neighbour that is rewritten anyway, instead of into a file of their own."""
    found: list[Piece | Work] = []
    for each in arranged:
        before = found[-1] if found else None
        goes_along = isinstance(before, Work) and _is_few(each, most)
        if before and (goes_along or (isinstance(each, Work) and _is_few(before, most))):
            found[-1] = _together(before, each)
        else:
            found.append(each)
    return found


def _is_few(each: Piece | Work, most: int) -> bool:
    return 4 * each.rows < most and (isinstance(each, Piece) or each.chunks)


def _together(one: Piece | Work, other: Piece | Work) -> Work:
    sources = [p for each in (one, other) for p in (each.sources if isinstance(each, Work) else (each,))]
    return Work(tuple(sources))
