"""What was made of an input that was replaced by an older copy, and perhaps written again, becomes what it has."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.ledger.position import Position
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import CountingStore
from views.refresh_worlds import Answers, delete, lake_without_spark, orders, view_of, write


def same(rows: pd.DataFrame) -> pd.DataFrame:
    return rows


@fm.udf(returns="int64")
def double(amount: int) -> int:
    return 2 * amount


STEP = fm.BatchTransform(same, ["orders"], ["out"], name="copy", version="1")
WHOLE = fm.DatatableTransform(same, ["orders"], [fm.OutputSpec("whole", key="id")], name="whole", version="1")


@dataclass(frozen=True)
class Thing:
    """Something that is derived from the orders: how it is brought up to date and reset, and what it holds."""

    declare: Callable[[fm.Lake], Any]
    run: Callable[[fm.Lake], Any]
    plan: Callable[[fm.Lake], Any]
    reset: Callable[[fm.Lake], Any]
    name: str
    values: str = "amount"
    is_idle: Callable[[Any], bool] = lambda report: bool(report.nothing)

    def held(self, lake: fm.Lake) -> dict[int, int]:
        rows = lake[self.name].to_arrow()
        return dict(zip(rows["id"].to_pylist(), rows[self.values].to_pylist(), strict=True))

    @property
    def factor(self) -> int:
        return 1 if self.values == "amount" else 2


THINGS = {
    "step": Thing(lambda _: None, STEP.run, STEP.plan, STEP.reset, "out"),
    "whole": Thing(lambda _: None, WHOLE.run, WHOLE.plan, WHOLE.reset, "whole"),
    "view": Thing(
        lambda lake: view_of(lake, lake["orders"]),
        lambda lake: lake.view("doubled").refresh(),
        lambda lake: lake.view("doubled").plan_refresh(),
        lambda lake: lake.view("doubled").reset(),
        "doubled",
        "twice",
    ),
    "column": Thing(
        lambda lake: lake["orders"].add_column("twice", double),
        lambda lake: lake["orders"].backfill("twice", udf=double),
        lambda lake: lake["orders"].plan_backfill("twice"),
        lambda lake: lake["orders"].reset_column("twice"),
        "orders",
        "twice",
        lambda report: report.commits == 0,
    ),
}


@pytest.fixture(params=THINGS)
def thing(request: pytest.FixtureRequest) -> Any:
    with Answers().instead_of_spark():
        yield THINGS[request.param]


@pytest.fixture
def lake(tmp_path: Path, thing: Thing) -> fm.Lake:
    lake = lake_without_spark(tmp_path / "lake")
    write(orders(lake), {11: 11, 12: 12})
    thing.declare(lake)
    return lake


def reopened(lake: fm.Lake) -> fm.Lake:
    return lake_without_spark(Path(lake.store.url))


def told(report: Any) -> str:
    """What a report says besides its counts."""
    return str([getattr(report, name, None) for name in ("stale", "restored")])


def chain_of(lake: fm.Lake) -> Path:
    return Path(lake.store.url) / lake["orders"].snapshot().objects.folder


def with_older_head(lake: fm.Lake, act: Callable[[], Any]) -> fm.Lake:
    """The lake after `act`, with the head of the orders brought back as it was before."""
    head = chain_of(lake) / "refs" / "head"
    before = head.read_bytes()
    act()
    head.write_bytes(before)
    return reopened(lake)


def test_an_input_brought_back_from_a_copy_and_written_again_gives_what_it_has(lake: fm.Lake, thing: Thing) -> None:
    thing.run(lake)

    def go_on() -> None:
        write(lake["orders"], {13: 13})
        thing.run(lake)

    restored = with_older_head(lake, go_on)
    write(restored["orders"], {14: 14, 15: 15})
    thing.plan(restored)
    report = thing.run(restored)

    assert thing.held(restored) == {n: thing.factor * n for n in (11, 12, 14, 15)}
    assert "'orders' was replaced by another copy of it" in told(report)
    assert thing.is_idle(thing.run(reopened(restored)))


def test_rows_that_were_taken_back_with_the_lost_records_are_there_again(lake: fm.Lake, thing: Thing) -> None:
    thing.run(lake)

    def go_on() -> None:
        delete(lake["orders"], [11])
        write(lake["orders"], {12: 99, 13: 13})
        thing.run(lake)

    restored = with_older_head(lake, go_on)
    thing.run(restored)

    assert thing.held(restored) == {n: thing.factor * n for n in (11, 12)}
    write(restored["orders"], {16: 16})
    thing.run(restored)
    assert thing.held(restored) == {n: thing.factor * n for n in (11, 12, 16)}


def test_an_input_without_any_common_record_gives_what_it_has(lake: fm.Lake, thing: Thing) -> None:
    def go_on() -> None:
        write(lake["orders"], {13: 13})
        thing.run(lake)  # the first run: no earlier position is known

    restored = with_older_head(lake, go_on)
    write(restored["orders"], {14: 14, 15: 15})
    thing.run(restored)

    assert thing.held(restored) == {n: thing.factor * n for n in (11, 12, 14, 15)}
    assert thing.is_idle(thing.run(reopened(restored)))


def test_an_input_brought_back_from_a_copy_that_was_read_as_a_whole_is_none(lake: fm.Lake, thing: Thing) -> None:
    thing.run(lake)
    restored = with_older_head(lake, lambda: write(lake["orders"], {13: 13}))
    write(restored["orders"], {14: 14})
    thing.run(restored)

    assert thing.held(restored) == {n: thing.factor * n for n in (11, 12, 14)}


def test_writes_watermarks_folds_and_purges_leave_positions_as_they_are(lake: fm.Lake, thing: Thing) -> None:
    for number in range(13, 16):
        write(lake["orders"], {number: number})
        thing.run(reopened(lake))
    lake["orders"].fold()
    thing.run(reopened(lake))
    lake["orders"].purge(2)
    thing.run(reopened(lake))
    write(lake["orders"], {16: 16})
    thing.run(reopened(lake))
    for day in range(20):  # the newest segment of the slice index has no slice
        lake["orders"].advance_watermark(datetime(2100, 1, 1 + day, tzinfo=UTC))
    thing.run(reopened(lake))


def test_an_idle_run_reads_no_object_for_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore(LocalStore(tmp_path / "lake"))
    lake = fm.Lake(store)
    write(orders(lake), {11: 11})
    STEP.run(lake)

    def reads() -> int:
        fresh = fm.Lake(store)
        before = store.counts.reads
        assert STEP.run(fresh).nothing
        return store.counts.reads - before

    checked = reads()
    monkeypatch.setattr(Position, "is_on", lambda *_: True)
    assert reads() == checked


def test_a_limited_run_is_bound_to_what_it_could_see_beyond_its_position(tmp_path: Path) -> None:
    lake = lake_without_spark(tmp_path / "lake")
    write(orders(lake), {11: 11, 12: 12})
    STEP.run(lake)

    def go_on() -> None:
        write(lake["orders"], {12: 13})
        STEP.run_changelist(lake, {"orders": pa.table({"id": [12]})})  # as of all records; no position moves

    restored = with_older_head(lake, go_on)
    write(restored["orders"], {12: 14})

    STEP.run(restored)
    assert THINGS["step"].held(restored) == {11: 11, 12: 14}


def test_a_dataset_restored_whole_with_all_that_was_made_of_it_is_fine(lake: fm.Lake, thing: Thing) -> None:
    write(lake["orders"], {13: 13})
    thing.run(lake)
    folder = Path(lake.store.url)
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    write(lake["orders"], {14: 14})
    thing.run(lake)

    restored = lake_without_spark(copy)
    write(restored["orders"], {15: 15})
    thing.run(restored)

    assert thing.held(restored) == {n: thing.factor * n for n in (11, 12, 13, 15)}
