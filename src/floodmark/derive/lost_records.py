"""Inputs that were replaced by an older or a forked copy after they were read: records that results refer to are lost.

Stored positions name blocks, so a lost record is noticed: its block is not on the input's chain. Everything up to the
common ancestor of both chains is as it was. Each consumer stores a trail of earlier positions; the newest one that is
still on the chain is at or before the ancestor, and the consumer continues from it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from floodmark.derive.positions import PositionInput
from floodmark.ledger.position import BEFORE_ALL, Position

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LostRecords:
    """Records that were read from an input and that it does not have any more."""

    input: str
    dataset_id: str
    read: int
    """The newest record that was read."""
    kept: Position
    """The newest known position up to which the input has the records that were read."""

    def __str__(self) -> str:
        first = self.kept.offset + 1
        if self.kept.offset == BEFORE_ALL:
            which = f"some of the records up to {self.read} that were read are gone"
        elif first == self.read:
            which = f"record {first} that was read is gone"
        else:
            which = f"some of the records {first} to {self.read} that were read are gone"
        return f"{self.input!r} was replaced by another copy of it: {which}"


def find_lost_records(
    read: Sequence[Position], earlier: Sequence[Position], inputs: Iterable[PositionInput]
) -> dict[str, LostRecords]:
    """By dataset id, the inputs that lost records that were `read`. `earlier` are older positions of the reader."""
    chains = {one.dataset_id: one for one in inputs}
    newest: dict[str, int] = {}
    for position in read:
        given = chains.get(position.dataset_id)
        if given is not None and not position.is_on(given.snapshot):
            newest[given.dataset_id] = max(position.offset, newest.get(given.dataset_id, BEFORE_ALL))
    if not newest:
        return {}
    candidates = [*read, *earlier]
    return {
        dataset_id: LostRecords(chains[dataset_id].name, dataset_id, offset, _kept(chains[dataset_id], candidates))
        for dataset_id, offset in newest.items()
    }


def _kept(given: PositionInput, candidates: Iterable[Position]) -> Position:
    mine = [position for position in candidates if position.dataset_id == given.dataset_id]
    for position in sorted(mine, key=lambda p: p.offset, reverse=True):
        if position.is_on(given.snapshot):
            return position
    return Position(given.dataset_id, BEFORE_ALL)


def report_lost_records(reader: str, lost: Iterable[LostRecords], remedy: str) -> tuple[str, ...]:
    """Sentences for the report of a run, which are logged, too."""
    messages = tuple(f"{one}; {remedy}" for one in lost)
    for message in messages:
        _log.warning("%s: %s", reader, message)
    return messages


# Trails of earlier positions

TrailEntry = tuple[int, int, str]
"""The number of a position, its offset, and the block of its record."""

Trail = tuple[TrailEntry, ...]
"""Earlier positions of a reader in one input, oldest first. Of the older ones few are kept."""


def extend_trail(trail: Sequence[TrailEntry], position: Position) -> Trail:
    """The trail after one more position; a reader that has read n positions keeps O(log n).

    Of the numbers that are divisible by a power of two, the newest two stay. So for every run in the past, there is a
    position before it that is at most three times as many runs old.
    """
    if position.offset == BEFORE_ALL or (trail and trail[-1][1:] == (position.offset, position.block)):
        return tuple(trail)
    number = trail[-1][0] + 1 if trail else 1
    entries = [*trail, (number, position.offset, position.block)]
    kept: set[int] = set()
    step = 1
    while step <= number:
        kept.update([entry[0] for entry in entries if entry[0] % step == 0][-2:])
        step *= 2
    return tuple(entry for entry in entries if entry[0] in kept)


def cut_trail(trail: Sequence[TrailEntry], kept: Position) -> Trail:
    """The part of a trail that ends at or before a position."""
    return tuple(entry for entry in trail if entry[1] <= kept.offset)


def extend_trails(trails: Mapping[str, Trail], positions: Iterable[Position]) -> dict[str, Trail]:
    """The trails by dataset id after these positions."""
    return {**trails, **{p.dataset_id: extend_trail(trails.get(p.dataset_id, ()), p) for p in positions}}


def trail_positions(trails: Mapping[str, Trail]) -> list[Position]:
    """All positions of some trails."""
    return [Position(name, offset, block) for name, trail in trails.items() for _, offset, block in trail]
