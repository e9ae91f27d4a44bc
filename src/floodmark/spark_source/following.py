"""A streaming job's reading: where a dataset stands, and the records between two positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from floodmark.dataset import Dataset
from floodmark.ledger.errors import Purged
from floodmark.ledger.scan import Scan
from floodmark.spark_source.errors import BadOption
from floodmark.spark_source.options import EARLIEST, LATEST, Interval
from floodmark.spark_source.positions import BEFORE_ALL, Position, check_follows, next_position
from floodmark.spark_source.reading import check_operations_shown, narrowed, records_scan, tasks


@dataclass(frozen=True)
class Following:
    """A dataset that a stream reads; every call looks at its present head."""

    dataset: Dataset

    def head(self) -> Position:
        """The newest record."""
        snapshot = self.dataset.snapshot()
        return Position(str(self.dataset.id), snapshot.next_offset - 1)

    def initial(self, starting: int | str) -> Position:
        """Where a new query begins: nothing is left out without a word."""
        head = self.head()
        if starting == LATEST:
            return head
        first = 0 if starting == EARLIEST else int(starting)
        if first > head.offset + 1:
            raise BadOption(
                f"startingOffset={first}, but {self.dataset.name!r} ends at offset {head.offset}",
                hint='"latest" starts with what is written from now on',
                option="startingOffset",
            )
        start = Position(head.dataset, first + BEFORE_ALL)
        self._check_not_purged(start)
        return start

    def upto(self, start: Position, most: int | None, target: Position | None) -> Position:
        """How far the next batch goes."""
        head = self.head()
        check_follows(start, head, self.dataset.name)
        self._check_not_purged(start)
        return next_position(start, head, most, target)

    def between(self, start: Position, end: Position, schema: Any) -> list[Scan]:
        """The tasks that read the records after `start`, up to and with `end`."""
        head = self.head()
        check_follows(start, head, self.dataset.name)
        check_follows(end, head, self.dataset.name)
        if start.offset >= end.offset:
            return []
        self._check_not_purged(start)
        scan = narrowed(records_scan(self.dataset, Interval(start.offset, end.offset)), schema, self.dataset)
        check_operations_shown(self.dataset, scan.columns)
        return tasks(scan)

    def _check_not_purged(self, start: Position) -> None:
        """Refuse to go on where records are gone: a stream that skipped them would be wrong and say nothing."""
        snapshot = self.dataset.snapshot()
        if start.offset + 1 < snapshot.purged_before:
            raise Purged(
                f"the stream wants {self.dataset.name!r} from offset {start.offset + 1} on, "
                f"but records before {snapshot.purged_before} are purged",
                hint="a new query, with a new checkpointLocation, can start at what is left: "
                f'.option("startingOffset", "{snapshot.purged_before}")',
                purged_before=snapshot.purged_before,
            )
