"""The life of a record: every version of a key with its offset, operation and system time."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from floodmark.errors import BadPrimaryKey
from ledger.worlds import START
from rows.harm import lose_all
from rows.twins import Twin

SCHEMA = {"id": pa.int64(), "x": pa.string()}


@pytest.fixture
def twin(lake, clock):
    """Key 1 is added, changed, retracted and added again; key 2 only added."""
    made = Twin(lake, SCHEMA, "upsert", ["id"])
    made.write([{"id": 1, "x": "a"}, {"id": 2, "x": "z"}])
    clock.tick(60)
    made.write([{"id": 1, "x": "b"}])
    clock.tick(60)
    made.delete([(1,)])
    clock.tick(60)
    made.write([{"id": 1, "x": "b"}, {"id": 2, "x": "z"}])
    return made


def test_every_version_is_told_in_order(twin):
    life = twin.dataset.history([1])
    assert life.column_names == ["offset", "op", "system_time", "id", "x"]
    assert life.select(["offset", "op", "x"]).to_pylist() == [
        {"offset": 0, "op": 0, "x": "a"},
        {"offset": 2, "op": 2, "x": "a"},
        {"offset": 3, "op": 3, "x": "b"},
        {"offset": 4, "op": 1, "x": "b"},
        {"offset": 5, "op": 0, "x": "b"},
    ]


def test_each_version_has_the_time_of_its_commit(twin):
    minutes = [(time - START) / timedelta(minutes=1) for time in twin.dataset.history([1])["system_time"].to_pylist()]
    assert minutes == [0, 1, 1, 2, 3]


def test_several_keys_are_told_together_in_offset_order(twin):
    assert twin.dataset.history([2, 1])["offset"].to_pylist() == [0, 1, 2, 3, 4, 5]


def test_unknown_key_has_no_history(twin):
    life = twin.dataset.history([7])
    assert (life.num_rows, life.column_names) == (0, ["offset", "op", "system_time", "id", "x"])


def test_key_can_be_a_dictionary_or_a_table(twin):
    expected = twin.dataset.history([1])
    assert twin.dataset.history([{"id": 1}]).equals(expected)
    assert twin.dataset.history(pa.table({"id": pa.array([1], pa.int32())})).equals(expected)


def test_history_outlives_fold_and_index(twin):
    expected = twin.dataset.history([1])
    twin.dataset.fold()
    assert twin.dataset.history([1]).equals(expected)
    lose_all(twin.dataset)
    assert twin.dataset.history([1]).equals(expected)
    twin.reopen()
    assert twin.dataset.history([1]).equals(expected)


def test_older_versions_are_null_in_a_column_that_was_added(twin):
    twin.evolve("y", pa.string())
    twin.write([{"id": 1, "x": "b", "y": "new"}])
    assert twin.dataset.history([1])["y"].to_pylist() == [None, None, None, None, None, None, "new"]
    twin.check_all()


def test_null_is_no_key_to_ask_for(twin):
    with pytest.raises(BadPrimaryKey, match="id"):
        twin.dataset.history([None])


def test_dataset_without_a_key_has_no_history(lake):
    dataset = lake.create("d")
    dataset.write(pa.table({"id": [1]}))
    with pytest.raises(BadPrimaryKey, match="key"):
        dataset.history([1])


def test_history_by_a_prefix_of_the_key_is_that_of_its_group(lake):
    twin = Twin(lake, {"g": pa.string(), **SCHEMA}, "upsert", ["g", "id"], lookup=["g"])
    twin.write([{"g": "a", "id": 1, "x": "1"}, {"g": "a", "id": 2, "x": "2"}, {"g": "b", "id": 1, "x": "3"}])
    twin.write([{"g": "a", "id": 2, "x": "4"}])
    twin.delete([("a", 1)])
    life = twin.dataset.history(pa.table({"g": ["a"]}))
    assert life.select(["offset", "op", "id", "x"]).to_pylist() == [
        {"offset": 0, "op": 0, "id": 1, "x": "1"},
        {"offset": 1, "op": 0, "id": 2, "x": "2"},
        {"offset": 3, "op": 2, "id": 2, "x": "2"},
        {"offset": 4, "op": 3, "id": 2, "x": "4"},
        {"offset": 5, "op": 1, "id": 1, "x": "1"},
    ]


@pytest.mark.parametrize(("stored", "asked"), [(0.0, -0.0), (-0.0, 0.0), (float("nan"), float("nan"))])
def test_key_that_get_finds_has_a_history(lake, stored, asked):
    """Zero has no sign and NaN is NaN, also where Parquet's statistics and filters think otherwise."""
    dataset = lake.create("e", key=["k"])
    dataset.write(pa.table({"k": [stored, 1.5], "x": [1, 2]}))
    assert dataset.get([asked]).num_rows == 1
    assert dataset.history([asked])["x"].to_pylist() == [1]
