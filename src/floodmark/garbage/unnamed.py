"""Datasets that no name stands for: a crash left them when they were created, dropped, or filled to replace a view.

Such a dataset is removed when it holds no record, or was to replace a view that was not replaced by it. Any other one
with records is removed only if its id is given: perhaps its name was lost, and it is all that is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.chain.errors import BadDatasetId
from floodmark.chain.events import AddData, ExecuteTransform, SetAttachments
from floodmark.chain.ids import DatasetId
from floodmark.chain.state import ChainState
from floodmark.chain.walk import walk_back
from floodmark.errors import FloodmarkError
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects, remove
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.store import ObjectInfo, Store
from floodmark.transform.views.defined.stored import replaces

_FOLDER = "datasets"


@dataclass(frozen=True)
class Unnamed:
    """A dataset without a name; `records` is None where there is no head, or it cannot be read."""

    id: DatasetId
    objects: tuple[ObjectInfo, ...]
    has_head: bool
    records: int | None
    was_replacement: bool  # of a view that was not replaced by it

    @property
    def is_useless(self) -> bool:
        """Whether it can go without being asked for: it holds nothing, or what a view was to hold and never did."""
        return not self.has_head or self.records == 0 or self.was_replacement

    def is_old(self, oldest: float) -> bool:
        """Whether nothing of it was written since a moment."""
        return all(info.modified < oldest for info in self.objects)


@dataclass(frozen=True)
class Named:
    """What all names speak of: datasets that are named or to be, and views in their places."""

    known: frozenset[DatasetId]
    replaced: frozenset[DatasetId]

    @staticmethod
    def of(store: Store) -> Named:
        """Nothing where a name is damaged: what it stands for is not known."""
        damaged: list[names.DamagedName] = []
        entries = names.all_entries(store, damaged.append)
        if damaged:
            return Named(frozenset(), frozenset())
        replaced = frozenset(old for entry in entries for old in entry.previous)
        views = frozenset(entry.id for entry in entries if entry.rows_of is None)
        known = frozenset(one for entry in entries for one in (entry.id, entry.pending) if one is not None)
        return Named(known, views | replaced)


def find(store: Store) -> list[Unnamed]:
    """All datasets that no name speaks of; none where names may be lost.

    One that is being created right now is among them: it is young.
    """
    named = Named.of(store)
    if not named.known:
        return []
    found = (_looked_at(store, one, named) for one in _stored(store) if one not in named.known)
    return [one for one in found if one.objects]


def left_over(store: Store, oldest: float, wanted: Sequence[str] = ()) -> list[Unnamed]:
    """Those that can go now: old ones that are useless, or those among the old ones whose ids are given."""
    old = [one for one in find(store) if one.is_old(oldest)]
    return [one for one in old if (str(one.id) in wanted if wanted else one.is_useless)]


def collect(store: Store, oldest: float, wanted: Sequence[str] = ()) -> list[Unnamed]:
    """Remove them, the head first, so that nothing is committed any more; what a crash leaves goes the next time."""
    gone = []
    for one in left_over(store, oldest, wanted):
        objects = dataset_objects(store, one.id)
        with objects.turn():
            named = Named.of(store)
            if named.known and one.id not in named.known and _looked_at(store, one.id, named) == one:
                remove(objects)
                gone.append(one)
    return gone


def is_id(text: str) -> bool:
    """Whether what a user names is the id of a dataset, and so no name."""
    try:
        DatasetId.parse(text)
    except BadDatasetId:
        return False
    return True


def _stored(store: Store) -> list[DatasetId]:
    """The datasets that have objects; on a disk folders are enough to tell, and some may be empty."""
    folder = store.local_path(_FOLDER)
    if folder is None:
        found = {info.key.split("/")[1] for info in store.list(_FOLDER)}
    else:
        found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return [known for known in map(_id_of, sorted(found)) if known is not None]


def _id_of(folder: str) -> DatasetId | None:
    try:
        found = DatasetId.from_bytes(bytes.fromhex(folder))
    except (ValueError, BadDatasetId):
        return None  # nothing of ours
    return found if found.bytes.hex() == folder else None


def _looked_at(store: Store, dataset_id: DatasetId, named: Named) -> Unnamed:
    objects = dataset_objects(store, dataset_id)
    infos = tuple(store.list(objects.folder))
    has_head = any(info.key == objects.head_key for info in infos)
    try:
        records, replaced = _on_chain(objects)
    except FloodmarkError:
        records, replaced = None, None
    was_replacement = dataset_id not in named.replaced and any(str(view) == replaced for view in named.replaced)
    return Unnamed(dataset_id, infos, has_head, records, was_replacement)


def _on_chain(objects: DatasetObjects) -> tuple[int | None, str | None]:
    """How many records were ever committed, None without a head, and which view it was to replace.

    From the chain alone, so that nothing is written.
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
            return records or 0, replaces(ChainState(attachments=event))
    return records or 0, None
