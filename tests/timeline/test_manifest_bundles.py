"""Neighbouring partitions share a manifest, and a change rewrites only those that it touches."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.timeline.bundles import cut, regroup
from floodmark.timeline.commit import ref_of
from floodmark.timeline.manifest import encode
from floodmark.timeline.pieces import Bundle
from limits import set_limit
from timeline.root_worlds import DAY, partition

FULL = 16
SIZES = st.sampled_from([1, 2, 3, 9, FULL, 20])
CHANGES = st.dictionaries(st.integers(0, 12), st.none() | SIZES, max_size=5)


@pytest.fixture(autouse=True, scope="module")
def small_bundles():
    with pytest.MonkeyPatch.context() as patch:
        set_limit(patch, "bundles.bundle_pieces", FULL)
        yield


class Shelf:
    """Bundles as a root has them, and which of them were read."""

    def __init__(self) -> None:
        self.refs = ()
        self.held = {}
        self.read = []

    def change(self, sizes):
        changes = {day * DAY: None if size is None else partition(day, size) for day, size in sizes.items()}
        grouped = regroup(self.refs, changes, self._bundle)
        fresh = [(ref_of(b, encode(b)), b) for b in grouped.written]
        self.held |= {ref.digest: b for ref, b in fresh}
        self.refs = tuple(sorted([*grouped.kept, *(ref for ref, _ in fresh)], key=lambda r: r.first))
        return grouped

    def _bundle(self, ref):
        self.read.append(ref)
        return self.held[ref.digest]

    @property
    def partitions(self):
        return [p for ref in self.refs for p in self.held[ref.digest].partitions]


@given(st.lists(CHANGES, max_size=8))
def test_after_any_changes_each_partition_is_where_a_dictionary_has_it(rounds):
    shelf, expected = Shelf(), {}
    for sizes in rounds:
        shelf.change(sizes)
        expected = {day: size for day, size in (expected | sizes).items() if size is not None}
        assert shelf.partitions == [partition(day, size) for day, size in sorted(expected.items())]
        for one, other in pairwise(shelf.refs):
            assert one.last < other.first
        for ref in shelf.refs:
            assert ref.partitions == 1 or ref.pieces <= FULL


@given(st.lists(CHANGES, max_size=5))
def test_what_stays_and_what_goes_are_all_that_was(rounds):
    shelf = Shelf()
    for sizes in rounds:
        before = set(shelf.refs)
        grouped = shelf.change(sizes)
        assert {*grouped.kept, *grouped.gone} == before
        assert not {*grouped.kept} & {*grouped.gone}
        assert [shelf.held[ref.digest] for ref in grouped.gone] == list(grouped.before)


def test_a_change_reads_and_writes_one_bundle_of_many():
    shelf = Shelf()
    shelf.change(dict.fromkeys(range(100), 3))
    assert len(shelf.refs) >= 20
    shelf.read.clear()
    grouped = shelf.change({50: 4})
    assert len(shelf.read) == len(grouped.written) == 1


def test_days_that_come_one_by_one_fill_bundles():
    shelf = Shelf()
    for day in range(100):
        shelf.change({day: 2})
    assert len(shelf.refs) <= 2 * 100 * 2 / FULL + 1


def test_a_full_bundle_is_left_alone_when_a_new_day_follows():
    shelf = Shelf()
    shelf.change({0: FULL})
    grouped = shelf.change({1: 5})
    assert len(grouped.kept) == 1
    assert not grouped.gone


def test_bundles_that_shrank_are_put_together_when_they_are_touched():
    shelf = Shelf()
    shelf.change(dict.fromkeys(range(6), FULL))
    assert len(shelf.refs) == 6
    for day in range(6):
        shelf.change({day: 1})
    assert len(shelf.refs) == 6
    for day in range(6):
        shelf.change({day: 2})
    assert len(shelf.refs) <= 2


def test_a_day_before_all_others_joins_the_first_bundle():
    shelf = Shelf()
    shelf.change({5: 3})
    shelf.change({1: 1})
    assert len(shelf.refs) == 1


def test_what_does_not_fit_into_one_bundle_is_cut_in_the_middle():
    assert [len(b.partitions) for b in cut([partition(day) for day in range(FULL + 2)])] == [9, 9]


def test_nothing_is_cut_into_no_bundles():
    assert cut([]) == []
    assert cut([partition(0, 20)]) == [Bundle((partition(0, 20),))]
