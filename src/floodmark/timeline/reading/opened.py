"""A timeline, opened: what a dataset's timeline is as of one root and one head, and how it is read."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from floodmark.ledger.beside import Beside
from floodmark.ledger.keys.records import I64
from floodmark.ledger.snapshot import Snapshot
from floodmark.timeline.errors import BadManifest, NoTimeline, UnreadablePiece
from floodmark.timeline.order.pieces import BEGINNING, END, Partition, Piece
from floodmark.timeline.order.ranges import Range
from floodmark.timeline.order.spans import MOST_ROWS, spans
from floodmark.timeline.reading.instead import LedgerAlone
from floodmark.timeline.reading.read import Reading
from floodmark.timeline.reading.sources import PieceFiles
from floodmark.timeline.reading.tail import tail
from floodmark.timeline.settings import Settings, of
from floodmark.timeline.stats import TimelinePieces, TimelineStats, stats
from floodmark.timeline.stored import root as roots
from floodmark.timeline.stored.objects import TimelineObjects
from floodmark.timeline.stored.root import Root

_log = logging.getLogger(__name__)


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
class Timeline:
    """The timeline of a dataset as of one head; `root` was read before the head was."""

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
