"""Commit notes: small JSON documents that record what a commit was computed from. A commit names it as checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

from floodmark.chain.events import Checkpoint
from floodmark.chain.ids import Multihash
from floodmark.errors import FloodmarkError, ObjectNotFound
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.facts import build, parse_json

N = TypeVar("N", bound="CommitNote")


class BadNote(FloodmarkError):
    """The note that a commit names cannot be read; `problem` has the reason, such as "is gone"."""

    file: str
    problem: str


class NoteGone(BadNote):
    """The note that a commit names does not exist any more."""


@dataclass(frozen=True)
class CommitNote:
    """A note. Each kind of derived dataset has a subclass, identified by KIND."""

    KIND: ClassVar[str]

    def to_bytes(self) -> bytes:
        return json.dumps({"kind": self.KIND, **asdict(self)}, sort_keys=True).encode()

    @property
    def checkpoint(self) -> Checkpoint:
        data = self.to_bytes()
        return Checkpoint(Multihash.sha3_256(data), len(data))

    def put(self, objects: DatasetObjects) -> None:
        """Store the note under the key that its commit names."""
        objects.store.put_if_absent(objects.checkpoint_key(self.checkpoint.physical_hash), self.to_bytes())


@dataclass(frozen=True)
class StoredNote:
    """The content of a stored note. Its kind is None if Floodmark did not write it."""

    file: str
    kind: str | None
    facts: Mapping[str, Any]

    def read_as(self, note: type[N]) -> N | None:
        """The note if it has this kind, else None."""
        if self.kind != note.KIND:
            return None
        try:
            return build(note, dict(self.facts))
        except ValueError as error:
            raise _bad(self.file, f"is of another format ({error})") from error


def load_note(objects: DatasetObjects, checkpoint: Multihash) -> StoredNote:
    """Read the note that a commit names; `BadNote` if it is gone, or its bytes do not hash to its name."""
    try:
        data = objects.store.get(objects.checkpoint_key(checkpoint))
    except ObjectNotFound as error:
        raise _bad(checkpoint.text, "is gone", NoteGone) from error
    if Multihash.sha3_256(data) != checkpoint:
        raise _bad(checkpoint.text, "was changed or damaged")
    return parse_note(data, checkpoint.text)


def parse_note(data: bytes, file: str) -> StoredNote:
    """Parse the bytes of a note."""
    try:
        content = parse_json(data)
    except ValueError:
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("kind"), str):
        return StoredNote(file, None, {})
    return StoredNote(file, content.pop("kind"), content)


def sealed(data: bytes) -> bytes:
    """The bytes of a note with a checksum, for a note that no block names by its hash."""
    return json.dumps({**json.loads(data), _CHECKSUM: _checksum(data)}, sort_keys=True).encode()


def parse_sealed(data: bytes, file: str) -> StoredNote:
    """Parse the bytes of such a note. Its kind is None if it is damaged."""
    try:
        content = parse_json(data)
        checksum = content.pop(_CHECKSUM, None) if isinstance(content, dict) else None
        plain = json.dumps(content, sort_keys=True).encode()
    except (ValueError, RecursionError):
        return StoredNote(file, None, {})
    return parse_note(plain, file) if checksum == _checksum(plain) else StoredNote(file, None, {})


_CHECKSUM = "checksum"


def _checksum(data: bytes) -> str:
    return hashlib.sha3_256(data).hexdigest()[:32]


def _bad(file: str, problem: str, kind: type[BadNote] = BadNote) -> BadNote:
    return kind(f"the note {file} {problem}", hint="restore it from a copy of the dataset", file=file, problem=problem)
