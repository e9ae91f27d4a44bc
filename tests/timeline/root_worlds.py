"""Partitions without files, and stores in which swaps go wrong: what tests of roots and manifests start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from floodmark.errors import StorageError, SwapUnknown
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.memory import MemoryStore
from floodmark.timeline import root as roots
from floodmark.timeline.commit import RootChange, publish
from floodmark.timeline.manifest import FOLDER, TimelineObjects
from floodmark.timeline.pieces import Partition, Piece, PieceOrigin, TimePoint, WaitingRun
from floodmark.timeline.root import LastUpdate, Root

DAY = 86_400_000_000
DIGEST = "settings"


def own_name(number: int) -> str:
    return f"{FOLDER}/f1620{number:064x}-900-{number:08x}"


def piece(time: int, rows: int = 10, file: str = "data/f1620", offset: int = 0, since: int = 1) -> Piece:
    """A whole row group of rows a microsecond apart."""
    first, last = TimePoint(time, offset), TimePoint(time + rows - 1, offset + rows - 1)
    return Piece(file, 0, 0, rows, rows, first, last, offset, offset + rows - 1, rows * 20, PieceOrigin.SLICE, since)


def partition(day: int, pieces: int = 1, file: str = "data/f1620", waiting: Sequence[Piece] = ()) -> Partition:
    settled = tuple(piece(day * DAY + i * 1000, file=file) for i in range(pieces))
    runs = tuple(WaitingRun(i, 0, (p,)) for i, p in enumerate(waiting))
    return Partition(day * DAY, settled, runs, pieces * 10, pieces * 200, 0)


def objects_with(store: Any = None) -> TimelineObjects:
    return TimelineObjects(DatasetObjects(MemoryStore() if store is None else store, "ticks"))


def change(before: Root, *partitions: Partition, removed: Sequence[int] = (), purged_before: int = 0) -> RootChange:
    """A change that applies ten more records."""
    last = LastUpdate(rows=10, bytes_in=200, bytes_written=100)
    return RootChange(
        applied=before.applied + 10,
        block=f"{before.version + 1:064x}",
        settings_digest=DIGEST,
        partitions=partitions,
        last=last,
        next_run=before.next_run + 1,
        removed=tuple(removed),
        purged_before=purged_before,
    )


def published(objects: TimelineObjects, *partitions: Partition, removed: Sequence[int] = ()) -> Root:
    """The root after a change of the present one."""
    before = roots.load(objects)
    after = publish(objects, before, change(before, *partitions, removed=removed))
    assert after is not None
    return after


class Swaps:
    """A store whose next swaps go as told: answers of `lost` ones are not heard, and `undone` ones do not happen."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.lost = 0
        self.undone = 0
        self.before: Callable[[], object] | None = None
        self.failing_gets = 0
        self.calls: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if not callable(real):
            return real

        def call(key: str, *args: Any) -> Any:
            self.calls.append((name, key))
            return real(key, *args)

        return call

    def get(self, key: str) -> bytes:
        self.calls.append(("get", key))
        if self.failing_gets:
            self.failing_gets -= 1
            raise StorageError("the network is down")
        found: bytes = self._inner.get(key)
        return found

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        self.calls.append(("compare_and_swap", key))
        if self.before is not None:
            first, self.before = self.before, None
            first()
        if self.undone:
            self.undone -= 1
            raise SwapUnknown("no answer", key=key, url="")
        done: bool = self._inner.compare_and_swap(key, expected, new)
        if self.lost:
            self.lost -= 1
            raise SwapUnknown("no answer", key=key, url="")
        return done
