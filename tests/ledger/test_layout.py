"""Columns are kept in the user's order, lie in slices with the event time first, and are the same after reopening."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import floodmark as fm
from floodmark.errors import BadColumnName, BadEventTime, UnsupportedType
from floodmark.ledger.schema import derive_layout, layout_from_odf
from floodmark.storage.parquet import Vocabulary
from ledger.arrow_types import data_types
from ledger.worlds import START, events, keys

TIMES = [pa.timestamp("us", "UTC"), pa.timestamp("ms"), pa.date32()]


@st.composite
def schemas(draw):
    names = draw(st.lists(st.text("abcxyz ü.", min_size=1, max_size=4), max_size=5, unique_by=str.lower))
    fields = [pa.field(name, draw(data_types())) for name in names]
    if not draw(st.booleans()):
        return pa.schema(fields), None
    fields.insert(draw(st.integers(0, len(fields))), pa.field("happened", draw(st.sampled_from(TIMES))))
    return pa.schema(fields), "happened"


@pytest.mark.slow
@given(schemas())
def test_layout_survives_the_way_through_the_chain(world):
    schema, event_time = world
    vocab = Vocabulary(event_time=event_time or "event_time")
    layout = derive_layout(schema, vocab, event_time)
    back = layout_from_odf(layout.to_odf(), vocab)
    assert back == layout
    assert back.data.names == schema.names
    assert layout.slice_schema.names[:4] == ["offset", "op", "system_time", event_time or "event_time"]


def test_columns_come_back_in_the_order_they_were_given_in(lake):
    dataset = lake.create("d", event_time="at")
    table = pa.table({"z": ["q"], "at": events(0).column("at"), "a": [1]})
    dataset.write(table)
    reopened = fm.Lake(lake.store)["d"]
    assert reopened.schema.names == reopened.to_arrow().column_names == ["z", "at", "a"]
    assert reopened.changes_arrow().column_names == ["offset", "op", "system_time", "z", "at", "a"]
    (key,) = keys(dataset, "data")
    assert pq.read_schema(lake.store.local_path(key)).names == ["offset", "op", "system_time", "at", "z", "a"]


def test_without_an_event_time_the_slice_repeats_the_system_time(lake, clock):
    dataset = lake.create("d")
    clock.tick(5)
    commit = dataset.write(pa.table({"a": [1, 2]}))
    (key,) = keys(dataset, "data")
    table = pq.ParquetFile(lake.store.local_path(key)).read()
    assert table.column_names == ["offset", "op", "system_time", "event_time", "a"]
    assert table.column("event_time").equals(table.column("system_time"))
    assert dataset.event_time is None
    assert dataset.schema.names == dataset.to_arrow().column_names == ["a"]
    assert dataset.watermark == commit.system_time


def test_column_called_event_time_is_the_event_time(lake):
    dataset = lake.create("d")
    dataset.write(events(3, 1, name="event_time"))
    assert dataset.event_time == "event_time"
    assert dataset.to_arrow().column("i").to_pylist() == [1, 0]


def test_column_called_event_time_is_a_plain_one_beside_a_declared_event_time(lake):
    dataset = lake.create("d", event_time="at")
    dataset.write(pa.table({"event_time": ["noon", "night"], "at": events(2, 1).column("at")}))
    assert dataset.event_time == "at"
    assert dataset.to_pandas()["event_time"].tolist() == ["night", "noon"]
    assert dataset.verify().ok


def test_declared_event_time_is_known_before_the_first_write(lake):
    dataset = lake.create("d", event_time="at")
    assert (dataset.event_time, dataset.schema, dataset.count()) == ("at", None, 0)


def test_event_time_is_required_and_the_rest_is_optional(lake):
    dataset = lake.create(
        "d", event_time="at", schema=pa.schema([pa.field("at", "date32"), pa.field("x", "int8", False)])
    )
    assert [field.nullable for field in dataset.schema] == [False, True]


def test_schema_can_be_given_by_names_of_types(lake):
    dataset = lake.create("d", schema={"a": "int64", "b": pa.list_(pa.string()), "c": "timestamp[ns]"})
    assert dataset.schema.field("c").type == pa.timestamp("us")
    assert dataset.to_arrow().num_rows == 0


@pytest.mark.parametrize(
    ("schema", "event_time", "error"),
    [
        ({"offset": "int64"}, None, BadColumnName),
        ({"op": "int64"}, None, BadColumnName),
        ({"System_Time": "int64"}, None, BadColumnName),
        ({"": "int64"}, None, BadColumnName),
        ({"a": "int64"}, "offset", BadColumnName),
        ({"a": "int64"}, "", BadColumnName),
        ({"Event_Time": "int64"}, None, BadColumnName),
        ({"event_time": "int64"}, None, BadEventTime),
        ({"at": "int64"}, "at", BadEventTime),
        ({"att": "date32"}, "at", BadEventTime),
        ({"a": "int64", "A": "int64"}, None, BadColumnName),
        (pa.schema([("a", "int64"), ("a", "string")]), None, BadColumnName),
        ({"a": "float17"}, None, UnsupportedType),
        ({"a": 7}, None, UnsupportedType),
        ({"a": pa.duration("s")}, None, UnsupportedType),
    ],
)
def test_dataset_with_impossible_columns_is_not_created(lake, schema, event_time, error):
    with pytest.raises(error):
        lake.create("d", schema=schema, event_time=event_time)
    assert lake.datasets() == []
    assert list(lake.store.list("")) == []


def test_event_time_that_is_misspelt_gets_a_hint(lake):
    dataset = lake.create("d", event_time="picup_at")
    with pytest.raises(BadEventTime) as refused:
        dataset.write(events(1, name="pickup_at"))
    assert refused.value.hint == "did you mean 'pickup_at'?"
    assert dataset.schema is None


def test_schema_with_an_event_time_of_dates_sets_the_watermark_to_midnight(lake):
    dataset = lake.create("d", event_time="day")
    dataset.write(pa.table({"day": pa.array([START.date()])}))
    assert dataset.watermark == START
