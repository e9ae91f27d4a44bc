"""What a view must do, and where other systems have failed: one test for each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from columns.counting import Calls
from columns.worlds import HUNDREDFOLD, TENFOLD
from floodmark.storage.local import LocalStore
from transforms.worlds import in_this_process
from views.view_oracle import Scratch, assert_same, bag, objects_of
from views.view_worlds import CASES, FLIGHTS, HastyAtHome, ViewWorld, make_view_world, open_lake

pytestmark = pytest.mark.spark


@pytest.fixture
def world(tmp_path: Path, session: Any) -> Iterator[ViewWorld]:
    with in_this_process():
        yield make_view_world(tmp_path, session)


@pytest.fixture(scope="module")
def scratch(spark: Any) -> Scratch:
    return Scratch(spark)


def assert_right(world: ViewWorld, scratch: Scratch, name: str, sql: str, *sources: str) -> None:
    """A view shows what its SQL gives from scratch, and has nothing more to do."""
    assert_same(world.rows(name), scratch.rows(world.lake, sql, sources))
    assert world.lake.view(name).refresh().nothing
    assert world.lake[name].verify().problems == ()


# Function calls


def images(ids: range) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(ids, pa.int64())})


def test_function_is_called_for_what_is_new_or_corrected_and_for_nothing_else(tmp_path, session):
    calls = Calls(tmp_path)
    lake = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=session))
    source = lake.create("images", key="id")
    source.write(images(range(50_000)))
    view = lake.view("bright", source=source, select={"id": "id", "b": TENFOLD.udf(calls)}, where="id >= 0")

    def called(report: Any) -> int:
        """How many rows the function was called for, by its own account; the report must say the same."""
        found = len(calls.offsets())
        calls.forget()
        assert report.called == found
        return found

    assert called(view.refresh()) == 50_000
    source.write(images(range(50_000, 50_500)))
    assert called(view.refresh()) == 500
    source.write(pa.table({"id": [7], "v": [70]}))
    report = view.refresh()
    assert called(report) == 1
    assert (report.new, report.changed, report.retracted) == (0, 1, 0)
    source.delete([8, 9])
    report = view.refresh()
    assert called(report) == 0
    assert (report.new, report.changed, report.retracted) == (0, 0, 2)
    source.fold()
    head = view.head
    assert called(view.refresh()) == 0
    assert view.head == head
    assert view.count() == 50_498
    assert view.get([7])["b"].to_pylist() == [700]


def test_another_filter_calls_only_for_rows_that_were_never_computed(world):
    world.source("flights", *[(i, "a", 0, i) for i in range(8)])
    world.declare("called", 0)  # v > 2
    assert world.refresh("called").called == 5
    world.source("flights", (1, "a", 1, 1), (5, "a", 1, 5))
    assert world.refresh("called").called == 1  # the first one does not pass
    world.declare("called", 1)  # h = 1
    world.calls.forget()
    assert world.refresh("called").called == 1
    assert [row[0] for row in world.tuples("called")] == [1, 5]
    world.declare("called", 0)
    assert world.refresh("called").called == 0


def test_function_of_another_version_is_called_for_all_rows_once(world):
    world.source("flights", *[(i, "a", 0, i) for i in range(6)])
    world.declare("called", 0)  # v > 2, times ten
    world.refresh("called")
    world.declare("called", 2)  # times a hundred
    assert world.refresh("called").called == 3
    assert [row[-1] for row in world.tuples("called")] == [300, 400, 500]
    world.declare("called", 0)
    assert world.refresh("called").called == 0
    assert [row[-1] for row in world.tuples("called")] == [30, 40, 50]


# Definitions


def test_changed_definition_is_derived_once_and_only_the_difference_is_written(world, scratch):
    world.source("flights", (1, "a", 0, 3), (2, "b", 0, 5), (3, "c", None, 1), (4, "d", 0, 7))
    world.declare("kept", 0)
    world.refresh("kept")
    world.declare("kept", 1)
    assert [row["id"] for row in world.rows("kept")] == [1, 2, 4]  # as it was until the refresh
    report = world.refresh("kept")
    assert (report.new, report.changed, report.retracted) == (1, 0, 1)
    world.declare("kept", 2)  # with one more column
    assert world.refresh("kept").is_whole
    assert_right(world, scratch, "kept", world.version("kept").sql, "flights")
    world.declare("kept", 0)  # and without it again
    world.refresh("kept")
    assert "hour" not in world.lake["kept"].schema.names
    assert_right(world, scratch, "kept", world.version("kept").sql, "flights")


def test_definition_that_changes_during_a_refresh_is_what_the_view_ends_with(world, scratch, tmp_path):
    world.source("flights", (1, "a", 0, 3), (2, "b", 0, 5), (3, "c", None, 1))
    world.declare("kept", 0)
    world.refresh("kept")
    for left in (25, 35, 45):
        world.declare("kept", 0)
        world.source("flights", (1, "a", 0, left))
        store = MeddlingStore(tmp_path / "lake", HastyAtHome())
        store.meddle, store.left = partial(world.declare, "kept", 1), left
        world.refresh("kept", fm.Lake(store, runtime=world.lake.runtime))
        assert store.left == 0
        world.refresh("kept")
        assert_right(world, scratch, "kept", world.version("kept").sql, "flights")


def test_watermark_of_the_sources_is_that_of_the_view(world):
    world.source("flights", (1, "a", 0, 3))
    world.declare("kept")
    world.refresh("kept")
    world.lake["flights"].advance_watermark("2090-01-01")
    report = world.refresh("kept")
    assert (report.new, report.changed) == (0, 0)
    assert world.lake["kept"].watermark == world.lake["flights"].watermark
    assert world.refresh("kept").nothing


# Filters


def test_row_that_enters_or_leaves_the_filter_comes_and_goes(world, scratch):
    world.source("flights", (1, "a", 0, 1), (2, "a", 0, 5))
    view = world.lake.view("high", sql="select id, v from flights where v > 3")
    view.refresh()
    assert world.tuples("high") == [(2, 5)]
    world.source("flights", (1, "a", 0, 4), (2, "a", 0, 2))
    report = view.refresh()
    assert (report.new, report.changed, report.retracted) == (1, 0, 1)
    assert world.tuples("high") == [(1, 4)]
    world.source("flights", (1, "a", 0, None))  # what is not known does not pass
    view.refresh()
    assert world.tuples("high") == []
    assert_right(world, scratch, "high", "select id, v from flights where v > 3", "flights")


# Groups

SUMS = "select g, count(*) as n, sum(v) as s from flights group by g"


@pytest.fixture
def sums(world: ViewWorld) -> Any:
    world.source("flights", (1, "a", 0, 1), (2, "a", 0, 2), (3, "b", 0, 3), (4, "c", 0, 4))
    view = world.lake.view("sums_of_flights", sql=SUMS)
    view.refresh()
    return view


def test_group_key_that_changes_touches_both_groups_and_no_other(world, sums, scratch):
    world.source("flights", (2, "b", 0, 2))
    report = sums.refresh()
    assert (report.keys, report.new, report.changed, report.retracted) == (2, 0, 2, 0)
    assert world.tuples(sums.name) == [("a", 1, 1), ("b", 2, 5), ("c", 1, 4)]
    assert_right(world, scratch, sums.name, SUMS, "flights")


def test_group_that_loses_its_last_row_disappears(world, sums, scratch):
    world.lake["flights"].delete([3])
    world.source("flights", (4, "a", 0, 4))
    report = sums.refresh()
    assert (report.changed, report.retracted) == (1, 2)
    assert world.tuples(sums.name) == [("a", 3, 7)]
    world.lake["flights"].delete([1, 2, 4])
    sums.refresh()
    assert world.tuples(sums.name) == []
    assert_right(world, scratch, sums.name, SUMS, "flights")


def test_null_is_a_group_like_any_other(world, sums, scratch):
    world.source("flights", (5, None, 0, 5), (6, None, 0, None))
    assert sums.refresh().new == 1
    assert world.tuples(sums.name)[0] == (None, 2, 5)
    world.source("flights", (1, None, 0, 1))
    assert sums.refresh().changed == 2
    assert world.tuples(sums.name)[:2] == [(None, 3, 6), ("a", 1, 2)]
    world.lake["flights"].delete([5, 6])
    world.source("flights", (1, "a", 0, 1))
    report = sums.refresh()
    assert (report.changed, report.retracted) == (1, 1)
    assert_right(world, scratch, sums.name, SUMS, "flights")


# Joins


def test_join_partner_that_arrives_later_changes_and_goes_is_followed(world, scratch):
    sql = "select f.id, f.g, w.t from flights f left join weather w on f.g = w.g"
    world.source("weather", ("z", 9))
    world.source("flights", (1, "a"), (2, "b"), (3, None))
    view = world.lake.view("with_weather", sql=sql)
    view.refresh()
    assert world.tuples(view.name) == [(1, "a", None), (2, "b", None), (3, None, None)]
    world.source("weather", ("a", 10))
    report = view.refresh()
    assert (report.keys, report.changed) == (1, 1)
    assert world.tuples(view.name)[0] == (1, "a", 10)
    world.source("weather", ("a", 20))
    assert view.refresh().changed == 1
    assert world.tuples(view.name)[0] == (1, "a", 20)
    world.lake["weather"].delete(["a"])
    assert view.refresh().changed == 1
    assert world.tuples(view.name)[0] == (1, "a", None)
    assert_right(world, scratch, view.name, sql, "flights", "weather")


def test_row_of_an_inner_join_is_there_while_both_sides_are(world, scratch):
    sql = "select f.id, f.g, n.n, n.y from flights f join notes n on f.g = n.g"
    world.source("flights", (1, "a"), (2, "a"))
    world.source("notes", (7, "b", 1))
    view = world.lake.view("noted", sql=sql)
    view.refresh()
    assert world.tuples(view.name) == []
    world.source("notes", (8, "a", 2), (9, "a", 3))
    assert view.refresh().new == 4
    world.lake["flights"].delete([1])
    assert view.refresh().retracted == 2
    world.source("notes", (9, "b", 3))  # the partner moves to another key
    assert view.refresh().retracted == 1
    assert world.tuples(view.name) == [(2, "a", 8, 2)]
    assert_right(world, scratch, view.name, sql, "flights", "notes")


# Nothing to do


@pytest.mark.parametrize("name", ["kept", "grouped", "left_joined", "called", "totals"])
def test_refresh_with_nothing_to_do_writes_nothing(world, name):
    for source in CASES[name].sources:
        world.source(source, *[(i, "a", 0, i) for i in range(4)] if source == "flights" else [("a", 1)])
    world.declare(name)
    world.refresh(name)
    view = world.lake.view(name)
    before = view.head, objects_of(view)
    for source in CASES[name].sources:
        world.lake[source].fold()
    assert world.refresh(name).nothing
    world.declare(name)
    assert (view.head, objects_of(view)) == before


def test_refresh_with_nothing_to_do_starts_no_java_and_imports_nothing_heavy(world, tmp_path):
    world.source("flights", (1, "a", 0, 5))
    for name in ("kept", "grouped", "starred"):
        world.declare(name)
        world.refresh(name)
    program = f"""
        import subprocess, sys
        import floodmark as fm
        lake = fm.Lake({str(tmp_path / "lake")!r})
        for name in ("kept", "grouped", "starred"):
            assert lake.view(name).refresh().nothing
            assert lake.view(name).plan_refresh().nothing_to_do
        lake.view("grouped", sql={CASES["grouped"].versions[0].sql!r})  # the same once more
        print(*sorted({{"pyspark", "py4j", "pandas", "polars", "duckdb", "sqlalchemy"}} & set(sys.modules)))
    """
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": ""}
    ran = subprocess.run(
        [sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=False, env=environment
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, ""), ran.stderr


# Views as sources


def test_view_on_a_view_follows_it(world, scratch):
    world.source("flights", (1, "a", 0, 2), (2, "a", 0, 3), (3, "b", 0, 4))
    for name in ("base", "sums"):
        world.declare(name)
        world.refresh(name)
    assert world.tuples("sums") == [("a", 10, 2), ("b", 8, 1)]
    world.source("flights", (1, "b", 0, 2), (2, "a", 0, 0))
    assert world.refresh("sums").nothing  # what it is made of has not moved
    world.refresh("base")
    report = world.refresh("sums")
    assert (report.changed, report.retracted) == (1, 1)
    assert world.tuples("sums") == [("b", 12, 2)]
    assert_right(world, scratch, "sums", world.version("sums").sql, "base")


def test_view_on_a_view_without_a_key_of_its_own_has_every_copy_of_a_row(world, scratch):
    world.source("flights", (1, "a", 0, 2), (2, "a", 0, 2), (3, "a", 0, 2))
    for name in ("base_keyless", "of_keyless", "sums_of_keyless"):
        world.declare(name)
        world.refresh(name)
    assert world.tuples("of_keyless") == [(3,)] * 3
    world.lake["flights"].delete([2])
    for name in ("base_keyless", "of_keyless", "sums_of_keyless"):
        world.refresh(name)
        assert_right(world, scratch, name, world.version(name).sql, *CASES[name].sources)
    assert world.tuples("of_keyless") == [(3,)] * 2
    assert world.tuples("sums_of_keyless") == [("a", 4)]


# Computed columns


def test_source_with_a_computed_column_is_read_as_far_as_that_is_computed(world, tmp_path):
    flights = world.source("flights", (1, "a", 0, 1), (2, "b", 0, 2))
    udf = TENFOLD.udf(world.calls)
    flights.add_column("c", udf)
    flights.backfill("c", udf=udf)
    view = world.lake.view("computed", sql="select id, c from flights where c > 0")
    other = world.lake.view("not_computed", sql="select id, v from flights")
    view.refresh()
    assert world.tuples("computed") == [(1, 10), (2, 20)]
    world.source("flights", (3, "a", 0, 3), (1, "a", 0, 4))
    view.refresh()
    other.refresh()
    assert world.tuples("computed") == [(1, 10), (2, 20)]  # neither null nor gone: as of what is computed
    assert world.tuples("not_computed") == [(1, 4), (2, 2), (3, 3)]
    flights.backfill("c", "id = 3", udf=udf)
    view.refresh()
    assert world.tuples("computed") == [(1, 10), (2, 20)]  # half of a write is not shown
    flights.backfill("c", udf=udf)
    report = view.refresh()
    assert (report.new, report.changed) == (1, 1)
    assert world.tuples("computed") == [(1, 40), (2, 20), (3, 30)]
    assert view.refresh().nothing


def test_rows_that_wait_for_a_computed_column_and_go_again_never_show(world):
    flights = world.source("flights", (1, "a", 0, 1))
    udf = TENFOLD.udf(world.calls)
    flights.add_column("c", udf)
    flights.backfill("c", udf=udf)
    view = world.lake.view("computed", sql="select g, sum(c) as s from flights group by g")
    view.refresh()
    world.source("flights", (2, "a", 0, 2))
    view.refresh()
    assert world.tuples("computed") == [("a", 10)]
    flights.delete([2])  # nothing is left to wait for
    view.refresh()
    assert world.tuples("computed") == [("a", 10)]
    assert view.refresh().nothing
    world.source("flights", (3, "a", 0, 3))
    flights.delete([3])
    flights.delete([1])
    world.source("flights", (4, "b", 0, 4))  # this one waits, and those before it do not matter any more
    view.refresh()
    assert world.tuples("computed") == []
    assert view.refresh().waiting == 1


def test_computed_column_with_another_function_is_shown_as_before_until_all_its_values_are_there(world):
    flights = world.source("flights", (1, "a", 0, 1), (2, "b", 0, 2))
    udf, other = TENFOLD.udf(world.calls), HUNDREDFOLD.udf(world.calls)
    flights.add_column("c", udf)
    flights.backfill("c", udf=udf)
    view = world.lake.view("computed", sql="select id, c from flights")
    view.refresh()
    flights.alter_column("c", other)
    world.source("flights", (3, "a", 0, 3))
    view.refresh()
    flights.backfill("c", "id = 1", udf=other)
    view.refresh()
    assert world.tuples("computed") == [(1, 10), (2, 20)]
    flights.backfill("c", udf=other)
    report = view.refresh()
    assert (report.new, report.changed) == (1, 2)
    assert world.tuples("computed") == [(1, 100), (2, 200), (3, 300)]
    assert view.refresh().nothing


# Columns that come later


def test_column_that_a_source_gets_later_shows_where_the_query_asks_for_all(world, scratch):
    flights = world.source("flights", (1, "a", 1, 5), (2, "b", 2, 6))
    for name in ("starred", "kept"):
        world.declare(name)
        world.refresh(name)
    flights.evolve({"extra0": "int64"})
    assert world.refresh("starred").changed == 0
    assert world.lake["starred"].schema.names == [*FLIGHTS.columns, "extra0"]
    udf = TENFOLD.udf(world.calls)
    flights.add_column("c", udf)
    flights.backfill("c", udf=udf)
    assert world.refresh("kept").records == 0
    report = world.refresh("starred")
    assert (report.new, report.changed, report.is_whole) == (0, 2, True)
    assert {row["id"]: (row["c"], row["extra0"]) for row in world.rows("starred")} == {1: (50, None), 2: (60, None)}
    assert_right(world, scratch, "starred", world.version("starred").sql, "flights")
    assert_right(world, scratch, "kept", world.version("kept").sql, "flights")


# The source moves


class MeddlingStore(LocalStore):
    """A local store that does something else once, from its nth operation of any kind on.

    Not while the turn of a head is held: who meddles would wait for it.
    """

    def __init__(self, *args: Any) -> None:
        self.left, self.meddle, self.held = -1, lambda: None, 0
        super().__init__(*args)

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        with super().turn(key):
            self.held += key.endswith("refs/head")
            try:
                yield
            finally:
                self.held -= key.endswith("refs/head")

    def __getattribute__(self, name: str) -> Any:
        operations = {"get", "get_range", "open", "put_if_absent", "put_file", "compare_and_swap", "local_path", "stat"}
        if name in operations and self.left > (1 if self.held else 0):
            self.left -= 1
            if self.left == 0:
                self.meddle()
        return super().__getattribute__(name)


@pytest.mark.parametrize("name", ["kept", "grouped", "left_joined", "called"])
def test_source_that_moves_during_a_refresh_is_seen_as_before_or_as_after(world, scratch, tmp_path, session, name):
    """Half of a write is never seen, and the rest is seen by the next refresh."""
    rows = [(i, "ab"[i % 2], i % 2, i + 3) for i in range(4)]
    world.source("flights", *rows)
    if "weather" in CASES[name].sources:
        world.source("weather", ("a", 1), ("b", 2))
    world.declare(name)
    world.refresh(name)
    sql, sources = world.version(name).sql, CASES[name].sources
    meddled = 0
    for number, left in enumerate([1, 4, 9, 16, 30, 60]):
        world.source("flights", (1, "b", 1, 50 + number))
        before = bag(scratch.rows(world.lake, sql, sources))
        store = MeddlingStore(tmp_path / "lake", HastyAtHome())
        other = ViewWorld(open_lake(tmp_path, session), world.calls)
        store.meddle = partial(other.source, "flights", (2, "a", 0, 70 + number), (3, "c", 1, 70 + number))
        store.left = left
        world.refresh(name, fm.Lake(store, runtime=world.lake.runtime))
        meddled += store.left == 0
        after = scratch.rows(world.lake, sql, sources)
        assert bag(world.rows(name)) in (before, bag(after))
        world.refresh(name)
        assert_same(world.rows(name), after)
        assert world.refresh(name).nothing
        world.source("flights", *rows)
    assert meddled >= 3
