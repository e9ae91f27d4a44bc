"""Which keys of an input have records in an interval of offsets: distinct, with the first and the last of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.engine.rounds import Runner
from floodmark.ledger.selection import DataFile, Selection
from floodmark.storage.arrays import I64, Hashes, stable_order, starts_of_groups
from floodmark.transform.changed.inputs import PinnedInput, TaskInput
from floodmark.transform.changed.shape import Shape
from floodmark.transform.errors import MissedByPurge
from floodmark.transform.lakes import KnownKeys

TASK_ROWS = 1 << 18
"""How many records one task reads keys from."""

_HELD_ROWS = 1 << 20
_SETTLED = 1 << 62
"""Added to offsets up to the position, so that the first record beyond it counts as first if there is one."""

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ChangedKeys:
    """Distinct keys, or what an input has of them, with the offsets of their first and last record."""

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
        """Each key once; the parts are in offset order."""
        nothing = np.empty(0, np.int64)
        together = ChangedKeys(
            pa.concat_tables([schema.empty_table(), *(p.keys for p in parts)]),
            Hashes.joined([p.hashes for p in parts]),
            np.concatenate([nothing, *(p.first for p in parts)]),
            np.concatenate([nothing, *(p.last for p in parts)]),
        )
        if len(parts) < 2:
            return together
        groups = Groups.of(together.hashes)
        found = together.take(groups.first)
        return ChangedKeys(found.keys, found.hashes, groups.least(together.first), groups.greatest(together.last))


@dataclass(frozen=True)
class Groups:
    """Equal hashes put together: what belongs to each, in the order in which it came."""

    order: I64
    starts: I64

    @staticmethod
    def of(hashes: Hashes) -> Groups:
        order = stable_order([hashes.high, hashes.low])
        return Groups(order, np.flatnonzero(starts_of_groups([hashes.high[order], hashes.low[order]])))

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
        """For each position the number of its group."""
        numbers = np.empty(len(self.order), np.int64)
        numbers[self.order] = np.repeat(np.arange(len(self.starts)), self.sizes)
        return numbers

    def least(self, values: I64) -> I64:
        return np.minimum.reduceat(values[self.order], self.starts) if len(self.starts) else values[:0]

    def greatest(self, values: I64) -> I64:
        return np.maximum.reduceat(values[self.order], self.starts) if len(self.starts) else values[:0]


def distinct(keys: pa.Table, hashes: Hashes) -> tuple[pa.Table, Hashes]:
    """Each key once."""
    groups = Groups.of(hashes)
    if len(groups) == len(hashes):
        return keys, hashes
    return keys.take(pa.array(groups.first)), hashes.take(groups.first)


def check_purge(pinned: PinnedInput, known: KnownKeys) -> None:
    """Refuse to go on where records were purged that some result does not know; without any, one starts behind them.

    Positions alone do not tell: a run of some keys leaves them where they were.
    """
    position = known.settled(pinned.dataset_id)
    if position is not None and position + 1 < pinned.purged_before:
        raise MissedByPurge(
            f"records {position + 1} to {pinned.purged_before - 1} of input {pinned.name!r} were purged before they "
            "were processed",
            hint="reset the step: it then computes everything from what is left",
            input=pinned.name,
            position=position,
            purged_before=pinned.purged_before,
        )


@dataclass(frozen=True)
class ReadChanges:
    """One task: the records of a selection."""

    given: TaskInput
    shape: Shape
    number: int
    selection: Selection
    known: KnownKeys | None  # leave out records that the run which processed their key knew of
    where: pc.Expression | None = None
    position: int = -1


def changed_keys(
    pinned: PinnedInput,
    shape: Shape,
    number: int,
    since: int,
    runner: Runner,
    known: KnownKeys | None = None,
    where: pc.Expression | None = None,
    position: int = -1,
) -> ChangedKeys:
    """The keys (or parts of them) of all records after `since`, retractions too: old values are changes as well.

    The first record of a key is the first beyond `position`, if it has any there.
    """
    schema = shape.part_schema(number)
    selection = pinned.records(since + 1)
    if pinned.layout is None or selection.is_empty:
        return ChangedKeys.joined([], schema)
    checked = known if shape.inputs[number].is_full else None  # meta knows whole keys only
    tasks = [
        ReadChanges(pinned.for_tasks, shape, number, piece, checked, where, position)
        for piece in cut(selection, TASK_ROWS)
    ]
    found = ChangedKeys.joined(runner.run_reading(tasks, read_changes, selection.end - selection.start), schema)
    first = np.where(found.first >= _SETTLED, found.first - _SETTLED, found.first)
    return ChangedKeys(found.keys, found.hashes, first, found.last)


def read_changes(task: ReadChanges) -> ChangedKeys:
    """The distinct keys of a selection's records."""
    found: list[ChangedKeys] = []
    with task.given.steady():
        for keys, offsets in _blocks(task):
            found.append(_reduced(task, keys, offsets))
    return ChangedKeys.joined(found, task.shape.part_schema(task.number))


