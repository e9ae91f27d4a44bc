"""Read the keys of an input's current rows, all or those with some parts; and the pending keys of a changelist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.derive.changed_keys import TASK_ROWS, HashGroups, cut_selection, unique_keys
from floodmark.derive.inputs import NEVER_PROCESSED, InputSnapshot, TaskInput
from floodmark.derive.key_shape import KeyShape, cast_exactly, cast_with_mask, constant_part
from floodmark.derive.own_records import find_own_records, is_own
from floodmark.engine.rounds import TaskRunner
from floodmark.ledger.selection import Selection
from floodmark.rows import row_hash
from floodmark.storage.arrays import I64, Hashes, HashIndex, Mask
from floodmark.transforms.run_scope import values_filter


@dataclass(frozen=True)
class KeySet:
    """Distinct keys, or parts of keys, and their hashes."""

    table: pa.Table
    hashes: Hashes

    def __len__(self) -> int:
        return len(self.hashes)

    @staticmethod
    def joined(parts: Sequence[KeySet], schema: pa.Schema) -> KeySet:
        """All these keys, each once."""
        table = pa.concat_tables([schema.empty_table(), *(p.table for p in parts)])
        hashes = Hashes.joined([p.hashes for p in parts])
        return KeySet(table, hashes) if len(parts) < 2 else KeySet(*unique_keys(table, hashes))


@dataclass(frozen=True)
class KeyParts:
    """Requested parts of keys, each once: some columns of the transform keys, and their hashes."""

    table: pa.Table
    hashes: Hashes

    @staticmethod
    def of(table: pa.Table, hashes: Hashes) -> KeyParts | None:
        """These parts; None, which stands for all keys, if they are parts for an input without transform keys."""
        return None if table.column_names == [""] else KeyParts(table, hashes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.table.column_names)

    def among(self, keys: pa.Table) -> Mask:
        """Which keys have one of these parts."""
        return row_hash.hash_rows(keys, self.names).among(self.hashes)


@dataclass(frozen=True)
class ReadKeysTask:
    """One task: read the keys of a selection's rows."""

    given: TaskInput
    selection: Selection
    keys: pa.Schema
    columns: tuple[str, ...]  # the dataset's column of each key
    key_parts: KeyParts | None
    where: pc.Expression | None = None
    own: I64 | None = None  # only these intervals of records


def read_live_parts(input_snapshot: InputSnapshot, shape: KeyShape, number: int, runner: TaskRunner) -> KeySet:
    """The distinct parts of all current rows of an input."""
    schema = shape.part_schema(number)
    return read_columns(input_snapshot, schema, shape.inputs[number].own, None, runner)


def read_requested_parts(
    input_snapshot: InputSnapshot,
    shape: KeyShape,
    number: int,
    key_parts: KeyParts | None,
    runner: TaskRunner,
    where: pc.Expression | None = None,
) -> KeySet:
    """The requested parts (None: all) that current rows of an input have; with `where`, those rows that it keeps."""
    return read_columns(input_snapshot, shape.part_schema(number), shape.inputs[number].own, key_parts, runner, where)


def read_keys_with_parts(
    input_snapshot: InputSnapshot, shape: KeyShape, number: int, key_parts: KeyParts | None, runner: TaskRunner
) -> KeySet:
    """The keys of those current rows of a full input that have one of these parts; of all rows for None."""
    given = shape.inputs[number]
    if key_parts is None:
        return read_live_parts(input_snapshot, shape, number, runner)
    if input_snapshot.layout is None or len(key_parts.hashes) == 0:
        return KeySet.joined([], shape.keys)
    own = [given.keys[name] for name in key_parts.names]
    if set(own) == set(given.lookup) and given.lookup != given.key:
        return _by_prefix(input_snapshot, shape, number, key_parts)
    return read_columns(input_snapshot, shape.keys, given.own, key_parts, runner)


def read_output_keys(output: InputSnapshot, shape: KeyShape, key_parts: KeyParts | None, runner: TaskRunner) -> KeySet:
    """The transform keys of an output's current rows: all, or those with some parts. Rows of users do not count."""
    own = find_own_records(output.snapshot) if output.has_own else None
    return read_columns(output, shape.keys, shape.names, key_parts, runner, own=own)


