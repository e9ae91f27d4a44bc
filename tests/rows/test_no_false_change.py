"""The same rows in another shape are no change: no record is written, no block is added."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.dataset import Dataset
from ledger.worlds import untouched

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAN = float("nan")
OTHER_NAN = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)

KINDS = ["upsert", "snapshot"]


def column(values, of):
    """Rows 1, 2, … with one more column."""
    return pa.table({"id": pa.array(range(1, len(values) + 1), pa.int64()), "x": pa.array(values, of)})


def assert_unchanged(dataset: Dataset, data, count: int) -> None:
    with untouched(dataset):
        commit = dataset.write(data)
    assert (commit.unchanged, commit.rows, commit.new, commit.changed, commit.retracted) == (count, 0, 0, 0, 0)
    assert commit.block == dataset.head


@pytest.fixture(params=KINDS)
def create(request, lake):
    return lambda first, **more: made(lake.create("d", key=["id"], merge=request.param, **more), first)


def made(dataset: Dataset, first) -> Dataset:
    assert dataset.write(first).new > 0
    return dataset


def test_same_rows_again_write_nothing(create):
    rows = pa.table({"id": [1, 2], "a": ["x", None], "b": [None, 2.5]})
    assert_unchanged(create(rows), rows, 2)


def test_order_of_rows_makes_no_change(create):
    rows = pa.table({"id": [1, 2, 3], "a": ["x", "y", "z"]})
    assert_unchanged(create(rows), rows.take([2, 0, 1]), 3)


def test_order_of_columns_makes_no_change(create):
    rows = pa.table({"id": [1], "a": ["x"], "b": ["y"]})
    assert_unchanged(create(rows), rows.select(["b", "id", "a"]), 1)


def test_order_of_members_of_a_struct_makes_no_change(create):
    dataset = create(pa.table({"id": [1], "x": pa.array([{"a": 1, "b": 2}])}))
    other = pa.array([{"b": 2, "a": 1}], pa.struct([("b", pa.int64()), ("a", pa.int64())]))
    assert_unchanged(dataset, pa.table({"id": [1], "x": other}), 1)


def test_integers_that_pandas_reads_as_floats_beside_a_null_make_no_change(create):
    """A null neighbour turns a column of ints into floats: 2 comes back as 2.0."""
    dataset = create(column([2, 3], pa.int64()))
    frame = pd.DataFrame({"id": [1, 2, 9], "x": [2, 3, None]})
    assert frame["x"].dtype == np.float64
    assert_unchanged(dataset, frame[frame["id"] < 9], 2)


def test_integers_as_floats_with_a_null_among_them_make_no_change(create):
    dataset = create(column([2, None, 3], pa.int64()))
    assert_unchanged(dataset, pd.DataFrame({"id": [1, 2, 3], "x": [2.0, np.nan, 3.0]}), 3)


def test_key_that_comes_as_float_is_the_same_key(create):
    dataset = create(column(["a", "b"], pa.string()))
    assert_unchanged(dataset, pd.DataFrame({"id": [1.0, 2.0], "x": ["a", "b"]}), 2)


def test_narrower_integers_make_no_change(create):
    dataset = create(column([7], pa.int64()))
    assert_unchanged(dataset, pa.table({"id": pa.array([1], pa.int8()), "x": pa.array([7], pa.uint16())}), 1)


@pytest.mark.parametrize(("old", "new"), [(0.0, -0.0), (-0.0, 0.0)])
@pytest.mark.parametrize("of", [pa.float64(), pa.float32()])
def test_sign_of_zero_makes_no_change(create, old, new, of):
    dataset = create(column([old], of))
    assert_unchanged(dataset, column([new], of), 1)
    assert math.copysign(1, dataset.to_arrow()["x"][0].as_py()) == math.copysign(1, old), "the old row stays"


def test_sign_of_zero_in_lists_and_structs_makes_no_change(create):
    of = pa.struct([("l", pa.list_(pa.float64()))])
    assert_unchanged(create(column([{"l": [0.0, 1.0]}], of)), column([{"l": [-0.0, 1.0]}], of), 1)


@pytest.mark.parametrize("other", [NAN, -NAN, *OTHER_NAN])
def test_nan_over_nan_makes_no_change(create, other):
    dataset = create(column([NAN], pa.float64()))
    again = pa.table({"id": [1], "x": pa.array(np.array([other]))})
    assert again["x"].null_count == 0
    assert_unchanged(dataset, again, 1)


def test_sign_of_zero_in_a_key_makes_no_other_key(lake):
    dataset = made(lake.create("d", key=["id"], merge="upsert"), pa.table({"id": [0.0], "x": [1]}))
    assert_unchanged(dataset, pa.table({"id": [-0.0], "x": [1]}), 1)
    assert dataset.get([-0.0]).num_rows == 1


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_unit_of_a_timestamp_makes_no_change(create, unit):
    dataset = create(column([NOON, None], pa.timestamp("us", "UTC")))
    assert_unchanged(dataset, column([NOON, None], pa.timestamp(unit, "UTC")), 2)


def test_zone_in_which_an_instant_is_told_makes_no_change(create):
    dataset = create(column([NOON], pa.timestamp("us", "UTC")))
    there = NOON.astimezone(timezone(timedelta(hours=9)))
    assert_unchanged(dataset, column([there], pa.timestamp("ms", "Asia/Tokyo")), 1)


def test_unit_of_a_timestamp_without_zone_makes_no_change(create):
    dataset = create(column([NOON.replace(tzinfo=None)], pa.timestamp("us")))
    assert_unchanged(dataset, column([NOON.replace(tzinfo=None)], pa.timestamp("ms")), 1)


def test_scale_of_a_decimal_makes_no_change(create):
    dataset = create(column([Decimal("1.50")], pa.decimal128(10, 2)))
    assert_unchanged(dataset, column([Decimal("1.5")], pa.decimal128(5, 1)), 1)
    assert_unchanged(dataset, column([Decimal("1.500")], pa.decimal128(20, 3)), 1)


def test_float_that_comes_narrower_makes_no_change(create):
    assert_unchanged(create(column([1.5], pa.float64())), column([1.5], pa.float32()), 1)


def test_way_in_which_arrow_holds_text_makes_no_change(create):
    dataset = create(column(["a", "", None], pa.string()))
    for of in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        assert_unchanged(dataset, column(["a", "", None], of), 3)


def test_way_in_which_arrow_holds_lists_makes_no_change(create):
    dataset = create(column([[1, None], [], None], pa.list_(pa.int64())))
    assert_unchanged(dataset, column([[1, None], [], None], pa.large_list(pa.int32())), 3)


def test_chunks_and_slices_of_arrow_make_no_change(create):
    rows = pa.table({"id": range(20), "x": [None if i % 3 == 0 else str(i) for i in range(20)], "b": [True, None] * 10})
    dataset = create(rows)
    assert_unchanged(dataset, pa.concat_tables([rows.slice(0, 3), rows.slice(3, 8), rows.slice(11)]), 20)
    padded = pa.concat_tables([rows.slice(5, 7), rows, rows.slice(0, 9)]).combine_chunks()
    assert_unchanged(dataset, padded.slice(7, 20), 20)


def test_nulls_with_other_bytes_under_them_make_no_change(create):
    mask = np.array([False, True])
    dataset = create(pa.table({"id": [1, 2], "x": pa.array(np.array([5, 6]), mask=mask)}))
    assert_unchanged(dataset, pa.table({"id": [1, 2], "x": pa.array(np.array([5, 77]), mask=mask)}), 2)


@pytest.mark.parametrize("frame", [pa.Table.to_pandas, pl.from_arrow, pa.Table.to_reader])
def test_kind_of_frame_makes_no_change(create, frame):
    rows = pa.table(
        {"id": [1, 2], "x": ["a", None], "y": [1.5, None], "t": pa.array([NOON] * 2, pa.timestamp("us", "UTC"))}
    )
    assert_unchanged(create(rows), frame(rows), 2)


def test_files_of_the_same_rows_make_no_change(create, tmp_path):
    dataset = create(pa.table({"id": [1, 2], "x": ["a", "b"], "y": [1, None]}))
    (tmp_path / "rows.csv").write_text("y,id,x\n,2,b\n1,1,a\n")
    assert_unchanged(dataset, tmp_path / "rows.csv", 2)


@pytest.mark.spark
@pytest.mark.parametrize("kind", KINDS)
def test_spark_frame_of_the_same_rows_makes_no_change(tmp_path, spark, kind):
    rows = pa.table({"id": [1, 2], "x": ["a", None], "y": [1.5, None], "l": [[1, None], None]})
    dataset = made(fm.Lake(tmp_path / "lake", spark=spark).create("d", key=["id"], merge=kind), rows)
    assert_unchanged(
        dataset,
        spark.createDataFrame(
            [(1, "a", 1.5, [1, None]), (2, None, None, None)], "id long, x string, y double, l array<long>"
        ),
        2,
    )


def test_column_that_is_added_makes_no_change_until_it_has_a_value(create):
    dataset = create(pa.table({"id": [1, 2], "x": ["a", "b"]}))
    dataset.evolve({"new": "string"})
    assert_unchanged(dataset, pa.table({"id": [1, 2], "x": ["a", "b"], "new": pa.nulls(2, pa.string())}), 2)
    commit = dataset.write(pa.table({"id": [1, 2], "x": ["a", "b"], "new": [None, ""]}))
    assert (commit.changed, commit.unchanged) == (1, 1)


def test_member_that_is_added_to_a_struct_makes_no_change(create):
    dataset = create(pa.table({"id": [1], "x": pa.array([{"a": 1}])}))
    wider = pa.struct([("a", pa.int64()), ("b", pa.string())])
    dataset.evolve(pa.schema([("id", pa.int64()), ("x", wider)]))
    assert_unchanged(dataset, column([{"a": 1, "b": None}], wider), 1)


def test_columns_that_are_reordered_make_no_change(create):
    rows = pa.table({"id": [1], "a": ["x"], "b": ["y"]})
    dataset = create(rows)
    dataset.evolve(pa.schema([("b", pa.string()), ("id", pa.int64()), ("a", pa.string())]))
    assert_unchanged(dataset, rows, 1)


def test_column_that_is_not_compared_makes_no_change(lake):
    dataset = lake.create("d", key=["id"], merge="snapshot", compare=["x"])
    dataset.write(pa.table({"id": [1], "x": ["a"], "seen": [1]}))
    assert_unchanged(dataset, pa.table({"id": [1], "x": ["a"], "seen": [2]}), 1)
    assert dataset.to_arrow()["seen"].to_pylist() == [1]
    commit = dataset.write(pa.table({"id": [1], "x": ["b"], "seen": [3]}))
    assert commit.changed == 1
    assert dataset.changes_arrow(since=0).select(["op", "x", "seen"]).to_pylist() == [
        {"op": 2, "x": "a", "seen": 1},
        {"op": 3, "x": "b", "seen": 3},
    ]


def test_no_change_is_seen_after_the_index_was_rebuilt(create):
    from rows.harm import lose_all

    dataset = create(column([0.0, NAN, None], pa.float64()))
    lose_all(dataset)
    assert_unchanged(dataset, column([-0.0, -NAN, None], pa.float64()), 3)


def test_state_is_recorded_even_when_nothing_changes(lake):
    dataset = made(lake.create("d", key=["id"], merge="upsert"), column(["a"], pa.string()))
    before = dataset.head
    commit = dataset.write(column(["a"], pa.string()), source="kafka", state="1")
    assert (commit.rows, commit.unchanged, commit.source, commit.state) == (0, 1, "kafka", "1")
    assert commit.block == dataset.head != before
    assert dataset.write(column(["b"], pa.string()), source="kafka", state="1") == commit
    assert dataset.to_arrow()["x"].to_pylist() == ["a"]
    assert dataset.verify().ok
