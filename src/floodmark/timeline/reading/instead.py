"""The ledger instead of its timeline: the same records from slices alone, for when the timeline is damaged."""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.chain.hashes import Multihash
from floodmark.ledger.errors import Purged
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import load_at
from floodmark.storage.arrays import I64
from floodmark.timeline.order.ranges import Range
from floodmark.timeline.order.spans import MOST_ROWS, Span, spans
from floodmark.timeline.reading.sources import PieceFiles
from floodmark.timeline.reading.tail import slices_alone
from floodmark.timeline.stored.objects import TimelineObjects


@dataclass(frozen=True)
class LedgerAlone:
    """The records of a dataset as of a head. It is small, and travels to tasks."""

    name: str
    objects: DatasetObjects
    head: Multihash

    def spans(self, within: Range, dead: I64) -> tuple[Span, ...]:
        """All records in a range, from slices alone. Says so when they were purged since the head was read."""
        snapshot = load_at(self.objects, self.head, {})
        purged = self._purged()
        if purged > snapshot.purged_before:
            raise Purged(
                f"records before offset {purged} of {self.name!r} were purged while they were read",
                hint="read again",
                purged_before=purged,
            )
        layout = snapshot.require_layout(self.name)
        pieces = slices_alone(snapshot, layout, dead, within)
        files = PieceFiles(TimelineObjects(self.objects), layout)
        return tuple(spans((), pieces, within, MOST_ROWS, files.places))

    def _purged(self) -> int:
        """The offset before which everything is purged by now."""
        head = self.objects.read_head()
        return 0 if head is None or head == self.head else load_at(self.objects, head, {}).purged_before
