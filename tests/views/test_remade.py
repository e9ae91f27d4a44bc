"""A view whose key or types change is made anew under its name: readers have the old rows until all new ones are there.

DuckDB answers the queries here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.cli.datasets import summarise
from floodmark.errors import FloodmarkError, NotAView, OutputTaken, SourceGone, UnknownDataset, ViewChanged
from floodmark.ledger import names
from floodmark.rows.rows import Rows
from floodmark.views import attempt, refresh, replacement
from transforms.worlds import in_this_process
from views.remade_worlds import (
    COUNTS,
    FINER,
    MOST,
    ON_VIEW,
    TEXTS,
    datasets,
    in_order,
    make_lake,
    open_lake,
    right,
    shown,
    without_spark,
    write,
)


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with without_spark():
        yield


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    return make_lake(tmp_path / "lake")


@pytest.mark.parametrize(
    ("query", "why"), [(FINER, "its key changed"), (TEXTS, "column 'n' has another type")], ids=["key", "type"]
)
def test_another_key_or_type_is_derived_once_and_takes_the_name(lake, query, why):
    before = shown(lake)
    view = lake.view("daily", sql=query)
    assert shown(lake) == before == in_order(view.to_arrow())
    assert (view.definition.sql, view.plan_refresh().stale) == (query, f"{why}, so it is rebuilt as a new dataset")
    report = view.refresh()
    assert (report.stale, report.kept_as) == (f"{why}, so it is rebuilt as a new dataset", "daily-old-1")
    assert shown(lake) == right(lake, query)
    assert shown(lake, "daily-old-1") == before
    assert view.refresh().nothing
    assert view.verify().ok
    assert lake["daily-old-1"].verify().ok


def test_new_view_is_refreshed_by_what_changed_from_then_on(lake):
    lake.view("daily", sql=FINER).refresh()
    write(lake, [(2, "a", 7), (9, "c", 1)])
    report = lake.view("daily").refresh()
    assert not report.is_whole
    assert report.kept_as is None
    assert shown(lake) == right(lake, FINER)


def test_view_that_is_open_follows_its_name_and_the_old_rows_are_no_view(lake):
    view, rows = lake.view("daily"), lake["daily"]
    before = shown(lake)
    lake.view("daily", sql=TEXTS).refresh()
    assert view.schema.field("n").type == pa.string()
    assert view.id == lake["daily"].id != rows.id
    assert view.changes_arrow().num_rows == len(right(lake, TEXTS))
    assert rows.to_arrow().num_rows == len(before)
    assert [one.name for one in lake.views()] == ["daily"]
    with pytest.raises(NotAView, match="rows that view 'daily' had") as caught:
        lake.view("daily-old-1")
    assert "drop" in caught.value.hint


@pytest.mark.slow
def test_view_that_is_made_anew_under_a_question_answers_for_the_one_or_the_other(lake, monkeypatch):
    """The key index of the new rows must not say which of the old ones are current."""
    write(lake, [(2, "b", 2), (5, "c", 1)])
    lake.view("daily").refresh()
    lake.view("daily", sql=FINER)
    view, real = lake.view("daily"), Rows.dead

    def dead(self: Rows, *given: object) -> object:
        monkeypatch.setattr(Rows, "dead", real)
        open_lake(Path(lake.store.url.removeprefix("file://"))).view("daily").refresh()
        return real(self, *given)

    monkeypatch.setattr(Rows, "dead", dead)
    assert in_order(view.to_arrow()) in (right(lake, COUNTS), right(lake, FINER))
    assert lake["daily-old-1"].count() == len(right(lake, COUNTS))


@pytest.mark.slow
def test_view_that_is_open_follows_even_when_the_old_rows_are_dropped(lake, tmp_path):
    read, unread, other = lake.view("daily"), lake.view("daily"), open_lake(tmp_path / "lake")
    read.to_arrow()
    other.view("daily", sql=TEXTS).refresh()
    other.view("daily", sql=FINER).refresh()
    other.drop("daily-old-1")  # the one that the views know
    other.rename("daily", "days")
    for view in (read, unread):
        assert in_order(view.to_arrow()) == right(lake, FINER)
        assert view.definition.sql == FINER
        assert view.refresh().nothing
    other.drop("days")
    with pytest.raises(UnknownDataset, match="no longer exists"):
        read.to_arrow()
    with pytest.raises(UnknownDataset, match="no longer exists"):  # not the old rows of a dropped view
        unread.refresh()


@pytest.mark.slow
def test_old_rows_can_be_dropped_and_the_next_ones_take_the_next_free_name(lake):
    lake.view("daily", sql=TEXTS).refresh()
    assert lake.view("daily", sql=FINER).refresh().kept_as == "daily-old-2"
    lake.drop("daily-old-1")
    assert lake.view("daily", sql=COUNTS).refresh().kept_as == "daily-old-1"
    assert shown(lake) == right(lake, COUNTS)
    assert [one.name for one in lake] == ["daily", "daily-old-1", "daily-old-2", "flights"]


def test_name_that_is_taken_or_too_long_is_not_used_for_old_rows(lake):
    lake.create("daily-old-1")
    assert lake.view("daily", sql=TEXTS).refresh().kept_as == "daily-old-2"
    long = "d" * 100
    lake.view(long, sql=COUNTS).refresh()
    assert lake.view(long, sql=TEXTS).refresh().kept_as == f"{'d' * 94}-old-1"


def test_old_definition_again_before_the_refresh_leaves_nothing_of_the_new_one(lake):
    before, head = datasets(lake), lake["daily"].id
    lake.view("daily", sql=FINER)
    assert len(datasets(lake)) == len(before) + 1
    view = lake.view("daily", sql=COUNTS)
    assert view.definition.sql == COUNTS
    assert datasets(lake) == before
    assert view.refresh().nothing
    assert lake["daily"].id == head


def test_definition_that_the_old_rows_allow_is_committed_to_them_after_all(lake):
    before = datasets(lake)
    lake.view("daily", sql=FINER)
    report = lake.view("daily", sql=MOST).refresh()
    assert (report.stale, report.kept_as) == ("its definition changed", None)
    assert datasets(lake) == before
    assert shown(lake) == right(lake, MOST)


def test_yet_another_definition_takes_the_place_of_the_one_that_was_to_be(lake):
    lake.view("daily", sql=FINER)
    made = datasets(lake)
    lake.view("daily", sql=TEXTS)
    assert datasets(lake) == made
    assert lake.view("daily").refresh().stale.startswith("column 'n'")
    assert shown(lake) == right(lake, TEXTS)


@pytest.mark.slow
def test_successor_that_was_filled_and_not_installed_is_replaced_or_dropped(lake, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    count = len(datasets(lake))
    for query in (TEXTS, COUNTS):
        lake.view("daily", sql=FINER)
        with monkeypatch.context() as patched:
            patched.setattr(refresh, "install", stop)
            with pytest.raises(KeyboardInterrupt):
                lake.view("daily").refresh()
        assert shown(lake) == right(lake, COUNTS)
        lake.view("daily", sql=query)
        assert len(datasets(lake)) == count + (query == TEXTS)
    assert lake.view("daily").refresh().nothing


def test_filled_successor_takes_its_place_without_being_derived_again(lake, monkeypatch):
    lake.view("daily", sql=FINER)
    with monkeypatch.context() as patched:
        patched.setattr(refresh, "install", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lake.view("daily").refresh()
    assert shown(lake) == right(lake, COUNTS)
    plan = lake.view("daily").plan_refresh()
    assert (plan.nothing_to_do, plan.moved) == (False, "it was rebuilt as a new dataset, which is not installed yet")
    monkeypatch.setattr(attempt.RefreshAttempt, "run", lambda _: 1 / 0)
    report = lake.view("daily").refresh()
    assert (report.nothing, report.kept_as, report.new) == (False, "daily-old-1", 0)
    assert shown(lake) == right(lake, FINER)


def test_definition_that_is_declared_while_the_successor_is_filled_wins(lake, monkeypatch):
    real = attempt.RefreshAttempt.run

    def run(self: attempt.RefreshAttempt) -> object:
        monkeypatch.setattr(attempt.RefreshAttempt, "run", real)
        report = real(self)
        lake.view("daily", sql=COUNTS)
        return report

    monkeypatch.setattr(attempt.RefreshAttempt, "run", run)
    view = lake.view("daily", sql=FINER)
    report = view.refresh()
    assert report.kept_as is None
    assert view.definition.sql == COUNTS
    assert shown(lake) == right(lake, COUNTS)
    assert [one.name for one in lake] == ["daily", "flights"]


def test_two_refreshes_at_once_make_one_view(lake, monkeypatch):
    """The second comes in between the first one's work and its taking the place."""
    real = refresh._install_replacement

    def installed(*given: object) -> object:
        monkeypatch.setattr(refresh, "_install_replacement", real)
        found = replacement.find_view(lake, "daily")
        assert found.replaces is not None
        replacement.install(lake, "daily", found.replaces, found.refreshed.state.dataset_id)
        return real(*given)

    monkeypatch.setattr(refresh, "_install_replacement", installed)
    assert lake.view("daily", sql=FINER).refresh().kept_as == "daily-old-1"
    assert shown(lake) == right(lake, FINER)
    assert [one.name for one in lake] == ["daily", "daily-old-1", "flights"]


