"""Commit notes: small JSON documents, named by commits as their checkpoints, that say what a dataset was made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

from floodmark.chain.events import Checkpoint
from floodmark.chain.hashes import Multihash
from floodmark.errors import FloodmarkError
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.errors import ObjectNotFound

N = TypeVar("N", bound="CommitNote")


class BadNote(FloodmarkError):
    """The note that a commit names cannot be read; `problem` says why, as in "the note is gone"."""

    file: str
    problem: str


class NoteGone(BadNote):
    """The note that a commit names is gone."""


@dataclass(frozen=True)
class CommitNote:
    """A note; each kind of derived dataset has its own, told apart by KIND."""

    KIND: ClassVar[str]

    def to_bytes(self) -> bytes:
        return json.dumps({"kind": self.KIND, **asdict(self)}, sort_keys=True).encode()

    @property
    def checkpoint(self) -> Checkpoint:
        data = self.to_bytes()
        return Checkpoint(Multihash.sha3_256(data), len(data))

    def put(self, objects: DatasetObjects) -> None:
        """Store it under the key that its commit names."""
        objects.store.put_if_absent(objects.checkpoint_key(self.checkpoint.physical_hash), self.to_bytes())


@dataclass(frozen=True)
class Facts:
    """A note as read. Its kind is None if Floodmark did not write it."""

    file: str
    kind: str | None
    facts: Mapping[str, Any]

    def read_as(self, note: type[N]) -> N | None:
        """The note, if it is of this kind."""
        if self.kind != note.KIND:
            return None
        try:
            return note(**self.facts)
        except TypeError as error:
            raise _bad(self.file, f"is of another format ({error})") from error


def read(objects: DatasetObjects, checkpoint: Multihash) -> Facts:
    """The note that a commit names; `BadNote` if it is gone, or its bytes do not hash to its name."""
    try:
        data = objects.store.get(objects.checkpoint_key(checkpoint))
    except ObjectNotFound as error:
        raise _bad(checkpoint.text, "is gone", NoteGone) from error
    if Multihash.sha3_256(data) != checkpoint:
        raise _bad(checkpoint.text, "was changed or damaged")
    return parse(data, checkpoint.text)


def parse(data: bytes, file: str) -> Facts:
    """What a note says."""
    try:
        said: Any = json.loads(data)
    except ValueError:
        said = None
    if not isinstance(said, dict) or not isinstance(said.get("kind"), str):
        return Facts(file, None, {})
    return Facts(file, said.pop("kind"), said)


def _bad(file: str, problem: str, kind: type[BadNote] = BadNote) -> BadNote:
    return kind(
        f"the note {file} {problem}", hint="bring it back from a copy of the dataset", file=file, problem=problem
    )
