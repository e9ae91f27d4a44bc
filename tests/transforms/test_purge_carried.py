"""A purge of an input with a key carries its current rows: a step that has read them skips them, a new one does not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import floodmark as fm
from floodmark.errors import RecordsPurged
from histories.step_oracle import content, input_rows
from profiles import seeds
from transforms.oracle import assert_right
from transforms.worlds import AGGREGATION, CASES, MAP, Case, Key, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


KEYED = [case for case in CASES if all(source.key for source in case.sources)]


class Life:
    """Random writes, deletes and purges of the inputs. Every value is new, so contents tell what a key has seen."""

    def __init__(self, case: Case, folder: Path, seed: int) -> None:
        self.chance, self.value = random.Random(seed), 0
        self.world = make_world(case, folder)
        self.seen: dict[Key, object] = {}

    def write(self) -> None:
        source = self.chance.choice(self.world.case.sources)
        rows = {}
        for _ in range(self.chance.randint(1, 6)):
            self.value += 1
            row = tuple(
                self.value if name in ("v", "y") else self.chance.randrange(2 if name in ("g", "cat") else 8)
                for name in source.columns
            )
            rows[tuple(v for n, v in zip(source.columns, row, strict=True) if n in (source.key or ()))] = row
        self.world.write(source.name, *rows.values())

    def delete(self) -> None:
        source = self.chance.choice(self.world.case.sources)
        dataset = self.world.lake[source.name]
        rows = dataset.to_arrow().select(list(source.key or ())).to_pylist()
        if rows:
            dataset.delete(self.chance.sample(rows, 1))

    def purge(self) -> None:
        source = self.chance.choice(self.world.case.sources)
        read = self.world.positions()[source.name] + 1
        self.world.lake[source.name].purge(before=self.chance.randint(0, read))

    def run(self, **options: object) -> None:
        run = options.pop("run", None)
        self.world.run(run=run, **options)
        inputs = input_rows(self.world.lake, self.world.case)
        called: list[Key] = self.world.calls.keys()
        for key in called:
            now = content(self.world.case, inputs, key)
            assert self.seen.get(key) != now, f"{key} was processed again although nothing changed"
            self.seen[key] = now


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("case", KEYED, ids=str)
def test_steps_process_only_what_changed_whatever_is_purged(case: Case, seed: int, tmp_path: Path) -> None:
    life = Life(case, tmp_path, seed)
    for _ in range(12):
        for action in life.chance.choices([life.write, life.delete, life.purge], [4, 2, 3], k=3):
            action()
        options = life.chance.choice([{}, {}, {"commit_every": 2}, {"use_offset_optimization": False}])
        limit = life.chance.choice([None, None, {"max_records": 2}])
        life.run(**options, run=limit)
    life.run()
    assert_right(life.world)


@pytest.mark.parametrize("offsets", [True, False])
@pytest.mark.parametrize("case", [MAP, AGGREGATION], ids=str)
def test_nothing_is_called_and_nothing_changes_downstream_after_a_purge(
    case: Case, offsets: bool, tmp_path: Path
) -> None:
    world = make_world(case, tmp_path, use_offset_optimization=offsets)
    row = (lambda i, v: (i, v)) if case is MAP else (lambda i, v: (i % 2, i, v))
    world.write("a", *(row(i, i) for i in range(6)))
    world.write("a", row(1, 10), row(4, 40))
    world.run()
    before = world.lake["out"].changes_arrow().num_rows
    assert world.lake["a"].purge(before=100).carried == 6
    assert [i.behind for i in world.step().status(world.lake).inputs] == [0]
    report = world.run()
    assert (world.calls.keys(), report.keys) == ([], 0)
    assert world.lake["out"].changes_arrow().num_rows == before
    world.write("a", row(2, 20))
    world.run()
    assert len(world.calls.keys()) == 1
    assert_right(world)


@pytest.mark.parametrize("how", ["waves", "limit", "order"])
def test_new_step_reads_carried_rows_even_if_its_first_run_ends_early(how: str, tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", *((i, i) for i in range(5)))
    world.write("a", (0, 10))
    world.lake["a"].purge(before=7)
    world.write("a", (7, 7))
    if how == "waves":
        world.calls.fail((3,))
        with pytest.raises(fm.FloodmarkError, match="told to fail"):
            world.run(chunk_size=1, on_error="fail_fast", run={"commit_every": 1})
        world.calls.behave()
    else:
        world.run(run={"max_records": 2}, **({"order_by": "-id"} if how == "order" else {}))
    done = set(world.shown("w"))
    assert 0 < len(done) < 6
    world.run()
    called: list[Key] = world.calls.keys()
    again = [key for (key,) in called]
    assert sorted([*again, *done]) == [0, 1, 2, 3, 4, 7]
    assert_right(world)


def test_step_that_is_behind_a_purge_is_refused_until_it_is_reset(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.write("a", (1, 10), (3, 3))
    world.delete("a", 2)
    world.lake["a"].purge(before=100)
    with pytest.raises(RecordsPurged):
        world.run()
    world.step().reset(world.lake)
    world.run()
    assert_right(world)


def test_step_over_whole_inputs_is_not_called_after_a_purge(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.write("a", (1, 10))
    calls = []

    def total(a):
        calls.append(len(a))
        return a

    step = fm.DatatableTransform(total, inputs=["a"], outputs=["all"])
    step.run(world.lake)
    world.lake["a"].purge(before=100)
    step.run(world.lake)
    assert calls == [2]
    world.write("a", (3, 3))
    step.run(world.lake)
    assert calls == [2, 3]
