"""UpdateExternalTable: a poll reads what changed, loses nothing at the cursor, and writes nothing twice."""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.errors import BadSource, BadStep, CommitConflict, NothingCame, OutputTaken, SourceFailed, UnknownColumns
from floodmark.sources import ingest
from floodmark.sources.external_table import ExternalTable
from floodmark.sources.update_external_table import UpdateExternalTable
from floodmark.storage.local import LocalStore
from floodmark.transforms.specs import OutputSpec
from profiles import examples
from sources.databases import Shop, at, notes
from transforms.crash_points import crashed_lakes
from transforms.racing import RacedStore

NO_OVERLAP = timedelta(0)


@pytest.fixture
def lake(tmp_path):
    return fm.Lake(LocalStore(tmp_path / "lake", HastyFileSystem()))


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path / "shop.db")


@pytest.fixture
def step(shop):
    return UpdateExternalTable("orders", shop.source, overlap=NO_OVERLAP)


def test_the_first_poll_reads_everything_and_the_next_what_changed(lake, shop, step):
    shop.put((1, "a", at(1)), (2, "b", at(2)))
    assert step.run(lake).new == 2
    shop.put((2, "bb", at(3)), (3, "c", at(4)))
    report = step.run(lake)
    assert (report.new, report.changed, report.keys) == (1, 1, 2)
    assert notes(lake) == {1: "a", 2: "bb", 3: "c"}
    assert lake["orders"].strategy.key == ("id",)


def test_a_poll_without_news_commits_nothing(lake, shop, step):
    shop.put((1, "a", at(1)), (2, "b", None))
    step.run(lake)
    head = lake["orders"].head
    assert step.run(lake).nothing
    assert lake["orders"].head == head


@pytest.mark.parametrize("full", [False, True])
def test_a_table_that_cannot_be_read_changes_nothing(full, lake, shop, step):
    shop.put((1, "a", at(1)), (2, "b", at(2)))
    step.run(lake)
    head = lake["orders"].head
    shop.execute("alter table orders rename to others")
    with pytest.raises(fm.FloodmarkError, match="orders"):
        step.run(lake, full=full)
    assert lake["orders"].head == head
    shop.execute("alter table others rename to orders")
    shop.put((3, "c", at(3)))
    assert step.run(lake).new == 1
    assert notes(lake) == {1: "a", 2: "b", 3: "c"}


def test_rows_that_tie_at_the_cursor_are_not_lost(lake, shop, step):
    shop.put((1, "a", at(5)))
    step.run(lake)
    shop.put((2, "b", at(5)), (1, "changed within the second", at(5)))
    assert step.run(lake).keys == 2
    assert notes(lake) == {1: "changed within the second", 2: "b"}


def test_a_tie_of_times_written_with_and_without_a_fraction_is_not_lost(lake, shop, step):
    shop.put((1, "a", "2024-01-01 00:00:05.000000"))
    step.run(lake)
    shop.put((2, "b", "2024-01-01 00:00:05"))
    step.run(lake)
    assert notes(lake) == {1: "a", 2: "b"}


def test_rows_without_a_cursor_are_always_read(lake, shop, step):
    shop.put((1, "a", at(5)), (2, "b", None))
    step.run(lake)
    shop.put((2, "bb", None), (3, "c", None))
    step.run(lake)
    assert notes(lake) == {1: "a", 2: "bb", 3: "c"}


def test_a_table_whose_cursors_are_all_null_is_read_again_and_again(lake, shop, step):
    shop.put((1, "a", None))
    assert step.run(lake).new == 1
    assert step.run(lake).nothing
    shop.put((1, "b", None))
    assert step.run(lake).changed == 1


def test_a_row_committed_late_with_an_earlier_time_is_read_by_the_overlap(lake, shop):
    usual = UpdateExternalTable("usual", shop.source)
    none = UpdateExternalTable("none", shop.source, overlap=NO_OVERLAP)
    shop.put((1, "a", at(1000)))
    usual.run(lake), none.run(lake)
    shop.put((2, "late", at(600)))
    usual.run(lake), none.run(lake)
    assert notes(lake, "usual") == {1: "a", 2: "late"}  # ten minutes, unless told otherwise
    assert notes(lake, "none") == {1: "a"}
    assert none.run(lake, full=True).new == 1
    assert notes(lake, "none") == {1: "a", 2: "late"}


