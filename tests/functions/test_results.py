"""What a function returns is the column's values, or refused with the range and the first offending rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from floodmark.errors import BadResult
from floodmark.functions.udf_result import ResultColumn

START = 100


def wanted(data_type: pa.DataType, *, nullable: bool = True) -> ResultColumn:
    return ResultColumn("y", data_type, nullable)


def offsets(rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(START, START + rows)


@pytest.mark.parametrize(
    ("result", "data_type", "values"),
    [
        (pa.array([1, None]), pa.int64(), [1, None]),
        (pa.array([1, 2], pa.int8()), pa.int64(), [1, 2]),
        (pa.array([1, 2]), pa.int8(), [1, 2]),
        (pa.array([1, 2]), pa.float64(), [1.0, 2.0]),
        (pa.array([1.0, 2.0]), pa.int64(), [1, 2]),
        (pa.array([0.5, float("inf"), None]), pa.float32(), [0.5, float("inf"), None]),
        (pa.array([None, None]), pa.string(), [None, None]),
        (pa.array(["a", "b"]).dictionary_encode(), pa.string(), ["a", "b"]),
        (pa.RunEndEncodedArray.from_arrays([2], ["a"]), pa.string(), ["a", "a"]),
        (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
        (pa.array([[0.5], []]), pa.list_(pa.float32()), [[0.5], []]),
        (pa.array([{"b": 1}]), pa.struct([("a", pa.int8()), ("b", pa.int8())]), [{"a": None, "b": 1}]),
        (pa.array([1, 2]), pa.decimal128(21, 2), [Decimal(1), Decimal(2)]),
        (pa.array([dt.datetime(2020, 1, 1)]), pa.timestamp("ms"), [dt.datetime(2020, 1, 1)]),
        (pa.chunked_array([[1], [2]]), pa.int64(), [1, 2]),
        (np.array([1.5, 2.5]), pa.float64(), [1.5, 2.5]),
        (pl.Series([1, 2]), pa.int64(), [1, 2]),
    ],
)
def test_arrays_that_say_the_same_in_another_type_are_taken(result: Any, data_type: pa.DataType, values: list[Any]):
    taken = wanted(data_type).from_arrow(result, offsets(len(values)))
    assert taken.type == data_type
    assert taken.to_pylist() == values


def test_nan_survives_a_shorter_float():
    assert np.isnan(wanted(pa.float32()).from_arrow(pa.array([float("nan")]), offsets(1)).to_numpy()[0])


@pytest.mark.parametrize(
    ("result", "data_type", "first"),
    [
        (pa.array([1.0, 1.5, 2.5]), pa.int64(), [101, 102]),
        (pa.array([1, 300, 2, 400, 500, 600]), pa.int8(), [101, 103, 104]),
        (pa.array([0.5, 0.1]), pa.float32(), [101]),
        (pa.array([[0.5], [0.5, 0.1]]), pa.list_(pa.float32()), [101]),
        (pa.array([{"a": 0.5}, {"a": 0.1}]), pa.struct([("a", pa.float32())]), [101]),
        (pa.array([2**53, 2**53 + 1]), pa.float64(), [101]),
        (pa.array(["1", "2"]), pa.int64(), [100, 101]),
        (pa.array([1, 2]), pa.string(), [100, 101]),
        (pa.array([True]), pa.int64(), [100]),
        (pa.array([1.5]), pa.decimal128(5, 2), [100]),
        (pa.array([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1)]), pa.timestamp("ms"), [101]),
        (pa.array([dt.datetime(2020, 1, 1)]), pa.date32(), [100]),
        (pa.array([dt.datetime(2020, 1, 1)]), pa.int64(), [100]),
        (pa.array([{"c": 1}]), pa.struct([("a", pa.int8())]), [100]),
        (pa.array([[1.0, 2.0], [1.0]]), pa.list_(pa.float64(), 2), [101]),
    ],
)
def test_lossy_or_foreign_arrays_are_refused_with_the_first_rows(result: Any, data_type: pa.DataType, first: list[int]):
    with pytest.raises(BadResult, match=r"column 'y' returned .*, for offsets \[100, ") as caught:
        wanted(data_type).from_arrow(result, offsets(len(result)))
    assert caught.value.offsets == tuple(first)
    assert (caught.value.column, caught.value.start, caught.value.end) == ("y", 100, 100 + len(result))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (pa.array([1]), "returned 1 values for 2 rows"),
        (pa.array([1, 2, 3]), "returned 3 values for 2 rows"),
        (pa.chunked_array([], pa.int64()), "returned 0 values for 2 rows"),
        (None, "returned nothing, not an array"),
        ([1, 2], "returned a value of type list, not an array"),
        (pa.scalar(3), "returned a value of type Int64Scalar, not an array"),
        (np.zeros((2, 2)), "that is not an array"),
        (pa.table({"a": [1, 2]}), "that is not an array|types are not compatible"),
    ],
)
def test_anything_but_one_value_per_row_is_refused(result: Any, message: str):
    with pytest.raises(BadResult, match=message):
        wanted(pa.int64()).from_arrow(result, offsets(2))


@pytest.mark.parametrize(
    ("results", "data_type"),
    [
        ([1, None, 2.0], pa.int64()),
        ([np.int64(1), np.int32(2)], pa.int64()),
        ([2**63 + 1, 1], pa.uint64()),
        ([0.1, 1], pa.float32()),
        ([[0.1], [], None], pa.list_(pa.float32())),
        ([np.array([0.1, 0.2])], pa.list_(pa.float64())),
        ([[1, 2], None], pa.list_(pa.int8())),
        (["a", None], pa.string()),
        ([b"a"], pa.binary()),
        ([dt.date(2020, 1, 1)], pa.date32()),
        ([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
        ([dt.datetime(2020, 1, 1)], pa.timestamp("ms")),
        ([dt.time(1, 2)], pa.time64("us")),
        ([Decimal("1.25")], pa.decimal128(5, 2)),
        ([{"a": 1, "b": "x"}, {"a": 2}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([None, None], pa.int64()),
        ([True, None], pa.bool_()),
    ],
)
def test_python_values_become_the_columns(results: list[Any], data_type: pa.DataType):
    taken = wanted(data_type).from_python(results, offsets(len(results)))
    assert taken.type == data_type
    assert taken.equals(pa.array(results, data_type))


@pytest.mark.parametrize(
    ("results", "data_type", "first"),
    [
        ([1, 1.5], pa.int64(), [101]),
        ([1, "2"], pa.int64(), [101]),
        ([1, True], pa.int64(), [101]),
        ([[1], [1.5]], pa.list_(pa.int64()), [101]),
        ([1, 300], pa.int8(), [101]),
        (["a", 1], pa.string(), [101]),
        (["a", "\ud800"], pa.string(), [101]),
        ([1.0, "x", object()], pa.float64(), [101, 102]),
        ([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1)], pa.timestamp("ms"), [101]),
        ([dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)], pa.date32(), [101]),
        ([3], pa.timestamp("us"), [100]),
        ([{"a": 1}, {"c": 1}], pa.struct([("a", pa.int64())]), [101]),
        ([Decimal("1.255")], pa.decimal128(5, 2), [100]),
    ],
)
def test_python_values_of_another_type_are_refused(results: list[Any], data_type: pa.DataType, first: list[int]):
    with pytest.raises(BadResult, match=r"for offsets \[100, ") as caught:
        wanted(data_type).from_python(results, offsets(len(results)))
    assert caught.value.offsets == tuple(first)


def test_null_where_none_may_be_is_refused_with_the_first_rows():
    strict = wanted(pa.int64(), nullable=False)
    assert strict.from_python([1, 2], offsets(2)).to_pylist() == [1, 2]
    for convert in (strict.from_python, lambda values, at: strict.from_arrow(pa.array(values, pa.int64()), at)):
        with pytest.raises(BadResult, match=r"4 nulls.*\(first at 101, 102, 104\)") as caught:
            convert([1, None, None, 2, None, None], offsets(6))
        assert caught.value.offsets == (101, 102, 104)


def test_offsets_with_gaps_are_named_as_they_are():
    with pytest.raises(BadResult, match=r"\[5, 91\)") as caught:
        wanted(pa.int8()).from_arrow(pa.array([1, 300, 2]), np.array([5, 70, 90]))
    assert caught.value.offsets == (70,)
