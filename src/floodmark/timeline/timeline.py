"""The timeline of a dataset: its current rows in event-time order, read, brought up to date and folded."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from floodmark.errors import FloodmarkError
from floodmark.ledger.beside import Beside
from floodmark.ledger.fold import Fold
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.rows import Rows
from floodmark.ledger.slice_check import Problem
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage import sweep
from floodmark.storage.arrays import I64
from floodmark.storage.sweep import Garbage
from floodmark.timeline.change import purge
from floodmark.timeline.change.changing import KeptRoot, Updating
from floodmark.timeline.change.fold import fold
from floodmark.timeline.change.update import follow, update
from floodmark.timeline.errors import BadManifest, NoTimeline, UnreadablePiece
from floodmark.timeline.order.partitions import Unit, label
from floodmark.timeline.order.pieces import BEGINNING, END, Partition, Piece
from floodmark.timeline.order.ranges import Moment, Range, parse_range
from floodmark.timeline.order.spans import MOST_ROWS, spans
from floodmark.timeline.reading.instead import LedgerAlone
from floodmark.timeline.reading.read import Reading
from floodmark.timeline.reading.sources import PieceFiles
from floodmark.timeline.reading.tail import tail
from floodmark.timeline.settings import Settings, of
from floodmark.timeline.stored import root as roots
from floodmark.timeline.stored.objects import TimelineObjects
from floodmark.timeline.stored.root import LastUpdate, Root
from floodmark.timeline.upkeep import check, gc

_log = logging.getLogger(__name__)


class Timeline:
    """The timeline of a ledger that was created with `partition_by`; without one, what asks for it is refused."""

    def __init__(self, ledger: Ledger, rows: Rows) -> None:
        self._ledger = ledger
        self._rows = rows
        self._kept_root = KeptRoot()

    def settings(self) -> Settings | None:
        """What the timeline was declared with; None without one."""
        return of(self._ledger.snapshot().state)

    # Read

    def reading(self, start: Moment, end: Moment, columns: Sequence[str] | None) -> Reading:
        """The current rows with event times in [start, end), in event-time order."""
        within, timeline = parse_range(start, end), self.snapshot()
        return timeline.reading(within, *self._rows.columns(timeline.snapshot, columns))

    def root(self) -> Root:
        """How far the timeline is: one small read."""
        return self._root_and_head()[0]

    def snapshot(self) -> TimelineSnapshot:
        """The timeline as of its present root and the present head."""
        root, snapshot, settings = self._root_and_head()
        return TimelineSnapshot(self._ledger.name, settings, root, snapshot, self._rows.dead(snapshot))

    def _root_and_head(self) -> tuple[Root, Snapshot, Settings]:
        """The root and the head, which is never behind it since it is read after it."""
        root = self._kept_root.load(self._objects)
        snapshot = self._ledger.snapshot()
        settings = require_settings(self._ledger.name, snapshot)
        return roots.fitting(root, snapshot, settings.digest), snapshot, settings

    @property
    def _objects(self) -> TimelineObjects:
        return TimelineObjects(self._ledger.objects)

    # Update

    def update(self) -> LastUpdate | None:
        """Take in the records since the last update; None when there are none."""
        return update(self._updating(require_settings(self._ledger.name, self._ledger.snapshot())))

    def follow(self) -> None:
        """Update an eager timeline after a write of this ledger; the write stands whatever happens."""
        settings = self._latest_settings()
        if settings is not None and settings.mode == "eager":
            follow(self._updating(settings))

    def _latest_settings(self) -> Settings | None:
        """The settings, from the snapshot that the last commit of this ledger left."""
        return None if self._ledger.latest is None else of(self._ledger.latest.state)

    def _updating(self, settings: Settings) -> Updating:
        return Updating(
            name=self._ledger.name,
            objects=self._objects,
            settings=settings,
            runtime=self._ledger.runtime,
            snapshot=self._ledger.snapshot,
            dead=self._rows.dead_within,
            kept=self._kept_root,
        )

    # Fold, purge, verify, collect garbage

    def fold(self, partition: str | None = None) -> Fold:
        """Merge the pieces that wait, leave out the dead and join small row groups: everywhere, or in one partition."""
        return fold(self._updating(require_settings(self._ledger.name, self._ledger.snapshot())), partition)

    def drop_purged(self) -> None:
        """Remove the timeline's copies of purged records, after a purge of this ledger."""
        settings = self._latest_settings()
        if settings is not None:
            purge.drop_purged(self._updating(settings))

    def problems(self) -> list[Problem]:
        """What is wrong with the timeline, compared with its hashes and with the records."""
        try:
            settings = self.settings()
        except FloodmarkError:  # the ledger reports that its chain cannot be read
            return []
        return [] if settings is None else check.problems(self._objects, settings, self._current_rows)

    def _current_rows(self) -> check.Ledger:
        snapshot = self._ledger.snapshot()
        return check.Ledger(snapshot, self._rows.dead(snapshot))

    def find_garbage(self) -> Garbage[Root]:
        """Files that no root needs any more."""
        purged = self._ledger.snapshot().purged_before
        return gc.find(self._objects, self._ledger.runtime.clock(), purged_before=purged)

    def collect_garbage(self) -> Garbage[Root]:
        """Remove them; returns what was removed."""
        return sweep.remove(self.find_garbage())


