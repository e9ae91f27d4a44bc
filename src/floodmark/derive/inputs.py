"""Inputs as of one head: a run reads each head first, and then reads only data up to that head.

The protocols of a dataset, of a lake and of the processed keys are here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from floodmark.chain.events import SetTransform
from floodmark.chain.ids import DatasetId, Multihash
from floodmark.derive.own_records import count_own, find_own_records
from floodmark.engine.session import Runtime
from floodmark.errors import BadIndex, InputMoved, ObjectNotFound, UnreadableSlice
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.scan import Scan
from floodmark.ledger.schema import Layout
from floodmark.ledger.selection import NO_OFFSETS, Selection, select, without_carried
from floodmark.ledger.snapshot import CarriedRecords, Snapshot
from floodmark.ledger.strategy import Strategy, strategy_of, view_columns
from floodmark.rows import key_index_loader
from floodmark.rows.key_entries import Kills
from floodmark.rows.key_index import KeyIndex
from floodmark.rows.live_rows import select_current
from floodmark.rows.row_copies import RowReader
from floodmark.storage.arrays import I64, Hashes
from floodmark.storage.store import Store


@dataclass(frozen=True)
class TaskInput:
    """Everything that a task needs to read an input. It is small and can be pickled."""

    name: str
    dataset_id: str
    objects: DatasetObjects
    layout: Layout | None
    slices: pa.Table = field(repr=False)
    purged_before: int
    end: int
    head: Multihash
    index: KeyIndex | None = field(repr=False)  # None if the input has no key, or the task does not need it
    carried: tuple[CarriedRecords, ...] = ()

    def seen_at(self, offsets: I64) -> I64:
        """The offsets at which readers had seen these records at the latest: before a purge that carried them.

        Positions and processed keys are compared with these. Other records were first seen at their own offset.
        """
        return first_seen(self.carried, offsets)

    @cached_property
    def rows(self) -> RowReader:
        """Access to the records by offset."""
        assert self.layout is not None
        return RowReader(self.objects, self.slices, self.layout)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "rows"}

    def scan(self, selection: Selection, columns: Sequence[str]) -> Scan:
        assert self.layout is not None
        return Scan(self.objects, self.layout, selection, tuple(columns))

    @contextmanager
    def raise_if_input_moved(self) -> Iterator[None]:
        """Raise `InputMoved`, so that the run plans again, if files of the snapshot were replaced or are damaged."""
        try:
            yield
        except (BadIndex, UnreadableSlice, ObjectNotFound) as error:
            raise InputMoved(
                f"the snapshot of input {self.name!r} cannot be read any more: {error}",
                hint="run again: a newer state may have replaced it; if that fails, run verify to find damaged files",
                input=self.name,
            ) from error


@dataclass(frozen=True)
class InputSnapshot:
    """A dataset as of one head, or as of an earlier record. Its records are those from `purged_before` up to `end`.

    Its columns are always those of the head.
    """

    name: str
    dataset_id: str
    snapshot: Snapshot = field(repr=False)
    cache: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    stop: int | None = None  # the end of the records; None is the end at the head
    has_own: bool = False  # whether it has records of users and of the step, which must be told apart

    @property
    def layout(self) -> Layout | None:
        return self.snapshot.layout

    @property
    def end(self) -> int:
        return self.snapshot.next_offset if self.stop is None else self.stop

    @property
    def is_newest(self) -> bool:
        """Whether all records up to the head are included."""
        return self.end == self.snapshot.next_offset

    @property
    def last_offset(self) -> int:
        """The offset of the newest record, -1 when there is none."""
        return self.end - 1

    @property
    def purged_before(self) -> int:
        return min(self.snapshot.purged_before, self.end)

    @property
    def watermark(self) -> int | None:
        """The watermark in nanoseconds since the epoch; None as of an earlier record, where it is not known."""
        return self.snapshot.state.watermark if self.is_newest else None

    @cached_property
    def strategy(self) -> Strategy:
        return strategy_of(self.snapshot.state)

    @cached_property
    def shown(self) -> pa.Schema | None:
        """The visible columns, None before the first write. A view has them from its definition."""
        if self.layout is not None:
            return self.layout.shown
        return view_columns(self.snapshot.state)

    @property
    def shown_key(self) -> tuple[str, ...]:
        """The visible columns of the key. Some or all key columns of a view may be hidden."""
        key = self.strategy.key
        return key if self.shown is None else tuple(name for name in key if name in self.shown.names)

    @property
    def index(self) -> KeyIndex | None:
        """The key index as of the head; None if the dataset has no key or records up to the head are left out."""
        return self.newest_index if self.is_newest else None

    @cached_property
    def newest_index(self) -> KeyIndex | None:
        """The key index as of the head: it finds current rows at the head only, but has dead offsets of any time."""
        if not self.strategy.is_keyed:
            return None
        try:
            return key_index_loader.load(self.snapshot, self.cache)
        except BadIndex:
            return key_index_loader.repair(self.snapshot, self.cache)

    @property
    def live_rows(self) -> int:
        """The number of current rows."""
        if self.index is None:
            return self.end - self.purged_before - len(self.dead) + int(np.searchsorted(self.dead, self.purged_before))
        return self.end - self.purged_before - self.index.dead_from(self.purged_before)

    @property
    def row_bytes(self) -> float:
        """The estimated bytes of a record in memory, which is larger than in Parquet."""
        return 3.0 * self.snapshot.size / max(self.snapshot.records, 1)

    @cached_property
    def dead(self) -> I64:
        """The sorted offsets of records that are not current."""
        if self.newest_index is None:
            return NO_OFFSETS
        with self.raise_if_input_moved():
            return self.newest_index.dead(self.end)

    def endings(self, start: int, end: int) -> Kills:
        """The records that other records, with offsets in [start, end), ended, in the order of the latter."""
        if self.newest_index is None:
            return Kills(NO_OFFSETS, NO_OFFSETS)
        with self.raise_if_input_moved():
            return self.newest_index.endings(start, end)

    @cached_property
    def task_input(self) -> TaskInput:
        """The part of this input that tasks get."""
        return TaskInput(
            self.name,
            self.dataset_id,
            self.snapshot.objects,
            self.layout,
            self.snapshot.slices,
            self.purged_before,
            self.end,
            self.snapshot.head,
            self.index,
            self.snapshot.carried,
        )

    @contextmanager
    def raise_if_input_moved(self) -> Iterator[None]:
        """Like the same method of `TaskInput`; also repairs a damaged index, so that the next plan can use it."""
        try:
            yield
        except (BadIndex, UnreadableSlice, ObjectNotFound) as error:
            if isinstance(error, BadIndex) and self.snapshot.objects.read_head() == self.snapshot.head:
                key_index_loader.repair(self.snapshot, self.cache)
            raise InputMoved(
                f"the snapshot of input {self.name!r} cannot be read any more: {error}",
                hint="run again: a newer state may have replaced it; if that fails, run verify to find damaged files",
                input=self.name,
            ) from error

    def records(self, start: int, position: int | None = None) -> Selection:
        """All records from offset `start` on, dead ones included, that are new to a reader that has read up to it.

        A purge repeats current rows at the end. They are not new to readers of the purged records. `position` says how
        far a reader has read that starts again from an earlier record.
        """
        selection = select(self.snapshot, max(start, self.purged_before), self.end)
        return without_carried(
            selection, self.snapshot.carried, start if position is None else max(start, position + 1)
        )

    def carried_to(self, offsets: I64) -> I64:
        """Where purges carried these records; those that were not carried keep their offsets.

        An offset stays below `purged_before` if the key index was rebuilt since the purge and does not know the record.
        """
        if self.newest_index is None:
            return offsets
        with self.raise_if_input_moved():
            return follow_carried(self.newest_index, self.snapshot, offsets)

    def unread_purged(self, positions: Mapping[str, int]) -> bool:
        """Whether records were purged before a reader with these positions, by dataset id, had read them."""
        return positions.get(self.dataset_id, -1) + 1 < self.purged_before

    def seen_at(self, offsets: I64) -> I64:
        """Like the same method of `TaskInput`."""
        return first_seen(self.snapshot.carried, offsets)

    def unread(self, position: int) -> int:
        """How many records come after a position and are new to a reader that has read up to it."""
        start = max(position + 1, self.purged_before)
        if self.has_own:
            return self.end - start - count_own(find_own_records(self.snapshot, position), start, self.end)
        carried = [c for c in self.snapshot.carried if c.before <= position + 1]
        return max(0, self.end - start - sum(max(0, min(c.end, self.end) - max(c.start, start)) for c in carried))

    def current_rows(self) -> Selection:
        """The current rows, read from folded files where these exist."""
        with self.raise_if_input_moved():
            return select_current(self.snapshot, self.purged_before, self.end, self.dead)

    def live_rows_since(self, start: int) -> Selection:
        """The current rows from offset `start` on, read from slices only, because slices are never replaced."""
        chosen = self.records(start)
        low, high = np.searchsorted(self.dead, [chosen.start, chosen.end])
        return Selection(chosen.start, chosen.end, chosen.files, self.dead[low:high])


def follow_carried(index: KeyIndex, snapshot: Snapshot, offsets: I64) -> I64:
    """Where purges carried these records, as far as the key index knows."""
    for one in snapshot.ever_carried:  # oldest first: a row may have been carried several times
        enders = index.ended_by(offsets)
        offsets = np.where((enders >= one.start) & (enders < one.end), enders, offsets)
    return offsets


def first_seen(carried: Sequence[CarriedRecords], offsets: I64) -> I64:
    """The offsets, and for carried records the last offset that the purge removed."""
    for one in carried:
        offsets = np.where((offsets >= one.start) & (offsets < one.end), one.before - 1, offsets)
    return offsets


def snapshot_dataset(dataset: DatasetLike) -> InputSnapshot:
    """Take a snapshot of a dataset at its current head."""
    return InputSnapshot(dataset.name, str(dataset.id), dataset.snapshot())


class DatasetLike(Protocol):
    """A dataset of the lake."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> DatasetId: ...

    def snapshot(self) -> Snapshot:
        """The dataset as of its current head."""


