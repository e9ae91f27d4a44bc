"""Deleting keys: a retraction with the old values for each that is there, a count for each that is not."""

from __future__ import annotations

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from floodmark.errors import BadPrimaryKey, ReadOnlyDataset, TypeMismatch
from ledger.worlds import START, untouched
from rows.twins import Twin

SCHEMA = {"id": pa.int64(), "x": pa.string()}
PAIR = {"g": pa.string(), "id": pa.int64(), "x": pa.string()}


@pytest.fixture
def twin(lake):
    made = Twin(lake, SCHEMA, "upsert", ["id"])
    made.write([{"id": i, "x": str(i)} for i in range(6)])
    return made


def test_keys_that_are_there_are_retracted_with_their_old_values(twin):
    commit = twin.delete([(3,), (1,)])
    assert commit.retracted == 2
    assert twin.dataset.changes_arrow(since=5).select(["op", "id", "x"]).to_pylist() == [
        {"op": 1, "id": 1, "x": "1"},
        {"op": 1, "id": 3, "x": "3"},
    ]
    twin.check_all()
    assert twin.dataset.verify().ok


def test_unknown_keys_are_counted_and_are_no_error(twin):
    commit = twin.delete([(1,), (99,), (98,)])
    assert (commit.retracted, commit.unknown) == (1, 2)
    twin.check_all()


def test_delete_of_unknown_keys_alone_adds_no_block(twin):
    with untouched(twin.dataset):
        commit = twin.delete([(99,)])
    assert (commit.rows, commit.retracted, commit.unknown, commit.block) == (0, 0, 1, twin.dataset.head)


def test_second_delete_of_a_key_is_of_an_unknown_key(twin):
    twin.delete([(1,)])
    commit = twin.delete([(1,)])
    assert (commit.retracted, commit.unknown) == (0, 1)
    twin.check_all()


def test_key_that_comes_back_after_its_delete_is_new(twin):
    twin.delete([(1,)])
    commit = twin.write([{"id": 1, "x": "1"}])
    assert (commit.new, commit.unchanged, commit.changed) == (1, 0, 0)
    twin.check_all()


@pytest.mark.parametrize(
    "given",
    [
        [1, 3],
        [{"id": 1}, {"id": 3}],
        pa.table({"id": [3, 1]}),
        pd.DataFrame({"id": [1, 3]}),
        pd.DataFrame({"id": [1.0, 3.0]}),
        pl.DataFrame({"id": [1, 3]}),
        pa.table({"id": pa.array([1, 3], pa.int8())}),
    ],
    ids=["values", "dictionaries", "arrow", "pandas", "floats", "polars", "narrow"],
)
def test_keys_can_be_given_in_many_forms(twin, given):
    commit = twin.dataset.delete(given)
    assert (commit.retracted, commit.unknown) == (2, 0)
    assert twin.dataset.to_arrow()["id"].to_pylist() == [0, 2, 4, 5]


def test_key_given_twice_is_retracted_once(twin):
    commit = twin.dataset.delete([1, 1, 1])
    assert (commit.retracted, commit.unknown, commit.rows) == (1, 0, 1)


def test_no_keys_delete_nothing(twin):
    with untouched(twin.dataset):
        assert twin.dataset.delete([]).rows == 0


def test_keys_of_two_columns(lake):
    twin = Twin(lake, PAIR, "upsert", ["g", "id"], lookup=["g"])
    twin.write([{"g": g, "id": i, "x": g} for g in "ab" for i in range(3)])
    commit = twin.delete([("a", 1), ("b", 1), ("c", 1)])
    assert (commit.retracted, commit.unknown) == (2, 1)
    twin.check_all()


@pytest.mark.parametrize("name", ["g", "id"])
def test_part_of_the_key_deletes_all_rows_that_have_it(lake, name):
    """A prefix that is declared, and a column that is none."""
    twin = Twin(lake, PAIR, "upsert", ["g", "id"], lookup=["g"])
    twin.write([{"g": g, "id": i, "x": g} for g in "ab" for i in (7, 8)])
    commit = twin.dataset.delete(pa.table({"g": ["a"]} if name == "g" else {"id": [7]}))
    assert commit.retracted == 2
    twin.model.delete([("a", 7), ("a", 8)] if name == "g" else [("a", 7), ("b", 7)])
    twin.check_all()


@pytest.mark.parametrize(
    ("given", "error", "names"),
    [
        ([1, None], BadPrimaryKey, "id"),
        ([{"id": None}], BadPrimaryKey, "id"),
        (["one"], TypeMismatch, "id"),
        (pa.table({"id": ["1"]}), TypeMismatch, "id"),
        (pa.table({"id": [1.5]}), TypeMismatch, "id"),
        (pa.table({"other": [1]}), BadPrimaryKey, "id"),
    ],
)
def test_keys_that_are_none_are_refused(twin, given, error, names):
    with untouched(twin.dataset), pytest.raises(error, match=names):
        twin.dataset.delete(given)


def test_delete_from_a_dataset_without_a_key_is_refused(lake):
    dataset = lake.create("d")
    dataset.write(pa.table({"id": [1]}))
    with untouched(dataset), pytest.raises(BadPrimaryKey, match="key"):
        dataset.delete([1])


@pytest.mark.parametrize("kind", ["snapshot", "changelog"])
def test_delete_under_other_strategies(lake, kind):
    twin = Twin(lake, SCHEMA, kind, ["id"])
    twin.write([{"id": i, "x": str(i), **({"op": 0} if kind == "changelog" else {})} for i in range(3)])
    twin.delete([(1,), (9,)])
    twin.check_all()


def test_ledger_never_deletes(lake):
    twin = Twin(lake, SCHEMA, "ledger", ["id"])
    twin.write([{"id": 1, "x": "a"}])
    with untouched(twin.dataset), pytest.raises(ReadOnlyDataset, match="ledger"):
        twin.dataset.delete([1])


def test_columns_beside_the_key_are_refused_by_name(twin):
    with untouched(twin.dataset), pytest.raises(BadPrimaryKey, match="'x'"):
        twin.dataset.delete(twin.dataset.get([1, 2]))


def test_retraction_of_a_row_with_an_event_time(lake):
    """The retraction has the old row's event time, though the caller gave only a key."""
    twin = Twin(lake, {"id": pa.int64(), "at": pa.timestamp("us", "UTC")}, "upsert", ["id"], event_time="at")
    twin.write([{"id": 1, "at": START}, {"id": 2, "at": START}])
    twin.delete([(1,), (3,)])
    twin.check_all()
    assert twin.dataset.verify().ok
