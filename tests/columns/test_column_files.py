"""A segment file gives back the values that were put into it, or an error that names it: never anything else."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from columns.column_worlds import objects_at, objects_in
from floodmark.columns.column_file import (
    has_valid_footer,
    has_valid_hash,
    open_raw,
    open_segment,
    read_values,
    write_segment,
)
from floodmark.errors import UnreadableColumn
from floodmark.storage.memory import MemoryStore
from ledger.arrow_types import data_types
from limits import set_limit
from profiles import examples, sample
from rows.harm import HARM
from rows.harm import replace as put


def field(data_type=None, number=7, nullable=True):
    return pa.field("x", data_type or pa.float64(), nullable, {b"PARQUET:field_id": str(number).encode()})


@pytest.fixture(params=["folder", "bucket"])
def objects(request, tmp_path):
    return objects_at(request.param, tmp_path)


def values_for(data_type, rows, seed):
    """Arbitrary values of a type, some of them null."""
    chosen = random.Random(seed)
    return pa.array([None if chosen.random() < 0.3 else value_for(data_type, chosen) for _ in range(rows)], data_type)


def value_for(t, chosen):
    types = pa.types
    if types.is_struct(t):
        return {f.name: value_for(f.type, chosen) for f in t}
    if types.is_fixed_size_list(t):
        return [value_for(t.value_type, chosen) for _ in range(t.list_size)]
    if types.is_list(t):
        return [value_for(t.value_type, chosen) for _ in range(chosen.randrange(3))]
    if types.is_fixed_size_binary(t) and not types.is_decimal(t):
        return chosen.randbytes(t.byte_width)
    if types.is_binary(t):
        return chosen.randbytes(chosen.randrange(4))
    if types.is_string(t):
        return chosen.choice(["", "a", "ß", "long " * 5])
    return pa.scalar(chosen.randrange(100), pa.int8()).cast(simple(t)).cast(t).as_py()


def simple(t):
    """What a small integer is cast to on its way to a type."""
    types = pa.types
    if types.is_date32(t) or types.is_time32(t):
        return pa.int32()
    return pa.int64() if types.is_temporal(t) else t if not types.is_decimal(t) else pa.decimal128(38, 0)


@settings(max_examples=examples(26), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data_types(), st.integers(0, 40), st.integers(0, 2**32), st.data())
def test_values_of_every_type_come_back(data_type, rows, seed, data):
    objects = objects_in(MemoryStore())
    values = values_for(data_type, rows, seed)
    segment = write_segment(objects, field(data_type), 100, [values])
    assert (segment.start, segment.end) == (100, 100 + rows)
    start = data.draw(st.integers(0, rows))
    end = data.draw(st.integers(start, rows))
    found = read_values(objects, segment, field(data_type), 100 + start, 100 + end)
    assert found.type == data_type
    assert found.to_pylist() == values.slice(start, end - start).to_pylist()


def test_pieces_of_any_size_become_row_groups(objects, monkeypatch):
    set_limit(monkeypatch, "column_file.row_group_rows", 5)
    pieces = [pa.array([1.0, 2.0]), pa.chunked_array([[3.0], [4.0, 5.0, 6.0]]), pa.array([], pa.float64())]
    pieces += [pa.array(np.arange(7.0, 20.0))]
    segment = write_segment(objects, field(), 10, iter(pieces))
    with objects.store.open(segment.key(objects)) as file:
        metadata = pq.read_metadata(file)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [5, 5, 5, 4]
    opened = open_segment(objects, segment, field())
    everything = [float(n) for n in range(1, 20)]
    for start in range(20):
        for end in range(start, 20):
            assert opened.read(10 + start, 10 + end).to_pylist() == everything[start:end]


def test_only_the_row_groups_asked_for_are_read(objects, monkeypatch):
    set_limit(monkeypatch, "column_file.row_group_rows", 1000)
    segment = write_segment(objects, field(), 0, [pa.array(np.random.default_rng(1).random(3000))])
    data = bytearray(objects.store.get(segment.key(objects)))
    data[12_000] ^= 1  # in the second row group
    put(objects.store, segment.key(objects), bytes(data))
    opened = open_segment(objects, segment, field())
    assert len(opened.read(0, 1000)) == len(opened.read(2000, 3000)) == 1000
    with pytest.raises(UnreadableColumn) as caught:
        opened.read(999, 1001)
    assert "delete it" in caught.value.hint


def test_rows_without_a_value_are_null_even_in_a_column_without_nulls(objects):
    wanted = field(nullable=False)
    segment = write_segment(objects, wanted, 0, [pa.array([None, 1.0])])
    assert read_values(objects, segment, wanted, 0, 2).to_pylist() == [None, 1.0]


def test_a_file_of_no_rows_can_be_written_and_read(objects):
    segment = write_segment(objects, field(), 3, [])
    assert read_values(objects, segment, field(), 3, 3).to_pylist() == []
    assert has_valid_footer(objects, segment)


def test_the_same_values_at_two_offsets_are_two_files(objects):
    one, other = (write_segment(objects, field(), start, [pa.array([1.0])]) for start in (0, 1))
    assert one.digest != other.digest


def test_the_same_values_at_one_offset_are_one_file(objects):
    one, other = (write_segment(objects, field(), 5, [pa.array([1.0])]) for _ in range(2))
    assert one == other
    assert [info.key for info in objects.files()] == [one.key(objects)]


def test_a_file_of_another_field_is_refused_but_its_raw_values_are_not(objects):
    segment = write_segment(objects, field(number=7), 0, [pa.array([1.0, 2.0])])
    with pytest.raises(UnreadableColumn, match="field 7, not for 8") as caught:
        read_values(objects, segment, field(number=8), 0, 2)
    error = caught.value
    assert (error.column, error.start, error.end, error.key) == ("x", 0, 2, segment.key(objects))
    assert open_raw(objects, segment, field(number=8)).read(1, 2).to_pylist() == [2.0]


def test_nothing_unfinished_is_left_when_the_values_end_in_an_error(objects, tmp_path):
    def failing():
        yield pa.array([1.0])
        raise RuntimeError("half way")

    folder = tmp_path / "unfinished"
    folder.mkdir()
    with pytest.raises(RuntimeError, match="half way"):
        write_segment(objects, field(), 0, failing(), folder)
    assert list(folder.iterdir()) == []
    assert list(objects.files()) == []


@pytest.mark.soak
@pytest.mark.parametrize("harm", HARM)
def test_damage_is_an_error_or_changes_nothing(objects, harm, monkeypatch):
    set_limit(monkeypatch, "column_file.row_group_rows", 16)
    values = pa.array([None if n % 7 == 0 else n * 0.37 for n in range(40)])
    segment = write_segment(objects, field(), 0, [values])
    key = segment.key(objects)
    data = objects.store.get(key)
    for at in sample(range(0, len(data), 3), 60):
        put(objects.store, key, HARM[harm](data, at))
        assert not has_valid_hash(objects, segment)
        found = outcome(objects, segment)
        assert found == values.to_pylist() or (key in found and "offsets 0–39" in found)


def outcome(objects, segment):
    """The values of a segment, or what reading them says is wrong."""
    try:
        return read_values(objects, segment, field(), segment.start, segment.end).to_pylist()
    except UnreadableColumn as error:
        return error.message


@pytest.mark.parametrize("harm", ["delete", "empty", "truncate", "longer"])
def test_a_file_that_is_gone_or_has_another_size_does_not_look_whole(objects, harm):
    segment = write_segment(objects, field(), 0, [pa.array([1.0, 2.0])])
    key = segment.key(objects)
    assert has_valid_footer(objects, segment)
    put(objects.store, key, HARM[harm](objects.store.get(key), 5))
    assert not has_valid_footer(objects, segment)


def test_a_damaged_footer_does_not_look_whole(objects):
    segment = write_segment(objects, field(), 0, [pa.array([1.0, 2.0])])
    data = objects.store.get(segment.key(objects))
    for at in range(segment.size - segment.tail, segment.size):
        put(objects.store, segment.key(objects), HARM["flip"](data, at))
        assert not has_valid_footer(objects, segment)


def test_a_damaged_page_header_in_a_folder_does_not_look_whole(tmp_path):
    objects = objects_at("folder", tmp_path)
    segment = write_segment(objects, field(), 0, [pa.array(np.random.default_rng(1).random(1000))])
    data = objects.store.get(segment.key(objects))
    for at in range(4, 20):  # the first header follows the four bytes that every Parquet file begins with
        put(objects.store, segment.key(objects), HARM["flip"](data, at))
        assert not has_valid_footer(objects, segment)


def test_writing_the_values_again_mends_a_damaged_file(objects):
    segment = write_segment(objects, field(), 0, [pa.array([1.0, 2.0])])
    key = segment.key(objects)
    put(objects.store, key, HARM["flip"](objects.store.get(key), 8))
    assert write_segment(objects, field(), 0, [pa.array([1.0, 2.0])]) == segment
    assert has_valid_hash(objects, segment)
