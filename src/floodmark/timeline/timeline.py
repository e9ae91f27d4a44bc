"""The timeline of a dataset: read its live rows in event-time order, update it, fold it, and get its statistics."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from floodmark.errors import BadManifest, FloodmarkError, NoTimeline, UnreadablePiece
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.side_columns import SideColumnSet
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.verify import VerifyProblem
from floodmark.rows.fold import FoldReport
from floodmark.rows.rows import Rows
from floodmark.storage import sweep
from floodmark.storage.arrays import I64
from floodmark.storage.sweep import Garbage
from floodmark.timeline import garbage, verify
from floodmark.timeline import root as roots
from floodmark.timeline import update as purge
from floodmark.timeline.fold import fold
from floodmark.timeline.manifest import TimelineObjects
from floodmark.timeline.piece_files import PieceFiles, tail
from floodmark.timeline.pieces import MAX_POINT, MIN_POINT, Partition, Piece
from floodmark.timeline.read import LedgerFallback, TimelineScan
from floodmark.timeline.root import LastUpdate, Root
from floodmark.timeline.sections import MOST_ROWS, Moment, Range, parse_range, spans
from floodmark.timeline.settings import Settings, Unit, partition_label, read_settings
from floodmark.timeline.update import follow, update
from floodmark.timeline.writer import RootCache, TimelineWriter

_log = logging.getLogger(__name__)


class Timeline:
    """The timeline of a dataset with `partition_by`. Without one, methods that need it raise `NoTimeline`."""

    def __init__(self, ledger: Ledger, rows: Rows) -> None:
        self._ledger = ledger
        self._rows = rows
        self._kept_root = RootCache()

    def settings(self) -> Settings | None:
        """The declared settings; None without a timeline."""
        return read_settings(self._ledger.snapshot().state)

    # Read

    def reading(self, start: Moment, end: Moment, columns: Sequence[str] | None) -> TimelineScan:
        """The live rows with event times in [start, end), in event-time order."""
        timeline = self.snapshot()
        within = timeline.range(start, end)
        return timeline.reading(within, *self._rows.columns(timeline.snapshot, columns))

    def root(self) -> Root:
        """The root, which has the applied offset. One small read."""
        return self._root_and_head()[0]

    def snapshot(self) -> TimelineSnapshot:
        """The timeline as of its current root and the current head."""
        root, snapshot, settings = self._root_and_head()
        return TimelineSnapshot(self._ledger.name, settings, root, snapshot, self._rows.dead(snapshot))

    def _root_and_head(self) -> tuple[Root, Snapshot, Settings]:
        """The root and the head. The root is read first, so the head is never behind it."""
        root = self._kept_root.load(self._objects)
        snapshot = self._ledger.snapshot()
        settings = require_settings(self._ledger.name, snapshot)
        return roots.root_or_emptied(root, snapshot, settings.digest), snapshot, settings

    @property
    def _objects(self) -> TimelineObjects:
        return TimelineObjects(self._ledger.objects)

    # Update

    def update(self) -> LastUpdate | None:
        """Add the records since the last update; None if there are none."""
        return update(self._updating(require_settings(self._ledger.name, self._ledger.snapshot())))

    def follow(self) -> None:
        """Update an eager timeline after a write of this ledger. Errors are only logged: the write is committed."""
        settings = self._latest_settings()
        if settings is not None and settings.mode == "eager":
            follow(self._updating(settings))

    def _latest_settings(self) -> Settings | None:
        """The settings as of the last commit of this ledger."""
        return None if self._ledger.latest is None else read_settings(self._ledger.latest.state)

    def _updating(self, settings: Settings) -> TimelineWriter:
        return TimelineWriter(
            name=self._ledger.name,
            objects=self._objects,
            settings=settings,
            runtime=self._ledger.runtime,
            snapshot=self._ledger.snapshot,
            dead=self._rows.dead_within,
            kept=self._kept_root,
        )

    # Fold, purge, verify, collect garbage

    def fold(self, partition: str | None = None) -> FoldReport:
        """Merge waiting pieces, remove dead rows and join small row groups, in all partitions or in one."""
        return fold(self._updating(require_settings(self._ledger.name, self._ledger.snapshot())), partition)

    def drop_purged(self) -> None:
        """Remove the timeline's copies of purged records, after a purge of this ledger."""
        settings = self._latest_settings()
        if settings is not None:
            purge.drop_purged(self._updating(settings))

    def drop_erased(self) -> None:
        """Remove the timeline's copies of erased records, after an erasure in this ledger."""
        settings = self._latest_settings()
        if settings is not None:
            purge.drop_erased(self._updating(settings))

    def problems(self) -> list[VerifyProblem]:
        """The problems of the timeline: its files against their hashes, its rows against the ledger."""
        try:
            settings = self.settings()
        except FloodmarkError:  # the ledger reports that its chain cannot be read
            return []
        return [] if settings is None else verify.problems(self._objects, settings, self._current_rows)

    def _current_rows(self) -> verify.LedgerRecords:
        snapshot = self._ledger.snapshot()
        return verify.LedgerRecords(snapshot, self._rows.dead(snapshot))

    def find_garbage(self) -> Garbage[Root]:
        """Files that no root needs."""
        purged = self._ledger.snapshot().purged_before
        return garbage.find(self._objects, self._ledger.runtime.clock(), purged_before=purged)

    def collect_garbage(self) -> Garbage[Root]:
        """Remove files that no root needs; returns what was removed."""
        return sweep.remove(self.find_garbage())


