"""Garbage collection of a lake: dataset by dataset, then unnamed datasets and staging.

It removes only objects that are unused and older than the grace period. If it is interrupted, the next collection
removes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from floodmark.chain.events import AddData, ExecuteTransform, SetAttachments
from floodmark.chain.ids import DatasetId
from floodmark.chain.state import ChainState
from floodmark.chain.walk import walk_back
from floodmark.columns.garbage import ColumnGarbage
from floodmark.dataset import Dataset
from floodmark.errors import BadId, FloodmarkError, StorageError
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects, remove
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.objects import DatasetObjects
from floodmark.maintenance import staging
from floodmark.maintenance.garbage_sources import (
    RESULT_FOLDERS,
    RESULTS_SECONDS,
    STAGED_FOLDERS,
    AbandonedObjects,
    KeyIndexGarbage,
    MetaGarbage,
    RowCopyGarbage,
    StrayGarbage,
)
from floodmark.rows.live_rows import FoldGarbage
from floodmark.storage import sweep
from floodmark.storage.store import ObjectInfo, Store, read_store_time
from floodmark.storage.sweep import GRACE_SECONDS, GarbageSource
from floodmark.views.stored_definition import replaced_id

if TYPE_CHECKING:
    from floodmark.lake import Lake


MOST_AHEAD = 3600.0
"""How many seconds this machine's clock may be ahead of the store's. The grace period is far longer: days."""

GarbageKind = Literal[
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
class GarbageObjects:
    """Unused objects of one kind, of a dataset or of the lake itself (None)."""

    dataset: str | None
    kind: GarbageKind
    objects: tuple[ObjectInfo, ...]

    @property
    def bytes(self) -> int:
        return sum(info.size for info in self.objects)


@dataclass(frozen=True)
class FailedCollection:
    """A dataset, or the lake itself (None), that could not be searched: nothing more of it was removed."""

    dataset: str | None
    error: str
    hint: str


@dataclass(frozen=True)
class Collector:
    """Finds and removes one kind of garbage: `find` only searches, `collect` returns the objects that it removed."""

    find: Callable[[], Sequence[GarbageObjects]]
    collect: Callable[[], Sequence[GarbageObjects]]


def find_garbage(lake: Lake, requested_names: Sequence[str] = ()) -> Iterator[GarbageObjects | FailedCollection]:
    """The garbage that `collect_garbage` would remove."""
    yield from _run_in_order((dataset, collector.find) for dataset, collector in _collectors(lake, requested_names))


def collect_garbage(lake: Lake, requested_names: Sequence[str] = ()) -> Iterator[GarbageObjects | FailedCollection]:
    """Remove unused objects, and yield what was removed.

    `requested_names` has names of datasets, or ids of unnamed datasets with records. Without it the whole lake is
    searched, but unnamed datasets with records stay.
    """
    check_clock(lake.store, lake.runtime.clock() / 10**9)
    yield from _run_in_order((dataset, collector.collect) for dataset, collector in _collectors(lake, requested_names))


def check_clock(store: Store, now: float) -> None:
    """Refuse to collect if this machine's clock is ahead of the store's: young objects would look old."""
    ahead = now - read_store_time(store)
    if ahead > MOST_AHEAD:
        raise StorageError(
            f"this machine's clock is {ahead / 3600:,.1f} hours ahead of that of {store.url}; nothing was removed",
            hint="set the clock, then try again: with a wrong clock, new objects look old",
            seconds=ahead,
        )


def _collectors(lake: Lake, requested_names: Sequence[str]) -> Iterator[tuple[str | None, Collector]]:
    now = lake.runtime.clock() / 10**9
    oldest = now - GRACE_SECONDS
    ids = [name for name in requested_names if is_id(name)]
    named = [
        names.require_entry(lake.store, name) for name in requested_names if name not in ids
    ]  # fails before anything is removed
    for entry in named if requested_names else names.entries(lake.store):
        objects = dataset_objects(lake.store, entry.id)
        for collector in _dataset_collectors(Dataset.open(Ledger(entry.name, objects, lake.runtime)), objects, now):
            yield entry.name, collector
    if ids or not requested_names:
        yield None, _unnamed_collector(lake.store, oldest, ids)
    if not requested_names:
        yield None, _staging_collector(lake.store, now)


def _run_in_order(
    acts: Iterable[tuple[str | None, Callable[[], Sequence[GarbageObjects]]]],
) -> Iterator[GarbageObjects | FailedCollection]:
    """Run these in order; if a dataset cannot be read, skip the rest of it and continue with the others."""
    unreadable = set()
    for dataset, act in acts:
        if dataset is not None and dataset in unreadable:
            continue
        try:
            yield from (found for found in act() if found.objects)
        except FloodmarkError as error:
            unreadable.add(dataset)
            yield FailedCollection(dataset, error.message, error.hint)


def _dataset_collectors(dataset: Dataset, objects: DatasetObjects, now: float) -> list[Collector]:
    name, oldest = dataset.name, now - GRACE_SECONDS

    def of(kind: GarbageKind, source: GarbageSource[Any], oldest: float = oldest) -> Collector:
        return Collector(
            lambda: [GarbageObjects(name, kind, sweep.find(source, oldest).objects)],
            lambda: [GarbageObjects(name, kind, sweep.collect(source, oldest).objects)],
        )

    return [
        Collector(
            lambda: _computed_garbage(name, dataset.find_garbage()),
            lambda: _computed_garbage(name, dataset.collect_garbage()),
        ),
        of("folded files", FoldGarbage(objects)),
        of("key index", KeyIndexGarbage(objects, dataset.snapshot)),
        of("copies of rows", RowCopyGarbage(objects, dataset.snapshot)),
        of("slices and blocks", StrayGarbage(objects)),
        of("transform meta", MetaGarbage(objects)),
        of("results of stopped runs", AbandonedObjects(objects, RESULT_FOLDERS), now - RESULTS_SECONDS),
        of("staging", AbandonedObjects(objects, STAGED_FOLDERS)),
    ]


def _computed_garbage(name: str, garbage: ColumnGarbage) -> list[GarbageObjects]:
    """The garbage of computed columns, views and timelines."""
    checkpoints = tuple(ObjectInfo(c.key, c.size, c.modified) for c in garbage.checkpoints)
    return [
        GarbageObjects(name, "checkpoints", checkpoints),
        GarbageObjects(name, "files of columns and timelines", garbage.files),
    ]


def _unnamed_collector(store: Store, oldest: float, ids: Sequence[str]) -> Collector:
    def garbage(unnamed: Sequence[UnnamedDataset]) -> list[GarbageObjects]:
        return [GarbageObjects(str(one.id), "unnamed dataset", one.objects) for one in unnamed]

    return Collector(
        lambda: garbage(find_removable(store, oldest, ids)), lambda: garbage(collect_unnamed(store, oldest, ids))
    )


def _staging_collector(store: Store, now: float) -> Collector:
    return Collector(
        lambda: [GarbageObjects(None, "staging", staging.find(store, now))],
        lambda: [GarbageObjects(None, "staging", staging.collect(store, now))],
    )


# Datasets without a name

_FOLDER = "datasets"


@dataclass(frozen=True)
class UnnamedDataset:
    """A dataset without a name; `records` is None if it has no head, or cannot be read."""

    id: DatasetId
    objects: tuple[ObjectInfo, ...]
    has_head: bool
    records: int | None
    was_replacement: bool  # created to replace a view, but did not replace it

    @property
    def is_useless(self) -> bool:
        """Whether gc may remove it without its id: it has no records, or is an unfinished replacement of a view."""
        return not self.has_head or self.records == 0 or self.was_replacement

    def is_old(self, oldest: float) -> bool:
        """Whether all its objects were written before this time."""
        return all(info.modified < oldest for info in self.objects)


@dataclass(frozen=True)
class NamedDatasets:
    """The datasets that all names refer to: those that have or will get a name, and views and replaced datasets."""

    known: frozenset[DatasetId]
    replaced: frozenset[DatasetId]

    @staticmethod
    def of(store: Store) -> NamedDatasets:
        """Empty if a name is damaged: the dataset that it refers to is not known."""
        damaged: list[names.DamagedName] = []
        entries = names.all_entries(store, damaged.append)
        if damaged:
            return NamedDatasets(frozenset(), frozenset())
        replaced = frozenset(old for entry in entries for old in entry.previous)
        views = frozenset(entry.id for entry in entries if entry.rows_of is None)
        known = frozenset(one for entry in entries for one in (entry.id, entry.pending) if one is not None)
        return NamedDatasets(known, views | replaced)


def find_unnamed(store: Store) -> list[UnnamedDataset]:
    """All datasets that no name refers to; empty if names may be lost.

    A dataset that is being created is among them, but it is young.
    """
    return find_all_unnamed(store) if NamedDatasets.of(store).known else []


def find_all_unnamed(store: Store) -> list[UnnamedDataset]:
    """The same, also if all names are lost."""
    named = NamedDatasets.of(store)
    unnamed = (_inspect(store, one, named) for one in _stored_ids(store) if one not in named.known)
    return [one for one in unnamed if one.objects]


def find_removable(store: Store, oldest: float, requested_names: Sequence[str] = ()) -> list[UnnamedDataset]:
    """The old unnamed datasets that gc may remove: those with the given ids, by default the useless ones."""
    old = [one for one in find_unnamed(store) if one.is_old(oldest)]
    return [one for one in old if (str(one.id) in requested_names if requested_names else one.is_useless)]


def collect_unnamed(store: Store, oldest: float, requested_names: Sequence[str] = ()) -> list[UnnamedDataset]:
    """Remove them, the head first, so that no commit follows. After a crash, the next collection removes the rest."""
    removed = []
    for one in find_removable(store, oldest, requested_names):
        objects = dataset_objects(store, one.id)
        with objects.turn():
            named = NamedDatasets.of(store)
            if named.known and one.id not in named.known and _inspect(store, one.id, named) == one:
                remove(objects)
                removed.append(one)
    return removed


def is_id(text: str) -> bool:
    """Whether a text is the id of a dataset, not a name."""
    try:
        DatasetId.parse(text)
    except BadId:
        return False
    return True


def _stored_ids(store: Store) -> list[DatasetId]:
    """The datasets that have objects; on a disk those that have a folder, which may be empty."""
    folder = store.local_path(_FOLDER)
    if folder is None:
        folders = {info.key.split("/")[1] for info in store.list(_FOLDER)}
    else:
        folders = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return [known for known in map(_id_of, sorted(folders)) if known is not None]


def _id_of(folder: str) -> DatasetId | None:
    try:
        dataset_id = DatasetId.from_bytes(bytes.fromhex(folder))
    except (ValueError, BadId):
        return None  # not a dataset's folder
    return dataset_id if dataset_id.bytes.hex() == folder else None


def _inspect(store: Store, dataset_id: DatasetId, named: NamedDatasets) -> UnnamedDataset:
    objects = dataset_objects(store, dataset_id)
    infos = tuple(store.list(objects.folder))
    has_head = any(info.key == objects.head_key for info in infos)
    try:
        records, replaced = _on_chain(objects)
    except FloodmarkError:
        records, replaced = None, None
    was_replacement = dataset_id not in named.replaced and any(str(view) == replaced for view in named.replaced)
    return UnnamedDataset(dataset_id, infos, has_head, records, was_replacement)


def _on_chain(objects: DatasetObjects) -> tuple[int | None, str | None]:
    """How many records were ever committed, None without a head, and which view it should replace.

    Reads the chain only, because an index would be written.
    """
    head = objects.read_head()
    if head is None:
        return None, None
    records: int | None = None
    for _, _, block in walk_back(objects.get_block, head):
        event = block.event
        if isinstance(event, AddData | ExecuteTransform) and records is None:
            last = event.prev_offset if event.new_data is None else event.new_data.offset_interval.end
            records = 0 if last is None else last + 1
        elif isinstance(event, SetAttachments):
            return records or 0, replaced_id(ChainState(attachments=event))
    return records or 0, None
