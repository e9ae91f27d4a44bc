"""Dataset ids: an ed25519 public key that names a dataset wherever it is copied or renamed to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from floodmark.chain.errors import BadDatasetId

KEY_SIZE = 32
SEED_SIZE = 32
_PREFIX = bytes.fromhex("ed01")
_TEXT_PREFIX = "did:odf:f"
_HINT = "A dataset id reads did:odf:fed01… followed by 64 lower-case hex digits."


@dataclass(frozen=True, slots=True)
class DatasetId:
    """The id of a dataset."""

    public_key: bytes

    def __post_init__(self) -> None:
        if len(self.public_key) != KEY_SIZE:
            raise BadDatasetId(f"A public key has {KEY_SIZE} bytes, not {len(self.public_key)}.")

    @classmethod
    def generate(cls, random_bytes: Callable[[int], bytes]) -> Self:
        """A new id from 32 random bytes (`os.urandom`, or a test's own source).

        The private key that belongs to it is never kept: nothing is signed with it.
        """
        # Late: 20 ms that only the creation of a dataset needs.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.from_private_bytes(random_bytes(SEED_SIZE)).public_key().public_bytes_raw())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the binary form, strictly."""
        if len(data) != len(_PREFIX) + KEY_SIZE or not data.startswith(_PREFIX):
            raise BadDatasetId(f"These {len(data)} bytes are not a dataset id: {data[:40].hex()}.", data=data)
        return cls(data[len(_PREFIX) :])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form, strictly: lower case, nothing around it."""
        digits = text.removeprefix(_TEXT_PREFIX)
        # bytes.fromhex skips spaces and takes upper case; one id must have one spelling.
        if digits == text or not set(digits) <= set("0123456789abcdef") or len(digits) % 2:
            raise BadDatasetId(f"Not a dataset id: {text[:100]!r}.", hint=_HINT, text=text)
        try:
            return cls.from_bytes(bytes.fromhex(digits))
        except BadDatasetId as error:
            raise BadDatasetId(f"Not a dataset id: {text[:100]!r}.", hint=_HINT, text=text) from error

    @property
    def bytes(self) -> bytes:
        """The binary form, as blocks hold it."""
        return _PREFIX + self.public_key

    @property
    def text(self) -> str:
        """The text form, as people and SetTransform spell it."""
        return _TEXT_PREFIX + self.bytes.hex()

    def __str__(self) -> str:
        return self.text
