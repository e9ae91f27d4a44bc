"""Columns can be added and reordered, nothing else; older records read as null in what they never had."""

from __future__ import annotations

import pyarrow as pa
import pytest

import floodmark as fm
from chain.refusals import refused
from floodmark.chain.events import SetDataSchema
from floodmark.errors import (
    BadColumnName,
    MissingColumns,
    NoSchema,
    Rule,
    RuleBroken,
    TypeMismatch,
    UnknownColumns,
    UnsupportedType,
)
from ledger.worlds import InterleavingStore, blocks, events, numbers, untouched


@pytest.fixture
def dataset(lake):
    made = lake.create("d")
    made.write(pa.table({"n": [1, 2], "s": ["a", "b"]}))
    return made


def test_older_records_are_null_in_a_new_column(dataset, lake):
    assert dataset.evolve({"tip": "float64"}).names == ["n", "s", "tip"]
    assert dataset.to_arrow().column("tip").to_pylist() == [None, None]
    dataset.write(pa.table({"tip": [0.5], "n": [3], "s": ["c"]}))
    assert dataset.to_arrow().to_pylist()[1:] == [{"n": 2, "s": "b", "tip": None}, {"n": 3, "s": "c", "tip": 0.5}]
    assert lake.sql("select sum(tip) t, count(*) c from d").to_pylist() == [{"t": 0.5, "c": 3}]
    assert dataset.to_batches(columns=["tip"], where="tip is null").read_all().num_rows == 2
    assert dataset.verify().ok


def test_columns_can_be_reordered(dataset):
    dataset.evolve(pa.schema([("s", pa.string()), ("n", pa.int64())]))
    assert dataset.to_arrow().column_names == ["s", "n"]
    assert dataset.to_arrow().column("n").to_pylist() == [1, 2]
    dataset.write(pa.table({"n": [3], "s": ["c"]}))
    assert dataset.verify().ok


def test_whole_schema_may_add_in_the_middle(dataset):
    dataset.evolve({"n": "int64", "new": "string", "s": "string"})
    assert dataset.to_arrow().column_names == ["n", "new", "s"]


def test_event_time_keeps_its_place_when_columns_come_and_move(lake):
    dataset = lake.create("events", event_time="at")
    dataset.write(events(2, 1))
    dataset.evolve(pa.schema([("new", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("i", pa.int64())]))
    assert (dataset.schema.names, dataset.event_time) == (["new", "at", "i"], "at")
    assert dataset.to_arrow().column("i").to_pylist() == [1, 0]


def test_member_of_a_struct_can_be_added(lake):
    dataset = lake.create("structs")
    dataset.write(pa.table({"place": [{"x": 1}, None]}))
    dataset.evolve(pa.schema([("place", pa.struct([("x", pa.int64()), ("y", pa.string())]))]))
    dataset.write(pa.table({"place": [{"y": "far", "x": 2}]}))
    assert dataset.to_arrow().column("place").to_pylist() == [{"x": 1, "y": None}, None, {"x": 2, "y": "far"}]
    assert dataset.verify().ok


@pytest.mark.parametrize("same", [{}, {"n": "int64", "s": "string"}])
def test_schema_that_is_there_already_adds_no_block(dataset, same):
    with untouched(dataset):
        assert dataset.evolve(same).names == ["n", "s"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"n": "int32", "s": "string"}, RuleBroken),
        ({"n": "int64", "s": "binary"}, RuleBroken),
        ({"n": "string"}, TypeMismatch),  # one that is there, given alone
        ({"n": "int64", "tip": "float64"}, BadColumnName),
        ({"offset": "int64"}, BadColumnName),
        ({"event_time": "timestamp[us]"}, BadColumnName),
        ({"n": "int64", "s": "string", "event_time": pa.timestamp("ms", "UTC")}, BadColumnName),
        ({"N": "int64"}, BadColumnName),
        ({"x": pa.duration("s")}, UnsupportedType),
        ({"x": "nonsense"}, UnsupportedType),
    ],
)
def test_other_changes_are_refused(dataset, change, error):
    with untouched(dataset), pytest.raises(error):
        dataset.evolve(change)


def test_rules_of_the_chain_refuse_what_the_layout_lets_through(dataset):
    """Optional cannot become required, and nothing can go: here straight at the commit, below the API."""
    from floodmark.chain.schema import DataField, DataTypeOption
    from floodmark.engine.session import Runtime
    from floodmark.ledger.create import commit_events

    schema = dataset.snapshot().state.schema
    removed = SetDataSchema(schema=type(schema)(fields=schema.fields[:-1], extra=schema.extra))
    last = schema.fields[-1]
    assert isinstance(last.type, DataTypeOption)
    required = SetDataSchema(
        schema=type(schema)(fields=(*schema.fields[:-1], DataField(last.name, last.type.inner)), extra=schema.extra)
    )
    for event, rule in ((removed, Rule.FIELD_REMOVED), (required, Rule.FIELD_OPTIONALITY_CHANGED)):
        with untouched(dataset), refused(rule):
            commit_events("d", dataset.snapshot, lambda _, event=event: [event], Runtime(clock=lambda: 2**62))


def test_dataset_without_columns_cannot_evolve(lake):
    with pytest.raises(NoSchema):
        lake.create("new").evolve({"a": "int64"})


def test_writer_that_does_not_know_the_new_column_is_refused(dataset, lake):
    other = lake["d"]
    other.count()
    dataset.evolve({"tip": "float64"})
    with untouched(dataset), pytest.raises(MissingColumns) as refused:
        other.write(pa.table({"n": [3], "s": ["c"]}))
    assert refused.value.columns == ["tip"]


@pytest.fixture
def racing_lake(clock):
    return fm.Lake(InterleavingStore(), runtime=fm.Runtime(clock=clock))


def test_column_added_while_a_write_is_under_way_is_noticed(racing_lake):
    """The writer staged its rows for the old columns; at its turn it finds the new ones."""
    dataset = racing_lake.create("d")
    dataset.write(pa.table({"n": [1, 2], "s": ["a", "b"]}))
    racing_lake.store.at("before turn", lambda: racing_lake["d"].evolve({"tip": "float64"}))
    with pytest.raises(MissingColumns):
        dataset.write(pa.table({"n": [3], "s": ["c"]}))
    assert dataset.count() == 2
    assert dataset.verify().ok
    assert list(racing_lake.store.staging().iterdir()) == []


def test_reordering_while_a_write_is_under_way_does_no_harm(racing_lake):
    dataset = racing_lake.create("d")
    dataset.write(pa.table({"n": [1, 2], "s": ["a", "b"]}))
    order = pa.schema([("s", pa.string()), ("n", pa.int64())])
    racing_lake.store.at("before turn", lambda: racing_lake["d"].evolve(order))
    dataset.write(pa.table({"n": [3], "s": ["c"]}))
    assert dataset.to_arrow().to_pylist()[-1] == {"s": "c", "n": 3}
    assert dataset.verify().ok


def test_two_first_writes_with_different_columns_cannot_both_win(racing_lake):
    dataset = racing_lake.create("fresh")
    racing_lake.store.at("before turn", lambda: racing_lake["fresh"].write(pa.table({"m": [1]})))
    with pytest.raises(UnknownColumns):
        dataset.write(numbers(0, 3))
    assert dataset.schema.names == ["m"]
    assert len([b for _, b in blocks(dataset) if isinstance(b.event, SetDataSchema)]) == 1
