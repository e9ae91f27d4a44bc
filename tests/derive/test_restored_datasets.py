"""Datasets restored from a copy on their own: what others made of them, or they of others, is repaired or kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest

import floodmark as fm
from floodmark.columns import backfill
from floodmark.derive.lost_records import Trail, extend_trail
from floodmark.ledger.position import Position
from floodmark.transforms.commit import Publisher
from histories.calls import in_this_process
from views.refresh_worlds import ORDERS, Answers, lake_without_spark, shown, view_of, write


@pytest.fixture(autouse=True)
def here() -> Iterator[None]:
    with in_this_process(), Answers().instead_of_spark():
        yield


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    return lake_without_spark(tmp_path / "lake")


def reopened(lake: fm.Lake) -> fm.Lake:
    return lake_without_spark(Path(lake.store.url))


class Copy:
    """A copy of one dataset's folder."""

    def __init__(self, lake: fm.Lake, name: str) -> None:
        self._lake, self._name = lake, name
        self.place = Path(lake.store.url) / lake[name].snapshot().objects.folder
        self._copy = Path(f"{lake.store.url}-{name}-copy")
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.place, self._copy)

    def restore(self) -> fm.Lake:
        shutil.rmtree(self.place)
        shutil.copytree(self._copy, self.place)
        return reopened(self._lake)


def interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def held(dataset: Any, value: str = "amount") -> dict[int, int]:
    rows = dataset.to_arrow()
    return dict(zip(rows["id"].to_pylist(), rows[value].to_pylist(), strict=True))


def same(rows: pd.DataFrame) -> pd.DataFrame:
    return rows


