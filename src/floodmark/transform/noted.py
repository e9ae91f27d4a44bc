"""Small notes that are the checkpoint of a commit: what a dataset was made of, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import ClassVar

from floodmark.chain.events import Checkpoint
from floodmark.chain.hashes import Multihash
from floodmark.ledger.objects import DatasetObjects


@dataclass(frozen=True)
class Noted:
    """A note; each kind says by its name what it is, and adds what it has to say."""

    KIND: ClassVar[str]

    def to_bytes(self) -> bytes:
        return json.dumps({"kind": self.KIND, **asdict(self)}, sort_keys=True).encode()

    @property
    def checkpoint(self) -> Checkpoint:
        data = self.to_bytes()
        return Checkpoint(Multihash.sha3_256(data), len(data))

    def put(self, objects: DatasetObjects) -> None:
        """Store it, where the commit that names it will look for it."""
        objects.store.put_if_absent(objects.checkpoint_key(self.checkpoint.physical_hash), self.to_bytes())
