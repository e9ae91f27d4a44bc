"""Integers and hashes are sorted as numpy sorts them, and found as a dict finds them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, integer_dtypes, unsigned_integer_dtypes

from floodmark.storage.arrays import Hashes, HashIndex, integer_order
from limits import set_limit

SOME_BITS = st.sampled_from([0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 63])


@given(arrays(integer_dtypes(endianness="<") | unsigned_integer_dtypes(endianness="<"), st.integers(0, 40)))
def test_any_integers_are_sorted_as_numpy_sorts_them(values):
    assert integer_order(values).tolist() == np.argsort(values, kind="stable").tolist()


@given(st.lists(st.builds(lambda a, b: (1 << a) | (1 << b), SOME_BITS, SOME_BITS), max_size=60))
def test_values_that_share_most_bits_are_sorted_and_equal_ones_stay(values):
    words = np.array(values, np.uint64)
    assert integer_order(words).tolist() == np.argsort(words, kind="stable").tolist()


@pytest.mark.parametrize("bits", [8, 16, 30, 40, 64])
def test_many_values_are_sorted_and_equal_ones_stay(bits):
    words = np.random.default_rng(bits).integers(0, 1 << bits, 20_000, dtype=np.uint64, endpoint=False)
    assert np.array_equal(integer_order(words), np.argsort(words, kind="stable"))


def test_negative_values_come_first():
    assert integer_order(np.array([3, -1, 2**62, -(2**62)])).tolist() == [3, 1, 0, 2]


HALVES = st.sampled_from([0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
PAIRS = st.lists(st.tuples(HALVES, HALVES), max_size=40)


def hashes(pairs):
    return Hashes(np.array([p[0] for p in pairs], np.uint64), np.array([p[1] for p in pairs], np.uint64))


def pairs(found):
    return list(zip(found.high.tolist(), found.low.tolist(), strict=True))


@given(PAIRS, PAIRS)
def test_hashes_are_found_where_they_first_occurred(known, wanted):
    first = {pair: known.index(pair) for pair in known}
    expected = [first.get(pair, -1) for pair in wanted]
    index = HashIndex.of(hashes(known))
    assert index.find(hashes(wanted)).tolist() == expected
    assert index.has(hashes(wanted)).tolist() == [at >= 0 for at in expected]
    assert pairs(index.sorted) == sorted(first)
    assert index.places.tolist() == [first[pair] for pair in sorted(first)]
    in_order = sorted(first)
    at_sorted = HashIndex(hashes(in_order)).find(hashes(wanted)).tolist()
    assert at_sorted == [in_order.index(pair) if pair in first else -1 for pair in wanted]


@given(PAIRS, PAIRS)
def test_first_and_repeated_positions_are_those_that_a_loop_finds(some, others):
    repeated = [at for at, pair in enumerate(some) if pair in some[:at]]
    assert hashes(some).repeated().tolist() == repeated
    assert hashes(some).first_positions().tolist() == [at for at in range(len(some)) if at not in repeated]
    assert hashes(some).among(hashes(others)).tolist() == [pair in others for pair in some]
    assert hashes(some).positions_in(hashes(others)).tolist() == [
        others.index(pair) if pair in others else -1 for pair in some
    ]
    assert pairs(hashes(some).distinct()) == sorted(set(some))


@pytest.mark.parametrize("asked", [1, 100, 5000])
@pytest.mark.parametrize("bits", [3, 12, 60])
def test_few_and_many_hashes_are_found_alike_however_they_are_spread(asked, bits):
    """Few queries are bisected and many probe a table, unless too many hashes share their top bits."""
    numbers = np.random.default_rng(bits)
    high = numbers.integers(0, 1 << bits, 6000, dtype=np.uint64) << np.uint64(64 - bits)
    known = Hashes(high, numbers.integers(0, 500, 6000, dtype=np.uint64))
    index = HashIndex.of(known)
    assert (index._starts is None) is (bits == 3)
    wanted = Hashes.joined([known.take(slice(asked // 2)), Hashes(high[:asked], numbers.permutation(high)[:asked])])
    first: dict[tuple[int, int], int] = {}
    for at, pair in enumerate(pairs(known)):
        first.setdefault(pair, at)
    assert index.find(wanted).tolist() == [first.get(pair, -1) for pair in pairs(wanted)]


@pytest.mark.parametrize("many", [1, 1 << 16])
@pytest.mark.parametrize("bits", [1, 7, 63])
def test_hashes_come_out_sorted_and_each_once(monkeypatch, bits, many):
    set_limit(monkeypatch, "arrays.many", many)
    numbers = np.random.default_rng(3)
    high = numbers.integers(0, 1 << bits, 2000, dtype=np.uint64) << np.uint64(64 - bits)
    given = Hashes(high, numbers.integers(0, 5, 2000, dtype=np.uint64))
    assert pairs(given.distinct()) == sorted(set(pairs(given)))
    assert pairs(given.distinct().distinct()) == sorted(set(pairs(given)))
