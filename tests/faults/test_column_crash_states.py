"""After a crash of the machine at any moment a column is as before or as after, and a backfill makes it whole."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import floodmark as fm
from faults.crash_states import CrashState, Part, chosen_states, parts
from faults.recording import HastyFileSystem
from faults.small_lake import (
    NAME,
    Checker,
    Scenario,
    View,
    create,
    damage,
    open_lake,
    purge,
    rows,
    view,
    write,
    write_again,
    write_slices,
)
from floodmark.engine import rounds
from floodmark.engine.run import run_in_threads
from profiles import IN_FULL

FRAGMENT_ROWS = 4


def _function(factor: int, skips: int | None = None) -> fm.Udf:
    def f(n: int) -> int:
        if n == skips:
            raise ValueError(f"{n} cannot be")
        return n * factor

    return fm.udf(returns="int64", name="f", version=str(factor), on_error=fm.Skip(ValueError))(f)


TENFOLD, HUNDREDFOLD = _function(10), _function(100, skips=2)


@contextmanager
def _in_this_process() -> Any:
    """A recording file system cannot go to workers; that functions run there is another test's."""

    def here(tasks: Sequence[Any], function: Callable[[Any], Any], **_: Any) -> list[Any]:
        return run_in_threads(tasks, function, threads=1)

    with (
        mock.patch.object(rounds, "run_in_processes", here),
        mock.patch.object(
            rounds, "run_in_threads", lambda tasks, function, **_: run_in_threads(tasks, function, threads=1)
        ),
    ):
        yield


# What is done to the column


def add(lake: fm.Lake) -> None:
    lake[NAME].add_column("a", TENFOLD, fragment_rows=FRAGMENT_ROWS)


def fill(lake: fm.Lake) -> None:
    with _in_this_process():
        assert lake[NAME].backfill("a", udf=TENFOLD).computed


def fill_in_small_steps(lake: fm.Lake) -> None:
    """Checkpoints of one row, so that files are put together from them."""
    with _in_this_process():
        assert lake[NAME].backfill("a", udf=TENFOLD, checkpoint_size=1).computed


def alter(lake: fm.Lake) -> None:
    lake[NAME].alter_column("a", HUNDREDFOLD)


def fill_anew(lake: fm.Lake) -> None:
    with _in_this_process():
        assert lake[NAME].backfill("a", udf=HUNDREDFOLD).computed


def drop(lake: fm.Lake) -> None:
    lake[NAME].drop_column("a")


def purge_rows(lake: fm.Lake) -> None:
    """The ledger's purge is one commit and that of what was computed another, which comes at once."""
    purge(lake)


SCENARIOS = [
    Scenario("add", (add,), (create, write)),
    Scenario("fill", (fill,), (create, write, add)),
    Scenario("fill-small", (fill_in_small_steps,), (create, write, add)),
    Scenario("fill-on", (fill,), (create, write, add, fill, write_again)),
    Scenario("alter", (alter,), (create, write, add, fill)),
    Scenario("fill-anew", (fill_anew,), (create, write, add, fill, alter)),
    Scenario("drop", (drop,), (create, write, add, fill)),
    Scenario("again", (drop, add), (create, write, add, fill)),
    Scenario("purge", (purge_rows,), (create, write, write_again, write_slices, add, fill)),
]


SOME = ("add", "fill-small", "fill-anew", "again", "purge")  # all of them under soak


class ColumnChecker(Checker):
    """Looks at what a crash left, then fills the column and looks again."""

    def _look(self, state: CrashState) -> tuple[View | None, str | None]:
        root = state.materialise(self._folder / state.digest[:16])
        try:
            lake = open_lake(root / "lake", HastyFileSystem(), hour=2)
            found = view(lake)
            if NAME in lake:
                lake[NAME].collect_garbage()  # finishes a purge that was cut short
            return found, damage(lake) or problem_of_next_backfill(lake)
        except Exception:
            return None, traceback.format_exc()
        finally:
            shutil.rmtree(root)


def problem_of_next_backfill(lake: fm.Lake) -> str | None:
    """What is wrong after a column of this function is there and filled, whatever was there before."""
    dataset = lake[NAME]
    functions = {column.name: column.function.version for column in dataset.columns()}
    if "a" not in functions:
        add(lake)
    udf = TENFOLD if functions.get("a", TENFOLD.version) == TENFOLD.version else HUNDREDFOLD
    dataset.write(rows(99))
    with _in_this_process():
        dataset.backfill("a", udf=udf)
        if (again := dataset.backfill("a", udf=udf)).called:
            return f"the backfill after the backfill called the function {again.called} times"
    table = dataset.to_arrow()
    skipped = 2 if udf is HUNDREDFOLD else None
    expected = [None if n == skipped else n * int(udf.version) for n in table["n"].to_pylist()]
    if table["a"] != pa.chunked_array([expected], pa.int64()):
        return f"the values are {table.to_pydict()}"
    errors = dataset.column_errors("a").num_rows
    if errors != expected.count(None):
        return f"there are {errors} errors of rows that were skipped"
    return damage(lake)


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(3), ids=str)
@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if IN_FULL or s.name in SOME], ids=str)
def test_every_crash_leaves_the_column_as_before_or_as_after(scenario: Scenario, part: Part, tmp_path: Path):
    recording = scenario.recorded(tmp_path / "run")
    checker = ColumnChecker(scenario, tmp_path / "states")
    assert checker.first_problem(chosen_states(recording, 2, part)) is None
