"""Rows that differ are told apart, however alike they look to a hash."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from floodmark.rows import row_hash
from floodmark.storage.arrays import Hashes
from rows.cityhash32 import COLLIDING, weak_row_hash
from rows.twins import Twin

TWO = {"id": pa.int64(), "a": pa.string(), "b": pa.string()}


def one(of: pa.DataType) -> dict[str, pa.DataType]:
    return {"id": pa.int64(), "x": of}


NEARLY = [
    pytest.param(TWO, {"a": None, "b": "a"}, {"a": "a", "b": None}, id="null and a value change places"),
    pytest.param(TWO, {"a": "a", "b": "b"}, {"a": "b", "b": "a"}, id="two values change places"),
    pytest.param(TWO, {"a": "ab", "b": "c"}, {"a": "a", "b": "bc"}, id="the border between two texts moves"),
    pytest.param(TWO, {"a": "ab", "b": ""}, {"a": "", "b": "ab"}, id="text and nothing change places"),
    pytest.param(TWO, {"a": "a", "b": "a"}, {"a": "b", "b": "b"}, id="both change alike"),
    pytest.param(TWO, {"a": "a", "b": "a"}, {"a": None, "b": None}, id="both become null"),
    pytest.param(one(pa.string()), {"x": ""}, {"x": None}, id="empty text and null"),
    pytest.param(one(pa.string()), {"x": "a"}, {"x": "a\0"}, id="a zero byte at the end"),
    pytest.param(one(pa.string()), {"x": "a"}, {"x": "A"}, id="case"),
    pytest.param(one(pa.string()), {"x": "é"}, {"x": "e\u0301"}, id="composed and decomposed"),
    pytest.param(one(pa.string()), {"x": "a"}, {"x": "a "}, id="a space"),
    pytest.param(one(pa.binary()), {"x": b"\0"}, {"x": b"\0\0"}, id="zero bytes"),
    pytest.param(one(pa.binary()), {"x": b"\0" * 15}, {"x": b"\0" * 16}, id="zero bytes up to a block"),
    pytest.param(one(pa.binary()), {"x": b""}, {"x": None}, id="no bytes and null"),
    pytest.param(one(pa.list_(pa.int64())), {"x": [1, None, 2]}, {"x": [1, 2]}, id="a null inside a list"),
    pytest.param(one(pa.list_(pa.int64())), {"x": [1, 2]}, {"x": [2, 1]}, id="order inside a list"),
    pytest.param(one(pa.list_(pa.int64())), {"x": []}, {"x": None}, id="an empty list and null"),
    pytest.param(one(pa.list_(pa.int64())), {"x": []}, {"x": [None]}, id="an empty list and a list of null"),
    pytest.param(one(pa.list_(pa.int64())), {"x": [None]}, {"x": [None, None]}, id="one null and two"),
    pytest.param(one(pa.list_(pa.int64())), {"x": [0]}, {"x": [None]}, id="zero and null inside a list"),
    pytest.param(one(pa.list_(pa.string())), {"x": ["ab", "c"]}, {"x": ["a", "bc"]}, id="borders inside a list"),
    pytest.param(one(pa.list_(pa.list_(pa.int64()))), {"x": [[1], [2]]}, {"x": [[1, 2]]}, id="depth of a list"),
    pytest.param(one(pa.list_(pa.list_(pa.int64()))), {"x": [[], [1]]}, {"x": [[1], []]}, id="an empty list moves"),
    pytest.param(one(pa.list_(pa.list_(pa.int64()))), {"x": [[]]}, {"x": [None]}, id="an empty and a null list"),
    pytest.param(one(pa.struct([("p", pa.int64())])), {"x": {"p": None}}, {"x": None}, id="a struct of nulls and null"),
    pytest.param(
        one(pa.struct([("p", pa.int64()), ("q", pa.int64())])),
        {"x": {"p": 1, "q": None}},
        {"x": {"p": None, "q": 1}},
        id="members change places",
    ),
    pytest.param(
        one(pa.struct([("p", pa.struct([("q", pa.int64())]))])),
        {"x": {"p": None}},
        {"x": {"p": {"q": None}}},
        id="a null struct inside and a struct of nulls",
    ),
    pytest.param(one(pa.float64()), {"x": float("nan")}, {"x": None}, id="NaN and null"),
    pytest.param(one(pa.float64()), {"x": 0.0}, {"x": 5e-324}, id="zero and the smallest number"),
    pytest.param(one(pa.float64()), {"x": float("inf")}, {"x": float("nan")}, id="infinity and NaN"),
    pytest.param(one(pa.float64()), {"x": float("inf")}, {"x": float("-inf")}, id="infinities"),
    pytest.param(one(pa.float64()), {"x": 0.1}, {"x": 0.1 + 2**-56}, id="the last bit of a float"),
    pytest.param(one(pa.int64()), {"x": 0}, {"x": None}, id="zero and null"),
    pytest.param(one(pa.int64()), {"x": 2**53}, {"x": 2**53 + 1}, id="integers that are one float"),
    pytest.param(one(pa.int64()), {"x": 1}, {"x": -1}, id="sign"),
    pytest.param(one(pa.int64()), {"x": 1}, {"x": 1 + 2**32}, id="integers that are one int32"),
    pytest.param(one(pa.bool_()), {"x": False}, {"x": None}, id="false and null"),
    pytest.param(one(pa.bool_()), {"x": False}, {"x": True}, id="false and true"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("schema", "old", "new"), NEARLY)
def test_rows_that_look_alike_are_a_change(memory_lake, schema, old, new):
    twin = Twin(memory_lake, schema, "upsert", ["id"])
    twin.write([{"id": 1, **old}])
    for row in (new, old):
        commit = twin.write([{"id": 1, **row}])
        assert commit is not None
        assert commit.changed == 1
    twin.check()
    twin.check_key((1,))


@pytest.mark.parametrize(
    ("schema", "one", "other"),
    [
        ({"k": pa.string(), "l": pa.string()}, {"k": "ab", "l": "c"}, {"k": "a", "l": "bc"}),
        ({"k": pa.string(), "l": pa.string()}, {"k": "a", "l": "b"}, {"k": "b", "l": "a"}),
        ({"k": pa.string(), "l": pa.string()}, {"k": "", "l": "a"}, {"k": "a", "l": ""}),
        ({"k": pa.int64(), "l": pa.int64()}, {"k": 1, "l": 2}, {"k": 2, "l": 1}),
        ({"k": pa.int64(), "l": pa.int64()}, {"k": 1, "l": 1}, {"k": 2, "l": 2}),
        ({"k": pa.int64(), "l": pa.string()}, {"k": 1, "l": "1"}, {"k": 11, "l": ""}),
    ],
)
def test_keys_that_look_alike_are_two_keys(memory_lake, schema, one, other):
    twin = Twin(memory_lake, {**schema, "x": pa.int64()}, "upsert", ["k", "l"])
    twin.write([{**one, "x": 1}])
    twin.write([{**other, "x": 2}])
    assert len(twin.model.by_key()) == 2
    twin.check_all()


def test_change_that_comes_back_is_a_change_each_time(memory_lake):
    twin = Twin(memory_lake, one(pa.string()), "upsert", ["id"])
    for value in ("a", "b", "a", None, "a", "", None):
        twin.write([{"id": 1, "x": value}])
    assert len(twin.model.records) == 13
    twin.check_all()


def test_change_only_in_a_column_that_was_added_is_seen(memory_lake):
    twin = Twin(memory_lake, one(pa.string()), "upsert", ["id"])
    twin.write([{"id": 1, "x": "a"}])
    twin.evolve("y", pa.string())
    for x, y in (("a", ""), ("a", None), (None, "a"), ("a", "a")):
        twin.write([{"id": 1, "x": x, "y": y}])
    assert len(twin.model.records) == 9
    twin.check_all()


# Why the hash has 128 bits


def colliding(twin: Twin) -> None:
    """One row becomes another that CityHash32 takes for the same."""
    for key, value in COLLIDING:
        twin.write([{"id": key, "x": value}])
    twin.check_all()


def force_32_bits(monkeypatch) -> list[int]:
    """Let every module that hashes rows do it as Datapipe does; the hashes that were made, to see that they did."""
    real, made = row_hash.hash_rows, []

    def weak(table: pa.Table, columns: Sequence[str]) -> Hashes:
        rows = [weak_row_hash([row[name] for name in columns]) for row in table.to_pylist()]
        made.extend(rows)
        return Hashes(np.array(rows, np.uint64) << np.uint64(32), np.zeros(len(rows), np.uint64))

    for name, module in list(sys.modules.items()):
        if name.startswith("floodmark.") and getattr(module, "hash_rows", None) is real:
            monkeypatch.setattr(module, "hash_rows", weak)
    return made


def test_values_that_collide_in_32_bits_are_told_apart(lake):
    colliding(Twin(lake, one(pa.int64()), "upsert", ["id"]))


def test_32_bits_would_hide_a_change_and_these_tests_would_see_it(lake, monkeypatch):
    made = force_32_bits(monkeypatch)
    twin = Twin(lake, one(pa.int64()), "upsert", ["id"])
    with pytest.raises(AssertionError):
        colliding(twin)
    assert made
    assert twin.model.by_key() == {(1,): {"id": 1, "x": 87054}}
    assert twin.dataset.to_arrow().to_pylist() == [{"id": 1, "x": 74905}]


def test_32_bits_are_enough_where_nothing_collides(lake, monkeypatch):
    """So it is the collision that the test before sees, not the forcing."""
    force_32_bits(monkeypatch)
    twin = Twin(lake, one(pa.int64()), "upsert", ["id"])
    for value in (74905, 87055, 74905):
        twin.write([{"id": 1, "x": value}])
    twin.check_all()
