"""refs/head holds exactly the text of one block hash."""

import pytest

from floodmark.chain.ids import LOGICAL, Multihash, format_head, parse_head
from floodmark.errors import BadId

HEAD = Multihash.sha3_256(b"multihash")


def test_head_is_the_hash_s_text_and_reads_back():
    assert format_head(HEAD) == b"f162008c3792b2a4deed1bd7ea2328fb5de5531eccf0fbfa04a7d800cdc267137c635"
    assert parse_head(format_head(HEAD)) == HEAD


@pytest.mark.parametrize(
    "data",
    [
        b"",
        format_head(HEAD) + b"\n",
        format_head(HEAD)[:-1],
        format_head(HEAD).upper(),
        b"\xff" * 69,
        HEAD.bytes,
        Multihash(LOGICAL, bytes(32)).text.encode(),
    ],
)
def test_anything_else_is_refused(data):
    with pytest.raises(BadId, match="refs/head"):
        parse_head(data)
