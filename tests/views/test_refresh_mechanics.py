"""What a refresh asks about, commits and says; the query is answered by a few lines of Arrow instead of Spark."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

import floodmark as fm
from floodmark.errors import FloodmarkError, ViewError
from floodmark.rows.key_index import NEWEST
from floodmark.storage import sorted_runs
from floodmark.views import attempt, changed_rows
from floodmark.views.commit import ViewPublisher
from floodmark.views.snapshot import read_note
from limits import set_limit
from views.refresh_worlds import (
    COLUMNS,
    ORDERS,
    Answers,
    NoSession,
    delete,
    lake_without_spark,
    orders,
    shown,
    view_of,
    write,
)
from waiting import PATIENCE


def test_only_rows_with_new_records_are_asked_about(tmp_path: Path) -> None:
    lake, answers = lake_without_spark(tmp_path), Answers()
    source = orders(lake)
    write(source, {n: n for n in range(100)})
    view = view_of(lake, source)
    with answers.instead_of_spark():
        view.refresh()
        write(source, {20: 21, 5: 50, 30: 1, 200: 200})
        done = view.refresh()
    assert answers.asked == [list(range(100)), [5, 20, 30, 200]]
    assert (done.keys, done.new, done.changed, done.retracted) == (4, 2, 1, 1)
    assert not done.is_whole
    assert shown(view) == {n: 2 * n for n in range(11, 100) if n not in (20, 30)} | {20: 42, 5: 100, 200: 400}


def test_rows_that_were_deleted_go_without_asking_anybody(tmp_path: Path) -> None:
    lake, answers = lake_without_spark(tmp_path), Answers()
    source = orders(lake)
    write(source, {n: n for n in range(15)})
    view = view_of(lake, source)
    with answers.instead_of_spark():
        view.refresh()
    delete(source, [12, 3])
    done = view.refresh()
    assert (done.keys, done.retracted, done.records) == (2, 1, 2)
    assert shown(view) == {11: 22, 13: 26, 14: 28}


def test_note_of_a_refresh_says_when_it_began_and_how_long_it_took(tmp_path: Path) -> None:
    times = count(1_700_000_000 * 10**9, 10**9)
    lake = fm.Lake(tmp_path, runtime=fm.Runtime(session=NoSession(), clock=lambda: next(times)))
    source = orders(lake)
    write(source, {20: 20})
    view = view_of(lake, source)
    first = next(times) + 10**9
    with Answers().instead_of_spark():
        view.refresh()
    note = read_note(view.name, view.snapshot())
    assert note is not None
    assert note.process_ts == first // 10**6
    assert note.seconds > 0


def test_nothing_new_is_no_block_and_no_file(tmp_path: Path) -> None:
    lake = lake_without_spark(tmp_path)
    source = orders(lake)
    write(source, {20: 20})
    view = view_of(lake, source)
    with Answers().instead_of_spark():
        view.refresh()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert view.refresh().nothing
    assert view.plan_refresh().nothing_to_do
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


def test_view_of_an_empty_source_has_its_columns_and_no_rows(tmp_path: Path) -> None:
    lake = lake_without_spark(tmp_path)
    view = view_of(lake, orders(lake))
    with pytest.raises(ViewError, match="never refreshed"):
        view.to_arrow()
    assert view.refresh().new == 0
    assert view.to_arrow().schema.equals(COLUMNS)
    assert view.refresh().nothing


def test_plan_says_what_a_refresh_then_does(tmp_path: Path) -> None:
    lake = lake_without_spark(tmp_path)
    source = orders(lake)
    write(source, {20: 20})
    view = view_of(lake, source)
    plan = view.plan_refresh()
    assert (plan.is_whole, plan.stale, plan.keys, plan.behind) == (True, "it was never refreshed", None, 1)
    with Answers().instead_of_spark():
        view.refresh()
        write(source, {20: 21, 30: 30})
        plan = view.plan_refresh()
        done = view.refresh()
    assert (plan.is_whole, plan.records, plan.keys, plan.moved) == (False, 3, 2, "'orders' has new records")
    assert sorted(row["id"] for row in plan.sample) == [20, 30]  # type: ignore[type-var]
    assert (done.records, done.keys, done.positions) == (3, 2, {"orders": 3})
    [behind] = plan.sources
    assert (behind.name, behind.position, behind.head, behind.behind) == ("orders", 0, 3, 3)


def test_when_most_rows_are_new_everything_is_derived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(monkeypatch, "attempt.few_records", 3)
    lake, answers = lake_without_spark(tmp_path), Answers()
    source = orders(lake)
    write(source, {n: n for n in range(10)})
    view = view_of(lake, source)
    with answers.instead_of_spark():
        view.refresh()
        write(source, {11: 11, 12: 12, 13: 13})
        assert view.refresh().stale is None
        write(source, {n: n for n in range(20, 60)})
        done = view.refresh()
    assert done.stale == "most rows of 'orders' are new"
    assert answers.asked[1:] == [[11, 12, 13], [*range(10), 11, 12, 13, *range(20, 60)]]
    assert done.new == 40
    assert shown(view) == {n: 2 * n for n in [11, 12, 13, *range(20, 60)]}


def test_purge_of_history_changes_nothing_and_asks_nothing(tmp_path: Path) -> None:
    lake, answers = lake_without_spark(tmp_path), Answers()
    source = orders(lake)
    write(source, {n: n for n in range(11, 16)})
    write(source, {12: 22, 13: 23})
    view = view_of(lake, source)
    with answers.instead_of_spark():
        view.refresh()
        before = view.last_offset
        assert source.purge(before=100).carried == 5
        plan = view.plan_refresh()
        assert (plan.stale, plan.behind) == (None, 0)
        done = view.refresh()
        assert (done.is_whole, done.keys, done.records, view.last_offset) == (False, 0, 0, before)
        assert view.refresh().nothing
        write(source, {12: 32})
        view.refresh()
    assert answers.asked == [[11, 12, 13, 14, 15], [12]]
    assert shown(view) == {11: 22, 12: 64, 13: 46, 14: 28, 15: 30}
    assert view.verify().ok


def test_view_that_missed_a_purge_is_recomputed_and_a_new_one_reads_carried_rows(tmp_path: Path) -> None:
    lake, answers = lake_without_spark(tmp_path), Answers()
    source = orders(lake)
    write(source, {11: 11, 12: 12})
    view = view_of(lake, source)
    with answers.instead_of_spark():
        view.refresh()
        delete(source, [11])
        source.purge(before=100)
        assert view.refresh().stale == "records of 'orders' were purged"
        other = view_of(lake, source, "other")
        other.refresh()
    assert shown(view) == shown(other) == {12: 24}


def test_purged_records_leave_the_view(tmp_path: Path) -> None:
    lake, answers = lake_without_spark(tmp_path), Answers()
    source = lake.create("orders", schema=ORDERS)
    write(source, {11: 11})
    write(source, {12: 12})
    view = view_of(lake, source)
    with answers.instead_of_spark():
        view.refresh()
        source.purge(before=1)
        assert view.plan_refresh().stale == "records of 'orders' were purged"
        done = view.refresh()
        assert view.refresh().nothing
    assert (done.stale, done.retracted) == ("records of 'orders' were purged", 1)
    assert shown(view) == {12: 24}


def test_source_that_was_renamed_is_still_the_source(tmp_path: Path) -> None:
    lake = lake_without_spark(tmp_path)
    source = orders(lake)
    view = view_of(lake, source)
    view.refresh()
    lake.rename("orders", "sales")
    write(lake["sales"], {11: 11})
    lake.create("orders", key="id", schema={"id": "int64", "amount": "int64"})
    with Answers().instead_of_spark():
        assert view.refresh().positions == {"sales": 0}
    assert shown(view) == {11: 22}


def test_somebody_who_commits_meanwhile_makes_it_start_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, answers = lake_without_spark(tmp_path), Answers()
    source = orders(lake)
    write(source, {11: 11})
    view = view_of(lake, source)
    publish, raced = ViewPublisher.publish_some, []

    def publish_late(self: ViewPublisher, *args: object) -> object:
        if not raced:
            raced.append(True)
            write(source, {13: 13})
            again = ViewPublisher(self.view_snapshot, self.runtime, self.folder, self.progress, {})
            publish(again, *args)  # type: ignore[arg-type]
        return publish(self, *args)  # type: ignore[arg-type]

    with answers.instead_of_spark():
        view.refresh()
        write(source, {12: 12})
        monkeypatch.setattr(ViewPublisher, "publish_some", publish_late)
        done = view.refresh()
    assert done.positions == {"orders": 2}
    assert answers.asked == [[11], [12], [13]]
    assert shown(view) == {11: 22, 12: 24, 13: 26}


def test_source_that_moves_while_it_is_read_is_read_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, answers = lake_without_spark(tmp_path), Answers()
    source = orders(lake)
    write(source, {11: 11})
    view = view_of(lake, source)
    rows_of = changed_rows.read_changed_rows

    def moving(*args: object) -> object:
        write(source, {11: 99, 50: 50})
        return rows_of(*args)  # type: ignore[arg-type]

    with answers.instead_of_spark():
        view.refresh()
        write(source, {12: 12})
        with monkeypatch.context() as patched:
            patched.setattr(attempt, "read_changed_rows", moving)
            done = view.refresh()
        assert done.positions == {"orders": 1}
        assert shown(view) == {11: 22, 12: 24}
        view.refresh()
    assert shown(view) == {11: 198, 12: 24, 50: 100}


def test_failure_on_the_way_leaves_the_view_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, answers = lake_without_spark(tmp_path), Answers()
    source = orders(lake)
    write(source, {11: 11})
    view = view_of(lake, source)

    def broken(*_: object) -> object:
        raise FloodmarkError("broken", hint="")

    with answers.instead_of_spark():
        view.refresh()
        head = view.snapshot().head
        write(source, {12: 12})
        with monkeypatch.context() as patched:
            patched.setattr(attempt, "read_changed_rows", broken)
            with pytest.raises(FloodmarkError, match="broken"):
                view.refresh()
        assert view.snapshot().head == head
        assert shown(view) == {11: 22}
        view.refresh()
    assert shown(view) == {11: 22, 12: 24}
    assert not any((tmp_path / "staging").glob("write-*"))


def test_chain_says_up_to_which_block_of_the_source_it_was_read(tmp_path: Path) -> None:
    lake = lake_without_spark(tmp_path)
    source = orders(lake)
    write(source, {11: 11})
    view = view_of(lake, source)
    with Answers().instead_of_spark():
        view.refresh()
        write(source, {12: 12})
        view.refresh()
    [position] = view.snapshot().state.inputs
    snapshot = source.snapshot()
    assert (position.dataset_id, position.block_hash, position.offset) == (source.id, snapshot.head, 1)
    assert view.verify().ok


NOTHING_TO_DO = """
import sys
import floodmark
view = floodmark.Lake(sys.argv[1]).view("doubled")
assert view.plan_refresh().nothing_to_do
assert view.refresh().nothing
heavy = {"pyspark", "py4j", "pandas", "duckdb", "polars"} & {name.partition(".")[0] for name in sys.modules}
assert not heavy, heavy
"""


@pytest.mark.slow
def test_nothing_to_do_imports_nothing_heavy(tmp_path: Path) -> None:
    lake = lake_without_spark(tmp_path)
    view_of(lake, orders(lake)).refresh()
    subprocess.run([sys.executable, "-c", NOTHING_TO_DO, str(tmp_path)], check=True, timeout=PATIENCE)


def test_view_that_is_held_keeps_its_key_index_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_without_spark(tmp_path)
    source = orders(lake)
    view = view_of(lake, source)
    opened: list[str] = []
    plain = sorted_runs.open_run
    monkeypatch.setattr(sorted_runs, "open_run", lambda file, *rest: (opened.append(file.name), plain(file, *rest))[1])
    with Answers().instead_of_spark():
        for amount in (11, 12, 13):
            write(source, {amount: amount})
            view.refresh()
        mine = {file.name for segment in view.parts.rows.cache[NEWEST].manifest.segments for file in segment.runs}
        assert shown(view) == {11: 22, 12: 24, 13: 26}
    assert mine
    assert all(opened.count(name) <= 1 for name in mine)