def test_a_time_in_the_future_does_not_hide_the_rows_before_it(lake, shop, step):
    shop.put((1, "a", at(1)), (2, "a slip of the pen", "2999-01-01 00:00:00"))
    step.run(lake)
    shop.put((3, "b", at(2)))
    assert step.run(lake).new == 1
    assert notes(lake) == {1: "a", 2: "a slip of the pen", 3: "b"}


def test_a_source_whose_clock_went_back_is_mended_by_a_full_run(lake, shop, step):
    shop.put((1, "a", at(5000)))
    step.run(lake)
    shop.delete(1)
    shop.put((2, "b", at(100)))
    assert step.run(lake).nothing
    step.run(lake, full=True)
    assert notes(lake) == {2: "b"}
    shop.put((3, "c", at(200)))  # the cursor went back with the clock
    step.run(lake)
    assert notes(lake) == {2: "b", 3: "c"}


def test_cursors_that_come_back_to_a_value_they_had_lose_nothing(lake, shop, step):
    shop.put((1, "a", at(10)))
    step.run(lake)
    shop.delete(1)
    shop.put((2, "b", at(5)))
    step.run(lake, full=True)
    shop.put((3, "c", at(10)))  # the chain has said "read up to 10" before
    step.run(lake)
    assert notes(lake) == {2: "b", 3: "c"}


def test_deleted_rows_are_seen_by_a_full_run_only(lake, shop, step):
    shop.put((1, "a", at(1)), (2, "b", at(2)))
    step.run(lake)
    shop.delete(1)
    assert step.run(lake).retracted == 0
    assert step.run(lake, full=True).retracted == 1
    assert notes(lake) == {2: "b"}


def test_a_full_run_of_an_empty_table_deletes_nothing_unless_it_may(lake, shop, step):
    shop.put((1, "a", at(9)))
    step.run(lake)
    shop.delete(1)
    with pytest.raises(NothingCame, match="allow_empty=True"):
        step.run(lake, full=True)
    assert notes(lake) == {1: "a"}
    allowed = UpdateExternalTable("orders", shop.source, overlap=NO_OVERLAP, allow_empty=True)
    assert allowed.run(lake, full=True).retracted == 1
    shop.put((2, "b", at(3)))  # nothing is known of where the table begins again
    step.run(lake)
    assert notes(lake) == {2: "b"}


def test_an_empty_table_makes_an_empty_dataset_with_its_columns(lake, shop, step):
    assert step.run(lake).nothing
    assert lake["orders"].schema.names == ["id", "note", "updated_at"]
    shop.put((1, "a", at(1)))
    assert step.run(lake).new == 1


def test_types_stay_when_the_first_rows_are_all_null(lake, shop, step):
    shop.put((1, None, None))
    step.run(lake)
    shop.put((2, "b", at(2)))
    step.run(lake)
    assert lake["orders"].schema.types == [pa.int64(), pa.string(), pa.timestamp("us")]
    assert notes(lake) == {1: None, 2: "b"}


def test_rows_come_in_batches_of_bounded_size(lake, shop, monkeypatch):
    shop.put(*[(i, f"n{i}", at(i)) for i in range(95)])
    sizes = []
    add = ingest.Spool.add
    monkeypatch.setattr(ingest.Spool, "add", lambda self, table: (sizes.append(table.num_rows), add(self, table)))
    UpdateExternalTable("orders", shop.source, batch_rows=10).run(lake)
    assert (max(sizes), sum(sizes)) == (10, 95)
    assert notes(lake) == shop.rows()


def test_chosen_columns_come_with_the_key_and_the_cursor_need_not(lake, shop):
    table = ExternalTable(shop.url, "orders", columns=["note"])
    step = UpdateExternalTable("orders", table, overlap=NO_OVERLAP)
    shop.put((1, "a", at(1)))
    step.run(lake)
    assert lake["orders"].schema.names == ["id", "note"]
    shop.put((2, "b", at(2)))
    assert step.plan(lake).rows == 2
    assert step.run(lake).new == 1


