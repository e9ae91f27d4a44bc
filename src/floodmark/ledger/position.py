"""Positions of consumers: how far a dataset was read, in a form that does not fit another dataset or an older copy."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from floodmark.chain.events import AddData, ExecuteTransform
from floodmark.chain.ids import Multihash
from floodmark.chain.walk import walk_back
from floodmark.errors import BadPosition, ChainError, ObjectNotFound

if TYPE_CHECKING:
    from floodmark.ledger.snapshot import Snapshot

BEFORE_ALL = -1
"""The offset of the position before the first record."""

_TEXT = re.compile(
    r"(?P<id>did:odf:f[0-9a-f]{68})/(-1|(?P<offset>[0-9]{1,18})/(?P<block>[0-9a-f]{64})(/(?P<records>[0-9]{1,19}))?)"
)
_RESTART = "read the dataset from the start, then store its new Dataset.position()"


@dataclass(frozen=True)
class Position:
    """How far a dataset was read: up to and including the record at `offset`, which is in `block`.

    `Dataset.position()` returns one, and `changes(since=…)` continues after it. A bare offset also fits a dataset that
    was created again under the same name, or an older copy; a position does not. `str(position)` is a text to store,
    and `Position.parse` reads it.
    """

    dataset_id: str
    offset: int
    """The offset of the last record that was read; -1 before the first."""
    block: str = ""
    """The hash of the block with this record, in hex; empty before the first record."""
    records: int = field(default=0, compare=False)
    """The first offset that did not exist when the position was made; 0 if it was the one after this record.

    `changes` leaves out rows that a purge has carried to later offsets: the reader knows them from before.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", self.records or self.offset + 1)

    def __str__(self) -> str:
        parts = [self.dataset_id, str(self.offset), *([self.block] if self.block else ())]
        return "/".join([*parts, *([str(self.records)] if self.records != self.offset + 1 else ())])

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position that `str` wrote. Raises `BadPosition` for any other text."""
        found = _TEXT.fullmatch(text)
        if found is None:
            hint = "give an offset, or a position as str(dataset.position()) writes it"
            raise BadPosition(f"{text!r} is not a position", hint=hint, since=text)
        return cls(found["id"], int(found["offset"] or BEFORE_ALL), found["block"] or "", int(found["records"] or 0))

    def is_on(self, chain: Snapshot) -> bool:
        """Whether the chain of the dataset has this block at this record."""
        return self.offset == BEFORE_ALL or chain.block_of(self.offset) == self.block


def has_records_of(snapshot: Snapshot, block: Multihash) -> bool:
    """Whether a dataset has all records up to a block that was once on its chain."""
    if block == snapshot.head:
        return True
    try:
        for found, _, content in walk_back(snapshot.objects.get_block, block):
            data = content.event.new_data if isinstance(content.event, AddData | ExecuteTransform) else None
            if data is not None:
                return snapshot.block_of(data.offset_interval.end) == found.digest.hex()
    except (ObjectNotFound, ChainError):
        return False
    return True  # there were no records


def position_at(snapshot: Snapshot, name: str, offset: int | None) -> Position:
    """The position of a record; by default of the newest."""
    at = snapshot.next_offset - 1 if offset is None else _as_offset(offset, "offset")
    dataset_id = str(snapshot.state.dataset_id)
    if at == BEFORE_ALL:
        return Position(dataset_id, BEFORE_ALL)  # nothing was read, whatever exists
    block = snapshot.block_of(at)
    if block is None:
        raise _beyond_end(snapshot, name, f"offset={at}", "give the offset of a record, or none for the newest")
    return Position(dataset_id, at, block, snapshot.next_offset)


def first_after(snapshot: Snapshot, name: str, since: int | Position | None) -> int:
    """The first offset after a position. Raises `BadPosition` if the position is not in this dataset."""
    offset = offset_of(snapshot, name, since, "since")
    if offset is None:
        return 0
    if offset >= snapshot.next_offset and offset > BEFORE_ALL:
        hint = f"this is another dataset of that name, or an older copy of it: {_RESTART}"
        raise _beyond_end(snapshot, name, f"since={offset}", hint)
    return max(offset + 1, 0)


def offset_of(snapshot: Snapshot, name: str, given: int | Position | None, what: str) -> int | None:
    """A plain offset. A position must be in this dataset."""
    if not isinstance(given, Position):
        return None if given is None else _as_offset(given, what)
    dataset_id = str(snapshot.state.dataset_id)
    facts = _facts(snapshot, str(given))
    if given.dataset_id != dataset_id:
        raise BadPosition(
            f"the position is in dataset {given.dataset_id}, but {name!r} is now dataset {dataset_id}",
            hint=f"{name!r} was dropped and created again, or renamed: {_RESTART}",
            **facts,
        )
    if not given.is_on(snapshot):
        count = snapshot.next_offset
        now = "is a different record now" if given.offset < count else f"does not exist: there are {count} records"
        raise BadPosition(
            f"{name!r} was read up to record {given.offset}, which {now}",
            hint=f"{name!r} was probably replaced by an older copy: {_RESTART}",
            **facts,
        )
    return given.offset


def _beyond_end(snapshot: Snapshot, name: str, given: str, hint: str) -> BadPosition:
    last = snapshot.next_offset - 1
    end = "has no records" if last < 0 else f"ends at offset {last}"
    return BadPosition(
        f"{given}, but {name!r} (dataset {snapshot.state.dataset_id}) {end}", hint=hint, **_facts(snapshot, given)
    )


def _facts(snapshot: Snapshot, given: str) -> dict[str, Any]:
    return {
        "since": given,
        "dataset_id": str(snapshot.state.dataset_id),
        "last_offset": snapshot.state.last_offset,
    }


def _as_offset(given: Any, what: str) -> int:
    """An offset as a plain int. Floats are refused: with NaN, for example, records would be lost silently."""
    try:
        if not isinstance(given, bool):
            return operator.index(given)
    except TypeError:
        pass
    raise TypeError(f"{what}={given!r} is not an offset: give an integer or a Position (Position.parse reads its text)")
