"""NaN and null are two transform keys, also for pandas, to which they are one, and however chunks are cut."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.transforms.chunks import Chunk, Side
from functions.calling import call, chunk_of, output

NAN = float("nan")
FLOATS = pa.schema([pa.field("f", pa.float64())])


def by_pandas(df: pd.DataFrame) -> pd.DataFrame:
    return df.groupby("f", dropna=False, as_index=False).agg(n=("i", "count"))


def by_arrow(df: pa.Table) -> pa.Table:
    return df.group_by("f").aggregate([("i", "count")]).rename_columns(["f", "n"])


def by_polars(df: pl.DataFrame) -> pl.DataFrame:
    return df.group_by("f").agg(n=pl.len().cast(pl.Int64))


def from_arrow_to_pandas(df: pa.Table) -> pd.DataFrame:
    return by_pandas(df.to_pandas())


FUNCTIONS = [by_pandas, by_arrow, by_polars, from_arrow_to_pandas]


def name_of(value: float | None) -> str:
    return "null" if value is None else "nan" if math.isnan(value) else str(value)


def counted(called) -> dict[str, int]:
    assert called.failed.select(["message"]).to_pylist() == []
    rows = called.rows[0].to_pylist()
    assert len({name_of(row["f"]) for row in rows}) == len(rows)
    return {name_of(row["f"]): row["n"] for row in rows}


def rows(values: list[float | None]) -> pa.Table:
    return pa.table({"f": pa.array(values, pa.float64()), "i": np.arange(len(values))})


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "values", [[NAN], [None], [NAN, None], [NAN, NAN, None, 1.0], [1.0, NAN], [None, 1.0, None], [1.0]]
)
def test_nan_and_null_are_counted_apart(values: list[float | None], function, known: bool):
    shape = output({"f": pa.float64(), "n": pa.int64()} if known else None, key=("f",), keys=FLOATS)
    wanted = {name: list(map(name_of, values)).count(name) for name in map(name_of, values)}
    assert counted(call(function, chunk_of(rows(values), ["f"]), shape)) == wanted


@pytest.mark.slow
@given(values=st.lists(st.sampled_from([NAN, None, 1.0, -0.0, 2.5]), min_size=1, max_size=12), cut=st.integers(0, 12))
def test_result_does_not_depend_on_how_chunks_are_cut(values: list[float | None], cut: int):
    shape = output({"f": pa.float64(), "n": pa.int64()}, key=("f",), keys=FLOATS)
    chunk = chunk_of(rows(values), ["f"])
    order = np.arange(len(chunk))
    parts = [part for some in (order[:cut], order[cut:]) for part in chunk.chosen(some)]
    pieces = [counted(call(by_pandas, part, shape)) for part in parts]
    assert counted(call(by_pandas, chunk, shape)) == {k: v for piece in pieces for k, v in piece.items()}


def test_every_key_column_is_looked_at():
    values = [NAN, None, 1.0]
    table = pa.table(
        {
            "a": pa.array([a for a in values for _ in values], pa.float64()),
            "b": pa.array([b for _ in values for b in values], pa.float32()),
            "n": np.arange(9),
        }
    )
    schema = pa.schema([("a", pa.float64()), ("b", pa.float32())])
    called = call(lambda df: df, chunk_of(table, ["a", "b"]), output(None, key=("a", "b"), keys=schema))
    assert called.failed.num_rows == 0
    got = {(name_of(r["a"]), name_of(r["b"])): r["n"] for r in called.rows[0].to_pylist()}
    names = [name_of(v) for v in values]
    assert got == {(a, b): 3 * i + j for i, a in enumerate(names) for j, b in enumerate(names)}


def test_chunk_of_a_cross_join_is_cut_into_rectangles():
    given = pa.array([NAN, None, 1.0], pa.float64())
    others = pa.array([10, 20])
    keys = pa.table({"f": given.take(pa.array([0, 0, 1, 1, 2, 2])), "o": others.take(pa.array([0, 1] * 3))})
    sides = (
        Side(pa.table({"f": given}), np.arange(3), np.arange(3), np.repeat(np.arange(3), 2)),
        Side(pa.table({"o": others}), np.arange(2), np.arange(2), np.tile(np.arange(2), 3)),
    )
    schema = pa.schema([("f", pa.float64()), ("o", pa.int64())])
    hashes = chunk_of(keys, ["f", "o"]).hashes
    chunk = Chunk(keys, hashes, sides, axes=(0, 1))
    called = call(lambda a, b: a.merge(b, how="cross"), chunk, output(None, key=("f", "o"), keys=schema))
    assert called.failed.num_rows == 0
    assert called.calls == 2
    got = sorted((name_of(r["f"]), r["o"]) for r in called.rows[0].to_pylist())
    assert got == [(f, o) for f in ("1.0", "nan", "null") for o in (10, 20)]


def test_null_that_no_nan_can_stand_for_is_still_a_key_that_was_not_given():
    shape = output({"f": pa.float64(), "n": pa.int64()}, key=("f",), keys=FLOATS)
    called = call(lambda df: pd.DataFrame({"f": [None], "n": [1]}), chunk_of(rows([1.0]), ["f"]), shape)
    assert called.failed.column("type").to_pylist() == ["floodmark.errors.UnfitRows"]


def test_chunk_without_both_is_called_once():
    shape = output({"f": pa.float64(), "n": pa.int64()}, key=("f",), keys=FLOATS)
    assert call(by_pandas, chunk_of(rows([1.0, NAN, 2.0]), ["f"]), shape).calls == 1
    assert call(by_pandas, chunk_of(rows([1.0, NAN, None, 2.0]), ["f"]), shape).calls == 2
