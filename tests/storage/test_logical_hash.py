"""The logical hash of whole buffers is the one that the format's text gives value by value."""

from __future__ import annotations

import hashlib
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import UnsupportedType
from floodmark.storage.logical_hash import check_hashable, column_digests, compose_hash, logical_hash, table_digests
from limits import set_limit
from profiles import examples

ANCHOR = "f9680c001200b3483eecc3d5c6b50ee6b8cba11b51c08f89ea1f53d3a334c743199f5fe656e"
UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}


# The format's text, value by value, with Python's own ideas of bytes


def u16(n):
    return n.to_bytes(2, "little")


def u64(n):
    return n.to_bytes(8, "little")


def naive_type_id(t):
    types = pa.types
    if types.is_null(t):
        return u16(0)
    if types.is_integer(t):
        return u16(1) + bytes([types.is_signed_integer(t)]) + u64(t.bit_width)
    if types.is_floating(t):
        return u16(2) + u64(t.bit_width)
    if types.is_boolean(t):
        return u16(5)
    if types.is_decimal(t):
        return u16(6) + u64(t.bit_width) + u64(t.precision) + u64(t.scale)
    if types.is_date(t):
        return u16(7) + u64(t.bit_width) + u16(1 if types.is_date64(t) else 0)
    if types.is_time(t):
        return u16(8) + u64(t.bit_width) + u16(UNITS[t.unit])
    if types.is_timestamp(t):
        zone = bytes([0]) if t.tz is None else u64(len(t.tz.encode())) + t.tz.encode()
        return u16(9) + u16(UNITS[t.unit]) + zone
    if hasattr(t, "value_type"):
        return u16(11) + naive_type_id(t.value_type)
    return u16(4) if "string" in str(t) else u16(3)


def naive_value(scalar):
    t, types = scalar.type, pa.types
    if not scalar.is_valid:
        return b"\x00"
    if types.is_boolean(t):
        return b"\x02" if scalar.as_py() else b"\x01"
    if types.is_integer(t):
        return scalar.as_py().to_bytes(t.bit_width // 8, "little", signed=types.is_signed_integer(t))
    if types.is_floating(t):
        return struct.pack({16: "<e", 32: "<f", 64: "<d"}[t.bit_width], scalar.as_py())
    if types.is_decimal(t):
        unscaled = int(scalar.as_py().scaleb(t.scale))
        return unscaled.to_bytes(t.bit_width // 8, "little", signed=True)
    if types.is_temporal(t):
        return scalar.value.to_bytes(t.bit_width // 8, "little", signed=True)
    if hasattr(t, "value_type"):
        return u64(len(scalar)) + b"".join(naive_value(item) for item in scalar)
    data = scalar.as_py().encode() if "string" in str(t) else scalar.as_py()
    return u64(len(data)) + data


def naive_columns(name, level, t, scalars):
    """The (name, level) of a field and of all below it, and the digest of every leaf."""
    if pa.types.is_struct(t):
        fields, digests = [(name, level)], []
        for i, child in enumerate(t):
            values = [s[i] if s.is_valid else pa.scalar(None, child.type) for s in scalars]
            below, leaf_digests = naive_columns(child.name, level + 1, child.type, values)
            fields += below
            digests += leaf_digests
        return fields, digests
    hasher = hashlib.sha3_256(naive_type_id(t))
    for scalar in scalars:
        hasher.update(naive_value(scalar))
    return [(name, level)], [hasher.digest()]


def naive_hash(table):
    names, digests = b"", b""
    for field, column in zip(table.schema, table.columns, strict=True):
        fields, leaf_digests = naive_columns(field.name, 0, field.type, list(column))
        names += b"".join(u64(len(n.encode())) + n.encode() + u64(level) for n, level in fields)
        digests += b"".join(leaf_digests)
    return "f9680c00120" + hashlib.sha3_256(names + digests).hexdigest()


# Arrays of every type that has a rule


def ints(bits, signed):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high)


DAY_MS = 86_400_000
SIMPLE = [
    *[(getattr(pa, f"int{b}")(), ints(b, True)) for b in (8, 16, 32, 64)],
    *[(getattr(pa, f"uint{b}")(), ints(b, False)) for b in (8, 16, 32, 64)],
    (pa.float16(), st.floats(width=16, allow_nan=False).map(np.float16)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=5)),
    (pa.large_string(), st.text(max_size=5)),
    (pa.string_view(), st.text(max_size=20)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.large_binary(), st.binary(max_size=5)),
    (pa.binary_view(), st.binary(max_size=20)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(9, 2), st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2))),
    (pa.decimal128(38, 0), st.integers(-(10**28) + 1, 10**28 - 1).map(Decimal)),
    (pa.decimal256(40, 3), st.integers(-(10**25), 10**25).map(lambda n: Decimal(n).scaleb(-3))),
    (pa.date32(), st.integers(-(10**6), 10**6)),
    (pa.date64(), st.integers(-(10**4), 10**4).map(lambda day: day * DAY_MS)),
    (pa.time32("s"), st.integers(0, 86_399)),
    (pa.time32("ms"), st.integers(0, DAY_MS - 1)),
    (pa.time64("us"), st.integers(0, DAY_MS * 1000 - 1)),
    (pa.time64("ns"), st.integers(0, DAY_MS * 10**6 - 1)),
    *[(pa.timestamp(u), ints(64, True)) for u in UNITS],
    *[(pa.timestamp(u, tz), ints(64, True)) for u in ("ms", "us") for tz in ("UTC", "+02:00", "Europe/Berlin")],
    (pa.null(), st.none()),
]


