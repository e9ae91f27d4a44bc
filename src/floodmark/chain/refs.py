"""Where a block is: its place in the chain and its hash."""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.chain.hashes import Multihash


@dataclass(frozen=True, order=False)
class BlockRef:
    """A block by its place in the chain and its hash."""

    sequence_number: int
    hash: Multihash

    def __str__(self) -> str:
        return f"block {self.sequence_number} ({self.hash.short})"
