"""The checkpoint store keeps batches under their exact keys, on every store."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from columns.checkpoint_worlds import PREFIX, object_of, put_range, range_batch
from derive.test_checkpoint_keys import anything
from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.derive.checkpoint_key import CheckpointPrefix, data_key, hash_text, range_key
from floodmark.errors import ObjectNotFound
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import CountingStore, MemoryStore

OTHER_WHERE = CheckpointPrefix("bright", "v1", "brightness", hash_text("a > 1"), PREFIX.uri, PREFIX.srcfiles)


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    return CheckpointStore(
        LocalStore(tmp_path) if request.param == "local" else MemoryStore(), "data/columns/checkpoints"
    )


@pytest.mark.parametrize(
    "batch",
    [
        range_batch([]),
        range_batch([3, 5]),
        range_batch(range(100_000)),  # large enough to be mapped
        range_batch(range(100)).slice(10, 5),
        pa.record_batch({"a": pa.array([None, None], pa.int32())}),
        pa.record_batch({"a": [None, None], "b": ["x", None]}),
        pa.record_batch({"a": [1], "b": pa.array([None], pa.struct([("x", pa.list_(pa.string()))])), "c": ["é"]}),
        pa.record_batch({"t": pa.array([datetime(2024, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC"))}),
    ],
    ids=lambda batch: f"{batch.num_rows}-{'-'.join(batch.schema.names)}",
)
def test_a_batch_comes_back_as_it_was(store, batch):
    key = range_key(PREFIX.text, 0, 0, 200_000)
    store.put(key, batch)
    found = store.get(key)
    found.validate(full=True)
    assert found.equals(batch)
    assert found.schema.equals(batch.schema, check_metadata=True)


def test_columns_of_nulls_take_no_room(store):
    with_errors = range_batch(range(5000))
    key = range_key(PREFIX.text, 0, 0, 5000)
    store.put(key, with_errors)
    (info,) = store.infos()
    assert info.size < 2 * 8 * 5000 + 2000


def test_the_last_batch_put_under_a_key_is_the_one_there(store):
    key = put_range(store, 0, 5)
    store.put(key, range_batch([1, 2]))
    assert store.get(key).num_rows == 2
    assert store.list_keys() == [key]


def test_a_key_that_is_not_there_is_not_found(store):
    with pytest.raises(ObjectNotFound):
        store.get("nothing")
    assert not store.has("nothing")
    store.delete("nothing")


def test_a_deleted_checkpoint_is_gone_and_others_stay(store):
    gone, stays = put_range(store, 0, 5), put_range(store, 5, 9)
    store.delete(gone)
    assert store.list_keys() == [stays]
    assert not store.has(gone)
    assert store.has(stays)


def test_keys_are_listed_by_any_beginning_of_them(store):
    new_inputs = CheckpointPrefix("bright", "v1", "brightness", PREFIX.where, PREFIX.uri, hash_text("new"))
    keys = {
        *(
            put_range(store, start, start + 5, prefix)
            for start in (0, 10)
            for prefix in (PREFIX, OTHER_WHERE, new_inputs)
        ),
        put_range(store, 0, 5, fragment=1),
        put_range(store, 0, 5, fragment=11),
    }
    store.put("a hash of old", range_batch([]))
    keys.add("a hash of old")
    beginnings = ["", "a", "fmt-1_udf-bright_ver-v1", PREFIX.text, OTHER_WHERE.text, f"{PREFIX.text}_frag-1", "other"]
    for beginning in [*beginnings, *keys]:
        assert store.list_keys(beginning) == sorted(key for key in keys if key.startswith(beginning))


def test_a_fragment_is_listed_alone(store):
    keys = [put_range(store, 0, 5, fragment=1), put_range(store, 5, 9, fragment=1)]
    put_range(store, 0, 5, fragment=11)
    other = put_range(store, 0, 5, OTHER_WHERE, fragment=1)
    data = data_key(PREFIX.text, 1, 0, 9)
    store.put(data, range_batch([]))
    assert store.list_any_where(PREFIX.text, 1) == sorted([*keys, data, other])
    assert store.list_any_where(PREFIX.text, 2) == []


def test_prefixes_are_those_that_have_checkpoints(store):
    put_range(store, 0, 5)
    put_range(store, 5, 9)
    gone = put_range(store, 0, 5, OTHER_WHERE)
    assert store.prefixes() == sorted([PREFIX.text, OTHER_WHERE.text])
    store.delete(gone)
    assert store.prefixes() == [PREFIX.text]


@given(st.lists(anything, unique=True, max_size=5), st.integers(0, 40))
def test_hostile_keys_are_kept_apart_and_listed_exactly(keys, length):
    store = CheckpointStore(MemoryStore(), "c")
    for number, key in enumerate(keys):
        store.put(key, pa.record_batch({"number": [number]}))
    again = CheckpointStore(store.store, "c")
    assert again.list_keys() == sorted(keys)
    assert [again.get(key).column(0).to_pylist() for key in keys] == [[number] for number in range(len(keys))]
    for key in keys:
        assert again.list_keys(key[:length]) == sorted(k for k in keys if k.startswith(key[:length]))
    assert list(again.strays()) == []


@pytest.mark.parametrize("name", ["../../../etc", "a/b", "..", ".", "\0", "x" * 5000, "_frag-3_range-0-5", "a\nb", ""])
def test_names_of_users_never_leave_the_folder(tmp_path, name):
    store = CheckpointStore(LocalStore(tmp_path / "lake"), "c")
    key = put_range(store, 0, 5, CheckpointPrefix(name, name, name, *[hash_text(name)] * 3))
    assert store.list_keys() == [key]
    assert store.get(key).num_rows == 5
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]
    assert all(
        path.relative_to(tmp_path / "lake").parts[0] in ("c", ".staging")
        for path in tmp_path.rglob("*.*")
        if path.is_file()
    )


def test_infos_tell_size_and_age(store):
    key = put_range(store, 0, 5)
    (info,) = store.infos()
    there = store.store.stat(object_of(store, key))
    assert (info.key, info.size, info.modified) == (key, there.size, there.modified)


def test_a_pickled_store_is_the_same_store(store):
    key = put_range(store, 0, 5)
    copy = pickle.loads(pickle.dumps(store))
    assert copy.list_keys() == [key]
    other = put_range(copy, 5, 9)
    assert store.list_keys() == sorted([key, other])


def test_threads_that_put_the_same_key_leave_one_whole_batch(store):
    key = range_key(PREFIX.text, 0, 0, 100)
    start = threading.Barrier(4)

    def put(rows):
        start.wait()
        for _ in range(10):
            CheckpointStore(store.store, store.folder).put(key, range_batch(range(rows)))

    threads = [threading.Thread(target=put, args=(rows,)) for rows in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get(key).num_rows in (1, 2, 3, 4)
    assert store.list_keys() == [key]


def test_a_mapped_batch_outlives_its_file(tmp_path):
    store = CheckpointStore(LocalStore(tmp_path), "c")
    key = put_range(store, 0, 100_000)
    batch = store.get(key)
    store.put(key, range_batch([7]))
    store.delete(key)
    assert batch.equals(range_batch(range(100_000)))


def test_listing_a_fragment_costs_what_the_fragment_holds():
    counted = CountingStore(MemoryStore())
    store = CheckpointStore(counted, "c")
    for fragment in range(20):
        put_range(store, 0, 5, fragment=fragment)
    before = counted.counts
    store.list_any_where(PREFIX.text, 7)
    cost = counted.counts - before
    assert (cost.lists, cost.listed, cost.reads) == (1, 1, 0)


def test_listing_a_prefix_does_not_look_at_other_computations():
    counted = CountingStore(MemoryStore())
    store = CheckpointStore(counted, "c")
    for version in range(20):
        put_range(store, 0, 5, replace(PREFIX, version=f"v{version}"))
    before = counted.counts
    assert len(store.list_keys(replace(PREFIX, version="v7").text)) == 1
    assert (counted.counts - before).lists == 2  # of the names, and of the one group


def test_the_name_of_a_group_is_written_once(store):
    counted = CountingStore(store.store)
    for start in range(5):
        put_range(CheckpointStore(counted, "c"), start, start + 1)
    assert counted.counts.puts == 6
