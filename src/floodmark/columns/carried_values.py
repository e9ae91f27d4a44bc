"""Values that records take over from the records that they replaced, because the inputs of both are the same.

An update writes the old row and the new row as neighbours: the record at `offset - 1` repeats the values of the record
that it ends. So two adjacent records show which inputs changed, and the key index knows which record was ended. A
record that was never computed passes the question on to the record before it.

`CarriedRowFinder` finds such rows for a plan. `carry_values` copies their results, values and errors, into checkpoints,
from which the same code takes them as takes results of calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns import row_errors
from floodmark.columns.assemble import diff_values
from floodmark.columns.catalog import FIELD_ID, ColumnDefinition
from floodmark.columns.checkpoint_batch import ERROR, ERROR_TYPE, ROWADDR, OffsetValues, mark_carried, mark_run
from floodmark.columns.checkpoint_values import MergedValues, split_by_fragment
from floodmark.columns.checkpoints import free_range_key
from floodmark.columns.column_file import open_segment
from floodmark.columns.plan import CarriedRows, StoredResults
from floodmark.columns.snapshot import ColumnSnapshot
from floodmark.columns.value_sources import (
    CheckpointReader,
    CheckpointValues,
    FileValues,
    FinishedFileValues,
    ValueSource,
    read_stored_time,
)
from floodmark.columns.work import ColumnJob, read_records
from floodmark.engine.rounds import TaskRunner
from floodmark.engine.run import run_in_threads
from floodmark.errors import CheckpointCoverageError, UnreadableColumn
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import Layout
from floodmark.ledger.selection import Selection, select
from floodmark.ledger.strategy import strategy_of
from floodmark.rows.classify import CORRECT_FROM, CORRECT_TO, RETRACT
from floodmark.rows.key_entries import NO_ROW
from floodmark.rows.row_hash import hash_rows
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64, Hashes, Mask

STEP_RECORDS = 4 << 20
"""The key index is asked about this many records at a time."""

COMPARED_RECORDS = 1 << 17
"""How many pairs of records a task compares."""

COMPARED_ROWS = 1 << 16
"""How many values of computed inputs are compared at a time."""

CHECKPOINT_BYTES = 64 << 20
"""The size at which the copied values are stored as a checkpoint."""

_MASKS = 64  # fragments of which it is kept in memory which rows have results

_log = logging.getLogger(__name__)

RowLookup = Callable[[int], BitMap]
"""The rows of a fragment that have a result that may be taken over."""


@dataclass
class CarriedRowFinder:
    """Finds the missing rows that can take over a value. `lookups` are asked in order, the cheapest first."""

    source: ColumnSnapshot
    inputs: Sequence[str]
    fragment_rows: int
    lookups: Sequence[RowLookup]
    runner: TaskRunner | None = None  # for a cluster; without it, this process compares the records
    _masks: dict[tuple[int, int], Mask] = field(default_factory=dict)

    def find(self, number: int, missing: BitMap) -> CarriedRows:
        """The missing rows of a fragment whose inputs equal those of an earlier record of their key with a result."""
        base = number * self.fragment_rows
        dead = self.source.dead
        low, high = np.searchsorted(dead, [base - 1, base + self.fragment_rows - 1])
        if low == high or not missing or self.source.layout.vocab.offset in self.inputs:  # no two offsets are the same
            return CarriedRows()
        candidates = missing & row_sets.from_array(dead[low:high] + (1 - base))  # the record before it is an old row
        offsets = row_sets.to_array(candidates) + base
        sources, repeated = self._ancestors(offsets)
        found = sources != NO_ROW
        offsets, sources, repeated = offsets[found], sources[found], repeated[found]
        same = self._same_records(offsets, repeated)
        offsets, sources = offsets[same], sources[same]
        for start in range(0, len(offsets) if self._computed else 0, COMPARED_ROWS):
            part = slice(start, start + COMPARED_ROWS)
            sources[part][~self._same_computed(offsets[part], sources[part])] = NO_ROW
        kept = sources != NO_ROW
        return CarriedRows(offsets[kept] - base, sources[kept])

    def _ancestors(self, offsets: I64) -> tuple[I64, I64]:
        """For each record the newest earlier one of its key with a result, and a record that repeats its values.

        Both are NO_ROW if there is none. Records only replace earlier ones, so one pass from the newest to the oldest
        records follows all chains.
        """
        sources, repeated = (np.full(len(offsets), NO_ROW, np.int64) for _ in range(2))
        at = offsets.copy()  # where each chain is
        active = np.arange(len(offsets))
        end = int(offsets[-1]) if len(offsets) else 0
        while len(active):
            start = max(self.source.start, end - STEP_RECORDS)
            kills = self.source.endings(start, end)
            inside = active[at[active] > start]
            waiting = [active[at[active] <= start]]
            while len(inside) and len(kills):
                place = np.minimum(np.searchsorted(kills.killed_by, at[inside] - 1), len(kills) - 1)
                ended = kills.offset[place]
                follows = (kills.killed_by[place] == at[inside] - 1) & (ended >= self.source.start)
                inside, ended = inside[follows], ended[follows]
                usable = self._have_results(ended)
                sources[inside[usable]] = ended[usable]
                repeated[inside[usable]] = at[inside[usable]] - 1
                inside = inside[~usable]
                at[inside] = ended[~usable]
                waiting.append(inside[at[inside] <= start])
                inside = inside[at[inside] > start]
            active = np.concatenate(waiting)
            end = int(at[active].max(initial=0))
            if start == self.source.start:
                break
        return sources, repeated

    def _have_results(self, offsets: I64) -> Mask:
        numbers = offsets // self.fragment_rows
        found = np.zeros(len(offsets), np.bool_)
        for number in np.unique(numbers).tolist():
            at = np.flatnonzero(numbers == number)
            addresses = offsets[at] - number * self.fragment_rows
            for level in range(len(self.lookups)):
                mask = self._mask(level, number)
                inside = addresses < len(mask)
                found[at[inside]] |= mask[addresses[inside]]
                if found[at].all():
                    break
        return found

    def _mask(self, level: int, number: int) -> Mask:
        """The rows of a fragment that one of the lookups finds."""
        if (level, number) not in self._masks:
            if len(self._masks) >= _MASKS:
                self._masks.clear()
            rows = self.lookups[level](number)
            mask = np.zeros(rows.max() + 1 if rows else 0, np.bool_)
            mask[row_sets.to_array(rows)] = True
            self._masks[level, number] = mask
        return self._masks[level, number]

    def _same_records(self, offsets: I64, repeated: I64) -> Mask:
        """Whether each pair is a correction of one key and equal in the inputs that are columns of the records."""
        source = self.source
        computed = {column.name for column in self._computed}
        key = strategy_of(source.snapshot.state).key
        names = tuple(dict.fromkeys([*key, *(name for name in self.inputs if name not in computed)]))
        parts = [slice(at, at + COMPARED_RECORDS) for at in range(0, len(offsets), COMPARED_RECORDS)]
        tasks = []
        for part in parts:
            first, last = min(offsets[part].min(), repeated[part].min()), offsets[part].max()
            selection = select(source.snapshot, int(first), int(last) + 1)  # folded files lack the old rows
            tasks.append(
                _CompareTask(source.objects.dataset, source.layout, selection, names, offsets[part], repeated[part])
            )
        if self.runner is not None and not self.runner.session.is_local:
            found = self.runner.run_reading(tasks, compare_records, 2 * len(offsets))
        else:
            found = run_in_threads(tasks, compare_records, threads=pa.cpu_count())
        return np.concatenate([np.zeros(0, np.bool_), *found])

    @cached_property
    def _computed(self) -> list[ColumnDefinition]:
        """The inputs that are computed columns."""
        return [c for name in self.inputs if (c := self.source.catalog.find(name)) is not None]

    def _same_computed(self, offsets: I64, sources: I64) -> Mask:
        """Whether each pair of records has the same values in the inputs that are computed columns."""
        same = np.ones(len(offsets), np.bool_)
        beside, rows = self.source.beside, self.source.catalog.fragment_rows
        assert beside is not None
        older, places = np.unique(sources, return_inverse=True)
        for column in self._computed:
            visible = self.source.manifest(column)
            parts = [
                np.isin(part - number * rows, row_sets.to_array(visible.fragment(number).visible))
                for number, part in split_by_fragment(older, rows)
            ]
            [new], [old] = beside.open([column.name]).take(offsets), beside.open([column.name]).take(older)
            differ = diff_values(_joined(old).take(pa.array(places)), _joined(new))
            same &= ~differ & np.concatenate(parts)[places]
        return same


@dataclass(frozen=True)
class _CompareTask:
    """Pairs of records to compare: new records, and the records before them, which repeat what they replaced."""

    objects: DatasetObjects
    layout: Layout
    selection: Selection
    names: tuple[str, ...]
    offsets: I64
    repeated: I64

    def __str__(self) -> str:
        return f"to compare the inputs of records {self.offsets[0]} to {self.offsets[-1]}"


def compare_records(task: _CompareTask) -> Mask:
    """Whether each pair is a correction of one row and has the same values in these columns."""
    wanted = np.unique(np.concatenate([task.offsets, task.repeated]))
    hashes = Hashes(np.zeros(len(wanted), np.uint64), np.zeros(len(wanted), np.uint64))
    ops = np.full(len(wanted), RETRACT, np.int32)
    offset, op = task.layout.vocab.offset, task.layout.vocab.op
    for batch in read_records(task.objects, task.layout, task.selection, [*task.names, op], wanted):
        present = batch.column(offset).to_numpy()
        places = np.searchsorted(wanted, present)
        chosen = wanted[np.minimum(places, len(wanted) - 1)] == present
        part, places = batch.filter(pa.array(chosen)), places[chosen]
        found = hash_rows(part, task.names)
        hashes.high[places], hashes.low[places] = found.high, found.low
        ops[places] = part.column(op).to_numpy()
    one, other = (np.searchsorted(wanted, some) for some in (task.offsets, task.repeated))
    same: Mask = hashes.take(one).same(hashes.take(other))
    same &= (ops[one] == CORRECT_TO) & (ops[other] == CORRECT_FROM)
    return same


def _joined(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


# Copy the values


@dataclass(frozen=True)
class CarryTask:
    """Copies the results of records to the records of one fragment that replaced them."""

    fragment: int
    carried: CarriedRows
    sources: tuple[StoredResults, ...]

    def __str__(self) -> str:
        return f"to carry over {len(self.carried)} values to fragment {self.fragment}"


def carry_values(work: ColumnJob, task: CarryTask) -> BitMap:
    """Store the results that rows take over in checkpoints, and return these rows. Lost results are left out."""
    order = np.argsort(task.carried.sources, kind="stable")
    sources, addresses = task.carried.sources[order], task.carried.addresses[order]
    stored = {found.number: found for found in task.sources}
    writer = _CarriedWriter(work, task.fragment)
    at = 0
    for number, part in split_by_fragment(sources, work.fragment_rows):
        try:
            for offsets, results in _read_results(work, stored[number], part):
                places = at + np.searchsorted(part, offsets)
                writer.add(addresses[places], results)
        except (UnreadableColumn, CheckpointCoverageError) as error:
            _log.warning("%s; the function is called for the records that replaced these", error.message)
        at += len(part)
    writer.store()
    return writer.rows


@dataclass
class _CarriedWriter:
    """Collects copied results and stores them in checkpoints of limited size."""

    work: ColumnJob
    fragment: int
    rows: BitMap = field(default_factory=BitMap)
    held: list[tuple[I64, pa.Array, pa.Array]] = field(default_factory=list)
    bytes: int = 0

    def add(self, addresses: I64, results: MergedValues) -> None:
        there = results.owners >= 0
        parts = (_joined(results.values).filter(pa.array(there)), results.details.filter(pa.array(there)))
        self.held.append((addresses[there], *parts))
        self.bytes += sum(int(part.nbytes) for part in parts)
        if self.bytes >= CHECKPOINT_BYTES:
            self.store()

    def store(self) -> None:
        """Store what was added since the last call."""
        held, self.held, self.bytes = self.held, [], 0
        if not sum(len(addresses) for addresses, _, _ in held):
            return
        at = np.concatenate([addresses for addresses, _, _ in held])
        order = np.argsort(at)
        at = at[order]
        values, errors = (pa.concat_arrays([part[i] for part in held]).take(pa.array(order)) for i in (1, 2))
        column, store = self.work.column, self.work.checkpoints
        schema = pa.schema([(ROWADDR, pa.int64()), (column.name, column.type), (ERROR, ERROR_TYPE)])
        batch = pa.RecordBatch.from_arrays([pa.array(at), values, errors], schema=schema)
        key = free_range_key(store, self.work.prefix, self.fragment, int(at[0]), int(at[-1]) + 1)
        store.put(key, mark_carried(mark_run(batch, self.work.run)))
        self.rows |= row_sets.from_array(at)


def _read_results(work: ColumnJob, stored: StoredResults, offsets: I64) -> Iterator[tuple[I64, MergedValues]]:
    """The results of some records of a fragment, in offset order, in pieces of limited size."""
    base = stored.number * work.fragment_rows
    wanted = row_sets.from_array(offsets - base)
    sources = [*_committed(work, stored, wanted & stored.committed.done, base)]
    sources += _uncommitted(work, stored, wanted - stored.committed.done, base)
    once, at = row_sets.to_array(wanted) + base, 0
    while at < len(once):
        low, high = int(once[at]), int(once[-1]) + 1
        for source in sources:
            high = source.reach(low, high)
        found = sorted((part for source in sources for part in source.within(low, high)), key=lambda part: part.made)
        upto = int(np.searchsorted(once, high))
        parts = [OffsetValues(p.offsets, _joined(p.values), p.errors, p.made) for p in found]
        yield once[at:upto], MergedValues(once[at:upto], work.column.type, parts)
        at = upto


@dataclass
class _CommittedValues:
    """Rows of a committed file, with the errors of those that were skipped."""

    file: FileValues
    wanted: BitMap
    base: int
    errors: pa.Table

    def reach(self, start: int, end: int) -> int:
        return self.file.reach(start, end)

    def within(self, start: int, end: int) -> list[OffsetValues]:
        chosen = [source.only(self.wanted, self.base) for source in self.file.within(start, end)]
        return [
            OffsetValues(s.offsets, s.values, row_errors.error_column(self.errors, s.offsets))
            for s in chosen
            if len(s.offsets)
        ]


def _committed(work: ColumnJob, stored: StoredResults, wanted: BitMap, base: int) -> Iterator[ValueSource]:
    if not wanted:
        return
    column = work.column.with_metadata({FIELD_ID: str(work.field_id).encode()})
    errors = row_errors.load(work.objects, stored.committed.errors)
    for segment in stored.committed.segments:
        if rows := wanted & row_sets.span(segment.start - base, segment.end - base):
            yield _CommittedValues(
                FileValues(segment, partial(open_segment, work.objects, segment, column)), rows, base, errors
            )


def _uncommitted(work: ColumnJob, stored: StoredResults, wanted: BitMap, base: int) -> Iterator[ValueSource]:
    if not wanted:
        return
    store = work.checkpoints
    for data in stored.data:
        if rows := data.done & wanted:
            made = read_stored_time(store, data.key)
            yield FinishedFileValues(work.objects, work.column, data, rows, base, made)
    yield CheckpointValues(
        [
            CheckpointReader(store, work.column, found, rows, base, read_stored_time(store, found.key), work.run)
            for found in stored.ranges
            if (rows := found.rows & wanted)
        ]
    )
