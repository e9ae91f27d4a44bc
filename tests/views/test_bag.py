"""Weighted rows applied to the rows of a view: the rows after them, each as often as it occurs."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.derive.inputs import InputSnapshot
from floodmark.storage.memory import MemoryStore
from floodmark.views.analysis import COPY_COLUMN, COPY_TYPE, ROW_COLUMN, ROW_TYPE, Analysis
from floodmark.views.bag import RowsOfKeys, apply_changes
from floodmark.views.table_changes import WholeInstead
from profiles import seeds

COLUMNS = pa.schema({"a": pa.int64(), "b": pa.string()})
HIDDEN = pa.schema([pa.field(ROW_COLUMN, ROW_TYPE), pa.field(COPY_COLUMN, COPY_TYPE)])

Weighed = list[tuple[int, str | None, int]]


def analysis(key: tuple[str, ...]) -> Analysis:
    """A view of these columns, whose rows have this key or are identified by a hash."""
    hidden = pa.schema([]) if key else HIDDEN
    known = ("changes", None, (), COLUMNS, key or (ROW_COLUMN,), key or (ROW_COLUMN, COPY_COLUMN), hidden)
    return Analysis(*known, query="", identity=not key, inject={}, schemas="")


def hashed(a: int) -> int:
    """A hash with collisions: rows with different `b`, and every third `a`, have the same."""
    return a % 3


def view(rows: Counter[tuple[int, str | None]]) -> InputSnapshot:
    """A view that has these rows."""
    numbers: Counter[int] = Counter()
    stored = []
    for a, b in rows.elements():
        stored.append({"a": a, "b": b, ROW_COLUMN: hashed(a), COPY_COLUMN: numbers[hashed(a)]})
        numbers[hashed(a)] += 1
    schema = pa.schema([*COLUMNS, *HIDDEN])
    dataset = fm.Lake(MemoryStore()).create("v", key=[ROW_COLUMN, COPY_COLUMN], schema=schema)
    dataset.write(pa.Table.from_pylist(stored, schema))
    return InputSnapshot("v", str(dataset.id), dataset.snapshot())


def apply(known: InputSnapshot, changes: Weighed) -> RowsOfKeys:
    rows = [{"a": a, "b": b, ROW_COLUMN: hashed(a)} for a, b, _ in changes]
    table = pa.Table.from_pylist(rows, pa.schema([*COLUMNS, pa.field(ROW_COLUMN, ROW_TYPE)]))
    return apply_changes(known, analysis(()), table, np.array([weight for *_, weight in changes], np.int64))


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(10))
def test_rows_without_a_key_occur_as_often_as_their_weights_say(seed: int):
    chance = Random(seed)
    before = Counter({(a, b): chance.randint(1, 3) for a in range(6) for b in (None, "x") if chance.random() < 0.6})
    after = Counter({(a, b): chance.randint(1, 3) for a in range(6) for b in (None, "x") if chance.random() < 0.6})
    changes = [(*row, 1) for row in after.elements()] + [(*row, -1) for row in before.elements()]
    chance.shuffle(changes)
    found = apply(view(before), changes)
    keys = set(found.keys[ROW_COLUMN].to_pylist())
    assert keys == {hashed(a) for a, b in (after - before) + (before - after)}
    rows = found.rows.to_pylist()
    assert Counter((r["a"], r["b"]) for r in rows) == Counter({r: n for r, n in after.items() if hashed(r[0]) in keys})
    for key in keys:
        numbers = sorted(row[COPY_COLUMN] for row in rows if row[ROW_COLUMN] == key)
        assert numbers == list(range(len(numbers)))


def test_rows_that_stay_keep_their_numbers():
    before = Counter({(0, "x"): 1, (3, "x"): 1, (6, "x"): 1})
    found = apply(view(before), [(9, "x", 1)])
    assert [(row["a"], row[COPY_COLUMN]) for row in found.rows.to_pylist()] == [(0, 0), (3, 1), (6, 2), (9, 3)]


def test_row_that_is_gone_must_have_been_there():
    with pytest.raises(WholeInstead, match="not in the view"):
        apply(view(Counter({(1, "x"): 1})), [(1, "x", -1), (1, "x", -1)])


def keyed(changes: Weighed) -> RowsOfKeys:
    table = pa.Table.from_pylist([{"a": a, "b": b} for a, b, _ in changes], COLUMNS)
    weights = np.array([weight for *_, weight in changes], np.int64)
    return apply_changes(view(Counter()), analysis(("a",)), table, weights)


def test_row_of_a_key_is_replaced_removed_or_left_alone():
    changes: Weighed = [(1, "x", -1), (1, "y", 1), (2, "x", -1), (3, "x", 1), (3, "x", -1)]
    found = keyed(changes)
    assert sorted(found.keys["a"].to_pylist()) == [1, 2]
    assert found.rows.to_pylist() == [{"a": 1, "b": "y"}]


@pytest.mark.parametrize("changes", [[(1, "x", 1), (1, "y", 1)], [(1, "x", 1), (1, "x", 1)]])
def test_two_rows_of_one_key_are_refused(changes: Weighed):
    with pytest.raises(WholeInstead, match="one key"):
        keyed(changes)
