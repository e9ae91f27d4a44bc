"""A run's keys are each processed once and lie in checkpoints, whatever happens to its workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark.errors import KeyFailed
from floodmark.functions.step_result import OutputShape
from floodmark.transforms import rounds
from floodmark.transforms import task as applying
from floodmark.transforms.chunk_results import results
from floodmark.transforms.task import TransformTask
from limits import set_limit
from transforms.apply_world import Keys, T, World, counted, processed_of, rows_of


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_every_key_is_called_once_and_its_rows_are_stored(world):
    done = world.compute(Keys(0, 95))
    assert rows_of(done.stored) == {k: 2 * k for k in range(95)}
    assert processed_of(done.stored, range(95)) == list(range(95))
    assert world.calls() == dict.fromkeys(range(95), 1)
    assert (done.keys, done.called, done.reused, done.failed, done.calls) == (95, 95, 0, 0, 10)


def test_small_run_is_one_task_and_three_files(world):
    done = replace(world, chunk_size=1000).compute(*(Keys(at, at + 20) for at in range(0, 1000, 20)))
    assert len(done.stored) == 1
    assert len(world.files()) == 3, "rows, keys, and what says that they are whole"
    assert done.keys == 1000


def test_gone_keys_are_processed_without_a_call(world):
    done = world.compute(Keys(0, 30, gone=frozenset({3, 4, 29})))
    assert processed_of(done.stored, range(30)) == list(range(30))
    assert done.gone == 3
    assert not {3, 4, 29} & set(world.calls())
    assert not {3, 4, 29} & set(rows_of(done.stored))


def test_keys_without_rows_are_processed_all_the_same(world):
    world.tell("none", *range(30))
    done = world.compute(Keys(0, 30))
    assert done.outputs[0].layout is None
    assert processed_of(done.stored, range(30)) == list(range(30))
    assert results(done.stored, 0, ()).rows == []


def test_failed_keys_stand_alone_and_are_kept_with_the_error(world):
    world.tell("raise", 13)
    done = world.compute(Keys(0, 30))
    assert done.failed == 1
    assert processed_of(done.stored, range(30)) == list(range(30))
    assert set(range(30)) - set(rows_of(done.stored)) == {13}
    [failed] = [t for s in done.stored if (t := s.failed_table()) is not None]
    assert failed["k"].to_pylist() == [13]
    assert failed["attempts"].to_pylist() == [1]


def test_run_that_fails_fast_keeps_what_was_done_before(world):
    world.tell("raise", 55)
    fast = replace(world, on_error="fail_fast")
    with pytest.raises(KeyFailed):
        fast.compute(Keys(0, 90))
    world.behave()
    world.forget()
    done = fast.compute(Keys(0, 90))
    assert sorted(world.calls()) == list(range(50, 90))
    assert rows_of(done.stored) == {k: 2 * k for k in range(90)}


def test_many_failures_keep_few_tracebacks(world, monkeypatch):
    set_limit(monkeypatch, "apply.traces", 5)
    world.tell("raise", *range(20))
    applied = applying.run_task(world.work(), TransformTask("t", (Keys(0, 20),), 4, 10.0))
    failed = pa.concat_tables([t for s in applied.stored if (t := s.failed_table()) is not None])
    assert failed.num_rows == 20
    assert sum(1 for trace in failed["traceback"].to_pylist() if trace) == 4
    assert all(failed["message"].to_pylist())


@pytest.mark.process
def test_killed_worker_costs_what_it_had_not_stored(world):
    slow = replace(world, seconds=0.02, target_seconds=0.01)
    slow.tell("kill", 77)
    done = slow.compute(Keys(0, 120))
    assert rows_of(done.stored) == {k: 2 * k for k in range(120)}
    assert processed_of(done.stored, range(120)) == list(range(120))
    again = {k: n for k, n in world.calls().items() if n > 1}
    assert 77 in again
    assert max(again) - min(again) < world.chunk_size, "only the chunk that its worker died of"


def test_task_that_runs_out_of_memory_is_halved_and_keeps_what_it_stored(world):
    work = replace(world.work(), target_seconds=0.0)  # every chunk is a checkpoint
    task = TransformTask("first", (Keys(0, 40),), 10, float("inf"))
    stored = applying.run_task(work, replace(task, units=(Keys(0, 20),))).stored  # as far as it came
    assert len(stored) == 2
    world.forget()
    first, second = rounds.halves(work, task) or (None, None)
    assert first is not None
    assert second is not None
    assert (first.chunk_size, second.chunk_size) == (1, 1)
    parts = [applying.run_task(work, half) for half in (first, second)]
    every = {s.id: s for part in parts for s in part.stored}
    assert processed_of(list(every.values()), range(40)) == list(range(40))
    assert sorted(world.calls()) == list(range(20, 40))
    assert rounds.halves(work, replace(task, units=(Keys(0, 1),))) is None


def test_task_that_is_begun_again_finds_what_it_had_stored(world):
    task = TransformTask("again", (Keys(0, 30, gone=frozenset({4})),), 10, float("inf"))
    before = applying.run_task(world.work(), task)
    world.forget()
    after = applying.run_task(world.work(), replace(task, units=(Keys(0, 40, gone=frozenset({4})),)))
    assert sorted(world.calls()) == list(range(30, 40))
    assert {s.id for s in before.stored} < {s.id for s in after.stored}
    assert processed_of(after.stored, range(40)) == list(range(40))
    assert after.done == 40


def test_slow_task_gives_back_what_it_has_not_begun_and_nothing_is_called_twice(world):
    slow = replace(world, seconds=0.02, target_seconds=0.01)
    done = slow.compute(Keys(0, 200))
    assert len({s.task for s in done.stored}) > 1
    assert world.calls() == dict.fromkeys(range(200), 1)
    assert processed_of(done.stored, range(200)) == list(range(200))
    assert rows_of(done.stored) == {k: 2 * k for k in range(200)}


@pytest.mark.slow
def test_gone_keys_of_a_unit_that_was_given_back_are_processed_once(world):
    gone = frozenset(range(0, 200, 7))
    done = replace(world, seconds=0.02, target_seconds=0.01).compute(Keys(0, 200, gone=gone))
    assert processed_of(done.stored, range(200)) == list(range(200))


def test_results_in_memory_are_bounded(world, monkeypatch):
    set_limit(monkeypatch, "apply.held_bytes", 1000)
    applied = applying.run_task(world.work(), TransformTask("t", (Keys(0, 100),), 10, float("inf")))
    assert len(applied.stored) > 3
    assert rows_of(applied.stored) == {k: 2 * k for k in range(100)}


def both(frame: pa.Table, folder: str, seconds: float = 0.0) -> tuple[pa.Table, pa.Table]:
    first = counted(frame, folder, seconds)
    late = first.filter(pa.array([k >= 50 for k in first["k"].to_pylist()], pa.bool_()))
    return first, late.rename_columns(["k", "z"])


def test_output_whose_first_row_comes_late_gets_its_columns_then(world):
    outputs = tuple(OutputShape(name, ("k",), T, None) for name in ("one", "two"))
    done = replace(world, outputs=outputs, function=both).compute(Keys(0, 100))
    assert rows_of(done.stored, 1, "z") == {k: 2 * k for k in range(50, 100)}
    assert [shape.layout.data.names for shape in done.outputs] == [["k", "y"], ["k", "z"]]
    assert world.calls() == dict.fromkeys(range(100), 1)


class Bar:
    """Counts."""

    def __init__(self) -> None:
        self.done = self.failed = 0

    def start(self, label: str, total: int | None) -> None:
        pass

    def advance(self, units: int) -> None:
        self.done += units

    def fail(self, units: int) -> None:
        self.failed += units

    def finish(self) -> None:
        pass


@pytest.mark.slow
def test_progress_ends_at_its_total(world):
    bar = Bar()
    replace(world, seconds=0.02, target_seconds=0.01).compute(Keys(0, 150, gone=frozenset({1, 2})), progress=bar)
    assert bar.done == 150
