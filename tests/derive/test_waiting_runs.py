"""A run that waited for its turn uses what the other run has left, even if that one failed before its commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.columns import backfill
from floodmark.derive import run
from floodmark.transforms import datatable_transform

CALLED: list[int] = []
FAILING: list[int] = []


@fm.udf(returns=pa.int64(), version="1")
def plus_one(x: int) -> int:
    CALLED.append(x)
    if x in FAILING:
        raise ValueError("not yet")
    return x + 1


def test_backfill_that_waited_computes_no_finished_fragment_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    CALLED.clear()
    FAILING[:] = [199]
    table = fm.Lake(tmp_path / "lake").create("t")
    table.write(pa.table({"x": pa.array(range(200), pa.int64())}))
    table.add_column("y", plus_one, fragment_rows=64)
    take_turn, first = backfill.take_column_turn, [True]

    @contextmanager
    def after_another(*arguments: Any) -> Iterator[None]:
        if first:
            first.clear()
            with pytest.raises(fm.FloodmarkError):
                table.backfill("y")
            FAILING.clear()
        with take_turn(*arguments):
            yield

    monkeypatch.setattr(backfill, "take_column_turn", after_another)
    table.backfill("y")
    assert table.to_arrow()["y"].to_pylist() == list(range(1, 201))
    twice = [x for x, calls in Counter(CALLED).items() if calls > 1]
    assert min(twice) >= 192  # those of the last fragment, whose call failed


def test_step_that_waited_for_one_that_stopped_between_its_outputs_calls_its_function_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls = []

    def function(a: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        calls.append(len(a))
        return a.assign(y=len(calls)), a.assign(z=len(calls))

    lake = fm.Lake(tmp_path / "lake")
    lake.create("a", key="id").write(pd.DataFrame({"id": [1, 2]}))
    step = fm.DatatableTransform(function, ["a"], ["b", "c"], version="1")
    step.run(lake)
    lake["a"].write(pd.DataFrame({"id": [3]}))
    calls.clear()
    take_turn, commit, first = run.take_dataset_turn, datatable_transform._Call._commit, [True]

    def stopped_before_the_first_output(call: Any, number: int, *arguments: Any) -> Any:
        if number == 0:
            raise InterruptedError
        return commit(call, number, *arguments)

    @contextmanager
    def after_another(*arguments: Any) -> Iterator[None]:
        if first:
            first.clear()
            with monkeypatch.context() as patch:
                patch.setattr(datatable_transform._Call, "_commit", stopped_before_the_first_output)
                with pytest.raises(InterruptedError):
                    step.run(lake)
        with take_turn(*arguments):
            yield

    monkeypatch.setattr(datatable_transform, "take_dataset_turn", after_another)
    step.run(lake)
    assert calls == [3, 3]
