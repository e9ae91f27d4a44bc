"""Figures of a timeline: rows, pieces and what is dead, counted once however a row group was cut."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from floodmark.timeline.pieces import Partition
from floodmark.timeline.root import LastUpdate, Root
from floodmark.timeline.timeline import hidden_bytes, stats
from timeline.root_worlds import DAY, own_name, piece
from timeline.root_worlds import partition as whole

ROW = 20


def rows(low: int, high: int, file: int = 1, group: int = 0, day: int = 0):
    """Rows [low, high) of a row group of a hundred, of twenty bytes each."""
    made = piece(day * DAY + low, high - low, own_name(file))
    return replace(made, row_group=group, row_lo=low, row_hi=high, group_rows=100)


def figures(*partitions: Partition):
    root = Root(version=1, applied=30, bytes_in=400, bytes_written=1000, last=LastUpdate(rows=3))
    return stats(root, partitions, "day", 42)


def test_a_partition_in_figures():
    run = (rows(0, 4, file=2), rows(10, 12, file=2, group=1))
    settled = (replace(rows(0, 30), dead=6), rows(50, 80))
    one = replace(whole(1), settled=settled, waiting=(replace(whole(1, waiting=[run[0]]).waiting[0], pieces=run),))
    [found] = figures(replace(one, bytes_in=100, bytes_written=250)).partitions
    assert (found.label, found.start) == ("1970-01-02", DAY)
    assert (found.rows, found.pieces, found.row_groups) == (66, 4, 3)
    assert (found.waiting_rows, found.waiting_pieces) == (6, 2)
    assert found.bytes == 66 * ROW
    assert found.dead_rows == 6
    assert found.dead_bytes == (6 + 40 + 96 + 98) * ROW
    assert (found.bytes_in, found.bytes_written, found.amplification) == (100, 250, 2.5)


def test_the_whole_in_figures():
    found = figures(whole(0, 2), whole(1, 3))
    assert (found.rows, found.pieces, found.dead_bytes) == (50, 5, 0)
    assert (found.applied, found.behind, found.amplification) == (30, 12, 2.5)
    assert found.last == LastUpdate(rows=3)


def test_nothing_has_no_amplification():
    assert stats(Root(), (), "day", 5).amplification is None
    assert figures(replace(whole(0), bytes_in=0)).partitions[0].amplification is None


def test_more_dead_than_rows_are_no_more_than_all():
    [found] = figures(replace(whole(0), settled=(replace(rows(0, 100), dead=500),))).partitions
    assert (found.dead_rows, found.dead_bytes) == (100, 100 * ROW)


def test_rows_that_another_partition_shows_are_not_hidden():
    days = Partition(0, (rows(0, 60),)), Partition(DAY, (rows(60, 100, day=1),))
    assert hidden_bytes(days) == [0, 0]
    assert hidden_bytes(days[:1]) == [40 * ROW]


CUTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 9), st.booleans()), unique_by=lambda c: c[:3]
)


@given(CUTS)
def test_what_is_hidden_is_what_no_piece_shows(tens):
    """Against a naive oracle: all rows of all row groups that are named, without those that are shown."""
    pieces = [(day, rows(10 * ten, 10 * ten + 10, file, group)) for file, group, ten, day in tens]
    days = [
        Partition(0, tuple(p for day, p in pieces if not day)),
        Partition(DAY, tuple(p for day, p in pieces if day)),
    ]
    every = {(file, group, row) for file, group, _, _ in tens for row in range(100)}
    seen = {(file, group, row) for file, group, ten, _ in tens for row in range(10 * ten, 10 * ten + 10)}
    assert abs(sum(hidden_bytes(days)) - len(every - seen) * ROW) <= len(pieces)
