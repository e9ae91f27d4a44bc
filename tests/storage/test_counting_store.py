"""The counting store counts, and is otherwise the store inside it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.storage.local import LocalStore
from floodmark.storage.memory import CountingStore, Counts, MemoryStore
from storage.store_suite import StoreSuite


class TestCountingStore(StoreSuite):
    @pytest.fixture
    def inner(self):
        return MemoryStore()

    @pytest.fixture
    def store(self, inner):
        return CountingStore(inner)


def test_every_read_is_counted():
    store = CountingStore(MemoryStore())
    store.put_if_absent("a", b"12345")
    before = store.counts
    store.get("a")
    store.get_range("a", 1, 3)
    with store.open("a") as file:
        file.read(1)
        file.seek(3)
        file.read(1)
    assert store.counts - before == Counts(reads=3, bytes_read=5 + 2 + 2)
    assert store.keys_read == ["a", "a", "a"]


def test_everything_else_is_counted(tmp_path):
    store = CountingStore(LocalStore(tmp_path))
    store.put_if_absent("a", b"12345")
    store.put_derived("b", b"123")
    path = store.staging() / "c"
    path.write_bytes(b"1")
    store.put_file("c", path)
    list(store.list(""))
    store.compare_and_swap("head", None, b"x")
    store.delete("a")
    store.stat("a")
    store.local_path("b")
    assert store.counts == Counts(puts=3, bytes_put=9, lists=1, listed=3, swaps=1, deletes=1, stats=1, local_paths=1)


def test_bytes_of_parquet_are_those_that_were_read(tmp_path):
    store = CountingStore(LocalStore(tmp_path))
    columns = {name: pa.array(range(100_000)) for name in "abcdefgh"}
    pq.write_table(pa.table(columns), tmp_path / "file", compression="none", use_dictionary=False)
    size = (tmp_path / "file").stat().st_size
    with store.open("file") as file:
        pq.read_table(file, columns=["c"])
    assert size / 10 < store.counts.bytes_read < size / 4
