"""A new definition for an existing view: stored on its chain, or in a hidden dataset that then replaces the view.

The records of one ledger can gain and lose columns, but the key and the types of columns cannot change. The states
of the view's name; `pending` is the hidden dataset:

    id: A                   --begin-->    id: A, pending: B         readers use A; B is declared and refreshed
    id: A, pending: B       --install-->  id: B, previous: [A]      the name NAME-old-1 was claimed for A before
    id: A, pending: B       --withdraw--> id: A                     A's chain already has the definition

Each step is one compare-and-swap of the name, so only one of several writers succeeds, and a crash leaves the state
before or after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from floodmark.chain.events import MetadataEvent
from floodmark.chain.ids import DatasetId
from floodmark.columns import catalog as catalogs
from floodmark.columns.catalog import ColumnObjects
from floodmark.derive.inputs import LakeLike
from floodmark.errors import CommitConflict, DatasetExists, ObjectNotFound, StorageError, UnknownDataset, ViewChanged
from floodmark.ledger import names
from floodmark.ledger.create import commit_events, create_hidden_view, dataset_objects, remove
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.names import NameEntry
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.pointer import MAX_RACES, attempt_numbers
from floodmark.storage.store import Store
from floodmark.views.analysis import layout_of
from floodmark.views.definition import ViewDefinition
from floodmark.views.stored_definition import StoredView, definition_events, replacement_notes, require_stored_view


class _ChainChanged(Exception):
    """Another process has committed since the chain was read."""


@dataclass(frozen=True)
class ViewDatasets:
    """The datasets of a view's name: the one that readers use, and the one that is declared and refreshed.

    They differ only while the view is being replaced.
    """

    entry: NameEntry
    shown: Snapshot = field(repr=False)
    refreshed: Snapshot = field(repr=False)

    @property
    def replaces(self) -> Snapshot | None:
        """The dataset that the refreshed one will replace; None if no replacement is in progress."""
        return None if self.refreshed is self.shown else self.shown


def find_view(lake: LakeLike, name: str) -> ViewDatasets:
    """Find the datasets of a view's name."""
    return find_view_by(lake, lambda: names.require_entry(lake.store, name))


def find_view_by(lake: LakeLike, look: Callable[[], NameEntry]) -> ViewDatasets:
    """Like `find_view`, for an entry; looked up again if one of its datasets was removed meanwhile."""
    entry = look()
    for _ in attempt_numbers(MAX_RACES):
        shown = _snapshot(lake, entry.name, entry.id)
        worked = shown if entry.pending is None else _snapshot(lake, entry.name, entry.pending)
        if shown is not None and worked is not None:
            return ViewDatasets(entry, shown, worked)
        before, entry = entry, look()
        if entry == before:
            if shown is None:
                raise UnknownDataset(f"dataset {entry.name!r} was dropped", hint="create it again", name=entry.name)
            return ViewDatasets(entry, shown, shown)  # the pending dataset was removed, so it replaces nothing
    raise _conflict_error(entry.name)


# Declaration


def redefine(lake: LakeLike, name: str, stored: StoredView, *, instead_of: ViewDefinition | None = None) -> None:
    """Give a view this definition from its next refresh on. Readers keep the current rows until then.

    With `instead_of`, only if that is still its definition.
    """
    for _ in attempt_numbers(MAX_RACES):
        found = find_view(lake, name)
        if instead_of is not None and require_stored_view(name, found.refreshed.state).definition != instead_of:
            return
        try:
            if _try_redefine(lake, name, stored, found):
                return
        except _ChainChanged:
            continue
        except UnknownDataset:  # a pending dataset was discarded meanwhile
            if name not in lake:
                raise
    raise _conflict_error(name)


def find_misfit(name: str, stored: StoredView, snapshot: Snapshot) -> str | None:
    """The part of a definition that does not fit a view's records; None if all of it fits."""
    try:
        layout_of(name, stored.analysis, snapshot)
        definition_events(snapshot, stored)
    except ViewChanged as error:
        return str(error.facts["what"])
    return None


def _try_redefine(lake: LakeLike, name: str, stored: StoredView, found: ViewDatasets) -> bool:
    """Try to store the definition once; False if the name has changed since it was read.

    The chain gets the definition before the name is swapped. If an install came first, the caller starts again.
    """
    entry = found.entry
    if find_misfit(name, stored, found.shown) is None:
        _commit_on(lake, name, found.shown, stored)
        with found.shown.objects.turn():
            if not names.swap(lake.store, entry, replace(entry, pending=None)):
                return False
            if entry.pending is not None:
                _release_claims(lake.store, entry.id)
    elif found.replaces is not None and find_misfit(name, stored, found.refreshed) is None:
        _commit_on(lake, name, found.refreshed, stored)
        return names.swap(lake.store, entry, entry)
    else:
        _check_has_no_columns(name, found.shown)
        if not _begin_replacement(lake, stored, found):
            return False
    if entry.pending is not None:
        _discard(lake.store, entry.pending)
    return True


