"""Spark reads the same records as Arrow does, of every type, through its own reader and through reading tasks."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import floodmark as fm
from floodmark.errors import BadPosition, NoSchema, RecordsPurged
from ledger.worlds import events, numbers
from limits import set_limit

pytestmark = pytest.mark.spark

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)


@pytest.fixture
def lake(tmp_path, spark):
    return fm.Lake(tmp_path / "lake", spark=spark)


@pytest.fixture(params=["native", "tasks"])
def way(request, monkeypatch):
    """Both ways to read: Spark's Parquet reader, and tasks of ours."""
    if request.param == "tasks":
        set_limit(monkeypatch, "spark_read.native_slices", 0)
    return request.param


def everything():
    return pa.table(
        {
            "b": [True, None],
            "i8": pa.array([-128, None], pa.int8()),
            "i64": pa.array([2**63 - 1, None], pa.int64()),
            "u8": pa.array([255, None], pa.uint8()),
            "u16": pa.array([2**16 - 1, None], pa.uint16()),
            "u32": pa.array([2**32 - 1, None], pa.uint32()),
            "u64": pa.array([2**64 - 1, None], pa.uint64()),
            "f32": pa.array([1.5, None], pa.float32()),
            "f64": pa.array([1e300, None]),
            "s": ["ü", None],
            "bin": pa.array([b"\x00\xff", None]),
            "fixed": pa.array([b"ab", None], pa.binary(2)),
            "day": pa.array([date(2026, 3, 1), None]),
            "instant": pa.array([NOON, None], pa.timestamp("us", "UTC")),
            "berlin": pa.array([NOON, None], pa.timestamp("us", "Europe/Berlin")),
            "millis": pa.array([NOON.replace(microsecond=123000), None], pa.timestamp("ms", "UTC")),
            "local": pa.array([NAIVE, None], pa.timestamp("us")),
            "money": pa.array([Decimal("12345.67"), None], pa.decimal128(9, 2)),
            "large": pa.array([Decimal(10**37), None], pa.decimal128(38, 0)),
            "list": [["x", None], None],
            "nested": [[[1], []], None],
            "pair": pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
            "unsigned list": pa.array([[2**32 - 1], None], pa.list_(pa.uint32())),
            "place": [{"x": 1, "inner": {"y": "z", "at": NOON}}, None],
            "dotted.name": [1, None],
        }
    )


