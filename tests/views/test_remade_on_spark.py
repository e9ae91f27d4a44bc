"""Views that are made anew because Spark says that their key or types are others now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from columns.counting import Calls
from columns.worlds import TENFOLD
from floodmark.views.functions import used_checkpoints
from transforms.worlds import in_this_process
from views.view_oracle import Scratch, assert_same

pytestmark = pytest.mark.spark

MEAN = "select g, avg(v) d from flights group by g"
DEFINITIONS = {
    "another type": "select g, sum(v) d from flights group by g",
    "another key": "select g, v, count(*) n from flights group by g, v",
    "no key at all": "select v, v % 2 = 0 even from flights order by v limit 3",
}


@pytest.fixture
def lake(tmp_path: Path, session: Any) -> fm.Lake:
    made = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=session))
    made.create("flights", key="id").write(pa.table({"id": [1, 2, 3], "g": ["a", "a", None], "v": [1, 2, 3]}))
    return made


def rows(lake: fm.Lake, name: str) -> list[dict[str, Any]]:
    return lake[name].to_arrow().to_pylist()


def test_each_definition_after_another_is_right_and_refreshed_on(lake, spark):
    scratch = Scratch(spark)
    lake.view("daily", sql=MEAN).refresh()
    lake.view("copy", sql="select * from daily").refresh()
    for number, sql in enumerate(DEFINITIONS.values(), 1):
        before = rows(lake, "daily")
        view = lake.view("daily", sql=sql)
        assert rows(lake, "daily") == before
        assert view.refresh().kept_as == f"daily-old-{number}"
        assert_same(rows(lake, "daily"), scratch.rows(lake, sql, ["flights"]))
        assert rows(lake, f"daily-old-{number}") == before
        lake["flights"].write(pa.table({"id": [2, 10 + number], "g": ["b", "a"], "v": [5 + number, 1]}))
        assert view.refresh().kept_as is None
        assert_same(rows(lake, "daily"), scratch.rows(lake, sql, ["flights"]))
        assert lake.view("copy").refresh().kept_as == f"copy-old-{number}"
        assert_same(rows(lake, "copy"), rows(lake, "daily"))
        assert lake.view("copy").refresh().nothing
        assert view.verify().ok


def test_functions_are_not_called_again_for_a_view_that_is_made_anew(lake, tmp_path):
    calls = Calls(tmp_path)
    udf = TENFOLD.udf(calls)
    with in_this_process():
        lake.view("bright", source="flights", select={"id": "id", "b": udf}).refresh()
        assert len(calls.offsets()) == 3
        calls.forget()
        report = lake.view("bright", source="flights", select={"g": "g", "b": udf}).refresh()
    assert (report.kept_as, report.called, report.reused) == ("bright-old-1", 0, 3)
    assert calls.offsets() == []
    assert used_checkpoints(lake["bright"].snapshot(), "bright")
    assert (
        used_checkpoints(lake["bright-old-1"].snapshot(), "bright-old-1") == ()
    )  # garbage: nothing refreshes the old rows any more
    found = sorted(rows(lake, "bright"), key=str)
    assert found == [{"g": "a", "b": 10}, {"g": "a", "b": 20}, {"g": None, "b": 30}]
