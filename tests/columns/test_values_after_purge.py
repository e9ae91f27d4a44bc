"""A purge of a dataset with a key moves the computed values of carried rows to their new offsets: nothing is called."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import StorageError
from floodmark.storage.memory import MemoryStore
from histories.calls import in_this_process
from profiles import seeds

CALLS: list[int] = []


@fm.udf(returns="int64", on_error=fm.Skip(ValueError))
def tens(v):
    CALLS.append(v)
    if v % 7 == 3:
        raise ValueError("three")
    return v * 10


@fm.udf(returns="int64")
def more(t):
    return None if t is None else t + 1


@fm.udf(returns="int64", version="2")
def hundreds(v):
    return v * 100


class Stubborn(MemoryStore):
    """A store that refuses to swap the catalog of computed columns while it is told to."""

    refuses = False

    def compare_and_swap(self, key, old, new):
        if self.refuses and "columns" in key:
            raise StorageError("no swaps today", hint="wait")
        return super().compare_and_swap(key, old, new)


@pytest.fixture
def dataset():
    CALLS.clear()
    dataset = fm.Lake(Stubborn()).create("d", key="id", schema={"id": "int64", "v": "int64"})
    dataset.add_column("t", tens, fragment_rows=8)
    dataset.add_column("m", more)
    with in_this_process():
        yield dataset


def write(dataset, *rows):
    dataset.write(pa.table({"id": [i for i, _ in rows], "v": [v for _, v in rows]}))


def fill(dataset):
    """Backfill both columns; returns the values that the function was called with."""
    CALLS.clear()
    dataset.backfill("t", udf=tens)
    dataset.backfill("m", udf=more)
    return sorted(CALLS)


def shown(dataset):
    rows = dataset.to_arrow().to_pylist()
    return sorted(((row["id"], row["v"], row["t"], row["m"]) for row in rows), key=lambda row: row[0])


def errors(dataset, name="t"):
    offset = {row["offset"]: row["id"] for row in dataset.scan().to_table().to_pylist()}
    return sorted(offset[row["offset"]] for row in dataset.column_errors(name).to_pylist())


def test_values_and_errors_move_with_their_rows(dataset):
    write(dataset, *((i, i) for i in range(6)))
    write(dataset, (0, 20), (4, 44))
    assert fill(dataset) == [1, 2, 3, 5, 20, 44]
    before = shown(dataset)
    assert errors(dataset) == [3]
    assert dataset.purge(before=100).carried == 6
    assert shown(dataset) == before
    assert errors(dataset) == [3]
    assert dataset.verify().problems == ()
    assert fill(dataset) == []
    write(dataset, (1, 11))
    assert fill(dataset) == [11]
    assert [row[2] for row in shown(dataset)] == [200, 110, 20, None, 440, 50]


def test_values_of_an_older_function_stay_visible_until_they_are_replaced(dataset):
    write(dataset, (1, 1), (2, 2))
    write(dataset, (1, 5))
    fill(dataset)
    dataset.alter_column("t", hundreds)
    before = shown(dataset)
    dataset.purge(before=100)
    assert shown(dataset) == before
    assert dataset.columns()[0].done == 0


def test_purge_that_did_not_reach_the_columns_is_completed_by_the_next_backfill(dataset):
    write(dataset, (1, 1), (2, 2))
    write(dataset, (1, 5))
    fill(dataset)
    before = shown(dataset)
    store = dataset.parts.ledger.objects.store
    store.refuses = True
    dataset.purge(before=100)
    store.refuses = False
    assert [row[:2] for row in shown(dataset)] == [row[:2] for row in before]
    assert fill(fm.Lake(store)["d"]) == []
    assert shown(dataset) == before
    assert dataset.verify().problems == ()


@pytest.mark.parametrize("seed", seeds(4))
def test_any_history_with_purges_computes_each_row_once(dataset, seed):
    chance, value = random.Random(seed), 0
    for _ in range(12):
        rows = {}
        for _ in range(chance.randint(1, 6)):
            value += 1
            rows[chance.randrange(12)] = (value, value)[1]
        write(dataset, *rows.items())
        if chance.random() < 0.3:
            dataset.delete([chance.randrange(12)])
        if chance.random() < 0.6:
            called = fill(dataset)
            assert called == sorted(set(called))
        if chance.random() < 0.5:
            before = shown(dataset)
            dataset.purge(before=chance.randint(0, dataset.last_offset + 1))
            assert shown(dataset) == before
    fill(dataset)
    assert shown(dataset) == [
        (i, v, None if v % 7 == 3 else v * 10, None if v % 7 == 3 else v * 10 + 1) for i, v, *_ in shown(dataset)
    ]
    dataset.collect_garbage()
    assert dataset.verify().problems == ()
    assert fill(dataset) == []