def _by_prefix(input_snapshot: InputSnapshot, shape: KeyShape, number: int, key_parts: KeyParts) -> KeySet:
    assert input_snapshot.layout is not None
    assert input_snapshot.index is not None
    given, schema = shape.inputs[number], input_snapshot.layout.data
    own = [given.keys[name] for name in key_parts.names]
    columns, fits = cast_with_mask([key_parts.table.column(n) for n in key_parts.names], [schema.field(c) for c in own])
    prefixes = row_hash.hash_rows(pa.table(columns, names=own), own).take(fits)
    with input_snapshot.raise_if_input_moved():
        _, entries = input_snapshot.index.find_prefix(prefixes)
        entries = entries.take(entries.offset >= input_snapshot.purged_before)
        order = np.argsort(entries.offset)
        rows = input_snapshot.task_input.rows.verified(entries.offset[order], entries.row.take(order))
    keys = shape.part_of(number, rows)
    return KeySet(*unique_keys(keys, shape.hash_keys(keys)))


def read_columns(
    input_snapshot: InputSnapshot,
    schema: pa.Schema,
    columns: Sequence[str],
    key_parts: KeyParts | None,
    runner: TaskRunner,
    where: pc.Expression | None = None,
    own: I64 | None = None,
) -> KeySet:
    """The distinct values of current rows in these columns, with the names and types of a schema."""
    if input_snapshot.layout is None or (key_parts is not None and len(key_parts.hashes) == 0):
        return KeySet.joined([], schema)
    selection = input_snapshot.current_rows()
    tasks = [
        ReadKeysTask(input_snapshot.task_input, piece, schema, tuple(columns), key_parts, where, own)
        for piece in cut_selection(selection, TASK_ROWS)
    ]
    return KeySet.joined(runner.run_reading(tasks, read_keys, selection.end - selection.start), schema)


def read_keys(task: ReadKeysTask) -> KeySet:
    """The distinct keys of a selection's rows that have one of the requested parts."""
    assert task.given.layout is not None
    parts = []
    where, among = task.where, None
    if task.key_parts is not None:
        own = dict(zip(task.keys.names, task.columns, strict=True))
        named = task.key_parts.table.rename_columns([own[name] for name in task.key_parts.names])
        likely, among = values_filter(named, task.given.layout.data), HashIndex.of(task.key_parts.hashes)
        where = likely if where is None else where if likely is None else where & likely
    offset = task.given.layout.vocab.offset
    needed = [*task.columns, *([offset] if task.own is not None or not task.columns else [])]
    scan = task.given.scan(task.selection, list(dict.fromkeys(needed)))
    with task.given.raise_if_input_moved(), scan.readable():
        for records in scan.batches(where):
            batch = records
            if task.own is not None:
                batch = records.filter(pa.array(is_own(records.column(offset).to_numpy(), task.own)))
            if task.columns:
                pairs = zip(task.columns, task.keys, strict=True)
                columns = [cast_exactly(batch.column(name), field, task.given.name) for name, field in pairs]
                table = pa.Table.from_arrays(columns, schema=task.keys)
            else:
                table = constant_part(batch.num_rows)
            if task.key_parts is not None and among is not None:
                table = table.filter(pa.array(among.has(row_hash.hash_rows(table, task.key_parts.names))))
            if table.num_rows:
                parts.append(KeySet(*unique_keys(table, row_hash.hash_rows(table, task.keys.names))))
    return KeySet.joined(parts, task.keys)


# Pending keys

NOT_PENDING = int(np.iinfo(np.int64).max)
"""The offset that stands for no record."""


@dataclass(frozen=True)
class PendingSource:
    """Keys that one input makes pending."""

    keys: pa.Table
    hashes: Hashes
    number: int  # of the input
    first: I64  # per key its first changed record in the input
    last: I64


