"""Sources with computed columns: a view sees a record once all that it uses of it is computed, and never half of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import floodmark as fm
from columns.counting import Calls
from columns.worlds import HUNDREDFOLD, World
from floodmark.engine.session import Session
from floodmark.views.analysis import Analysis
from floodmark.views.changed_rows import SparkRows, read_all_rows, read_changed_rows, read_rows_at
from floodmark.views.sources import ViewInputSnapshot, take_input_snapshots
from limits import set_limit
from views.sourcing import analysis, as_rows, small_rows, touched_in, use

INT = pa.int64()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Five rows with a computed column `a` that is there, ten times `v`."""
    lake = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(fold_at=None))
    lake.create("d", key=["id"], schema={"id": "int64", "v": "int64"})
    made = World(lake, Calls(tmp_path))
    made.write([0, 1, 2, 3, 4])
    made.add()
    made.backfill_only()
    return made


def by_v(world: World, *computed: str) -> Analysis:
    return analysis("groups", {"v": INT}, [use(world.dataset, {"v": "v"}, ["id", *computed], computed)])


def by_id(world: World) -> Analysis:
    return analysis("rows", {"id": INT}, [use(world.dataset, {"id": "id"}, ["id", "a"], ["a"])])


def take_input(world: World, known: Analysis) -> ViewInputSnapshot:
    [source] = take_input_snapshots(world.lake, "v", known)
    return source


def test_records_are_there_once_they_are_computed(world: World):
    known = by_v(world, "a")
    before = world.dataset.head
    world.write([5, 6, 7])
    source = take_input(world, known)
    assert (source.last_offset, source.waiting, source.block) == (4, 3, before)
    assert as_rows(small_rows(world.lake, known, {})[0]) == [(n, 10 * n) for n in range(5)]
    world.backfill_only()
    source = take_input(world, known)
    assert (source.last_offset, source.waiting, source.block) == (7, 0, world.dataset.head)
    assert as_rows(small_rows(world.lake, known, {"d": 4})[0]) == [(n, 10 * n) for n in (5, 6, 7)]


def test_half_of_a_backfill_is_not_seen(world: World):
    world.write([5, 6, 7])
    world.backfill_only(where="id < 7")
    assert take_input(world, by_v(world, "a")).last_offset == 4


def test_rows_that_were_corrected_meanwhile_are_read_as_they_were(world: World):
    world.write([1, 5], [100, 5])
    world.dataset.delete([2])
    by_key = analysis("join", {"id": INT}, by_id(world).sources)
    for known in (by_v(world, "a"), by_id(world), by_key):
        [rows] = small_rows(world.lake, known, {})
        assert as_rows(rows) == [(n, 10 * n) for n in range(5)]
    world.backfill_only()
    [rows] = small_rows(world.lake, by_id(world), {"d": 4})
    assert as_rows(rows) == [(1, 1000), (5, 50)]


def test_computed_columns_that_are_not_used_hold_nothing_up(world: World):
    world.write([5])
    source = take_input(world, by_v(world))
    assert (source.last_offset, source.waiting, source.generations) == (5, 0, {})


def test_values_stay_the_same_ones_when_more_are_added(world: World):
    before = take_input(world, by_v(world, "a")).generations
    world.write([5])
    world.backfill_only()
    assert take_input(world, by_v(world, "a")).generations == before


def test_another_function_hides_everything_until_it_is_computed_and_then_has_other_values(world: World):
    before = take_input(world, by_v(world, "a")).generations
    world.alter(HUNDREDFOLD)
    source = take_input(world, by_v(world, "a"))
    assert (source.last_offset, source.waiting, source.block) == (-1, 5, None)
    world.backfill_only()
    source = take_input(world, by_v(world, "a"))
    assert source.last_offset == 4
    assert source.generations.keys() == before.keys()
    assert source.generations != before


def test_values_are_those_of_the_snapshot(world: World):
    known = by_v(world, "a")
    [source], touched = touched_in(world.lake, known, {})
    world.alter(HUNDREDFOLD)
    world.backfill_only()
    rows = read_changed_rows(source, known, touched, Session())
    assert not isinstance(rows, SparkRows)
    assert as_rows(rows.table) == [(n, 10 * n) for n in range(5)]


def test_rows_at_offsets_have_what_was_computed_of_them(world: World):
    world.write([1, 5], [100, 5])
    known = by_id(world)
    assert as_rows(read_rows_at(take_input(world, known), known, np.array([1, 3]))) == [(1, 10), (3, 30)]


@pytest.mark.spark
def test_spark_reads_as_far_as_everything_is_computed(world: World, session: Session, monkeypatch: pytest.MonkeyPatch):
    set_limit(monkeypatch, "rows.few_rows", 0)
    world.write([1, 5], [100, 5])
    known = by_v(world, "a")
    rows = read_all_rows(take_input(world, known), known, session)
    assert isinstance(rows, SparkRows)
    assert sorted(tuple(row) for row in rows.frame.collect()) == [(n, 10 * n) for n in range(5)]
