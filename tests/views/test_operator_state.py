"""States of operators: totals with changes added, and orders with rows put in place, equal those of all rows."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.memory import MemoryStore
from floodmark.views.operator_state import (
    COLUMN,
    COUNT,
    FILLED,
    KEY,
    SUM,
    FirstRows,
    GroupTotals,
    StateFiles,
    StateLost,
    load_state,
)
from floodmark.views.table_changes import WholeInstead

MONEY = pa.decimal128(38, 2)
Row = tuple[Any, ...]

groups = st.sampled_from([None, "a", "b", "c"])
rows = st.tuples(groups, st.one_of(st.none(), st.integers(-3, 3)))


def totals(weighted: list[tuple[Row, int]]) -> pa.Table:
    """What Spark computes from weighted rows: by group the number of rows, and of values, and the sums."""
    found: dict[Any, list[int]] = {}
    for (group, value), weight in weighted:
        one = found.setdefault(group, [0, 0, 0])
        one[0] += weight
        one[1] += 0 if value is None else weight
        one[2] += 0 if value is None else weight * value
    return pa.table(
        {
            f"{KEY}0": pa.array(list(found), pa.string()),
            COUNT: pa.array([one[0] for one in found.values()], pa.int64()),
            f"{FILLED}0": pa.array([one[1] for one in found.values()], pa.int64()),
            f"{SUM}0": pa.array([Decimal(one[2]) for one in found.values()], pa.decimal128(22, 2)),
        }
    )


def shown(table: pa.Table) -> set[Row]:
    return {tuple(row.values()) for row in table.to_pylist()}


@given(st.lists(rows), st.lists(st.lists(rows, max_size=4), max_size=4), st.randoms())
def test_totals_with_changes_added_equal_those_of_all_rows(before: list[Row], added: list[list[Row]], chance: Any):
    present = list(before)
    state = GroupTotals.of(totals([(row, 1) for row in present]))
    for more in added:
        gone = chance.sample(present, min(len(present), chance.randrange(3)))
        old = shown(state.table)
        change = state.add(totals([(row, 1) for row in more] + [(row, -1) for row in gone]))
        present = list((Counter(present) - Counter(gone)).elements()) + more
        expected = shown(GroupTotals.of(totals([(row, 1) for row in present])).table)
        assert shown(change.totals.table) == expected
        assert shown(change.before) - shown(change.now) == old - expected
        assert shown(change.now) - shown(change.before) == expected - old
        state = GroupTotals.from_table(pa.ipc.open_stream(change.totals.to_bytes()).read_all())


def test_totals_of_all_rows_stay_when_no_row_is_left():
    columns = {COUNT: [2], f"{FILLED}0": [2], f"{SUM}0": [5]}
    state = GroupTotals.of(pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()}))
    gone = pa.table({name: pa.array([-values[0]], pa.int64()) for name, values in columns.items()})
    assert shown(state.add(gone).now) == {(0, 0, 0)}


def test_totals_that_would_be_negative_or_too_large_are_refused():
    state = GroupTotals.of(totals([(("a", 1), 1)]))
    with pytest.raises(WholeInstead, match="fewer rows"):
        state.add(totals([(("a", 1), -2)]))
    most = pa.table({COUNT: pa.array([1]), f"{FILLED}0": pa.array([1]), f"{SUM}0": pa.array([2**63 - 1])})
    with pytest.raises(WholeInstead, match="does not fit"):
        GroupTotals.of(most).add(most)


def ordered(values: list[int]) -> pa.Table:
    return pa.table({f"{COLUMN}0": pa.array(values, pa.int64())})


@given(
    st.lists(st.integers(0, 20), min_size=3, max_size=9),
    st.lists(st.tuples(st.lists(st.integers(0, 20), max_size=2), st.integers(0, 3)), min_size=1, max_size=5),
    st.randoms(),
)
def test_first_rows_after_changes_are_those_of_all_rows(before: list[int], changes: list[Any], chance: Any):
    needed, kept = 2, 4
    present = sorted(before)
    state = FirstRows(ordered(present[:kept]), len(present) <= kept)
    for more, number in changes:
        gone = chance.sample(present[:5], min(len(present), number))
        present = sorted([*(Counter(present) - Counter(gone)).elements(), *more])
        weights = np.repeat([1, -1], [len(more), len(gone)])
        try:
            candidates, counts = state.candidates(ordered([*more, *gone]), weights)
            order = np.argsort(candidates.column(0).to_numpy(), kind="stable")
            state = state.updated(candidates.take(pa.array(order)), counts[order], needed, kept)
        except WholeInstead:
            assert not state.is_complete
            state = FirstRows(ordered(present[:kept]), len(present) <= kept)
        known = state.table.column(0).to_pylist()
        assert known == present[: len(known)]
        assert len(known) >= min(needed, len(present))
        assert not state.is_complete or known == present


def test_row_that_was_taken_back_but_is_not_kept_is_refused():
    with pytest.raises(WholeInstead, match="fewer of a row"):
        FirstRows(ordered([1, 2]), True).candidates(ordered([3]), np.array([-1]))


def test_state_that_is_missing_or_damaged_is_lost():
    objects = DatasetObjects(MemoryStore(), "datasets/x")
    files = StateFiles.of({"0-a": FirstRows(ordered([1]), True)}, {"1-b": None})
    assert files.names["1-b"] is None
    name = files.names["0-a"]
    assert name is not None
    with pytest.raises(StateLost, match="missing"):
        load_state(name, objects)
    files.put(objects)
    assert FirstRows.from_table(load_state(name, objects)) == FirstRows(ordered([1]), True)
    [key] = [info.key for info in objects.checkpoints()]
    data = objects.store.get(key)
    objects.store.delete(key)
    objects.store.put_if_absent(key, bytes(data[:-1]) + b"x")
    with pytest.raises(StateLost, match="damaged"):
        load_state(name, objects)
