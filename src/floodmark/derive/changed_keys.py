"""The distinct keys that have records in an interval of an input's offsets, with the first and last offset of each.

A correction is a pair of records, -C and +C. If both have the same values in the columns that a step reads, the pair
changes nothing for the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.derive.inputs import InputSnapshot, KnownKeys, TaskInput
from floodmark.derive.key_shape import KeyShape
from floodmark.derive.own_records import count_own, find_own_records, is_own
from floodmark.engine.rounds import TaskRunner
from floodmark.errors import RecordsPurged
from floodmark.ledger.selection import DataFile, Selection
from floodmark.rows import row_hash
from floodmark.rows.classify import CORRECT_FROM, CORRECT_TO
from floodmark.storage.arrays import I64, Hashes, Mask, is_group_start, stable_order

TASK_ROWS = 1 << 18
"""The number of records from which one task reads keys."""

_BUFFERED_ROWS = 1 << 20
_SETTLED = 1 << 62
"""Added to offsets up to the position, so that the minimum is the first offset beyond the position if there is one."""

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ChangedKeys:
    """Distinct keys, or the part of them that an input has, with the offsets of their first and last record."""

    keys: pa.Table  # under the names and types of the transform keys
    hashes: Hashes  # of these columns
    first: I64
    last: I64

    def __len__(self) -> int:
        return len(self.first)

    def take(self, at: I64) -> ChangedKeys:
        return ChangedKeys(self.keys.take(pa.array(at)), self.hashes.take(at), self.first[at], self.last[at])

    @staticmethod
    def joined(parts: Sequence[ChangedKeys], schema: pa.Schema) -> ChangedKeys:
        """Merge parts that are in offset order; the result has each key once."""
        nothing = np.empty(0, np.int64)
        merged = ChangedKeys(
            pa.concat_tables([schema.empty_table(), *(p.keys for p in parts)]),
            Hashes.joined([p.hashes for p in parts]),
            np.concatenate([nothing, *(p.first for p in parts)]),
            np.concatenate([nothing, *(p.last for p in parts)]),
        )
        if len(parts) < 2:
            return merged
        groups = HashGroups.of(merged.hashes)
        one_each = merged.take(groups.first)
        return ChangedKeys(one_each.keys, one_each.hashes, groups.least(merged.first), groups.greatest(merged.last))


@dataclass(frozen=True)
class HashGroups:
    """Rows grouped by equal hashes. Within a group the rows keep their order."""

    order: I64
    starts: I64

    @staticmethod
    def of(hashes: Hashes) -> HashGroups:
        order = stable_order([hashes.high, hashes.low])
        return HashGroups(order, np.flatnonzero(is_group_start([hashes.high[order], hashes.low[order]])))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def first(self) -> I64:
        """The position of the first member of each group."""
        return self.order[self.starts]

    @property
    def sizes(self) -> I64:
        return np.diff(np.append(self.starts, len(self.order)))

    @property
    def number(self) -> I64:
        """The group number of each position."""
        numbers = np.empty(len(self.order), np.int64)
        numbers[self.order] = np.repeat(np.arange(len(self.starts)), self.sizes)
        return numbers

    def least(self, values: I64) -> I64:
        return np.minimum.reduceat(values[self.order], self.starts) if len(self.starts) else values[:0]

    def greatest(self, values: I64) -> I64:
        return np.maximum.reduceat(values[self.order], self.starts) if len(self.starts) else values[:0]


def merge_first(groups: HashGroups, first: I64, position: int) -> I64:
    """The first record of each group: its first one beyond `position`, if it has one there."""
    merged = groups.least(np.where(first > position, first, first + _SETTLED))
    return np.where(merged >= _SETTLED, merged - _SETTLED, merged)


def unique_keys(keys: pa.Table, hashes: Hashes) -> tuple[pa.Table, Hashes]:
    """Remove duplicate keys."""
    groups = HashGroups.of(hashes)
    if len(groups) == len(hashes):
        return keys, hashes
    return keys.take(pa.array(groups.first)), hashes.take(groups.first)


def refuse_purged_input(input_snapshot: InputSnapshot, known: KnownKeys) -> None:
    """Raise `RecordsPurged` if records were purged before every result included them.

    Without any results, a run starts after the purged records. Positions alone are not enough for this check, because
    a run of selected keys does not move them.
    """
    if input_snapshot.has_own and _purged_only_own(input_snapshot, known):
        return
    position = known.settled(input_snapshot.dataset_id)
    if position is not None and position + 1 < input_snapshot.purged_before:
        raise RecordsPurged(
            f"records {position + 1} to {input_snapshot.purged_before - 1} of input {input_snapshot.name!r} were "
            "purged before they were processed",
            hint="reset the step: it then computes everything from the records that remain",
            input=input_snapshot.name,
            position=position,
            purged_before=input_snapshot.purged_before,
        )


def _purged_only_own(input_snapshot: InputSnapshot, known: KnownKeys) -> bool:
    position = known.settled(input_snapshot.dataset_id)
    since = -1 if position is None else position
    own = find_own_records(input_snapshot.snapshot, since)
    count = input_snapshot.purged_before - since - 1
    return count_own(own, since + 1, input_snapshot.purged_before) >= count


@dataclass(frozen=True)
class InputChanges:
    """The keys of an input's records, by whether a record changes what the step reads of the key."""

    changed: ChangedKeys
    unchanged: ChangedKeys
    """Keys whose records after the position are all corrections of columns that the step does not read."""


