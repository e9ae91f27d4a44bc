"""A slice of another size than in its block is refused by every way to read. Only verify finds other changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodmark as fm
from floodmark.errors import UnreadableSlice
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from floodmark.storage.store import Store

READS: dict[str, Callable[[fm.Lake], Any]] = {
    "sql": lambda lake: lake.sql("select fare from trips where id = 1"),
    "to_arrow": lambda lake: lake["trips"].to_arrow(),
    "to_batches": lambda lake: lake["trips"].to_batches(where="fare > 0").read_all(),
    "changes": lambda lake: lake["trips"].changes_arrow(),
    "history": lambda lake: lake["trips"].history([1]),
    "get": lambda lake: lake["trips"].get([1]),
}


def slices(store: Store) -> list[str]:
    return [info.key for info in store.list("datasets") if "/data/" in info.key]


def replace(store: Store, key: str, data: bytes) -> None:
    store.delete(key)
    assert store.put_if_absent(key, data)


def tampered(store: Store) -> fm.Lake:
    """A lake in which somebody changed the fare of trip 1 from 1.0 to 99.0, with a Parquet library."""
    fm.Lake(store).create("trips", key="id").write(pa.table({"id": [1, 2], "fare": [1.0, 2.0]}))
    [key] = slices(store)
    rows = pq.read_table(pa.BufferReader(store.get(key)))
    fares = pa.array([99.0, 2.0])
    sink = pa.BufferOutputStream()
    pq.write_table(rows.set_column(rows.schema.get_field_index("fare"), "fare", fares), sink)
    replace(store, key, sink.getvalue().to_pybytes())
    return fm.Lake(store)


@pytest.mark.parametrize("read", READS)
def test_slice_of_another_size_is_refused(tmp_path: Path, read: str) -> None:
    """`sql` once showed the changed value, and `get` the old one."""
    lake = tampered(LocalStore(tmp_path / "lake"))
    with pytest.raises(UnreadableSlice, match=r"but had [0-9]+ when it was committed") as refused:
        READS[read](lake)
    assert "verify()" in refused.value.hint
    assert not lake["trips"].verify().ok


@pytest.mark.parametrize("read", ["to_arrow", "changes", "history"])
def test_object_of_another_size_is_refused(read: str) -> None:
    lake = tampered(MemoryStore())
    with pytest.raises(UnreadableSlice, match=r"but had [0-9]+ when it was committed"):
        READS[read](lake)


@pytest.mark.spark
def test_spark_reads_no_slice_of_another_size(tmp_path: Path, session) -> None:
    store = LocalStore(tmp_path / "lake")
    tampered(store)
    lake = fm.Lake(store, runtime=fm.Runtime(session=session))
    with pytest.raises(UnreadableSlice, match="when it was committed"):
        lake["trips"].read().count()
    with pytest.raises(UnreadableSlice, match="when it was committed"):
        lake.sql_spark("select max(fare) from trips").collect()


def test_change_that_keeps_the_size_is_found_by_verify(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "lake")
    fm.Lake(store).create("trips", key="id").write(pa.table({"id": [1, 2], "fare": [1.0, 2.0]}))
    [key] = slices(store)
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    replace(store, key, bytes(data))
    assert not fm.Lake(store)["trips"].verify().ok
