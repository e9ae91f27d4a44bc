"""Key values as the type of another dataset: those that do not fit are none of its keys."""

import numpy as np
import pyarrow as pa

from floodmark.derive.key_shape import cast_with_mask


def test_bytes_of_another_length_do_not_fit_and_nulls_do():
    values = pa.array([b"ab", b"abc", None, b""], pa.binary())
    [cast], fits = cast_with_mask([values], [pa.field("k", pa.binary(2))])
    assert fits.tolist() == [True, False, True, False]
    assert cast.to_pylist() == [b"ab", None, None, None]


def test_numbers_beyond_the_type_do_not_fit():
    values = pa.chunked_array([pa.array([1, 300, None], pa.int64())])
    _, fits = cast_with_mask([values], [pa.field("k", pa.int8())])
    assert fits.tolist() == [True, False, True]


def test_nan_fits_into_a_wider_float():
    values = pa.array(np.array([np.nan, 1.5], np.float32))
    _, fits = cast_with_mask([values], [pa.field("k", pa.float64())])
    assert fits.tolist() == [True, True]