@dataclass(frozen=True)
class ChangedKeysTask:
    """A task that reads the keys of a selection's records."""

    given: TaskInput
    shape: KeyShape
    number: int
    selection: Selection
    known: KnownKeys | None  # skip records that were already included when their key was processed
    where: pc.Expression | None = None
    position: int = -1
    compared: tuple[str, ...] | None = None  # the columns in which corrections are compared; None: not compared
    start: int = 0  # of the task's records, with `compared`: the selection has one more record on each side
    end: int = 0
    own: I64 | None = None  # the records that the step itself wrote: they change no key


def find_changed_keys(
    input_snapshot: InputSnapshot,
    shape: KeyShape,
    number: int,
    since: int,
    runner: TaskRunner,
    known: KnownKeys | None = None,
    where: pc.Expression | None = None,
    position: int = -1,
) -> ChangedKeys:
    """The keys (or parts of them) of all records after `since`, retractions and old values included.

    Rows that a purge carried count as records from before it, so a reader that has read these skips them.

    The first record of a key is its first one beyond `position`, if it has one there.
    """
    return _find(input_snapshot, shape, number, since, runner, known, where, position, None).changed


def find_changes(
    input_snapshot: InputSnapshot,
    shape: KeyShape,
    number: int,
    since: int,
    runner: TaskRunner,
    known: KnownKeys | None = None,
    position: int = -1,
) -> InputChanges:
    """Like `find_changed_keys`, but corrections that differ only in columns that the step does not read do not count.

    Such a correction counts if a run up to `position` cannot have read the row before it, because it was purged.
    """
    compared = shape.inputs[number].compared if position + 1 >= input_snapshot.purged_before else None
    return _find(input_snapshot, shape, number, since, runner, known, None, position, compared)


