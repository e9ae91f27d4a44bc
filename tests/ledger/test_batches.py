"""to_batches streams some columns of the rows that a filter keeps; DuckDB and Polars take the stream as it is."""

from __future__ import annotations

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from floodmark.errors import BadQuery


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    made = fm.Lake(tmp_path_factory.mktemp("lake")).create("d")
    made.write(pa.table({"n": [1, 2, 3], "s": ["a", None, "c"], "a.b": [10, 20, 30]}))
    made.write(pa.table({"n": [4, 5], "s": ["d", "a"], "a.b": [40, None]}))
    return made


def test_stream_holds_the_data_in_offset_order(dataset):
    reader = dataset.to_batches()
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema == dataset.schema
    assert reader.read_all().column("n").to_pylist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        (None, [1, 2, 3, 4, 5]),
        ("n > 2", [3, 4, 5]),
        ("s = 'a'", [1, 5]),
        ("s is null or n = 4", [2, 4]),
        ("length(s) = 1 and n % 2 = 1", [1, 3, 5]),
        ('"a.b" >= 30', [3, 4]),
        ('"offset" < 2', [1, 2]),
        ("n > 100", []),
        ("current_setting('TimeZone') = 'UTC'", [1, 2, 3, 4, 5]),
        (pc.field("n") > 2, [3, 4, 5]),
        (pc.field("s") == "a", [1, 5]),
        (pc.field("offset") >= 3, [4, 5]),
        (pc.field("n") > 100, []),
    ],
    ids=str,
)
def test_filter_is_sql_or_an_arrow_expression(dataset, where, kept):
    table = dataset.to_batches(where=where).read_all()
    assert table.column("n").to_pylist() == kept
    assert table.schema == dataset.schema


@pytest.mark.parametrize("where", [None, "n > 1", pc.field("n") > 1], ids=str)
def test_columns_come_as_asked_system_columns_too(dataset, where):
    table = dataset.to_batches(columns=["a.b", "offset", "op"], where=where).read_all()
    assert table.column_names == ["a.b", "offset", "op"]
    assert table.column("offset").to_pylist() == ([0] if where is None else []) + [1, 2, 3, 4]
    assert set(table.column("op").to_pylist()) == {0}


def test_filter_stays_within_what_as_of_shows(dataset):
    for where in ("n > 1", pc.field("n") > 1):
        assert dataset.to_batches(where=where, as_of=1).read_all().column("n").to_pylist() == [2]


@pytest.mark.parametrize(
    "where",
    [
        "nope > 1",
        "n >",
        "",
        "n > 1; drop table x",
        "s > 5 +",
        pc.field("nope") > 1,
        pc.field("n"),
        pc.field("s") > 5,
        7,
    ],
    ids=str,
)
def test_filter_that_does_not_work_is_refused(dataset, where):
    with pytest.raises(BadQuery) as refused:
        dataset.to_batches(where=where).read_all()
    assert refused.value.hint


def test_unknown_column_is_refused_by_name(dataset):
    for read in (dataset.to_batches, dataset.to_arrow, dataset.to_pandas):
        with pytest.raises(BadQuery, match="'nope'") as refused:
            read(columns=["n", "nope"])
        assert "n, s, a.b" in refused.value.hint


def test_no_columns_still_count_the_rows(dataset):
    assert dataset.to_arrow(columns=[]).num_rows == 5


def test_duckdb_takes_the_stream(dataset):
    with duckdb.connect() as connection:
        stream = connection.from_arrow(dataset.to_batches(columns=["n"]))
        assert stream.sum("n").fetchall() == [(15,)]


def test_polars_takes_the_stream(dataset):
    frame = pl.from_arrow(dataset.to_batches(where="n < 3"))
    assert frame["s"].to_list() == ["a", None]


def test_pandas_gets_the_same_rows(dataset):
    frame = dataset.to_pandas(columns=["n", "s"])
    assert frame["n"].tolist() == [1, 2, 3, 4, 5]
    assert frame.columns.tolist() == ["n", "s"]
