"""Purging: old slices go, the chain and the offsets stay, and the chain says that they are gone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime

import pyarrow.compute as pc

from floodmark.chain.events import MetadataEvent
from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.ledger.attributes import purge_attributes, purge_state
from floodmark.ledger.commit import empty_event
from floodmark.ledger.fold import drop_purged
from floodmark.ledger.metadata import commit_events, refuse_derivative
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.selection import purge_end
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.errors import StorageError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Purge:
    """What a purge removed: slices, records and bytes; offsets below `before` are gone."""

    before: int
    slices: int
    records: int
    bytes: int


def purge(
    name: str, before: int | str | date | datetime, load: Callable[[], Snapshot], runtime: Runtime
) -> tuple[Purge, Snapshot]:
    """Record that all whole slices before a point are gone, then remove them; the snapshot after it too."""
    done = Purge(0, 0, 0, 0)

    def build(snapshot: Snapshot) -> list[MetadataEvent]:
        nonlocal done
        refuse_derivative(
            snapshot,
            name,
            "its chain has no way to say that records were purged",
            "purge its inputs; to make room here, drop it, then run the step, or declare the view, again",
        )
        snapshot.require_layout(name)
        done = plan_purge(snapshot, purge_end(snapshot, name, before))
        if done.before <= snapshot.purged_before:
            done = Purge(snapshot.purged_before, 0, 0, 0)
            return []
        event = replace(
            empty_event(snapshot.state),
            new_source_state=purge_state(done.before),
            extra=purge_attributes(done.slices, done.bytes),
        )
        return [event]

    _, after = commit_events(name, load, build, runtime)
    remove_purged(after.objects, after)
    return done, after


def plan_purge(snapshot: Snapshot, end: int) -> Purge:
    """What it means to purge all records before offset `end`, which is the start of a slice."""
    slices = snapshot.slices
    gone = slices.filter(pc.less_equal(slices.column("end"), end))
    size = pc.sum(gone.column("size")).as_py() or 0
    return Purge(end, gone.num_rows, end - snapshot.purged_before, size)


def remove_purged(objects: DatasetObjects, snapshot: Snapshot) -> None:
    """Delete the files of purged slices; one that a crash left behind goes with the next purge."""
    try:
        slices = snapshot.all_slices
    except StorageError as error:  # the purge is committed: this must not fail it
        _log.warning("the purged slices cannot be listed (%s); the next purge deletes them", error)
        return
    gone = slices.filter(pc.less_equal(slices.column("end"), snapshot.purged_before))
    for digest in gone.column("physical").to_pylist():
        physical = Multihash(SHA3_256, digest)
        try:
            objects.store.delete(objects.data_key(physical))
            objects.store.delete(objects.rows_key(physical.text))
        except StorageError as error:
            _log.warning("a purged slice could not be deleted (%s); the next purge tries again", error)
    try:
        drop_purged(objects, snapshot.purged_before)
    except StorageError as error:
        _log.warning("folded copies of purged rows could not be deleted (%s); the next purge tries again", error)
