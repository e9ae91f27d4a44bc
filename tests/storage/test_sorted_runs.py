"""A sorted run gives back what was written, finds entries by touching few pages, and uses no damaged page."""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from floodmark.chain.ids import Multihash
from floodmark.storage import document
from floodmark.storage.arrays import BEFORE, UP_TO, is_group_start, stable_order
from floodmark.storage.document import DamagedDocument
from floodmark.storage.facts import build
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from floodmark.storage.run_lookup import entries_between, entry_count, find, find_all, merge, newest
from floodmark.storage.sorted_runs import (
    END_OF_HASHES,
    PAGE_ROWS,
    LookupCounts,
    RunFile,
    RunFiles,
    RunSpec,
    SortedRun,
    open_run,
    write_run,
)
from limits import set_limit

PLAIN = RunSpec("tests", ("high", "low"), {"value": np.int64, "number": np.uint32})
PREFIXED = RunSpec("tests", ("group_high", "group_low", "high", "low"), {"value": np.int64})
SEALED = RunSpec("tests", ("high", "low"), {"value": np.int64, "number": np.uint32}, digest="data")
TOP = 2**64 - 1
HALVES = st.sampled_from([0, 1, 2**32, 2**63 - 1, 2**63, TOP - 1, TOP])
SIZES = [1, 2, PAGE_ROWS - 1, PAGE_ROWS, PAGE_ROWS + 1, 3 * PAGE_ROWS, 1000]

pair_lists = st.lists(st.tuples(HALVES, HALVES), max_size=30, unique=True)


def spread(size: int, seed: int = 0) -> list[tuple[int, int]]:
    halves = np.random.default_rng(seed).integers(0, 2**64, (size, 2), np.uint64)
    return [(int(high), int(low)) for high, low in halves]


def queries(hashes):
    return [np.array([h[half] for h in hashes], np.uint64) for half in range(len(hashes[0]) if hashes else 2)]


def entries(hashes, first=0, spec=PLAIN):
    """Entries of these hashes in order; each value says where the hash was."""
    order = sorted(range(len(hashes)), key=hashes.__getitem__)
    columns = dict(zip(spec.order, queries([hashes[i] for i in order]), strict=True))
    values = np.array(order, np.int64) + first
    return {
        **columns,
        **{name: (values % 251).astype(kind) if name == "number" else values for name, kind in spec.values.items()},
    }


def reopened(folder: Path, file: RunFile) -> SortedRun:
    return open_run(file, "tests", memoryview((folder / file.name).read_bytes()), LookupCounts())


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


class Bad(Exception):
    pass


def files_of(store, cache=None):
    return RunFiles(store, "a/", "tests", lambda name, problem: Bad(name, problem), {} if cache is None else cache)


def stored(store, columns, spec=PLAIN, salt=""):
    with tempfile.TemporaryDirectory() as folder:
        file = write_run(Path(folder), spec, "run", columns, salt)
        store.put_derived(f"a/{file.name}", (Path(folder) / file.name).read_bytes())
    return file


