"""The rows of a dataset: which records are current, and reads and writes by key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, SupportsFloat, TypeVar

import pyarrow as pa

from floodmark.chain.events import SourceState
from floodmark.errors import BadIndex, UnreadableSlice
from floodmark.ledger.commit import Commit, to_datetime
from floodmark.ledger.data_input import Incoming, TableData
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.scan import Scan, checked_columns
from floodmark.ledger.selection import (
    NO_OFFSETS,
    AsOf,
    Selection,
    parse_time,
    purge_end,
    readable_offsets,
    select_interval,
)
from floodmark.ledger.side_columns import SideColumnSet, append_columns, check_side_names
from floodmark.ledger.snapshot import Snapshot, load_snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.ledger.verify import VerifyProblem
from floodmark.rows import key_index_files, key_index_loader
from floodmark.rows.erase import EraseReport, erase, erase_records, erasure_problems, plan_erase
from floodmark.rows.fold import FoldReport, FoldRule, fold, fold_if_due
from floodmark.rows.key_entries import Kills
from floodmark.rows.key_index import KeyIndex
from floodmark.rows.key_index_loader import index_problems
from floodmark.rows.live_rows import fold_problems, select_current
from floodmark.rows.lookup import (
    LocatedRows,
    check_can_retract,
    chunk_batch,
    deletion_batch,
    filter_by_keys,
    frame_table,
    history_filter,
    located_rows,
    parse_keys,
    reusable_keys,
)
from floodmark.rows.merge import KeyedWrite
from floodmark.rows.purge import PurgeReport, check_can_purge, plan_purge, purge
from floodmark.storage.arrays import I64
from floodmark.storage.pointer import read_consistently

_log = logging.getLogger(__name__)

T = TypeVar("T")

SideColumnsLoader = Callable[[Snapshot], SideColumnSet | None]
"""Returns the side columns of a snapshot; None if there are none."""


class Rows:
    """The current rows of a ledger: all records without a key, the newest record of each key with one."""

    def __init__(self, ledger: Ledger, side_columns: SideColumnsLoader) -> None:
        self._ledger = ledger
        self._side_columns = side_columns
        self._cache: key_index_files.RunCache = {}
        self._cached: DatasetObjects = ledger.objects

    @property
    def cache(self) -> key_index_files.RunCache:
        """Opened files of the key index and of row copies. Emptied when the ledger moves to another dataset."""
        if self._cached is not self._ledger.objects:
            self._cached, self._cache = self._ledger.objects, {}
        return self._cache

    # Write

    def write(self, data: Incoming, source_state: SourceState | None) -> Commit:
        """Merge a batch by key. Only changes become records."""
        return self._merge(self._ledger.snapshot(), data, source_state)

    def store_chunk(
        self, data: Any, processed_idx: Any, now: datetime | float | None, source_state: SourceState | None
    ) -> Commit:
        """Upsert a frame. Current rows with keys in `processed_idx` that the frame lacks are retracted."""
        snapshot = self._ledger.snapshot()
        check_can_retract(snapshot, self._ledger.name, "store_chunk", ("upsert",))
        chunk = frame_table(data)
        time = self._noted_time(now)
        build = partial(chunk_batch, chunk, reusable_keys(processed_idx), self._ledger.name)
        return self._merge(snapshot, TableData(chunk), source_state, now=time, rebuild=build)

    def delete(self, keys: Any) -> Commit:
        """Retract the current rows with these keys."""
        snapshot = self._ledger.snapshot()
        check_can_retract(snapshot, self._ledger.name, "delete", ("upsert", "snapshot", "changelog"))
        snapshot.require_layout(self._ledger.name)
        build = partial(deletion_batch, reusable_keys(keys), self._ledger.name)
        return self._merge(snapshot, TableData(pa.table({})), None, kind="upsert", rebuild=build)

    def _merge(self, snapshot: Snapshot, data: Incoming, source_state: SourceState | None, **options: Any) -> Commit:
        ledger = self._ledger
        return ledger.write(
            snapshot, partial(KeyedWrite, ledger.name, ledger.runtime, data, source_state, cache=self.cache, **options)
        )

    def _noted_time(self, now: datetime | float | None) -> str | None:
        """A user's time in the form of the commit's note. Logs a warning for a time in the past."""
        if now is None:
            return None
        moment = now if isinstance(now, bool | datetime) else _from_epoch(now)
        if not isinstance(moment, datetime):
            raise TypeError(f"now={now!r} is not a time: give a datetime, or seconds since 1970 as time.time() does")
        given = parse_time(self._ledger.name, moment)
        late = (self._ledger.runtime.clock() - given) / 1e9
        if late >= 1:
            _log.warning("store_chunk called with now=%s which is %.0fs in the past.", moment.isoformat(), late)
        return to_datetime(given).isoformat()

    # Which records are current

    def dead(self, snapshot: Snapshot, end: int | None = None) -> I64:
        """The offsets below `end` that are dead as of `end`, sorted. The default is the end of the snapshot."""
        if not strategy_of(snapshot.state).is_keyed:
            return NO_OFFSETS
        before = snapshot.next_offset if end is None else end
        return self._read_index(lambda _, index: index.dead(before))  # a newer index also has the past

    def dead_within(self, snapshot: Snapshot, ranges: Sequence[tuple[int, int]]) -> I64:
        """The dead offsets as of a snapshot in ranges [low, high), sorted. The ranges are ascending and disjoint."""
        if not ranges or not strategy_of(snapshot.state).is_keyed:
            return NO_OFFSETS
        return self._read_index(lambda _, index: index.dead_within(ranges, snapshot.next_offset))

    def endings(self, snapshot: Snapshot, start: int, end: int) -> Kills:
        """The records that other records, with offsets in [start, end), ended, in the order of the latter."""
        if not strategy_of(snapshot.state).is_keyed:
            return Kills(NO_OFFSETS, NO_OFFSETS)
        return self._read_index(lambda _, index: index.endings(start, end))  # a newer index also has the past

    def selection(self, snapshot: Snapshot, as_of: AsOf = None) -> Selection:
        """Select the current rows, now or as of a point in the past."""
        start, end = readable_offsets(snapshot, self._ledger.name, as_of)
        return select_current(snapshot, start, end, self.dead(snapshot, end))

    def count(self) -> int:
        """How many current rows there are. Reads no data."""
        snapshot = self._ledger.snapshot()
        if not strategy_of(snapshot.state).is_keyed:
            return snapshot.records
        return self._read_index(lambda now, index: now.records - index.dead_from(now.purged_before))

    def _read_index(self, read: Callable[[Snapshot, KeyIndex], T]) -> T:
        """Read from the key index at the present head, and again at the new head if writers replaced its files."""
        try:
            return read_consistently(
                self._ledger.snapshot,
                lambda snapshot: read(snapshot, key_index_loader.load(snapshot, self.cache)),
                lambda snapshot: snapshot.objects.read_head() != snapshot.head,
                replaced=(BadIndex, UnreadableSlice),
            )
        except (BadIndex, UnreadableSlice):
            snapshot = self._ledger.snapshot()
            return key_index_loader.with_repair(snapshot, self.cache, lambda index: read(snapshot, index))

    # Read

    def scan(self, as_of: AsOf, columns: Sequence[str] | None) -> Scan:
        """The current rows, with side columns."""
        snapshot = self._ledger.snapshot()
        selection = self.selection(snapshot, as_of)
        return Scan(snapshot.objects, self._ledger.layout(snapshot), selection, *self.columns(snapshot, columns))

    def columns(self, snapshot: Snapshot, names: Sequence[str] | None) -> tuple[tuple[str, ...], SideColumnSet | None]:
        """The names of the columns to read, by default all that readers see, and the side columns."""
        layout, beside = self._ledger.layout(snapshot), self._side_columns(snapshot)
        if beside is not None:
            check_side_names(layout.read_schema, beside, self._ledger.name)
        return checked_columns(layout, names, self._ledger.name, beside), beside

    def get(self, keys: Any) -> pa.Table:
        """The current rows with these keys. Keys without a row are left out."""
        snapshot = self._ledger.snapshot()
        self._ledger.layout(snapshot)
        key_table = parse_keys(keys, snapshot, self._ledger.name)
        return self._read_index(lambda now, index: self._shown(located_rows(now, key_table, index), now))

    def _shown(self, rows: LocatedRows, snapshot: Snapshot) -> pa.Table:
        beside = self._side_columns(snapshot)
        shown = rows.table.select(self._ledger.layout(snapshot).shown.names)
        if beside is None:
            return shown
        check_side_names(rows.table.schema, beside, self._ledger.name)
        return append_columns(shown, beside.open(beside.schema.names).take(rows.offsets), beside.schema)

    def history(self, keys: Any) -> pa.Table:
        """Every record with these keys, in offset order."""
        ledger, snapshot = self._ledger, self._ledger.snapshot()
        shown = ledger.columns(snapshot)
        key_table = parse_keys(keys, snapshot, ledger.name)
        since = snapshot.purged_before - 1 if snapshot.purged_before else None
        columns = list(dict.fromkeys([*shown, *key_table.column_names]))  # part of the key may be hidden
        scan = ledger.scan(snapshot, select_interval(snapshot, ledger.name, since, None), columns)
        records = scan.to_reader(history_filter(key_table)).read_all()
        return filter_by_keys(records, key_table).sort_by(scan.layout.vocab.offset).select(shown)

    # Fold, purge, verify

    def fold(self) -> FoldReport:
        """Copy the live rows of small slices, and of slices with many dead records, into large files."""
        snapshot = self._ledger.snapshot()
        return fold(self._ledger.name, snapshot, self.dead(snapshot), self._ledger.runtime, FoldRule())

    def fold_if_due(self) -> None:
        """Fold after a write if it is worth it. Errors are only logged: the write is complete."""
        if (snapshot := self._ledger.latest) is not None:
            fold_if_due(self._ledger.name, snapshot, self.cache, self._ledger.runtime)

    def plan_purge(self, before: int | str | date | datetime) -> PurgeReport:
        """What `purge` would remove and carry."""
        ledger, snapshot = self._ledger, self._ledger.snapshot()
        check_can_purge(snapshot, ledger.name)
        dead = self.dead(snapshot) if strategy_of(snapshot.state).is_keyed else None
        return plan_purge(snapshot, purge_end(snapshot, ledger.name, before), dead)

    def plan_erase(self, keys: Any) -> EraseReport:
        """What `erase` would do."""
        return plan_erase(self._ledger.name, self._ledger.snapshot(), reusable_keys(keys), self.cache)

    def erase(self, keys: Any) -> EraseReport:
        """Remove every record of some keys from the slices, and from copies and indexes of them."""
        ledger = self._ledger
        report, ledger.latest = erase(ledger.name, reusable_keys(keys), ledger.snapshot, ledger.runtime, self.cache)
        return report

    def erase_records(self, offsets: I64) -> EraseReport:
        """The same for the dead records at some sorted offsets, also in a derived dataset."""
        ledger = self._ledger
        report, ledger.latest = erase_records(ledger.name, offsets, ledger.snapshot, ledger.runtime, self.cache)
        return report

    def purge(self, before: int | str | date | datetime) -> PurgeReport:
        """Remove whole slices before an offset or an event time, with the copies of their rows."""
        ledger = self._ledger
        report, ledger.latest = purge(ledger.name, before, ledger.snapshot, ledger.runtime, self.cache)
        return report

    def problems(self) -> list[VerifyProblem]:
        """The problems of the key index and the folded files. The ledger itself must be intact."""
        objects = self._ledger.objects
        head = objects.read_head()
        if head is None:
            return []
        snapshot = load_snapshot(objects, head, {})  # without a cache, so that stored files are checked
        keyed = strategy_of(snapshot.state).is_keyed
        return [*(_key_problems(snapshot) if keyed else ()), *fold_problems(snapshot), *erasure_problems(snapshot)]


def _key_problems(snapshot: Snapshot) -> list[VerifyProblem]:
    """The problems of the key index. Files that writers replaced meanwhile are not a problem."""
    objects = snapshot.objects
    return read_consistently(
        lambda: load_snapshot(objects, objects.read_head() or snapshot.head, {}),
        lambda now: list(index_problems(now)),
        lambda now: objects.read_head() not in (None, now.head),
        doubted=bool,
    )


def _from_epoch(seconds: object) -> datetime | None:
    """The time of seconds since 1970 in UTC; None for anything else."""
    if not isinstance(seconds, SupportsFloat):
        return None
    try:
        return datetime.fromtimestamp(float(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return None
