"""A view that is made anew: its successor is filled where nobody sees it, then takes the name; the old rows are kept.

Three notes on chains say how far that is. `successor` on the chain of the view: this dataset, which has no name yet, is
being filled. `succeeded_by`: it is filled, and takes the name; this one commit decides, against whoever declares
something else. `succeeds` on the successor's chain: what it took the place of. After the decision two names are left to
be swapped, one after the other; whoever comes after a crash does that. Until the last swap the name stands for the old
rows, and from it on for all of the new ones.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from floodmark.chain.events import MetadataEvent
from floodmark.chain.ids import DatasetId
from floodmark.chain.state import ChainState
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.errors import FloodmarkError
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects, remove
from floodmark.ledger.dataset import Dataset
from floodmark.ledger.errors import BadName, CommitConflict, DatasetExists, UnknownDataset
from floodmark.ledger.metadata import commit_events
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import noted, strategy_of, to_derived_attachments
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.store import Store
from floodmark.transform.lakes import LakeLike
from floodmark.transform.views.defined.stored import VIEW_NOTE, lasting_notes, predecessors
from floodmark.transform.views.errors import ViewChanged

_SUCCESSOR = "successor"
_SUCCEEDED_BY = "succeeded_by"
_TRIES = 20
_KEPT = re.compile(r".*-old-[0-9]+", re.IGNORECASE)


@dataclass(frozen=True)
class SucceededBy:
    """The dataset that takes the place of a view, and the name that it takes with it."""

    id: DatasetId
    name: str


@dataclass(frozen=True)
class Found:
    """A view under its name: what readers have, and the dataset that is declared and refreshed.

    The two differ only while a view is made anew.
    """

    name: str  # as it was spelled when it was given
    shown: Snapshot = field(repr=False)
    worked: Snapshot = field(repr=False)

    @property
    def id(self) -> DatasetId:
        """The dataset that the name stands for."""
        return _id(self.shown)

    @property
    def replaces(self) -> Snapshot | None:
        """What the dataset that is refreshed will take the place of."""
        return None if self.worked is self.shown else self.shown


def successor_of(state: ChainState) -> DatasetId | None:
    """The dataset that is being filled to take the place of the one with this chain."""
    found = noted(state, _SUCCESSOR)
    return None if found is None else DatasetId.parse(found)


def succeeded_by(state: ChainState) -> SucceededBy | None:
    """The dataset that is filled and takes, or has taken, the place of the one with this chain."""
    found = noted(state, _SUCCEEDED_BY)
    return None if found is None else SucceededBy(DatasetId.parse(found["id"]), str(found["name"]))


# Finding


def find(lake: LakeLike, name: str) -> Found:
    """What a name of a view stands for.

    It is looked up again when it has come to stand for another dataset than the one that was read meanwhile.
    """
    for _ in range(_TRIES):
        entry = names.find(lake.store, name)
        objects = dataset_objects(lake.store, entry.id)
        shown: Snapshot | None = None
        try:
            shown = Dataset(entry.name, objects, lake.runtime).snapshot()
            found = Found(entry.name, shown, worked(lake, name, shown))
        except UnknownDataset:
            head = None if shown is None else shown.head
            if names.find(lake.store, name).id == entry.id and objects.read_head() == head:
                raise
            continue
        is_replaced = succeeded_by(shown.state) is not None and found.replaces is None
        if not is_replaced or names.stands_for(lake.store, name, entry.id):
            return found
    raise CommitConflict(f"view {name!r} was declared anew again and again", hint="try again")


def worked(lake: LakeLike, name: str, shown: Snapshot) -> Snapshot:
    """The dataset that is declared and refreshed under a name that stands for another one yet; mostly the same."""
    heir = successor_of(shown.state)
    if heir is None:
        decided = succeeded_by(shown.state)
        if decided is None or is_settled(lake.store, shown, decided):
            return shown
        heir = decided.id
    return Dataset(name, dataset_objects(lake.store, heir), lake.runtime).snapshot()


def is_settled(store: Store, old: Snapshot, to: SucceededBy) -> bool:
    """Whether the successor of a view has taken its place, names and all."""
    return names.stands_for(store, to.name, to.id) or _place(store, _id(old), to) is None


def source_name(lake: LakeLike, dataset_id: str, alias: str) -> str | None:
    """What the dataset is called now that a query knows by this name, or the one that took its place; None if neither
    is there.
    """
    named = _alias(lake.store, alias)
    if named is not None and str(named.id) == dataset_id:
        return named.name
    called = {str(entry.id): entry.name for entry in names.entries(lake.store)}
    current = called.get(dataset_id)
    while current is not None:
        try:
            to = succeeded_by(lake[current].snapshot().state)
        except UnknownDataset:  # dropped, since the names were read
            current = None
            break
        if to is None:
            return current
        if str(to.id) not in called:  # its names are being swapped; or it was dropped since
            current = current if dataset_objects(lake.store, to.id).read_head() is not None else None
            break
        current = called[str(to.id)]
    if current is None and (last := last_in_line(lake, dataset_id, alias)) is not None:
        return last.name
    return current


def last_in_line(lake: LakeLike, dataset_id: str, likely: str) -> names.Entry | None:
    """The dataset that has the place of one that is gone: its own chain says so, whatever it is called now.

    The likely name is looked at first: mostly it is the one.
    """
    first = _alias(lake.store, likely)
    others = (entry for entry in names.entries(lake.store) if first is None or entry.id != first.id)
    for entry in itertools.chain(() if first is None else (first,), others):
        try:
            there = Dataset(entry.name, dataset_objects(lake.store, entry.id), lake.runtime).snapshot()
        except FloodmarkError:  # dropped meanwhile, or damaged, which is said to whoever asks for that one
            continue
        if dataset_id not in predecessors(there.state):
            continue
        to = succeeded_by(there.state)
        if to is None or not is_settled(lake.store, there, to):  # else it is only old rows, too
            return entry
    return None


def _alias(store: Store, alias: str) -> names.Entry | None:
    try:
        return names.find(store, alias)
    except (UnknownDataset, BadName):
        return None


# Filling


def begin(snapshot: Snapshot, heir: DatasetId) -> Sequence[MetadataEvent]:
    """What says on the chain of a view that it is being made anew as another dataset."""
    return _noting(snapshot, {VIEW_NOTE: noted(snapshot.state, VIEW_NOTE), _SUCCESSOR: str(heir)})


def discard(store: Store, heir: DatasetId) -> None:
    """Remove a successor that no chain speaks of any more."""
    objects = dataset_objects(store, heir)
    with objects.turn():
        remove(objects)


def carry_values(old: Snapshot, new: Snapshot) -> None:
    """Give a successor the values that functions have computed for the view so far: they go by the source's offsets.

    What is there already is left, so that whoever comes after a crash goes on.
    """
    store = new.objects.store
    source, target = (ColumnObjects(one.objects).checkpoints.folder for one in (old, new))
    there = {info.key for info in store.list(target)}
    for info in store.list(source):
        key = f"{target}{info.key.removeprefix(source)}"
        if key not in there:
            with suppress(ObjectNotFound):  # removed as garbage meanwhile: its rows are computed again
                store.put_if_absent(key, store.get(info.key))


def check_has_no_columns(name: str, snapshot: Snapshot) -> None:
    """Refuse to make a view anew that has computed columns: they go by offsets, which begin again."""
    found = [column.name for column in catalogs.load(ColumnObjects(snapshot.objects)).columns]
    if found:
        raise ViewChanged(
            f"with this definition view {name!r} has to be made anew, and its computed column {found[0]!r} would be "
            f"lost",
            hint=f"drop the column first and add it again after a refresh, or give the view another name than {name!r}",
            view=name,
            column=found[0],
        )


# Taking the place


def install(lake: LakeLike, name: str, replaced: Snapshot, heir: DatasetId) -> str | None:
    """Let a successor that is filled take the place of a view; the name that the old rows have from now on.

    `CommitConflict` when the view was declared otherwise meanwhile.
    """
    old = Dataset(name, replaced.objects, lake.runtime)

    def decide(snapshot: Snapshot) -> Sequence[MetadataEvent]:
        decided = succeeded_by(snapshot.state)
        if decided is not None and decided.id == heir:
            return ()
        if successor_of(snapshot.state) != heir:
            raise CommitConflict(f"view {name!r} was declared anew meanwhile", hint="refresh it again")
        check_has_no_columns(name, snapshot)
        return _noting(snapshot, {_SUCCEEDED_BY: {"id": str(heir), "name": name}})

    commit_events(name, old.snapshot, decide, lake.runtime)
    return finish(lake.store, old.snapshot())


def finish(store: Store, old: Snapshot) -> str | None:
    """Swap the names that a decision left to be swapped; the name that the old rows have. Nothing without a decision.

    The old rows get their other name first, so that there is no moment at which they have none.
    """
    to = succeeded_by(old.state)
    if to is None:
        return None
    old_id = _id(old)
    for _ in range(_TRIES):
        place = _place(store, old_id, to)
        if place is None:
            names.give(store, to.name, old_id, to.id)  # durable, if whoever did it did not live to see to that
            return next((name for name in _names_of(store, old_id) if _KEPT.fullmatch(name)), None)
        _keep(store, place, old_id)
        names.give(store, place, old_id, to.id)
    raise CommitConflict(f"the name {to.name!r} was changed again and again", hint="refresh it again")


def _place(store: Store, old: DatasetId, to: SucceededBy) -> str | None:
    """The name that the successor is to take; None if it has one, or is gone."""
    if _names_of(store, to.id) or dataset_objects(store, to.id).read_head() is None:
        return None
    mine = _names_of(store, old)
    meant = [name for name in mine if name.lower() == to.name.lower()]
    renamed = [name for name in mine if not _KEPT.fullmatch(name)]
    return next(iter([*meant, *renamed]), None)


def _keep(store: Store, name: str, old: DatasetId) -> None:
    """Give the old rows a name of their own, unless a swap that was cut short has done so."""
    for number in itertools.count(1):
        suffix = f"-old-{number}"
        kept = f"{name[: names.LONGEST - len(suffix)]}{suffix}"
        if names.respell(store, kept, old):  # durable from now on, if it was not
            return
        if names.exists(store, kept):
            continue
        try:
            names.claim(store, kept, old)
            return
        except DatasetExists:
            if names.stands_for(store, kept, old):
                return


def _names_of(store: Store, dataset_id: DatasetId) -> list[str]:
    return [entry.name for entry in names.entries(store) if entry.id == dataset_id]


def _noting(snapshot: Snapshot, notes: Mapping[str, Any]) -> Sequence[MetadataEvent]:
    """The key and these notes, in place of those that are there."""
    state = snapshot.state
    wanted = to_derived_attachments(strategy_of(state), {**lasting_notes(state), **notes}, state.attachments)
    return () if wanted == state.attachments else (wanted,)


def _id(snapshot: Snapshot) -> DatasetId:
    found = snapshot.state.dataset_id
    assert found is not None  # every chain starts with a Seed
    return found
