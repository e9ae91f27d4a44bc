"""`spark.read.format("floodmark")`: the same rows as the dataset's own ways of reading."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from floodmark import Lake, RecordsPurged, UnknownDataset, udf
from floodmark.errors import BadOption, UnknownColumns
from ledger.arrow_types import PLAIN
from limits import set_limit
from spark_source.worlds import load, numbers, source


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def people(lake: Lake):
    """A keyed dataset: of five records two are dead."""
    dataset = lake.create("people", key="id")
    dataset.write(pa.table({"id": [1, 2, 3], "city": ["Oslo", "Rome", "Bern"]}))
    dataset.write(pa.table({"id": [2], "city": ["Paris"]}))
    return dataset


def twice(id: pa.Array) -> pa.Array:  # noqa: A002  the column's name
    return pc.multiply(id, 2)


def test_the_current_rows_are_read(lake: Lake):
    dataset = people(lake)
    assert load(source(lake, "people")).to_pylist() == dataset.to_arrow().to_pylist()


def test_system_columns_come_when_asked_for(lake: Lake):
    dataset = people(lake)
    table = load(source(lake, "people", system="true"))
    assert table.column_names == ["offset", "op", "system_time", "id", "city"]
    assert table.column("offset").to_pylist() == [0, 2, 4]
    assert table.select(["id", "city"]).to_pylist() == dataset.to_arrow().to_pylist()


@pytest.mark.parametrize("as_of", ["2", "4"])
def test_the_past_is_read(lake: Lake, as_of: str):
    dataset = people(lake)
    assert load(source(lake, "people", as_of=as_of)).to_pylist() == dataset.to_arrow(as_of=int(as_of)).to_pylist()


@pytest.mark.parametrize("since", [-1, 0, 3])
@pytest.mark.parametrize("until", [None, 3])
def test_changes_are_records_with_system_columns(lake: Lake, since: int, until: int | None):
    dataset = people(lake)
    given = {"since": since} if until is None else {"since": since, "until": until}
    assert load(source(lake, "people", **given)).to_pylist() == dataset.changes_arrow(since, until).to_pylist()


def test_computed_columns_are_read_with_the_rows(lake: Lake):
    dataset = people(lake)
    dataset.add_column("twice", udf(returns="int64", version="1")(twice))
    dataset.backfill("twice")
    table = load(source(lake, "people"))
    assert table.column_names == ["id", "city", "twice"]
    assert table.to_pylist() == dataset.to_arrow().to_pylist()


def test_a_frame_sees_the_rows_of_the_moment_it_was_made(lake: Lake):
    dataset = people(lake)
    before = dataset.to_arrow().to_pylist()
    frame = source(lake, "people")
    columns = frame.schema()
    dataset.write(pa.table({"id": [1, 9], "city": ["Bonn", "Graz"]}))
    assert load(frame, columns).to_pylist() == before
    assert load(source(lake, "people")).to_pylist() == dataset.to_arrow().to_pylist() != before


def test_changes_of_a_frame_end_where_they_ended_when_it_was_made(lake: Lake):
    lake.create("events").write(numbers(0, 3))
    frame = source(lake, "events", changes="true")
    columns = frame.schema()
    lake["events"].write(numbers(3, 5))
    assert load(frame, columns).column("n").to_pylist() == [0, 1, 2]


def test_a_dataset_without_records_has_columns_and_no_rows(lake: Lake):
    lake.create("empty", schema={"n": pa.int64()})
    frame = source(lake, "empty")
    assert frame.schema() == StructType([StructField("n", LongType())])
    assert frame.reader(frame.schema()).partitions() == []
    assert list(frame.reader(frame.schema()).read(None)) == []


def test_all_that_is_purged_reads_as_nothing(lake: Lake):
    dataset = lake.create("events")
    dataset.write(numbers(0, 3))
    dataset.purge(before=3)
    assert load(source(lake, "events")).num_rows == 0
    with pytest.raises(RecordsPurged):
        load(source(lake, "events", since=-1))


def test_a_narrower_schema_reads_fewer_columns(lake: Lake):
    people(lake)
    frame, wanted = source(lake, "people"), StructType([StructField("city", StringType())])
    (task,) = frame.reader(wanted).partitions()
    assert task.scan.columns == ("city",)
    assert load(frame, wanted).to_pydict() == {"city": ["Oslo", "Bern", "Paris"]}


def test_a_schema_may_allow_nulls_where_there_are_none(lake: Lake):
    people(lake)
    wanted = StructType([StructField("id", LongType())])
    assert load(source(lake, "people"), wanted).schema.equals(to_arrow_schema(wanted, timezone="UTC"))


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        (StructField("town", StringType()), "no column 'town'"),
        (StructField("cities", StringType()), "did you mean 'city'"),
        (StructField("city", LongType()), "is string, not bigint"),
        (StructField("city", StringType(), nullable=False), "may be null"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(lake: Lake, field: StructField, complaint: str):
    people(lake)
    with pytest.raises(UnknownColumns, match=complaint):
        load(source(lake, "people"), StructType([field]))


def test_records_of_a_keyed_dataset_need_their_operation(lake: Lake):
    people(lake)
    with pytest.raises(BadOption, match="without 'op'"):
        load(source(lake, "people", changes="true", system="false"))


def test_an_unknown_dataset_is_refused(lake: Lake):
    with pytest.raises(UnknownDataset):
        source(lake, "people").schema()


@pytest.mark.parametrize("data_type", PLAIN, ids=str)
def test_batches_have_exactly_the_types_that_spark_expects(lake: Lake, data_type: pa.DataType):
    dataset = lake.create("one", key="k")
    dataset.write(pa.table({"k": [1], "v": pa.nulls(1, data_type), "l": pa.array([[None]], pa.list_(data_type))}))
    frame = source(lake, "one")
    table = load(frame)
    assert table.schema.equals(to_arrow_schema(frame.schema(), timezone="UTC"))
    assert table.to_pylist() == [{"k": 1, "v": None, "l": [None]}]


def test_tasks_are_of_bounded_bytes_and_cover_every_row_once(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    dataset = lake.create("events")
    for start in range(0, 50, 10):
        dataset.write(numbers(start, start + 10))
    size = max(f.size for f in dataset.scan().selection.files)
    set_limit(monkeypatch, "spark_read.least_bytes", 2 * size)
    set_limit(monkeypatch, "spark_read.task_bytes", 2 * size)
    frame = source(lake, "events")
    assert len(frame.reader(frame.schema()).partitions()) == 3
    assert load(frame).column("n").to_pylist() == list(range(50))
