"""Multihashes: the names of blocks, files and contents."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Self

from floodmark.chain.errors import BadHash

SHA3_256 = 0x16
"""Hash of bytes: blocks, Parquet files, checkpoints."""

LOGICAL = 0x300016
"""Hash of a slice's records, whatever their Parquet encoding."""

DIGEST_SIZE = 32

# varint(code) + varint(32): with two codes and one length a multihash is one of two prefixes and 32 bytes.
_PREFIXES = {SHA3_256: bytes.fromhex("1620"), LOGICAL: bytes.fromhex("9680c00120")}
_CODES = {len(prefix) + DIGEST_SIZE: (prefix, code) for code, prefix in _PREFIXES.items()}
_HINT = "A hash reads f1620… or f9680c00120… followed by 64 lower-case hex digits."


@dataclass(frozen=True, slots=True, repr=False)
class Multihash:
    """A digest together with the function that made it."""

    code: int
    digest: bytes

    def __post_init__(self) -> None:
        if self.code not in _PREFIXES:
            raise BadHash(f"Unknown hash function 0x{self.code:x}.", hint=_HINT, code=self.code)
        if len(self.digest) != DIGEST_SIZE:
            raise BadHash(f"A digest has {DIGEST_SIZE} bytes, not {len(self.digest)}.", digest=self.digest)

    @classmethod
    def sha3_256(cls, data: bytes | bytearray | memoryview) -> Self:
        """The hash of these bytes, as blocks and files are named."""
        return cls(SHA3_256, hashlib.sha3_256(data).digest())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the binary form, strictly."""
        prefix, code = _CODES.get(len(data), (b"", 0))
        if not prefix or not data.startswith(prefix):
            raise BadHash(f"These {len(data)} bytes are not a multihash: {data[:40].hex()}.", data=data)
        return cls(code, data[len(prefix) :])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form, strictly: multibase `f` and lower-case hex, nothing around it."""
        # bytes.fromhex skips spaces and takes upper case; one hash must have one spelling.
        if text[:1] != "f" or not set(text[1:]) <= set("0123456789abcdef") or len(text) % 2 == 0:
            raise BadHash(f"Not a multihash: {text[:100]!r}.", hint=_HINT, text=text)
        try:
            return cls.from_bytes(bytes.fromhex(text[1:]))
        except BadHash as error:
            raise BadHash(f"Not a multihash: {text[:100]!r}.", hint=_HINT, text=text) from error

    @property
    def bytes(self) -> bytes:
        """The binary form, as blocks hold it."""
        return _PREFIXES[self.code] + self.digest

    @property
    def text(self) -> str:
        """The text form, as file names and `refs/head` hold it."""
        return "f" + self.bytes.hex()

    @property
    def short(self) -> str:
        """The last 8 hex digits, as shown to people."""
        return self.digest[-4:].hex()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Multihash.parse({self.text!r})"
