"""What pandas and Polars make of types on the way through a function is set right when its result is taken."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from functions.calling import call, chunk_of, ids, output

BIG = 2**62 + 1

VALUES = {
    "int64": pa.array([1, None, 3], pa.int64()),
    "int8": pa.array([1, None, 3], pa.int8()),
    "large int64": pa.array([BIG, None, -BIG], pa.int64()),
    "large uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "large int64 without nulls": pa.array([BIG, 0, -BIG], pa.int64()),
    "float64": pa.array([1.5, None, -0.0], pa.float64()),
    "float32": pa.array([0.1, None, 2.5], pa.float32()),
    "bool": pa.array([True, None, False]),
    "text": pa.array(["a", None, ""]),
    "bytes": pa.array([b"a", None, b"\xff"]),
    "date": pa.array([dt.date(2026, 1, 1), None, dt.date(1066, 10, 14)]),
    "time": pa.array([dt.time(1, 2, 3, 4), None, dt.time(0)], pa.time64("us")),
    "timestamp": pa.array([1, None, 3], pa.timestamp("us")),
    "timestamp ms": pa.array([1, None, 3], pa.timestamp("ms")),
    "timestamp utc": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
    "timestamp zone": pa.array([1, None, 3], pa.timestamp("us", "Europe/Berlin")),
    "timestamp of long ago": pa.array([dt.datetime(1, 1, 1), None, dt.datetime(9999, 12, 31)], pa.timestamp("us")),
    "decimal": pa.array([decimal.Decimal("1.20"), None, decimal.Decimal("-3.40")], pa.decimal128(10, 2)),
    "list": pa.array([[1.5, 2.5], None, []], pa.list_(pa.float32())),
    "vector": pa.array([[1.5, 2.5], None, [0.0, 1.0]], pa.list_(pa.float32(), 2)),
    "struct": pa.array(
        [{"a": 1, "b": "x"}, None, {"a": None, "b": None}], pa.struct([("a", pa.int64()), ("b", pa.string())])
    ),
    "nothing": pa.array([None, None, None], pa.int64()),
}


def by_pandas(df: pd.DataFrame) -> pd.DataFrame:
    return df


def by_polars(df: pl.DataFrame) -> pl.DataFrame:
    return df


def by_arrow(df: pa.Table) -> pa.Table:
    return df


def by_batch(df: pa.RecordBatch) -> pa.RecordBatch:
    return df


@pytest.mark.parametrize("function", [by_pandas, by_polars, by_arrow, by_batch])
@pytest.mark.parametrize("name", VALUES)
def test_values_come_through_every_frame_as_they_were(name: str, function):
    values = VALUES[name]
    table = pa.table({"id": [1, 2, 3], "v": values})
    called = call(function, chunk_of(table), output({"id": pa.int64(), "v": values.type}))
    assert called.failed.select(["id", "message"]).to_pylist() == []
    assert called.rows[0].column("v").to_pylist() == values.to_pylist()


@pytest.mark.parametrize(
    ("made", "wanted", "values"),
    [
        ([1.0, np.nan], pa.int64(), [1, None]),
        (pd.array([1, None], "Int64"), pa.int64(), [1, None]),
        (pd.array([1, None], "Int32"), pa.int64(), [1, None]),
        ([np.nan, 0.5], pa.float64(), [None, 0.5]),
        ([True, None], pa.bool_(), [True, None]),
        (pd.array([True, None], "boolean"), pa.bool_(), [True, None]),
        (pd.Categorical(["a", None]), pa.string(), ["a", None]),
        (pd.Categorical([1, 2]), pa.int64(), [1, 2]),
        (pd.array(["a", None], "string"), pa.string(), ["a", None]),
        (pd.array(["a", None], "string[pyarrow]"), pa.string(), ["a", None]),
        (pd.array([1, None], pd.ArrowDtype(pa.int16())), pa.int64(), [1, None]),
        (["a", np.nan], pa.string(), ["a", None]),
        ([None, None], pa.string(), [None, None]),
        ([np.nan, np.nan], pa.string(), [None, None]),
        ([np.nan, np.nan], pa.list_(pa.float32()), [None, None]),
        (pd.to_datetime([1_000, None], unit="us"), pa.timestamp("us"), [dt.datetime(1970, 1, 1, 0, 0, 0, 1000), None]),
        ([pd.Timestamp("2026-01-01"), pd.NaT], pa.timestamp("us"), [dt.datetime(2026, 1, 1), None]),
        ([dt.date(2026, 1, 1), None], pa.date32(), [dt.date(2026, 1, 1), None]),
        ([np.array([1.0, 2.0], np.float32), None], pa.list_(pa.float32()), [[1.0, 2.0], None]),
        ([[], []], pa.list_(pa.float32()), [[], []]),
        ([1, 2], pa.float64(), [1.0, 2.0]),
        ([1, 2], pa.decimal128(10, 2), [decimal.Decimal("1.00"), decimal.Decimal("2.00")]),
    ],
)
def test_what_pandas_makes_of_values_fits_where_they_are_the_same(made, wanted: pa.DataType, values):
    called = call(lambda df: pd.DataFrame({"id": df["id"], "v": made}), ids(2), output({"id": pa.int64(), "v": wanted}))
    assert called.failed.select(["id", "message"]).to_pylist() == []
    assert called.rows[0].column("v").to_pylist() == values


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        ([1.5, 2.0], pa.int64()),
        (["1", "2"], pa.int64()),
        ([1, 2], pa.string()),
        ([0, 1], pa.bool_()),
        ([300, 1], pa.int8()),
        ([0.1, 0.2], pa.float32()),
        (pd.to_datetime([1, 2], unit="us", utc=True), pa.timestamp("us")),
    ],
)
def test_what_would_change_values_or_their_meaning_fails_the_keys(made, wanted: pa.DataType):
    def make(df):
        return pd.DataFrame({"id": df["id"], "v": [made[key] for key in df["id"]]})

    called = call(make, ids(2), output({"id": pa.int64(), "v": wanted}))
    assert set(called.failed.column("type").to_pylist()) == {"floodmark.errors.UnfitRows"}
    for message in called.failed.column("message").to_pylist():
        assert "'v'" in message
        assert "OutputSpec('out', schema=…)" in message


def test_nanoseconds_that_would_be_lost_fail_their_key():
    def fine(df):
        return pd.DataFrame({"id": df["id"], "t": pd.to_datetime(df["id"] * 500, unit="ns")})

    called = call(fine, ids(3), output({"id": pa.int64(), "t": pa.timestamp("us")}))
    assert called.failed.column("id").to_pylist() == [1]


@pytest.mark.parametrize("known", [True, False])
def test_polars_texts_and_categories_are_texts(known: bool):
    def make(df: pl.DataFrame) -> pl.DataFrame:
        return df.select("id", c=pl.lit("a").cast(pl.Categorical), s=pl.lit("b"), e=pl.lit("x").cast(pl.Enum(["x"])))

    columns = {"id": pa.int64(), "c": pa.string(), "s": pa.string(), "e": pa.string()}
    called = call(make, ids(2), output(columns if known else None))
    assert called.rows[0].schema.types == list(columns.values())
    assert called.rows[0].to_pylist() == [{"id": i, "c": "a", "s": "b", "e": "x"} for i in range(2)]


def test_lazy_polars_frame_is_collected():
    called = call(lambda df: pl.from_pandas(df).lazy(), ids(2), output(None))
    assert called.rows[0].num_rows == 2


def test_rows_keep_what_the_last_call_gave_when_a_chunk_has_many_pieces():
    table = pa.concat_tables([pa.table({"id": [i], "x": [float(i)]}) for i in range(5)])
    for function in (by_pandas, by_polars, by_arrow, by_batch):
        called = call(function, chunk_of(table), output({"id": pa.int64(), "x": pa.float64()}))
        assert called.rows[0].to_pylist() == table.to_pylist()


def test_pandas_frames_can_be_written_to():
    def write(df: pd.DataFrame) -> pd.DataFrame:
        for name in ("x", "t", "b"):
            df.loc[df["id"] == 0, name] = df[name].iloc[-1]
        df["x"] += 1
        return df

    table = pa.table({"id": [0, 1], "x": [0.5, 1.5], "t": pa.array([1, 2], pa.timestamp("us")), "b": [True, False]})
    called = call(write, chunk_of(table), output(dict(zip(table.column_names, table.schema.types, strict=True))))
    assert called.failed.num_rows == 0
    assert called.rows[0].column("x").to_pylist() == [2.5, 2.5]
    assert table.column("x").to_pylist() == [0.5, 1.5]
