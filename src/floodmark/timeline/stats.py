"""Figures of a timeline: what each partition holds, what waits, what is dead, and what was written for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.timeline.order.partitions import Unit, label
from floodmark.timeline.order.pieces import Partition
from floodmark.timeline.settings import Settings
from floodmark.timeline.stored.root import LastUpdate, Root


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
