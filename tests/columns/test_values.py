"""Values for some records: what is wanted and in no checkpoint is computed, and nothing else."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import floodmark as fm
from columns.counting import Plan
from columns.value_worlds import COLUMN, PICKY, SMALL, ValueWorld, taken, tens, value_world
from columns.worlds import HUNDREDFOLD, TENFOLD, hundredfold
from floodmark.errors import DerivationError, FunctionFailed, UnknownColumn
from floodmark.ledger.scan import Scan
from floodmark.storage.store import ObjectInfo


@pytest.fixture
def world(tmp_path: Path) -> ValueWorld:
    return value_world(tmp_path)


def test_rows_that_were_added_are_the_only_ones_handed_to_the_function(world: ValueWorld):
    world.write(range(1000))
    assert world.ask(range(1000)).computed == 1000
    world.write(range(1000, 1500))
    got = world.ask(range(1500))
    assert (got.called, got.computed, got.reused) == (500, 500, 1000)
    assert sorted(world.calls.offsets()) == list(range(1000, 1500))
    assert taken(got, range(1500)) == tens(range(1500))


def test_what_is_there_is_taken_without_a_call_and_nothing_is_written(world: ValueWorld):
    world.write(range(250))
    world.ask(range(250))
    before = {info.key: info.modified for info in world.checkpoints.store.list("")}
    got = world.ask(range(20, 230))
    assert (got.called, got.reused) == (0, 210)
    assert taken(got, range(20, 230)) == tens(range(20, 230))
    assert {info.key: info.modified for info in world.checkpoints.store.list("")} == before


def test_nothing_wanted_is_nothing_done(world: ValueWorld):
    world.write(range(3))
    got = world.ask([])
    assert (got.called, got.errors.num_rows, len(got.take(np.empty(0, np.int64)))) == (0, 0, 0)
    assert world.checkpoints.list_keys() == []


def test_values_come_in_any_order_and_repeatedly(world: ValueWorld):
    world.write(range(300))
    got = world.ask(range(300))
    assert taken(got, [299, 0, 150, 150, 3]) == tens([299, 0, 150, 150, 3])


def test_records_that_nobody_asked_for_have_no_value(world: ValueWorld):
    world.write(range(300))
    world.ask(range(300))
    got = world.ask(range(0, 300, 2))
    assert taken(got, [0, 1, 2, 299]) == [0, None, 20, None]


def test_corrected_and_deleted_rows_cost_one_call_and_none(world: ValueWorld):
    world.write(range(50))
    world.ask(world.inputs())
    world.write([7], [700])
    world.dataset.delete([9])
    current = world.inputs()
    got = world.ask(sorted(current))
    assert got.called == 1
    assert taken(got, sorted(current)) == [v * 10 for _, v in sorted(current.items())]


def test_records_that_are_dead_or_not_there_are_refused(world: ValueWorld):
    world.write(range(5))
    world.dataset.delete([2])
    for wrong in ([0, 2], [-1], [1, 99], [3, 1], [1, 1]):
        with pytest.raises(ValueError):
            world.ask(wrong)
    assert world.calls.offsets() == []


def test_fold_of_the_source_costs_nothing(world: ValueWorld):
    for at in range(0, 40, 10):
        world.write(range(at, at + 10))
    world.ask(range(40))
    world.dataset.delete([3, 4])
    assert world.dataset.fold().files > 0
    wanted = sorted(world.inputs())
    got = world.ask(wanted)
    assert got.called == 0
    assert taken(got, wanted) == tens(wanted)


def test_nothing_is_installed(world: ValueWorld):
    world.write(range(300))
    world.ask(range(300), **SMALL)
    folders = {info.key.removeprefix(world.kept_in.folder).split("/")[1] for info in _all(world)}
    assert folders == {"checkpoints"}
    assert world.ranges()[:2] == [(0, 0, 10), (0, 10, 20)]


def _all(world: ValueWorld) -> list[ObjectInfo]:
    return [i for i in world.kept_in.store.list(world.kept_in.folder) if "/turns/" not in i.key]


# What makes another computation of it


def test_another_version_has_other_keys_and_coming_back_costs_nothing(world: ValueWorld):
    world.write(range(20))
    world.ask(range(20))
    got = world.ask(range(20), HUNDREDFOLD.udf(world.calls))
    assert (got.computed, taken(got, [3])) == (20, [300])
    back = world.ask(range(20), TENFOLD.udf(world.calls))
    assert (back.called, taken(back, [3])) == (0, [30])


def test_other_inputs_have_other_keys(world: ValueWorld):
    world.write(range(20), [v + 1 for v in range(20)])
    world.ask(range(20))
    other = Plan("fold", "1", ("id",), TENFOLD.formula).udf(world.calls)
    got = world.ask(range(20), other)
    assert (got.computed, taken(got, [3])) == (20, [30])


def test_a_column_added_to_the_source_later_changes_no_keys(world: ValueWorld):
    world.write(range(20))
    world.ask(range(20))
    world.add()  # settles the size of the source's fragments
    world.dataset.evolve({"note": "string"})
    assert world.ask(range(20)).called == 0


def test_unknown_inputs_are_refused(world: ValueWorld):
    world.write(range(3))
    with pytest.raises(UnknownColumn, match="from 'w', which 'd' does not have"):
        world.ask(range(3), Plan("fold", "1", ("w",), TENFOLD.formula).udf(world.calls))


# Inputs that are computed columns


def test_computed_columns_of_the_source_can_be_inputs(world: ValueWorld):
    world.write(range(30))
    world.add()
    world.backfill()
    of_a = Plan("of_a", "1", ("a",), hundredfold).udf(world.calls)
    got = world.ask(range(30), of_a)
    assert taken(got, range(30)) == [v * 1000 for v in range(30)]
    assert world.ask(range(30), of_a).called == 0


def test_another_generation_of_an_input_is_computed_anew(world: ValueWorld):
    world.write(range(30))
    world.add()
    world.backfill()
    of_a = Plan("of_a", "1", ("a",), hundredfold).udf(world.calls)
    world.ask(range(30), of_a)
    world.alter(HUNDREDFOLD)
    world.backfill()
    got = world.ask(range(30), of_a)
    assert got.computed == 30
    assert taken(got, range(30)) == [v * 10_000 for v in range(30)]


def test_inputs_that_are_not_computed_yet_are_not_taken_for_nulls(world: ValueWorld):
    world.write(range(30))
    world.add()
    world.backfill()
    world.write(range(30, 35))
    of_a = Plan("of_a", "1", ("a",), hundredfold).udf(world.calls)
    with pytest.raises(DerivationError, match="not computed for 5 of 35 records") as refused:
        world.ask(range(35), of_a)
    assert (refused.value.input, refused.value.rows) == ("a", 5)
    assert world.ask(range(30), of_a).computed == 30


# Rows that fail


def picky(world: ValueWorld) -> fm.Udf:
    return PICKY.udf(world.calls, on_error=fm.Skip(ValueError))


def test_rows_that_fail_are_null_with_an_error_and_are_not_tried_again(world: ValueWorld):
    world.write(range(20))
    got = world.ask(range(20), picky(world))
    assert (got.computed, got.failed) == (17, 3)
    assert taken(got, [6, 7, 8, 14]) == [60, None, 80, None]
    assert got.errors["offset"].to_pylist() == [0, 7, 14]
    assert got.errors["message"].to_pylist() == ["0 is refused", "7 is refused", "14 is refused"]
    again = world.ask(range(10), picky(world))
    assert (again.called, again.reused, again.failed) == (0, 10, 0)
    assert again.errors["offset"].to_pylist() == [0, 7], "only those of rows that were asked for"
    assert again.errors["at"].to_pylist() == got.errors["at"].to_pylist()[:2]


def test_rows_that_failed_are_tried_again_when_asked_to(world: ValueWorld):
    world.write(range(20))
    world.ask(range(20), picky(world))
    tried = world.ask(range(20), picky(world), retry_errors=True)
    assert set(world.calls.offsets()) == {0, 7, 14}
    assert (tried.computed, tried.failed, tried.errors.num_rows) == (0, 3, 3)
    world.calls.mend()
    mended = world.ask(range(10), picky(world), retry_errors=True)
    assert (mended.computed, mended.failed, mended.reused) == (2, 0, 8)
    assert (taken(mended, [7]), mended.errors.num_rows) == ([-7], 0)
    left = world.ask(range(20), picky(world))
    assert (left.called, left.errors["offset"].to_pylist()) == (0, [14])
    world.calls.unmend()
    assert world.ask(range(20), picky(world), retry_errors=True).errors["offset"].to_pylist() == [14]
    assert set(world.calls.offsets()) == {14}, "rows that have a value by now are left alone"


def test_a_row_that_may_not_fail_ends_it_and_what_is_stored_stays(world: ValueWorld):
    world.write(range(100))
    world.calls.raise_at(55)
    with pytest.raises(FunctionFailed) as failed:
        world.ask(range(100), task_size=10, **SMALL)
    assert failed.value.offsets == (55,)
    stored = sum(end - start for _, start, end in world.ranges())
    assert stored >= 40
    world.calls.behave()
    got = world.ask(range(100), **SMALL)
    assert (got.computed, got.reused) == (100 - stored, stored)
    assert taken(got, range(100)) == tens(range(100))


# How others use it


def test_values_lie_beside_the_records_in_a_scan_and_travel_to_tasks(world: ValueWorld):
    world.write(range(250))
    world.dataset.delete([100])
    wanted = [offset for offset, v in world.inputs().items() if v is not None and v % 3 == 0]
    got = pickle.loads(pickle.dumps(world.ask(sorted(wanted))))
    column_snapshot = world.column_snapshot
    scan = Scan(column_snapshot.objects.dataset, column_snapshot.layout, column_snapshot.selection, ("v", "b"), got)
    read = scan.to_table()
    assert read.schema.field("b") == COLUMN
    expected = [(v, v * 10 if v % 3 == 0 else None) for v in range(250) if v != 100]
    assert list(zip(read["v"].to_pylist(), read["b"].to_pylist(), strict=True)) == expected


def test_wide_and_nested_values_come_back_as_they_are(world: ValueWorld):
    world.write(range(40))

    @fm.udf(returns=pa.list_(pa.string()), version="1")
    def words(v: int) -> list[str] | None:
        return None if v % 5 == 0 else ["x" * v, "", None][: v % 4]  # type: ignore[list-item]

    got = world.ask_only(range(40), words, column=pa.field("b", words.type))
    assert got.take(np.arange(40)).to_pylist() == [words(v) for v in range(40)]
    assert (got.computed, got.errors.num_rows) == (40, 0), "a null that was returned is a value"
