"""What the tests of the ledger build their worlds from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from floodmark.chain.events import AddData, MetadataBlock
from floodmark.chain.hashes import Multihash
from floodmark.chain.walk import walk_back

START = datetime(2026, 3, 1, tzinfo=UTC)
SECOND = 10**9


class Clock:
    """A clock that stands still until somebody moves it."""

    def __init__(self) -> None:
        self.now = int(START.timestamp()) * SECOND

    def __call__(self) -> int:
        return self.now

    def tick(self, seconds: float = 1) -> datetime:
        self.now += int(seconds * SECOND)
        return START + timedelta(seconds=(self.now - int(START.timestamp()) * SECOND) / SECOND)


def numbers(start: int, end: int) -> pa.Table:
    """The rows start, …, end - 1."""
    return pa.table({"n": pa.array(range(start, end), pa.int64())})


def events(*minutes: int | None, name: str = "at") -> pa.Table:
    """One event per given minute after the start of the tests' time, numbered as they come."""
    times = [None if m is None else START + timedelta(minutes=m) for m in minutes]
    return pa.table({"i": list(range(len(minutes))), name: pa.array(times, pa.timestamp("us", "UTC"))})


def blocks(dataset) -> list[tuple[Multihash, MetadataBlock]]:
    """The whole chain, oldest first, read from its blocks alone."""
    objects = dataset.snapshot().objects
    return [(h, block) for h, _, block in walk_back(objects.get_block, dataset.head)][::-1]


def data_events(dataset) -> list[AddData]:
    """The AddData events of a chain, oldest first."""
    return [block.event for _, block in blocks(dataset) if isinstance(block.event, AddData)]


def keys(dataset, folder: str) -> list[str]:
    """The objects in one folder of a dataset."""
    objects = dataset.snapshot().objects
    return [info.key for info in objects.store.list(f"{objects.folder}/{folder}")]


@contextmanager
def untouched(dataset) -> Iterator[None]:
    """What happens inside leaves the dataset as it was: head, blocks, data and nothing unfinished."""
    before = dataset.head, keys(dataset, "blocks"), keys(dataset, "data")
    yield
    assert (dataset.head, keys(dataset, "blocks"), keys(dataset, "data")) == before
    assert list(dataset.snapshot().objects.store.staging().iterdir()) == []
