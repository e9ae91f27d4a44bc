"""What must be true of a transform's output whatever the rules of the product are, looked at after every step.

Nothing here knows which keys a run takes, what it remembers or how far it has read: only inputs, calls and outputs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from transform.oracle import input_rows, shown
from transform.worlds import CASES, FACTORS, MAP, ONE_TO_MANY, Case, Key, Row, World, in_this_process, make_world

STEPS = 10


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


class Past:
    """Every state that the inputs have been in."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._states: list[list[list[Row]]] = []

    def look(self) -> None:
        self._states.append(input_rows(self._world.lake, self._world.case))

    def results(self, key: Key) -> list[list[list[Row]]]:
        """What a key's rows in the outputs may be: what some version makes of what was there at some moment."""
        case, found = self._world.case, [[[] for _ in self._world.case.outputs]]
        for inputs in self._states:
            rows = case.rows_of(key, inputs)
            if key in case.keys_in(inputs) and all(
                r or not s.required for s, r in zip(case.sources, rows, strict=True)
            ):
                found += [list(case.formula(key, rows, factor)) for factor in FACTORS.values()]
        return found


def by_key(case: Case, outputs: dict[str, list[Row]]) -> dict[Key, list[list[Row]]]:
    """The rows of each transform key in each output."""
    found: dict[Key, list[list[Row]]] = {}
    for number, output in enumerate(case.outputs):
        for row in outputs[output.name]:
            key = tuple(row[name] for name in case.keys)
            found.setdefault(key, [[] for _ in case.outputs])[number].append(row)
    return found


def change(world: World, chance: random.Random) -> None:
    """Something happens to one input."""
    source = chance.choice(world.case.sources)
    dataset = world.lake[source.name]
    if source.key is not None and chance.random() < 0.3 and dataset.count():
        row = chance.choice(dataset.to_arrow().to_pylist())
        dataset.delete([{column: row[column] for column in source.key}])
        return
    rows = [
        tuple(chance.randrange(4) if column in _KEYS else chance.randrange(40) for column in source.columns)
        for _ in range(chance.randint(1, 3))
    ]
    if source.key is not None:
        at = [list(source.columns).index(column) for column in source.key]
        rows = list({tuple(row[n] for n in at): row for row in rows}.values())
    world.write(source.name, *rows)


_KEYS = {"id", "ref", "i", "j", "n", "cat", "g"}
WAYS: list[dict[str, Any]] = [{}, {}, {"max_records": 1}, {"max_records": 2}, {"commit_every": 1}]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shown_rows_are_results_of_rows_that_were_there_and_failing_keys_show_nothing(case: Case, tmp_path: Path):
    chance = random.Random(case.name)
    world = make_world(case, tmp_path)
    past = Past(world)
    for _ in range(STEPS):
        for _ in range(chance.randint(1, 3)):
            change(world, chance)
        past.look()
        keys = case.keys_in(input_rows(world.lake, case))
        world.calls.fail(*(chance.sample(keys, 1) if keys and chance.random() < 0.4 else ()))
        world.run(use_offset_optimization=chance.random() < 0.5, run=chance.choice(WAYS))
        outputs = shown(world.lake, case)
        for output in case.outputs:
            keys = [tuple(row[name] for name in output.key) for row in outputs[output.name]]
            assert len(keys) == len(set(keys)), "a key is shown twice"
        for key, rows in by_key(case, outputs).items():
            assert rows in past.results(key), f"{key} shows what nobody could have made of it"
        for key, bad in world.calls.last().items():
            assert not bad or key not in by_key(case, outputs), f"{key} failed and shows rows"
    world.calls.behave()
    world.run()
    world.run()
    assert world.calls.keys() == [], "a run right after a run has nothing to do"


def test_run_sees_every_key_that_is_there_at_once_or_not_at_all(tmp_path: Path):
    """With one to many, a reader never sees half of a key's rows."""
    world = make_world(ONE_TO_MANY, tmp_path, chunk_size=1)
    world.write("a", *[(i, 3) for i in range(6)])
    world.run(run={"commit_every": 1})
    for offset in range(world.lake["many"].last_offset or 0):
        rows = world.lake["many"].to_arrow(as_of=offset).to_pylist()
        counts = {row["id"]: sum(other["id"] == row["id"] for other in rows) for row in rows}
        assert set(counts.values()) <= {3}


def test_order_of_writes_does_not_matter_to_what_is_shown_in_the_end(tmp_path: Path):
    rows = [(i, i * 3) for i in range(9)]
    ends = []
    for seed in range(3):
        chance = random.Random(seed)
        world = make_world(MAP, tmp_path / str(seed))
        left = chance.sample(rows, len(rows))
        while left:
            take, left = left[: (n := chance.randint(1, 4))], left[n:]
            world.write("a", *take)
            world.run(run=chance.choice(WAYS))
        world.run()
        ends.append(world.rows())
    assert ends[0] == ends[1] == ends[2] == [{"id": i, "w": v * 10} for i, v in rows]
