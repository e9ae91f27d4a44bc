"""Writing to a dataset with a key: sort by key, look up, classify, and commit only what changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.chain.events import MetadataEvent
from floodmark.ledger.attributes import Tally, tally_attributes
from floodmark.ledger.commit import (
    Planned,
    data_events,
    describe_commit,
    empty_event,
    plan_blocks,
    publish,
    unneeded,
)
from floodmark.ledger.errors import UnreadableSlice
from floodmark.ledger.incoming import Frame
from floodmark.ledger.keys import index as key_index
from floodmark.ledger.keys.index import KeyIndex
from floodmark.ledger.keys.rows import Rows, keep_copy
from floodmark.ledger.layout import Layout, row_group_size_of
from floodmark.ledger.merge import slices
from floodmark.ledger.merge.buckets import HeldBucket
from floodmark.ledger.merge.intake import Intake, Taken, held
from floodmark.ledger.merge.slices import AnyBucket, Held, MadeSlice, MergeTask, Outlook
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import Kind, Strategy, strategy_of
from floodmark.ledger.write import Write, Written
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.retry import MAX_RACES, races

_log = logging.getLogger(__name__)
_MS = 10**6
UNPACKED = 4
"""How many times its size in Parquet a row takes in memory, roughly."""
_REPEATED_BYTES = 256 << 20
_MOST_RANGES = 4096

Rebuild = Callable[[Snapshot, KeyIndex, Layout], pa.Table]
"""A batch that depends on what the dataset holds, made again when that changes."""


@dataclass(frozen=True)
class Prepared:
    """What a batch becomes on top of one head."""

    index: KeyIndex
    taken: Taken
    layout: Layout
    definitions: list[MetadataEvent]
    system_time: int
    tally: Tally
    made: list[MadeSlice]


@dataclass
class Merge(Write):
    """One batch, merged by key."""

    cache: dict[str, Any] = field(default_factory=dict)
    now: str | None = None
    kind: Kind | None = None  # another strategy's way for this batch: deleting works alike in all of them
    rebuild: Rebuild | None = None

    def _run(self, snapshot: Snapshot, folder: Path) -> Written:
        objects = snapshot.objects
        if snapshot.layout is None and isinstance(self.data, Frame) and self.data.table.num_rows == 0:
            raise self._nothing()  # before its columns, which often have no types then
        intake = Intake(self.data, objects, self.runtime, folder)
        prepared = self._prepare(snapshot, intake, None)
        with objects.turn():
            for race in races(MAX_RACES, self._pause):
                if race:
                    snapshot = self._reloaded(snapshot)
                    if (first := self._committed_before(snapshot)) is not None:
                        return Written(first, snapshot)
                    prepared = self._prepare(snapshot, intake, prepared)
                if prepared is not None and objects.read_head() == snapshot.head:
                    done = self._commit(snapshot, prepared)
                    if done is not None:
                        return done
        raise self._lost()

    def _strategy(self, snapshot: Snapshot) -> Strategy:
        strategy = strategy_of(snapshot.state)
        return strategy if self.kind is None else replace(strategy, kind=self.kind, compare=None)

    # From the data to slices

    def _prepare(self, snapshot: Snapshot, intake: Intake, before: Prepared | None) -> Prepared | None:
        """Classify and make slices, with a key index that proves right; None when a purge took them away under us."""
        try:
            return key_index.mended(snapshot, self.cache, lambda index: self._prepared(snapshot, index, intake, before))
        except (ObjectNotFound, UnreadableSlice):
            if snapshot.objects.read_head() == snapshot.head:
                raise
            return None

    def _prepared(self, snapshot: Snapshot, index: KeyIndex, intake: Intake, before: Prepared | None) -> Prepared:
        layout, definitions = self._layout(snapshot)
        strategy = self._strategy(snapshot)
        taken = self._taken(snapshot, index, intake, layout, before)
        self.progress.start(f"writing {self.name}", taken.rows)
        at = self._system_time(snapshot)
        opened = self.cache.setdefault("rows", {}) if snapshot.objects.is_local else {}  # elsewhere they fill memory
        rows = Rows(snapshot.objects, snapshot.slices, layout, opened)
        standing = Held(index, rows, snapshot.purged_before, strategy, layout)
        buckets = _bounded(taken.buckets, snapshot, index, strategy)
        size = row_group_size_of(snapshot.state)
        tasks = [MergeTask(bucket, intake.folder, snapshot.objects, row_group_size=size) for bucket in buckets]
        tally, made = self._made(standing, taken, tasks, snapshot.next_offset, at)
        return Prepared(index, taken, layout, definitions, at, tally, made)

    def _taken(
        self, snapshot: Snapshot, index: KeyIndex, intake: Intake, layout: Layout, before: Prepared | None
    ) -> Taken:
        """The rows as buckets."""
        strategy = self._strategy(snapshot)
        if self.rebuild is not None:
            return held(self.rebuild(snapshot, index, layout), layout, strategy)
        if before is not None and before.layout == layout:
            return before.taken  # the rows are the same, only what they meet is not
        return intake.take(layout, strategy)

    def _made(
        self, standing: Held, taken: Taken, tasks: list[MergeTask], start: int, at: int
    ) -> tuple[Tally, list[MadeSlice]]:
        """The slices of all buckets, with their offsets from `start` on, and what they come to."""
        if len(tasks) == 1:
            seen = slices.look_here(standing, tasks[0])
            planned = _planned(tasks, [seen], start, at)
            return self._tally([seen]), [slices.make_slice(standing, task) for task in planned]
        make = partial(taken.run, progress=self.progress, weight=_weight)
        if outlooks := slices.guesses(standing, tasks):
            tried = make(_planned(tasks, outlooks, start, at), partial(slices.try_slice, standing))
            if all(one is not None for one in tried):
                return self._tally(outlooks), tried
            for one in tried:
                if one is not None:
                    one.discard()
            self.progress.start(f"writing {self.name}", taken.rows)
        outlooks = taken.run(tasks, partial(slices.look, standing))
        return self._tally(outlooks), make(_planned(tasks, outlooks, start, at), partial(slices.make_slice, standing))

    def _tally(self, outlooks: Sequence[Outlook]) -> Tally:
        return sum((o.tally for o in outlooks), Tally(now=self.now))

    # From slices to a commit

    def _commit(self, snapshot: Snapshot, prepared: Prepared) -> Written | None:
        """The commit, None when somebody else moved the head first."""
        tally = prepared.tally
        if tally.duplicates:
            rows = "1 row" if tally.duplicates == 1 else f"{tally.duplicates} rows"
            _log.warning("a later row of the same key replaced %s of the batch for %r", rows, self.name)
        events = self._events(snapshot, prepared)
        if not events:
            snapshot.objects.head.confirm()  # what makes this write unnecessary must not be lost by a crash
            return Written(unneeded(snapshot.head, snapshot.head_block, snapshot.state, tally), snapshot)
        planned, state = plan_blocks(snapshot.state, events, prepared.system_time)
        if not publish(snapshot.objects, snapshot.head, [m.file for m in prepared.made], planned):
            return None
        after = snapshot.after(planned, state)
        if prepared.made:
            self._derive(after, prepared)
        return self._committed(planned, prepared, after)

    def _committed(self, planned: list[Planned], prepared: Prepared, after: Snapshot) -> Written:
        return Written(describe_commit(planned, self.source_state, prepared.tally), after)

    def _events(self, snapshot: Snapshot, prepared: Prepared) -> list[MetadataEvent]:
        """The events of the commit; none when there is nothing to commit."""
        if prepared.made:
            files = [m.file for m in prepared.made]
            data = data_events(snapshot.state, files, self.source_state, prepared.tally)
            return [*prepared.definitions, *data]
        if self.source_state is None:
            return []
        empty = replace(empty_event(snapshot.state), extra=tally_attributes(prepared.tally))
        return [replace(empty, new_source_state=self.source_state)]

    def _derive(self, after: Snapshot, prepared: Prepared) -> None:
        """Bring the key index and the row copies up to the commit."""
        try:
            at = (after.head_block.sequence_number, after.head.digest)
            prepared.index.extended(at, after.next_offset, [m.addition for m in prepared.made])
            for made in prepared.made:
                if made.copy is not None:
                    keep_copy(after.objects, made.file.physical_hash, made.copy)
        except Exception:
            # The commit stands, and to say anything else would be wrong: what is missing now is made again when needed.
            _log.warning("what is derived from %r lags behind its newest commit", self.name, exc_info=True)


def _bounded(
    buckets: Sequence[AnyBucket], snapshot: Snapshot, index: KeyIndex, strategy: Strategy
) -> Sequence[AnyBucket]:
    """The buckets, a single one divided where the rows it may repeat would not fit into one slice."""
    if len(buckets) != 1 or not isinstance(buckets[0], HeldBucket):
        return buckets
    repeated = index.live_count if strategy.kind == "snapshot" else min(buckets[0].rows, index.live_count)
    expected = UNPACKED * snapshot.size * repeated // max(snapshot.records, 1)
    ranges = min(-(-expected // _REPEATED_BYTES), _MOST_RANGES)
    return buckets[0].divided(ranges) if ranges > 1 else buckets


def _planned(tasks: Sequence[MergeTask], outlooks: Sequence[Outlook], start: int, at: int) -> list[MergeTask]:
    """The tasks whose buckets become records, with the offsets that these will have."""
    starts = accumulate((o.records for o in outlooks), initial=start)
    return [
        replace(task, start=first, system_time_ms=at // _MS, outlook=outlook)
        for task, outlook, first in zip(tasks, outlooks, starts, strict=False)
        if outlook.records
    ]


def _weight(task: MergeTask) -> int:
    return task.rows
