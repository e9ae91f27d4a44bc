"""Frames of one generator: in any order of columns, with types that have a common one, and else refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floodmark as fm
from floodmark.errors import BadResult, MissingColumns, TypeMismatch, UnknownColumns
from floodmark.sources.generators import BatchGenerate
from floodmark.sources.ingest import Spool
from floodmark.transforms.specs import OutputSpec
from profiles import examples


@pytest.fixture
def lake(tmp_path):
    return fm.Lake(tmp_path / "lake")


def run(lake: fm.Lake, *frames: Any, **spec: Any) -> pa.Table:
    BatchGenerate(lambda: list(frames), [OutputSpec("x", key="id", **spec)], name="gen").run(lake)
    return lake["x"].to_arrow()


def test_columns_may_come_in_any_order(lake):
    table = run(lake, pa.table({"id": [1], "v": ["a"]}), pa.table({"v": ["b"], "id": [2]}))
    assert table.to_pydict() == {"id": [1, 2], "v": ["a", "b"]}


def test_an_all_null_first_frame_takes_the_type_of_a_later_one(lake):
    table = run(lake, pd.DataFrame({"id": [1], "v": [None]}), pd.DataFrame({"id": [2], "v": ["b"]}))
    assert table.to_pydict() == {"id": [1, 2], "v": [None, "b"]}


def test_integers_that_pandas_made_floats_of_fit_the_outputs_integers(lake):
    run(lake, pd.DataFrame({"id": [1, 2], "v": [5, 6]}))
    table = run(lake, pd.DataFrame({"id": [1, 2], "v": [5, np.nan]}))
    assert table.schema.field("v").type == pa.int64()
    assert sorted(table.to_pylist(), key=lambda r: r["id"]) == [{"id": 1, "v": 5}, {"id": 2, "v": None}]


def test_integers_of_one_frame_keep_their_digits_beside_the_floats_of_another(lake):
    large = 2**60 + 1
    run(lake, pa.table({"id": [1], "v": [large]}))
    table = run(lake, pa.table({"id": [1], "v": [large]}), pd.DataFrame({"id": [2, 3], "v": [5, np.nan]}))
    assert sorted(table["v"].to_pylist(), key=str) == [large, 5, None]


def test_a_value_that_does_not_fit_the_output_is_refused_and_nothing_written(lake):
    run(lake, pd.DataFrame({"id": [1], "v": [5]}))
    with pytest.raises(TypeMismatch, match="column 'v' of a frame for 'x'"):
        run(lake, pd.DataFrame({"id": [1, 2], "v": [5.5, 6.5]}))
    assert lake["x"].to_arrow().to_pylist() == [{"id": 1, "v": 5}]


def test_types_with_nothing_in_common_are_refused_by_column(lake):
    with pytest.raises(BadResult, match="column 'v' for 'x' is int64 in one frame and string in another"):
        run(lake, pd.DataFrame({"id": [1], "v": [5]}), pa.table({"id": [2], "v": ["b"]}))
    assert "x" not in lake


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        ({"id": [2]}, "frame 2 for 'x' lacks the column 'v'"),
        ({"id": [2], "v": [1], "w": [1]}, "frame 2 for 'x' has another column, 'w'"),
        ({"id": [2], "w": [1]}, "frame 2 for 'x' lacks the column 'v'"),
    ],
)
def test_frames_with_other_columns_than_the_first_are_refused(lake, second, complaint):
    with pytest.raises(BadResult, match=complaint):
        run(lake, pa.table({"id": [1], "v": [1]}), pa.table(second))


def test_other_columns_than_the_outputs_are_refused(lake):
    run(lake, pa.table({"id": [1], "v": [1]}))
    with pytest.raises(UnknownColumns, match="'w'"):
        run(lake, pa.table({"id": [1], "v": [1], "w": [1]}))
    with pytest.raises(MissingColumns, match="'v'"):
        run(lake, pa.table({"id": [1]}))


def test_a_declared_schema_decides_the_types(lake):
    schema = {"id": "int64", "v": "float64", "note": "string"}
    table = run(lake, pd.DataFrame({"id": [1], "v": [5], "note": [None]}), schema=schema)
    assert table.schema.types == [pa.int64(), pa.float64(), pa.string()]


def test_frames_without_rows_have_no_say(lake):
    table = run(lake, pd.DataFrame(columns=["zzz"]), pa.table({"id": [1], "v": [1]}), pd.DataFrame())
    assert table.to_pydict() == {"id": [1], "v": [1]}


_FRAMES = st.lists(
    st.one_of(
        st.lists(st.integers(-(2**40), 2**40), max_size=4).map(lambda v: pa.table({"v": pa.array(v, pa.int64())})),
        st.lists(st.none(), max_size=4).map(lambda v: pa.table({"v": pa.nulls(len(v))})),
        st.lists(st.integers(-100, 100), max_size=4).map(lambda v: pa.table({"v": pa.array(v, pa.int8())})),
        st.lists(st.integers(-100, 100), max_size=4).map(lambda v: pa.table({"v": pa.array(v, pa.float64())})),
    ),
    max_size=8,
)


@settings(max_examples=examples(20))
@given(frames=_FRAMES)
def test_a_spool_gives_back_every_row_in_order(tmp_path_factory, frames):
    spool = Spool(tmp_path_factory.mktemp("spool"), "x")
    expected = [value for one in frames for value in one["v"].to_pylist()]
    for one in frames:
        spool.add(one)
    assert spool.rows == len(expected)
    if expected:
        assert spool.reader(None).read_all()["v"].to_pylist() == expected
    spool.close()


def test_a_spool_holds_no_more_than_a_frame_in_memory(tmp_path):
    spool = Spool(tmp_path, "x")
    before = pa.total_allocated_bytes()
    for start in range(0, 40):
        spool.add(pa.table({"v": pa.array(np.full(100_000, start))}))
    assert pa.total_allocated_bytes() - before < 4_000_000  # of 32 MB that came
    total = sum(batch.num_rows for batch in spool.reader(None))
    assert total == 4_000_000
    spool.close()