def require_settings(name: str, snapshot: Snapshot) -> Settings:
    """The settings of a dataset's timeline. Raises `NoTimeline` if it has none."""
    found = read_settings(snapshot.state)
    if found is None:
        raise NoTimeline(
            f"dataset {name!r} has no timeline",
            hint="create the dataset with event_time= and partition_by='day' (hour, day, week, month or year)",
            name=name,
        )
    return found


@dataclass(frozen=True)
class TimelineSnapshot:
    """The timeline of a dataset as of one root and one head. The root was read first."""

    name: str
    settings: Settings
    root: Root
    snapshot: Snapshot
    dead: I64  # sorted offsets of the dead records as of the head

    @property
    def objects(self) -> TimelineObjects:
        return TimelineObjects(self.snapshot.objects)

    def partitions(self, within: Range) -> list[Partition]:
        """The partitions that may have rows in a range. Reads only their manifests."""
        start = None if within.first == MIN_POINT else within.first.time
        end = None if within.end == MAX_POINT else within.end.time
        return roots.partitions(self.objects, self.root, start, end)

    def range(self, start: Moment, end: Moment) -> Range:
        """The range as a user gives it. A time without a zone fits only event times without one."""
        layout = self.snapshot.layout
        return parse_range(start, end, in_plain_column=layout is not None and not layout.event_time_has_zone)

    def pieces(self, within: Range) -> TimelinePieces:
        """The pieces of the timeline in a range."""
        return TimelinePieces(self.settings, self.root, within, tuple(self.partitions(within)))

    def stats(self) -> TimelineStats:
        """The statistics of the whole timeline."""
        return stats(self.root, self.partitions(Range()), self.settings.partition_by, self.snapshot.next_offset)

    def reading(self, within: Range, columns: tuple[str, ...], side_columns: SideColumnSet | None) -> TimelineScan:
        """Some columns of the rows in a range, from pieces and from the ledger's tail, which is in no piece yet."""
        reading = self._reading(columns, side_columns)
        try:
            partitions = self.partitions(within)
            settled = self._kept(piece for partition in partitions for piece in partition.settled)
            waiting = self._kept(p for partition in partitions for run in partition.waiting for p in run.pieces)
            late = self._tail(within)
            found = tuple(spans(settled, [*waiting, *late], within, MOST_ROWS, reading.files.places))
        except (BadManifest, UnreadablePiece) as error:
            _log.warning(
                "the timeline of %s is damaged (%s); its rows are read from the ledger", self.name, error.message
            )
            return replace(reading, spans=self._ledger.spans(within, self.dead))
        return replace(reading, spans=found, fallback=self._ledger)

    def _reading(self, columns: tuple[str, ...], side_columns: SideColumnSet | None) -> TimelineScan:
        layout = self.snapshot.require_layout(self.name)
        files = PieceFiles(self.objects, layout)
        return TimelineScan(files, (), columns, side_columns, self.dead, self.snapshot.purged_before)

    def _kept(self, pieces: Iterable[Piece]) -> list[Piece]:
        """The pieces that are not completely purged. The files of the others may be gone while the root names them."""
        return [piece for piece in pieces if piece.offset_max >= self.snapshot.purged_before]

    def _tail(self, within: Range) -> list[Piece]:
        layout = self.snapshot.require_layout(self.name)
        return tail(self.snapshot, layout, self.root.applied, self.dead, within)

    @property
    def _ledger(self) -> LedgerFallback:
        return LedgerFallback(self.name, self.snapshot.objects, self.snapshot.head)