def _find(
    input_snapshot: InputSnapshot,
    shape: KeyShape,
    number: int,
    since: int,
    runner: TaskRunner,
    known: KnownKeys | None,
    where: pc.Expression | None,
    position: int,
    compared: tuple[str, ...] | None,
) -> InputChanges:
    schema = shape.part_schema(number)
    own = None
    if input_snapshot.has_own:  # which of the records up to the position are its own is not asked again
        since = max(since, position)
        own = find_own_records(input_snapshot.snapshot, since)
    selection = input_snapshot.records(since + 1, position)
    if input_snapshot.layout is None or selection.is_empty:
        return InputChanges(ChangedKeys.joined([], schema), ChangedKeys.joined([], schema))
    if compared is not None and not has_corrections(input_snapshot, selection):
        compared = None
    checked = known if shape.inputs[number].is_full else None  # meta has whole keys only
    task = ChangedKeysTask(input_snapshot.task_input, shape, number, selection, checked, where, position, compared)
    pieces = cut_selection(selection, TASK_ROWS)
    tasks = [replace(task, selection=piece, start=piece.start, end=piece.end, own=own) for piece in pieces]
    if compared is not None:
        around = input_snapshot.records(since, position)  # a position may be between the two records of a correction
        tasks = [replace(one, selection=_with_neighbours(around, one.start, one.end)) for one in tasks]
    read = runner.run_reading(tasks, read_changed_keys, selection.end - selection.start)
    changed = ChangedKeys.joined([part.changed for part in read], schema)
    unchanged = ChangedKeys.joined([part.unchanged for part in read], schema)
    if len(unchanged):
        newly = changed.hashes.take(changed.last > position)
        unchanged = unchanged.take(np.flatnonzero(~unchanged.hashes.among(newly)))
    first = np.where(changed.first >= _SETTLED, changed.first - _SETTLED, changed.first)
    return InputChanges(ChangedKeys(changed.keys, changed.hashes, first, changed.last), unchanged)


def has_corrections(input_snapshot: InputSnapshot, selection: Selection) -> bool:
    """Whether records of a selection may be corrections. The first record of each correction is dead."""
    low, high = np.searchsorted(input_snapshot.dead, [selection.start, selection.end])
    return bool(low < high)


def _with_neighbours(around: Selection, start: int, end: int) -> Selection:
    """The records [start, end) with the record before and the record after them, if there are such records."""
    low, high = max(start - 1, around.start), min(end + 1, around.end)
    first = int(np.searchsorted([file.end for file in around.files], low, side="right"))
    last = int(np.searchsorted([file.start for file in around.files], high, side="left"))
    return around.of(around.files[first:last], low, high)


def read_changed_keys(task: ChangedKeysTask) -> InputChanges:
    """The distinct keys of a selection's records."""
    changed: list[ChangedKeys] = []
    unchanged: list[ChangedKeys] = []
    with task.given.raise_if_input_moved():
        for keys, offsets, is_same in _key_batches(task):
            if is_same is None or not is_same.any():
                changed.append(_reduce_keys(task, keys, offsets))
                continue
            differ, same = np.flatnonzero(~is_same), np.flatnonzero(is_same & (offsets > task.position))
            changed.append(_reduce_keys(task, keys.take(pa.array(differ)), offsets[differ]))
            unchanged.append(_reduce_keys(task, keys.take(pa.array(same)), offsets[same]))
    schema = task.shape.part_schema(task.number)
    return InputChanges(ChangedKeys.joined(changed, schema), ChangedKeys.joined(unchanged, schema))


KeyBatch = tuple[pa.Table, I64, Mask | None]
"""Keys and offsets of records; with `compared` also which records change no such column."""


def _key_batches(task: ChangedKeysTask) -> Iterator[KeyBatch]:
    """The keys of the records, batch by batch."""
    assert task.given.layout is not None
    vocab = task.given.layout.vocab
    names = [vocab.offset, *task.shape.inputs[task.number].own]
    if task.compared is None:
        for records in _record_batches(task, names):
            yield _key_batch(task, records, records.column(vocab.offset).to_numpy(), None)
        return
    for records in _whole_corrections(_record_batches(task, [*names, vocab.op, *task.compared]), vocab.op):
        offsets = records.column(vocab.offset).to_numpy()
        is_same = _changes_nothing(records, offsets, records.column(vocab.op).to_numpy(), task.compared)
        own = slice(*np.searchsorted(offsets, [task.start, task.end]).tolist())
        yield _key_batch(task, records.slice(own.start, own.stop - own.start), offsets[own], is_same[own])