def test_a_view_is_read_by_the_key_that_is_given_and_the_newest_row_of_a_key_counts(lake, shop):
    shop.execute("create view latest as select id % 2 as parity, note, updated_at from orders order by id desc")
    shop.put((1, "old", at(1)), (3, "new", at(3)), (2, "even", at(2)))
    source = ExternalTable(shop.url, "latest")
    with pytest.raises(BadSource, match="has no primary key"):
        UpdateExternalTable("latest", source).run(lake)
    schema = {"parity": "int64", "note": "string", "updated_at": "timestamp[us]"}  # SQLite has no types for expressions
    UpdateExternalTable(OutputSpec("latest", key="parity", schema=schema), source).run(lake)
    table = lake["latest"].to_arrow()
    assert dict(zip(table["parity"].to_pylist(), table["note"].to_pylist(), strict=True)) == {0: "even", 1: "new"}


def test_a_column_that_the_table_gains_is_refused_until_the_output_has_it(lake, shop, step):
    shop.put((1, "a", at(1)))
    step.run(lake)
    shop.execute("alter table orders add column price integer")
    shop.execute("update orders set price = 5")
    with pytest.raises(UnknownColumns, match="price"):
        step.run(lake)
    lake["orders"].evolve({"price": "int64"})
    step.run(lake, full=True)
    assert lake["orders"].to_arrow()["price"].to_pylist() == [5]


def test_a_reset_reads_everything_again_and_keeps_what_is_there(lake, shop, step):
    shop.put((1, "a", at(1)), (2, "b", at(5)))
    step.run(lake)
    shop.put((3, "unseen", at(1)))
    step.reset(lake)
    assert notes(lake) == {1: "a", 2: "b"}
    assert step.plan(lake).start is None
    report = step.run(lake)
    assert (report.keys, report.new) == (3, 1)
    assert step.run(lake).keys == 1


def test_the_cursor_is_found_behind_a_purge_and_other_peoples_commits(lake, shop, step):
    shop.put((1, "a", at(1)))
    step.run(lake)
    shop.put((2, "b", at(2)))
    step.run(lake)
    lake["orders"].purge(before=1)
    lake["orders"].write(pa.table({"id": [9], "note": ["by hand"], "updated_at": pa.nulls(1)}), source="me", state="1")
    assert step.plan(lake).rows == 1
    shop.put((3, "c", at(3)))
    assert step.run(lake).new == 1


def test_another_cursor_column_reads_from_the_start(lake, shop, step):
    shop.put((1, "a", at(1)))
    step.run(lake)
    other = UpdateExternalTable("orders", shop.source, cursor="id")
    assert other.plan(lake).start is None
    other.run(lake)
    assert other.plan(lake).start == 1


def test_the_plan_says_what_would_be_read_and_writes_nothing(lake, shop, step):
    shop.put((1, "a", at(1)), (2, "b", at(2)))
    plan = step.plan(lake)
    assert (plan.rows, plan.cursor, plan.column) == (2, None, "updated_at")
    assert "orders" not in lake
    step.run(lake)
    assert (step.plan(lake).rows, str(step.plan(lake).cursor)) == (1, at(2))
    assert step.status(lake).keys == 2


# Others at the same time, and crashes


@pytest.fixture
def raced():
    """A lake whose store calls a hook before a head moves."""
    return fm.Lake(RacedStore())


def test_a_poll_that_was_overtaken_reads_again(raced, shop, step):
    shop.put((1, "a", at(1)))
    step.run(raced)
    shop.put((1, "older", at(2)))

    def newer() -> None:
        """Between the reading and the commit another poll commits something newer."""
        shop.put((1, "newer", at(3)))
        raced["orders"].write(pa.table({"id": [1], "note": ["newer"], "updated_at": pa.nulls(1)}))

    with raced.store.before_next_move(newer):
        step.run(raced)
    assert notes(raced) == {1: "newer"}
    assert str(step.plan(raced).cursor) == at(3)


def test_a_poll_that_is_overtaken_again_and_again_gives_up(raced, shop, step):
    shop.put((1, "a", at(1)))
    step.run(raced)
    shop.put((2, "b", at(2)))
    years = itertools.count(2090)
    with (
        raced.store.before_every_move(lambda: raced["orders"].advance_watermark(f"{next(years)}-01-01")),
        pytest.raises(CommitConflict, match="lost 5 races"),
    ):
        step.run(raced)
    assert notes(raced) == {1: "a"}


def test_two_polls_at_once_write_every_row_once(lake, shop, step):
    shop.put(*[(i, f"n{i}", at(i)) for i in range(50)])
    reports, errors = [], []

    def poll():
        try:
            reports.append(step.run(lake))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=poll) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sum(report.new for report in reports) == 50
    assert lake["orders"].last_offset == 49
    assert notes(lake) == shop.rows()


