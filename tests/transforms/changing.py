"""Worlds whose inputs change, and a naive oracle of what changed: rows and records looked at one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.derive.inputs import NEVER_PROCESSED, InputSnapshot, snapshot_dataset
from floodmark.derive.key_shape import KeyShape, OutputKeys
from floodmark.engine.rounds import TaskRunner
from floodmark.functions.failures import FAILURE_FIELDS, empty_failed_keys, failed_keys_schema
from floodmark.lake import Lake
from floodmark.storage.arrays import I64, Hashes
from floodmark.transforms.changelist import EVERYTHING, Changelist, Choice, build_changelist
from floodmark.transforms.chunk_reader import read_chunks
from floodmark.transforms.chunks import Chunk
from floodmark.transforms.key_resolution import resolve_shape
from floodmark.transforms.specs import InputSpec, as_input, snapshot_inputs
from floodmark.transforms.work_planner import plan_key_units
from floodmark.transforms.work_units import ScratchDir

Key = tuple[Any, ...]
Contents = frozenset[tuple[int, int]]
"""Which rows a key has: pairs of input and offset. Without any the key is not in the universe."""


@dataclass
class Known:
    """Processed keys in a dict."""

    done: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    failures: pa.Table | None = None
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))

    @property
    def keys(self) -> int:
        return len(self.done)

    def processed_up_to(self, hashes: Hashes, inputs: Sequence[str]) -> I64:
        found = [
            [self.done.get((h, low), {}).get(name, NEVER_PROCESSED) for name in inputs]
            for h, low in zip(hashes.high.tolist(), hashes.low.tolist(), strict=True)
        ]
        return np.array(found, np.int64).reshape(len(hashes), len(inputs))

    def settled(self, dataset: str) -> int | None:
        position = self.positions.get(dataset, -1)
        claims = [max(run.get(dataset, -1), position) for run in self.done.values()]
        return min(claims) if claims else None if position < 0 else position

    def is_ahead(self, inputs: Sequence[str]) -> bool:
        return any(run[name] > self.positions.get(name, -1) for run in self.done.values() for name in inputs)

    def failed(self) -> pa.Table:
        return empty_failed_keys(self.schema) if self.failures is None else self.failures

    def due(self, now_ms: int) -> pa.Table:
        return self.failed()


@dataclass
class World:
    """A step's inputs and one output, its transform keys, and what was processed so far, known twice."""

    lake: Lake
    specs: tuple[InputSpec, ...]
    names: tuple[str, ...]
    folder: Path
    keys: tuple[str, ...]  # the transform keys that the output has
    known: Known = field(default_factory=Known)
    before: dict[Key, Contents] = field(default_factory=dict)  # what each key had when it was processed
    seen: dict[Key, dict[int, int]] = field(default_factory=dict)  # and how far each input was then

    @property
    def runner(self) -> TaskRunner:
        return TaskRunner(self.lake.runtime.session)

    def input_snapshots(self) -> tuple[InputSnapshot, ...]:
        return snapshot_inputs(self.lake, self.specs)

    def outputs(self) -> list[InputSnapshot]:
        return [snapshot_dataset(self.lake["out"])]

    def shape(self) -> KeyShape | None:
        columns = self.known.schema if self.known.done else None  # what was hashed keeps its types
        return resolve_shape(self.input_snapshots(), self.specs, self.names, [OutputKeys("out", self.keys, columns)])

    def changelist(self, version: Any = 2, choice: Choice = EVERYTHING) -> Changelist:
        shape = self.shape()
        assert shape is not None
        return build_changelist(
            shape, self.input_snapshots(), self.outputs(), self.known, 0, self.runner, version=version, choice=choice
        )

    def chunks(self, keys: pa.Table, chunk_size: int = 3) -> list[Chunk]:
        shape = self.shape()
        assert shape is not None
        input_snapshots = self.input_snapshots()
        units = plan_key_units(
            keys, shape, input_snapshots, self.runner, ScratchDir(self.folder, self.lake["out"].snapshot().objects)
        )
        inputs = [p.task_input for p in input_snapshots]
        return [chunk for unit in units for chunk in read_chunks(unit, shape, inputs, chunk_size)]

    # The oracle

    def part(self, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """What a row has of the transform keys, and of other columns that inputs are looked up by."""
        alias = self.specs[number].keys or {}
        names = dict.fromkeys([*self.names, *(name for spec in self.specs for name in spec.keys or {})])
        found = {name: alias.get(name, name) for name in names if name in alias or name not in alias.values()}
        return {name: row[column] for name, column in found.items() if column in row}

    def current(self, number: int) -> list[dict[str, Any]]:
        table = self.lake[self.specs[number].name]
        if table.schema is None:
            return []
        return table.parts.rows.scan(None, table.snapshot().require_layout("").read_schema.names).to_table().to_pylist()

    def records(self, number: int) -> list[dict[str, Any]]:
        dataset = self.lake[self.specs[number].name]
        if dataset.schema is None:
            return []
        since = dataset.snapshot().purged_before - 1
        return dataset.changes_arrow(since if since >= 0 else None).to_pylist()

    def contents(self) -> dict[Key, Contents]:
        """The universe as it is defined, and the rows of each key."""
        rows = [[(row["offset"], self.part(n, row)) for row in self.current(n)] for n in range(len(self.specs))]
        keys: list[dict[str, Any]] = [{}]
        for side in self.sides():
            keys = [{**k, **self._of_output(p)} for k in keys for n in side for _, p in rows[n]]
        current = [[p for _, p in side] for side in rows]
        found: dict[Key, Contents] = {}
        for key in keys:
            mine = [
                (n, offset) for n, side in enumerate(rows) for offset, p in side if self.is_about(n, p, key, current)
            ]
            required = [n for n, spec in enumerate(self.specs) if spec.required]
            if all(any(m == n for m, _ in mine) for n in required):
                found[tuple(key[name] for name in self.keys)] = frozenset(mine)
        return found

    def _of_output(self, part: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in part.items() if name in self.keys}

    def is_about(
        self,
        number: int,
        part: Mapping[str, Any],
        key: Mapping[str, Any],
        current: Sequence[Sequence[Mapping[str, Any]]],
    ) -> bool:
        """Whether a row with this part belongs to a key, if these are the parts of the current rows of all inputs."""
        if not self._of_output(part).items() <= key.items():
            return False
        sources = self.sources(number)
        rows = [other for source in sources for other in current[source]]
        return not sources or any(
            part.items() <= other.items() and self._of_output(other).items() <= key.items() for other in rows
        )

    def sources(self, number: int) -> list[int]:
        """The inputs through whose rows an input is looked up."""
        mine, sides = self._names(number), [n for side in self.sides() for n in side]
        if number in sides or mine <= set(self.keys):
            return []
        return [n for n in sides if mine <= self._names(n)]

    def _names(self, number: int) -> frozenset[str]:
        """The transform keys that an input has, and the other columns that inputs are looked up by."""
        schema = self.lake[self.specs[number].name].schema
        names = self.input_snapshots()[number].strategy.key if schema is None else schema.names
        return frozenset(self.part(number, dict.fromkeys(names)))

    def sides(self) -> list[list[int]]:
        """The inputs that have the same transform keys, if no other input has more of them."""
        parts = [self._names(n) & set(self.names) for n in range(len(self.specs))]
        most = {part for part in parts if part and not any(part < other for other in parts)}
        return [[n for n, mine in enumerate(parts) if mine == part] for part in most]

    def must(self) -> set[Key]:
        """Keys that have other rows than when they were processed."""
        now = self.contents()
        return {key for key in now.keys() | self.before.keys() if now.get(key) != self.before.get(key)}

    def may(self, key: Key) -> bool:
        """Whether some record with the key's part is newer than what the run that processed it knew."""
        named = dict(zip(self.keys, key, strict=True))
        current = [[self.part(n, row) for row in self.current(n)] for n in range(len(self.specs))]
        return any(
            record["offset"] > self.seen.get(key, {}).get(n, NEVER_PROCESSED)
            and self.is_about(n, self.part(n, record), named, current)
            for n in range(len(self.specs))
            for record in self.records(n)
        )

    def in_order(self, keys: Sequence[Key]) -> list[Key]:
        """By position, then by keys.

        The position is how far the first pending record of a key is beyond the position of its input, the least of
        all inputs. Records about a part that keys share count for keys that exist, and from the run on that processed
        the key; a key that is gone has the records that took it away. A purge leaves no record of that.
        """
        inputs = range(len(self.specs))
        records = [[(row["offset"], self.part(n, row)) for row in self.records(n)] for n in inputs]
        current = [[self.part(n, row) for row in self.current(n)] for n in inputs]
        since = [self.known.positions.get(given.dataset_id, -1) for given in self.input_snapshots()]
        sides = self.sides()
        full = [n for n in inputs if self._names(n) >= set(self.keys) and not self.sources(n)]
        is_purged = any(given.purged_before for given in self.input_snapshots())

        def place(key: Key) -> tuple[Any, ...]:
            named, seen = dict(zip(self.keys, key, strict=True)), self.seen.get(key, {})
            has = [any(self.is_about(n, part, named, current) for part in current[n]) for n in inputs]
            missing = [side for side in sides if not any(has[n] for n in side)]
            exists = not missing
            exists |= is_purged and key in self.before
            distances = []
            for n, at in enumerate(since):
                done = max(at, seen.get(n, NEVER_PROCESSED))
                beyond = [
                    offset for offset, part in records[n] if offset > at and self.is_about(n, part, named, current)
                ]
                pending = [offset for offset in beyond if offset > done]
                if pending and n in full:
                    distances.append(pending[0] - at)
                elif pending and (exists or any(n in side for side in missing)):
                    distances.append(max(beyond[0], done + 1) - at)
            return min(distances), [(value is None, value) for value in key]

        return sorted(keys, key=place)

    # A run

    def run(self, choice: Choice = EVERYTHING, chunk_size: int = 3) -> tuple[Changelist, list[Chunk]]:
        """Process what is chosen, checking every step of it against the oracle."""
        found = self.changelist(2, choice)
        every = self.changelist(2)
        listed, again = rows_of(every.keys), rows_of(self.changelist(1).keys)
        assert len(listed) == len(set(listed))
        assert set(listed) == set(again)
        assert listed == again
        assert listed == self.in_order(listed)
        assert self.must() <= set(listed)
        assert all(self.may(key) for key in listed)
        chunks = self.chunks(found.keys, chunk_size)
        self.check(found, chunks)
        self._processed(found, choice)
        return found, chunks

    def check(self, found: Changelist, chunks: list[Chunk]) -> None:
        now = self.contents()
        called = [key for chunk in chunks for key in rows_of(chunk.keys)]
        gone = [key for chunk in chunks if chunk.gone_keys is not None for key in rows_of(chunk.gone_keys)]
        assert sorted([*called, *gone], key=repr) == sorted(rows_of(found.keys), key=repr)
        assert set(gone) == set(rows_of(found.keys)) - now.keys()
        for chunk in chunks:
            keys = rows_of(chunk.keys)
            assert _rows(chunk) == frozenset().union(*(now[key] for key in keys))
            for at, key in enumerate(keys):
                assert _rows(chunk.take(np.array([at]))) == now[key]
            for side in chunk.sides:
                assert (np.diff(side.offsets) > 0).all()
                assert side.rows.num_rows == len(side.offsets)

    def _processed(self, found: Changelist, choice: Choice) -> None:
        input_snapshots, now = self.input_snapshots(), self.contents()
        heads = {p.dataset_id: p.last_offset for p in input_snapshots}
        for high, low in zip(found.hashes.high.tolist(), found.hashes.low.tolist(), strict=True):
            self.known.done[(high, low)] = heads
        kept, left = [], []
        for key in rows_of(found.keys):
            self.seen[key] = {n: p.last_offset for n, p in enumerate(input_snapshots)}
            if key in now:
                self.before[key] = now[key]
            else:
                self.before.pop(key, None)
            if None not in key:
                (kept if key in now else left).append(dict(zip(self.keys, key, strict=True)))
        if kept:
            self.lake["out"].write(pa.Table.from_pylist(kept, found.shape.keys))
        if left and self.lake["out"].schema is not None:
            self.lake["out"].delete(left)
        if choice.filters is None:
            reached = dict(heads)
            for name, first in zip(found.shape.ids, found.first_pending(len(found)), strict=True):
                reached[name] = min(reached[name], heads[name] if first is None else first - 1)
            for name, at in reached.items():
                self.known.positions[name] = max(self.known.positions.get(name, -1), at)
        self.known.schema = found.shape.keys


def _rows(chunk: Chunk) -> Contents:
    return frozenset((n, offset) for n, side in enumerate(chunk.sides) for offset in side.offsets.tolist())


def rows_of(table: pa.Table) -> list[Key]:
    return [tuple(row.values()) for row in table.to_pylist()]


def world(lake: Lake, folder: Path, names: Sequence[str], *inputs: Any, keys: Sequence[str] | None = None) -> World:
    """A step with these inputs; its output has the transform keys, or those of them in `keys`."""
    of_output = tuple(names if keys is None else keys)
    lake.create("out", key=list(of_output))
    folder.mkdir(exist_ok=True)
    return World(lake, tuple(as_input(i) for i in inputs), tuple(names), folder, of_output)


def failing(shape: KeyShape, keys: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A table of failed keys, due at once."""
    table = pa.Table.from_pylist(list(keys), shape.keys)
    hashes = shape.hash_keys(table)
    count = table.num_rows
    facts = [pa.array(hashes.high), pa.array(hashes.low)]
    facts += [pa.nulls(count, f.type) for f in list(FAILURE_FIELDS)[2:]]
    return pa.Table.from_arrays([*table.columns, *facts], schema=failed_keys_schema(shape.keys))


def choices(names: Sequence[str], seed: random.Random) -> Iterator[Choice]:
    """Runs of all kinds: of everything, a few keys, or what a filter keeps."""
    while True:
        match seed.randrange(4):
            case 0:
                yield Choice(max_records=seed.randrange(1, 5))
            case 1:
                yield Choice(filters={names[0]: [seed.randrange(4), seed.randrange(4)]})
            case _:
                yield Choice()
