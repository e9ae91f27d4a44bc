"""Checkpoints of older formats are used instead of computing again."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from columns.checkpoint_worlds import COLUMN, DATASET, PREFIX, put_range, range_batch, values_of
from floodmark.columns import legacy_checkpoints
from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.columns.checkpoints import CheckpointFinder, find_ranges
from floodmark.derive.checkpoint_key import hash_text, parse_key
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import CountingStore, MemoryStore
from limits import set_limit

# What an older release wrote, spelled out: if the code's own idea of these keys changed, they would still be there.
NOWHERE = "d41d8cd98f00b204e9800998ecf8427e"
FILTERED = hash_text("a > 1")
TASK = f"udf-bright_ver-v1_col-brightness_where-{NOWHERE}"
RANGE_KEY = f"{TASK}_uri-{hash_text(DATASET)}_srcfiles-{hash_text('inputs')}_frag-0_range-0-10"
TASK_KEY = f"{TASK}_frag-0_task-20-10"
FRAGMENT_KEY = hashlib.sha256(f"{DATASET}:0:{TASK}".encode()).hexdigest()


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    return CheckpointStore(LocalStore(tmp_path) if request.param == "local" else MemoryStore(), "c")


def find(store, prefix=PREFIX, fragment=0, column=COLUMN):
    return find_ranges(store, prefix, fragment, column, dataset_id=DATASET)


def rows_of(found):
    return BitMap.union(BitMap(), BitMap(), *[checkpoint.rows for checkpoint in found])


def put_file(store, values, key=FRAGMENT_KEY, **columns):
    """A finished fragment as it was: a Parquet file of values, and a batch that names it."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"brightness": pa.array(values, pa.float64())}), sink)
    store.store.put_derived("old/file.parquet", sink.getvalue().to_pybytes())
    store.put(key, pa.record_batch({"file": ["old/file.parquet"], **columns}))


def test_the_keys_of_old_are_spelled_as_they_were():
    assert legacy_checkpoints.range_prefix(PREFIX) + "_frag-0_range-0-10" == RANGE_KEY
    assert legacy_checkpoints.task_key(PREFIX, 0, 20, 10) == TASK_KEY
    assert legacy_checkpoints.fragment_key(PREFIX, DATASET, 0) == FRAGMENT_KEY


def test_a_store_of_old_is_honoured_in_all_its_forms(store):
    store.put(RANGE_KEY, range_batch(range(10)))
    store.put(TASK_KEY, range_batch(range(20, 30)))
    put_range(store, 10, 20)
    found = find(store)
    assert values_of(store, found) == {n: float(n) for n in range(30)}
    put_file(store, [float(n) for n in range(40)])
    assert values_of(store, find(store)) == {n: float(n) for n in range(40)}


def test_a_store_without_old_ones_is_asked_for_them_once():
    counted = CountingStore(MemoryStore())
    store = CheckpointStore(counted, "c")
    for fragment in range(3):
        put_range(store, 0, 10, fragment=fragment)
    before, finder = counted.counts, CheckpointFinder(store, DATASET)
    for fragment in range(3):
        assert len(finder.ranges(PREFIX, fragment, COLUMN)) == 1
    spent = counted.counts - before
    assert (spent.lists, spent.stats, spent.reads) == (4, 0, 3)


def test_ranges_without_a_format_are_used_where_they_are(store):
    store.put(RANGE_KEY, range_batch([1, 2]))
    other = RANGE_KEY.replace(NOWHERE, FILTERED).replace("range-0-10", "range-10-20")
    store.put(other, range_batch([11]))
    assert [(c.key, c.rows) for c in find(store)] == [(RANGE_KEY, BitMap([1, 2])), (other, BitMap([11]))]
    assert store.list_keys() == sorted([RANGE_KEY, other])


@pytest.mark.parametrize("other", [replace(PREFIX, version="v2"), replace(PREFIX, srcfiles=hash_text("new"))])
def test_ranges_without_a_format_are_not_taken_for_another_computation(store, other):
    store.put(RANGE_KEY, range_batch([1, 2]))
    assert find(store, other) == []
    assert find(store, fragment=1) == []
    assert store.list_keys() == [RANGE_KEY]