def _blocks(task: ReadChanges) -> Iterator[tuple[pa.Table, I64]]:
    """The keys of some records at a time, with their offsets."""
    assert task.given.layout is not None
    offset = task.given.layout.vocab.offset
    scan = task.given.scan(task.selection, list(dict.fromkeys([offset, *task.shape.inputs[task.number].own])))
    held: list[pa.RecordBatch] = []
    with scan.readable():
        for batch in scan.batches(task.where):
            held.append(batch)
            if sum(b.num_rows for b in held) >= _HELD_ROWS:
                yield _keys(task, pa.Table.from_batches(held), offset)
                held = []
    if held:
        yield _keys(task, pa.Table.from_batches(held), offset)


def _keys(task: ReadChanges, records: pa.Table, offset: str) -> tuple[pa.Table, I64]:
    return task.shape.part_of(task.number, records), records.column(offset).to_numpy()


def _reduced(task: ReadChanges, keys: pa.Table, offsets: I64) -> ChangedKeys:
    hashes = task.shape.hash_part(task.number, keys)
    groups = Groups.of(hashes)
    one_each = hashes.take(groups.first)
    if task.known is not None:
        done = task.known.processed_up_to(one_each, [task.given.dataset_id])[:, 0]
        pending = np.flatnonzero(offsets > done[groups.number])
        if len(pending) < len(offsets):
            keys, offsets, hashes = keys.take(pa.array(pending)), offsets[pending], hashes.take(pending)
            groups = Groups.of(hashes)
            one_each = hashes.take(groups.first)
    first = groups.least(np.where(offsets > task.position, offsets, offsets + _SETTLED))
    return ChangedKeys(keys.take(pa.array(groups.first)), one_each, first, groups.greatest(offsets))


def cut(selection: Selection, rows: int) -> list[Selection]:
    """A selection in pieces of about so many records, in order: small files together, large ones in ranges."""
    pieces: list[Selection] = []
    held: list[DataFile] = []
    for file in selection.files:
        if held and (sum(f.rows for f in held) + file.rows > rows):
            pieces.append(_piece(selection, held))
            held = []
        start, end = max(file.start, selection.start), min(file.end, selection.end)
        count = -(-file.rows * (end - start) // ((file.end - file.start) * rows)) if file.end > file.start else 0
        if count <= 1:
            held.append(file)
            continue
        bounds = [start + (end - start) * i // count for i in range(count + 1)]
        pieces += [selection.of((file,), low, high) for low, high in pairwise(bounds)]
    return [*pieces, _piece(selection, held)] if held else pieces


def _piece(selection: Selection, files: list[DataFile]) -> Selection:
    return selection.of(tuple(files), max(selection.start, files[0].start), min(selection.end, files[-1].end))