@pytest.mark.slow
@pytest.mark.soak
def test_a_poll_that_dies_at_any_change_of_a_file_is_made_good_by_the_next(lake, tmp_path, shop, step):
    shop.put((1, "a", at(1)), (2, "b", at(2)))
    step.run(lake)
    shop.put((2, "bb", at(3)), (3, "c", at(3)))
    for crashed in crashed_lakes(tmp_path / "lake", step.run, 8):
        there = notes(crashed)
        # The rows and how far they go are there together, or neither is.
        assert (there, str(step.plan(crashed).cursor)) in (({1: "a", 2: "b"}, at(2)), (shop.rows(), at(3)))
        step.run(crashed)
        assert notes(crashed) == shop.rows()
        assert step.run(crashed).nothing


# Against a naive reading of the whole table

_CHANGES = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(["put", "late", "null", "delete", "poll", "full"])), max_size=14
)


@pytest.mark.slow
@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.too_slow])
@given(changes=_CHANGES)
def test_whatever_happens_to_the_table_the_dataset_follows(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("history")
    shop = Shop(folder / "shop.db")
    lake = fm.Lake(LocalStore(folder / "lake", HastyFileSystem()))
    step = UpdateExternalTable("orders", shop.source, overlap=timedelta(seconds=30), allow_empty=True)
    kept: dict[int, str] = {}  # what a dataset that never hears of deletions holds
    now = 1000.0
    for number, (id_, what) in enumerate([*changes, (0, "poll")]):
        now += 7
        if what == "put":
            shop.put((id_, f"v{number}", at(now)))
        elif what == "late":
            shop.put((id_, f"v{number}", at(now - 14)))
        elif what == "null":
            shop.put((id_, f"v{number}", None))
        elif what == "delete":
            shop.delete(id_)
        else:
            step.run(lake, full=what == "full")
            kept = shop.rows() if what == "full" else {**kept, **shop.rows()}
            assert notes(lake) == kept
            assert step.run(lake).nothing


# What is refused


def test_a_table_that_is_not_there_is_refused_with_the_nearest(lake, shop):
    with pytest.raises(BadSource, match="did you mean 'orders'"):
        UpdateExternalTable("orders", f"{shop.url}#order").run(lake)
    assert "orders" not in lake


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"cursor": "update_at"}, "did you mean 'updated_at'"),
        ({"key": "ident"}, "has no column 'ident'"),
        ({"cursor": "id", "overlap": timedelta(1)}, "give a number"),
        ({"overlap": 5}, "give a timedelta"),
        ({"cursor": "note", "overlap": 5}, "leave out overlap"),
    ],
)
def test_a_cursor_key_or_overlap_that_cannot_be_is_refused(lake, shop, options, complaint):
    with pytest.raises(BadSource, match=complaint):
        UpdateExternalTable("orders", shop.source, **options).run(lake)


@pytest.mark.parametrize("options", [{"batch_rows": 0}, {"overlap": timedelta(-1)}, {"overlap": -3}])
def test_nonsense_is_refused_when_it_is_declared(shop, options):
    with pytest.raises(BadStep):
        UpdateExternalTable("orders", shop.source, **options)


def test_an_output_that_is_somebody_elses_is_refused(lake, shop):
    lake.create("orders")
    with pytest.raises(OutputTaken):
        UpdateExternalTable("orders", shop.source).run(lake)


def test_two_keys_are_refused(shop):
    with pytest.raises(BadStep, match="give only one"):
        UpdateExternalTable(OutputSpec("orders", key="id"), shop.source, key="note")


def test_values_that_are_not_of_their_columns_type_are_refused_by_column(lake, shop, step):
    shop.put((1, "a", "yesterday"))
    with pytest.raises(SourceFailed, match="orders"):
        step.run(lake)
    shop.execute("create table lax (id integer primary key, n integer, updated_at integer)")
    shop.execute("insert into lax values (1, 'many', 1)")
    with pytest.raises(SourceFailed, match=r"column 'n' of sqlite.* not int64"):
        UpdateExternalTable("lax", f"{shop.url}#lax").run(lake)


def test_a_column_of_operations_is_not_taken_for_one(lake, shop):
    shop.execute("create table odd (id integer primary key, op integer, updated_at integer)")
    with pytest.raises(fm.FloodmarkError, match="op"):
        UpdateExternalTable("odd", f"{shop.url}#odd").run(lake)
