"""The rows of a dataset: which records are current, found and written by key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from floodmark.chain.events import SourceState
from floodmark.ledger.beside import Beside, check_apart, joined
from floodmark.ledger.commit import Commit, to_datetime, to_nanos
from floodmark.ledger.current import current
from floodmark.ledger.errors import BadIndex, UnreadableSlice
from floodmark.ledger.fold import Fold, fold, fold_if_due
from floodmark.ledger.fold_check import fold_problems
from floodmark.ledger.fold_plan import Rule
from floodmark.ledger.incoming import Frame, Incoming
from floodmark.ledger.keys import index as key_index
from floodmark.ledger.keys.check import index_problems
from floodmark.ledger.keys.index import KeyIndex
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.merge.lookup import (
    LocatedRows,
    frame_table,
    given_keys,
    held_keys,
    history_filter,
    located_rows,
    with_keys,
)
from floodmark.ledger.merge.retract import check_can_retract, deletion
from floodmark.ledger.merge.retract import chunk as chunk_batch
from floodmark.ledger.merge.write import Merge
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.purge import Purge, purge
from floodmark.ledger.scan import Scan, checked_columns
from floodmark.ledger.selection import NOBODY, AsOf, Selection, interval, present
from floodmark.ledger.slice_check import Problem
from floodmark.ledger.snapshot import Snapshot, load_at
from floodmark.ledger.strategy import strategy_of
from floodmark.storage.arrays import I64
from floodmark.storage.retry import read_steadily

_log = logging.getLogger(__name__)

T = TypeVar("T")

SideColumns = Callable[[Snapshot], Beside | None]
"""The columns that are stored beside the records of a snapshot; None without any."""


class Rows:
    """The current rows of a ledger: without a key all its records, with one the newest of each key."""

    def __init__(self, ledger: Ledger, side_columns: SideColumns) -> None:
        self._ledger = ledger
        self._side_columns = side_columns
        self._cache: key_index.Cache = {}
        self._cached: DatasetObjects = ledger.objects

    @property
    def cache(self) -> key_index.Cache:
        """Opened files of the key index and of old rows; empty again after the ledger moved to another dataset."""
        if self._cached is not self._ledger.objects:
            self._cached, self._cache = self._ledger.objects, {}
        return self._cache

    # Write

    def write(self, data: Incoming, source_state: SourceState | None) -> Commit:
        """Merge a batch by the key: only real changes become records."""
        return self._merge(self._ledger.snapshot(), data, source_state)

    def store_chunk(
        self, data: Any, processed_idx: Any, now: datetime | None, source_state: SourceState | None
    ) -> Commit:
        """Upsert a frame; current rows that `processed_idx` names and the frame lacks are retracted."""
        snapshot = self._ledger.snapshot()
        check_can_retract(snapshot, self._ledger.name, "store_chunk", ("upsert",))
        chunk = frame_table(data)
        noted = self._noted_time(now)
        build = partial(chunk_batch, chunk, held_keys(processed_idx), self._ledger.name)
        return self._merge(snapshot, Frame(chunk), source_state, now=noted, rebuild=build)

    def delete(self, keys: Any) -> Commit:
        """Retract the current rows with these keys."""
        snapshot = self._ledger.snapshot()
        check_can_retract(snapshot, self._ledger.name, "delete", ("upsert", "snapshot", "changelog"))
        snapshot.require_layout(self._ledger.name)
        build = partial(deletion, held_keys(keys), self._ledger.name)
        return self._merge(snapshot, Frame(pa.table({})), None, kind="upsert", rebuild=build)

    def _merge(self, snapshot: Snapshot, data: Incoming, source_state: SourceState | None, **options: Any) -> Commit:
        ledger = self._ledger
        return ledger.write(
            snapshot, partial(Merge, ledger.name, ledger.runtime, data, source_state, cache=self.cache, **options)
        )

    def _noted_time(self, now: datetime | None) -> str | None:
        """The time a user gave, as it is noted; one in the past is said to be so."""
        if now is None:
            return None
        if not isinstance(now, datetime):
            raise TypeError(f"now={now!r} is no time: give a datetime")
        late = (self._ledger.runtime.clock() - to_nanos(now)) / 1e9
        if late >= 1:
            _log.warning("store_chunk called with now=%s which is %.0fs in the past.", now.isoformat(), late)
        return to_datetime(to_nanos(now)).isoformat()

    # Which records are current

    def dead(self, snapshot: Snapshot, end: int | None = None) -> I64:
        """The offsets before `end`, by default all, that are not current as of it, sorted."""
        if not strategy_of(snapshot.state).is_keyed:
            return NOBODY
        before = snapshot.next_offset if end is None else end
        return self._ask_keys(lambda _, index: index.dead(before))  # a newer index knows the past as well

    def dead_within(self, snapshot: Snapshot, ranges: Sequence[tuple[int, int]]) -> I64:
        """Those of the dead as of a snapshot whose offsets lie in ranges [low, high), ascending and apart; sorted."""
        if not ranges or not strategy_of(snapshot.state).is_keyed:
            return NOBODY
        return self._ask_keys(lambda _, index: index.dead_within(ranges, snapshot.next_offset))

    def selection(self, snapshot: Snapshot, as_of: AsOf = None) -> Selection:
        """The files that hold the current rows."""
        start, end = present(snapshot, self._ledger.name, as_of)
        return current(snapshot, start, end, self.dead(snapshot, end))

    def count(self) -> int:
        """How many rows there are; reads no data."""
        snapshot = self._ledger.snapshot()
        if not strategy_of(snapshot.state).is_keyed:
            return snapshot.records
        return self._ask_keys(lambda now, index: now.records - index.dead_from(now.purged_before))

    def _ask_keys(self, ask: Callable[[Snapshot, KeyIndex], T]) -> T:
        """Ask the key index at the present head, or at the next when writers have replaced its files meanwhile."""
        try:
            return read_steadily(
                self._ledger.snapshot,
                lambda snapshot: ask(snapshot, key_index.load(snapshot, self.cache)),
                lambda snapshot: snapshot.objects.read_head() != snapshot.head,
                replaced=(BadIndex, UnreadableSlice),
            )
        except (BadIndex, UnreadableSlice):
            snapshot = self._ledger.snapshot()
            return key_index.mended(snapshot, self.cache, lambda index: ask(snapshot, index))

    # Read

    def scan(self, as_of: AsOf, columns: Sequence[str] | None) -> Scan:
        """The current rows, with the columns beside them."""
        snapshot = self._ledger.snapshot()
        selection = self.selection(snapshot, as_of)
        return Scan(snapshot.objects, self._ledger.layout(snapshot), selection, *self.columns(snapshot, columns))

    def columns(self, snapshot: Snapshot, wanted: Sequence[str] | None) -> tuple[tuple[str, ...], Beside | None]:
        """The names of the columns to read, by default all that a row shows; and the columns beside the records."""
        layout, beside = self._ledger.layout(snapshot), self._side_columns(snapshot)
        if beside is not None:
            check_apart(layout.read_schema, beside, self._ledger.name)
        return checked_columns(layout, wanted, self._ledger.name, beside), beside

    def get(self, keys: Any) -> pa.Table:
        """The current rows with these keys; those that are not there are left out."""
        snapshot = self._ledger.snapshot()
        self._ledger.layout(snapshot)
        wanted = given_keys(keys, snapshot, self._ledger.name)
        return self._ask_keys(lambda now, index: self._shown(located_rows(now, wanted, index), now))

    def _shown(self, rows: LocatedRows, snapshot: Snapshot) -> pa.Table:
        beside = self._side_columns(snapshot)
        shown = rows.table.select(self._ledger.layout(snapshot).shown.names)
        if beside is None:
            return shown
        check_apart(rows.table.schema, beside, self._ledger.name)
        return joined(shown, beside.open(beside.schema.names).take(rows.offsets), beside.schema)

    def history(self, keys: Any) -> pa.Table:
        """Every record with these keys in offset order."""
        ledger, snapshot = self._ledger, self._ledger.snapshot()
        shown = ledger.columns(snapshot)
        wanted = given_keys(keys, snapshot, ledger.name)
        since = snapshot.purged_before - 1 if snapshot.purged_before else None
        columns = list(dict.fromkeys([*shown, *wanted.column_names]))  # part of the key may be hidden
        scan = ledger.scan(snapshot, interval(snapshot, ledger.name, since, None), columns)
        records = scan.to_reader(history_filter(wanted)).read_all()
        return with_keys(records, wanted).sort_by(scan.layout.vocab.offset).select(shown)

    # Fold, purge, verify

    def fold(self) -> Fold:
        """Copy the live rows of small or half-dead slices into large files."""
        snapshot = self._ledger.snapshot()
        return fold(self._ledger.name, snapshot, self.dead(snapshot), self._ledger.runtime, Rule())

    def fold_if_due(self) -> None:
        """Fold after a write of this ledger, when that pays; the write stands whatever happens."""
        if (snapshot := self._ledger.latest) is not None:
            fold_if_due(self._ledger.name, snapshot, self.cache, self._ledger.runtime)

    def purge(self, before: int | str | date | datetime) -> Purge:
        """Remove whole slices before an offset or an event time, with the copies of their rows."""
        ledger = self._ledger
        done, ledger.latest = purge(ledger.name, before, ledger.snapshot, ledger.runtime)
        return done

    def problems(self) -> list[Problem]:
        """What is wrong with the key index and the folded files of a ledger that is whole."""
        objects = self._ledger.objects
        head = objects.read_head()
        if head is None:
            return []
        snapshot = load_at(objects, head, {})  # without a cache: what is stored is checked
        keyed = strategy_of(snapshot.state).is_keyed
        return [*(_key_problems(snapshot) if keyed else ()), *fold_problems(snapshot)]


def _key_problems(snapshot: Snapshot) -> list[Problem]:
    """What is wrong with the key index; files that writers replaced meanwhile are no problem."""
    objects = snapshot.objects
    return read_steadily(
        lambda: load_at(objects, objects.read_head() or snapshot.head, {}),
        lambda now: list(index_problems(now)),
        lambda now: objects.read_head() not in (None, now.head),
        doubted=bool,
    )
