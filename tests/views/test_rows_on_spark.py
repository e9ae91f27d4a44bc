"""Rows that are too many to be handed to Spark: it reads and joins them itself, with the same outcome."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from floodmark import Lake
from floodmark.engine.session import Session
from floodmark.views.changed_rows import LocalRows, SparkRows, read_all_rows, read_changed_rows
from limits import set_limit
from views.sourcing import analysis, naive_rows, naive_touched, touched_in, use

pytestmark = pytest.mark.spark

INT, TEXT = pa.int64(), pa.string()


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    set_limit(monkeypatch, "rows.small_rows", 1)
    set_limit(monkeypatch, "rows.few_rows", 1)
    found = Lake(tmp_path / "lake")
    source = found.create("s", key="id")
    first = {"id": [1, 2, 3, 4], "a b": [7, None, None, 9], "h": ["x", "x", None, "y"], "v": [1, 2, 3, 4]}
    source.write(pa.table(first))
    source.write(pa.table({"id": [5, 6], "a b": [None, 7], "h": [None, "x"], "v": [5, 6]}))
    source.delete([6])
    return found


def test_many_rows_are_joined_with_what_was_touched_and_null_equals_null(lake: Lake, session: Session):
    source = lake["s"]
    known = analysis("groups", {"g": INT, "h": TEXT}, [use(source, {"g": "a b", "h": "h"}, ["v", "id"])])
    [input_snapshot], touched = touched_in(lake, known, {"s": 3})
    rows = read_changed_rows(input_snapshot, known, touched, session)
    assert isinstance(rows, SparkRows)
    assert rows.frame.columns == ["id", "v"]
    expected = naive_rows(source, ["a b", "h"], ["id", "v"], naive_touched(source, ["a b", "h"], 3))
    assert sorted(tuple(row) for row in rows.frame.collect()) == expected == [(1, 1), (3, 3), (5, 5)]


def test_few_rows_among_many_are_left_to_a_cluster(lake: Lake, session: Session, monkeypatch: pytest.MonkeyPatch):
    set_limit(monkeypatch, "rows.small_rows", 100)
    set_limit(monkeypatch, "rows.many_rows", 4)
    known = analysis("groups", {"h": TEXT}, [use(lake["s"], {"h": "h"}, ["id"])])
    [input_snapshot], touched = touched_in(lake, known, {"s": 5})
    assert isinstance(read_changed_rows(input_snapshot, known, touched, session), LocalRows)
    monkeypatch.setattr(Session, "is_local", False)
    rows = read_changed_rows(input_snapshot, known, touched, session)
    assert isinstance(rows, SparkRows)
    assert sorted(tuple(row) for row in rows.frame.collect()) == [(1,), (2,)]


def test_much_is_left_to_spark_though_it_is_few_rows(lake: Lake, session: Session, monkeypatch: pytest.MonkeyPatch):
    set_limit(monkeypatch, "rows.small_rows", 100)
    set_limit(monkeypatch, "rows.small_bytes", 40)
    source = lake["s"]
    for columns, expected in ((["id"], LocalRows), (["id", "h"], SparkRows)):
        known = analysis("groups", {"g": INT}, [use(source, {"g": "a b"}, columns)])
        [input_snapshot], touched = touched_in(lake, known, {"s": 4})
        assert isinstance(read_changed_rows(input_snapshot, known, touched, session), expected)


def test_many_new_rows_of_a_row_wise_view_are_read_by_spark(lake: Lake, session: Session):
    source = lake["s"]
    inject = {"s": (("floodmark_key_id", "id"),)}
    t = {"floodmark_key_id": INT}
    known = analysis("rows", t, [use(source, {"floodmark_key_id": "id"}, ["v"])], inject)
    [input_snapshot], touched = touched_in(lake, known, {"s": 1})
    rows = read_changed_rows(input_snapshot, known, touched, session)
    assert isinstance(rows, SparkRows)
    assert rows.frame.columns == ["v", "floodmark_key_id"]
    assert sorted(tuple(row) for row in rows.frame.collect()) == [(3, 3), (4, 4), (5, 5)]


def test_all_rows_come_with_what_is_injected(lake: Lake, session: Session):
    source = lake["s"]
    inject = {"s": (("floodmark_offset", "offset"),)}
    known = analysis("rows", {"id": INT}, [use(source, {"id": "id"}, ["id"])], inject)
    [input_snapshot], _ = touched_in(lake, known, {})
    rows = read_all_rows(input_snapshot, known, session)
    assert isinstance(rows, SparkRows)
    assert sorted(tuple(row) for row in rows.frame.collect()) == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]