def test_a_whole_task_becomes_ranges(store, monkeypatch):
    set_limit(monkeypatch, "legacy.adopted_rows", 4)
    store.put(TASK_KEY, range_batch([20, 22, 23, 25, 29]))
    found = find(store)
    assert [(c.start, c.end, set(c.rows)) for c in found] == [(20, 24, {20, 22, 23}), (24, 28, {25}), (28, 30, {29})]
    assert values_of(store, found) == {n: float(n) for n in (20, 22, 23, 25, 29)}
    assert all(parse_key(c.key).prefix == PREFIX.text for c in found)
    assert TASK_KEY not in store.list_keys()
    assert find(store) == found


def test_a_whole_task_without_addresses_has_one_row_for_each(store):
    store.put(TASK_KEY, pa.record_batch({"brightness": [float(n) for n in range(20, 30)]}))
    assert values_of(store, find(store)) == {n: float(n) for n in range(20, 30)}


def test_a_whole_task_of_a_filter_is_adopted_under_its_own_where(store):
    store.put(TASK_KEY.replace(NOWHERE, FILTERED), range_batch([21, 28]))
    (found,) = find(store)
    assert parse_key(found.key).prefix == replace(PREFIX, where=FILTERED).text
    assert found.rows == BitMap([21, 28])


def test_an_empty_task_stays_complete(store):
    store.put(TASK_KEY, range_batch([]))
    (found,) = find(store)
    assert (found.start, found.end, found.rows) == (20, 30, BitMap())


def test_a_finished_fragment_becomes_ranges(store, monkeypatch):
    set_limit(monkeypatch, "legacy.adopted_rows", 3)
    put_file(store, [0.0, 1.0, None, 3.0], src_data_files=["[]"], output_field_ids=["[1]"])
    found = find(store)
    assert rows_of(found) == BitMap(range(4))  # without a filter every row was computed, to null if need be
    assert values_of(store, found) == {0: 0.0, 1: 1.0, 2: None, 3: 3.0}
    assert FRAGMENT_KEY not in store.list_keys()
    assert find(store) == found


def test_of_a_filtered_finished_fragment_only_the_rows_with_values_count(store):
    filtered = replace(PREFIX, where=FILTERED)
    put_file(store, [0.0, None, 2.0], legacy_checkpoints.fragment_key(filtered, DATASET, 0))
    (found,) = find(store, filtered)
    assert (found.start, found.end, found.rows) == (0, 3, BitMap([0, 2]))
    assert values_of(store, [found]) == {0: 0.0, 2: 2.0}


def test_a_finished_fragment_is_not_taken_for_another(store):
    put_file(store, [0.0, 1.0])
    assert find(store, fragment=1) == []
    assert find(store, replace(PREFIX, version="v2")) == []
    assert find_ranges(store, PREFIX, 0, COLUMN, dataset_id="did:odf:other") == []
    assert store.list_keys() == [FRAGMENT_KEY]


@pytest.mark.parametrize("key", [TASK_KEY, FRAGMENT_KEY])
def test_what_was_adopted_is_not_taken_for_the_result_of_other_inputs_later(store, key):
    if key == TASK_KEY:
        store.put(key, range_batch(range(20, 30)))
    else:
        put_file(store, [0.0, 1.0])
    assert find(store)
    assert find(store, replace(PREFIX, srcfiles=hash_text("new inputs"))) == []


def test_an_adoption_that_was_cut_off_is_done_again(store, monkeypatch):
    set_limit(monkeypatch, "legacy.adopted_rows", 4)
    store.put(TASK_KEY, range_batch(range(20, 30)))
    put, puts = store.put, []

    def cut_off(key, batch):
        puts.append(key)
        if len(puts) == 2:
            raise KeyboardInterrupt
        put(key, batch)

    monkeypatch.setattr(store, "put", cut_off)
    with pytest.raises(KeyboardInterrupt):
        find(store)
    assert TASK_KEY in store.list_keys()
    assert values_of(store, find(store)) == {n: float(n) for n in range(20, 30)}


def test_what_another_process_adopts_meanwhile_is_left_to_it(store, monkeypatch, caplog):
    listed = {legacy_checkpoints.task_text(PREFIX): [TASK_KEY]}
    monkeypatch.setattr(store, "list_any_where", lambda prefix, fragment: listed.get(prefix, []))
    assert find(store) == []
    assert caplog.records == []


