"""Whatever happens to a file of a dataset, verify finds it and says which file and what about it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodmark as fm
from faults.small_lake import NAME, rows, runtime
from floodmark.chain import codec
from floodmark.chain.events import AddData, Checkpoint, MetadataBlock, MetadataEvent, Seed, SetDataSchema
from floodmark.chain.hashes import Multihash
from floodmark.chain.head import format_head
from floodmark.ledger.commit import empty_event, plan_blocks, publish
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.slice_check import Problem
from floodmark.storage.memory import MemoryStore

KINDS = {"blocks": "block", "data": "data", "checkpoints": "checkpoint", "refs": "head"}


@dataclass(frozen=True)
class World:
    """A small dataset with one of everything, whose objects can be changed behind its back."""

    dataset: fm.Dataset
    objects: DatasetObjects
    content: dict[str, bytes]

    def keys(self, folder: str) -> list[str]:
        return [key for key in self.content if f"/{folder}/" in key]

    def put(self, key: str, data: bytes | None) -> None:
        self.objects.store.delete(key)
        if data is not None:
            self.objects.store.put_if_absent(key, data)

    def problems(self, **changed: bytes | None) -> tuple[Problem, ...]:
        raise NotImplementedError

    def after(self, *changes: tuple[str, bytes | None]) -> tuple[Problem, ...]:
        """What verify says when these objects are other bytes, or are gone."""
        for key, data in changes:
            self.put(key, data)
        found = self.dataset.verify()
        for key, _ in changes:
            self.put(key, self.content[key])
        assert found.ok == (not found.problems)
        return found.problems


def build() -> World:
    dataset = fm.Lake(MemoryStore(), runtime=runtime()).create(NAME, event_time="at")
    dataset.write(rows(1, 2, 3).append_column("city", pa.array(["Aa", "Bb", None])), source="kafka", state="1")
    snapshot = dataset.snapshot()
    objects, state = b"the state of a computation", snapshot.state
    checkpoint = Checkpoint(Multihash.sha3_256(objects), len(objects))
    snapshot.objects.store.put_if_absent(snapshot.objects.checkpoint_key(checkpoint.physical_hash), objects)
    event = replace(empty_event(state), new_checkpoint=checkpoint)
    planned, _ = plan_blocks(state, [event], (state.system_time or 0) + 1)
    assert publish(snapshot.objects, snapshot.head, (), planned)
    dataset.write(rows(4, columns=["city"]))
    store = snapshot.objects.store
    content = {info.key: store.get(info.key) for info in store.list(snapshot.objects.folder) if "/info/" not in info.key}
    found = dataset.verify()
    assert found.ok
    assert (found.blocks, found.slices, found.checkpoints) == (7, 2, 1)
    return World(dataset, snapshot.objects, content)


@pytest.fixture(scope="module")
def world() -> World:
    return build()
