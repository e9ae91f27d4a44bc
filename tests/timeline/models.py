"""A timeline of one partition whose files are arrays in memory, so that what is planned can be tried without a disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from floodmark.storage.arrays import I64
from floodmark.timeline import arrangement, planner
from floodmark.timeline.arrangement import Arrangement, MergeJob
from floodmark.timeline.pieces import Partition, Piece, PieceOrigin, TimePoint, TimePoints, WaitingRun, live_mask

ROW_BYTES = 32
NOBODY = np.empty(0, np.int64)


def piece_of(
    file: str, group: int, times: I64, offsets: I64, how: PieceOrigin = PieceOrigin.SLICE, since: int = 0
) -> Piece:
    """A whole row group as a piece."""
    rows = len(times)
    first, last = (TimePoint(int(times[i]), int(offsets[i])) for i in (0, -1))
    bounds = int(offsets.min()), int(offsets.max())
    return Piece(file, group, 0, rows, rows, first, last, *bounds, rows * ROW_BYTES, how, since)


@dataclass
class Model:
    """Records come in by their times; offsets count them."""

    most: int
    late_merge: str = "auto"
    slice_groups: int = 0  # how many rows the row groups of slices have, if not as many as they should
    partition: Partition = field(default_factory=lambda: Partition(0))
    files: dict[tuple[str, int], TimePoints] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    times: list[int] = field(default_factory=list)  # of each record, by offset
    next_run: int = 0
    version: int = 0
    rows_written: int = 0
    files_written: int = 0
    reads: int = 0
    works: list[MergeJob] = field(default_factory=list)  # of the last change
    before: Partition = field(default_factory=lambda: Partition(0))  # the partition before it

    def places(self, piece: Piece) -> TimePoints:
        self.reads += 1
        times, offsets = self.files[piece.file, piece.row_group]
        return times[piece.row_lo : piece.row_hi], offsets[piece.row_lo : piece.row_hi]

    def slice(self, times: Sequence[int] | I64) -> tuple[Piece, ...]:
        """Records as a slice in time order, in row groups as the ledger writes them."""
        found: I64 = np.sort(np.asarray(times, np.int64))
        offsets: I64 = np.arange(len(self.times), len(self.times) + len(found))
        self.times += found.tolist()
        name = f"data/{len(self.times)}"
        pieces = []
        size = self.slice_groups or self.most
        for number, at in enumerate(range(0, len(found), size)):
            rows = slice(at, at + size)
            self.files[name, number] = found[rows], offsets[rows]
            pieces.append(piece_of(name, number, found[rows], offsets[rows], since=self.version + 1))
        return tuple(pieces)

    def commit(self, *slices: Sequence[int] | I64, kill: Sequence[int] = ()) -> None:
        """One update after some slices came in and some offsets died."""
        new = [self.slice(times) for times in slices]
        killed: I64 = np.sort(np.array([self.times[offset] for offset in kill], np.int64))
        self.dead.update(kill)
        if self.late_merge == "always":
            arranged = arrangement.arrange_always(self.partition, new, killed, self.most, self.places)
        else:
            arranged = arrangement.arrange_auto(self.partition, new, killed, self.most, self.next_run, self.places)
        self.next_run += len(new)
        self._carry_out(arranged, PieceOrigin.MERGED)

    def fold(self) -> int:
        """How many rounds it took. The dead are counted before each one, as a fold of the product does."""
        rounds = 0
        while (arranged := arrangement.arrange_fold(self._counted(), self.most, self.places)) is not None:
            self._carry_out(arranged, PieceOrigin.FOLDED)
            rounds += 1
            assert rounds < 10
        return rounds

    def _counted(self) -> Partition:
        counts = [sum(offset in self.dead for offset in self.places(p)[1].tolist()) for p in self.partition.settled]
        settled = (replace(p, dead=dead) for p, dead in zip(self.partition.settled, counts, strict=True))
        return replace(self.partition, settled=tuple(settled))

    def _carry_out(self, arranged: Arrangement, how: PieceOrigin) -> None:
        self.version += 1
        self.works, self.before = arranged.jobs, self.partition
        written = [self._merged(work, how) for work in self.works]
        self.partition = arranged.finished(written, self.next_run, self.places)
        self.next_run += len(self.works)

    def _merged(self, work: MergeJob, how: PieceOrigin) -> list[Piece]:
        places = [self.places(p) for p in work.sources]
        times, offsets = (np.concatenate([each[i] for each in places]) for i in (0, 1))
        positions = np.lexsort((offsets, times))
        times, offsets = times[positions], offsets[positions]
        living = live_mask(offsets, np.array(sorted(self.dead), np.int64), 0)
        if living is not None:
            times, offsets = times[living], offsets[living]
        self.rows_written += len(times)
        self.files_written += 1
        name = f"own/{self.files_written}"
        pieces = []
        for number, (lo, hi) in enumerate(pairwise([0, *planner.cuts(times, self.most), len(times)])):
            if lo < hi:
                self.files[name, number] = times[lo:hi], offsets[lo:hi]
                pieces.append(piece_of(name, number, times[lo:hi], offsets[lo:hi], how, self.version))
        return pieces

    def shown(self) -> list[tuple[int, int]]:
        """The places of all living rows that pieces hold, in any order."""
        found = []
        for piece in self.partition.pieces:
            times, offsets = self.places(piece)
            found += [(t, o) for t, o in zip(times.tolist(), offsets.tolist(), strict=True) if o not in self.dead]
        return found

    def expected(self) -> list[tuple[int, int]]:
        return sorted((t, o) for o, t in enumerate(self.times) if o not in self.dead)

    def problems(self) -> list[str]:
        """What is wrong with the partition, in sentences."""
        found = []
        for pieces in (self.partition.settled, *(run.pieces for run in self.partition.waiting)):
            if not pieces:
                found.append("a list of pieces is empty")
            found += [f"{a} overlaps {b}" for a, b in pairwise(pieces) if a.last >= b.first]
        for piece in self.partition.pieces:
            times, offsets = self.places(piece)
            known = piece_of(piece.file, piece.row_group, times, offsets)
            if (piece.first, piece.last, piece.offset_min, piece.offset_max) != (
                known.first,
                known.last,
                known.offset_min,
                known.offset_max,
            ):
                found.append(f"wrong bounds: {piece}")
            if piece.rows > self.most + self.most // 2:
                found.append(f"too many rows: {piece}")
            if piece.dead < 0 or piece.size < 0:
                found.append(f"less than nothing: {piece}")
        ids = [run.id for run in self.partition.waiting]
        if len(set(ids)) < len(ids):
            found.append(f"runs of the same number: {ids}")
        if sorted(self.shown()) != self.expected():
            found.append("rows are missing, or there twice")
        return found


def run_of(number: int, tier: int, *pieces: Piece) -> WaitingRun:
    return WaitingRun(number, tier, pieces)


def moved(piece: Piece, **facts: int) -> Piece:
    return replace(piece, **facts)  # type: ignore[arg-type]
