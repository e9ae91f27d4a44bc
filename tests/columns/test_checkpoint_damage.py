"""A checkpoint that is torn, damaged or another's is told from a good one."""

from __future__ import annotations

import logging
import pickle

import pyarrow as pa
import pytest

from columns.checkpoint_worlds import COLUMN, PREFIX, object_of, put_range, range_batch, raw
from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.columns.checkpoints import find_ranges
from floodmark.derive.checkpoint_key import hash_text, range_key
from floodmark.derive.result_cache import decode_result, encode_result
from floodmark.errors import BadCheckpoint
from floodmark.storage.document import DamagedDocument
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore

KEY = range_key(PREFIX.text, 0, 0, 3)
SEALED = encode_result(KEY, range_batch([0, 2]))


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    return CheckpointStore(LocalStore(tmp_path) if request.param == "local" else MemoryStore(), "c")


def test_bytes_cut_short_anywhere_are_refused():
    for length in range(len(SEALED)):
        with pytest.raises(DamagedDocument):
            decode_result(KEY, pa.py_buffer(SEALED[:length]))


def test_no_flipped_byte_changes_a_batch_unnoticed():
    for at in range(len(SEALED)):
        damaged = bytearray(SEALED)
        damaged[at] ^= 0x40
        with pytest.raises(DamagedDocument):
            decode_result(KEY, pa.py_buffer(bytes(damaged)))


def test_bytes_too_many_are_refused():
    with pytest.raises(DamagedDocument, match="instead of"):
        decode_result(KEY, pa.py_buffer(SEALED + b"\0"))


def stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


HARM = {
    "empty": lambda data: b"",
    "torn in the middle": lambda data: data[: len(data) // 2],
    "zeros after a crash": lambda data: bytes(len(data)),
    "torn and filled with zeros": lambda data: data[:-50] + bytes(50),
    "another program's": lambda data: stream(range_batch([0, 2])),
    "text": lambda data: b"hello, this is no checkpoint at all, but long enough to be one" * 4,
    "another key's": lambda data: encode_result(range_key(PREFIX.text, 0, 3, 6), range_batch([0, 2])),
    "another fragment's": lambda data: encode_result(range_key(PREFIX.text, 1, 0, 3), range_batch([0, 2])),
    "twice": lambda data: data + data,
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM.keys())
def test_a_harmed_checkpoint_is_refused_by_key(store, harm):
    store.put(KEY, range_batch([0, 2]))
    raw(store).put_derived(object_of(store, KEY), harm(SEALED))
    with pytest.raises(BadCheckpoint) as caught:
        store.get(KEY)
    assert caught.value.key == KEY
    assert pickle.loads(pickle.dumps(caught.value)).problem == caught.value.problem


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM.keys())
def test_a_harmed_checkpoint_costs_its_own_range_only(store, caplog, harm):
    first, second, third = (put_range(store, start, start + 3) for start in (0, 3, 6))
    raw(store).put_derived(object_of(store, second), harm(SEALED))
    with caplog.at_level(logging.WARNING):
        found = find_ranges(store, PREFIX, 0, COLUMN)
    assert [checkpoint.key for checkpoint in found] == [first, third]
    assert store.list_keys() == sorted([first, third])
    assert len(caplog.records) == 1
    assert second in caplog.text


@pytest.mark.parametrize("rows", [100_000, 100])
def test_damage_is_seen_in_large_mapped_files_as_in_small_ones(tmp_path, rows):
    store = CheckpointStore(LocalStore(tmp_path), "c")
    key = put_range(store, 0, rows)
    path = tmp_path / object_of(store, key)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(BadCheckpoint, match="checksum"):
        store.get(key)


def test_a_group_whose_name_is_damaged_still_serves_and_is_mended_by_the_next_put(store):
    key = put_range(store, 0, 3)
    (name,) = [info.key for info in raw(store).list("c/names")]
    raw(store).put_derived(name, b"\xff damaged")
    fresh = CheckpointStore(raw(store), "c")
    assert [checkpoint.key for checkpoint in find_ranges(fresh, PREFIX, 0, COLUMN)] == [key]
    assert fresh.list_keys() == []
    assert [info.key for info in fresh.strays()] == [object_of(fresh, key)]
    other = put_range(fresh, 3, 6)
    assert fresh.list_keys() == sorted([key, other])
    assert list(fresh.strays()) == []


def test_what_others_left_in_the_folder_is_a_stray_and_no_key(store):
    key = put_range(store, 0, 3)
    folder = object_of(store, key).rpartition("/")[0]
    left = ["c/batches/foreign/file", f"{folder}/range-0-x", f"{folder}/notes.txt", "c/names/other"]
    for name in left:
        raw(store).put_derived(name, b"foreign")
    assert store.list_keys() == [key]
    assert sorted(info.key for info in store.strays()) == sorted(left)


def test_a_file_where_another_keys_checkpoint_would_not_lie_is_a_stray(store):
    key = f"old_where-{hash_text(None)}"
    store.put(key, range_batch([]))
    misplaced = object_of(store, key).replace("/whole", "/frag-0/range-0-5")
    raw(store).put_derived(misplaced, b"foreign")
    assert store.list_keys() == [key]
    assert [info.key for info in store.strays()] == [misplaced]


def test_the_name_of_a_group_without_checkpoints_is_a_stray(store):
    key = put_range(store, 0, 3)
    assert list(store.strays()) == []
    store.delete(key)
    (stray,) = store.strays()
    raw(store).delete(stray.key)
    again = CheckpointStore(raw(store), "c")
    put_range(again, 0, 3)
    assert again.list_keys() == [key]
