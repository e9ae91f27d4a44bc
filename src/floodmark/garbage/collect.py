"""The order of a collection: dataset by dataset, then what belongs to none; the place to start.

Everything that is removed is derived, was never named, or is not named any more, and is older than the grace period. A
crash in the middle leaves the rest for the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from floodmark.compute.stored.gc import Garbage
from floodmark.dataset import Dataset
from floodmark.errors import FloodmarkError
from floodmark.garbage import staging, unnamed
from floodmark.garbage.errors import ClockAhead
from floodmark.garbage.key_files import KeyFiles
from floodmark.garbage.meta import Meta
from floodmark.garbage.sources import RESULTS, RESULTS_SECONDS, STAGED, Abandoned, RowCopies, Strays
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.fold_manifest import FoldedFiles
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage import sweep
from floodmark.storage.store import ObjectInfo, Store
from floodmark.storage.sweep import GRACE_SECONDS, GarbageSource

if TYPE_CHECKING:
    from floodmark.lake import Lake

MOST_AHEAD = 3600.0
"""So many seconds may this machine's clock be ahead of the store's: against a grace of days that is nothing."""

Kind = Literal[
    "checkpoints",
    "files of columns and timelines",
    "folded files",
    "key index",
    "copies of rows",
    "slices and blocks",
    "transform meta",
    "results of stopped runs",
    "staging",
    "unnamed dataset",
]


@dataclass(frozen=True)
class Found:
    """Objects of one kind that are of no use: those of a dataset, or of the lake itself (None)."""

    dataset: str | None
    kind: Kind
    objects: tuple[ObjectInfo, ...]

    @property
    def bytes(self) -> int:
        return sum(info.size for info in self.objects)


@dataclass(frozen=True)
class Failed:
    """A dataset, or the lake itself, that could not be looked through: nothing more of it was removed."""

    dataset: str | None
    error: str
    hint: str


@dataclass(frozen=True)
class Collector:
    """One way in which garbage comes about: `find` only looks, `collect` returns what it removed."""

    find: Callable[[], Sequence[Found]]
    collect: Callable[[], Sequence[Found]]


def find(lake: Lake, wanted: Sequence[str] = ()) -> Iterator[Found | Failed]:
    """What `collect` would remove."""
    yield from _tried((dataset, collector.find) for dataset, collector in _collectors(lake, wanted))


def collect(lake: Lake, wanted: Sequence[str] = ()) -> Iterator[Found | Failed]:
    """Remove what nobody needs any more; says what went.

    `wanted` are names of datasets, or ids of such as have no name and do have records; without it all of the lake is
    looked through, but what has records and no name stays.
    """
    check_clock(lake.store, lake.runtime.clock() / 10**9)
    yield from _tried((dataset, collector.collect) for dataset, collector in _collectors(lake, wanted))


def check_clock(store: Store, now: float) -> None:
    """Refuse to tell old from young by a clock that is ahead of the one that the objects' ages are from."""
    ahead = now - store_time(store)
    if ahead > MOST_AHEAD:
        raise ClockAhead(
            f"this machine's clock is {ahead / 3600:,.1f} hours ahead of that of {store.url}; nothing was removed",
            hint="set the clock, then try again: what is young would look old",
            seconds=ahead,
        )


def store_time(store: Store) -> float:
    """What time it is where the objects are (epoch seconds): that of a small one which is made for it."""
    key = f"runs/clock-{uuid4().hex}"
    store.put_derived(key, b"")
    try:
        info = store.stat(key)
    finally:
        store.delete(key)
    assert info is not None
    return info.modified


def _collectors(lake: Lake, wanted: Sequence[str]) -> Iterator[tuple[str | None, Collector]]:
    now = lake.runtime.clock() / 10**9
    oldest = now - GRACE_SECONDS
    ids = [name for name in wanted if unnamed.is_id(name)]
    named = [names.find(lake.store, name) for name in wanted if name not in ids]  # before anything goes: all are there
    for entry in named if wanted else names.entries(lake.store):
        objects = dataset_objects(lake.store, entry.id)
        for collector in _of_dataset(Dataset(Ledger(entry.name, objects, lake.runtime)), objects, now):
            yield entry.name, collector
    if ids or not wanted:
        yield None, _unnamed(lake.store, oldest, ids)
    if not wanted:
        yield None, _staged(lake.store, now)


def _tried(acts: Iterable[tuple[str | None, Callable[[], Sequence[Found]]]]) -> Iterator[Found | Failed]:
    """A dataset that cannot be read is left alone, and does not keep the others from being looked through."""
    unreadable = set()
    for dataset, act in acts:
        if dataset is not None and dataset in unreadable:
            continue
        try:
            yield from (found for found in act() if found.objects)
        except FloodmarkError as error:
            unreadable.add(dataset)
            yield Failed(dataset, error.message, error.hint)


def _of_dataset(dataset: Dataset, objects: DatasetObjects, now: float) -> list[Collector]:
    name, oldest = dataset.name, now - GRACE_SECONDS

    def of(kind: Kind, source: GarbageSource[Any], oldest: float = oldest) -> Collector:
        return Collector(
            lambda: [Found(name, kind, sweep.find(source, oldest).objects)],
            lambda: [Found(name, kind, sweep.collect(source, oldest).objects)],
        )

    return [
        Collector(lambda: _computed(name, dataset.find_garbage()), lambda: _computed(name, dataset.collect_garbage())),
        of("folded files", FoldedFiles(objects)),
        of("key index", KeyFiles(objects, dataset.snapshot)),
        of("copies of rows", RowCopies(objects, dataset.snapshot)),
        of("slices and blocks", Strays(objects)),
        of("transform meta", Meta(objects)),
        of("results of stopped runs", Abandoned(objects, RESULTS), now - RESULTS_SECONDS),
        of("staging", Abandoned(objects, STAGED)),
    ]


def _computed(name: str, garbage: Garbage) -> list[Found]:
    """What computed columns, views and timelines do not need."""
    checkpoints = tuple(ObjectInfo(c.key, c.size, c.modified) for c in garbage.checkpoints)
    return [Found(name, "checkpoints", checkpoints), Found(name, "files of columns and timelines", garbage.files)]


def _unnamed(store: Store, oldest: float, ids: Sequence[str]) -> Collector:
    def told(found: Sequence[unnamed.Unnamed]) -> list[Found]:
        return [Found(str(one.id), "unnamed dataset", one.objects) for one in found]

    return Collector(
        lambda: told(unnamed.left_over(store, oldest, ids)), lambda: told(unnamed.collect(store, oldest, ids))
    )


def _staged(store: Store, now: float) -> Collector:
    return Collector(
        lambda: [Found(None, "staging", staging.find(store, now))],
        lambda: [Found(None, "staging", staging.collect(store, now))],
    )
