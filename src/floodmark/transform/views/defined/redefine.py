"""Giving a view another definition: its own chain takes it, or a successor's that is filled to take its place.

Columns can come and go in the records of one ledger; another key or another type of a column cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from floodmark.chain.ed25519 import SEED_SIZE
from floodmark.chain.events import MetadataEvent
from floodmark.chain.ids import DatasetId
from floodmark.chain.state import EMPTY
from floodmark.ledger.create import create_unnamed_view, dataset_objects, remove
from floodmark.ledger.dataset import Dataset
from floodmark.ledger.errors import CommitConflict, UnknownDataset
from floodmark.ledger.metadata import Build, commit_events
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.errors import StorageError
from floodmark.transform.lakes import LakeLike
from floodmark.transform.views.columns import layout_of
from floodmark.transform.views.defined import succession
from floodmark.transform.views.defined.definition import Definition
from floodmark.transform.views.defined.stored import Stored, definition_events, notes_of_heir, require_stored
from floodmark.transform.views.errors import ViewChanged

_TRIES = 20


class _Moved(Exception):
    """Somebody else has committed since the chain was looked at."""


def redefine(lake: LakeLike, name: str, wanted: Stored, *, instead_of: Definition | None = None) -> None:
    """Let a view have this definition from its next refresh on; readers keep what there is until then.

    With `instead_of`, only if that still is its definition.
    """
    for _ in range(_TRIES):
        found = succession.find(lake, name)
        if succession.succeeded_by(found.shown.state) is not None and found.replaces is not None:
            succession.finish(lake.store, found.shown)
            continue
        if instead_of is not None and require_stored(name, found.worked.state).definition != instead_of:
            return
        try:
            _commit(lake, name, wanted, found)
            return
        except _Moved:
            continue
        except UnknownDataset:  # a successor that was discarded meanwhile
            if name not in lake:
                raise
    raise CommitConflict(f"view {name!r} was declared anew again and again", hint="try again")


def misfit(name: str, wanted: Stored, snapshot: Snapshot) -> str | None:
    """What it is about a definition that the records of a view do not allow; None when they do."""
    try:
        layout_of(name, wanted.analysis, snapshot)
        definition_events(snapshot, wanted)
    except ViewChanged as error:
        return str(error.facts["what"])
    return None


def _commit(lake: LakeLike, name: str, wanted: Stored, found: succession.Found) -> None:
    heir = succession.successor_of(found.shown.state)
    if misfit(name, wanted, found.shown) is None:
        _commit_on(lake, name, found.shown, lambda now: definition_events(now, wanted))
        if heir is not None:
            succession.discard(lake.store, heir)
    elif heir is not None and misfit(name, wanted, found.worked) is None:
        _commit_on(lake, name, found.worked, lambda now: definition_events(now, wanted))
    else:
        succession.check_has_no_columns(name, found.shown)
        _make_heir(lake, name, wanted, found.shown)
        if heir is not None:
            succession.discard(lake.store, heir)


def _make_heir(lake: LakeLike, name: str, wanted: Stored, shown: Snapshot) -> None:
    """Make the dataset that is to take a view's place, and say so on the view's chain."""
    seed = lake.runtime.random_bytes(SEED_SIZE)
    runtime = replace(lake.runtime, random_bytes=lambda _: seed)
    heir = DatasetId.generate(runtime.random_bytes)  # known before it is made: half of one has to be removed, too
    notes = notes_of_heir(wanted, shown.state)
    try:
        create_unnamed_view(lake.store, runtime, strategy=wanted.strategy, transform=wanted.transform, notes=notes)
    except CommitConflict:  # the id is somebody else's
        raise
    except BaseException:
        _remove(lake, name, shown, heir)
        raise
    try:
        _commit_on(lake, name, shown, lambda now: succession.begin(now, heir))
    except BaseException:
        _remove(lake, name, shown, heir)
        raise


def _remove(lake: LakeLike, name: str, shown: Snapshot, heir: DatasetId) -> None:
    """Remove a successor that could not be made. Nobody knows of it, so no turn is waited for: a full disk has none."""
    with suppress(StorageError):  # the failure itself says more than one to clean up
        try:
            state = Dataset(name, shown.objects, lake.runtime).snapshot().state
        except UnknownDataset:  # the view was dropped meanwhile
            state = EMPTY
        if succession.successor_of(state) != heir:  # a commit that failed may have been made all the same
            remove(dataset_objects(lake.store, heir))


def _commit_on(lake: LakeLike, name: str, seen: Snapshot, build: Build) -> None:
    """Commit to the chain that was looked at, unless it has moved on."""

    def unmoved(now: Snapshot) -> Sequence[MetadataEvent]:
        if now.head != seen.head:
            raise _Moved
        return build(now)

    commit_events(name, Dataset(name, seen.objects, lake.runtime).snapshot, unmoved, lake.runtime)
