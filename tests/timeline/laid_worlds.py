"""A dataset whose timeline was laid out by hand, so that its bookkeeping can be tried without what updates it.

Two days, four slices of ten records: those of a day interleave, so that the second lies over the first.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.local import LocalStore
from floodmark.timeline import root as roots
from floodmark.timeline.bundles import RowGroup
from floodmark.timeline.commit import RootChange, publish
from floodmark.timeline.manifest import TimelineObjects
from floodmark.timeline.merge import PieceMergeTask, merge
from floodmark.timeline.piece_files import GroupRows, PieceFiles, make_pieces
from floodmark.timeline.pieces import Partition, Piece, PieceOrigin, WaitingRun
from floodmark.timeline.root import LastUpdate, Root
from floodmark.timeline.settings import Settings
from floodmark.timeline.update import drop_purged
from floodmark.timeline.verify import LedgerRecords, problems
from floodmark.timeline.writer import TimelineWriter
from timeline.timeline_worlds import BEGIN, DAY, NAME, column_of

SETTINGS = Settings("day", 1000, mode="lazy")
SECOND = 1_000_000
SLICE = 10


_made = TemporaryDirectory()


@cache
def _template(name: str) -> Path:
    """A lake with such a dataset, to be copied: writing takes longer than all the rest."""
    folder = Path(_made.name) / name
    lake = fm.Lake(LocalStore(folder, HastyFileSystem()))
    made = lake.create(NAME, event_time="at", partition_by="day", row_group_size=1000, timeline="lazy")
    for start in (0, SECOND, DAY, DAY + SECOND):
        made.write(rows(BEGIN + start + i * 2 * SECOND for i in range(SLICE)))
    return folder


def rows(times: Iterable[int]) -> pa.Table:
    at = column_of(times, "us utc")
    return pa.table({"at": at, "v": pa.array(range(len(at)), pa.int64())})


class Laid:
    """The dataset, and pieces of its slices. Two of different chains differ in what they are `of`."""

    def __init__(self, folder: Path, of: str = "one") -> None:
        shutil.copytree(_template(of), folder, dirs_exist_ok=True)
        self.dataset = fm.Lake(LocalStore(folder, HastyFileSystem()))[NAME]
        self.objects = TimelineObjects(self.snapshot.objects)

    @property
    def snapshot(self) -> Snapshot:
        return self.dataset.snapshot()

    def slice(self, number: int) -> Piece:
        """All of a slice as a piece."""
        row = self.snapshot.all_slices.slice(number, 1).to_pylist()[0]
        offsets = np.arange(row["start"], row["end"])
        times = BEGIN + DAY * (number // 2) + SECOND * (number % 2) + (offsets - row["start"]) * 2 * SECOND
        file, group = f"data/f1620{row['physical'].hex()}", RowGroup(SLICE, row["size"])
        return make_pieces(file, [group], [GroupRows(0, 0, SLICE)], times, offsets, PieceOrigin.SLICE, 1)[0]

    def merged(self, *pieces: Piece, most: int = 1000) -> tuple[Piece, ...]:
        """The pieces of an own file with the rows of others."""
        layout = self.snapshot.require_layout("ticks")
        task = PieceMergeTask(self.objects, layout, tuple(pieces), most, PieceOrigin.MERGED, 1)
        return merge(task).pieces

    def cut(self, piece: Piece, lo: int, hi: int) -> Piece:
        """Rows [lo, hi) of a piece, by reference."""
        layout = self.snapshot.require_layout("ticks")
        times, offsets = PieceFiles(self.objects, layout).places(piece)
        stretch = GroupRows(0, lo, hi, piece.row_lo + lo)
        group = RowGroup(piece.group_rows, piece.size)
        found = make_pieces(piece.file, [group], [stretch], times, offsets, piece.how, 1)[0]
        return replace(found, row_group=piece.row_group)

    def day(self, number: int, settled: Sequence[Piece], *waiting: Sequence[Piece]) -> Partition:
        runs = tuple(WaitingRun(i, 0, tuple(pieces)) for i, pieces in enumerate(waiting))
        return Partition(BEGIN + number * DAY, tuple(settled), runs)

    def lay(self, *days: Partition, slices: int = 4) -> Root:
        """Publish these partitions as what the timeline has of the first slices."""
        before = roots.load(self.objects)
        newest = self.snapshot.all_slices.slice(slices - 1, 1).to_pylist()[0]
        gone = {p.start for p in roots.partitions(self.objects, before)} - {d.start for d in days}
        applied = newest["end"], newest["block"].hex()
        change = RootChange(*applied, SETTINGS.digest, days, LastUpdate(), 9, removed=tuple(gone))
        after = publish(self.objects, before, change)
        assert after is not None
        return after

    def purge(self, before: int) -> None:
        """Purge the ledger, and nothing but the ledger."""
        self.dataset.parts.rows.purge(before)

    def drop_purged(self, settings: Settings = SETTINGS) -> None:
        drop_purged(
            TimelineWriter(NAME, self.objects, settings, fm.Runtime(), self.dataset.snapshot, lambda *_: NO_OFFSETS)
        )

    def problems(self, dead: Sequence[int] = ()) -> list[str]:
        found = problems(self.objects, SETTINGS, lambda: LedgerRecords(self.snapshot, np.array(dead, np.int64)))
        return [p.message for p in found]

    def shown(self) -> list[int]:
        """The offsets of all rows in the timeline, in order of time."""
        layout = self.snapshot.require_layout("ticks")
        files = PieceFiles(self.objects, layout)
        partitions = roots.partitions(self.objects, roots.load(self.objects))
        places = [files.places(piece) for p in partitions for piece in p.pieces]
        rows = [place for times, offsets in places for place in zip(times.tolist(), offsets.tolist(), strict=True)]
        return [offset for _, offset in sorted(rows)]

    def files(self) -> set[str]:
        return {self.objects.file(info.key) for info in self.objects.files()}