# Statistics


@dataclass(frozen=True)
class PartitionStats:
    """The statistics of one partition."""

    label: str
    start: int  # microseconds
    rows: int  # including dead ones
    pieces: int  # settled and waiting
    row_groups: int  # that contain the pieces
    waiting_rows: int
    waiting_pieces: int
    dead_rows: int
    dead_bytes: int  # bytes of dead rows, and of rows in its row groups that no piece shows
    bytes: int  # of the rows in its pieces
    bytes_in: int  # bytes of all records that came in, in the ledger's slices
    bytes_written: int

    @property
    def amplification(self) -> float | None:
        """The bytes that the timeline wrote per byte that came in; None if none came in."""
        return self.bytes_written / self.bytes_in if self.bytes_in else None


@dataclass(frozen=True)
class TimelineStats:
    """The statistics of a timeline, by partition."""

    partitions: tuple[PartitionStats, ...]
    applied: int  # records before this offset are in it
    behind: int  # the number of records that are not in it; reads get them from the ledger
    bytes_in: int
    bytes_written: int  # total over its lifetime: files, manifests and roots
    last: LastUpdate | None

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.partitions)

    @property
    def pieces(self) -> int:
        return sum(p.pieces for p in self.partitions)

    @property
    def dead_bytes(self) -> int:
        return sum(p.dead_bytes for p in self.partitions)

    @property
    def amplification(self) -> float | None:
        """The bytes that the timeline wrote per byte that came in; None if none came in."""
        return self.bytes_written / self.bytes_in if self.bytes_in else None


@dataclass(frozen=True)
class TimelinePieces:
    """The pieces of a timeline as of one root."""

    settings: Settings
    root: Root
    range: Range
    partitions: tuple[Partition, ...]


def stats(root: Root, partitions: Sequence[Partition], unit: Unit, next_offset: int) -> TimelineStats:
    """The statistics of a root and all its partitions. `next_offset` is the next offset of the ledger."""
    hidden = hidden_bytes(partitions)
    each = tuple(_partition_stats(p, unit, unseen) for p, unseen in zip(partitions, hidden, strict=True))
    return TimelineStats(each, root.applied, next_offset - root.applied, root.bytes_in, root.bytes_written, root.last)


def _partition_stats(partition: Partition, unit: Unit, hidden: int) -> PartitionStats:
    pieces = partition.pieces
    waiting = [p for run in partition.waiting for p in run.pieces]
    size, rows, dead = sum(p.size for p in pieces), partition.rows, min(partition.dead, partition.rows)
    return PartitionStats(
        label=partition_label(partition.start, unit),
        start=partition.start,
        rows=rows,
        pieces=len(pieces),
        row_groups=len({(p.file, p.row_group) for p in pieces}),
        waiting_rows=sum(p.rows for p in waiting),
        waiting_pieces=len(waiting),
        dead_rows=dead,
        dead_bytes=hidden + (size * dead // rows if rows else 0),
        bytes=size,
        bytes_in=partition.bytes_in,
        bytes_written=partition.bytes_written,
    )


def hidden_bytes(partitions: Sequence[Partition]) -> list[int]:
    """For each partition, the bytes of rows in its row groups that no piece shows.

    If several partitions share a row group, its hidden bytes are divided by the rows that each shows.
    """
    shown: defaultdict[tuple[str, int], int] = defaultdict(int)
    for partition in partitions:
        for p in partition.pieces:
            shown[p.file, p.row_group] += p.rows
    hidden = []
    for partition in partitions:
        parts = (
            p.size * max(0, p.group_rows - seen) // seen
            for p in partition.pieces
            if (seen := shown[p.file, p.row_group])
        )
        hidden.append(sum(parts))
    return hidden