@dataclass(frozen=True)
class PendingKeys:
    """Pending keys, each once, with their pending records and the reason.

    `first` and `last` have a row for each key and a column for each input.
    """

    keys: pa.Table
    hashes: Hashes
    first: I64  # the first pending record; NOT_PENDING if the input has none
    last: I64
    position: I64  # how far the first pending record is beyond its input's position; NOT_PENDING without records
    is_failed: Mask  # whether the key is due because it failed
    tried: I64  # the time of its last failure in milliseconds; 0 if it is not due
    why: pa.Array

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, at: I64) -> PendingKeys:
        return PendingKeys(
            self.keys.take(pa.array(at)),
            self.hashes.take(at),
            self.first[at],
            self.last[at],
            self.position[at],
            self.is_failed[at],
            self.tried[at],
            self.why.take(pa.array(at)),
        )

    @property
    def is_new(self) -> Mask:
        """Which keys were never processed."""
        new: Mask = pc.equal(self.why, "new").to_numpy(zero_copy_only=False)
        return new

    @property
    def is_only_failed(self) -> Mask:
        """Which keys are pending only because they failed."""
        only: Mask = self.is_failed & (self.position == NOT_PENDING)
        return only

    @staticmethod
    def of(
        shape: KeyShape, sources: Sequence[PendingSource], failed: KeySet, tried: I64, positions: Sequence[int]
    ) -> PendingKeys:
        """Join the keys of several inputs and the failed keys that are due, whose last attempts were at `tried`."""
        tables = [shape.keys.empty_table(), *(s.keys for s in sources), failed.table]
        hashes = Hashes.joined([*(s.hashes for s in sources), failed.hashes])
        number = _fill([(len(s.hashes), s.number) for s in sources], len(failed), -1)
        nothing = np.full(len(failed), NOT_PENDING, np.int64)
        all_first = np.concatenate([*(s.first for s in sources), nothing])
        all_last = np.concatenate([*(s.last for s in sources), nothing])
        groups = HashGroups.of(hashes)
        first = np.full((len(groups), len(shape.inputs)), NOT_PENDING, np.int64)
        last = first.copy()
        for n in range(len(shape.inputs)):
            mine = number == n
            first[:, n] = groups.least(np.where(mine, all_first, NOT_PENDING))
            greatest = groups.greatest(np.where(mine, all_last, -1))
            last[:, n] = np.where(greatest < 0, NOT_PENDING, greatest)
        is_failed = groups.greatest((number == -1).astype(np.int64)) > 0
        moments = groups.greatest(np.concatenate([np.zeros(len(hashes) - len(failed), np.int64), tried]))
        keys = pa.concat_tables(tables).take(pa.array(groups.first))
        why = _reasons(np.where((first != NOT_PENDING).any(axis=1), 0, 2))
        position = _distance(first, positions)
        return PendingKeys(keys, hashes.take(groups.first), first, last, position, is_failed, moments, why)

    @staticmethod
    def all_of(shape: KeyShape, keys: KeySet, why: str) -> PendingKeys:
        """Keys that are pending without changed records."""
        count = len(keys)
        none = np.full((count, len(shape.inputs)), NOT_PENDING, np.int64)
        reason = pa.array([why] * count, pa.string()) if count < 1 else pa.repeat(pa.scalar(why), count)
        nowhere, never = np.full(count, NOT_PENDING, np.int64), np.zeros(count, np.int64)
        return PendingKeys(keys.table, keys.hashes, none, none, nowhere, np.zeros(count, np.bool_), never, reason)

    def joined(self, others: PendingKeys) -> PendingKeys:
        """These keys and others, which are not among them."""
        mine, more = vars(self), vars(others)
        arrays = ("first", "last", "position", "is_failed", "tried")
        return PendingKeys(
            keys=pa.concat_tables([self.keys, others.keys]),
            hashes=Hashes.joined([self.hashes, others.hashes]),
            why=pa.concat_arrays([self.why, others.why]),
            **{name: np.concatenate([mine[name], more[name]]) for name in arrays},
        )

    def not_processed(self, done: I64, positions: Sequence[int]) -> PendingKeys:
        """The keys with a record that was not seen when they were processed, and the failed keys.

        `done` has, per key and input, the last record that was seen.
        """
        is_new = (done == NEVER_PROCESSED).any(axis=1)
        pending = (self.first != NOT_PENDING) & (self.last > done)
        # A new key that shares a part with others has old records, too: they count only if it has no newer ones.
        beyond = pending & (self.last > np.array(positions, np.int64))
        pending = np.where(beyond.any(axis=1)[:, None], beyond, pending)
        # Records up to `done` are processed, so the first pending record comes after them.
        first = np.where(pending, np.maximum(self.first, done + 1), NOT_PENDING)
        last = np.where(pending, self.last, NOT_PENDING)
        changed = pending.any(axis=1)
        why = _reasons(np.where(changed, np.where(is_new, 0, 1), 2))
        kept = np.flatnonzero(changed | self.is_failed)
        position = _distance(first, positions)
        updated = PendingKeys(self.keys, self.hashes, first, last, position, self.is_failed, self.tried, why)
        return updated if len(kept) == len(self) else updated.take(kept)


def _distance(first: I64, positions: Sequence[int]) -> I64:
    """How far the first pending record of each key is beyond its input's position: the least of all inputs."""
    since = np.array(positions, np.int64)
    far = np.where(first == NOT_PENDING, NOT_PENDING, first - since)
    result: I64 = far.min(axis=1) if far.shape[1] else np.full(len(first), NOT_PENDING)
    return result


def _reasons(which: I64) -> pa.Array:
    return pa.array(["new", "changed", "failed"]).take(pa.array(which))


def _fill(counts: Sequence[tuple[int, int]], rest: int, of_rest: int) -> I64:
    values = [np.full(count, value, np.int64) for count, value in counts]
    return np.concatenate([*values, np.full(rest, of_rest, np.int64)])
