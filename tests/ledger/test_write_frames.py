"""Frames of every library can be written, and what is no frame is refused."""

from __future__ import annotations

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadData, BadEventTime, NothingToWrite, TypeMismatch, UnsupportedType
from ledger.worlds import START, events, keys, numbers, untouched
from limits import set_limit

ROWS = [{"n": 1, "s": "a"}, {"n": 2, "s": None}, {"n": 3, "s": "c"}]
TABLE = pa.Table.from_pylist(ROWS)

FRAMES = {
    "table": lambda: TABLE,
    "batch": lambda: TABLE.to_batches()[0],
    "chunks": lambda: pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
    "reader": lambda: TABLE.to_reader(max_chunksize=2),
    "pandas": lambda: TABLE.to_pandas(),
    "pandas with an index": lambda: TABLE.to_pandas().set_index(pd.Index(["x", "y", "z"])),
    "pandas with pandas's own types": lambda: TABLE.to_pandas().convert_dtypes(),
    "polars": lambda: pl.from_arrow(TABLE),
    "polars lazy": lambda: pl.from_arrow(TABLE).lazy().filter(pl.col("n") > 0),
    "polars categories": lambda: pl.from_arrow(TABLE).with_columns(pl.col("s").cast(pl.Categorical)),
    "duckdb": lambda: duckdb.sql("select * from (values (1, 'a'), (2, null), (3, 'c')) t(n, s)"),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frame_is_written(lake, kind):
    dataset = lake.create("d")
    commit = dataset.write(FRAMES[kind]())
    assert (commit.start, commit.end, commit.rows) == (0, 3, 3)
    assert dataset.to_arrow().to_pylist() == ROWS
    assert dataset.verify().ok
    assert list(lake.store.staging().iterdir()) == []


def test_stream_longer_than_memory_becomes_files_of_bounded_size(lake, monkeypatch):
    set_limit(monkeypatch, "text_files.part_bytes", 1000)
    dataset = lake.create("d")
    reader = pa.RecordBatchReader.from_batches(
        numbers(0, 1).schema, (b for i in range(10) for b in numbers(100 * i, 100 * i + 100).to_batches())
    )
    dataset.write(reader)
    assert dataset.to_arrow().column("n").to_pylist() == list(range(1000))


def test_stream_of_structs_with_required_members_is_written(lake):
    member = pa.field("x", pa.int64(), nullable=False)
    structs = pa.StructArray.from_arrays([pa.array([1, None])], fields=[member], mask=pa.array([False, True]))
    lists = pa.array([[1], None], pa.list_(pa.field("item", pa.int64(), nullable=False)))
    table = pa.table({"s": structs, "l": lists})
    dataset = lake.create("d")
    dataset.write(table.to_reader())
    dataset.write(table)
    assert dataset.to_arrow().to_pylist() == [{"s": {"x": 1}, "l": [1]}, {"s": None, "l": None}] * 2


def test_stream_that_breaks_off_leaves_nothing(lake):
    def batches():
        yield from numbers(0, 5).to_batches()
        raise OSError("the cable was cut")

    dataset = lake.create("d", schema={"n": "int64"})
    with untouched(dataset), pytest.raises(OSError, match="the cable was cut"):
        dataset.write(pa.RecordBatchReader.from_batches(numbers(0, 1).schema, batches()))


def test_pandas_times_are_kept_to_the_microsecond(lake):
    dataset = lake.create("d")
    frame = pd.DataFrame({"t": pd.to_datetime(["2026-01-01T00:00:00.123456Z"]), "day": [START.date()]})
    dataset.write(frame)
    assert dataset.schema.field("t").type == pa.timestamp("us", "UTC")
    assert dataset.to_pandas()["t"].tolist() == frame["t"].tolist()


def test_pandas_times_finer_than_microseconds_are_refused(lake):
    dataset = lake.create("d")
    with untouched(dataset), pytest.raises(TypeMismatch, match="'t'") as refused:
        dataset.write(pd.DataFrame({"t": pd.to_datetime(["2026-01-01T00:00:00.123456789Z"])}))
    assert "floor('us')" in refused.value.hint


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"a": 1}, "dict"),
        (None, "NoneType"),
        ([], "list"),
        ([{"a": 1}], "list"),
        (7, "int"),
        (pl.Series([1]), "Series"),
        (pa.chunked_array([[1]]), "ChunkedArray"),
        (pd.Series([1]), "Series"),
        (pd.DataFrame({"a": [1, "x", object()]}), "one type"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_is_no_frame_is_refused(lake, data, word):
    dataset = lake.create("d")
    with untouched(dataset), pytest.raises(BadData) as refused:
        dataset.write(data)
    assert word in str(refused.value)


EMPTY = {
    "table": numbers(0, 0),
    "no columns": pa.table({}),
    "reader": numbers(0, 0).to_reader(),
    "pandas": pd.DataFrame({"n": pd.Series([], dtype="int64")}),
    "pandas without types": pd.DataFrame({"n": []}, dtype=object),
    "pandas without columns": pd.DataFrame(),
    "polars": pl.DataFrame(schema={"n": pl.Int64}),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_frame_without_rows_is_nothing_to_write(lake, kind):
    # Whether a stream has rows is known only after its columns are.
    dataset = lake.create("d", event_time=None if kind == "reader" else "at")
    with untouched(dataset), pytest.raises(NothingToWrite, match="'d'"):
        dataset.write(EMPTY[kind])
    assert dataset.schema is None


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1], pa.duration("s")),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([[{"a": 1}]]),
        pa.array([[None]]),
    ],
    ids=lambda c: str(c.type),
)
def test_type_without_a_hash_rule_is_refused_by_name(lake, column):
    dataset = lake.create("d")
    with untouched(dataset), pytest.raises(UnsupportedType, match="'odd'") as refused:
        dataset.write(pa.table({"n": [1], "odd": column}))
    assert refused.value.column == "odd"
    assert refused.value.hint


