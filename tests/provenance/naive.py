"""What a test knows of a history by itself: which rows each input had when a run began, and what the run then wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import floodmark as fm
from floodmark.provenance.tree import Provenance
from floodmark.storage.memory import MemoryStore
from transforms.worlds import Calls, Case, Row, Source, World

OFFSET, OP = "offset", "op"


def memory_world(case: Case, folder: Path) -> World:
    """An empty world in memory; only the calls of its functions are noted in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lake = fm.Lake(MemoryStore())
    case.create(lake)
    return World(case, lake, Calls(folder))


def current(world: World, name: str) -> list[Row]:
    """The current rows of an input with their offsets, as any reader has them."""
    columns = [OFFSET, *world.source(name).columns]
    return list(world.lake[name].to_batches(columns=columns).read_all().to_pylist())


@dataclass
class Naive:
    """For each record of each output the inputs as they were when the run began that wrote it."""

    world: World
    seen: dict[tuple[str, int], list[list[Row]]] = field(default_factory=dict)
    runs: int = 0

    @property
    def case(self) -> Case:
        return self.world.case

    def during(self, run: Callable[[], object]) -> None:
        """Remember the inputs, run, and lay what was written to them."""
        inputs = [current(self.world, source.name) for source in self.case.sources]
        before = {output.name: self._end(output.name) for output in self.case.outputs}
        run()
        self.runs += 1
        for name, start in before.items():
            for offset in range(start, self._end(name)):
                self.seen[name, offset] = inputs

    def _end(self, name: str) -> int:
        if name not in self.world.lake:
            return 0
        last = self.world.lake[name].last_offset
        return 0 if last is None else last + 1

    def expected(self, output: str, offset: int, row: Row) -> list[set[int]]:
        """The offsets of the rows of each input that a record was made of."""
        key = tuple(row[name] for name in self.case.keys)
        found = self.case.rows_of(key, self.seen[output, offset])
        return [{r[OFFSET] for r in rows} for rows in found]


def made_of(found: Provenance) -> list[set[int]]:
    """The offsets of the rows of each input, as an answer has them."""
    return [{one.record.offset for one in given.records} for given in found.inputs]


def some_row(world: World, name: str, chance: Random) -> tuple[Any, ...]:
    return tuple(chance.randrange(4) for _ in world.source(name).columns)


def disturb(world: World, chance: Random) -> None:
    """Write, correct or delete a few rows of some input."""
    source = chance.choice(world.case.sources)
    if source.key is not None and chance.random() < 0.3:
        there = current(world, source.name)
        if there:
            row = chance.choice(there)
            world.lake[source.name].delete([{name: row[name] for name in source.key}])
        return
    write_some(world, source, chance)


def write_some(world: World, source: Source, chance: Random) -> None:
    """Write a few rows of an input."""
    rows = [some_row(world, source.name, chance) for _ in range(chance.randrange(1, 4))]
    columns = list(source.columns)
    if source.key is not None:  # one row for each key
        at = [columns.index(name) for name in source.key]
        rows = list({tuple(row[i] for i in at): row for row in rows}.values())
    world.write(source.name, *rows)
