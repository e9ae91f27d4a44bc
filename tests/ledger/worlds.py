"""What the tests of the ledger build their worlds from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.chain.events import AddData, MetadataBlock
from floodmark.chain.ids import Multihash
from floodmark.chain.walk import walk_back
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore

START = datetime(2026, 3, 1, tzinfo=UTC)
SECOND = 10**9


class Clock:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.now = int(START.timestamp()) * SECOND

    def __call__(self) -> int:
        return self.now

    def tick(self, seconds: float = 1) -> datetime:
        self.now += int(seconds * SECOND)
        return START + timedelta(seconds=(self.now - int(START.timestamp()) * SECOND) / SECOND)


class _Interleaving:
    """A store that runs another writer's action at a chosen call, once."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        self._actions: list[tuple[str, str, Callable[[], Any]]] = []

    def at(self, call: str, action: Callable[[], Any], part: str = "") -> None:
        """Run the action at the next such call whose key contains `part`."""
        self._actions.append((call, part, action))

    def _act(self, call: str, key: str) -> None:
        for waiting in list(self._actions):
            if waiting[0] == call and waiting[1] in key and waiting in self._actions:
                self._actions.remove(waiting)
                waiting[2]()

    def get(self, key: str) -> bytes:
        self._act("before get", key)
        return super().get(key)

    def turn(self, key: str) -> Any:
        self._act("before turn", key)
        return super().turn(key)

    def put_derived_file(self, key: str, path: Path) -> None:
        self._act("before put_derived_file", key)
        super().put_derived_file(key, path)
        self._act("after put_derived_file", key)


class InterleavingStore(_Interleaving, MemoryStore):
    """In memory."""


class InterleavingFolder(_Interleaving, LocalStore):
    """In a folder."""


def racing(base):
    """A store whose heads are moved by other writers just before our next swaps."""

    class Racing(base):
        rivals = ()

        def compare_and_swap(self, key, expected, new):
            if expected not in (None, new) and self.rivals:
                first, *rest = self.rivals
                self.rivals = ()
                first()
                self.rivals = tuple(rest)
            return super().compare_and_swap(key, expected, new)

        def turn(self, key):
            return nullcontext()  # everyone at once, as a store may

    return Racing


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
