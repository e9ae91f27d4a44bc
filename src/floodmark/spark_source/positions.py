"""A stream's position in a dataset: the offset of the last record that it has read. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from floodmark.spark_source.errors import StreamLost

BEFORE_ALL = -1


@dataclass(frozen=True)
class Position:
    """A dataset, by the id that no other dataset ever has, and the last record read; -1 before the first."""

    dataset: str
    offset: int

    def to_json(self) -> dict[str, Any]:
        """As Spark notes it in the query's checkpoint."""
        return {"dataset": self.dataset, "offset": self.offset}


def from_json(given: Any, name: str) -> Position:
    """A position that Spark has noted."""
    match given:
        case {"dataset": str(dataset), "offset": int(offset)} if offset >= BEFORE_ALL:
            return Position(dataset, offset)
    raise StreamLost(
        f"the query's checkpoint has {given!r} as its position in {name!r}, which is none of ours",
        hint="a checkpoint belongs to one query and its sources: start this one with a new checkpointLocation",
        name=name,
    )


def next_position(start: Position, head: Position, most: int | None, target: Position | None) -> Position:
    """How far the next batch goes: to the head, or the target of an availableNow run, `most` records at a time."""
    end = head.offset if target is None else min(head.offset, target.offset)
    if most is not None:
        end = min(end, start.offset + most)
    return replace(start, offset=max(end, start.offset))


def check_follows(position: Position, head: Position, name: str) -> None:
    """Refuse a position that lies in another dataset, or beyond the end of this one."""
    if position.dataset != head.dataset:
        raise StreamLost(
            f"the query was reading another dataset called {name!r} ({position.dataset}), which is gone",
            hint="offsets of one mean nothing in the other: start the query with a new checkpointLocation",
            name=name,
            expected=position.dataset,
            found=head.dataset,
        )
    if position.offset > head.offset:
        raise StreamLost(
            f"the query has read {name!r} up to offset {position.offset}, but it ends at {head.offset}",
            hint="the lake is older than the query, as if restored from a copy: start with a new checkpointLocation",
            name=name,
            expected=position.offset,
            found=head.offset,
        )
