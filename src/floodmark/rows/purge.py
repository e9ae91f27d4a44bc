"""Purge: remove old slices for good. The chain and the offsets stay, and the chain records what was purged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime

import pyarrow.compute as pc

from floodmark.chain.events import MetadataEvent
from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.engine.session import Runtime
from floodmark.errors import StorageError
from floodmark.ledger.block_attributes import purge_attributes, purge_state
from floodmark.ledger.commit import empty_event
from floodmark.ledger.create import commit_events, refuse_derivative
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.selection import purge_end
from floodmark.ledger.snapshot import Snapshot
from floodmark.rows.fold import drop_purged

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PurgeReport:
    """The result of a purge: the removed slices, records and bytes. Offsets below `before` cannot be read any more."""

    before: int
    slices: int
    records: int
    bytes: int


def purge(
    name: str, before: int | str | date | datetime, load: Callable[[], Snapshot], runtime: Runtime
) -> tuple[PurgeReport, Snapshot]:
    """Commit the purge of all whole slices before a point, then delete them. Also returns the snapshot after it."""
    report = PurgeReport(0, 0, 0, 0)

    def build(snapshot: Snapshot) -> list[MetadataEvent]:
        nonlocal report
        refuse_derivative(
            snapshot,
            name,
            "its chain cannot record a purge",
            "purge its inputs; to free space here, drop it, then run the step or declare the view again",
        )
        snapshot.require_layout(name)
        report = plan_purge(snapshot, purge_end(snapshot, name, before))
        if report.before <= snapshot.purged_before:
            report = PurgeReport(snapshot.purged_before, 0, 0, 0)
            return []
        event = replace(
            empty_event(snapshot.state),
            new_source_state=purge_state(report.before),
            extra=purge_attributes(report.slices, report.bytes),
        )
        return [event]

    _, after = commit_events(name, load, build, runtime)
    remove_purged(after.objects, after)
    return report, after


def plan_purge(snapshot: Snapshot, end: int) -> PurgeReport:
    """The effect of a purge of all records before offset `end`, which is the start of a slice."""
    slices = snapshot.slices
    gone = slices.filter(pc.less_equal(slices.column("end"), end))
    size = pc.sum(gone.column("size")).as_py() or 0
    return PurgeReport(end, gone.num_rows, end - snapshot.purged_before, size)


def remove_purged(objects: DatasetObjects, snapshot: Snapshot) -> None:
    """Delete the files of all purged slices, also those that an earlier purge could not delete."""
    try:
        slices = snapshot.all_slices
    except StorageError as error:  # the purge is already committed, so it must not fail
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
        _log.warning("folded files with purged rows could not be deleted (%s); the next purge tries again", error)