def _begin_replacement(lake: LakeLike, stored: StoredView, found: ViewDatasets) -> bool:
    """Create the dataset that will replace a view, and record it in the view's name."""
    store, pending = lake.store, DatasetId.generate(lake.runtime.random_bytes)
    notes = replacement_notes(stored, found.entry.id)
    try:
        create_hidden_view(
            store, lake.runtime, pending, strategy=stored.strategy, transform=stored.transform, notes=notes
        )
        if names.swap(store, found.entry, replace(found.entry, pending=pending)):
            return True
    except CommitConflict:  # the id belongs to another dataset
        raise
    except BaseException:
        with suppress(StorageError):  # the first error is more useful than one from the cleanup
            _remove_unless_named(store, pending)
        raise
    _remove_unless_named(store, pending)
    return False


def _discard(store: Store, pending: DatasetId) -> None:
    with dataset_objects(store, pending).turn():
        _remove_unless_named(store, pending)


def _remove_unless_named(store: Store, dataset_id: DatasetId) -> None:
    """Remove a dataset unless a name refers to it: a failed swap may have succeeded after all, and an interrupted
    rename leaves two entries.
    """
    if all(dataset_id not in (entry.id, entry.pending) for entry in names.entries(store)):
        remove(dataset_objects(store, dataset_id))


def _commit_on(lake: LakeLike, name: str, seen: Snapshot, stored: StoredView) -> None:
    """Commit a definition to the chain, unless the chain has changed since it was read."""

    def unmoved(now: Snapshot) -> Sequence[MetadataEvent]:
        if now.head != seen.head:
            raise _ChainChanged
        return definition_events(now, stored)

    commit_events(name, Ledger(name, seen.objects, lake.runtime).snapshot, unmoved, lake.runtime)


def _check_has_no_columns(name: str, snapshot: Snapshot) -> None:
    """Refuse to replace a view with computed columns, which are stored by offset; a new dataset has new offsets."""
    columns = [column.name for column in catalogs.load(ColumnObjects(snapshot.objects)).columns]
    if columns:
        raise ViewChanged(
            f"this definition replaces view {name!r} by a new dataset, and its computed column {columns[0]!r} would be "
            "lost",
            hint=f"drop the column and add it again after a refresh, or declare another view than {name!r}",
            view=name,
            column=columns[0],
        )


# Installation


def carry_values(old: Snapshot, new: Snapshot) -> None:
    """Copy the function values that a view has computed so far; they are stored by the input's offsets.

    Existing values stay, so that an interrupted copy can continue.
    """
    store = new.objects.store
    source, target = (ColumnObjects(one.objects).checkpoints.folder for one in (old, new))
    existing = {info.key for info in store.list(target)}
    for info in store.list(source):
        key = f"{target}{info.key.removeprefix(source)}"
        if key not in existing:
            with suppress(ObjectNotFound):  # removed by gc meanwhile: its rows are computed again
                store.put_if_absent(key, store.get(info.key))


def install(lake: LakeLike, name: str, replaced: Snapshot, pending: DatasetId) -> str | None:
    """Let a refreshed dataset replace a view; returns the name that the old rows have from now on.

    `CommitConflict` if the view's definition changed meanwhile.
    """
    store, old = lake.store, replaced.state.dataset_id
    assert old is not None  # every chain starts with a Seed
    with replaced.objects.turn():  # blocks a drop and a new definition for the old rows
        for _ in attempt_numbers(MAX_RACES):
            entry = names.find_entry_of(store, pending, name)
            if entry is None:
                break
            if entry.pending != pending:  # another refresh was first: make its swap durable
                if names.swap(store, entry, entry):
                    return next((kept.name for kept in _claims(store, old)), None)
                continue
            _check_has_no_columns(entry.name, replaced)
            _name_old_rows(store, entry.name, entry.id)
            after = replace(entry, id=pending, pending=None, previous=(*entry.previous, entry.id))
            if names.swap(store, entry, after):
                return _name_old_rows(
                    store, entry.name, entry.id
                )  # in stores without locks, the claim may have been released
        _release_claims(store, old)
    raise CommitConflict(f"view {name!r} was given another definition meanwhile", hint="refresh it again")


def _name_old_rows(store: Store, name: str, old: DatasetId) -> str | None:
    """Durably give the old rows of a view a separate name, unless they were removed."""
    for number in itertools.count(1):
        for claim in _claims(store, old):
            if names.swap(store, claim, claim):
                return claim.name
        if dataset_objects(store, old).read_head() is None:
            break
        suffix = f"-old-{number}"
        free = f"{name[: names.MAX_NAME_LENGTH - len(suffix)]}{suffix}"
        with suppress(DatasetExists):
            names.claim(store, free, old, rows_of=name)
            return free
    return None


def _claims(store: Store, old: DatasetId) -> list[NameEntry]:
    return [entry for entry in names.entries(store) if entry.id == old and entry.rows_of is not None]


def _release_claims(store: Store, dataset_id: DatasetId) -> None:
    """Free the names claimed for the rows of a view that was dropped or not replaced."""
    is_gone = dataset_objects(store, dataset_id).read_head() is None
    if is_gone or any(entry.id == dataset_id and entry.rows_of is None for entry in names.entries(store)):
        for claim in _claims(store, dataset_id):
            names.swap(store, claim, None)


def _snapshot(lake: LakeLike, name: str, dataset_id: DatasetId) -> Snapshot | None:
    try:
        return Ledger(name, dataset_objects(lake.store, dataset_id), lake.runtime).snapshot()
    except UnknownDataset:
        return None


def _conflict_error(name: str) -> CommitConflict:
    return CommitConflict(f"view {name!r} kept getting other definitions from other processes", hint="try again")
