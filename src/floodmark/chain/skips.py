"""Skip pointers: find the newest block of a kind, or all rare blocks, without walking the routine ones.

A chain of a million blocks holds a dozen that define something and a million that add data. Skip pointers are
kept beside the chain for spans of consecutive blocks, and can always be rebuilt from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from floodmark.chain.errors import BadSkipPointers, ChainError
from floodmark.chain.events import ROUTINE_KINDS
from floodmark.chain.hashes import Multihash
from floodmark.chain.refs import BlockRef


@dataclass(frozen=True)
class SkipPointers:
    """What a span of blocks adds to the knowledge of where things are.

    `at` is the last block of the span; `newest` is the newest block of each event kind in the whole chain up
    to `at`; `non_routine` are the non-routine blocks of this span only, oldest first.
    """

    at: BlockRef
    newest: Mapping[str, BlockRef]
    non_routine: tuple[BlockRef, ...]

    @classmethod
    def first(cls, ref: BlockRef, kind: str) -> Self:
        """The pointers of a chain's first block."""
        return cls(ref, {kind: ref}, _rare(ref, kind))

    def extended(self, ref: BlockRef, kind: str) -> SkipPointers:
        """These pointers with the next block of the chain added to the span."""
        _require_adjacent(self.at, ref)
        return SkipPointers(ref, {**self.newest, kind: ref}, self.non_routine + _rare(ref, kind))

    def next_span(self, ref: BlockRef, kind: str) -> SkipPointers:
        """The pointers of a new span that starts with the next block of the chain."""
        _require_adjacent(self.at, ref)
        return SkipPointers(ref, {**self.newest, kind: ref}, _rare(ref, kind))

    def to_json(self) -> dict[str, Any]:
        """A plain dict, as the index segments hold it."""
        return {
            "at": _ref_to_json(self.at),
            "newest": {kind: _ref_to_json(ref) for kind, ref in sorted(self.newest.items())},
            "non_routine": [_ref_to_json(ref) for ref in self.non_routine],
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read what `to_json` gave; `BadSkipPointers` when it is anything else."""
        try:
            return cls(
                at=_ref_from_json(value["at"]),
                newest={str(kind): _ref_from_json(ref) for kind, ref in value["newest"].items()},
                non_routine=tuple(_ref_from_json(ref) for ref in value["non_routine"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, ChainError) as error:
            hint = "They are derived: delete them and they are rebuilt from the chain."
            raise BadSkipPointers(f"These are not skip pointers: {error!r}.", hint=hint) from error


def merge(older: SkipPointers, newer: SkipPointers) -> SkipPointers:
    """The pointers of two adjacent spans as one."""
    if newer.at.sequence_number <= older.at.sequence_number:
        raise BadSkipPointers(f"The span up to {newer.at} is not newer than the one up to {older.at}.")
    return SkipPointers(newer.at, newer.newest, older.non_routine + newer.non_routine)


def _rare(ref: BlockRef, kind: str) -> tuple[BlockRef, ...]:
    return () if kind in ROUTINE_KINDS else (ref,)


def _require_adjacent(at: BlockRef, ref: BlockRef) -> None:
    if ref.sequence_number != at.sequence_number + 1:
        raise BadSkipPointers(f"{ref} does not follow {at}.")


def _ref_to_json(ref: BlockRef) -> list[Any]:
    return [ref.sequence_number, ref.hash.text]


def _ref_from_json(value: Any) -> BlockRef:
    sequence_number, text = value
    if type(sequence_number) is not int or sequence_number < 0:
        raise ValueError(f"not a sequence number: {sequence_number!r}")
    return BlockRef(sequence_number, Multihash.parse(text))
