"""A run gives back what was written into it, finds keys by touching few pages, and believes no damaged page."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.ledger.errors import BadIndex
from floodmark.ledger.keys.entries import Entries, newest, stable_order, starts_of_groups
from floodmark.ledger.keys.run import PAGE_ROWS, open_run, write_run
from floodmark.ledger.keys.search import BEFORE, UP_TO, Probes
from ledger.keys.entry_worlds import TOP, hash_values, hashes, pairs, reopened, sorted_entries, spread
from limits import set_limit

SIZES = [1, 2, PAGE_ROWS - 1, PAGE_ROWS, PAGE_ROWS + 1, 3 * PAGE_ROWS, 1000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("has_lookup", [False, True], ids=["key", "prefix"])
def test_every_key_of_a_run_is_found_and_no_other(tmp_path, size, has_lookup):
    keys, others = spread(size), spread(500, seed=1)
    prefix = keys.take(np.arange(size) // 300) if has_lookup else None  # groups that are longer than a page
    entries = sorted_entries(keys, prefix)
    run = reopened(tmp_path, write_run(tmp_path, 0, size, entries))
    at, there = run.find(entries.order_columns)
    assert there.all()
    assert at.tolist() == list(range(size))
    rows = run.rows(at)
    assert pairs(rows.key) == pairs(entries.key)
    assert pairs(rows.row) == pairs(entries.row)
    assert rows.offset.tolist() == entries.offset.tolist()
    assert (rows.lookup is None) is not has_lookup
    _, there = run.find(([others.high, others.low] if has_lookup else []) + [others.high, others.low])
    assert not there.any()


@given(st.lists(hash_values, min_size=1, max_size=40, unique=True), st.lists(hash_values, max_size=20))
def test_places_are_those_of_a_sorted_list_though_halves_are_equal(values, queries):
    entries = sorted_entries(hashes(values))
    in_order = sorted(values)
    asked = hashes(queries)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        set_limit(patched, "run.page_rows", 4)
        run = reopened(Path(folder), write_run(Path(folder), 0, len(values), entries))
        assert pairs(run.slice(0, len(run)).key) == in_order
        before = run.place([asked.high, asked.low], BEFORE).tolist()
        up_to = run.place([asked.high, asked.low], UP_TO).tolist()
        half = run.place([asked.high], BEFORE).tolist()
        _, there = run.find([asked.high, asked.low])
    assert before == [sum(v < q for v in in_order) for q in queries]
    assert up_to == [sum(v <= q for v in in_order) for q in queries]
    assert half == [sum(v[0] < q[0] for v in in_order) for q in queries]
    assert there.tolist() == [q in values for q in queries]


@given(st.lists(st.tuples(hash_values, hash_values), max_size=40))
def test_sorting_by_few_columns_gives_the_same_order_as_by_all(values):
    prefix, key = hashes([v[0] for v in values]), hashes([v[1] for v in values])
    columns = [prefix.high, prefix.low, key.high, key.low]
    order = stable_order(columns).tolist()
    assert order == sorted(range(len(values)), key=lambda i: values[i])
    assert stable_order(columns[:2]).tolist() == sorted(range(len(values)), key=lambda i: values[i][0])
    in_order = [values[i] for i in order]
    expected = [True, *(a != b for a, b in pairwise(in_order))] if values else []
    assert starts_of_groups([c[order] for c in columns]).tolist() == expected


@given(st.lists(st.lists(hash_values, max_size=10, unique=True), min_size=1, max_size=5))
def test_of_several_parts_the_first_that_has_a_key_wins(parts):
    entries = [sorted_entries(hashes(part)) for part in parts]
    marked = [Entries(e.key, e.row, np.full(len(e), number)) for number, e in enumerate(entries)]
    expected = {}
    for number, part in reversed(list(enumerate(parts))):
        expected.update(dict.fromkeys(part, number))
    merged = newest(marked)
    assert list(zip(pairs(merged.key), merged.offset.tolist(), strict=True)) == sorted(expected.items())


def test_run_is_an_arrow_file_that_others_can_open(tmp_path):
    entries = sorted_entries(spread(10), spread(10, seed=1))
    file = write_run(tmp_path, 0, 10, entries)
    table = pa.ipc.open_file(tmp_path / file.data_name).read_all()
    assert table.column_names == ["lookup_high", "lookup_low", "key_high", "key_low", "row_high", "row_low", "offset"]
    assert table.column("key_low").to_pylist() == entries.key.low.tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(file.names)


def test_same_entries_have_the_same_name_and_others_another(tmp_path):
    entries = sorted_entries(spread(10))
    other = Entries(entries.key, entries.row, entries.offset + 1)
    file = write_run(tmp_path, 0, 10, entries)
    assert write_run(tmp_path, 0, 10, entries) == file
    assert write_run(tmp_path, 0, 10, other).name != file.name
    assert write_run(tmp_path, 5, 15, entries).name != file.name


def test_lookup_touches_one_page_of_each_column_per_key_and_none_twice(tmp_path):
    size = 40 * PAGE_ROWS
    entries = sorted_entries(spread(size))
    run = reopened(tmp_path, write_run(tmp_path, 0, size, entries))
    asked = entries.key.take([5, 30 * PAGE_ROWS + 7])
    for _ in range(2):
        at, _ = run.find([asked.high, asked.low])
        run.rows(at)
        assert (run.probes.pages, run.probes.page_bytes) == (2 * 5, 2 * 5 * PAGE_ROWS * 8)
    assert run.probes.values <= 2 * 2 * (len(run.fences[0]).bit_length() + PAGE_ROWS.bit_length())


def test_ends_of_a_run_are_in_its_descriptor(tmp_path):
    file = write_run(tmp_path, 0, 3, sorted_entries(hashes([(TOP, 0), (0, 1), (TOP, TOP)])))
    assert (file.first, file.last) == ((0, 1), (TOP, TOP))


# Damage


@pytest.fixture
def small(tmp_path):
    """A run of three pages and its descriptor."""
    entries = sorted_entries(spread(2 * PAGE_ROWS + 50))
    return tmp_path, write_run(tmp_path, 0, len(entries), entries), entries


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("column", ["key_high", "key_low", "row_high", "row_low", "offset"])
@pytest.mark.parametrize("row", [0, PAGE_ROWS, 2 * PAGE_ROWS + 49])
def test_damaged_page_is_found_when_it_is_touched_and_not_before(small, column, row):
    folder, file, entries = small
    path = folder / file.data_name
    value = {"key_high": entries.key.high, "key_low": entries.key.low, "row_high": entries.row.high}
    value |= {"row_low": entries.row.low, "offset": entries.offset}
    start = path.read_bytes().index(value[column][:8].tobytes())
    flip(path, start + row * 8 + 3)
    run = reopened(folder, file)
    other = (row // PAGE_ROWS + 1) % 3 * PAGE_ROWS
    assert run.rows(np.array([other])).offset.tolist() == [entries.offset[other]]
    with pytest.raises(BadIndex, match=f"page {row // PAGE_ROWS} of column '{column}' is damaged") as caught:
        run.rows(np.array([row]))
    assert caught.value.file == file.data_name
    assert run.damaged
    with pytest.raises(BadIndex):
        reopened(folder, file).slice(0, len(entries))


def test_lookup_in_a_damaged_page_is_refused(small):
    folder, file, entries = small
    start = (folder / file.data_name).read_bytes().index(entries.key.high[:8].tobytes())
    flip(folder / file.data_name, start + 8 * 10)
    asked = entries.key.take([11])
    with pytest.raises(BadIndex, match="page 0 of column 'key_high'"):
        reopened(folder, file).find([asked.high, asked.low])


def test_every_damaged_byte_of_the_fences_is_found(tmp_path):
    file = write_run(tmp_path, 0, 3, sorted_entries(spread(3)))
    data, whole = ((tmp_path / name).read_bytes() for name in file.names)
    believed = []
    for at in range(len(whole)):
        harmed = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        try:
            open_run(file, memoryview(data), memoryview(harmed), Probes()).slice(0, 3)
            believed.append(at)
        except BadIndex:
            pass
    assert believed == []


@pytest.mark.parametrize("length", [0, 1, 15, 100, -1])
@pytest.mark.parametrize("part", [0, 1], ids=["entries", "fences"])
def test_file_that_is_cut_or_too_long_is_refused(small, part, length):
    folder, file, _ = small
    path = folder / file.names[part]
    whole = path.read_bytes()
    path.write_bytes(whole[:length] if length >= 0 else whole + b"\0")
    with pytest.raises(BadIndex):
        reopened(folder, file).slice(0, file.entries)


@pytest.mark.parametrize("part", [0, 1], ids=["entries", "fences"])
def test_file_of_another_run_under_this_name_is_refused(small, part):
    folder, file, _ = small
    other = write_run(folder, 0, 5, sorted_entries(spread(file.entries, seed=7)))
    (folder / file.names[part]).write_bytes((folder / other.names[part]).read_bytes())
    with pytest.raises(BadIndex):
        reopened(folder, file).slice(0, file.entries)
