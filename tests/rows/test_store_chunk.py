"""store_chunk: the rows of a chunk are upserted, and rows of the processed index that the chunk lacks are retracted."""

from __future__ import annotations

from datetime import datetime

import pandas as pd
import pyarrow as pa
import pytest

from floodmark.errors import BadPrimaryKey, ReadOnlyDataset, TypeMismatch
from ledger.worlds import untouched
from rows.twins import Twin

SCHEMA = {"g": pa.string(), "id": pa.int64(), "x": pa.string()}


def row(g: str, i: int, x: str = "x"):
    return {"g": g, "id": i, "x": x}


@pytest.fixture
def twin(lake):
    made = Twin(lake, SCHEMA, "upsert", ["g", "id"], lookup=["g"])
    made.write([row(g, i) for g in "ab" for i in range(3)])
    return made


def test_chunk_without_an_index_is_an_upsert(twin):
    commit = twin.store_chunk([row("a", 0), row("a", 1, "y"), row("c", 0)])
    assert (commit.new, commit.changed, commit.unchanged, commit.retracted) == (1, 1, 1, 0)
    twin.check_all()


def test_what_was_processed_and_is_not_in_the_chunk_is_retracted(twin):
    commit = twin.store_chunk([row("a", 0)], [{"g": "a", "id": 0}, {"g": "a", "id": 1}])
    assert (commit.retracted, commit.unchanged, commit.rows) == (1, 1, 1)
    twin.check_all()


def test_what_was_not_processed_stays(twin):
    twin.store_chunk([row("a", 0, "y")], [{"g": "a", "id": 0}])
    assert len(twin.model.by_key()) == 6
    twin.check_all()


def test_rows_outside_of_the_index_are_stored_too(twin):
    commit = twin.store_chunk([row("c", 5)], [{"g": "a", "id": 0}])
    assert (commit.new, commit.retracted) == (1, 1)
    twin.check_all()


@pytest.mark.parametrize("name", ["g", "id"])
def test_index_of_some_key_columns_covers_all_rows_that_have_them(twin, name):
    """A prefix that is declared, and a column that is none."""
    chunk = [row("a", 1), row("a", 7)]
    commit = twin.store_chunk(chunk, [{"g": "a"}] if name == "g" else [{"id": 1}])
    assert commit.retracted == (2 if name == "g" else 1)
    twin.check_all()


def test_empty_chunk_retracts_all_that_was_processed(twin):
    commit = twin.store_chunk([], [{"g": "a"}])
    assert (commit.retracted, commit.rows) == (3, 3)
    twin.check_all()


def test_index_of_rows_that_were_never_there_retracts_nothing(twin):
    with untouched(twin.dataset):
        commit = twin.dataset.store_chunk(twin.table([]), processed_idx=pa.table({"g": ["z"], "id": [1]}))
    assert (commit.retracted, commit.rows) == (0, 0)


def test_empty_index_retracts_nothing(twin):
    twin.store_chunk([row("a", 0, "y")], [])
    twin.check_all()


@pytest.mark.slow
def test_whole_life_of_a_group(twin):
    for rows in ([row("a", 0)], [], [row("a", 0), row("a", 9)], [row("a", 9, "z")], [row("a", 9, "z")]):
        twin.store_chunk(rows, [{"g": "a"}])
        twin.check()
    twin.check_all()
    assert twin.dataset.verify().ok


def test_index_may_be_a_pandas_frame_and_repeat_itself(twin):
    commit = twin.dataset.store_chunk(
        pd.DataFrame([row("a", 0)]), processed_idx=pd.DataFrame({"id": [1, 1, 0], "g": ["a", "a", "a"]})
    )
    assert (commit.retracted, commit.unchanged) == (1, 1)


def test_last_row_of_a_key_wins_and_others_are_counted(twin):
    commit = twin.store_chunk([row("a", 0, "1"), row("a", 0, "2"), row("a", 0, "3")])
    assert (commit.changed, commit.duplicates) == (1, 2)
    twin.check_all()