def require_settings(name: str, snapshot: Snapshot) -> Settings:
    """The settings of a dataset's timeline; `NoTimeline` when it has none."""
    found = of(snapshot.state)
    if found is None:
        raise NoTimeline(
            f"dataset {name!r} keeps no timeline",
            hint="create it with event_time= and partition_by='day' (hour, day, week, month or year)",
            name=name,
        )
    return found


@dataclass(frozen=True)
class TimelineSnapshot:
    """The timeline of a dataset as of one root and one head; the root was read first."""

    name: str
    settings: Settings
    root: Root
    snapshot: Snapshot
    dead: I64  # the offsets that are not current as of the head, sorted

    @property
    def objects(self) -> TimelineObjects:
        return TimelineObjects(self.snapshot.objects)

    def partitions(self, within: Range) -> list[Partition]:
        """The partitions that may have rows in a range; manifests of others are not read."""
        start = None if within.first == BEGINNING else within.first.time
        end = None if within.end == END else within.end.time
        return roots.partitions(self.objects, self.root, start, end)

    def pieces(self, within: Range) -> TimelinePieces:
        """What it is made of in a range."""
        return TimelinePieces(self.settings, self.root, tuple(self.partitions(within)))

    def stats(self) -> TimelineStats:
        """All of it in figures."""
        return stats(self.root, self.partitions(Range()), self.settings.partition_by, self.snapshot.next_offset)

    def reading(self, within: Range, columns: tuple[str, ...], beside: Beside | None) -> Reading:
        """Some columns of the rows in a range: pieces that may have any, and records that are in no piece yet."""
        wanted = self._reading(columns, beside)
        try:
            partitions = self.partitions(within)
            settled = self._kept(piece for partition in partitions for piece in partition.settled)
            waiting = self._kept(p for partition in partitions for run in partition.waiting for p in run.pieces)
            late = self._tail(within)
            found = tuple(spans(settled, [*waiting, *late], within, MOST_ROWS, wanted.files.places))
        except (BadManifest, UnreadablePiece) as error:
            _log.warning(
                "the timeline of %s is damaged (%s): its rows are read from the ledger", self.name, error.message
            )
            return replace(wanted, spans=self._ledger.spans(within, self.dead))
        return replace(wanted, spans=found, instead=self._ledger)

    def _reading(self, columns: tuple[str, ...], beside: Beside | None) -> Reading:
        layout = self.snapshot.require_layout(self.name)
        files = PieceFiles(self.objects, layout)
        return Reading(files, (), columns, beside, self.dead, self.snapshot.purged_before)

    def _kept(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Those that are not purged as a whole: their files may be gone already though the root still names them."""
        return [piece for piece in pieces if piece.offset_max >= self.snapshot.purged_before]

    def _tail(self, within: Range) -> list[Piece]:
        layout = self.snapshot.require_layout(self.name)
        return tail(self.snapshot, layout, self.root.applied, self.dead, within)

    @property
    def _ledger(self) -> LedgerAlone:
        return LedgerAlone(self.name, self.snapshot.objects, self.snapshot.head)


@dataclass(frozen=True)
class PartitionStats:
    """One partition in figures."""

    label: str
    start: int  # microseconds
    rows: int  # dead ones included
    pieces: int  # settled and waiting
    row_groups: int  # that they are in
    waiting_rows: int
    waiting_pieces: int
    dead_rows: int
    dead_bytes: int  # of rows that are dead, and of those in its row groups that no piece shows any more
    bytes: int  # of the rows in its pieces
    bytes_in: int  # of all records that came in, in the ledger's slices
    bytes_written: int

    @property
    def amplification(self) -> float | None:
        """How many bytes the timeline has written for each one that came in, None when none did."""
        return self.bytes_written / self.bytes_in if self.bytes_in else None


@dataclass(frozen=True)
class TimelineStats:
    """A timeline in figures, partition by partition."""

    partitions: tuple[PartitionStats, ...]
    applied: int  # records before this offset are in it
    behind: int  # so many records are not, and are read from the ledger
    bytes_in: int
    bytes_written: int  # all that was ever written for it: files, manifests and roots
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
        """How many bytes the timeline has written for each one that came in, None when none did."""
        return self.bytes_written / self.bytes_in if self.bytes_in else None


@dataclass(frozen=True)
class TimelinePieces:
    """The pieces of a timeline in one of its states."""

    settings: Settings
    root: Root
    partitions: tuple[Partition, ...]


def stats(root: Root, partitions: Sequence[Partition], unit: Unit, next_offset: int) -> TimelineStats:
    """The figures of a root whose partitions are all given; the ledger's next record has `next_offset`."""
    hidden = hidden_bytes(partitions)
    each = tuple(_of(p, unit, unseen) for p, unseen in zip(partitions, hidden, strict=True))
    return TimelineStats(each, root.applied, next_offset - root.applied, root.bytes_in, root.bytes_written, root.last)


def _of(partition: Partition, unit: Unit, hidden: int) -> PartitionStats:
    pieces = partition.pieces
    waiting = [p for run in partition.waiting for p in run.pieces]
    size, rows, dead = sum(p.size for p in pieces), partition.rows, min(partition.dead, partition.rows)
    return PartitionStats(
        label=label(partition.start, unit),
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
    """For each partition the bytes of rows that its row groups have and no piece of these partitions shows.

    A row group that several partitions show rows of counts for each by the rows that it shows.
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
