"""A dataset with a timeline: a ledger whose current rows can be read in event-time order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.errors import FloodmarkError
from floodmark.ledger import dataset as ledger
from floodmark.ledger.beside import check_apart
from floodmark.ledger.commit import Commit
from floodmark.ledger.fold import Fold
from floodmark.ledger.keys.records import I64
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.purge import Purge
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.scan import checked_columns
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.verify import Verification
from floodmark.ledger.write import Write
from floodmark.timeline.change import purge
from floodmark.timeline.change.changing import KeptRoot, Updating
from floodmark.timeline.change.fold import NOTHING, fold, summed
from floodmark.timeline.change.update import follow, update
from floodmark.timeline.order.ranges import Moment, parse_range
from floodmark.timeline.reading.opened import Timeline, require_settings
from floodmark.timeline.reading.read import Reading
from floodmark.timeline.reading.spark_frame import spark_frame
from floodmark.timeline.settings import Settings, of
from floodmark.timeline.stats import TimelinePieces, TimelineStats
from floodmark.timeline.stored import root as roots
from floodmark.timeline.stored.objects import TimelineObjects
from floodmark.timeline.stored.root import LastUpdate, Root
from floodmark.timeline.upkeep import gc
from floodmark.timeline.upkeep.check import Ledger, problems
from floodmark.timeline.upkeep.gc import Garbage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Dataset(ledger.Dataset):
    """A ledger and, if it was created with `partition_by`, its timeline. Without one, what asks for it is refused."""

    def __init__(self, name: str, objects: DatasetObjects, runtime: Runtime) -> None:
        super().__init__(name, objects, runtime)
        self._kept_root = KeptRoot()

    # Reading

    def timeline(self, start: Moment = None, end: Moment = None, *, columns: Sequence[str] | None = None) -> DataFrame:
        """The current rows with event times in [start, end) as a Spark frame in event-time order.

        Times are text, dates or datetimes, in UTC where they have no zone. `columns` may name system columns too.
        """
        frame: DataFrame = spark_frame(self._timeline_reading(start, end, columns), self._runtime.session.get())
        return frame

    def timeline_batches(
        self, start: Moment = None, end: Moment = None, *, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """The same as a stream of record batches, without a JVM: what DuckDB, Polars and pandas take."""
        return self._timeline_reading(start, end, columns).to_reader()

    def _timeline_reading(self, start: Moment, end: Moment, columns: Sequence[str] | None) -> Reading:
        within, timeline = parse_range(start, end), self._timeline()
        layout = self._layout(timeline.snapshot)
        beside = self._beside(timeline.snapshot)
        if beside is not None:
            check_apart(layout.read_schema, beside, self._name)
        return timeline.reading(within, checked_columns(layout, columns, self._name, beside), beside)

    # Looking closer

    def timeline_root(self) -> Root:
        """How far the timeline has come, and what its last change did: one small read."""
        return self._root_and_head()[0]

    def timeline_pieces(self, start: Moment = None, end: Moment = None) -> TimelinePieces:
        """What the timeline is made of: the partitions of a range, and where each of their pieces lies."""
        return self._timeline().pieces(parse_range(start, end))

    def timeline_stats(self) -> TimelineStats:
        """Partition by partition: rows, pieces, row groups, what waits, what is dead, and what was written for it."""
        return self._timeline().stats()

    def _timeline(self) -> Timeline:
        root, snapshot, settings = self._root_and_head()
        return Timeline(self._name, settings, root, snapshot, self._dead_as_of(snapshot))

    def _root_and_head(self) -> tuple[Root, Snapshot, Settings]:
        """The root and the head, which is never behind it since it is read after it."""
        root = self._kept_root.load(self._timeline_objects)
        snapshot = self.snapshot()
        settings = require_settings(self._name, snapshot)
        return roots.fitting(root, snapshot, settings.digest), snapshot, settings

    def _look(self) -> Ledger:
        """What the ledger says now."""
        snapshot = self.snapshot()
        return Ledger(snapshot, self._dead_as_of(snapshot))

    @property
    def _timeline_objects(self) -> TimelineObjects:
        return TimelineObjects(self._objects)

    # Bringing it up to date

    def update_timeline(self) -> LastUpdate | None:
        """Take in what was written since the last time; None when the timeline was up to date.

        Writes do this by themselves, unless the dataset was created with timeline="lazy".
        """
        return update(self._updating(require_settings(self._name, self.snapshot())))

    def fold(self, partition: str | None = None) -> Fold:
        """Copy the living rows of small or half-dead slices into large files, from which reading is quick.

        The ledger stays as it is; the copies are derived, and reading without them gives the same rows. It happens by
        itself when many records are dead (`Runtime.fold_at`) or slices are many and small.

        The timeline is folded along: what waits is merged, what is dead left out, small row groups put together. With
        `partition`, such as "2026-11-01", only that is done, and only there.
        """
        if partition is not None:
            return fold(self._updating(require_settings(self._name, self.snapshot())), partition)
        snapshot = self.snapshot()
        settings = of(snapshot.state)
        if settings is None:
            return super().fold()
        if snapshot.layout is None:
            return NOTHING
        return summed(super().fold(), fold(self._updating(settings)))

    def _updating(self, settings: Settings) -> Updating:
        return Updating(
            name=self._name,
            objects=self._timeline_objects,
            settings=settings,
            runtime=self._runtime,
            snapshot=self.snapshot,
            dead=self._dead_within,
            kept=self._kept_root,
        )

    def _dead_as_of(self, snapshot: Snapshot) -> I64:
        return self._dead(snapshot, snapshot.next_offset)

    # What the ledger does, with a timeline

    def _write(self, way: Callable[..., Write], **options: Any) -> Commit:
        commit = super()._write(way, **options)
        follow(self._eager, self._name)
        return commit

    def _written(self, snapshot: Snapshot) -> None:
        """Follow a write that somebody else made, such as a step, and which left this snapshot."""
        self._latest = snapshot
        follow(self._eager, self._name)

    def _eager(self) -> Updating | None:
        """What follows writes, by the snapshot that the last one left."""
        settings = None if self._latest is None else of(self._latest.state)
        return None if settings is None or settings.mode != "eager" else self._updating(settings)

    def purge(self, before: int | str | date | datetime) -> Purge:
        """Remove old slices for good: those whose records all lie before an offset or an event time.

        The chain and the offsets stay. Only whole slices go, so some older records may remain. The timeline's copies of
        them go too.
        """
        done = super().purge(before)
        settings = None if self._latest is None else of(self._latest.state)
        if settings is not None:
            purge.drop_purged(self._updating(settings))
        return done

    def verify(self) -> Verification:
        """Check every block against the rules, every file against its hashes, and the timeline against the records."""
        found = super().verify()
        try:
            settings = of(self.snapshot().state)
        except FloodmarkError:  # the chain cannot be read, which was found out already
            return found
        if settings is None:
            return found
        return replace(found, problems=(*found.problems, *problems(self._timeline_objects, settings, self._look)))

    def _find_timeline_garbage(self) -> Garbage:
        """Files that the timeline does not need any more."""
        purged = self.snapshot().purged_before
        return gc.find(self._timeline_objects, self._runtime.clock(), purged_before=purged)

    def _collect_timeline_garbage(self) -> Garbage:
        """Remove them; says which went."""
        return gc.remove(self._timeline_objects, self._find_timeline_garbage())
