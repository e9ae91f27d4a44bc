"""Arrow types that a dataset can hold, for Hypothesis."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

PLAIN = [
    pa.bool_(),
    *[getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)],
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.binary(16),
    pa.date32(),
    pa.time32("ms"),
    pa.time64("us"),
    *[pa.timestamp(unit, tz) for unit in ("ms", "us") for tz in (None, "UTC", "Europe/Berlin", "+02:00")],
    pa.decimal128(10, 2),
    pa.decimal128(38, 0),
]


def lists_of(inner):
    return inner.flatmap(
        lambda t: st.sampled_from([pa.list_(pa.field("element", t)), pa.list_(pa.field("element", t), 3)])
    )


def structs_of(inner):
    names = st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True)
    return names.flatmap(
        lambda chosen: st.tuples(*[inner] * len(chosen)).map(
            lambda types: pa.struct([pa.field(n, t) for n, t in zip(chosen, types, strict=True)])
        )
    )


def data_types():
    """Canonical types: plain ones, lists of lists, structs of all of them."""
    leaves = st.recursive(st.sampled_from(PLAIN), lists_of, max_leaves=3)
    return st.recursive(leaves, structs_of, max_leaves=4)
