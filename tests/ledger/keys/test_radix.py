"""The quick sort of integers gives what numpy's stable sort gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, integer_dtypes, unsigned_integer_dtypes

from floodmark.ledger.keys.radix import stable_order

SOME_BITS = st.sampled_from([0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 63])


@given(arrays(integer_dtypes(endianness="<") | unsigned_integer_dtypes(endianness="<"), st.integers(0, 40)))
def test_any_integers_are_sorted_as_numpy_sorts_them(values):
    assert stable_order(values).tolist() == np.argsort(values, kind="stable").tolist()


@given(st.lists(st.builds(lambda a, b: (1 << a) | (1 << b), SOME_BITS, SOME_BITS), max_size=60))
def test_values_that_share_most_bits_are_sorted_and_equal_ones_stay(values):
    words = np.array(values, np.uint64)
    assert stable_order(words).tolist() == np.argsort(words, kind="stable").tolist()


@pytest.mark.parametrize("bits", [8, 16, 30, 40, 64])
def test_many_values_are_sorted_and_equal_ones_stay(bits):
    words = np.random.default_rng(bits).integers(0, 1 << bits, 20_000, dtype=np.uint64, endpoint=False)
    assert np.array_equal(stable_order(words), np.argsort(words, kind="stable"))


def test_negative_values_come_first():
    assert stable_order(np.array([3, -1, 2**62, -(2**62)])).tolist() == [3, 1, 0, 2]
