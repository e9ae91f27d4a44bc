"""`floodmark delete` retracts rows; their history stays."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark import Lake


@pytest.fixture
def prices(run, folder):
    run("init")
    prices = Lake("lake").create("prices", key=["shop", "item"])
    prices.write(pa.table({"shop": [1, 1, 2], "item": ["a", "b", "a"], "price": [5, 6, 7]}))
    return prices


def left(dataset):
    return dataset.to_arrow(columns=["price"]).column("price").to_pylist()


def test_delete_retracts_the_row_with_the_key(run, prices):
    answer = run("delete", "prices", "shop=1", "item=b")
    assert answer.out.startswith("prices: 1 retracted (offsets 3–3, ")
    assert left(prices) == [5, 7]
    assert [r["op"] for r in run("history", "prices", "shop=1", "item=b", "--json").json["records"]] == ["+A", "-R"]


def test_some_columns_of_the_key_retract_all_rows_that_have_them(run, prices):
    assert "2 retracted" in run("delete", "prices", "shop=1").out
    assert left(prices) == [7]


def test_several_keys_go_in_one_commit(run, prices):
    found = run("delete", "prices", "shop=1", "item=a", "shop=2", "item=a", "--json").json
    assert (found["retracted"], found["unknown"], found["start"], found["end"]) == (2, 0, 3, 5)
    assert left(prices) == [6]


def test_key_that_is_not_there_is_counted(run, prices):
    keys = ["shop=1", "item=a", "shop=9", "item=z"]
    assert "1 retracted, 1 not found (" in run("delete", "prices", *keys).out
    found = run("delete", "prices", *keys, "--json")
    assert (found.code, found.json["retracted"], found.json["unknown"]) == (0, 0, 2)


def test_delete_of_nothing_adds_no_block(run, prices):
    head = prices.head
    answer = run("delete", "prices", "shop=9", "item=z")
    assert (answer.code, answer.out) == (0, "prices: nothing to retract; no row has shop=9, item=z\n")
    assert prices.head == head


def test_dataset_that_was_never_written_has_nothing_to_retract(run, folder):
    empty = Lake("lake").create("empty", key="id")
    assert run("delete", "empty", "id=1").out == "empty: nothing to retract; no row has id=1\n"
    found = run("delete", "empty", "id=1", "--json").json
    assert (found["retracted"], found["unknown"], found["block"]) == (0, 1, empty.head.text)


def test_ledger_keeps_its_rows(run, folder):
    Lake("lake").create("facts", key="id", merge="ledger").write(pa.table({"id": [1]}))
    answer = run("delete", "facts", "id=1")
    assert answer.code == 1
    assert "is not supported with merge ledger" in answer.err


def test_dataset_without_a_key_is_refused(run, trips):
    answer = run("delete", trips, "id=1")
    assert answer.code == 1
    assert "'trips' has no key" in answer.err


def test_value_that_does_not_fit_deletes_nothing(run, prices):
    assert run("delete", "prices", "shop=one", "item=a").code == 1
    assert left(prices) == [5, 6, 7]
