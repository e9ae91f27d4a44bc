"""Rows with wanted values, found among many: the same as comparing tuples one by one."""

from __future__ import annotations

import random
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.derive.row_search import SearchedKeys
from floodmark.rows import row_hash
from profiles import examples

FEW = {
    pa.int8(): [-128, -1, 0, 5, 127],
    pa.int32(): [-(1 << 31), -1, 0, 1, (1 << 31) - 1],
    pa.int64(): [-(1 << 63), -1, 0, 1, (1 << 63) - 1],
    pa.uint8(): [0, 1, 200, 255],
    pa.uint64(): [0, 1, 1 << 63, (1 << 64) - 1],
    pa.bool_(): [True, False],
    pa.string(): ["", "a", "b", "ä", "much longer than the others are"],
    pa.binary(): [b"", b"\0", b"\0\0"],
    pa.date32(): [date(1, 1, 1), date(1970, 1, 1), date(2026, 11, 16)],
    pa.timestamp("us"): [datetime(1969, 12, 31), datetime(2026, 11, 16, 1, 2, 3, 4)],
    pa.timestamp("ms", "UTC"): [datetime(1969, 12, 31), datetime(2026, 11, 16)],
    pa.decimal128(20, 2): [Decimal("-1.25"), Decimal("0.00"), Decimal("99999.99")],
}
"""Types that T can have, and values among which there are many equal ones."""


@st.composite
def _cases(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    types = draw(st.lists(st.sampled_from(list(FEW)), min_size=1, max_size=3))
    row = st.tuples(*(st.sampled_from([None, *FEW[t]]) for t in types))
    return _table(types, draw(st.lists(row, max_size=30))), _table(types, draw(st.lists(row, max_size=5, unique=True)))


def _table(types: list[pa.DataType], rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = [pa.array([row[n] for row in rows], t) for n, t in enumerate(types)]
    return pa.table(columns, names=[f"c{n}" for n in range(len(types))])


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True))


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(_cases(), st.integers(0, 3))
def test_rows_are_those_whose_tuples_are_wanted(case: tuple[pa.Table, pa.Table], skipped: int):
    rows, values = case
    wanted = SearchedKeys.of(values, row_hash.hash_rows(values, values.column_names))
    for batch in rows.slice(skipped).to_batches():  # slices: values need not begin where a buffer does
        expected = [n for n, row in enumerate(_tuples(rows.slice(skipped))) if row in _tuples(values)]
        assert wanted.rows(batch).tolist() == expected


def test_numbers_that_only_look_like_wanted_ones_are_told_apart():
    draw = random.Random(3)
    held = [draw.getrandbits(63) for _ in range(20_000)]
    values = pa.table({"n": pa.array(held[:5_000], pa.int64())})
    wanted = SearchedKeys.of(values, row_hash.hash_rows(values, ["n"]))
    [batch] = pa.table({"n": pa.array(held, pa.int64())}).to_batches()
    assert wanted.rows(batch).tolist() == list(range(5_000))


@pytest.mark.parametrize("count", [0, 1, 100_000])
def test_numbers_are_found_however_many_are_wanted(count: int):
    values = pa.table({"n": pa.array(range(0, 3 * count, 3), pa.int64())})
    wanted = SearchedKeys.of(values, row_hash.hash_rows(values, ["n"]))
    [batch] = pa.table({"n": pa.array(range(-10, 500), pa.int64())}).to_batches()
    assert wanted.rows(batch).tolist() == [n + 10 for n in range(0, min(500, 3 * count), 3)]
