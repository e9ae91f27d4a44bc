"""Which keys are there now: those of an input's current rows, all of them or those with some parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodmark.engine.rounds import Runner
from floodmark.ledger.keys import hashing
from floodmark.ledger.selection import Selection
from floodmark.storage.arrays import Hashes, HashIndex
from floodmark.transform.changed.casting import cast_exactly, cast_where_it_fits
from floodmark.transform.changed.changes import TASK_ROWS, cut, distinct
from floodmark.transform.changed.filters import values_filter
from floodmark.transform.changed.inputs import PinnedInput, TaskInput
from floodmark.transform.changed.shape import Shape


@dataclass(frozen=True)
class Keys:
    """Distinct keys, or parts of them, and their hashes."""

    table: pa.Table
    hashes: Hashes

    def __len__(self) -> int:
        return len(self.hashes)

    @staticmethod
    def joined(parts: Sequence[Keys], schema: pa.Schema) -> Keys:
        """Each key once."""
        table = pa.concat_tables([schema.empty_table(), *(p.table for p in parts)])
        hashes = Hashes.joined([p.hashes for p in parts])
        return Keys(table, hashes) if len(parts) < 2 else Keys(*distinct(table, hashes))


@dataclass(frozen=True)
class Parts:
    """The parts that are asked for, each once: some columns of the transform keys, and their hashes."""

    table: pa.Table
    hashes: Hashes

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.table.column_names)


@dataclass(frozen=True)
class ReadKeys:
    """One task: the keys of a selection's rows; `columns` says which column of the dataset each is."""

    given: TaskInput
    selection: Selection
    keys: pa.Schema
    columns: tuple[str, ...]
    wanted: Parts | None


def live_parts(pinned: PinnedInput, shape: Shape, number: int, runner: Runner) -> Keys:
    """What all current rows of an input have of the transform keys."""
    schema = shape.part_schema(number)
    return _read(pinned, schema, shape.inputs[number].own, None, runner)


def live_parts_among(pinned: PinnedInput, shape: Shape, number: int, wanted: Parts, runner: Runner) -> Keys:
    """Those of the wanted parts that current rows of an input have."""
    return _read(pinned, shape.part_schema(number), shape.inputs[number].own, wanted, runner)


def keys_with(pinned: PinnedInput, shape: Shape, number: int, wanted: Parts, runner: Runner) -> Keys:
    """The keys of the current rows of a full input that have one of these parts."""
    given = shape.inputs[number]
    if pinned.layout is None or len(wanted.hashes) == 0:
        return Keys.joined([], shape.keys)
    own = [given.keys[name] for name in wanted.names]
    if set(own) == set(given.lookup) and given.lookup != given.key:
        return _by_prefix(pinned, shape, number, wanted)
    return _read(pinned, shape.keys, given.own, wanted, runner)


def output_keys(output: PinnedInput, shape: Shape, wanted: Parts | None, runner: Runner) -> Keys:
    """The transform keys of an output's current rows: all, or those with some parts."""
    return _read(output, shape.keys, shape.names, wanted, runner)


def _by_prefix(pinned: PinnedInput, shape: Shape, number: int, wanted: Parts) -> Keys:
    assert pinned.layout is not None
    assert pinned.index is not None
    given, schema = shape.inputs[number], pinned.layout.data
    own = [given.keys[name] for name in wanted.names]
    columns, fits = cast_where_it_fits([wanted.table.column(n) for n in wanted.names], [schema.field(c) for c in own])
    prefixes = hashing.hash_rows(pa.table(columns, names=own), own).take(fits)
    with pinned.steady():
        _, entries = pinned.index.find_prefix(prefixes)
        entries = entries.take(entries.offset >= pinned.purged_before)
        order = np.argsort(entries.offset)
        rows = pinned.for_tasks.rows.verified(entries.offset[order], entries.row.take(order))
    keys = shape.part_of(number, rows)
    return Keys(*distinct(keys, shape.hash_keys(keys)))


def _read(pinned: PinnedInput, schema: pa.Schema, columns: Sequence[str], wanted: Parts | None, runner: Runner) -> Keys:
    if pinned.layout is None or (wanted is not None and len(wanted.hashes) == 0):
        return Keys.joined([], schema)
    selection = pinned.current_rows()
    tasks = [ReadKeys(pinned.for_tasks, piece, schema, tuple(columns), wanted) for piece in cut(selection, TASK_ROWS)]
    return Keys.joined(runner.run_reading(tasks, read_keys, selection.end - selection.start), schema)


def read_keys(task: ReadKeys) -> Keys:
    """The distinct keys of a selection's rows, those that are wanted."""
    assert task.given.layout is not None
    found = []
    where, among = None, None
    if task.wanted is not None:
        own = dict(zip(task.keys.names, task.columns, strict=True))
        named = task.wanted.table.rename_columns([own[name] for name in task.wanted.names])
        where, among = values_filter(named, task.given.layout.data), HashIndex.of(task.wanted.hashes)
    scan = task.given.scan(task.selection, list(dict.fromkeys(task.columns)))
    with task.given.steady(), scan.readable():
        for batch in scan.batches(where):
            columns = [
                cast_exactly(batch.column(name), field, task.given.name)
                for name, field in zip(task.columns, task.keys, strict=True)
            ]
            table = pa.Table.from_arrays(columns, schema=task.keys)
            if task.wanted is not None and among is not None:
                table = table.filter(pa.array(among.has(hashing.hash_rows(table, task.wanted.names))))
            if table.num_rows:
                found.append(Keys(*distinct(table, hashing.hash_rows(table, task.keys.names))))
    return Keys.joined(found, task.keys)
