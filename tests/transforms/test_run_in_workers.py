"""Functions of steps run in worker processes: what they return, and what they raise, comes back."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadFunction, BadResult, KeyFailed

pytestmark = pytest.mark.process

HERE = os.getpid()


def _where(rows: pa.Table) -> pa.Table:
    return pa.table({"id": rows["id"], "w": rows["v"], "elsewhere": [os.getpid() != HERE] * rows.num_rows})


def _more(rows: pa.Table) -> pa.Table:
    return _where(rows).append_column("more", rows["v"])


def _fails(rows: pa.Table) -> pa.Table:
    raise ValueError("no")


def _nothing(rows: pa.Table) -> None:
    return None


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    lake = fm.Lake(tmp_path / "lake")
    lake.create("a", key="id").write(pa.table({"id": [1, 2], "v": [3, 4]}))
    return lake


def test_function_runs_elsewhere_and_a_new_one_may_add_columns(lake: fm.Lake) -> None:
    fm.BatchTransform(_where, ["a"], ["out"], name="step").run(lake)
    assert lake["out"].to_arrow()["w"].to_pylist() == [3, 4]

    fm.BatchTransform(_more, ["a"], ["out"], name="step").run(lake)
    assert lake["out"].to_arrow()["more"].to_pylist() == [3, 4]


def test_what_a_function_does_wrong_is_said_as_such(lake: fm.Lake) -> None:
    with pytest.raises(KeyFailed, match="no"):
        fm.BatchTransform(_fails, ["a"], ["out"], on_error="fail_fast").run(lake)
    with pytest.raises(BadResult, match="returned nothing"):
        fm.BatchTransform(_nothing, ["a"], ["out"]).run(lake)

    report = fm.BatchTransform(_fails, ["a"], ["out"], max_failed=1).run(lake)
    assert (report.keys, report.failed) == (2, 2)


def test_function_that_cannot_be_sent_there_is_refused(lake: fm.Lake) -> None:
    lock = threading.Lock()

    def locked(rows: pa.Table) -> pa.Table:
        with lock:
            return rows

    with pytest.raises(BadFunction, match="the function 'locked' cannot be sent to a worker"):
        fm.BatchTransform(locked, ["a"], ["out"], version="1").run(lake)
