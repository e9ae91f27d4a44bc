"""Datasets in jobs of Spark's own: read, streamed and written by the name "floodmark"."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

import floodmark as fm
from floodmark.errors import StreamLost
from spark_source.worlds import numbers


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    return fm.Lake(tmp_path / "lake")


def values(frame) -> list[int]:
    return sorted(row["n"] for row in frame.collect())


@pytest.mark.spark
def test_a_dataset_is_read_joined_and_filtered_in_any_job(lake: fm.Lake, spark):
    people = lake.create("people", key="n")
    people.write(pa.table({"n": [1, 2, 3], "city": ["Oslo", "Rome", "Bern"]}))
    people.write(pa.table({"n": [2], "city": ["Paris"]}))
    fm.register(spark)
    reader = spark.read.format("floodmark").option("lake", lake.store.url)
    frame = reader.load("people")
    assert {(r["n"], r["city"]) for r in frame.collect()} == {(1, "Oslo"), (2, "Paris"), (3, "Bern")}
    # One frame, several filters: each sees all rows.
    assert values(frame.where("n = 1").unionAll(frame.where("n > 2"))) == [1, 3]
    assert frame.count() == 3
    assert frame.join(frame.withColumnRenamed("city", "other"), "n").count() == 3
    past = spark.read.format("floodmark").options(lake=lake.store.url, as_of=2).load("people")
    assert {r["city"] for r in past.collect()} == {"Oslo", "Rome", "Bern"}
    changes = spark.read.format("floodmark").options(lake=lake.store.url, since=2).schema("offset bigint, op int")
    assert [tuple(r) for r in changes.load("people").collect()] == [(3, 2), (4, 3)]


@pytest.mark.spark
def test_filters_of_one_use_of_a_frame_do_not_reach_another(lake: fm.Lake, spark):
    # With this setting Spark gives the filters of a frame's first use to all others, so no reader may take any.
    lake.create("events").write(numbers(0, 10))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        fm.register(spark, lake)
        frame = spark.read.format("floodmark").load("events")
        assert values(frame.where("n = 3")) == [3]
        assert frame.count() == 10
        assert values(frame.where("n = 1").unionAll(frame.where("n > 7"))) == [1, 8, 9]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.spark
def test_values_of_every_kind_arrive_as_they_are(lake: fm.Lake, spark):
    row = {
        "i": 7,
        "f": 1.5,
        "s": "ä",
        "b": b"\x00\xff",
        "d": date(2026, 3, 1),
        "t": datetime(2026, 3, 1, 12, tzinfo=UTC),
        "local": datetime(2026, 3, 1, 12),
        "m": Decimal("1.25"),
        "l": [1, None],
        "r": {"x": 1, "y": None},
    }
    fields = {"l": pa.list_(pa.int32()), "r": pa.struct({"x": pa.uint8(), "y": pa.string()}), "m": pa.decimal128(9, 2)}
    types = {"t": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), **fields}
    lake.create("kinds").write(pa.table({n: pa.array([v, None], types.get(n)) for n, v in row.items()}))
    lake.create("again", schema=lake["kinds"].schema)
    fm.register(spark, lake)
    frame = spark.read.format("floodmark").load("kinds")
    frame.write.format("floodmark").mode("append").save("again")
    assert lake["again"].to_arrow().to_pylist() == lake["kinds"].to_arrow().to_pylist()


@pytest.mark.spark
def test_a_job_writes_once_what_it_delivers_twice(lake: fm.Lake, spark):
    events = lake.create("events")
    fm.register(spark, lake)
    for _ in range(2):
        writer = spark.range(0, 5, 1, 2).withColumnRenamed("id", "n").write.format("floodmark").mode("append")
        writer.options(source="job", state="monday").save("events")
    assert sorted(events.to_arrow().column("n").to_pylist()) == [0, 1, 2, 3, 4]


@pytest.mark.spark
def test_a_stream_goes_on_where_it_stopped_and_brings_new_columns_when_restarted(lake: fm.Lake, spark, tmp_path: Path):
    events = lake.create("events")
    events.write(numbers(0, 7))
    copy = lake.create("copy", schema={"n": "int64", "half": "double"})
    fm.register(spark, lake)

    def run() -> list[int]:
        records = spark.readStream.format("floodmark").option("maxRecordsPerTrigger", 3).load("events")
        frame = records.select("*", (F.col("n") / 2).alias("half"))
        query = frame.writeStream.foreachBatch(fm.stream_sink(lake, "copy")).trigger(availableNow=True)
        running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        running.awaitTermination()
        return [progress["numInputRows"] for progress in running.recentProgress if progress["numInputRows"]]

    assert run() == [3, 3, 1]
    events.evolve({"city": pa.string()})
    events.write(pa.table({"n": [7, 8], "city": ["Oslo", None]}))
    copy.evolve({"city": pa.string()})
    assert run() == [2]
    table = copy.to_arrow()
    assert table.select(["n", "half"]).to_pydict() == {"n": [*range(9)], "half": [n / 2 for n in range(9)]}
    assert table.column("city").to_pylist() == [None] * 7 + ["Oslo", None]


@pytest.mark.spark
def test_a_batch_that_spark_has_not_noted_as_done_is_not_written_again(lake: fm.Lake, spark, tmp_path: Path):
    lake.create("events").write(numbers(0, 4))
    copy = lake.create("copy", schema={"n": "int64"})
    fm.register(spark, lake)

    def run(checkpoint: Path) -> list[int]:
        records = spark.readStream.format("floodmark").option("maxRecordsPerTrigger", 3).load("events")
        query = records.writeStream.format("floodmark").option("checkpointLocation", checkpoint.as_uri())
        query.trigger(availableNow=True).start("copy").awaitTermination()
        return copy.to_arrow().column("n").to_pylist()

    assert run(tmp_path / "one") == [0, 1, 2, 3]
    for noted in (tmp_path / "one/commits").glob("*1*"):  # as if Spark had been killed right before
        noted.unlink()
    assert run(tmp_path / "one") == [0, 1, 2, 3]
    assert run(tmp_path / "two") == [0, 1, 2, 3] * 2  # another query


@pytest.mark.spark
def test_a_stream_that_fell_behind_a_purge_fails_and_says_what_to_do(lake: fm.Lake, spark, tmp_path: Path):
    events = lake.create("events")
    events.write(numbers(0, 4))
    events.write(numbers(4, 6))
    events.purge(before=4)
    lake.create("copy", schema={"n": "int64"})
    fm.register(spark, lake)
    query = spark.readStream.format("floodmark").load("events").writeStream.foreachBatch(fm.stream_sink(lake, "copy"))
    running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=r'records before 4 are purged(.|\n)*"startingOffset", "4"'):
        running.awaitTermination()


@pytest.mark.spark
def test_stream_with_an_option_of_batches_says_so(lake: fm.Lake, spark, tmp_path: Path):
    lake.create("events").write(numbers(0, 4))
    fm.register(spark, lake)
    records = spark.readStream.format("floodmark").option("since", 1).load("events")
    query = records.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="'since' is not an option for streaming a dataset"):
        query.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.spark
def test_what_cannot_be_read_is_said_when_it_is_loaded(lake: fm.Lake, spark):
    fm.register(spark, lake)
    with pytest.raises(AnalysisException, match="there is no dataset 'nothing'"):
        spark.read.format("floodmark").load("nothing")


@pytest.mark.spark
def test_the_sink_writes_a_batch_once_and_an_empty_one_not_at_all(lake: fm.Lake, spark):
    lake.create("copy", schema={"n": "int64"})
    batch = spark.range(3).withColumnRenamed("id", "n")
    deliver = fm.stream_sink(lake, "copy", source="by hand")
    for batch_id in (0, 0, 1):
        deliver(batch, batch_id)
    deliver(batch.where("n < 0"), 2)
    assert sorted(lake["copy"].to_arrow().column("n").to_pylist()) == [0, 0, 1, 1, 2, 2]
    with pytest.raises(StreamLost, match="cannot determine the streaming query"):
        fm.stream_sink(lake, "copy")(batch, 0)


def test_a_sink_for_no_dataset_is_refused_at_once(lake: fm.Lake):
    with pytest.raises(fm.UnknownDataset):
        fm.stream_sink(lake, "copy")


def test_a_sink_travels_to_other_processes(lake: fm.Lake):
    lake.create("copy")
    travelled = pickle.loads(pickle.dumps(fm.stream_sink(lake, "copy", source="s")))
    assert (travelled.lake.store.url, travelled.dataset, travelled.source) == (lake.store.url, "copy", "s")
