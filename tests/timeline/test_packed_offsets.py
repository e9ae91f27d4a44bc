"""Packed offsets: they come back as they were, and take little room where they lie close."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from floodmark.timeline.manifest import pack_offsets, unpack_offsets


@given(st.sets(st.one_of(st.integers(0, 300), st.integers(0, 2**62))))
def test_offsets_come_back_as_they_were(offsets):
    given = np.array(sorted(offsets), np.int64)
    again = unpack_offsets(pack_offsets(given))
    assert again.dtype == np.int64
    assert np.array_equal(again, given)


def test_offsets_close_to_each_other_take_a_byte_each():
    _, gaps = pack_offsets(np.arange(10**12, 10**12 + 2_000, 7))
    assert gaps.itemsize == 1
