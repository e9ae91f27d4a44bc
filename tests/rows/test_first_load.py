"""The first load of many buckets: guessed to be of single keys, and right where that is wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from floodmark.errors import DuplicateKeys
from floodmark.rows import bucket_merge
from limits import set_limit

ROWS = 300


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    set_limit(monkeypatch, "parts.part_bytes", 1000)
    set_limit(monkeypatch, "buckets.part_bytes", 16_000)


@pytest.fixture
def tries(monkeypatch):
    """What every try to do without looking came to."""
    results = []
    try_slice = bucket_merge.write_slice_if_all_new

    def noted(held, task):
        results.append(try_slice(held, task))
        return results[-1]

    monkeypatch.setattr(bucket_merge, "write_slice_if_all_new", noted)
    return results


def people(ids) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array(np.arange(len(ids)))})


def test_single_keys_need_no_look_before_their_slices_are_made(lake, tries, monkeypatch):
    monkeypatch.setattr(bucket_merge, "estimate", None)
    ids = np.random.default_rng(1).permutation(ROWS)
    dataset = lake.create("people", key="id")
    commit = dataset.write(people(ids))
    assert (commit.new, commit.slices) == (ROWS, len(tries))
    assert len(tries) > 3
    assert dataset.to_arrow().sort_by("n")["id"].to_pylist() == ids.tolist()
    assert dataset.verify().ok


def test_a_key_that_comes_twice_is_found_and_its_last_row_wins(lake, tries):
    ids = [*range(ROWS), 7]
    dataset = lake.create("people", key="id")
    commit = dataset.write(people(ids))
    assert tries.count(None) == 1
    assert (commit.new, commit.duplicates, commit.end) == (ROWS, 1, ROWS)
    assert dataset.get(7)["n"].to_pylist() == [ROWS]
    assert sorted(dataset.changes_arrow()["offset"].to_pylist()) == list(range(ROWS))
    assert dataset.verify().ok


@pytest.mark.parametrize("merge", ["ledger", "snapshot"])
def test_a_key_that_comes_twice_is_refused_where_it_must_be(lake, merge):
    dataset = lake.create("people", key="id", merge=merge)
    with pytest.raises(DuplicateKeys, match="id=7"):
        dataset.write(people([*range(ROWS), 7]))
    assert dataset.write(people(range(ROWS))).new == ROWS


def test_later_loads_are_looked_at(lake, tries):
    dataset = lake.create("people", key="id")
    dataset.write(people(range(10)))
    commit = dataset.write(people(range(ROWS)))
    assert (commit.new, commit.unchanged) == (ROWS - 10, 10)
    assert tries == []
