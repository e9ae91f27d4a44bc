"""Frames of Spark and files too large for one process are written by Spark's tasks, in one commit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodmark as fm
from floodmark.errors import BadEventTime, TypeMismatch, UnknownColumns, UnreadableFile, UnsupportedType
from floodmark.storage.cloud import CloudStore
from ledger.s3_server import s3_bucket
from ledger.worlds import START, data_events, events, keys, untouched
from limits import set_limit

pytestmark = pytest.mark.spark

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture(scope="module")
def bucket():
    with s3_bucket() as made:
        yield made


@pytest.fixture(params=["folder", "bucket"])
def lake(request, tmp_path, spark):
    if request.param == "folder":
        return fm.Lake(tmp_path / "lake", spark=spark)
    url, options = request.getfixturevalue("bucket")
    return fm.Lake(CloudStore(f"{url}/{tmp_path.name}", **options), spark=spark)


def test_computed_frame_is_written(lake, spark):
    frame = spark.sql(
        """
        select id,
               timestamp_micros(id * 1000003) as at,
               cast(id as decimal(10, 2)) as money,
               array(id, null) as list,
               if(id % 2 = 0, named_struct('x', id, 'inner', named_struct('y', cast(id as string))), null) as place,
               timestamp_ntz'2026-03-01 12:00:00.123456' as local,
               date'2026-03-01' as day,
               cast(null as string) as nothing,
               cast(id as tinyint) as small,
               binary('x') as bin
        from range(100) distribute by id
        """
    )
    dataset = lake.create("d", event_time="at")
    commit = dataset.write(frame)
    assert (commit.start, commit.end) == (0, 100)
    table = dataset.to_arrow()
    assert table.column_names == frame.columns
    assert table.column("id").to_pylist() == sorted(table.column("id").to_pylist()) or commit.slices > 1
    rows = {row["id"]: row for row in table.to_pylist()}
    assert sorted(rows) == list(range(100))
    assert rows[6] == {
        "id": 6,
        "at": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=6 * 1000003),
        "money": Decimal("6.00"),
        "list": [6, None],
        "place": {"x": 6, "inner": {"y": "6"}},
        "local": NOON.replace(tzinfo=None),
        "day": NOON.date(),
        "nothing": None,
        "small": 6,
        "bin": b"x",
    }
    assert rows[7]["place"] is None
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    assert dataset.verify().ok
    assert {row["id"] for row in dataset.read().collect()} == set(range(100))
    assert keys(dataset, "staging") == []
    assert list(lake.store.staging().iterdir()) == []


def test_frame_read_from_a_dataset_can_be_written_to_another(lake):
    first, second = lake.create("first"), lake.create("second")
    times = pa.array([NOON, None], pa.timestamp("us", "UTC"))
    first.write(pa.table({"n": [1, 2], "u": pa.array([3, None], pa.uint32()), "t": times}))
    second.write(first.read())
    assert sorted(second.to_arrow().to_pylist(), key=lambda r: r["n"]) == first.to_arrow().to_pylist()


def test_pair_is_a_no_op_the_second_time_and_the_frame_is_not_computed(lake, spark):
    dataset = lake.create("d")
    first = dataset.write(spark.range(10), source="job", state="1")
    failing = spark.range(10).selectExpr("raise_error('computed') as id")
    assert dataset.write(failing, source="job", state="1") == first


def test_refused_frames_leave_nothing(lake, spark):
    dataset = lake.create("d", event_time="at")
    dataset.write(events(1))
    assert dataset.write(spark.createDataFrame([], "i bigint, at timestamp")).rows == 0
    refused = [
        (spark.sql("select 1L as i, cast(null as timestamp) as at"), BadEventTime),
        (spark.sql("select 1L as i, current_timestamp() as at, 2 as z"), UnknownColumns),
        (spark.sql("select 'x' as i, current_timestamp() as at"), TypeMismatch),
        (spark.sql("select 1L as i, current_timestamp() as at, interval 1 month as at2"), fm.FloodmarkError),
    ]
    for frame, error in refused:
        with untouched(dataset), pytest.raises(error):
            dataset.write(frame)
        assert keys(dataset, "staging") == []


def test_type_that_spark_has_and_a_dataset_has_not_is_refused_by_name(lake, spark):
    dataset = lake.create("d")
    for kind in ("map('a', 1)", "interval '1' day", "array(named_struct('x', 1))", "parse_json('1')", "null"):
        with untouched(dataset), pytest.raises(UnsupportedType, match="'odd'"):
            dataset.write(spark.sql(f"select {kind} as odd"))


def test_large_files_are_written_by_tasks(lake, tmp_path, monkeypatch):
    set_limit(monkeypatch, "stage.here_bytes", 0)
    set_limit(monkeypatch, "parts.part_bytes", 1 << 12)
    for i in range(3):
        times = [START + timedelta(seconds=1000 * i + k) for k in range(1000)]
        table = pa.table({"n": range(1000 * i, 1000 * i + 1000), "at": pa.array(times, pa.timestamp("us", "UTC"))})
        pq.write_table(table, tmp_path / f"{i}.parquet", row_group_size=100)
    dataset = lake.create("d", event_time="at")
    commit = dataset.write(str(tmp_path / "*.parquet"))
    assert (commit.rows, commit.slices == len(data_events(dataset)), commit.slices > 3) == (3000, True, True)
    assert dataset.to_arrow().column("n").to_pylist() == list(range(3000))
    assert dataset.verify().ok

    for i in range(2):
        (tmp_path / f"{i}.csv").write_text(f"n,at\n{i},2026-05-01T00:00:00Z\n")
    assert dataset.write(str(tmp_path / "*.csv")).rows == 2

    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "broken.csv").write_text("n,at\nmany,2026-05-01T00:00:00Z\n")
    for name in ("broken.parquet", "broken.csv"):
        with untouched(dataset), pytest.raises(UnreadableFile, match=name):
            dataset.write(tmp_path / name)


@pytest.mark.parametrize("key", [None, "id"])
def test_columns_without_a_type_are_null_if_the_dataset_has_them_and_else_left_out(lake, spark, key):
    dataset = lake.create("d", key=key)
    dataset.write(spark.sql("select 1L as id, 'a' as v, null as `odd name`"))
    dataset.write(spark.sql("select 2L as id, null as v, null as other"))
    assert dataset.to_arrow().to_pylist() == [{"id": 1, "v": "a"}, {"id": 2, "v": None}]
