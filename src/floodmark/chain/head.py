"""The head of a chain: the one mutable file of a dataset, which names its newest block."""

from __future__ import annotations

from floodmark.chain.errors import BadHash, BadHead
from floodmark.chain.hashes import SHA3_256, Multihash


def format_head(head: Multihash) -> bytes:
    """What `refs/head` holds when `head` is the newest block."""
    return head.text.encode()


def parse_head(data: bytes) -> Multihash:
    """The newest block's hash; strict, since one block must have one spelling for compare-and-swap."""
    try:
        head = Multihash.parse(data.decode("ascii"))
    except (BadHash, UnicodeDecodeError) as error:
        raise _bad_head(data) from error
    if head.code != SHA3_256:
        raise _bad_head(data)
    return head


def _bad_head(data: bytes) -> BadHead:
    return BadHead(
        f"refs/head does not hold a block hash but {data[:100]!r}.",
        hint="Put the hash of the newest block there: f1620 and 64 lower-case hex digits, no newline.",
        data=data,
    )
