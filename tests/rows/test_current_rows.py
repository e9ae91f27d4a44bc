"""A dataset with a key reads as its current rows, however they are asked for."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import floodmark as fm
from floodmark.ledger.scan import live_mask
from floodmark.ledger.selection import DataFile, Selection
from floodmark.storage.memory import MemoryStore
from rows.current_worlds import lived_in, people, replayed, rows


@pytest.fixture(params=["folder", "memory"])
def dataset(request, tmp_path, clock):
    place = tmp_path / "lake" if request.param == "folder" else MemoryStore()
    runtime = fm.Runtime(clock=clock, fold_at=None)
    made = fm.Lake(place, runtime=runtime).create("p", key=["id"], merge="upsert")
    return lived_in(made, seed=5, writes=12)


@pytest.mark.slow
def test_every_way_to_read_gives_the_current_rows_in_offset_order(dataset):
    expected = rows(dataset)
    assert dataset.last_offset > len(expected)  # or nothing is dead here
    assert dataset.to_arrow().to_pylist() == expected
    assert dataset.to_batches().read_all().to_pylist() == expected
    assert dataset.to_pandas().to_dict("records") == expected
    assert dataset.count() == len(expected)
    system = dataset.scan().to_table()
    assert system.column("offset").to_pylist() == sorted(r["offset"] for r in replayed(dataset).values())
    assert set(system.column("op").to_pylist()) <= {0, 3}
    assert dataset.scan().scanner().to_table().equals(system)


def test_columns_can_be_chosen_with_and_without_the_offset(dataset):
    expected = rows(dataset)
    assert dataset.to_arrow(columns=["v"]).column("v").to_pylist() == [r["v"] for r in expected]
    chosen = dataset.to_arrow(columns=["v", "offset"])
    assert chosen.column_names == ["v", "offset"]
    assert chosen.column("v").to_pylist() == [r["v"] for r in expected]
    assert dataset.to_arrow(columns=[]).num_rows == len(expected)


@pytest.mark.parametrize("where", ["id < 20", pc.field("id") < 20], ids=["sql", "arrow"])
def test_filters_see_only_current_rows(dataset, where):
    found = dataset.to_batches(columns=["id", "offset"], where=where).read_all().to_pylist()
    expected = sorted((r["offset"], r["id"]) for r in replayed(dataset).values() if r["id"] < 20)
    assert [(r["offset"], r["id"]) for r in found] == expected


@pytest.mark.slow
def test_a_question_inside_a_filter_sees_only_current_rows(dataset):
    dataset.write(people([1000], "largest"))
    dataset.delete([1000])
    largest = max(replayed(dataset))
    found = dataset.to_batches(where="id = (select max(id) from records)").read_all()
    assert found.column("id").to_pylist() == [largest]


def test_sql_sees_only_current_rows(tmp_path):
    lake = fm.Lake(tmp_path / "lake")
    dataset = lived_in(lake.create("p", key=["id"], merge="upsert"), seed=6, writes=8)
    expected = rows(dataset)
    answer = lake.sql("select count(*) c, count(distinct id) d, sum(id) s from p").to_pylist()
    assert answer == [{"c": len(expected), "d": len(expected), "s": sum(r["id"] for r in expected)}]
    joined = lake.sql("select count(*) c from p a join p b using (id)").to_pylist()
    assert joined == [{"c": len(expected)}]


def test_records_are_still_all_there(dataset):
    changes = dataset.changes_arrow()
    assert changes.column("offset").to_pylist() == list(range(dataset.last_offset + 1))
    assert set(changes.column("op").to_pylist()) > {0}


def test_dataset_whose_rows_are_all_deleted_is_empty(lake):
    dataset = lake.create("p", key=["id"], merge="upsert")
    dataset.write(people(range(5), "a"))
    dataset.delete(list(range(5)))
    assert dataset.to_arrow().num_rows == dataset.count() == 0
    assert dataset.to_arrow().schema.names == ["id", "v"]
    assert dataset.to_batches(where="id > 0").read_all().num_rows == 0


def test_column_added_later_is_null_in_older_rows(lake):
    dataset = lake.create("p", key=["id"], merge="upsert")
    dataset.write(people(range(4), "a"))
    dataset.evolve({"w": "int64"})
    dataset.write(people([2], "b").append_column("w", pa.array([7])))
    assert dataset.to_arrow().to_pylist() == rows(dataset)
    assert dataset.to_arrow(columns=["id", "w"]).to_pydict() == {"id": [0, 1, 3, 2], "w": [None, None, None, 7]}


def test_purged_records_are_not_counted_and_not_read(lake):
    dataset = lake.create("p", key=["id"], merge="upsert")
    dataset.write(people(range(4), "a"))
    dataset.write(people([1, 2], "b"))
    dataset.write(people([2, 9], "c"))
    dataset.purge(before=4)
    expected = [r for r in rows_of_all(dataset) if r["offset"] >= 4]
    assert dataset.to_arrow(columns=["offset", "id"]).column("offset").to_pylist() == [r["offset"] for r in expected]
    assert dataset.count() == len(expected)


def rows_of_all(dataset):
    """The current rows from the records that are left: those that a record of the key ends are not among them."""
    found: dict[int, dict] = {}
    for record in dataset.changes_arrow(since=3).to_pylist():
        found.pop(record["id"], None)
        if record["op"] in (0, 3):
            found[record["id"]] = record
    return sorted(found.values(), key=lambda r: r["offset"])


OFFSETS = st.lists(st.integers(0, 60), unique=True).map(sorted)


@given(offsets=OFFSETS, dead=OFFSETS)
def test_mask_keeps_exactly_those_who_are_not_dead(offsets, dead):
    kept = live_mask(np.array(offsets, np.int64), np.array(dead, np.int64))
    left = offsets if kept is None else [o for o, k in zip(offsets, kept.tolist(), strict=True) if k]
    assert left == [o for o in offsets if o not in dead]


@given(cuts=st.lists(st.integers(1, 30), min_size=2, unique=True).map(sorted), dead=OFFSETS, gone=OFFSETS)
def test_dead_rows_of_files_that_left_some_out_already(cuts, dead, gone):
    """`gone` are the dead that were folded away; the rest still lies in the files."""
    dead = sorted({*dead, *gone})
    files, expected = [], []
    for start, end in pairwise(cuts):
        held = [o for o in range(start, end) if o not in gone]
        files.append(DataFile("f", start, end, len(held), 1))
        expected.append(sum(o in dead for o in held))
    selection = Selection(cuts[0], cuts[-1], tuple(files), np.array(dead, np.int64))
    assert selection.dead_rows.tolist() == expected
    assert selection.has_dead == any(expected)


@given(OFFSETS, st.integers(0, 2**40))
def test_selection_arrives_whole_in_a_task(dead, far):
    selection = Selection(0, 2**41, (DataFile("f", 0, 10, 10, 1),), np.array([d + far for d in dead], np.int64))
    arrived = pickle.loads(pickle.dumps(selection))
    assert arrived == selection
    assert arrived.dead.tolist() == selection.dead.tolist()
