"""A change to a column that is not an input calls nothing: the new record takes over the value of the replaced one."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import floodmark as fm
from columns.carried_worlds import BAD, CarriedWorld
from columns.worlds import Crash, CrashingStore
from faults.recording import HastyFileSystem
from histories.calls import in_this_process
from limits import set_limit


@pytest.fixture
def world(tmp_path: Path) -> CarriedWorld:
    """Twenty rows in three fragments, computed; the one with id 13 has failed."""
    return filled(CarriedWorld.new(tmp_path))


def filled(world: CarriedWorld) -> CarriedWorld:
    world.write(*[(i, i, 0) for i in range(20)])
    world.add()
    assert world.backfill().computed == 19
    return world


def test_change_of_another_column_calls_nothing(world: CarriedWorld) -> None:
    world.write((18, 18, 5))
    assert world.values()[18] is None  # until the next backfill
    plan = world.dataset.plan_backfill("y")
    assert (plan.done, plan.carried, plan.missing, plan.ranges) == (19, 1, 0, [])
    done = world.backfill()
    assert (done.carried, done.computed, done.called, done.done) == (1, 0, 0, 19)
    assert world.values()[18] == 181
    assert world.backfill() == fm.BackfillReport("y", done=20)


def test_only_rows_whose_inputs_changed_are_computed(world: CarriedWorld) -> None:
    world.write(*[(i, i + (i % 3 == 0), 7) for i in range(20)])
    done = world.backfill()
    assert world.called == [0, 3, 6, 9, 12, 15, 18]
    assert (done.carried, done.computed, done.failed) == (13, 6, 1)  # 12 became BAD
    assert world.values() == {i: x * 10 + 1 if x != BAD else None for i in range(20) for x in [i + (i % 3 == 0)]}


def test_status_counts_current_values_that_were_carried_over(world: CarriedWorld) -> None:
    world.write((1, 1, 5), (2, 2, 5), (18, 18, 5))
    world.backfill()
    assert (world.status.done, world.status.carried) == (20, 3)
    world.write((18, 0, 5), (1, 1, 6))
    assert world.status.carried == 1
    world.backfill()
    assert (world.status.done, world.status.carried) == (20, 2)
    world.dataset.alter_column("y", world.udf(2))
    world.backfill(version=2)
    assert world.status.carried == 0


def test_value_is_carried_over_many_updates_that_were_not_computed(world: CarriedWorld) -> None:
    for other in range(1, 40):
        world.write((5, 5, other), (6, 6 + other % 2, other))
    world.write((6, 6, 0))
    assert world.backfill().carried == 2  # the x of id 6 is what it was when it was computed
    assert (world.values()[5], world.values()[6]) == (51, 61)


def test_long_chains_are_followed_in_steps(world: CarriedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(monkeypatch, "carried.step_records", 3)
    test_value_is_carried_over_many_updates_that_were_not_computed(world)


def test_newest_computed_record_decides(world: CarriedWorld) -> None:
    world.write((5, 6, 0))
    assert world.backfill().computed == 1
    world.write((5, 5, 0))  # as before the last computation, which has another value
    assert (world.backfill().computed, world.values()[5]) == (1, 51)


def test_row_that_failed_stays_failed_and_is_not_called_until_it_is_retried(world: CarriedWorld) -> None:
    assert world.errors() == [(BAD, "bad luck")]
    world.write((BAD, BAD, 5))
    assert world.errors() == []
    done = world.backfill()
    assert (done.carried, done.failed, world.values()[BAD]) == (1, 0, None)
    assert world.errors() == [(BAD, "bad luck")]
    assert world.status.errors == 1
    world.calls.order("mended")
    assert world.backfill().called == 0
    assert world.backfill(retry_errors=True).computed == 1
    assert (world.values()[BAD], world.errors()) == (131, [])


def test_retry_also_calls_for_rows_that_failed_before_they_were_replaced(world: CarriedWorld) -> None:
    world.write((BAD, BAD, 5), (2, 2, 5))
    world.calls.order("mended")
    done = world.backfill(retry_errors=True)
    assert (world.called, done.carried) == ([BAD], 1)
    assert (world.values()[BAD], world.status.errors) == (131, 0)


def test_null_result_is_carried_over_as_a_result(tmp_path: Path) -> None:
    world = CarriedWorld.new(tmp_path)
    world.write((1, None, 0))
    world.add()
    world.backfill()
    world.write((1, None, 1))
    assert (world.backfill().carried, world.values(), world.errors()) == (1, {1: None}, [])


LIST, STRUCT = pa.list_(pa.float64()), pa.struct([("a", pa.float32()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("kind", "before", "after", "carried"),
    [
        (pa.float64(), math.nan, math.nan, 1),
        (pa.float64(), 0.0, -0.0, 1),
        (pa.float64(), None, math.nan, 0),
        (pa.float64(), None, 0.0, 0),
        (pa.decimal128(10, 2), Decimal("1.50"), Decimal("1.5"), 1),
        (pa.decimal128(10, 2), Decimal("1.50"), Decimal("1.51"), 0),
        (pa.string(), "", None, 0),
        (pa.string(), "é" * 600, "é" * 600, 1),
        (LIST, [1.0, math.nan, None], [1.0, math.nan, None], 1),
        (LIST, [1.0, None], [None, 1.0], 0),
        (LIST, [], None, 0),
        (STRUCT, {"a": 1.5, "b": None}, {"a": 1.5, "b": None}, 1),
        (STRUCT, {"a": 1.5, "b": None}, {"a": 1.5, "b": ""}, 0),
    ],
    ids=repr,
)
def test_inputs_are_compared_as_rows_are(
    tmp_path: Path, kind: pa.DataType, before: Any, after: Any, carried: int
) -> None:
    world = CarriedWorld.new(tmp_path, kind)
    world.write((1, before, 0))
    world.add()
    world.backfill()
    world.write((1, after, 1))
    done = world.backfill()
    assert (done.carried, done.computed) == (carried, 1 - carried)


def test_columns_of_computed_columns_are_called_only_where_a_value_changed(world: CarriedWorld) -> None:
    """y(x) for z(y): a change of x that leaves y as it was calls y, and z is carried over."""

    calls = world.calls

    def coarse(x: int) -> int:
        calls.add(f"{x}\n")
        return x // 10

    def text(y: int) -> str:
        calls.add(f"{y}\n")
        return f"<{y}>"

    udfs = {name: fm.udf(returns=t, version="1")(f) for name, t, f in (("c", "int64", coarse), ("z", "string", text))}
    world.dataset.add_column("c", udfs["c"], ["x"])
    world.dataset.add_column("z", udfs["z"], ["c"])

    def both() -> list[tuple[int, int]]:
        found = []
        for name, udf in udfs.items():
            calls.forget()
            with in_this_process():
                done = world.dataset.backfill(name, udf=udf)
            assert done.called == len(world.called)
            found.append((done.computed, done.carried))
        return found

    assert both() == [(20, 0), (20, 0)]
    world.write((1, 1, 9), (2, 5, 0), (3, 11, 0))
    assert both() == [(2, 1), (1, 2)]
    rows = {row["id"]: (row["c"], row["z"]) for row in world.dataset.to_arrow().to_pylist()}
    assert [rows[i] for i in (1, 2, 3)] == [(0, "<0>"), (0, "<0>"), (1, "<1>")]


def test_function_that_reads_the_offset_is_called_for_every_new_record(world: CarriedWorld) -> None:
    world.dataset.add_column("at", fm.udf(returns="int64", version="1")(lambda offset: offset), ["offset"])
    with in_this_process():
        world.dataset.backfill("at")
        world.write((1, 1, 5))
        done = world.dataset.backfill("at")
    assert (done.computed, done.carried) == (1, 0)
    assert dict(zip(*(world.dataset.to_arrow()[c].to_pylist() for c in ("id", "at")), strict=True)) == world.offsets()


def test_row_that_was_deleted_and_written_again_is_computed(world: CarriedWorld) -> None:
    world.dataset.delete([5])
    world.write((5, 5, 0))
    assert (world.backfill().carried, world.called) == (0, [5])


def test_values_of_another_function_are_not_carried_over(world: CarriedWorld) -> None:
    world.write((5, 5, 1))
    world.dataset.alter_column("y", world.udf(2))
    assert world.backfill("id < 10", version=2).computed == 10
    world.write((5, 5, 2), (15, 15, 2))
    done = world.backfill(version=2)
    assert (done.carried, sorted(world.called)) == (1, list(range(10, 20)))
    assert world.values() == {i: i * 10 + 2 if i != BAD else None for i in range(20)}


def test_filter_chooses_the_rows_that_take_over_values(world: CarriedWorld) -> None:
    world.write((4, 4, 1), (5, 5, 1))
    assert (world.backfill("id = 4").carried, world.backfill().carried) == (1, 1)


@pytest.mark.parametrize("kind", ["snapshot", "changelog"])
def test_other_merge_strategies_that_correct_rows(tmp_path: Path, kind: str) -> None:
    world = CarriedWorld.new(tmp_path)
    world.lake.drop("d")
    world.lake.create("d", key="id", merge=kind, schema=world.schema)
    rows = [(1, 1, 0), (2, 2, 0), (3, 3, 0)]
    batches: list[list[tuple[int, ...]]] = [rows, [(1, 1, 5), (2, 7, 0), (3, 3, 0)]]
    if kind == "changelog":
        batches = [[(*row, 0) for row in rows], [(1, 1, 0, 2), (1, 1, 5, 3), (2, 2, 0, 2), (2, 7, 0, 3)]]
    names = [*world.schema.names, "op"]
    for number, batch in enumerate(batches):
        world.dataset.write(pa.Table.from_pylist([dict(zip(names, row, strict=False)) for row in batch]))
        if not number:
            world.add()
        done = world.backfill()
    assert (done.carried, world.called, world.values()) == (1, [2], {1: 11, 2: 71, 3: 31})


def test_fold_and_many_small_files_change_nothing(world: CarriedWorld) -> None:
    world.write((1, 1, 5))
    world.dataset.fold()
    world.write((1, 1, 6), (9, 9, 6))
    world.dataset.fold()
    assert (world.backfill().carried, world.values()[1]) == (2, 11)


def test_large_values_are_stored_in_several_checkpoints(world: CarriedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(monkeypatch, "carried.checkpoint_bytes", 1)
    set_limit(monkeypatch, "carried.compared_records", 3)
    set_limit(monkeypatch, "carried.compared_rows", 2)
    set_limit(monkeypatch, "sources.piece_bytes", 1)
    world.write(*[(i, i, 7) for i in range(20)])
    assert world.backfill().carried == 20
    assert world.values() == {i: i * 10 + 1 if i != BAD else None for i in range(20)}


# What was stored and not committed, and what was lost


@pytest.mark.parametrize("at", ["/files/", "columns/catalog"], ids=["checkpoints only", "finished files"])
@pytest.mark.parametrize("size", [None, 2])
def test_values_of_a_killed_backfill_are_carried_over(tmp_path: Path, at: str, size: int | None) -> None:
    store = CrashingStore(tmp_path / "lake", HastyFileSystem())
    world = CarriedWorld.new(tmp_path, store=store)
    world.write(*[(i, i, 0) for i in range(20)])
    world.add()
    with store.crash_at(at), pytest.raises(Crash):
        world.backfill_only(max_checkpoint_size=size)
    assert sorted(world.called) == list(range(20)) or at == "/files/"
    stored = world.dataset.plan_backfill("y").reused
    world.write((2, 2, 5), (3, 4, 5), (BAD, BAD, 5))
    plan = world.dataset.plan_backfill("y")
    if stored == 20:
        assert (plan.carried, plan.missing, plan.reused) == (2, 1, 17)
    world.backfill()
    assert world.values() == {i: x * 10 + 1 if x != BAD else None for i in range(20) for x in [4 if i == 3 else i]}


def test_carried_values_of_a_killed_backfill_are_reused_and_still_count(tmp_path: Path) -> None:
    store = CrashingStore(tmp_path / "lake", HastyFileSystem())
    world = filled(CarriedWorld.new(tmp_path, store=store))
    world.write((2, 2, 5), (3, 4, 5), (BAD, BAD, 5))
    world.calls.forget()
    with store.crash_at("columns/catalog"), pytest.raises(Crash):
        world.backfill_only()
    assert world.called == [3]
    done = world.backfill()
    assert (done.called, done.reused, done.carried) == (0, 3, 0)
    assert (world.status.carried, world.errors()) == (2, [(BAD, "bad luck")])


def test_value_that_is_lost_is_computed(world: CarriedWorld) -> None:
    world.write((2, 2, 5))
    objects = world.dataset.parts.columns.objects
    for info in list(objects.files()):
        world.lake.store.delete(info.key)
    for key in objects.checkpoints.list_keys():
        objects.checkpoints.delete(key)
    assert world.backfill().carried == 0
    assert world.values()[2] == 21


def test_damaged_value_is_computed(world: CarriedWorld, caplog: pytest.LogCaptureFixture) -> None:
    """The pages of a file are checked when they are read, so the plan does not know."""
    world.write((2, 2, 5), (18, 18, 5))
    objects, store = world.dataset.parts.columns.objects, world.lake.store
    first = min(objects.files(), key=lambda info: segment_start(world, info.key))
    data = bytearray(store.get(first.key))
    data[40] ^= 0xFF
    store.put_derived(first.key, bytes(data))
    world.calls.forget()
    done = world.backfill_only()
    assert (world.called, done.carried, done.computed) == ([2], 1, 1)
    assert "the function is called for the records that replaced these" in caplog.text
    assert (world.status.carried, world.status.done) == (1, 20)


def segment_start(world: CarriedWorld, key: str) -> int:
    snapshot = world.dataset.parts.columns.snapshot()
    fragments = snapshot.manifest(snapshot.catalog.column("y")).fragments
    return next(s.start for f in fragments for s in f.segments if s.key(snapshot.objects) == key)


def test_unreadable_errors_do_not_make_a_failed_row_a_null(world: CarriedWorld) -> None:
    world.write((BAD, BAD, 5), (18, 18, 5))
    for info in list(world.dataset.parts.columns.objects.errors()):
        world.lake.store.delete(info.key)
    done = world.backfill()
    assert (world.called, done.carried, world.status.errors) == ([BAD], 1, 1)


def test_purged_values_are_not_carried_over(tmp_path: Path) -> None:
    world = filled(CarriedWorld.new(tmp_path))
    world.write((2, 2, 5))
    assert world.dataset.purge(before=20).before == 20
    done = world.backfill()
    assert (done.carried, world.called) == (0, [2])
    assert world.values() == {n: None if n == BAD else 10 * n + 1 for n in range(20)}  # those of current rows moved


# Functions of views


def test_function_of_a_view_is_not_called_for_a_change_of_another_column(world: CarriedWorld) -> None:
    assert world.ask().computed == 19
    world.write((18, 18, 5), (3, 4, 0), (BAD, BAD, 5))
    found = world.ask()
    assert (world.called, found.carried, found.reused) == ([3], 2, 17)
    at = world.offsets()
    assert found.take(np.array([at[18], at[3], at[BAD]])).to_pylist() == [181, 41, None]
    assert found.errors["offset"].to_pylist() == [at[BAD]]
    assert (world.ask().reused, world.called) == (20, [])


def test_function_of_a_view_is_called_again_for_errors_that_are_retried(world: CarriedWorld) -> None:
    world.ask()
    world.write((18, 18, 5), (BAD, BAD, 5))
    world.calls.order("mended")
    found = world.ask(retry_errors=True)
    assert (world.called, found.carried, found.errors.num_rows) == ([BAD], 1, 0)


def test_rows_that_a_view_never_asked_for_are_computed(world: CarriedWorld) -> None:
    world.ask(range(10))
    world.write((5, 5, 1), (15, 15, 1))
    assert (world.ask().carried, sorted(world.called)) == (1, list(range(10, 20)))


def test_many_small_carried_checkpoints_of_a_view_are_merged(
    world: CarriedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limit(monkeypatch, "merging.many", 4)
    world.fragment_rows = 1000
    world.ask()
    for other in range(1, 12):
        world.write((5, 5, other))
        assert (world.ask([5]).carried, world.called) == (1, [])
    assert len(world.lake["view"].parts.columns.objects.checkpoints.list_keys()) < 8