@pytest.mark.slow
def test_view_with_a_computed_column_is_refused(lake, plus_one):
    lake["daily"].add_column("m", plus_one, ["n"])
    head = lake["daily"].head
    with pytest.raises(ViewChanged, match="computed column 'm' would be lost"):
        lake.view("daily", sql=TEXTS)
    assert lake["daily"].head == head
    lake.view("daily", sql=MOST).refresh()
    lake["daily"].drop_column("m")
    lake.view("daily", sql=TEXTS).refresh()
    assert shown(lake) == right(lake, TEXTS)


@pytest.fixture
def plus_one() -> fm.Udf:
    def plus(n: int) -> int:
        return n + 1

    return fm.udf(returns="int64", version="1")(plus)


@pytest.mark.slow
@pytest.mark.parametrize("query", [FINER, TEXTS], ids=["key", "type"])
def test_view_on_a_view_that_is_made_anew_follows_and_is_made_anew_too(lake, query):
    lake.view("copy", sql=ON_VIEW).refresh()
    lake.view("daily", sql=query)
    assert lake.view("copy").refresh().nothing
    lake.view("daily").refresh()
    assert lake.view("copy").inputs == ("daily",)
    assert not lake.view("copy").plan_refresh().nothing_to_do
    assert lake.view("copy").refresh().kept_as == "copy-old-1"
    assert shown(lake, "copy") == right(lake, query)
    write(lake, [(2, "a", 7), (9, "c", 1)])
    lake.view("daily").refresh()
    assert not lake.view("copy").refresh().is_whole
    assert shown(lake, "copy") == right(lake, query)