# One run


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spec", [PLAIN, PREFIXED, SEALED], ids=["plain", "prefixed", "sealed"])
def test_every_entry_of_a_run_is_found_and_no_other(tmp_path, size, spec):
    keys, others = spread(size), spread(500, seed=1)
    if spec is PREFIXED:  # groups that are longer than a page
        keys = [(*keys[number // 300], *key) for number, key in enumerate(keys)]
        others = [(*keys[0][:2], *other) for other in others]
    columns = entries(keys, spec=spec)
    run = reopened(tmp_path, write_run(tmp_path, spec, "run", columns))
    asked = [columns[name] for name in spec.order]
    for some in (slice(None), slice(0, 1), slice(size - 1, None)):  # many and few are looked up in two ways
        at, there = run.find([column[some] for column in asked])
        assert there.all()
        assert at.tolist() == list(range(size))[some]
    rows = run.take(np.arange(size))
    assert same({name: rows[name] for name in columns}, columns)
    assert same({name: run.slice(0, size)[name] for name in columns}, columns)
    for some in (others, others[:1]):
        assert not run.find(queries(some))[1].any()


@given(st.lists(st.tuples(HALVES, HALVES), min_size=1, max_size=40, unique=True), st.lists(st.tuples(HALVES, HALVES)))
def test_places_are_those_of_a_sorted_list_though_halves_are_equal(hashes, asked):
    in_order = sorted(hashes)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        set_limit(patched, "run.page_rows", 4)
        run = reopened(Path(folder), write_run(Path(folder), PLAIN, "run", entries(hashes)))
        before, up_to = (run.place(queries(asked), last).tolist() for last in (BEFORE, UP_TO))
        half = run.place(queries(asked)[:1], BEFORE).tolist()
        _, there = run.find(queries(asked))
        alone = [bool(run.find(queries([one]))[1][0]) for one in asked]
    assert before == [sum(v < q for v in in_order) for q in asked]
    assert up_to == [sum(v <= q for v in in_order) for q in asked]
    assert half == [sum(v[0] < q[0] for v in in_order) for q in asked]
    assert there.tolist() == alone == [q in hashes for q in asked]


@given(st.lists(st.tuples(HALVES, HALVES, HALVES, HALVES), max_size=40))
def test_sorting_by_few_columns_gives_the_same_order_as_by_all(values):
    columns = queries(values) if values else [np.empty(0, np.uint64)] * 4
    order = stable_order(columns).tolist()
    assert order == sorted(range(len(values)), key=lambda i: values[i])
    assert stable_order(columns[:2]).tolist() == sorted(range(len(values)), key=lambda i: values[i][:2])
    in_order = [values[i] for i in order]
    expected = [at == 0 or in_order[at - 1] != value for at, value in enumerate(in_order)]
    assert is_group_start([c[order] for c in columns]).tolist() == expected


def test_same_entries_have_the_same_name_and_others_another(tmp_path):
    columns = entries(spread(10))
    file = write_run(tmp_path, PLAIN, "run", columns)
    assert write_run(tmp_path, PLAIN, "run", columns) == file
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    other = {**columns, "value": columns["value"] + 1}
    others = {write_run(tmp_path, PLAIN, "run", other).name, write_run(tmp_path, PLAIN, "run", columns, "salt").name}
    assert len(others | {file.name}) == 3
    assert write_run(tmp_path, PLAIN, "other", columns).name.startswith("other-")


def test_sealed_run_is_named_by_its_hash_and_its_footer_by_its_descriptor(tmp_path):
    file = write_run(tmp_path, SEALED, "run", entries(spread(100)), "salt")
    data = (tmp_path / file.name).read_bytes()
    assert file.name == Multihash.sha3_256(data).text
    assert file.seal == document.header_digest(data[-file.footer_size :])
    with pytest.raises(DamagedDocument, match="does not match its name"):
        open_run(replace(file, seal="0" * 32), "tests", memoryview(data), LookupCounts())


def test_column_with_one_value_takes_no_room(tmp_path):
    columns = entries(spread(1000))
    file = write_run(tmp_path, PLAIN, "run", columns)
    for constant in (np.full(1000, 7), np.broadcast_to(np.int64(7), 1000)):
        smaller = write_run(tmp_path, PLAIN, "run", {**columns, "value": constant})
        assert file.size - smaller.size > 8 * 1000
        run = reopened(tmp_path, smaller)
        assert run.take(np.array([3, 999]))["value"].tolist() == [7, 7]
        assert run.slice(10, 12)["value"].tolist() == [7, 7]
        assert run.slice(10, 12)["value"].dtype == np.int64


def test_lookup_touches_one_page_of_each_column_per_key_and_none_twice(tmp_path):
    columns = entries(spread(40 * PAGE_ROWS))
    run = reopened(tmp_path, write_run(tmp_path, PLAIN, "run", columns))
    asked = [columns[name][[5, 30 * PAGE_ROWS + 7]] for name in PLAIN.order]
    for _ in range(2):
        at, _ = run.find(asked)
        run.take(at)
        assert (run.probes.pages, run.probes.page_bytes) == (2 * 4, 2 * PAGE_ROWS * (3 * 8 + 4))
    assert run.probes.values <= 2 * 2 * (len(run.fences[0]).bit_length() + PAGE_ROWS.bit_length())


def test_ends_of_a_run_are_in_its_descriptor(tmp_path):
    file = write_run(tmp_path, PLAIN, "run", entries([(TOP, 0), (0, 1), (TOP, TOP)]))
    assert (file.first, file.last) == ((0, 1), (TOP, TOP))
    assert build(RunFile, {**vars(file), "first": list(file.first), "last": list(file.last)}) == file


# Damage


@pytest.fixture
def small(tmp_path):
    """A run of three pages and its descriptor."""
    columns = entries(spread(2 * PAGE_ROWS + 50))
    return tmp_path, write_run(tmp_path, PLAIN, "run", columns), columns


@pytest.mark.parametrize("column", ["high", "low", "value", "number"])
@pytest.mark.parametrize("row", [0, PAGE_ROWS, 2 * PAGE_ROWS + 49])
def test_damaged_page_is_found_when_it_is_touched_and_not_before(small, column, row):
    folder, file, columns = small
    data = bytearray((folder / file.name).read_bytes())
    values = columns[column]
    data[data.index(values[:8].tobytes()) + row * values.itemsize + 1] ^= 4
    (folder / file.name).write_bytes(data)
    run = reopened(folder, file)
    other = (row // PAGE_ROWS + 1) % 3 * PAGE_ROWS
    assert run.take(np.array([other]))["value"].tolist() == [columns["value"][other]]
    with pytest.raises(DamagedDocument, match=f"page {row // PAGE_ROWS} of column '{column}' is damaged"):
        run.take(np.array([row]))
    with pytest.raises(DamagedDocument):
        reopened(folder, file).slice(0, file.entries)


def test_lookup_in_a_damaged_page_is_refused(small):
    folder, file, columns = small
    data = bytearray((folder / file.name).read_bytes())
    data[data.index(columns["high"][:8].tobytes()) + 8 * 10] ^= 4
    (folder / file.name).write_bytes(data)
    for some in ([11], range(len(columns["high"]))):  # few and many
        with pytest.raises(DamagedDocument, match="page 0 of column 'high'"):
            reopened(folder, file).find([columns[name][some] for name in PLAIN.order])


def test_every_damaged_byte_is_found(tmp_path):
    file = write_run(tmp_path, PLAIN, "run", entries(spread(3)))
    whole = (tmp_path / file.name).read_bytes()
    used = []
    for at in range(len(whole)):
        harmed = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        try:
            open_run(file, "tests", memoryview(harmed), LookupCounts()).slice(0, 3)
            used.append(at)
        except DamagedDocument:
            pass
    assert used == []


@pytest.mark.parametrize("length", [0, 1, 15, 100, -1])
def test_file_that_is_cut_or_too_long_is_refused(small, length):
    folder, file, _ = small
    whole = (folder / file.name).read_bytes()
    (folder / file.name).write_bytes(whole[:length] if length >= 0 else whole + b"\0")
    with pytest.raises(DamagedDocument):
        reopened(folder, file).slice(0, file.entries)


def test_file_of_another_run_or_kind_under_this_name_is_refused(small):
    folder, file, _ = small
    other = write_run(folder, PLAIN, "run", entries(spread(file.entries, seed=7)))
    with pytest.raises(DamagedDocument, match="does not match its name"):
        open_run(file, "tests", memoryview((folder / other.name).read_bytes()), LookupCounts())
    with pytest.raises(DamagedDocument, match="not a sorted run of keys"):
        open_run(file, "keys", memoryview((folder / file.name).read_bytes()), LookupCounts())


# Files


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    return LocalStore(tmp_path / "lake") if request.param == "local" else MemoryStore()


@pytest.mark.parametrize("harm", ["gone", "cut", "flipped"])
def test_error_of_a_file_is_that_of_its_folder(store, harm):
    file = stored(store, entries(spread(200)))
    data = store.get(f"a/{file.name}")
    store.delete(f"a/{file.name}")
    if harm != "gone":
        store.put_derived(f"a/{file.name}", data[:-9] if harm == "cut" else bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(Bad) as caught:
        find(files_of(store), [[file]], queries(spread(200)), PLAIN)
    assert caught.value.args[0] == file.name
    store.put_derived(f"a/{file.name}", data)
    files = files_of(store)
    assert find(files, [[file]], queries(spread(200)), PLAIN).seen.all()


def test_damaged_copy_of_a_remote_run_is_fetched_again_and_only_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    set_limit(monkeypatch, "files.small_bytes", 0)
    store = MemoryStore()
    file = stored(store, entries(spread(200)))
    asked = queries(spread(200))
    assert find(files_of(store), [[file]], asked, PLAIN).seen.all()
    (copy,) = (tmp_path / "floodmark" / "tests").iterdir()
    copy.write_bytes(bytes(copy.stat().st_size))
    assert find(files_of(store), [[file]], asked, PLAIN).seen.all()
    copy.write_bytes(bytes(copy.stat().st_size))
    store.put_derived(f"a/{file.name}", bytes(file.size))
    with pytest.raises(Bad):
        find(files_of(store), [[file]], asked, PLAIN)


@pytest.mark.parametrize("small_bytes", [0, 1 << 20], ids=["copied", "in memory"])
def test_sealed_run_from_a_remote_store_is_checked_as_a_whole(tmp_path, monkeypatch, small_bytes):
    """A page whose checksum was forged is not used either: the name is the SHA3-256 of the file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    set_limit(monkeypatch, "files.small_bytes", small_bytes)
    store = MemoryStore()
    file = stored(store, entries(spread(200)), SEALED)
    data = store.get(f"a/{file.name}")
    store.put_derived(f"a/{file.name}", data[:3] + bytes([data[3] ^ 1]) + data[4:])
    monkeypatch.setattr("floodmark.storage.sorted_runs._checksums", lambda pages: 1 // 0)
    with pytest.raises(Bad, match="hash of its bytes does not match"):
        files_of(store).ask(file, len)
    store.put_derived(f"a/{file.name}", data)
    assert files_of(store).ask(file, len) == 200


def test_run_is_opened_once_per_cache_and_pickled_files_use_that_of_the_process(store):
    file = stored(store, entries(spread(200)))
    files = files_of(store)
    assert files.ask(file, id) == files.ask(file, id)
    assert len(files.cache) == 1
    if isinstance(store, LocalStore):
        other = pickle.loads(pickle.dumps(RunFiles(store, "a/", "tests", Bad)))
        assert other.ask(file, len) == 200
        assert other.cache is RunFiles(store, "a/", "tests", Bad).cache


# Segments

segment_lists = st.lists(pair_lists, min_size=1, max_size=5)


def segments_of(store, parts, runs):
    """Each part as a segment of so many runs; a value says in which part and where its hash was."""
    segments = []
    for number, part in enumerate(parts):
        columns = entries(part, first=100 * number) if part else None
        edges = np.linspace(0, len(part), runs + 1).astype(int).tolist()
        cuts = [slice(*edges[at : at + 2]) for at in range(runs)]
        some = (
            [{name: c[cut] for name, c in columns.items()} for cut in cuts if cut.start < cut.stop] if columns else []
        )
        segments.append([stored(store, one) for one in some])
    return segments


def expected_of(parts):
    newest_first = {}
    for number, part in reversed(list(enumerate(parts))):
        newest_first.update({pair: 100 * number + at for at, pair in enumerate(part)})
    return newest_first


@given(segment_lists, st.lists(st.tuples(HALVES, HALVES), max_size=60), st.integers(1, 3), st.sampled_from([2, 4]))
@example([[(1, 1)], [(2, 2), (1, 1)]], [], 1, 2)
def test_newest_entry_of_each_hash_is_found_like_in_a_dict(parts, asked, runs, page_rows):
    store = MemoryStore()
    asked = [*asked, *(pair for part in parts for pair in part)]
    with pytest.MonkeyPatch.context() as patched:
        set_limit(patched, "run.page_rows", page_rows)
        segments = segments_of(store, parts, runs)
        expected = expected_of(parts)
        found = find(files_of(store), segments, queries(asked), PLAIN)
        assert found.seen.tolist() == [pair in expected for pair in asked]
        assert found.values["value"].tolist() == [expected.get(pair, 0) for pair in asked]


@pytest.mark.parametrize("bits", [3, 9, 60])
@pytest.mark.parametrize("size", [1, 128, 129, 3000])
def test_few_and_many_queries_in_any_order_are_found_alike(size, bits):
    """Runs with few entries, few queries and many queries are looked up in three ways."""

    def some(number, seed):  # few different high halves when `bits` is small
        high, low = np.random.default_rng(seed).integers(0, [[1 << bits], [5]], (2, number), dtype=np.uint64)
        return list(zip((high << np.uint64(64 - bits)).tolist(), low.tolist(), strict=True))

    there = list(dict.fromkeys(some(size, 1)))
    known = {pair: value for value, pair in enumerate(there)}
    store = MemoryStore()
    file = stored(store, entries(there), SEALED)
    asked = [*some(500, 2), *there[::-1]]
    few = max(1, len(there) // PAGE_ROWS)
    for part in [asked, *(asked[at : at + few] for at in range(0, len(asked), few))][:50]:
        found = find(files_of(store), [[file]], queries(part), SEALED)
        assert found.seen.tolist() == [pair in known for pair in part]
        assert found.values["value"].tolist() == [known.get(pair, 0) for pair in part]
        assert found.values["number"].tolist() == [known.get(pair, 0) % 251 for pair in part]


@given(segment_lists, st.integers(1, 3), st.sampled_from([2, 6, 1000]), st.booleans())
@example([[(1, 1)], [(2, 2), (1, 1)], [(1, 1), (3, 3)]], 1, 2, False)
@example([[(1, 1)], [(2, 2), (1, 1)], [(1, 1), (3, 3)]], 1, 2, True)
def test_merge_gives_the_newest_entries_in_order_a_few_at_a_time(parts, runs, most, above):
    store = MemoryStore()
    with pytest.MonkeyPatch.context() as patched:
        set_limit(patched, "run.page_rows", 2)
        segments = segments_of(store, parts[1:] if above else parts, runs)
        expected = expected_of(parts)
        newer = [entries(parts[0])] if above and parts[0] else []
        if above:  # the values of segments count from the second part on
            expected = {**expected_of(parts[1:]), **expected_of(parts[:1])}
        merged = list(merge(files_of(store), segments, PLAIN.order, most, newer))
    got = [
        (pair, value)
        for columns in merged
        for *pair, value in zip(
            columns["high"].tolist(), columns["low"].tolist(), columns["value"].tolist(), strict=True
        )
    ]
    assert [(tuple(pair), value) for pair, value in got] == sorted(expected.items())
    if most == 1000:
        assert len(merged) <= 1


@given(segment_lists, st.integers(1, 3), HALVES, HALVES, st.booleans())
def test_entries_between_two_hashes_are_those_of_each_segment(parts, runs, low, high, to_end):
    high = END_OF_HASHES if to_end else high
    store = MemoryStore()
    found = entries_between(files_of(store), segments_of(store, parts, runs), low, high)
    got = [value for columns in found for value in columns["value"].tolist()]
    expected = [
        100 * number + part.index(pair)
        for number, part in enumerate(parts)
        for pair in sorted(part)
        if low <= pair[0] < high
    ]
    assert got == expected
    assert all(map(entry_count, found))


@given(segment_lists, st.lists(HALVES, max_size=12), st.integers(1, 3))
def test_all_entries_of_a_prefix_are_found(parts, prefixes, runs):
    store = MemoryStore()
    asked = np.array(prefixes, np.uint64)
    which, found = find_all(files_of(store), segments_of(store, parts, runs), [asked])
    got = [value for columns in found for value in columns["value"].tolist()]
    expected = [
        (at, 100 * number + part.index(pair))
        for at, prefix in enumerate(prefixes)
        for number, part in enumerate(parts)
        for pair in part
        if pair[0] == prefix
    ]
    assert sorted(zip(which.tolist(), got, strict=True)) == sorted(expected)


@given(segment_lists)
def test_of_several_parts_the_first_that_has_a_hash_wins(parts):
    some = [entries(part, first=100 * number) for number, part in enumerate(parts)]
    merged = newest(some, PLAIN.order)
    got = dict(
        zip(zip(merged["high"].tolist(), merged["low"].tolist(), strict=True), merged["value"].tolist(), strict=True)
    )
    assert list(got.items()) == sorted(expected_of(parts).items())
