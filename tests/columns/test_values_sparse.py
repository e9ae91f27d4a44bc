"""Records far apart, and rows that trickle in: neither makes a checkpoint per row, nor a listing of thousands."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import floodmark as fm
from columns.checkpoint_worlds import PREFIX, range_batch
from columns.counting import Calls
from columns.value_worlds import PICKY, ValueWorld, taken, tens, value_world
from columns.worlds import Crash, checkpoint_path
from floodmark.columns.checkpoint_store import CheckpointInfo
from floodmark.columns.function_values import MERGE_COUNT, SIZE_CLASSES, select_to_merge
from floodmark.derive.checkpoint_key import range_key
from floodmark.storage.memory import CountingStore, MemoryStore
from limits import set_limit
from profiles import examples


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ValueWorld:
    """Tasks run in this process."""
    return value_world(tmp_path)


def table(start: int, end: int) -> pa.Table:
    return pa.table({"id": np.arange(start, end), "v": np.arange(start, end)})


def scattered(rows: int, count: int, seed: int = 0) -> list[int]:
    return sorted(np.random.default_rng(seed).choice(rows, count, replace=False).tolist())


def test_every_tenth_row_makes_one_checkpoint_for_each_fragment(world: ValueWorld):
    world.dataset.write(table(0, 1000))
    rows = range(0, 1000, 10)
    got = world.ask(rows)
    assert sorted(world.calls.offsets()) == list(rows)
    assert world.ranges() == [(number, 0, 91) for number in range(10)]
    assert taken(got, rows) == tens(rows)


@pytest.mark.slow
def test_other_rows_between_them_are_computed_without_repeating_any(world: ValueWorld):
    world.dataset.write(table(0, 1000))
    world.ask(range(0, 1000, 10))
    got = world.ask(range(0, 1000, 5))
    assert sorted(world.calls.offsets()) == list(range(5, 1000, 10))
    assert taken(got, range(0, 1000, 5)) == tens(range(0, 1000, 5))
    assert world.ask(range(1000)).called == 800
    assert world.ask(range(1000)).called == 0


@pytest.mark.slow
def test_rows_scattered_over_many_fragments_cost_a_call_each_and_few_files(world: ValueWorld):
    world.fragment_rows = 10_000
    world.dataset.write(table(0, 100_000))
    rows = scattered(100_000, 200)
    got = world.ask(rows)
    assert sorted(world.calls.offsets()) == rows
    assert len(world.ranges()) == 10
    assert taken(got, rows) == tens(rows)
    others = scattered(100_000, 200, seed=1)
    assert world.ask(others).called == len(set(others) - set(rows))


def test_only_files_with_wanted_rows_are_read(world: ValueWorld):
    for start in range(0, 1000, 100):
        world.dataset.write(table(start, start + 100))
    for at, file in enumerate(world.column_snapshot.selection.files):
        if at not in (3, 7):
            os.truncate(str(world.lake.store.local_path(file.key)), 0)
    world.fragment_rows = 1000
    got = world.ask([310, 395, 777])
    assert taken(got, [310, 395, 777]) == tens([310, 395, 777])


@pytest.mark.slow
def test_computed_inputs_of_scattered_rows_are_their_own(world: ValueWorld):
    world.dataset.write(table(0, 200))
    world.add()
    world.backfill()
    of_a = fm.udf(returns="int64", version="1", inputs=["a"])(lambda a: a + 1)
    rows = scattered(200, 20)
    assert taken(world.ask_only(rows, of_a), rows) == [row * 10 + 1 for row in rows]


def counted(tmp_path: Path) -> tuple[ValueWorld, CountingStore]:
    store = CountingStore(MemoryStore())
    lake = fm.Lake(store)
    lake.create("d", key=["id"], schema={"id": "int64", "v": "int64"})
    lake.create("view")
    return ValueWorld(lake, Calls(tmp_path)), store


def test_new_rows_read_no_older_checkpoint(world: ValueWorld, tmp_path: Path):
    counting, store = counted(tmp_path)
    counting.dataset.write(table(0, 1000))
    counting.ask(range(1000))
    counting.dataset.write(table(1000, 1050))
    before = len(store.keys_read)
    counting.ask(range(1000, 1050))
    assert [key for key in store.keys_read[before:] if "/batches/" in key and "/frag-10/" not in key] == []
    assert any("/frag-10/" in key for key in store.keys_read[before:])


@pytest.mark.slow
def test_many_fragments_are_listed_at_once(world: ValueWorld, tmp_path: Path):
    counting, store = counted(tmp_path)
    counting.dataset.write(table(0, 5000))
    counting.ask(range(5000))

    def lists(rows: range) -> int:
        before = store.counts
        assert counting.ask(rows).called == 0
        return (store.counts - before).lists

    none = lists(range(0))  # whatever pinning the dataset takes
    assert lists(range(500)) - none == 5
    assert lists(range(5000)) - none == 1


# Merging


@pytest.mark.slow
def test_rows_that_come_one_by_one_leave_few_checkpoints_and_none_is_computed_twice(world: ValueWorld, monkeypatch):
    set_limit(monkeypatch, "merging.many", 8)
    world.write(range(50))
    udf = PICKY.udf(world.calls, on_error=fm.Skip(ValueError))
    world.calls.forget()
    for row in range(50):
        world.ask_only([row], udf)
        assert len(world.ranges()) < 16
    assert sorted(world.calls.offsets()) == list(range(50))
    got = world.ask(range(50), udf)
    assert got.called == 0
    assert taken(got, range(50)) == [None if row % 7 == 0 else row * 10 for row in range(50)]
    assert got.errors["offset"].to_pylist() == list(range(0, 50, 7))
    assert got.errors["message"][1].as_py() == "7 is refused"


def test_merged_rows_that_were_tried_again_keep_what_counted(world: ValueWorld, monkeypatch):
    set_limit(monkeypatch, "merging.many", 4)
    world.write(range(40))
    udf = PICKY.udf(world.calls, on_error=fm.Skip(ValueError))
    world.ask(range(20), udf)
    world.calls.mend()
    world.ask(range(20), udf, retry_errors=True)
    world.calls.unmend()
    for row in range(20, 24):
        world.ask_only([row], udf)
    assert world.ranges() == [(0, 0, 22), (0, 22, 23), (0, 23, 24)]
    got = world.ask(range(24), udf)
    assert got.called == 0
    assert taken(got, [0, 7, 14, 21]) == [0, -7, -14, None]


def test_crash_before_the_merged_ones_go_leaves_rows_twice_and_right(world: ValueWorld, monkeypatch):
    set_limit(monkeypatch, "merging.many", 4)
    world.write(range(10))
    with world.lake.store.crash_at("/batches/"):
        for row in range(3):
            world.ask_only([row])
        with pytest.raises(Crash):
            world.ask_only([3])
    assert len(world.ranges()) == 5
    got = world.ask(range(10))
    assert sorted(world.calls.offsets()) == list(range(4, 10))
    assert taken(got, range(10)) == tens(range(10))


def info(start: int, end: int, size: int) -> CheckpointInfo:
    return CheckpointInfo(range_key(PREFIX.text, 0, start, end), size, 0.0)


def test_only_checkpoints_of_about_one_size_are_merged():
    small = [info(i, i + 1, 1000) for i in range(MERGE_COUNT)]
    medium = [info(i, i + 1, SIZE_CLASSES[0]) for i in range(1000, 1000 + MERGE_COUNT)]
    large = [info(i, i + 1, SIZE_CLASSES[1]) for i in range(5000, 5000 + 10 * MERGE_COUNT)]
    assert select_to_merge([*small[1:], *medium[1:], *large]) == []
    assert select_to_merge([*large, *medium[1:], *small[::-1]]) == small
    assert select_to_merge([*small[1:], *medium, *large]) == medium


@pytest.mark.slow
@pytest.mark.soak
def test_rows_of_a_long_trickle_are_written_again_a_few_times_only():
    """Sizes alone: each row has 20 bytes and each checkpoint 900 more."""
    there: list[CheckpointInfo] = []
    written = 0
    total = examples(4_000)
    for row in range(total):
        there.append(info(row, row + 1, 920))
        while some := select_to_merge(there):
            rows = sum((one.size - 900) // 20 for one in some)
            first = min(int(one.key.rsplit("-", 2)[1]) for one in some)
            there = [one for one in there if one not in some]
            there.append(info(first, first + rows, 900 + 20 * rows))
            written += rows
    assert len(there) < 3 * MERGE_COUNT
    assert total // 2 < written < 15 * total


def test_damaged_checkpoint_among_those_to_merge_costs_its_rows_only(world: ValueWorld, monkeypatch):
    set_limit(monkeypatch, "merging.many", 4)
    world.write(range(10))
    for row in range(3):
        world.ask_only([row])
    key = next(key for key in world.checkpoints.list_keys() if key.endswith("range-1-2"))
    other = range_key("another", 0, 1, 2)
    world.checkpoints.put(other, range_batch([1]))
    paths = [checkpoint_path(world.checkpoints, k) for k in (key, other)]
    world.checkpoints.store.put_derived(paths[0], world.checkpoints.store.get(paths[1]))
    world.checkpoints.delete(other)
    got = world.ask_only([3])
    assert taken(got, [3]) == [30]
    again = world.ask(range(4))
    assert (world.calls.offsets(), taken(again, range(4))) == ([1], tens(range(4)))