OTHERS = {
    "values of another type": (TASK_KEY, pa.record_batch({"brightness": ["a"] * 10})),
    "no values": (TASK_KEY, pa.record_batch({"other": [1.0] * 10})),
    "a file of another type": (FRAGMENT_KEY, pa.record_batch({"file": ["words"]})),
    "a file of other columns": (FRAGMENT_KEY, pa.record_batch({"file": ["others"]})),
}


@pytest.mark.parametrize(("key", "batch"), OTHERS.values(), ids=OTHERS.keys())
def test_one_of_another_type_or_column_is_left_for_those_it_is_of(store, caplog, key, batch):
    for name, table in {"words": {"brightness": ["a"]}, "others": {"darkness": [1.0]}}.items():
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(table), sink)
        store.store.put_derived(name, sink.getvalue().to_pybytes())
    store.put(key, batch)
    assert find(store) == []
    assert CheckpointFinder(store, DATASET).ranges(PREFIX, 0, COLUMN) == []
    assert store.list_keys() == [key]
    assert caplog.records == []


def test_who_only_looks_sees_what_would_be_adopted_and_adopts_nothing(store, monkeypatch):
    set_limit(monkeypatch, "legacy.adopted_rows", 4)
    store.put(RANGE_KEY, range_batch([1, 2]))
    store.put(TASK_KEY, range_batch([20, 22, 29]))
    put_file(store, [float(n) for n in range(6)])
    before = {info.key: store.store.get(info.key) for info in store.store.list("")}
    seen = CheckpointFinder(store, DATASET).ranges(PREFIX, 0, COLUMN)
    assert [(c.key, c.start, c.end, set(c.rows)) for c in seen] == [
        (FRAGMENT_KEY, 0, 6, set(range(6))),
        (RANGE_KEY, 0, 10, {1, 2}),
        (TASK_KEY, 20, 30, {20, 22, 29}),
    ]
    assert {info.key: store.store.get(info.key) for info in store.store.list("")} == before
    assert rows_of(find(store)) == rows_of(seen)


BAD = {
    "rows it does not say": (TASK_KEY, pa.record_batch({"brightness": [1.0] * 9})),
    "rows outside": (TASK_KEY, range_batch([19, 20])),
    "rows behind": (TASK_KEY, range_batch([20, 30])),
    "rows out of order": (TASK_KEY, range_batch([21, 20])),
    "a file that is gone": (FRAGMENT_KEY, pa.record_batch({"file": ["gone"]})),
    "a file outside the store": (FRAGMENT_KEY, pa.record_batch({"file": ["../../etc/passwd"]})),
    "no file": (FRAGMENT_KEY, pa.record_batch({"file": pa.array([None], pa.string())})),
    "no name of a file": (FRAGMENT_KEY, pa.record_batch({"other": ["a"]})),
    "a file that is none": (FRAGMENT_KEY, pa.record_batch({"file": ["text"]})),
}


@pytest.mark.parametrize(("key", "batch"), BAD.values(), ids=BAD.keys())
def test_one_that_does_not_fit_is_deleted_with_a_warning(store, caplog, key, batch):
    store.store.put_derived("text", b"this is no Parquet")
    store.put(key, batch)
    assert CheckpointFinder(store, DATASET).ranges(PREFIX, 0, COLUMN) == []
    assert store.list_keys() == [key]
    with caplog.at_level(logging.WARNING):
        assert find(store) == []
    assert store.list_keys() == []
    assert key in caplog.text


@pytest.mark.parametrize("name", ["a_ver-b", "a_col-b", "a_where-b"])
def test_old_keys_that_could_mean_two_computations_prove_nothing(store, name):
    hostile = replace(PREFIX, udf=name)
    keys = [
        f"{legacy_checkpoints.range_prefix(hostile)}_frag-0_range-0-10",
        legacy_checkpoints.task_key(hostile, 0, 0, 10),
    ]
    for key in keys:
        store.put(key, range_batch(range(10)))
    assert find(store, hostile) == []
    assert store.list_keys() == sorted(keys)


@pytest.mark.parametrize("name", ["a_range-0-5", "b_frag-3_range-0-5", "100%", "a/../b"])
def test_old_keys_with_strange_names_are_honoured(store, name):
    strange = replace(PREFIX, udf=name)
    store.put(f"{legacy_checkpoints.range_prefix(strange)}_frag-0_range-0-10", range_batch(range(10)))
    store.put(legacy_checkpoints.task_key(strange, 0, 10, 10), range_batch(range(10, 20)))
    assert rows_of(find(store, strange)) == BitMap(range(20))
