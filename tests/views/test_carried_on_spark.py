"""A view's function is not called when a column that it does not read changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap

import floodmark as fm
from floodmark.view import View
from floodmark.views.functions import used_checkpoints
from floodmark.views.snapshot import read_note
from histories.calls import CallLog
from transforms.worlds import in_this_process

pytestmark = pytest.mark.spark


def unneeded(view: View) -> BitMap:
    """The records of the source whose results garbage collection may remove."""
    [used] = used_checkpoints(view.snapshot(), view.name)
    return used.unneeded(0)


def test_change_of_another_column_calls_no_function_of_a_view(tmp_path: Path, session: Any) -> None:
    calls = CallLog(tmp_path)

    def tenfold(id: int, x: int) -> int:  # noqa: A002
        calls.add(f"{id}\n")
        if x == 13:
            raise ValueError("bad luck")
        return x * 10

    udf = fm.udf(returns="int64", version="1", on_error=[fm.Skip(ValueError)])(tenfold)
    lake = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=session))
    source = lake.create("d", key="id", schema={"id": "int64", "x": "int64", "other": "int64"})

    def write(*rows: tuple[int, int, int]) -> None:
        source.write(pa.table(list(zip(*rows, strict=True)), names=["id", "x", "other"]))

    write(*[(i, i, 0) for i in range(20)])
    view = lake.view("v", source="d", select={"id": "id", "other": "other", "y": udf})
    with in_this_process():
        assert view.refresh().called == 20
        write((18, 18, 5))
        report = view.refresh()
        assert (report.called, report.carried, report.changed) == (0, 1, 1)
        note = read_note("v", view.snapshot())
        assert note is not None
        assert note.carried == 1
        write((18, 18, 6), (3, 4, 0), (13, 13, 6))
        assert 3 not in unneeded(view), "garbage collection would remove a value that the next refresh carries over"
        calls.forget()
        report = view.refresh()
    assert (calls.lines(), report.carried, report.failed) == (["3"], 2, 1)
    rows = {row["id"]: (row["other"], row["y"]) for row in view.to_arrow().to_pylist()}
    assert (rows[18], rows[3], rows[13]) == ((6, 180), (0, 40), (6, None))
    assert 3 in unneeded(view)
    [error] = view.errors().to_pylist()
    assert (error["column"], error["message"]) == ("y", "bad luck")