@pytest.mark.slow
def test_view_on_a_view_finds_it_even_when_the_old_rows_are_dropped(lake):
    lake.view("copy", sql=ON_VIEW).refresh()
    lake.view("daily", sql=FINER).refresh()
    lake.view("daily", sql=TEXTS).refresh()
    lake.drop("daily-old-1")
    lake.drop("daily-old-2")
    lake.view("copy").refresh()
    assert shown(lake, "copy") == right(lake, TEXTS)
    lake._drop_alone("daily")
    with pytest.raises(SourceGone):
        lake.view("copy").refresh()


@pytest.mark.slow
def test_view_on_a_view_finds_it_under_another_name_when_the_old_rows_are_dropped(lake):
    lake.view("copy", sql=ON_VIEW).refresh()
    lake.view("daily", sql=FINER).refresh()
    lake.view("daily", sql=TEXTS).refresh()
    lake.drop("daily-old-1")
    lake.rename("daily", "days")
    assert lake.view("copy").inputs == ("days",)
    lake.view("copy").refresh()
    assert shown(lake, "copy") == right(lake, TEXTS)


@pytest.mark.slow
def test_old_rows_do_not_stand_in_for_a_source_that_was_made_anew_and_dropped(lake):
    lake.view("copy", sql=ON_VIEW).refresh()
    lake.view("daily", sql=FINER).refresh()
    lake.view("daily", sql=TEXTS).refresh()
    lake.drop("daily-old-1")
    lake._drop_alone("daily")
    with pytest.raises(SourceGone):
        lake.view("copy").refresh()


def test_view_is_renamed_or_dropped_together_with_what_is_to_take_its_place(lake):
    lake.view("daily", sql=FINER)
    lake.rename("daily", "weekly")
    assert lake.view("weekly").refresh().kept_as == "weekly-old-1"
    assert shown(lake, "weekly") == right(lake, FINER)
    lake.view("weekly", sql=TEXTS)
    lake.drop("weekly")
    lake.drop("weekly-old-1")
    assert len(datasets(lake)) == 1


@pytest.mark.slow
def test_renamed_view_is_followed_by_views_on_it(lake):
    lake.view("copy", sql=ON_VIEW).refresh()
    lake.rename("daily", "weekly")
    lake.view("weekly", sql=FINER).refresh()
    assert lake.view("copy").inputs == ("weekly",)
    lake.view("copy").refresh()
    assert shown(lake, "copy") == right(lake, FINER)


