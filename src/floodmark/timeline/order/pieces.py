"""Pieces: which rows of which row group lie where on the time axis.

The order of a timeline is that of (event time, offset). No two records share such a place, so equal times keep their
arrival order whatever the layout, and neighbouring pieces never touch. Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import NamedTuple


class Place(NamedTuple):
    """Where a record lies: its event time in microseconds, then its offset."""

    time: int
    offset: int


BEGINNING = Place(-(2**63), -1)
END = Place(2**63 - 1, 2**63 - 1)


class How(IntEnum):
    """How a piece came about."""

    SLICE = 0  # rows of a ledger slice, where the ledger has them
    SORTED = 1  # a copy of a slice in time order
    MERGED = 2  # late rows merged with those that were there, or with each other
    FOLDED = 3
    SHARED = 4  # as the last two, in a row group with rows of other partitions


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows [row_lo, row_hi) of one row group of a file, which are in the timeline's order."""

    file: str  # below the dataset's folder
    row_group: int
    row_lo: int
    row_hi: int
    group_rows: int  # how many rows the row group has
    first: Place
    last: Place
    offset_min: int
    offset_max: int
    size: int  # bytes of these rows in the file, in proportion to the row group's
    how: How
    since: int  # the version of the root with which it came about
    dead: int = 0  # rows in its span that are known to be dead, in waiting pieces over it too

    @property
    def rows(self) -> int:
        return self.row_hi - self.row_lo

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its row group."""
        return self.row_hi - self.row_lo == self.group_rows


@dataclass(frozen=True, slots=True)
class Run:
    """Late rows that lie over settled pieces until merging them pays: pieces in order that do not overlap."""

    id: int
    tier: int  # how often its rows were put together with others
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.pieces)


@dataclass(frozen=True)
class Partition:
    """One stretch of time: settled pieces, in order and apart from each other, and the runs that lie over them."""

    start: int  # microseconds
    settled: tuple[Piece, ...] = ()
    waiting: tuple[Run, ...] = ()
    rows_in: int = 0  # records that ever came in
    bytes_in: int = 0  # the bytes of those in the ledger's slices
    bytes_written: int = 0  # what the timeline has written for them

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """All pieces, the settled ones first."""
        return tuple(chain(self.settled, *[run.pieces for run in self.waiting]))

    @property
    def rows(self) -> int:
        """How many rows its pieces hold, dead ones included."""
        return sum([p.row_hi - p.row_lo for p in self.pieces])

    @property
    def dead(self) -> int:
        return sum(p.dead for p in self.settled)


@dataclass(frozen=True)
class Bundle:
    """Partitions that share a manifest."""

    partitions: tuple[Partition, ...] = field(default=())
