"""Giving a view another definition: its own chain takes it, or a hidden dataset is filled and replaces it by its name.

Columns can come and go in the records of one ledger; another key or another type of a column cannot. The states of a
name on the way, `pending` is the hidden dataset:

    id: A                   --begin-->    id: A, pending: B         readers have A; B is declared and refreshed
    id: A, pending: B       --install-->  id: B, previous: [A]      NAME-old-1 was claimed for A before
    id: A, pending: B       --withdraw--> id: A                     A's chain has the definition already

Each step is one swap of the name from what was read, so that one of several wins, and a crash leaves the one or the
other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from floodmark.chain.events import MetadataEvent
from floodmark.chain.ids import DatasetId
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.ledger import names
from floodmark.ledger.create import create_hidden_view, dataset_objects, remove
from floodmark.ledger.errors import CommitConflict, DatasetExists, UnknownDataset
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.metadata import commit_events
from floodmark.ledger.names import Entry
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.errors import ObjectNotFound, StorageError
from floodmark.storage.retry import MAX_RACES, races
from floodmark.storage.store import Store
from floodmark.transform.lakes import LakeLike
from floodmark.transform.views.columns import layout_of
from floodmark.transform.views.defined.definition import Definition
from floodmark.transform.views.defined.stored import Stored, definition_events, notes_of_replacement, require_stored
from floodmark.transform.views.errors import ViewChanged


class _Moved(Exception):
    """Another process has committed since the chain was read."""


@dataclass(frozen=True)
class Found:
    """A view under its name: what readers have, and the dataset that is declared and refreshed.

    The two differ only while the view is being replaced.
    """

    entry: Entry
    shown: Snapshot = field(repr=False)
    worked: Snapshot = field(repr=False)

    @property
    def replaces(self) -> Snapshot | None:
        """What the dataset that is refreshed will replace."""
        return None if self.worked is self.shown else self.shown


def find(lake: LakeLike, name: str) -> Found:
    """What the name of a view stands for."""
    return find_by(lake, lambda: names.find(lake.store, name))


def find_by(lake: LakeLike, look: Callable[[], Entry]) -> Found:
    """The same for an entry, which is looked up again when one of its datasets was removed meanwhile."""
    entry = look()
    for _ in races(MAX_RACES):
        shown = _snapshot(lake, entry.name, entry.id)
        worked = shown if entry.pending is None else _snapshot(lake, entry.name, entry.pending)
        if shown is not None and worked is not None:
            return Found(entry, shown, worked)
        before, entry = entry, look()
        if entry == before:
            if shown is None:
                raise UnknownDataset(f"dataset {entry.name!r} is gone", hint="it was dropped", name=entry.name)
            return Found(entry, shown, shown)  # a pending dataset that is gone replaces nothing
    raise _declared_again(entry.name)


# Declaring


def redefine(lake: LakeLike, name: str, wanted: Stored, *, instead_of: Definition | None = None) -> None:
    """Let a view have this definition from its next refresh on; readers keep what there is until then.

    With `instead_of`, only if that still is its definition.
    """
    for _ in races(MAX_RACES):
        found = find(lake, name)
        if instead_of is not None and require_stored(name, found.worked.state).definition != instead_of:
            return
        try:
            if _redefined(lake, name, wanted, found):
                return
        except _Moved:
            continue
        except UnknownDataset:  # a pending dataset that was discarded meanwhile
            if name not in lake:
                raise
    raise _declared_again(name)


def misfit(name: str, wanted: Stored, snapshot: Snapshot) -> str | None:
    """What it is about a definition that the records of a view do not allow; None when they do."""
    try:
        layout_of(name, wanted.analysis, snapshot)
        definition_events(snapshot, wanted)
    except ViewChanged as error:
        return str(error.facts["what"])
    return None


def _redefined(lake: LakeLike, name: str, wanted: Stored, found: Found) -> bool:
    """One attempt; False when the name has changed since it was read.

    A chain takes the definition before the name is swapped: if an install was first, all starts again.
    """
    entry = found.entry
    if misfit(name, wanted, found.shown) is None:
        _commit_on(lake, name, found.shown, wanted)
        with found.shown.objects.turn():
            if not names.swap(lake.store, entry, replace(entry, pending=None)):
                return False
            if entry.pending is not None:
                _release_claims(lake.store, entry.id)
    elif found.replaces is not None and misfit(name, wanted, found.worked) is None:
        _commit_on(lake, name, found.worked, wanted)
        return names.swap(lake.store, entry, entry)
    else:
        _check_has_no_columns(name, found.shown)
        if not _begin(lake, wanted, found):
            return False
    if entry.pending is not None:
        _discard(lake.store, entry.pending)
    return True


def _begin(lake: LakeLike, wanted: Stored, found: Found) -> bool:
    """Create the dataset that is to replace a view, and say so in the view's name."""
    store, pending = lake.store, DatasetId.generate(lake.runtime.random_bytes)
    notes = notes_of_replacement(wanted, found.entry.id)
    try:
        create_hidden_view(
            store, lake.runtime, pending, strategy=wanted.strategy, transform=wanted.transform, notes=notes
        )
        if names.swap(store, found.entry, replace(found.entry, pending=pending)):
            return True
    except CommitConflict:  # the id is another dataset's
        raise
    except BaseException:
        with suppress(StorageError):  # the failure itself says more than one to clean up
            _remove_unless_named(store, pending)
        raise
    _remove_unless_named(store, pending)
    return False


