"""Columns that are equal in every row: what follows from some of them being so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from floodmark.views.query_plan import merge_equal_columns, unite_traces

PAIRS = st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3), max_size=6)


def closure(same: list[list[str]]) -> set[tuple[str, str]]:
    """What equals what, by going on until nothing is new."""
    known = {(a, b) for columns in same for a in columns for b in columns}
    while more := {(a, d) for a, b in known for c, d in known if b == c} - known:
        known |= more
    return known


@given(PAIRS)
def test_what_equals_one_of_some_columns_equals_all_of_them(same: list[list[str]]) -> None:
    found = merge_equal_columns(same)
    assert {(a, b) for columns in found for a in columns for b in columns} == closure(same)
    assert sum(map(len, found)) == len(frozenset().union(*found))


def test_equal_columns_have_the_tables_of_all_of_them_but_not_one_table_twice() -> None:
    t, u, other = frozenset({(0, "g")}), frozenset({(1, "h")}), frozenset({(0, "k")})
    traces = {"a": t, "b": u, "c": u, "d": other}
    made = unite_traces(traces, [frozenset("abx"), frozenset("cd")])
    assert made == {"a": t | u, "b": t | u, "c": u | other, "d": u | other}
    assert unite_traces({"a": t, "d": other}, [frozenset("ad")]) == {"a": t, "d": other}