def test_another_process_reads_old_rows_or_new_ones_and_can_go_on(lake, tmp_path):
    lake.view("daily", sql=FINER)
    other = open_lake(tmp_path / "lake")
    assert other.view("daily").definition.sql == FINER
    assert shown(other) == right(lake, COUNTS)
    assert other.view("daily").refresh().kept_as == "daily-old-1"
    assert shown(lake) == right(lake, FINER)


def test_old_rows_can_be_a_source_of_their_own_view(lake):
    lake.view("daily", sql=FINER).refresh()
    lake.rename("daily", "fine")
    lake.rename("daily-old-1", "daily")
    before = shown(lake)
    lake.view("copy", sql=ON_VIEW).refresh()
    assert shown(lake, "copy") == before
    assert lake.view("copy").refresh().nothing


@pytest.mark.parametrize("becomes", ["fine", None], ids=["renamed", "dropped"])
def test_old_rows_under_the_name_of_the_view_are_no_view(lake, becomes):
    lake.view("daily", sql=FINER).refresh()
    if becomes is None:
        lake.drop("daily")
    else:
        lake.rename("daily", becomes)
    lake.rename("daily-old-1", "daily")
    assert [view.name for view in lake.views()] == ([] if becomes is None else [becomes])
    with pytest.raises(NotAView, match="rows that view 'daily' had") as caught:
        lake.view("daily")
    assert ("the view is lake.view('fine')" in caught.value.hint) == (becomes == "fine")
    assert "the view is lake.view('daily')" not in caught.value.hint


def test_view_is_listed_once_while_its_names_are_swapped(lake, monkeypatch):
    lake.view("daily", sql=FINER)
    with monkeypatch.context() as patched:
        patched.setattr(names, "swap", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lake.view("daily").refresh()
    assert "daily-old-1" in lake
    assert [view.name for view in lake.views()] == ["daily"]


@pytest.mark.slow
def test_offset_from_before_is_refused_where_it_would_give_nothing(lake):
    view = lake.view("daily")
    for value in range(3):
        write(lake, [(1, "a", value), (7 + value, "a", 1)])
        view.refresh()
    before = view.last_offset
    assert view.changes_arrow(since=before).num_rows == 0
    lake.view("daily", sql=FINER).refresh()
    with pytest.raises(ViewChanged, match=f"no offset {before} yet: it was replaced"):
        view.changes_arrow(since=before)
    assert view.changes_arrow(since=view.last_offset).num_rows == 0


def test_old_rows_cannot_become_a_view_again(lake):
    lake.view("daily", sql=FINER).refresh()
    with pytest.raises(FloodmarkError, match="cannot become a view: it is the rows that view 'daily' had"):
        lake.view("daily-old-1", sql=COUNTS)


def test_old_rows_are_listed_as_derived_and_no_step_writes_to_them(lake):
    lake.view("daily", sql=FINER).refresh()
    assert {one.name: one.view for one in summarise(lake)[0]} == {
        "daily": True,
        "daily-old-1": False,
        "flights": False,
    }
    step = fm.BatchTransform(lambda rows: rows, ["flights"], ["daily-old-1"], ["g"], name="sums")
    with pytest.raises(OutputTaken):
        step.run(lake)


@pytest.mark.slow
def test_step_on_a_view_that_is_made_anew_processes_everything_once(lake):
    def copied(rows: pa.Table) -> pa.Table:
        return rows.select(["g", "n"])

    step = fm.BatchTransform(copied, ["daily"], ["sums"], ["g"], name="sums")
    with in_this_process():
        step.run(lake)
        write(lake, [(1, "c", 1)])
        lake.view("daily", sql=FINER).refresh()
        lake.view("daily", sql=MOST).refresh()
        step.run(lake)
    assert shown(lake, "sums") == right(lake, MOST)


@pytest.mark.slow
def test_view_that_cannot_be_filled_yet_shows_its_old_rows(lake):
    """It is to be made from a view that nobody has refreshed."""
    lake.view("copy", sql=COUNTS).refresh()
    lake.drop("daily")
    lake.view("daily", sql=FINER)
    lake.view("copy", sql=ON_VIEW)
    assert lake.view("copy").refresh().nothing
    assert shown(lake, "copy") == right(lake, COUNTS)
    lake.view("daily").refresh()
    assert lake.view("copy").refresh().kept_as == "copy-old-1"
    assert shown(lake, "copy") == right(lake, FINER)