class LakeLike(Protocol):
    """The part of a lake that steps use; `floodmark.lake.Lake` implements it."""

    @property
    def store(self) -> Store: ...

    @property
    def runtime(self) -> Runtime: ...

    def __getitem__(self, name: str) -> Any: ...

    def __contains__(self, name: object) -> bool: ...

    def create_derived(
        self,
        name: str,
        *,
        key: Sequence[str] | str,
        lookup: Sequence[str] | str | None = None,
        event_time: str | None = None,
        schema: Any = None,
        transform: SetTransform | None = None,
        vocab: Mapping[str, str] | None = None,
    ) -> Any:
        """Create a dataset that a step computes from other datasets."""


class KnownKeys(Protocol):
    """The state of the processed keys, sent to tasks; `TransformMeta` implements it."""

    @property
    def keys(self) -> int:
        """The number of processed keys."""

    @property
    def positions(self) -> Mapping[str, int]:
        """By dataset id, the offset up to which every change is processed; -1 if none is."""

    def processed_up_to(self, hashes: Hashes, inputs: Sequence[str]) -> I64:
        """Per key and input, the newest offset that the key's run included; NEVER_PROCESSED if no run processed it."""

    def settled(self, dataset: str) -> int | None:
        """The newest offset of an input that every result includes; None if there are no results."""

    def is_ahead(self, inputs: Sequence[str]) -> bool:
        """Whether some key may have been processed beyond the positions."""

    def failed(self) -> pa.Table:
        """The keys whose last call failed."""

    def due(self, now_ms: int) -> pa.Table:
        """The failed keys whose next attempt is due."""


NEVER_PROCESSED = -2
"""The offset of a key that was never processed."""