def _discard(store: Store, pending: DatasetId) -> None:
    with dataset_objects(store, pending).turn():
        _remove_unless_named(store, pending)


def _remove_unless_named(store: Store, dataset_id: DatasetId) -> None:
    """A swap that failed may have happened, and a rename that was cut short leaves an entry twice."""
    if all(dataset_id not in (entry.id, entry.pending) for entry in names.entries(store)):
        remove(dataset_objects(store, dataset_id))


def _commit_on(lake: LakeLike, name: str, seen: Snapshot, wanted: Stored) -> None:
    """Commit a definition to the chain that was read, unless it has moved on."""

    def unmoved(now: Snapshot) -> Sequence[MetadataEvent]:
        if now.head != seen.head:
            raise _Moved
        return definition_events(now, wanted)

    commit_events(name, Ledger(name, seen.objects, lake.runtime).snapshot, unmoved, lake.runtime)


def _check_has_no_columns(name: str, snapshot: Snapshot) -> None:
    """Refuse to replace a view that has computed columns: they go by offsets, which begin again."""
    found = [column.name for column in catalogs.load(ColumnObjects(snapshot.objects)).columns]
    if found:
        raise ViewChanged(
            f"with this definition view {name!r} has to be made anew, and its computed column {found[0]!r} would be "
            f"lost",
            hint=f"drop the column first and add it again after a refresh, or give the view another name than {name!r}",
            view=name,
            column=found[0],
        )


# Installing


def carry_values(old: Snapshot, new: Snapshot) -> None:
    """Copy the values that functions have computed for a view so far: they go by the source's offsets.

    Values that are there already stay, so that a copy that was cut short is continued.
    """
    store = new.objects.store
    source, target = (ColumnObjects(one.objects).checkpoints.folder for one in (old, new))
    there = {info.key for info in store.list(target)}
    for info in store.list(source):
        key = f"{target}{info.key.removeprefix(source)}"
        if key not in there:
            with suppress(ObjectNotFound):  # removed as garbage meanwhile: its rows are computed again
                store.put_if_absent(key, store.get(info.key))


def install(lake: LakeLike, name: str, replaced: Snapshot, pending: DatasetId) -> str | None:
    """Let a dataset that is filled replace a view; the name that the old rows have from now on.

    `CommitConflict` when the view was declared otherwise meanwhile.
    """
    store, old = lake.store, replaced.state.dataset_id
    assert old is not None  # every chain starts with a Seed
    with replaced.objects.turn():  # a drop, or a definition for the old rows, waits
        for _ in races(MAX_RACES):
            entry = names.find_place(store, pending, name)
            if entry is None:
                break
            if entry.pending != pending:  # another refresh was first: make durable what it did
                if names.swap(store, entry, entry):
                    return next((kept.name for kept in _claims(store, old)), None)
                continue
            _check_has_no_columns(entry.name, replaced)
            _keep(store, entry.name, entry.id)
            after = replace(entry, id=pending, pending=None, previous=(*entry.previous, entry.id))
            if names.swap(store, entry, after):
                return _keep(store, entry.name, entry.id)  # where turns are not waited for it may have been released
        _release_claims(store, old)
    raise CommitConflict(f"view {name!r} was declared anew meanwhile", hint="refresh it again")


def _keep(store: Store, name: str, old: DatasetId) -> str | None:
    """Give the old rows of a view a name of their own, durably, unless they are gone."""
    for number in itertools.count(1):
        for claim in _claims(store, old):
            if names.swap(store, claim, claim):
                return claim.name
        if dataset_objects(store, old).read_head() is None:
            break
        suffix = f"-old-{number}"
        free = f"{name[: names.LONGEST - len(suffix)]}{suffix}"
        with suppress(DatasetExists):
            names.claim(store, free, old, rows_of=name)
            return free
    return None


def _claims(store: Store, old: DatasetId) -> list[Entry]:
    return [entry for entry in names.entries(store) if entry.id == old and entry.rows_of is not None]


def _release_claims(store: Store, dataset_id: DatasetId) -> None:
    """Free the names that were claimed for the rows of a view that was dropped, or not replaced after all."""
    is_gone = dataset_objects(store, dataset_id).read_head() is None
    if is_gone or any(entry.id == dataset_id and entry.rows_of is None for entry in names.entries(store)):
        for claim in _claims(store, dataset_id):
            names.swap(store, claim, None)


def _snapshot(lake: LakeLike, name: str, dataset_id: DatasetId) -> Snapshot | None:
    try:
        return Ledger(name, dataset_objects(lake.store, dataset_id), lake.runtime).snapshot()
    except UnknownDataset:
        return None


def _declared_again(name: str) -> CommitConflict:
    return CommitConflict(f"view {name!r} was declared anew again and again", hint="try again")
