"""A run goes on where the last one was ended, however its work is cut, and takes nothing that changed since."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import KeyFailed, StorageError
from floodmark.functions.failures import failed_keys_schema
from floodmark.functions.step_result import OutputShape
from floodmark.ledger.schema import derive_layout
from floodmark.storage.parquet import Vocabulary
from floodmark.transforms.chunk_results import NewResults, ResultRows, StoredChunk
from floodmark.transforms.result_lookup import conform_chunk
from floodmark.transforms.rounds import group_units
from floodmark.transforms.stored_results import ChunkStore
from floodmark.transforms.task import RemainingUnit, TransformTask, run_task
from profiles import seeds
from transforms.apply_world import Keys, T, World, hashes, processed_of, rows_of
from transforms.driven import Driver, world_at
from waiting import wait_until


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def leave(world: World, *units: Keys) -> None:
    """What a run that was killed has left: a checkpoint of each unit."""
    for n, unit in enumerate(units):
        run_task(world.work(), TransformTask(f"dead{n}", (unit,), 1000, float("inf")))
    world.forget()


def test_what_an_ended_run_has_stored_is_not_called_again_however_work_is_cut(world):
    leave(world, Keys(0, 33), Keys(40, 61))
    done = replace(world, chunk_size=7).compute(Keys(0, 5), Keys(5, 50), Keys(50, 80))
    assert sorted(world.calls()) == [*range(33, 40), *range(61, 80)]
    assert (done.reused, done.called) == (54, 26)
    assert rows_of(done.stored) == {k: 2 * k for k in range(80)}
    assert processed_of(done.stored, range(80)) == list(range(80))
    assert done.left == ()


def test_nothing_of_a_key_that_changed_since_is_used(world):
    leave(world, Keys(0, 40))
    changed = frozenset({7, 8, 39})
    done = world.compute(Keys(0, 40, changed=changed))
    assert set(world.calls()) == changed
    assert rows_of(done.stored) == {k: 2 * (k + 1000 * (k in changed)) for k in range(40)}
    assert processed_of(done.stored, range(40)) == list(range(40))
    assert [s.keys for s in done.left] == [3]


def test_key_that_is_gone_now_is_not_taken_from_a_checkpoint(world):
    leave(world, Keys(0, 40))
    done = world.compute(Keys(0, 40, gone=frozenset({7, 8})))
    assert rows_of(done.stored) == {k: 2 * k for k in range(40) if k not in (7, 8)}
    assert processed_of(done.stored, range(40)) == list(range(40))
    assert world.calls() == {}


def test_key_that_was_gone_then_and_came_back_is_called(world):
    leave(world, Keys(0, 40, gone=frozenset({7, 8})))
    done = world.compute(Keys(0, 40))
    assert sorted(world.calls()) == [7, 8]
    assert rows_of(done.stored) == {k: 2 * k for k in range(40)}
    assert processed_of(done.stored, range(40)) == list(range(40))


def test_key_that_was_gone_then_is_not_processed_when_nobody_asks_for_it(world):
    leave(world, Keys(0, 40, gone=frozenset({7, 8})))
    done = world.compute(Keys(10, 40))
    assert processed_of(done.stored, range(40)) == list(range(10, 40))


def test_key_that_failed_in_a_run_that_was_killed_is_called_again(world):
    world.tell("raise", 13)
    leave(world, Keys(0, 40))
    world.behave()
    done = world.compute(Keys(0, 40))
    assert set(world.calls()) == {13}
    assert (done.failed, done.reused) == (0, 39)
    assert rows_of(done.stored) == {k: 2 * k for k in range(40)}
    assert processed_of(done.stored, range(40)) == list(range(40))


def test_failure_that_a_killed_run_has_left_still_stops_at_the_first_failure(world):
    world.tell("raise", 13)
    leave(world, Keys(0, 40))
    with pytest.raises(KeyFailed, match="k=13"):
        replace(world, on_error="fail_fast").compute(Keys(0, 40))


def test_result_is_found_though_another_checkpoint_has_a_failure_of_it(world):
    world.tell("raise", 13)
    leave(world, Keys(0, 40))
    world.behave()
    failed = world.store.found(world.outputs)
    run_task(world.work(), TransformTask("other", (Keys(10, 20),), 1000, float("inf")))
    world.forget()
    both = sorted(world.store.found(world.outputs), key=lambda s: s.id not in {f.id for f in failed})
    done = world.compute(Keys(0, 40), found=both)
    assert world.calls() == {}
    assert rows_of(done.stored) == {k: 2 * k for k in range(40)}


def failures(*keys: int, attempts: int) -> pa.Table:
    at = hashes(list(keys))
    facts = {"k": list(keys), "high": at.high, "low": at.low, "attempts": [attempts] * len(keys)}
    schema = failed_keys_schema(T)
    columns = {f.name: facts.get(f.name, [None] * len(keys)) for f in schema}
    return pa.table({f.name: pa.array(columns[f.name], f.type) for f in schema})


def test_failure_that_was_committed_meanwhile_is_tried_again(world):
    world.tell("raise", 13)
    leave(world, Keys(0, 40))
    world.behave()
    done = replace(world, failed=failures(13, attempts=1)).compute(Keys(0, 40))
    assert set(world.calls()) == {13}
    assert done.failed == 0
    assert rows_of(done.stored) == {k: 2 * k for k in range(40)}


def test_attempts_go_on_from_where_they_were(world):
    world.tell("raise", 13)
    done = replace(world, failed=failures(2, 13, attempts=4)).compute(Keys(0, 20))
    (failed,) = [t for s in done.stored if (t := s.failed_table()) is not None]
    assert failed["attempts"].to_pylist() == [5]


def test_waves_share_what_was_found(world):
    leave(world, Keys(0, 30))
    first = world.compute(Keys(0, 20))
    assert sorted(rows_of(first.stored)) == list(range(20))
    world.store.discard(first.stored)
    second = world.compute(Keys(20, 40), found=first.left)
    assert sorted(world.calls()) == list(range(30, 40))
    assert sorted(rows_of(second.stored)) == list(range(20, 40))
    world.store.discard(second.stored)
    assert world.files() == []


def test_checkpoints_that_overlap_are_used_once(world):
    leave(world, Keys(0, 30), Keys(20, 50), Keys(10, 25))
    done = world.compute(Keys(0, 50))
    assert world.calls() == {}
    assert processed_of(done.stored, range(50)) == list(range(50))
    assert rows_of(done.stored) == {k: 2 * k for k in range(50)}


@pytest.mark.parametrize("puts", [0, 1])
def test_run_that_is_ended_while_it_cuts_checkpoints_loses_none(world, monkeypatch, puts):
    leave(world, Keys(0, 30))
    put, left = ChunkStore.put, [puts]

    def until_the_end(*given: Any) -> StoredChunk:
        if not left[0]:
            raise StorageError("the end", hint="none")
        left[0] -= 1
        return put(*given)

    monkeypatch.setattr(ChunkStore, "put", until_the_end)
    with pytest.raises(StorageError, match="the end"):
        world.compute(Keys(0, 20))
    monkeypatch.undo()
    done = world.compute(Keys(0, 30))
    assert world.calls() == {}
    assert processed_of(done.stored, range(30)) == list(range(30))
    assert rows_of(done.stored) == {k: 2 * k for k in range(30)}


def test_columns_of_found_rows_are_those_of_the_output(world):
    leave(world, Keys(0, 30))
    world.tell("none", *range(30, 40))
    done = world.compute(Keys(0, 40))
    assert done.outputs[0].layout is not None
    assert done.outputs[0].layout.data.names == ["k", "y"]


def test_rows_that_tasks_learnt_different_columns_from_get_the_same_ones(world):
    narrow, wide = (
        OutputShape("out", ("k",), T, derive_layout(pa.schema([("k", pa.int64()), ("y", y)]), Vocabulary(), None))
        for y in (pa.int32(), pa.int64())
    )
    entries = world.store.entries(run_task(world.work(), TransformTask("t", (Keys(0, 3),), 10, 1.0)).stored[0])
    rows = pa.table({"k": [0, 1, 2], "y": pa.array([5, 6, 7], pa.int32())})
    stored = world.store.put(
        "x", [narrow], NewResults((ResultRows(rows, hashes([0, 1, 2]), hashes([0, 1, 2])),), entries, hashes([9]), None)
    )
    again = conform_chunk(world.store, stored, [wide])
    assert again.layouts == (wide.layout,)
    assert rows_of([again]) == {0: 5, 1: 6, 2: 7}
    assert processed_of([again], range(10)) == [0, 1, 2, 9]
    assert stored.id not in [s.id for s in world.store.found([wide])]


@pytest.mark.process
@pytest.mark.soak
def test_run_whose_driver_is_killed_again_and_again_calls_little_twice(tmp_path):
    world, kills = world_at(tmp_path), seeds(2)
    # A worker may lose the checkpoint in the making and the one that it was storing.
    lost = world.runner.cores * 2 * world.chunk_size
    keys = 2 * len(kills) * lost
    for seed in kills:
        with Driver(tmp_path, keys):
            enough = world.calls().total() + lost + random.Random(seed).randrange(lost // 2)
            wait_until(lambda enough=enough: world.calls().total() > enough)
    done = world.compute(Keys(0, keys))
    assert rows_of(done.stored) == {k: 2 * k for k in range(keys)}
    assert processed_of(done.stored, range(keys)) == list(range(keys))
    assert world.calls().total() - keys <= len(kills) * lost
    world.store.discard(done.stored)
    world.store.discard(done.left)


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 60))
def test_shares_have_all_keys_in_order_and_none_is_much_too_large(sizes, each):
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    units = [Keys(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    groups = group_units([RemainingUnit(unit) for unit in units], each)
    shared = [k for group in groups for m in group for k in range(m.unit.start, m.unit.end)]
    assert shared == list(range(sum(sizes)))
    assert all(sum(m.unit.rows for m in group) <= each + each // 2 for group in groups)
