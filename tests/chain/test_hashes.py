"""Multihashes have one spelling, as bytes and as text."""

import pytest

from floodmark.chain.ids import LOGICAL, SHA3_256, Multihash
from floodmark.errors import BadId

TEXT = "f162008c3792b2a4deed1bd7ea2328fb5de5531eccf0fbfa04a7d800cdc267137c635"
LOGICAL_TEXT = "f9680c001200b3483eecc3d5c6b50ee6b8cba11b51c08f89ea1f53d3a334c743199f5fe656e"


def test_hash_of_the_word_multihash():
    hashed = Multihash.sha3_256(b"multihash")
    assert (hashed.text, str(hashed), hashed.short) == (TEXT, TEXT, "7137c635")
    assert hashed.bytes.hex() == TEXT[1:]


@pytest.mark.parametrize(("text", "code"), [(TEXT, SHA3_256), (LOGICAL_TEXT, LOGICAL)])
def test_text_and_bytes_read_back(text, code):
    parsed = Multihash.parse(text)
    assert (parsed.code, parsed.text) == (code, text)
    assert Multihash.from_bytes(parsed.bytes) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f",
        TEXT[1:],
        TEXT.upper(),
        "F" + TEXT[1:],
        "f" + TEXT[1:].upper(),
        TEXT + "\n",
        " " + TEXT,
        TEXT[:20] + " " + TEXT[20:],
        TEXT[:-1],
        TEXT[:-2],
        TEXT + "00",
        TEXT.replace("f1620", "f1720"),
        TEXT.replace("f1620", "f1621"),
        "f9680c00120" + TEXT[5:-2],
        TEXT[:-1] + "g",
        TEXT[:-1] + "５",
    ],
)
def test_any_other_spelling_is_refused(text):
    with pytest.raises(BadId):
        Multihash.parse(text)


@pytest.mark.parametrize("data", [b"", b"\x16", b"\x16\x20", bytes(34), bytes(37), b"\x16\x20" + bytes(31)])
def test_bytes_that_are_no_multihash_are_refused(data):
    with pytest.raises(BadId):
        Multihash.from_bytes(data)


def test_unknown_function_or_short_digest_is_refused():
    with pytest.raises(BadId, match="0x12"):
        Multihash(0x12, bytes(32))
    with pytest.raises(BadId, match="not 31"):
        Multihash(SHA3_256, bytes(31))


def test_hashes_of_other_functions_differ():
    assert Multihash(SHA3_256, bytes(32)) != Multihash(LOGICAL, bytes(32))
