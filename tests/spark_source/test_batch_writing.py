"""`df.write.format("floodmark")`: tasks leave files, and one commit makes all of them visible, once."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from floodmark import Lake, UnknownDataset
from floodmark.errors import BadOption, TypeMismatch, UnknownColumns
from floodmark.spark_source.options import Delivery
from floodmark.spark_source.writer import commit_task_files, write_task_files
from floodmark.storage.memory import MemoryStore
from spark_source.worlds import numbers, source

N = StructType([StructField("n", LongType())])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create("events", schema={"n": pa.int64()})
    return lake


def write(lake: Lake, *parts: pa.Table, schema: StructType = N, dataset: str = "events", **options: str) -> None:
    """A write as Spark does it: one task per part, in processes of their own, then the commit."""
    writer = source(lake, dataset, **options).writer(schema, overwrite=False)
    tasks = [pickle.loads(pickle.dumps(writer)).write(iter(part.to_batches())) for part in parts]
    pickle.loads(pickle.dumps(writer)).commit(pickle.loads(pickle.dumps(tasks)))


def unfinished(lake: Lake) -> list[Path]:
    return [path for path in (Path(lake.store.url) / ".staging").glob("*") if not path.name.startswith(".")]


def test_the_rows_of_all_tasks_become_visible_at_once(lake: Lake):
    write(lake, numbers(0, 3), numbers(3, 3), numbers(3, 8))
    events = lake["events"]
    assert events.to_arrow().to_pydict() == {"n": [0, 1, 2, 3, 4, 5, 6, 7]}
    assert [entry.kind for entry in events.log()].count("AddData") == 1
    assert unfinished(lake) == []


def test_nothing_is_visible_before_the_commit(lake: Lake):
    writer = source(lake, "events").writer(N, overwrite=False)
    message = writer.write(iter(numbers(0, 3).to_batches()))
    assert lake["events"].count() == 0
    writer.abort([message, None])
    assert lake["events"].count() == 0
    assert unfinished(lake) == []


def test_a_delivery_is_written_once(lake: Lake):
    for _ in range(2):
        write(lake, numbers(0, 3), source="loader", state="monday")
    write(lake, numbers(3, 4), source="loader", state="tuesday")
    assert lake["events"].to_arrow().to_pydict() == {"n": [0, 1, 2, 3]}


def test_a_keyed_dataset_takes_only_changes(lake: Lake):
    people = lake.create("people", key="n")
    people.write(numbers(0, 3))
    write(lake, numbers(1, 3), numbers(3, 5), dataset="people")
    assert people.last_offset == 4
    assert sorted(people.to_arrow().column("n").to_pylist()) == [0, 1, 2, 3, 4]


def test_no_rows_are_no_commit(lake: Lake):
    head = lake["events"].head
    write(lake, numbers(0, 0))
    write(lake)
    assert lake["events"].head == head


def test_a_task_that_fails_leaves_nothing(lake: Lake):
    def failing() -> Iterator[pa.RecordBatch]:
        yield from numbers(0, 3).to_batches()
        raise OSError("lost")

    writer = source(lake, "events").writer(N, overwrite=False)
    with pytest.raises(OSError, match="lost"):
        writer.write(failing())
    assert unfinished(lake) == []


def test_columns_that_do_not_fit_are_refused_and_leave_nothing(lake: Lake):
    other = StructType([StructField("m", LongType())])
    with pytest.raises(UnknownColumns):
        write(lake, numbers(0, 3).rename_columns(["m"]), schema=other)
    write(lake, numbers(0, 1), dataset="events")
    lake.create("small", schema={"n": pa.int8()})
    with pytest.raises(TypeMismatch):
        write(lake, numbers(0, 300), dataset="small")
    assert lake["small"].count() == 0
    assert unfinished(lake) == []


def test_an_unknown_dataset_is_refused_before_anything_is_computed(lake: Lake):
    with pytest.raises(UnknownDataset):
        source(lake, "event").writer(N, overwrite=False)


def test_nothing_is_ever_overwritten(lake: Lake):
    with pytest.raises(BadOption, match="cannot be overwritten"):
        source(lake, "events").writer(N, overwrite=True)


def test_files_of_a_bucket_are_objects_until_the_commit():
    lake = Lake(MemoryStore())
    events = lake.create("events", schema={"n": pa.int64()})
    objects = events.snapshot().objects
    schema = pa.schema({"n": pa.int64()})
    files = [
        f for part in (numbers(0, 2), numbers(2, 5)) for f in write_task_files(objects, iter(part.to_batches()), schema)
    ]
    assert [f.is_object for f in files] == [True, True]
    assert len(list(lake.store.list(f"{objects.folder}/staging"))) == 2
    commit_task_files(events, files, schema, Delivery("loader", "1"))
    assert events.to_arrow().to_pydict() == {"n": [0, 1, 2, 3, 4]}
    assert list(lake.store.list(f"{objects.folder}/staging")) == []