def test_index_that_is_no_part_of_the_key_is_refused_by_name(twin):
    with untouched(twin.dataset), pytest.raises(BadPrimaryKey, match="nonsense"):
        twin.dataset.store_chunk(twin.table([row("a", 0)]), processed_idx=pa.table({"nonsense": [1]}))


def test_first_chunk_of_a_dataset_without_columns(lake):
    dataset = lake.create("e", key=["id"])
    commit = dataset.store_chunk(pa.table({"id": [1, 2]}), processed_idx=pa.table({"id": [1, 2, 3]}))
    assert (commit.new, commit.retracted) == (2, 0)
    assert dataset.schema.names == ["id"]


@pytest.mark.parametrize(
    "shape",
    [
        lambda table: table.set_column(2, "x", table["x"].dictionary_encode()),
        lambda table: table.set_column(2, "x", table["x"].cast(pa.large_string())),
        lambda table: table.select(["x", "id", "g"]),
        lambda table: table.set_column(1, "id", table["id"].cast(pa.int8())),
        lambda table: table.set_column(1, "id", table["id"].cast(pa.float64())),
        lambda table: table.to_pandas().astype({"g": "category"}),
    ],
    ids=["dictionary", "large", "reordered", "narrow", "floats", "category"],
)
def test_shape_of_the_chunk_makes_no_difference_beside_an_index(twin, shape):
    commit = twin.dataset.store_chunk(shape(twin.table([row("a", 0), row("a", 1, "y")])), pa.table({"g": ["a"]}))
    assert (commit.unchanged, commit.changed, commit.retracted) == (1, 1, 1)


def test_large_keys_are_retracted_as_they_are_whatever_type_the_chunk_has(lake):
    """2**53 + 1 is no float: it must not become another key on its way."""
    twin = Twin(lake, {"id": pa.int64(), "x": pa.string()}, "upsert", ["id"])
    large = 2**53
    twin.write([{"id": i, "x": "x"} for i in (1, large, large + 1)])
    chunk = pa.table({"id": pa.array([1.0]), "x": ["y"]})
    commit = twin.dataset.store_chunk(chunk, processed_idx=[1, large + 1])
    assert (commit.changed, commit.retracted) == (1, 1)
    assert sorted(twin.dataset.to_arrow()["id"].to_pylist()) == [1, large]


def test_times_of_any_unit_go_with_rows_of_any_time(lake):
    """Rows to be retracted may lie outside of what nanoseconds can tell."""
    twin = Twin(lake, {"id": pa.int64(), "t": pa.timestamp("us")}, "upsert", ["id"])
    twin.write([{"id": 1, "t": datetime(9999, 1, 1)}, {"id": 2, "t": datetime(2026, 1, 1)}])
    chunk = pa.table({"id": [2], "t": pa.array([datetime(2026, 1, 1)], pa.timestamp("ns"))})
    commit = twin.dataset.store_chunk(chunk, processed_idx=[1, 2])
    assert (commit.unchanged, commit.retracted) == (1, 1)


@pytest.mark.parametrize(
    ("index", "error", "names"),
    [
        (pa.table({"g": [None], "id": [1]}), BadPrimaryKey, "g"),
        (pa.table({"id": ["one"]}), TypeMismatch, "id"),
    ],
)
def test_bad_index_is_refused(twin, index, error, names):
    with untouched(twin.dataset), pytest.raises(error, match=names):
        twin.dataset.store_chunk(twin.table([row("a", 0, "y")]), processed_idx=index)


@pytest.mark.parametrize("kind", ["ledger", "snapshot", "changelog"])
def test_chunks_are_for_upsert_datasets(lake, kind):
    dataset = lake.create("e", key=["id"], merge=kind, schema={"id": "int64"})
    with untouched(dataset), pytest.raises(ReadOnlyDataset, match=kind):
        dataset.store_chunk(pa.table({"id": [1]}))
