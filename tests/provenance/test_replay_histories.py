"""Replay of histories in which a run goes wrong: what is missing or other is found, and nothing else is said to be.

Each history is made twice, of the same writes and runs: once by the step, once by one that spoils a key in one of its
runs. If their rows come to be different, replay has to say so; and of those of the first it must not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from floodmark.errors import BadStep
from floodmark.provenance.comparison import ReplayReport
from floodmark.provenance.replay import replay
from profiles import IN_FULL, seeds
from provenance.naive import current, disturb, memory_world
from transforms.worlds import (
    CASES,
    CROSS,
    FACTORS,
    JOIN,
    LOOKUP,
    MOVING_GROUPS,
    TWO_OUTPUTS,
    Case,
    Key,
    World,
    in_this_process,
)

TURNS = 6
SEED = 3


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


Spoil = Callable[[pa.Table, pa.Array], pa.Table]
"""What becomes of an output's rows, given which of them are of the key."""


def _lost(rows: pa.Table, mine: pa.Array) -> pa.Table:
    return rows.filter(pc.invert(mine))


def _nulled(rows: pa.Table, mine: pa.Array) -> pa.Table:
    last = rows.num_columns - 1
    field = rows.schema.field(last)
    return rows.set_column(last, field, pc.if_else(mine, pa.scalar(None, field.type), rows.column(last)))


@dataclass
class History:
    """The same world for the same seed; `at` is the turn in which the step spoils one of its keys."""

    world: World
    chance: Random
    at: int = -1
    spoil: Spoil = _lost
    version: str = "1"
    used: set[str] = field(default_factory=set)

    def turn(self, number: int) -> None:
        case, chance = self.world.case, self.chance
        for _ in range(chance.randrange(1, 4)):
            disturb(self.world, chance)
        failing = [self._some_key() for _ in range(chance.choice([0, 0, 1]))]
        self.version = chance.choice([self.version, self.version, self.version, "2"])
        self.used.add(self.version)
        self.world.calls.fail(*failing)
        way = chance.choice(["whole", "whole", "few", "few", "filtered", "asked", "retry", "reset"])
        some = chance.randrange(1, 4)
        step = self._step(is_spoiled=number == self.at)
        lake = self.world.lake
        is_known = all(output.name in lake for output in case.outputs)
        try:
            if way == "reset" and is_known:
                step.reset(lake)
            elif way == "whole" or not is_known:
                step.run(lake, **({"commit_every": some} if some == 2 else {}))
            elif way == "few":
                step.run(lake, max_records=some)
            elif way == "filtered":
                step.run(lake, filters={case.keys[0]: [0, some]})
            elif way == "asked":
                source = case.sources[0]
                rows = current(self.world, source.name)[:2]
                step.run_changelist(lake, {source.name: [source.key_of(row) for row in rows]})
            else:
                step.retry(lake)
        except BadStep:  # all keys are stale: it has to process everything once
            step.run(lake)
        self.world.calls.behave()

    def _some_key(self) -> Key:
        return tuple(self.chance.randrange(4) for _ in self.world.case.keys)

    def _step(self, *, is_spoiled: bool) -> fm.BatchTransform:
        """The step, or one that spoils the first key of each call."""
        step = self.world.step(self.version)
        if not is_spoiled:
            return step
        case, right = self.world.case, self.world.case.function(self.world.calls, FACTORS[self.version])

        def work(*frames: pa.Table) -> Any:
            made = right(*frames)
            tables = made if isinstance(made, tuple) else (made,)
            found = tuple(self.spoil(table, _is_of_first(table, case)) for table in tables)
            return found if len(found) > 1 else found[0]

        def one(a: pa.Table) -> Any:
            return work(a)

        def two(a: pa.Table, b: pa.Table) -> Any:
            return work(a, b)

        def three(a: pa.Table, b: pa.Table, c: pa.Table) -> Any:
            return work(a, b, c)

        wrong = [one, two, three][len(case.sources) - 1]
        options = {"inputs": step.inputs, "outputs": step.outputs, "chunk_size": step.chunk_size}
        keys = list(case.keys) if case.given else None
        return fm.BatchTransform(wrong, transform_keys=keys, version=self.version, name="step", **options)

    def rows(self) -> dict[str, Any]:
        return {o.name: self.world.rows(o.name) if self._has_columns(o.name) else [] for o in self.world.case.outputs}

    def _has_columns(self, name: str) -> bool:
        return name in self.world.lake and self.world.lake[name].last_offset is not None

    def replayed(self) -> list[ReplayReport]:
        steps = [self.world.step(version) for version in sorted(self.used)]
        return list(
            replay(self.world.lake, [o.name for o in self.world.case.outputs if o.name in self.world.lake], steps)
        )


def _is_of_first(table: pa.Table, case: Case) -> pa.Array:
    keys = table.select(list(case.keys)).to_pylist()
    return pa.array([key == keys[0] for key in keys], pa.bool_())


def _made(case: Case, folder: Path, seed: int, at: int = -1, spoil: Spoil = _lost) -> History:
    history = History(memory_world(case, folder), Random(f"{case} {seed}"), at, spoil)
    for number in range(TURNS):
        history.turn(number)
    return history


def check(case: Case, folder: Path, seed: int, spoils: Iterable[tuple[int, Spoil]]) -> int:
    """How many of the spoiled histories came to other rows; each of those has to be said to differ."""
    right = _made(case, folder / "right", seed)
    assert {one.outcome for one in right.replayed()} <= {"same"}
    different = 0
    for at, spoil in spoils:
        wrong = _made(case, folder / f"{spoil.__name__}{at}", seed, at, spoil)
        outcomes = {one.outcome for one in wrong.replayed()}
        assert "not replayable" not in outcomes
        if wrong.rows() != right.rows():
            different += 1
            assert "differs" in outcomes, (seed, at, spoil)
    return different


IN_TEST = [
    (JOIN, SEED, [(3, _lost)]),
    (LOOKUP, SEED, [(4, _nulled)]),
    (CROSS, SEED, [(5, _lost)]),
    (MOVING_GROUPS, SEED, [(4, _nulled)]),
    (TWO_OUTPUTS, SEED, [(5, _lost)]),
]
"""After each of these the rows differ."""

ALL = [(turn, spoil) for turn in range(TURNS) for spoil in (_lost, _nulled)]
IN_SOAK = [(case, seed, ALL) for case in CASES for seed in seeds(1)[:2]]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("case", "seed", "spoils"),
    IN_SOAK if IN_FULL else IN_TEST,
    ids=lambda given: None if isinstance(given, list) else str(given),
)
def test_a_history_is_the_same_unless_a_run_has_spoiled_it(
    case: Case, seed: int, spoils: list[tuple[int, Spoil]], tmp_path: Path
) -> None:
    different = check(case, tmp_path, seed, spoils)
    assert different or seed != SEED
