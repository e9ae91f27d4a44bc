"""Multihashes, dataset ids, block references, and the text of `refs/head`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from floodmark.errors import BadId

SHA3_256 = 0x16
"""Hash of bytes: blocks, Parquet files, checkpoints."""

LOGICAL = 0x300016
"""Hash of a slice's records. It does not depend on how Parquet encodes them."""

DIGEST_SIZE = 32

# varint(code) + varint(32). There are two codes and one length, so a multihash is one of two prefixes and 32 bytes.
_PREFIXES = {SHA3_256: bytes.fromhex("1620"), LOGICAL: bytes.fromhex("9680c00120")}
_CODES = {len(prefix) + DIGEST_SIZE: (prefix, code) for code, prefix in _PREFIXES.items()}
_HASH_HINT = "Write a hash as f1620… or f9680c00120… followed by 64 lower-case hex digits."


@dataclass(frozen=True, slots=True, repr=False)
class Multihash:
    """A digest and the hash function that computed it."""

    code: int
    digest: bytes

    def __post_init__(self) -> None:
        if self.code not in _PREFIXES:
            raise BadId(f"Unknown hash function 0x{self.code:x}.", hint=_HASH_HINT, code=self.code)
        if len(self.digest) != DIGEST_SIZE:
            raise BadId(f"A digest has {DIGEST_SIZE} bytes, not {len(self.digest)}.", digest=self.digest)

    @classmethod
    def sha3_256(cls, data: bytes | bytearray | memoryview) -> Self:
        """The SHA3-256 hash of these bytes. Blocks and files are named by it."""
        return cls(SHA3_256, hashlib.sha3_256(data).digest())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse the binary form; `BadId` if it is not valid."""
        prefix, code = _CODES.get(len(data), (b"", 0))
        if not prefix or not data.startswith(prefix):
            raise BadId(f"These {len(data)} bytes are not a multihash: {data[:40].hex()}.", data=data)
        return cls(code, data[len(prefix) :])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form: multibase `f` and lower-case hex, without spaces. `BadId` if it is not valid."""
        # bytes.fromhex accepts spaces and upper case, but a hash must have exactly one text form.
        if text[:1] != "f" or not set(text[1:]) <= set("0123456789abcdef") or len(text) % 2 == 0:
            raise BadId(f"Not a multihash: {text[:100]!r}.", hint=_HASH_HINT, text=text)
        try:
            return cls.from_bytes(bytes.fromhex(text[1:]))
        except BadId as error:
            raise BadId(f"Not a multihash: {text[:100]!r}.", hint=_HASH_HINT, text=text) from error

    @property
    def bytes(self) -> bytes:
        """The binary form, used in blocks."""
        return _PREFIXES[self.code] + self.digest

    @property
    def text(self) -> str:
        """The text form, used in file names and in `refs/head`."""
        return "f" + self.bytes.hex()

    @property
    def short(self) -> str:
        """The last 8 hex digits, for messages."""
        return self.digest[-4:].hex()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Multihash.parse({self.text!r})"


# Dataset ids

KEY_SIZE = 32
SEED_SIZE = 32
_PREFIX = bytes.fromhex("ed01")
_TEXT_PREFIX = "did:odf:f"
_HINT = "Write a dataset id as did:odf:fed01… followed by 64 lower-case hex digits."


@dataclass(frozen=True, slots=True)
class DatasetId:
    """The id of a dataset: an Ed25519 public key."""

    public_key: bytes

    def __post_init__(self) -> None:
        if len(self.public_key) != KEY_SIZE:
            raise BadId(f"A public key has {KEY_SIZE} bytes, not {len(self.public_key)}.")

    @classmethod
    def generate(cls, random_bytes: Callable[[int], bytes]) -> Self:
        """A new id from 32 random bytes (`os.urandom`, or a source that a test gives).

        The private key is not stored, because nothing is signed with it.
        """
        # Imported here because it takes 20 ms and only creating a dataset needs it.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.from_private_bytes(random_bytes(SEED_SIZE)).public_key().public_bytes_raw())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse the binary form; `BadId` if it is not valid."""
        if len(data) != len(_PREFIX) + KEY_SIZE or not data.startswith(_PREFIX):
            raise BadId(f"These {len(data)} bytes are not a dataset id: {data[:40].hex()}.", data=data)
        return cls(data[len(_PREFIX) :])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form: lower case, without spaces. `BadId` if it is not valid."""
        digits = text.removeprefix(_TEXT_PREFIX)
        # bytes.fromhex accepts spaces and upper case, but an id must have exactly one text form.
        if digits == text or not set(digits) <= set("0123456789abcdef") or len(digits) % 2:
            raise BadId(f"Not a dataset id: {text[:100]!r}.", hint=_HINT, text=text)
        try:
            return cls.from_bytes(bytes.fromhex(digits))
        except BadId as error:
            raise BadId(f"Not a dataset id: {text[:100]!r}.", hint=_HINT, text=text) from error

    @property
    def bytes(self) -> bytes:
        """The binary form, used in blocks."""
        return _PREFIX + self.public_key

    @property
    def text(self) -> str:
        """The text form, used in messages and in SetTransform."""
        return _TEXT_PREFIX + self.bytes.hex()

    def __str__(self) -> str:
        return self.text


# Blocks and the head


@dataclass(frozen=True, order=False)
class BlockRef:
    """A reference to a block: its sequence number and its hash."""

    sequence_number: int
    hash: Multihash

    def __str__(self) -> str:
        return f"block {self.sequence_number} ({self.hash.short})"


def format_head(head: Multihash) -> bytes:
    """The content of `refs/head` when `head` is the newest block."""
    return head.text.encode()


def parse_head(data: bytes) -> Multihash:
    """The newest block's hash. Strict, because compare-and-swap needs exactly one text form per block."""
    try:
        head = Multihash.parse(data.decode("ascii"))
    except (BadId, UnicodeDecodeError) as error:
        raise _bad_head(data) from error
    if head.code != SHA3_256:
        raise _bad_head(data)
    return head


def _bad_head(data: bytes) -> BadId:
    return BadId(
        f"refs/head does not contain a block hash but {data[:100]!r}.",
        hint="Write the hash of the newest block to it: f1620 and 64 lower-case hex digits, no newline.",
        data=data,
    )
