"""Datasets that no name stands for: a crash left them when they were made, dropped, or to take the place of another.

Such a dataset is removed when it holds no record. One with records is removed only if its id is given: perhaps its name
was lost, and it is all that is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from floodmark.chain.errors import BadDatasetId
from floodmark.chain.events import AddData, ExecuteTransform
from floodmark.chain.ids import DatasetId
from floodmark.chain.walk import walk_back
from floodmark.errors import FloodmarkError
from floodmark.garbage.found import last_name, young
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects, remove
from floodmark.ledger.errors import BadName, UnknownDataset
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import Snapshot, load_at
from floodmark.storage.store import ObjectInfo, Store
from floodmark.transform.views.defined.succession import succeeded_by, successor_of

_TRIES = 20
_FOLDER = "datasets"


@dataclass(frozen=True)
class Unnamed:
    """A dataset without a name; `records` is None where there is no head, or it cannot be read."""

    id: DatasetId
    objects: tuple[ObjectInfo, ...]
    has_head: bool
    records: int | None

    @property
    def is_empty(self) -> bool:
        """Whether nobody can have committed a record to it, or ever will."""
        return not self.has_head or self.records == 0

    def is_old(self, oldest: float) -> bool:
        """Whether nothing of it was written since a moment."""
        return not any(young(info, oldest) for info in self.objects)


def find(store: Store) -> list[Unnamed]:
    """All datasets that neither a name nor the chain of a named one speaks of; none where names may be lost.

    One that is being made right now is among them: it is young.
    """
    known = spoken_of(store)
    if not known:
        return []
    found = (_looked_at(store, one) for one in _stored(store) if one not in known)
    return [one for one in found if one.objects]


def spoken_of(store: Store) -> set[DatasetId]:
    """The named datasets, and those that are being made to take the place of one of them.

    Empty where a name is damaged: nobody knows what it stands for.
    """
    found = _settled_names(store)
    waiting = list(found)
    while waiting:
        snapshot = _snapshot(dataset_objects(store, waiting.pop()))
        if snapshot is None:
            continue
        decided = succeeded_by(snapshot.state)
        for heir in (successor_of(snapshot.state), None if decided is None else decided.id):
            if heir is not None and heir not in found:
                found.add(heir)
                waiting.append(heir)
    return found


def left_over(store: Store, oldest: float, wanted: Sequence[str] = ()) -> list[Unnamed]:
    """Those that can go now: old ones without a record, or those among the old ones whose ids are given."""
    old = [one for one in find(store) if one.is_old(oldest)]
    return [one for one in old if (str(one.id) in wanted if wanted else one.is_empty)]


def collect(store: Store, oldest: float, wanted: Sequence[str] = ()) -> list[Unnamed]:
    """Remove them, the head first, so that nobody commits any more; what a crash leaves goes the next time."""
    gone = []
    for one in left_over(store, oldest, wanted):
        objects = dataset_objects(store, one.id)
        with objects.turn():
            known = spoken_of(store)
            if known and one.id not in known and _looked_at(store, one.id) == one:  # nobody has come back to it
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


def _settled_names(store: Store) -> set[DatasetId]:
    """What all names stand for, looked at until it is the same twice: a rename on its way could hide behind one look.

    Empty when one cannot be read.
    """
    seen = None
    for _ in range(_TRIES):
        try:
            now = dict(_names(store))
        except (names.DamagedName, BadName):
            return set()
        if now == seen:
            return {dataset_id for dataset_id in now.values() if dataset_id is not None}
        seen = now
    return set()


def _names(store: Store) -> Iterator[tuple[str, DatasetId | None]]:
    for info in store.list("names"):
        try:
            name = last_name(info)
            yield info.key, names.find(store, name).id if names.exists(store, name) else None
        except UnknownDataset:  # released meanwhile
            yield info.key, None


def _looked_at(store: Store, dataset_id: DatasetId) -> Unnamed:
    objects = dataset_objects(store, dataset_id)
    infos = tuple(store.list(objects.folder))
    has_head = any(info.key == objects.head_key for info in infos)
    try:
        records = _records(objects)
    except FloodmarkError:
        records = None
    return Unnamed(dataset_id, infos, has_head, records)


def _records(objects: DatasetObjects) -> int | None:
    """How many records were ever committed, None without a head; from the chain alone, so that nothing is written."""
    head = objects.read_head()
    if head is None:
        return None
    for _, _, block in walk_back(objects.get_block, head):
        event = block.event
        if isinstance(event, AddData | ExecuteTransform):
            last = event.prev_offset if event.new_data is None else event.new_data.offset_interval.end
            return 0 if last is None else last + 1
    return 0


def _snapshot(objects: DatasetObjects) -> Snapshot | None:
    head = objects.read_head()
    return None if head is None else load_at(objects, head, {})
