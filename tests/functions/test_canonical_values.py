"""Values have digests by type and content, whatever their order and layout in memory."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import re
import uuid
from pathlib import PurePosixPath
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.functions.value_digest import CannotEncode, Encoder, Form
from profiles import examples


def refuse(value: Any, path: str) -> Form:
    raise CannotEncode(value, path)


def digest(value: Any) -> Form:
    return Encoder(refuse).encode(value, "value")


DISTINCT = [
    None, ..., True, False, 1, 0, -1, 2**80, 1.0, 0.0, -0.0, float("nan"), float("inf"), 1j, "1", "", "é", b"1", b"",
    bytearray(b"1"), (), (1,), [], [1], [1, 2], [2, 1], [[1], 2], [[1, 2]], {}, {1: 2}, {2: 1}, set(), {1}, {1, 2},
    range(3), slice(1, 2), "\ud800",
    collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1), collections.Counter("aab"),
    collections.deque([1]), collections.deque([1], maxlen=3),
    dt.date(2020, 1, 1), dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    dt.datetime(2020, 1, 1, tzinfo=ZoneInfo("Europe/Paris")), dt.time(1), dt.timedelta(1), dt.timedelta(0, 1),
    decimal.Decimal("1"), decimal.Decimal("1.0"), uuid.UUID(int=1), PurePosixPath("a/b"), re.compile("a"),
    re.compile("a", re.I), re.compile(b"a"),
    np.float64(1), np.float32(1), np.int64(1), np.array([1, 2]), np.array([[1, 2]]), np.array([1, 2], "int8"),
    np.array(["a", "b"]), np.array(["a", None], dtype=object), np.ma.array([1, 2], mask=[0, 1]), np.dtype("f4"),
    np.dtype("f8"), np.array([], "f4"), np.array([], "f8"), np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    pa.int64(), pa.int32(), pa.field("a", pa.int64()), pa.schema([("a", pa.int64())]), pa.array([1, 2]),
    pa.array([1, None]), pa.array([1, 2], pa.int8()), pa.array(["a"]), pa.array([[1], [2]]), pa.array([{"a": None}]),
    pa.array([None], pa.struct([("a", pa.null())])), pa.scalar(1), pa.scalar(2), pa.table({"a": [1]}),
    pa.table({"b": [1]}), pd.DataFrame({"a": ["x"]}), pl.DataFrame({"a": [2]}),
]  # fmt: skip


def test_different_values_have_different_digests():
    digests = [digest(value) for value in DISTINCT]
    same = [(DISTINCT[i], DISTINCT[j]) for j in range(len(digests)) for i in range(j) if digests[i] == digests[j]]
    assert same == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": {"x", "y"}}, {"b": {"y", "x"}, "a": 1}),
        (float("nan"), -float("nan")),
        (np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3))),
        (np.arange(8)[::2], np.array([0, 2, 4, 6])),
        (pa.array([0, 1, 2, 3]).slice(1, 2), pa.array([1, 2])),
        (pa.chunked_array([[1], [2, 3]]), pa.chunked_array([[1, 2, 3]])),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "b"])),
        (pa.table({"a": [1]}).replace_schema_metadata({"k": "v"}), pa.table({"a": [1]})),
    ],
)
def test_layout_in_memory_does_not_matter(one: Any, other: Any):
    assert digest(one) == digest(other)


def test_value_of_another_type_is_handed_on_with_its_path():
    with pytest.raises(CannotEncode) as caught:
        digest({"a": [1, object()]})
    assert caught.value.path == "value['a'][1]"
    assert caught.value.value_type == "object"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def typed(value: Any) -> Any:
    """A value that is equal to another one only if types are, too (1 is not True); the order of dicts is left out."""
    if isinstance(value, dict):
        return ("dict", frozenset((key, typed(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(typed(item) for item in value))
    return (type(value).__name__, repr(value))


@settings(max_examples=examples(15))
@given(values, values)
def test_digests_are_equal_exactly_if_values_are(one: Any, other: Any):
    assert (digest(one) == digest(other)) == (typed(one) == typed(other))
    assert digest(one) == digest(one)
