"""The store in memory keeps every promise of a store."""

from __future__ import annotations

import gc
import pickle
import time

import pytest

from floodmark.errors import BadStoreUrl
from floodmark.storage.memory import MemoryStore
from storage.store_suite import StoreSuite, at_once


class TestMemoryStore(StoreSuite):
    rounds = 50

    @pytest.fixture
    def store(self):
        return MemoryStore()


def test_found_object_is_young_again():
    store = MemoryStore()
    store.put_if_absent("a", b"a")
    before = store.stat("a").modified
    while time.time() <= before:
        time.sleep(0.001)
    store.put_if_absent("a", b"a")
    assert store.stat("a").modified > before


def test_only_one_thread_has_the_turn():
    store = MemoryStore()
    inside = []

    def take(number):
        with store.turn("head"):
            inside.append(number)
            alone = len(inside) == 1
            time.sleep(0.002)
            inside.clear()
            return alone

    assert all(at_once(5, take))


@pytest.mark.slow
def test_staging_folder_goes_with_the_store():
    store = MemoryStore()
    folder = store.staging()
    (folder / "left").write_bytes(b"behind")
    del store
    gc.collect()
    assert not folder.exists()


@pytest.mark.slow
def test_forgotten_store_cannot_be_unpickled():
    pickled = pickle.dumps(MemoryStore())
    gc.collect()
    with pytest.raises(BadStoreUrl, match="not in this process"):
        pickle.loads(pickled)
