"""What a run notes beside its commits, for whoever asks later what a record was made of.

The chain says up to which records the inputs are done. A run reads them as of their heads, which may lie further when
it is limited to some keys; it is the step that knows which of their columns are the transform keys; and a row may be
gone because its key failed, not because its inputs are. None of it can be told from anything else once the transform
meta has moved on.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from floodmark.chain.hashes import Multihash
from floodmark.derive import notes
from floodmark.derive.notes import CommitNote, N
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.arrays import Hashes
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.store import ObjectInfo
from floodmark.transform.changed.filters import Filters, canonical
from floodmark.transform.changed.shape import Shape


@dataclass(frozen=True)
class Made(CommitNote):
    """A commit of a step's first output: which run it is of, and as of which records that run read its inputs."""

    KIND: ClassVar[str] = "floodmark.made"

    step: str
    version: str  # of the function and of what it is applied to, as the meta has it
    run: str
    process_ts: int  # milliseconds
    pinned: Mapping[str, int]  # by dataset id the newest record, -1 for none
    blocks: Mapping[str, str]  # by dataset id the head: which columns there were
    purged: Mapping[str, int]  # by dataset id the first record that was not purged by then
    failed: str = ""  # the keys that failed in this commit, packed: their rows, if they had any, were taken back

    def put_beside(self, objects: DatasetObjects, checkpoint: Multihash) -> None:
        """Store it where who knows the checkpoint of the commit finds it."""
        objects.store.put_if_absent(_made_key(objects, checkpoint), self.to_bytes())

    @staticmethod
    def beside(objects: DatasetObjects, checkpoint: Multihash) -> Made | None:
        """What was noted beside a commit; None where nothing is."""
        return _read(objects, _made_key(objects, checkpoint), Made)


@dataclass(frozen=True)
class Declared(CommitNote):
    """One version of a step: its transform keys, and what each input has of them."""

    KIND: ClassVar[str] = "floodmark.declared"

    step: str
    version: str
    keys: Sequence[str]
    inputs: Sequence[Mapping[str, Any]]  # dataset, keys: transform key → column; columns of the function, required
    way: str  # map, keyed or cross
    filters: Any = None  # those that are declared with the step, as its version has them

    @staticmethod
    def of(
        step: str, version: str, shape: Shape, columns: Sequence[Sequence[str] | None], filters: Filters
    ) -> Declared:
        inputs = [
            {
                "dataset": given.dataset_id,
                "keys": dict(given.keys),
                "columns": None if wanted is None else list(wanted),
                "required": given.required,
            }
            for given, wanted in zip(shape.inputs, columns, strict=True)
        ]
        said = None if filters is None else canonical(filters)
        return Declared(step, version, list(shape.names), inputs, shape.kind, said)

    def put_in(self, objects: DatasetObjects) -> None:
        objects.store.put_if_absent(_declared_key(objects, self.version), self.to_bytes())

    @staticmethod
    def named(objects: DatasetObjects, version: str) -> Declared | None:
        """What an output knows of a version of its step."""
        return _read(objects, _declared_key(objects, version), Declared)

    @staticmethod
    def all_of(objects: DatasetObjects) -> list[Declared]:
        """What an output knows of all versions of its step that it ever had results of."""
        keys = sorted(info.key for info in objects.store.list(f"{objects.folder}/info/transform/declared"))
        return [declared for key in keys if (declared := _read(objects, key, Declared)) is not None]


def list_made(objects: DatasetObjects) -> Iterator[ObjectInfo]:
    """What is noted beside commits; the last part of each key is the checkpoint's name."""
    return objects.store.list(f"{objects.folder}/info/transform/made")


def packed(hashes: Hashes) -> str:
    """Hashes of keys as text."""
    return base64.b64encode(np.concatenate([hashes.high, hashes.low]).astype("<u8").tobytes()).decode()


def unpacked(text: str) -> Hashes:
    """The hashes that `packed` was given."""
    both = np.frombuffer(base64.b64decode(text), "<u8").astype(np.uint64)
    return Hashes(*np.split(both, 2))


def _made_key(objects: DatasetObjects, checkpoint: Multihash) -> str:
    return f"{objects.folder}/info/transform/made/{checkpoint.text}"


def _declared_key(objects: DatasetObjects, version: str) -> str:
    # A version may be any text that a user gave.
    return f"{objects.folder}/info/transform/declared/{hashlib.sha3_256(version.encode()).hexdigest()}"


def _read(objects: DatasetObjects, key: str, kind: type[N]) -> N | None:
    try:
        return notes.parse(objects.store.get(key), key).read_as(kind)
    except ObjectNotFound:
        return None