def plain(value):
    """Spark's values as Arrow gives them."""
    if hasattr(value, "asDict"):
        return {k: plain(v) for k, v in value.asDict().items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return value


def instants(frame, *names):
    """Spark hands instants over in the machine's zone: as numbers they are comparable."""
    for name in names:
        frame = frame.withColumn(name, frame[f"`{name}`"].cast("timestamp").cast("decimal(20, 6)"))
    return frame


def test_every_type_is_read(lake, way):
    dataset = lake.create("d")
    dataset.write(everything())
    frame = instants(dataset.read(), "instant", "berlin", "millis")
    (first, second) = sorted(frame.collect(), key=lambda row: row["b"] is None)
    expected = everything().to_pylist()[0]
    seconds = Decimal(int(NOON.timestamp())) + Decimal("0.123456")
    expected |= {"instant": seconds, "berlin": seconds, "millis": seconds - Decimal("0.000456")}
    got = {name: plain(value) for name, value in first.asDict().items()}
    assert got["place"]["inner"].pop("at").timestamp() == NOON.timestamp()
    expected["place"]["inner"].pop("at")
    assert got == expected
    assert set(second.asDict().values()) == {None}
    assert frame.columns == everything().column_names


def test_read_and_changes_and_the_past_agree_with_arrow(lake, way):
    dataset = lake.create("d", event_time="at")
    dataset.write(events(3, 1, 2))
    middle = dataset.head
    dataset.write(events(9, 8))
    dataset.evolve({"tip": "float64"})
    dataset.write(events(10).append_column("tip", pa.array([1.5])))

    read = dataset.read()
    assert read.columns == ["i", "at", "tip"]
    assert read.count() == 6
    system = dataset.read(system=True)
    assert system.columns == ["offset", "op", "system_time", "i", "at", "tip"]
    rows = {row["offset"]: (row["i"], row["tip"]) for row in system.collect()}
    assert rows == {0: (1, None), 1: (2, None), 2: (0, None), 3: (1, None), 4: (0, None), 5: (0, 1.5)}

    assert dataset.read(as_of=middle).count() == 3
    assert sorted(row["offset"] for row in dataset.read(as_of=3, system=True).collect()) == [0, 1, 2, 3]
    assert dataset.read(as_of=-1).collect() == []
    with pytest.raises(BadPosition):
        dataset.read(as_of=99)

    changes = dataset.changes(since=1, until=4)
    assert changes.columns == ["offset", "op", "system_time", "i", "at", "tip"]
    assert [row["offset"] for row in changes.collect()] == [2, 3, 4]
    assert [row["offset"] for row in dataset.changes().collect()] == list(range(6))
    assert dataset.changes(since=5).collect() == []
    assert dataset.changes(since=5).columns == changes.columns

    dataset.purge(before=3)
    assert dataset.read().count() == 3
    with pytest.raises(RecordsPurged):
        dataset.changes()


def test_changes_over_many_tasks_keep_the_order_of_offsets(lake, monkeypatch):
    set_limit(monkeypatch, "spark_read.task_slices", 2)
    dataset = lake.create("d")
    for i in range(9):
        dataset.write(numbers(10 * i, 10 * i + 10))
    frame = dataset.changes(since=14, until=83)
    assert frame.rdd.getNumPartitions() == 4
    assert [(row["offset"], row["n"]) for row in frame.collect()] == [(n, n) for n in range(15, 84)]
    set_limit(monkeypatch, "spark_read.task_slices", 500)
    set_limit(monkeypatch, "spark_read.task_bytes", 1)
    assert [row["offset"] for row in dataset.changes().collect()] == list(range(90))


def test_dataset_of_very_many_slices_is_read_by_tasks(lake, monkeypatch):
    set_limit(monkeypatch, "spark_read.native_slices", 3)
    dataset = lake.create("d")
    for i in range(4):
        dataset.write(numbers(10 * i, 10 * i + 10))
    assert sorted(row["n"] for row in dataset.read().where("n % 2 = 0").collect()) == list(range(0, 40, 2))
    assert dataset.read().selectExpr("sum(n)").collect()[0][0] == sum(range(40))


def test_empty_dataset_has_its_columns(lake):
    dataset = lake.create("d", schema={"n": "int64", "s": "string"})
    assert (dataset.read().columns, dataset.read().collect()) == (["n", "s"], [])
    assert dataset.changes().collect() == []
    with pytest.raises(NoSchema):
        lake.create("new").read()


def test_sql_through_spark(lake):
    lake.create("trips").write(numbers(0, 5))
    lake.create("with-dash").write(numbers(3, 9))
    answer = lake.sql_spark("select count(*) c from trips join `with-dash` using (n)")
    assert answer.collect()[0]["c"] == 2
    with pytest.raises(fm.FloodmarkError, match="nope"):
        lake.sql_spark("select nope from trips").collect()
    with pytest.raises(fm.FloodmarkError):
        lake.sql_spark("select * from nowhere")


def test_caller_s_own_session_is_used_and_left_as_it_is(tmp_path, spark):
    own = spark.newSession()
    before = {k: own.conf.get(k) for k in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")}
    lake = fm.Lake(tmp_path / "lake", spark=own)
    dataset = lake.create("d")
    dataset.write(own.range(5))
    assert dataset.read().sparkSession is own
    assert dataset.changes().sparkSession is own
    assert {k: own.conf.get(k) for k in before} == before
    assert SparkSession.getActiveSession() is not None
    assert sorted(row["id"] for row in dataset.read().collect()) == [0, 1, 2, 3, 4]