def nested(inner):
    """Lists and structs of what there is already; a list of structs has no rule."""

    def of(pair):
        t, values = pair
        item = st.one_of(st.none(), values)
        wrapped = [
            st.just((pa.struct([("a", t), ("b", pa.int8())]), st.fixed_dictionaries({"a": item, "b": st.none()})))
        ]
        if not pa.types.is_struct(t):
            wrapped += [
                st.just((pa.list_(t), st.lists(item, max_size=3))),
                st.just((pa.large_list(t), st.lists(item, max_size=3))),
                st.just((pa.list_(t, 2), st.lists(item, min_size=2, max_size=2))),
            ]
        return st.one_of(wrapped)

    return inner.flatmap(of)


TYPED = st.recursive(st.sampled_from(SIMPLE), nested, max_leaves=3)


@st.composite
def columns(draw, rows, typed=TYPED):
    """A column of so many rows, maybe a slice in the middle of another, maybe in several chunks."""
    t, values = draw(typed)
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    item = st.one_of(values, st.none())
    length = before + rows + after
    array = pa.array(draw(st.lists(item, min_size=length, max_size=length)), t)
    cut = before + draw(st.integers(0, rows))
    return pa.chunked_array([array.slice(before, cut - before), array.slice(cut, before + rows - cut)], t)


@pytest.mark.slow
@pytest.mark.parametrize("typed", SIMPLE, ids=lambda typed: str(typed[0]))
@given(data=st.data())
@settings(max_examples=examples(6))
def test_every_type_is_hashed_as_the_format_s_text_says(typed, data):
    alone, in_lists = st.just(typed), nested(st.just(typed))
    table = pa.table({"plain": data.draw(columns(4, alone)), "in something": data.draw(columns(4, in_lists))})
    assert logical_hash(table).text == naive_hash(table)


@given(data=st.data(), rows=st.integers(0, 6))
@settings(max_examples=examples(26))
def test_any_table_is_hashed_as_the_format_s_text_says(data, rows):
    names = data.draw(st.lists(st.text(max_size=4), max_size=3, unique=True))
    table = pa.table([data.draw(columns(rows)) for _ in names], names=names)
    assert logical_hash(table).text == naive_hash(table)


