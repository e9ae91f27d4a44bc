"""Values that fit a dataset become its own; what would change its meaning is refused, and the column is named."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from floodmark.errors import BadColumnName, MissingColumns, TypeMismatch, UnknownColumns
from ledger.worlds import untouched

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)
DICTIONARY = pa.dictionary(pa.int8(), pa.string())


def struct(**members):
    return pa.struct(list(members.items()))


FITS = [
    # what the dataset has, what comes, what is kept
    (pa.int64(), pa.array([1, None], pa.int8()), [1, None]),
    (pa.int8(), pa.array([127, -128], pa.int64()), [127, -128]),
    (pa.uint8(), pa.array([255], pa.int64()), [255]),
    (pa.int64(), pa.array([2.0, None]), [2, None]),
    (pa.float64(), pa.array([2**53], pa.int64()), [float(2**53)]),
    (pa.float64(), pa.array([1.5], pa.float32()), [1.5]),
    (pa.float32(), pa.array([1.5, None, float("inf"), -0.0], pa.float64()), [1.5, None, float("inf"), -0.0]),
    (pa.decimal128(10, 2), pa.array([5, None]), [Decimal("5.00"), None]),
    (pa.decimal128(10, 2), pa.array([Decimal("1.5")]), [Decimal("1.50")]),
    (pa.decimal128(10, 2), pa.array([Decimal("1.500")], pa.decimal256(50, 3)), [Decimal("1.50")]),
    (pa.timestamp("us", "UTC"), pa.array([NOON], pa.timestamp("ns", "UTC")), [NOON]),
    (pa.timestamp("us", "UTC"), pa.array([NOON], pa.timestamp("s", "Asia/Tokyo")), [NOON]),
    (pa.timestamp("ms", "UTC"), pa.array([NOON], pa.timestamp("us", "UTC")), [NOON]),
    (pa.timestamp("us"), pa.array([NAIVE], pa.timestamp("ns")), [NAIVE]),
    (pa.date32(), pa.array([date(2026, 3, 1)], pa.date64()), [date(2026, 3, 1)]),
    (pa.time64("us"), pa.array([time(1, 2, 3)], pa.time32("s")), [time(1, 2, 3)]),
    (pa.string(), pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
    (pa.string(), pa.array(["a"], pa.large_string()), ["a"]),
    (pa.string(), pa.array(["a"], pa.string_view()), ["a"]),
    (pa.int64(), pc.run_end_encode(pa.array([1, 1, None])), [1, 1, None]),
    (pa.binary(), pa.array([b"ab"], pa.binary(2)), [b"ab"]),
    (pa.binary(2), pa.array([b"ab"], pa.large_binary()), [b"ab"]),
    (pa.list_(pa.int64()), pa.array([[1], [], None], pa.large_list(pa.int8())), [[1], [], None]),
    (pa.list_(pa.string()), pa.array([["a", None]], pa.list_(DICTIONARY)), [["a", None]]),
    (pa.list_(pa.float32()), pa.array([[1.5, None]], pa.list_(pa.float64())), [[1.5, None]]),
    (pa.list_(pa.int8(), 2), pa.array([[1, 2], None], pa.list_(pa.int64())), [[1, 2], None]),
    (
        struct(a=pa.int64(), b=pa.string()),
        pa.array([{"b": "x", "a": 1}, None, {"b": None, "a": 2}], struct(b=pa.large_string(), a=pa.int8())),
        [{"a": 1, "b": "x"}, None, {"a": 2, "b": None}],
    ),
    (struct(s=struct(x=pa.float32())), pa.array([{"s": {"x": 0.5}}, {"s": None}]), [{"s": {"x": 0.5}}, {"s": None}]),
    *[
        (t, pa.nulls(2), [None, None])
        for t in (
            pa.int64(),
            pa.string(),
            pa.timestamp("us", "UTC"),
            pa.decimal128(5, 1),
            pa.list_(pa.int64()),
            struct(a=pa.int8()),
        )
    ],
]

MISFITS = [
    # what the dataset has, what comes, a word of the message, a word of the hint
    (pa.int8(), pa.array([128]), "int8", "change the values"),
    (pa.uint64(), pa.array([-1]), "uint64", "change the values"),
    (pa.int64(), pa.array([1.5]), "int64", "change the values"),
    (pa.int64(), pa.array([float("nan")]), "int64", "change the values"),
    (pa.int64(), pa.array([1e30]), "int64", "change the values"),
    (pa.float64(), pa.array([2**53 + 1], pa.int64()), "double", "change the values"),
    (pa.float32(), pa.array([0.1], pa.float64()), "more digits", "change the values"),
    (pa.float32(), pa.array([1e300], pa.float64()), "more digits", "change the values"),
    (pa.list_(pa.float32()), pa.array([[0.1]], pa.list_(pa.float64())), "more digits", "change the values"),
    (pa.list_(pa.list_(pa.float32())), pa.array([[[0.1]]]), "more digits", "change the values"),
    (struct(x=pa.float32()), pa.array([{"x": 0.1}]), "more digits", "change the values"),
    (pa.decimal128(5, 2), pa.array([Decimal("1.234")]), "decimal128", "change the values"),
    (pa.decimal128(3, 2), pa.array([Decimal("100.00")]), "decimal128", "change the values"),
    (pa.decimal128(3, 2), pa.array([10]), "decimal128", "change the values"),
    (pa.decimal128(5, 2), pa.array([1.5]), "double", "cast the column"),
    (pa.timestamp("us", "UTC"), pa.array([1], pa.timestamp("ns", "UTC")), "timestamp", "floor('us')"),
    (pa.timestamp("ms", "UTC"), pa.array([1], pa.timestamp("us", "UTC")), "timestamp", "change the values"),
    (pa.timestamp("us", "UTC"), pa.array([NAIVE]), "timestamp[us]", "tz_localize('UTC')"),
    (pa.timestamp("us"), pa.array([NOON], pa.timestamp("us", "UTC")), "tz=UTC", "tz_localize(None)"),
    (pa.timestamp("us"), pa.array([date(2026, 3, 1)]), "date32", "cast the column"),
    (pa.date32(), pa.array([NAIVE]), "timestamp", "cast the column"),
    (pa.timestamp("us"), pa.array(["2026-03-01"]), "string", "cast the column"),
    (pa.string(), pa.array([1]), "int64", "cast the column to string"),
    (pa.int64(), pa.array(["1"]), "string", "cast the column to int64"),
    (pa.int64(), pa.array([True]), "bool", "cast the column"),
    (pa.bool_(), pa.array([1]), "int64", "cast the column"),
    (pa.string(), pa.array([b"x"]), "binary", "cast the column"),
    (pa.binary(2), pa.array([b"abc"]), "binary", "change the values"),
    (pa.int64(), pa.array([NAIVE]), "timestamp", "cast the column"),
    (pa.timestamp("us"), pa.array([1]), "int64", "cast the column"),
    (pa.list_(pa.int64()), pa.array([1]), "int64", "cast the column"),
    (pa.list_(pa.int64()), pa.array([["a"]]), "list<item: string>", "cast the column"),
    (pa.list_(pa.int8(), 2), pa.array([[1]]), "list", "change the values"),
    (struct(a=pa.int64()), pa.array([{"b": 1}]), "struct<b", "cast the column"),
    (struct(a=pa.int64()), pa.array([{"a": 1, "b": 1}]), "struct<a", "cast the column"),
    (struct(a=pa.int64()), pa.array([1]), "int64", "cast the column"),
    (pa.time64("us"), pa.array([1], pa.time64("ns")), "time64", "change the values"),
    (pa.int64(), pa.array([1], pa.duration("s")), "duration", "cast the column"),
]


@pytest.mark.parametrize(("has", "comes", "kept"), FITS, ids=lambda v: str(getattr(v, "type", v)))
def test_values_that_fit_become_the_dataset_s_type(memory_lake, has, comes, kept):
    dataset = memory_lake.create("d", schema={"x": has})
    dataset.write(pa.table({"x": comes}))
    column = dataset.to_arrow().column("x")
    assert column.to_pylist() == kept
    assert column.type == dataset.schema.field("x").type
    assert dataset.verify().ok


@pytest.mark.parametrize(("has", "comes", "message", "hint"), MISFITS, ids=lambda v: str(getattr(v, "type", v)))
def test_values_that_do_not_fit_are_refused_before_anything_is_visible(memory_lake, has, comes, message, hint):
    dataset = memory_lake.create("d", schema={"x": has})
    with untouched(dataset), pytest.raises(TypeMismatch) as refused:
        dataset.write(pa.table({"x": comes}))
    assert refused.value.column == "x"
    assert "'x'" in refused.value.message
    assert message in refused.value.message
    assert hint in refused.value.hint


def test_nan_is_a_value_like_any_other(memory_lake):
    dataset = memory_lake.create("d", schema={"x": "float32"})
    dataset.write(pa.table({"x": pa.array([float("nan"), 1.0], pa.float64())}))
    assert np.isnan(dataset.to_arrow().column("x").to_pylist()[0])


def test_struct_that_is_a_slice_of_another_is_cast_from_where_it_begins(memory_lake):
    dataset = memory_lake.create("d", schema={"x": struct(a=pa.int64())})
    whole = pa.array([{"a": 1}, None, {"a": 3}, {"a": 4}], struct(a=pa.int8()))
    dataset.write(pa.table({"x": pa.chunked_array([whole.slice(1, 2), whole.slice(3)])}))
    assert dataset.to_arrow().column("x").to_pylist() == [None, {"a": 3}, {"a": 4}]


@pytest.mark.parametrize(
    ("data", "error", "columns", "hint"),
    [
        ({"a": [1]}, MissingColumns, ["name"], "add them"),
        ({"a": [1], "name": ["x"], "z": [1]}, UnknownColumns, ["z"], "evolve"),
        ({"a": [1], "nam": ["x"]}, UnknownColumns, ["nam"], "did you mean 'name'?"),
        ({"A": [1], "name": ["x"]}, UnknownColumns, ["A"], ""),
    ],
)
def test_columns_that_are_not_the_dataset_s_are_refused(lake, data, error, columns, hint):
    dataset = lake.create("d", schema={"a": "int64", "name": "string"})
    with untouched(dataset), pytest.raises(error) as refused:
        dataset.write(pa.table(data))
    assert refused.value.columns == columns
    assert hint in refused.value.hint
    assert repr(columns[0]) in refused.value.message


@pytest.mark.parametrize("name", ["offset", "op", "system_time", "Offset"])
def test_system_columns_are_refused_by_name(lake, name):
    dataset = lake.create("d", schema={"a": "int64"})
    for fresh in (dataset, lake.create("fresh")):
        with untouched(fresh), pytest.raises(BadColumnName) as refused:
            fresh.write(pa.table({"a": [1], name: [1]}))
        assert refused.value.column == name
        assert "rename" in refused.value.hint


def test_two_columns_of_one_name_are_refused(lake):
    dataset = lake.create("d", schema={"a": "int64"})
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    for fresh in (dataset, lake.create("fresh")):
        with untouched(fresh), pytest.raises(BadColumnName) as refused:
            fresh.write(twice)
        assert "a" in refused.value.columns


def test_order_of_columns_does_not_matter(lake):
    dataset = lake.create("d", schema={"a": "int64", "b": "string"})
    dataset.write(pa.table({"b": ["x"], "a": [1]}))
    assert dataset.to_arrow().to_pylist() == [{"a": 1, "b": "x"}]
