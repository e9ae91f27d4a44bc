"""Stored results: found whole or not at all, by their own key only, and never before their files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.derive.result_cache import ResultCache, decode_result, encode_result
from floodmark.errors import ObjectNotFound
from floodmark.storage.document import DamagedDocument
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from floodmark.storage.store import Store

BATCH = pa.record_batch({"a": pa.array([1, None, 3]), "none": pa.nulls(3, pa.string())})


@pytest.fixture(params=["local", "memory"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> ResultCache:
    store: Store = LocalStore(tmp_path) if request.param == "local" else MemoryStore()
    return ResultCache(store, "d/done", "d/files")


def put(cache: ResultCache, name: str, files: dict[str, bytes]) -> None:
    for file, data in files.items():
        cache.store.put_derived(cache.file_key(file), data)
    cache.put(name, name, BATCH, {"of": name}, {file: len(data) for file, data in files.items()})


NUMBERS = st.lists(st.none() | st.integers(-9, 9), min_size=4, max_size=4).map(lambda some: pa.array(some, pa.int64()))
ARRAYS = NUMBERS | st.sampled_from([pa.nulls(4, pa.string()), pa.nulls(4, pa.list_(pa.int8()))])
FACTS = st.dictionaries(st.text(max_size=5), st.integers(0, 9) | st.text(max_size=5) | st.none(), max_size=3)


@given(st.lists(ARRAYS, max_size=4), FACTS, st.text(max_size=9))
def test_result_is_read_as_it_was_put(arrays: list[pa.Array], facts: dict[str, Any], key: str):
    cache = ResultCache(MemoryStore(), "d")
    batch = pa.RecordBatch.from_arrays(arrays, [f"c{n}" for n in range(len(arrays))])
    cache.put("name", key, batch, facts)
    found = pickle.loads(pickle.dumps(cache)).get("name", key)
    assert found.batch.equals(batch)
    assert found.batch.schema.equals(batch.schema, check_metadata=True)
    assert (found.facts, found.files) == (facts, {})


@given(
    st.lists(st.tuples(st.sampled_from(["put", "keep", "delete"]), st.sampled_from(["a", "x/a", "x/b"])), max_size=12)
)
def test_listing_is_what_was_put_and_not_deleted(steps: list[tuple[str, str]]):
    cache, there = ResultCache(MemoryStore(), "d"), set[str]()
    for what, name in steps:
        if what == "put":
            cache.put(name, name, BATCH)
        elif what == "keep":
            assert cache.keep(name, name, BATCH) == (name not in there)
        else:
            cache.delete(name)
        (there.discard if what == "delete" else there.add)(name)
    assert {name for name, _ in cache.list()} == there
    assert {name for name, _ in cache.list("x/")} == there & {"x/a", "x/b"}
    for name in ("a", "x/a", "x/b"):
        assert (cache.stat(name) is not None) == (name in there)


def test_no_byte_of_a_result_can_change_or_go_missing_unnoticed():
    sealed = encode_result("key", BATCH, {"n": 1}, {"file": (3, 4)})
    for at in range(len(sealed)):
        flipped = bytearray(sealed)
        flipped[at] ^= 1
        for damaged in (bytes(flipped), sealed[:at]):
            with pytest.raises(DamagedDocument):
                decode_result("key", pa.py_buffer(damaged))


def test_result_of_another_key_is_refused(cache: ResultCache):
    cache.put("name", "mine", BATCH)
    with pytest.raises(DamagedDocument, match="'mine'"):
        cache.get("name", "yours")


def test_result_that_is_not_there_is_not_damaged(cache: ResultCache):
    with pytest.raises(ObjectNotFound):
        cache.get("name", "name")


def test_large_result_is_mapped_and_stays_readable_when_it_is_replaced(tmp_path: Path):
    cache = ResultCache(LocalStore(tmp_path), "d")
    large = pa.record_batch({"a": pa.array(range(100_000))})
    cache.put("name", "name", large)
    found = cache.get("name", "name").batch
    cache.put("name", "name", BATCH)
    cache.delete("name")
    assert found.equals(large)


@pytest.mark.parametrize("harm", ["cut", "flipped", "grown", "deleted", None])
def test_result_is_whole_only_with_all_its_files(cache: ResultCache, harm: str | None):
    put(cache, "name", {"one": b"1" * 100, "two": b"2" * 100})
    key = cache.file_key("two")
    changed = {"cut": b"2" * 99, "flipped": b"2" * 99 + b"3", "grown": b"2" * 101}
    if harm == "deleted":
        cache.store.delete(key)
    elif harm is not None:
        cache.store.put_derived(key, changed[harm])
    is_local = isinstance(cache.store, LocalStore)
    expected = harm is None or (harm == "flipped" and not is_local)  # a bucket has objects whole or not at all
    assert cache.is_whole(cache.get("name", "name")) == expected


def test_crash_at_any_step_leaves_a_whole_result_or_none():
    class Crash(BaseException):
        pass

    class Dying(MemoryStore):
        left = 0

        def put_derived(self, key: str, data: Any) -> None:
            if self.left == 0:
                raise Crash
            self.left -= 1
            super().put_derived(key, data)

    for steps in range(4):
        store = Dying()
        store.left = steps
        cache = ResultCache(store, "d/done", "d/files")
        try:
            put(cache, "name", {"one": b"1", "two": b"2"})
        except Crash:
            assert steps < 3
        names = [name for name, _ in cache.list()]
        assert names == (["name"] if steps == 3 else [])
        assert all(cache.is_whole(cache.get(name, name)) for name in names)