def test_anchor_of_the_format_holds():
    table = pa.table({"offset": pa.array([1, 0]), "city": ["B", "A"], "population": pa.array([200, 100], pa.uint64())})
    assert logical_hash(table).text == naive_hash(table) == ANCHOR


def test_blocks_of_rows_hash_as_one_column(monkeypatch):
    table = pa.table({"a": pa.array([1, None, 3, 4, None] * 7), "b": [["x"], [], None, ["y", None], ["z"]] * 7})
    expected = naive_hash(table)
    set_limit(monkeypatch, "logical_hash.batch_rows", 4)
    assert logical_hash(table).text == expected


@pytest.mark.parametrize(
    ("plain", "others"),
    [
        (pa.string(), [pa.large_string(), pa.string_view()]),
        (pa.binary(), [pa.large_binary(), pa.binary_view()]),
        (pa.list_(pa.string()), [pa.large_list(pa.large_string()), pa.list_(pa.field("other", pa.string_view()))]),
    ],
)
def test_encodings_of_a_type_hash_alike(plain, others):
    values = {"string": ["a", None, ""], "binary": [b"a", None, b""]}.get(str(plain), [["a", None], None, []])
    hashes = {logical_hash(pa.table({"x": pa.array(values, t)})).text for t in [plain, *others]}
    assert len(hashes) == 1


def test_fixed_size_binary_hashes_as_binary():
    fixed, free = pa.array([b"ab", None], pa.binary(2)), pa.array([b"ab", None], pa.binary())
    assert column_digests(pa.chunked_array([fixed])) == column_digests(pa.chunked_array([free]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": [1]}, {"b": [1]}),
        ({"a": [1], "b": [1]}, {"b": [1], "a": [1]}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": [1, None]}, {"a": [None, 1]}),
        ({"a": [None, "x"]}, {"a": ["", "x"]}),
        ({"a": [[1], [2]]}, {"a": [[1, 2], []]}),
        ({"a": [[1], None]}, {"a": [[1], []]}),
        ({"a": [None, True]}, {"a": [False, True]}),
        ({"a": [{"x": 1}]}, {"a": [1]}),
        ({"a": [1]}, {"a": [1.0]}),
        ({"a": pa.array([1], pa.timestamp("us", "UTC"))}, {"a": pa.array([1], pa.timestamp("us", "+00:00"))}),
    ],
)
def test_what_differs_hashes_differently(one, other):
    assert logical_hash(pa.table(one)) != logical_hash(pa.table(other))


def test_nullability_and_metadata_are_not_hashed():
    array = pa.array([1, 2])
    required = pa.table([array], schema=pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={"k": "v"})]))
    assert logical_hash(required) == logical_hash(pa.table({"a": array}))


def test_values_hidden_under_a_null_struct_do_not_count():
    inner = pa.array([1, 2])
    hidden = pa.StructArray.from_arrays([inner], ["x"], mask=pa.array([False, True]))
    plain = pa.array([{"x": 1}, None], hidden.type)
    assert logical_hash(pa.table({"s": hidden})) == logical_hash(pa.table({"s": plain}))


def test_digests_of_columns_compose_to_the_hash():
    table = pa.table({"a": [1, None], "s": [{"x": "u", "y": [1]}, None]})
    digests = table_digests(table)
    assert [len(d) for d in digests.values()] == [1, 2]
    assert compose_hash(table.schema, [*digests["a"], *digests["s"]]) == logical_hash(table)


@pytest.mark.parametrize(
    "data_type",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.list_(pa.struct([("a", pa.int64())])),
        pa.list_(pa.map_(pa.string(), pa.int64())),
        pa.struct([("a", pa.duration("s"))]),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.list_view(pa.int64()),
    ],
    ids=str,
)
def test_type_without_a_rule_is_refused_by_name(data_type):
    with pytest.raises(UnsupportedType) as refused:
        check_hashable(data_type)
    leaf = data_type.field(0).type if pa.types.is_struct(data_type) else data_type
    assert refused.value.data_type in (str(leaf), str(getattr(leaf, "value_type", leaf)))