def twice(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    return rows, rows


STEP = fm.BatchTransform(same, ["k"], ["orders"], name="same", version="1")
SPLIT = fm.BatchTransform(twice, ["k"], ["one", "two"], name="split", version="1")


def test_no_key_is_lost_when_an_input_is_restored_and_written_again(lake: fm.Lake) -> None:
    k = lake.create("k", key="id", schema=ORDERS)
    write(k, {n: n for n in range(11, 16)})
    STEP.run(lake)
    view = view_of(lake, lake["orders"])
    view.refresh()
    copy = Copy(lake, "k")
    write(k, {n: n for n in range(20, 30)})
    STEP.run(lake)
    view.refresh()

    restored = copy.restore()
    write(restored["k"], {n: n for n in range(40, 55)})
    report = STEP.run(restored)
    restored.view("doubled").refresh()

    expected = [*range(11, 16), *range(40, 55)]
    assert held(restored["orders"]) == {n: n for n in expected}
    assert shown(restored.view("doubled")) == {n: 2 * n for n in expected}
    assert report.restored == (
        "'k' was replaced by another copy of it: some of the records 5 to 14 that were read are gone; "
        "the keys that they may have changed are processed again",
    )
    assert report.notes == report.restored
    assert report.keys == 25  # ten lost keys and fifteen new ones: the first five are as they were
    assert STEP.status(restored).behind == 0
    assert STEP.run(reopened(restored)).nothing
    assert restored["orders"].verify().ok


def test_a_limited_run_repairs_some_keys_and_later_runs_the_others(lake: fm.Lake) -> None:
    k = lake.create("k", key="id", schema=ORDERS)
    write(k, {n: n for n in range(4)})
    STEP.run(lake)
    copy = Copy(lake, "k")
    write(k, {n: 10 + n for n in range(6)})
    STEP.run(lake)

    restored = copy.restore()
    runs = [STEP.run(reopened(restored), max_records=2) for _ in range(4)]

    assert [run.keys for run in runs] == [2, 2, 2, 0]
    assert held(restored["orders"]) == {n: n for n in range(4)}


def test_a_run_whose_keys_fail_after_a_restore_repairs_them_when_they_succeed(lake: fm.Lake) -> None:
    k = lake.create("k", key="id", schema=ORDERS)
    write(k, {n: n for n in range(4)})
    fails: list[bool] = []

    def maybe(rows: pd.DataFrame) -> pd.DataFrame:
        if fails:
            raise ValueError("told to fail")
        return rows

    step = fm.BatchTransform(maybe, ["k"], ["s"], name="s", version="1")
    step.run(lake)
    copy = Copy(lake, "k")
    write(k, {n: 10 + n for n in range(4)})
    step.run(lake)

    restored = copy.restore()
    fails.append(True)
    assert step.run(restored, check=False).problem
    fails.clear()
    step.retry(reopened(restored))
    step.run(reopened(restored))
    assert held(restored["s"]) == {n: n for n in range(4)}


@pytest.mark.parametrize("name", ["one", "two"])
def test_an_output_that_was_restored_alone_gets_its_rows_again(lake: fm.Lake, name: str) -> None:
    k = lake.create("k", key="id", schema=ORDERS)
    write(k, {1: 1})
    SPLIT.run(lake)
    copy = Copy(lake, name)
    write(k, {1: 2, 3: 3})
    SPLIT.run(lake)

    restored = copy.restore()
    SPLIT.run(restored)

    assert held(restored["one"]) == held(restored["two"]) == {1: 2, 3: 3}
    assert SPLIT.run(reopened(restored)).nothing


def test_an_output_that_is_ahead_of_a_restored_input_and_first_output_loses_what_they_lost(lake: fm.Lake) -> None:
    k = lake.create("k", key="id", schema=ORDERS)
    write(k, {1: 1})
    SPLIT.run(lake)
    copies = [Copy(lake, "k"), Copy(lake, "one")]
    write(k, {1: 2, 3: 3})
    SPLIT.run(lake)

    for copy in copies:
        restored = copy.restore()
    SPLIT.run(restored)

    assert held(restored["one"]) == held(restored["two"]) == {1: 1}


def test_stored_results_of_lost_records_are_not_used_for_others(lake: fm.Lake) -> None:
    k = lake.create("k", key="id", schema=ORDERS)
    write(k, {1: 1})
    STEP.run(lake)
    copy = Copy(lake, "k")
    write(k, {2: 2})
    with mock.patch.object(Publisher, "commit", interrupt), pytest.raises(KeyboardInterrupt):
        STEP.run(lake)

    restored = copy.restore()
    write(restored["k"], {2: 7})  # at the same offset
    assert STEP.run(restored).reused == 0
    assert held(restored["orders"]) == {1: 1, 2: 7}


@fm.udf(returns="int64", version="1")
def double(amount: int) -> int:
    return 2 * amount


def test_values_of_lost_records_are_not_shown_for_others(lake: fm.Lake) -> None:
    k = lake.create("k", key="id", schema=ORDERS)
    write(k, {1: 1})
    k.add_column("twice", double)
    k.backfill("twice", udf=double)
    copy = Copy(lake, "k")
    write(k, {2: 2, 3: 3})
    k.backfill("twice", udf=double)
    columns = copy.place / "columns"
    newer = shutil.copytree(columns, Path(f"{lake.store.url}-newer"))

    restored = copy.restore()
    shutil.rmtree(columns)
    shutil.copytree(newer, columns)
    write(restored["k"], {5: 5, 6: 6})

    assert held(restored["k"], "twice") == {1: 2, 5: None, 6: None}
    [status] = restored["k"].columns()
    assert (status.rows, status.done) == (3, 1)
    report = restored["k"].backfill("twice", udf=double)
    assert (report.computed, report.done) == (2, 1)
    assert "their values are dropped" in str(report.restored)
    assert held(restored["k"], "twice") == {1: 2, 5: 10, 6: 12}
    assert restored["k"].backfill("twice", udf=double).restored == ()


def test_checkpoints_of_lost_records_are_not_used_for_others(lake: fm.Lake) -> None:
    k = lake.create("k", key="id", schema=ORDERS)
    write(k, {1: 1})
    k.add_column("twice", double)
    k.backfill("twice", udf=double)
    copy = Copy(lake, "k")
    write(k, {2: 2})
    with mock.patch.object(backfill, "commit_fragments", interrupt), pytest.raises(KeyboardInterrupt):
        k.backfill("twice", udf=double)
    left = shutil.copytree(copy.place / "columns", Path(f"{lake.store.url}-left"))

    restored = copy.restore()
    shutil.copytree(left, copy.place / "columns", dirs_exist_ok=True)
    write(restored["k"], {2: 7})
    assert restored["k"].backfill("twice", udf=double).computed == 1
    assert held(restored["k"], "twice") == {1: 2, 2: 14}


def test_a_trail_keeps_few_positions_and_always_one_that_is_about_as_old_as_asked() -> None:
    trail: Trail = ()
    for offset in range(1, 2000):
        trail = extend_trail(trail, Position("d", offset, str(offset)))
        assert len(trail) <= 2 * offset.bit_length()
        ages = [offset - at for _, at, _ in trail]
        for age in range(1, offset, max(1, offset // 20)):
            assert min((found for found in ages if found >= age), default=offset) <= 3 * age
    assert extend_trail(trail, Position("d", 1999, "1999")) == trail
