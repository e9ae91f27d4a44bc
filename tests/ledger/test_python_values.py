"""Python objects of several kinds in one column, which Arrow converts without a word, are refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadColumnName, BadData, DuplicateKeys, FloodmarkError, TypeMismatch, UnreadableFile
from floodmark.storage.memory import MemoryStore

NOON = datetime(2026, 11, 19, 12)


@pytest.fixture
def lake() -> fm.Lake:
    return fm.Lake(MemoryStore())


def objects(values: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({"n": range(len(values)), "v": pd.Series(values, dtype=object)})


@pytest.mark.parametrize(
    "values",
    [
        [NOON, 2.5],
        [NOON, 5],
        [NOON, NOON.replace(tzinfo=UTC)],
        [NOON.replace(tzinfo=UTC), NOON],
        [date(2026, 11, 19), 5],
        [date(2026, 11, 19), NOON],
        [time(8), 5],
        [1.5, True],
        [np.True_, 1],
        [b"a", "b"],
        [pd.Timestamp("2026-11-19 00:00:00.000000001"), datetime(1, 1, 1)],
        [[NOON], [NOON.replace(tzinfo=UTC)]],
        [{"at": date(2026, 11, 19)}, {"at": NOON}],
        [np.datetime64("2026-11-19"), np.float32(0.5), pd.NaT],
    ],
    ids=str,
)
def test_values_of_several_kinds_in_a_column_of_pandas_are_refused(lake: fm.Lake, values: list[Any]):
    made = lake.create("d")
    with pytest.raises(BadData, match="pandas cannot convert"):
        made.write(objects(values))
    assert made.schema is None


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.5, None],
        [NOON, None, pd.NaT, float("nan")],
        [date(2026, 11, 19), pd.NaT],
        [pd.Timestamp("2026-11-19"), NOON],
        [True, None],
        [[1], None],
        [{"a": 1}, None],
        ["a", pd.NA],
    ],
    ids=str,
)
def test_missing_values_are_of_every_kind(lake: fm.Lake, values: list[Any]):
    made = lake.create("d")
    assert made.write(objects(values)).new == len(values)
    assert made.to_arrow().column("v").null_count == sum(pd.isna(v) is True for v in values)


@pytest.mark.parametrize(("column", "key"), [(pa.array([1.0, 2.0]), True), (pa.array([1, 2], pa.timestamp("us")), 1)])
def test_key_of_another_kind_retracts_no_row(lake: fm.Lake, column: pa.Array, key: Any):
    made = lake.create("d", key="id")
    made.write(pa.table({"id": column}))
    with pytest.raises(FloodmarkError):
        made.delete([key])
    assert made.count() == 2


def test_nan_is_no_date(lake: fm.Lake):
    made = lake.create("d", key="id")
    made.write(pa.table({"id": pa.array([1, 2], pa.date32())}))
    with pytest.raises(FloodmarkError):
        made.delete([float("nan")])
    assert made.count() == 2


def test_name_that_sql_cannot_have_is_refused(lake: fm.Lake):
    with pytest.raises(BadColumnName, match="NUL"):
        lake.create("d").write(pa.table({"n": [1], "\x00": [2]}))


def test_index_with_the_name_of_a_column_is_refused(lake: fm.Lake):
    frame = pd.DataFrame({"id": [1, 2]}, index=pd.Index([7, 8], name="id"))
    with pytest.raises(FloodmarkError, match="columns named 'id'"):
        lake.create("d").write(frame)


def test_class_of_frames_is_no_frame(lake: fm.Lake):
    with pytest.raises(BadData, match="cannot write"):
        lake.create("d").write(pd.DataFrame)


def test_name_that_no_file_can_have_is_an_error_of_ours(lake: fm.Lake):
    with pytest.raises(UnreadableFile, match="too long"):
        lake.create("d").write("x" * 5000)


@pytest.mark.parametrize(
    "column",
    [pa.array([86_400_000, 86_400_001]).view(pa.date64()), pa.array([1, 2**63 - 1]).view(pa.timestamp("s"))],
    ids=["time of day", "overflow"],
)
def test_time_that_parquet_lacks_is_refused_in_a_stream(lake: fm.Lake, column: pa.Array):
    made = lake.create("d")
    table = pa.table({"at": column})
    with pytest.raises(TypeMismatch):
        made.write(table)
    with pytest.raises(TypeMismatch):
        made.write(pa.RecordBatchReader.from_batches(table.schema, table.to_batches()))
    assert made.schema is None


def test_key_after_the_year_9999_is_named_in_errors(lake: fm.Lake):
    made = lake.create("d", key="at", merge="ledger")
    with pytest.raises(DuplicateKeys, match="at='10000-01-01"):
        made.write(pa.table({"at": pa.array([253_402_300_800_000] * 2).view(pa.timestamp("ms"))}))