def _key_batch(task: ChangedKeysTask, records: pa.Table, offsets: I64, is_same: Mask | None) -> KeyBatch:
    if task.own is not None and (ours := is_own(offsets, task.own)).any():
        others = np.flatnonzero(~ours)
        records, offsets = records.take(pa.array(others)), offsets[others]
        is_same = None if is_same is None else is_same[others]
    return task.shape.part_of(task.number, records), task.given.seen_at(offsets), is_same


def _record_batches(task: ChangedKeysTask, columns: Sequence[str]) -> Iterator[pa.Table]:
    """These columns of the records, many records at a time."""
    scan = task.given.scan(task.selection, list(dict.fromkeys(columns)))
    buffered: list[pa.RecordBatch] = []
    with scan.readable():
        for batch in scan.batches(task.where):
            buffered.append(batch)
            if sum(b.num_rows for b in buffered) >= _BUFFERED_ROWS:
                yield pa.Table.from_batches(buffered)
                buffered = []
    if buffered:
        yield pa.Table.from_batches(buffered)


def _whole_corrections(batches: Iterator[pa.Table], op: str) -> Iterator[pa.Table]:
    """The same records, cut so that no cut is between the two records of a correction."""
    waiting: list[pa.Table] = []
    for batch in batches:
        records = pa.concat_tables([*waiting, batch])
        is_cut = records.num_rows > 0 and records.column(op)[-1].as_py() == CORRECT_FROM
        whole = records.num_rows - is_cut
        yield records.slice(0, whole)
        waiting = [records.slice(whole)] if is_cut else []
    yield from waiting


def _changes_nothing(records: pa.Table, offsets: I64, ops: I64, compared: Sequence[str]) -> Mask:
    """Which records belong to a correction whose two records have the same values in these columns."""
    is_same: Mask = np.zeros(len(offsets), np.bool_)
    follows = (ops[:-1] == CORRECT_FROM) & (ops[1:] == CORRECT_TO) & (np.diff(offsets) == 1)
    old = np.flatnonzero(follows)
    if len(old):
        before, after = (row_hash.hash_rows(records.take(pa.array(at)), compared) for at in (old, old + 1))
        old = old[before.same(after)]
        is_same[old] = is_same[old + 1] = True
    return is_same


def _reduce_keys(task: ChangedKeysTask, keys: pa.Table, offsets: I64) -> ChangedKeys:
    hashes = task.shape.hash_part(task.number, keys)
    groups = HashGroups.of(hashes)
    one_each = hashes.take(groups.first)
    if task.known is not None:
        done = task.known.processed_up_to(one_each, [task.given.dataset_id])[:, 0]
        pending = np.flatnonzero(offsets > done[groups.number])
        if len(pending) < len(offsets):
            keys, offsets, hashes = keys.take(pa.array(pending)), offsets[pending], hashes.take(pending)
            groups = HashGroups.of(hashes)
            one_each = hashes.take(groups.first)
    first = groups.least(np.where(offsets > task.position, offsets, offsets + _SETTLED))
    return ChangedKeys(keys.take(pa.array(groups.first)), one_each, first, groups.greatest(offsets))


def cut_selection(selection: Selection, rows: int) -> list[Selection]:
    """Cut a selection into parts of about `rows` records, in order: small files are combined, large files are cut."""
    pieces: list[Selection] = []
    group: list[DataFile] = []
    for file in selection.files:
        if group and (sum(f.rows for f in group) + file.rows > rows):
            pieces.append(_piece(selection, group))
            group = []
        start, end = max(file.start, selection.start), min(file.end, selection.end)
        count = -(-file.rows * (end - start) // ((file.end - file.start) * rows)) if file.end > file.start else 0
        if count <= 1:
            group.append(file)
            continue
        bounds = [start + (end - start) * i // count for i in range(count + 1)]
        pieces += [selection.of((file,), low, high) for low, high in pairwise(bounds)]
    return [*pieces, _piece(selection, group)] if group else pieces


def _piece(selection: Selection, files: list[DataFile]) -> Selection:
    return selection.of(tuple(files), max(selection.start, files[0].start), min(selection.end, files[-1].end))
