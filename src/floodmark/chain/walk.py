"""Walk a chain block by block, back from its head or forward under the rules; skip pointers to its rare blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from floodmark.chain import rules
from floodmark.chain.events import ROUTINE_KINDS, MetadataBlock, Seed, kind
from floodmark.chain.ids import BlockRef, Multihash
from floodmark.chain.state import EMPTY, apply_block
from floodmark.chain.wire import decode
from floodmark.errors import (
    ChainError,
    CorruptBlock,
    Rule,
    RuleBroken,
    UnsupportedBlockVersion,
)


def walk_back(get: Callable[[Multihash], bytes], head: Multihash) -> Iterator[tuple[Multihash, bytes, MetadataBlock]]:
    """All blocks from the head to the Seed, each with its hash and its bytes.

    Each block is checked before it is yielded: its bytes match its hash, and its number is one less than the number
    of the block after it. So the walk always ends, even on damaged bytes.
    """
    hash_: Multihash | None = head
    expected: int | None = None
    while hash_ is not None:
        data = get(hash_)
        block = read_block(hash_, data)
        number = block.sequence_number
        if expected is not None and number != expected:
            message = f"Block {hash_} has number {number}; the next block requires number {expected}."
            raise RuleBroken(
                message, sequence_number=number, expected=expected, actual=number, rule=Rule.SEQUENCE_BROKEN
            )
        if (number == 0) != (block.prev_block_hash is None):
            message = f"Block {number} ({hash_}) has the previous block {block.prev_block_hash}."
            hint = "Put back the block from a copy of the dataset. Only block 0 has no previous block."
            raise RuleBroken(
                message, hint=hint, sequence_number=number, actual=block.prev_block_hash, rule=Rule.PREV_BLOCK_MISMATCH
            )
        if number == 0 and not isinstance(block.event, Seed):
            message = f"Block 0 ({hash_}): a chain starts with Seed, not {kind(block.event)}."
            raise RuleBroken(message, sequence_number=0, rule=Rule.SEED_MISSING)
        yield hash_, data, block
        hash_, expected = block.prev_block_hash, number - 1


def read_block(hash_: Multihash, data: bytes) -> MetadataBlock:
    """The block in these bytes; `CorruptBlock` if they do not match the hash."""
    actual = Multihash.sha3_256(data)
    if actual != hash_:
        message = f"Block {hash_} is damaged: its {len(data)} bytes have the hash {actual}."
        hint = "Put back the block from a copy of the dataset."
        raise CorruptBlock(message, hint=hint, expected=hash_, actual=actual)
    try:
        return decode(data)
    except (CorruptBlock, UnsupportedBlockVersion) as error:
        message = f"Block {hash_}: {error.message}"
        raise type(error)(message, hint=error.hint, hash=hash_, **error.facts) from error


def check_chain(blocks: Iterable[tuple[Multihash, MetadataBlock]]) -> Iterator[ChainError]:
    """All errors of a chain. The blocks come oldest first.

    A block that breaks a rule still counts as the previous block of the next one. So one error does not cause errors
    in all later blocks.
    """
    state = EMPTY
    for hash_, block in blocks:
        yield from rules.problems(state, block)
        state = apply_block(state, hash_, block)


# Skip pointers


@dataclass(frozen=True)
class SkipPointers:
    """References to the blocks that a reader needs, so that it does not walk the chain. They cover a span of blocks.

    `at` is the last block of the span. `newest` is the newest block of each event kind in the whole chain up
    to `at`. `non_routine` are the non-routine blocks of this span only, oldest first.
    """

    at: BlockRef
    newest: Mapping[str, BlockRef]
    non_routine: tuple[BlockRef, ...]

    @classmethod
    def first(cls, ref: BlockRef, kind: str) -> Self:
        """The pointers for the first block of a chain."""
        return cls(ref, {kind: ref}, _non_routine_refs(ref, kind))

    def extended(self, ref: BlockRef, kind: str) -> SkipPointers:
        """These pointers after the next block of the chain joins the span."""
        _require_adjacent(self.at, ref)
        return SkipPointers(ref, {**self.newest, kind: ref}, self.non_routine + _non_routine_refs(ref, kind))

    def start_next_span(self, ref: BlockRef, kind: str) -> SkipPointers:
        """The pointers for a new span that starts with the next block of the chain."""
        _require_adjacent(self.at, ref)
        return SkipPointers(ref, {**self.newest, kind: ref}, _non_routine_refs(ref, kind))

    def to_json(self) -> dict[str, Any]:
        """A plain dict, as index segments store it."""
        return {
            "at": _ref_to_json(self.at),
            "newest": {kind: _ref_to_json(ref) for kind, ref in sorted(self.newest.items())},
            "non_routine": [_ref_to_json(ref) for ref in self.non_routine],
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse the result of `to_json`; `CorruptBlock` if it is not valid."""
        try:
            return cls(
                at=_ref_from_json(value["at"]),
                newest={str(kind): _ref_from_json(ref) for kind, ref in value["newest"].items()},
                non_routine=tuple(_ref_from_json(ref) for ref in value["non_routine"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, ChainError) as error:
            hint = "Delete them: they are rebuilt from the chain."
            raise CorruptBlock(f"These are not skip pointers: {error!r}.", hint=hint) from error


def merge(older: SkipPointers, newer: SkipPointers) -> SkipPointers:
    """Merge the pointers of two adjacent spans."""
    if newer.at.sequence_number <= older.at.sequence_number:
        raise CorruptBlock(f"The span up to {newer.at} is not newer than the one up to {older.at}.")
    return SkipPointers(newer.at, newer.newest, older.non_routine + newer.non_routine)


def _non_routine_refs(ref: BlockRef, kind: str) -> tuple[BlockRef, ...]:
    return () if kind in ROUTINE_KINDS else (ref,)


def _require_adjacent(at: BlockRef, ref: BlockRef) -> None:
    if ref.sequence_number != at.sequence_number + 1:
        raise CorruptBlock(f"{ref} does not follow {at}.")


def _ref_to_json(ref: BlockRef) -> list[Any]:
    return [ref.sequence_number, ref.hash.text]


def _ref_from_json(value: Any) -> BlockRef:
    sequence_number, text = value
    if type(sequence_number) is not int or sequence_number < 0:
        raise ValueError(f"not a sequence number: {sequence_number!r}")
    return BlockRef(sequence_number, Multihash.parse(text))
