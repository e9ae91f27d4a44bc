"""Walking a chain block by block: back from its head, and forward under the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from floodmark.chain import rules
from floodmark.chain.codec import decode
from floodmark.chain.errors import (
    BlockHashMismatch,
    ChainError,
    CorruptBlock,
    PrevBlockMismatch,
    SeedMissing,
    SequenceBroken,
    UnsupportedBlockVersion,
)
from floodmark.chain.events import MetadataBlock, Seed, kind
from floodmark.chain.hashes import Multihash
from floodmark.chain.state import EMPTY, advance


def walk_back(get: Callable[[Multihash], bytes], head: Multihash) -> Iterator[tuple[Multihash, bytes, MetadataBlock]]:
    """Every block from the head to the Seed, with its hash and its bytes.

    Each block is checked before it is given out: its bytes hash to its name, and its number is one less than
    that of the block that named it. So the walk ends, whatever the bytes are.
    """
    hash_: Multihash | None = head
    expected: int | None = None
    while hash_ is not None:
        data = get(hash_)
        block = read_block(hash_, data)
        number = block.sequence_number
        if expected is not None and number != expected:
            message = f"Block {hash_} has number {number}; the block that follows it says {expected}."
            raise SequenceBroken(message, sequence_number=number, expected=expected, actual=number)
        if (number == 0) != (block.prev_block_hash is None):
            message = f"Block {number} ({hash_}) has the previous block {block.prev_block_hash}."
            hint = "Block 0 has none, every other block has one."
            raise PrevBlockMismatch(message, hint=hint, sequence_number=number, actual=block.prev_block_hash)
        if number == 0 and not isinstance(block.event, Seed):
            message = f"Block 0 ({hash_}): a chain starts with Seed, not {kind(block.event)}."
            raise SeedMissing(message, sequence_number=0)
        yield hash_, data, block
        hash_, expected = block.prev_block_hash, number - 1


def read_block(hash_: Multihash, data: bytes) -> MetadataBlock:
    """The block found under this name, if its bytes are what the name says."""
    actual = Multihash.sha3_256(data)
    if actual != hash_:
        message = f"Block {hash_} is damaged: its {len(data)} bytes hash to {actual}."
        hint = "Put back the block from a copy of the dataset."
        raise BlockHashMismatch(message, hint=hint, expected=hash_, actual=actual)
    try:
        return decode(data)
    except (CorruptBlock, UnsupportedBlockVersion) as error:
        message = f"Block {hash_}: {error.message}"
        raise type(error)(message, hint=error.hint, hash=hash_, **error.facts) from error


def check_chain(blocks: Iterable[tuple[Multihash, MetadataBlock]]) -> Iterator[ChainError]:
    """Everything that is wrong with a chain, given its blocks oldest first.

    A block that breaks a rule is still taken as the one the next block stands on, so that one fault does not
    make the whole rest look wrong.
    """
    state = EMPTY
    for hash_, block in blocks:
        yield from rules.problems(state, block)
        state = advance(state, hash_, block)
