"""`spark.readStream.format("floodmark")`: records in the order of their offsets, none twice, none left out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from floodmark import Lake, RecordsPurged
from floodmark.errors import BadOption, StreamLost
from spark_source.worlds import ALL, between, most, next_batch, numbers, source, stream


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def events(lake: Lake):
    dataset = lake.create("events")
    dataset.write(numbers(0, 6))
    return dataset


def test_batch_after_batch_reads_what_was_written_since(lake: Lake, events):
    reader = stream(lake, "events")
    position, first = next_batch(reader, reader.initialOffset())
    assert first.to_pydict() == {"n": [0, 1, 2, 3, 4, 5]}
    assert next_batch(reader, position) == (position, pa.table({}))
    events.write(numbers(6, 8))
    position, second = next_batch(reader, position)
    assert second.to_pydict() == {"n": [6, 7]}
    assert position["offset"] == 7 == events.last_offset


def test_positions_are_record_offsets(lake: Lake, events):
    reader = stream(lake, "events")
    dataset, block = str(events.id), events.snapshot().block_of(5)
    assert reader.initialOffset() == {"dataset": dataset, "offset": -1, "began": 6, "block": ""}
    assert reader.reportLatestOffset() == {"dataset": dataset, "offset": 5, "began": 6, "block": block}


def test_a_batch_has_no_more_records_than_allowed(lake: Lake, events):
    reader = stream(lake, "events", maxRecordsPerTrigger=4)
    assert reader.getDefaultReadLimit() == most(4)
    position, first = next_batch(reader, reader.initialOffset())
    _, second = next_batch(reader, position)
    assert [first.column("n").to_pylist(), second.column("n").to_pylist()] == [[0, 1, 2, 3], [4, 5]]


def test_spark_may_ask_for_all_there_is_whatever_the_option_says(lake: Lake, events):
    reader = stream(lake, "events", maxRecordsPerTrigger=4)
    assert reader.latestOffset(reader.initialOffset(), ALL)["offset"] == 5


def test_available_now_ends_at_what_there_was_when_it_began(lake: Lake, events):
    reader = stream(lake, "events", maxRecordsPerTrigger=4)
    reader.prepareForTriggerAvailableNow()
    events.write(numbers(6, 20))
    position, ends = reader.initialOffset(), []
    for _ in range(4):
        position, _ = next_batch(reader, position)
        ends.append(position["offset"])
    assert ends == [3, 5, 5, 5]


@pytest.mark.parametrize(("starting", "rows"), [("earliest", [0, 1, 2, 3, 4, 5, 6]), ("4", [4, 5, 6]), ("latest", [6])])
def test_a_new_query_starts_where_it_is_told(lake: Lake, events, starting: str, rows: list[int]):
    reader = stream(lake, "events", startingOffset=starting)
    start = reader.initialOffset()
    events.write(numbers(6, 7))
    assert next_batch(reader, start)[1].column("n").to_pylist() == rows


def test_a_start_beyond_the_end_is_refused(lake: Lake, events):
    assert stream(lake, "events", startingOffset="6").initialOffset()["offset"] == 5
    with pytest.raises(BadOption, match="ends at offset 5"):
        stream(lake, "events", startingOffset="7").initialOffset()


def test_a_batch_tried_again_reads_the_same_records(lake: Lake, events):
    reader = stream(lake, "events", maxRecordsPerTrigger=4)
    start = reader.initialOffset()
    end, first = next_batch(reader, start)
    events.write(numbers(6, 9))
    assert between(stream(lake, "events"), start, end) == first


def test_system_columns_come_when_asked_for(lake: Lake, events):
    reader = stream(lake, "events", system="true")
    _, table = next_batch(reader, reader.initialOffset())
    assert table.column_names == ["offset", "op", "system_time", "n"]
    assert table.column("offset").to_pylist() == table.column("n").to_pylist()


def test_changes_of_a_keyed_dataset_come_with_their_operation(lake: Lake):
    people = lake.create("people", key="id")
    people.write(pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]}))
    people.write(pa.table({"id": [2], "city": ["Paris"]}))
    people.delete([1])
    reader = stream(lake, "people", system="true")
    assert next_batch(reader, reader.initialOffset())[1].to_pylist() == people.changes_arrow().to_pylist()


def test_changes_of_a_keyed_dataset_without_their_operation_are_refused(lake: Lake):
    lake.create("people", key="id").write(pa.table({"id": [1]}))
    reader = stream(lake, "people")
    with pytest.raises(BadOption, match="without 'op'"):
        next_batch(reader, reader.initialOffset())


def test_a_ledger_dataset_only_adds_rows_and_needs_no_operation(lake: Lake):
    lake.create("facts", key="id", merge="ledger").write(pa.table({"id": [1, 2]}))
    reader = stream(lake, "facts")
    assert next_batch(reader, reader.initialOffset())[1].to_pydict() == {"id": [1, 2]}


def test_columns_added_later_do_not_disturb_a_stream(lake: Lake, events):
    reader = stream(lake, "events")
    position, _ = next_batch(reader, reader.initialOffset())
    events.evolve({"city": pa.string()})
    events.write(pa.table({"n": [6], "city": ["Oslo"]}))
    assert next_batch(reader, position)[1].to_pydict() == {"n": [6]}
    widened = stream(lake, "events")  # the query started again
    assert next_batch(widened, {**position, "offset": 4})[1].to_pydict() == {"n": [5, 6], "city": [None, "Oslo"]}


def test_a_narrower_schema_reads_fewer_columns(lake: Lake):
    lake.create("wide").write(pa.table({"a": [1], "b": [2]}))
    reader = stream(lake, "wide", StructType([StructField("b", LongType())]))
    assert next_batch(reader, reader.initialOffset())[1].to_pydict() == {"b": [2]}


def test_a_new_query_does_not_pass_over_purged_records_in_silence(lake: Lake, events):
    events.write(numbers(6, 9))
    events.purge(before=6)
    with pytest.raises(RecordsPurged, match=r'from offset 0 on, but records before 6(.|\n)*"startingOffset", "6"'):
        stream(lake, "events").initialOffset()
    reader = stream(lake, "events", startingOffset="6")
    assert next_batch(reader, reader.initialOffset())[1].to_pydict() == {"n": [6, 7, 8]}


def test_a_query_that_fell_behind_a_purge_is_told_so(lake: Lake, events):
    reader = stream(lake, "events", maxRecordsPerTrigger=4)
    position, _ = next_batch(reader, reader.initialOffset())
    events.write(numbers(6, 9))
    events.purge(before=6)
    with pytest.raises(RecordsPurged, match="from offset 4 on"):
        reader.latestOffset(position, ALL)  # before Spark notes a batch that can never be read
    with pytest.raises(RecordsPurged, match="from offset 4 on"):
        between(reader, position, reader.reportLatestOffset())


def test_a_query_that_has_read_all_that_is_purged_goes_on(lake: Lake, events):
    reader = stream(lake, "events")
    position, _ = next_batch(reader, reader.initialOffset())
    events.purge(before=6)
    events.write(numbers(6, 7))
    assert next_batch(reader, position)[1].to_pydict() == {"n": [6]}


def test_rows_that_a_purge_carried_are_new_to_a_new_query_only(lake: Lake):
    people = lake.create("people", key="n")
    people.write(numbers(0, 4))
    reader = stream(lake, "people", system="true")
    position, _ = next_batch(reader, reader.initialOffset())
    people.delete([1])
    position, _ = next_batch(reader, position)
    assert people.purge(before=5).carried == 3
    position, found = next_batch(reader, position)
    assert found.num_rows == 0
    people.write(numbers(7, 8))
    assert next_batch(reader, position)[1]["n"].to_pylist() == [7]
    small = stream(lake, "people", system="true", startingOffset="5", maxRecordsPerTrigger=2)
    position, first = next_batch(small, small.initialOffset())
    assert [*first["n"].to_pylist(), *next_batch(small, position)[1]["n"].to_pylist()] == [0, 2, 3, 7]


def test_another_dataset_of_the_same_name_is_not_taken_for_the_first(lake: Lake, events):
    position = stream(lake, "events").reportLatestOffset()
    lake.drop("events")
    lake.create("events").write(numbers(100, 120))
    with pytest.raises(StreamLost, match="another dataset named 'events'"):
        next_batch(stream(lake, "events"), position)


def test_a_lake_restored_from_an_older_copy_is_noticed(lake: Lake, events, tmp_path: Path):
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    earlier = stream(lake, "events").reportLatestOffset()
    events.write(numbers(6, 9))
    position = stream(lake, "events").reportLatestOffset()
    reader = stream(Lake(tmp_path / "copy"), "events")
    with pytest.raises(StreamLost, match="up to offset 8, but it ends at 5"):
        next_batch(reader, position)
    with pytest.raises(StreamLost, match="ends at 5"):
        between(reader, earlier, position)


@pytest.mark.parametrize("given", [{"startingOffset": "zz"}, {"maxRecordsPerTrigger": "0"}])
def test_wrong_value_is_refused_when_the_stream_is_loaded(lake: Lake, events, given: dict[str, str]):
    with pytest.raises(BadOption):
        source(lake, "events", **given).schema()


@pytest.mark.parametrize("given", [{"startingOffset": "zz"}, {"since": "3"}])
def test_option_that_no_stream_takes_does_not_stop_the_creation_of_a_reader(lake: Lake, events, given: dict[str, str]):
    """Spark shows errors of a reader, but not those of its creation: "cannot access local variable 'reader'"."""
    reader = stream(lake, "events", StructType([StructField("n", LongType())]), **given)
    with pytest.raises(BadOption):
        reader.initialOffset()