def test_null_event_time_is_refused_with_its_row(lake):
    dataset = lake.create("d", event_time="at")
    with untouched(dataset), pytest.raises(BadEventTime, match="'at', first at row 2") as refused:
        dataset.write(events(5, 1, None, 3, None))
    assert "2 rows" in refused.value.message
    assert refused.value.column == "at"


@pytest.mark.parametrize(
    "column", [pa.array(["2026-01-01"]), pa.array([1]), pa.array([1.5])], ids=lambda c: str(c.type)
)
def test_event_time_that_is_no_time_is_refused(lake, column):
    dataset = lake.create("d", event_time="at")
    with untouched(dataset), pytest.raises(BadEventTime, match="'at'"):
        dataset.write(pa.table({"at": column}))


@pytest.mark.parametrize("micros", [-(10**17), 253_402_300_800 * 10**6, 10**18])
def test_event_time_out_of_range_is_refused(lake, micros):
    dataset = lake.create("d", event_time="at")
    with untouched(dataset), pytest.raises(BadEventTime, match="years 1 to 9999"):
        dataset.write(pa.table({"at": pa.array([0, micros], pa.timestamp("us", "UTC"))}))


@pytest.mark.parametrize("micros", [-62_135_596_800 * 10**6, 253_402_300_799 * 10**6])
def test_event_time_may_lie_as_far_as_the_years_go(lake, micros):
    dataset = lake.create("d", event_time="at")
    dataset.write(pa.table({"at": pa.array([micros], pa.timestamp("us", "UTC"))}))
    reopened = fm.Lake(lake.store)["d"]
    assert reopened.to_arrow().column("at").cast(pa.int64()).to_pylist() == [micros]
    assert reopened.watermark.year in (1, 9999)
    assert reopened.verify().ok
    assert reopened.purge(before="9999-12-31T23:59:59Z").records == (1 if micros < 0 else 0)


def test_write_that_is_refused_half_way_leaves_no_part_of_it(lake, monkeypatch):
    set_limit(monkeypatch, "parts.part_bytes", 800)
    dataset = lake.create("d", schema={"n": "int8"})
    with untouched(dataset), pytest.raises(TypeMismatch):
        dataset.write(numbers(0, 1000))
    assert keys(dataset, "data") == []
