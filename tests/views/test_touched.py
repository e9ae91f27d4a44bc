"""What was touched: every value of T that a record since the last refresh has, old values too."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from floodmark import Lake
from views.sourcing import analysis, as_rows, naive_touched, touched_in, use

INT, TEXT = pa.int64(), pa.string()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def _rows(**columns: list[object]) -> pa.Table:
    types = {"g": INT, "h": TEXT}
    return pa.table({name: pa.array(values, types.get(name, INT)) for name, values in columns.items()})


def test_row_that_moves_from_one_group_to_another_touches_both(lake: Lake):
    source = lake.create("s", key="id")
    source.write(_rows(id=[1, 2, 3], g=[10, 20, 30]))
    position = source.last_offset or 0
    source.write(_rows(id=[2], g=[30]))
    _, found = touched_in(lake, analysis("groups", {"g": INT}, [use(source, {"g": "g"}, ["g"])]), {"s": position})
    assert as_rows(found.keys) == [(20,), (30,)]
    assert found.records == 2


def test_group_that_loses_a_row_is_touched(lake: Lake):
    source = lake.create("s", key="id")
    source.write(_rows(id=[1, 2], g=[10, 20]))
    source.delete([1])
    _, found = touched_in(lake, analysis("groups", {"g": INT}, [use(source, {"g": "g"}, ["g"])]), {"s": 1})
    assert as_rows(found.keys) == [(10,)]


def test_null_is_a_value_that_can_be_touched(lake: Lake):
    source = lake.create("s", key="id")
    source.write(_rows(id=[1, 2], g=[10, None]))
    source.write(_rows(id=[3], g=[None]))
    _, found = touched_in(lake, analysis("groups", {"g": INT}, [use(source, {"g": "g"}, ["g"])]), {"s": 1})
    assert as_rows(found.keys) == [(None,)]


def test_what_several_sources_touch_is_there_once(lake: Lake):
    left, right = lake.create("l", key="id"), lake.create("r", key="k")
    left.write(_rows(id=[1, 2], g=[10, 20]))
    right.write(_rows(k=[20, 30]))
    sources = [use(left, {"t": "g"}, ["id"]), use(right, {"t": "k"}, ["k"])]
    _, found = touched_in(lake, analysis("join", {"t": INT}, sources), {})
    assert as_rows(found.keys) == [(10,), (20,), (30,)]
    assert [(by.source, by.records, by.keys) for by in found.sources] == [("l", 2, 2), ("r", 2, 2)]


def test_records_that_are_done_touch_nothing(lake: Lake):
    source = lake.create("s", key="id")
    source.write(_rows(id=[1, 2], g=[10, 20]))
    _, found = touched_in(lake, analysis("groups", {"g": INT}, [use(source, {"g": "g"}, ["g"])]), {"s": 1})
    assert len(found) == 0
    assert found.records == 0


def test_rows_of_an_append_only_source_are_touched_by_their_offsets(lake: Lake):
    source = lake.create("s")
    source.write(_rows(g=[10, 20]))
    source.write(_rows(g=[30, 40, 50]))
    known = analysis("rows", {"floodmark_offset": INT}, [use(source, {"floodmark_offset": "offset"}, ["g"])])
    _, found = touched_in(lake, known, {"s": 1})
    assert as_rows(found.keys) == [(2,), (3,), (4,)]


def test_purged_records_touch_nothing(lake: Lake):
    source = lake.create("s")
    source.write(_rows(g=[10, 20]))
    source.write(_rows(g=[30]))
    source.purge(2)
    known = analysis("rows", {"floodmark_offset": INT}, [use(source, {"floodmark_offset": "offset"}, ["g"])])
    _, found = touched_in(lake, known, {})
    assert as_rows(found.keys) == [(2,)]
    assert found.records == 1


def test_all_values_of_several_columns_are_those_that_records_have(lake: Lake):
    source = lake.create("s", key="id")
    source.write(_rows(id=[1, 2, 3, 4], g=[1, 1, None, 2], h=["a", None, "a", None]))
    source.write(_rows(id=[2, 3, 9], g=[1, 5, 1], h=["a", "a", None]))
    source.delete([4])
    known = analysis("groups", {"x": INT, "y": TEXT}, [use(source, {"x": "g", "y": "h"}, ["g"])])
    for since in (-1, 3, 5):
        _, found = touched_in(lake, known, {"s": since})
        assert set(as_rows(found.keys)) == naive_touched(source, ["g", "h"], since)
        assert len(found) == len(as_rows(found.keys))
