"""Who takes a turn: what writes to a derived thing does, and an idle run does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.storage.memory import MemoryStore


class TurnStore(MemoryStore):
    """Objects in memory, and the turns that were taken."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[str] = []

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        self.turns.append(key)
        with super().turn(key):
            yield


def same(table: pd.DataFrame) -> pd.DataFrame:
    return table


@fm.udf(returns="int64")
def double(n: int) -> int:
    return 2 * n


def listed() -> Iterator[pd.DataFrame]:
    yield pd.DataFrame({"id": [1, 2]})


@pytest.fixture
def lake() -> fm.Lake:
    lake = fm.Lake(TurnStore())
    lake.create("d", key="id", schema={"id": "int64", "n": "int64"})
    lake["d"].write(pa.table({"id": [1, 2], "n": [10, 20]}))
    lake["d"].add_column("twice", double)
    return lake


def turns_of(lake: fm.Lake, act: Callable[[], Any]) -> list[str]:
    """The turns of runs and backfills that something takes; those of heads and other roots are left out."""
    lake.store.turns.clear()
    act()
    return [key for key in lake.store.turns if key.endswith("/run") or "/turns/" in key or key.startswith("runs/")]


WHOLE = fm.DatatableTransform(same, ["d"], [fm.OutputSpec("whole", key="id")], name="whole", version="1")
STEP = fm.BatchTransform(same, ["d"], ["step"], name="step", version="1")
LIST = fm.BatchGenerate(listed, [fm.OutputSpec("list", key="id")], name="list")

RUNS: dict[str, Callable[[fm.Lake], Any]] = {
    "BatchTransform": STEP.run,
    "DatatableTransform": WHOLE.run,
    "backfill": lambda lake: lake["d"].backfill("twice", udf=double),
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_takes_one_turn_and_an_idle_one_takes_none(lake: fm.Lake, kind: str) -> None:
    assert len(turns_of(lake, lambda: RUNS[kind](lake))) == 1
    assert turns_of(lake, lambda: RUNS[kind](lake)) == []


@pytest.mark.parametrize("step", [STEP, WHOLE], ids=lambda step: step.name)
def test_a_reset_takes_the_turn_of_the_runs(lake: fm.Lake, step: Any) -> None:
    taken = turns_of(lake, lambda: step.run(lake))

    assert turns_of(lake, lambda: step.reset(lake)) == taken


def test_a_generator_takes_a_turn_before_its_output_exists(lake: fm.Lake) -> None:
    first = turns_of(lake, lambda: LIST.run(lake))

    assert first == ["runs/list"]
    assert first[0] in turns_of(lake, lambda: LIST.run(lake))
