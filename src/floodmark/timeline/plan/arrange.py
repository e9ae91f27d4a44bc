"""Arranging a partition: which pieces stay, which are written, and where each belongs when new rows came in. Pure.

An arrangement has gaps where files are still to be written; `finished` fills them with what the merges made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from floodmark.storage.arrays import I64
from floodmark.timeline.order.pieces import Partition, Piece, Run
from floodmark.timeline.plan import cost, fold_plan, works
from floodmark.timeline.plan.cost import Middle, Stretch
from floodmark.timeline.plan.settle import PlacesOf, at_spans, cut, settle, span, without
from floodmark.timeline.plan.works import Work

THIN = 32
"""Waiting rows are known by span unless they are fewer there than this part of a row group."""


@dataclass(frozen=True, eq=False)
class NextRun:
    """Waiting runs that become one of a higher tier, whose rows follow each other in these works."""

    tier: int
    works: tuple[Work, ...]


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
        return [*self.settled_works, *self.late_works]

    @property
    def settled_works(self) -> list[Work]:
        return [each for each in self.settled if isinstance(each, Work)]

    @property
    def late_works(self) -> list[Work]:
        """What goes on waiting."""
        return [work for run in self.waiting if isinstance(run, NextRun) for work in run.works]

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
            elif pieces := [piece for work in run.works for piece in results[id(work)]]:
                parts = at_spans(pieces, settled, max(1, self.most // THIN), places)
                runs.append(Run(next_run, run.tier, tuple(parts)))
                next_run += 1
        return replace(self.before, settled=tuple(settled), waiting=tuple(runs))


def always(partition: Partition, new: Sequence[Sequence[Piece]], killed: I64, most: int, places: PlacesOf) -> Arranged:
    """One plan for all late rows: the row groups that they belong into are rewritten, all others stay."""
    partition = with_dead(partition, killed)
    late = [*(p for run in partition.waiting for p in run.pieces), *(p for pieces in new for p in pieces)]
    settled = works.planned([(p,) for p in partition.settled], late, most, places)
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
    rows = size = 0.0
    for i, piece in enumerate(partition.settled[lo:hi], lo):
        living = piece.rows - piece.dead + over[i]
        if found and works.files_for(rows, size, most) < 2:
            found[-1] = (found[-1][0], i + 1)
        else:
            found.append((i, i + 1))
            rows = size = 0.0
        rows, size = rows + living, size + piece.size * living / piece.rows
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
        arranged += _with_gaps(works.planned(groups, late, most, places), most)
        at = hi
    arranged += _with_middles(settled, range(at, len(settled)), cuts, runs, places)
    left, higher = cost.tiered(runs)
    waiting = [_next_run(each, most, places) for each in higher]
    return Arranged(partition, tuple(arranged), (*left, *waiting), most)


def _next_run(found: cost.NextTier, most: int, places: PlacesOf) -> NextRun:
    pieces = [p for run in found.runs for p in run.pieces]
    return NextRun(found.tier, tuple(Work(tuple(some)) for some in works.bounded(pieces, most, places)))


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
