"""A slice with a changed byte, or of another size than in its block, is refused by every way to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodmark as fm
from floodmark.errors import UnreadableSlice
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from floodmark.storage.page_checksums import SEAL_KEY, check_slice
from floodmark.storage.store import Store
from profiles import sample

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


def flips(data: bytes, number: int) -> Iterator[bytes]:
    """The data with one bit flipped."""
    for place in sample(range(8 * len(data)), number):
        at, bit = divmod(place, 8)
        yield data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def outcome(read: Callable[[fm.Lake], Any], lake: fm.Lake) -> Any:
    """What a read returns; None if it is refused with an error of ours."""
    try:
        return read(lake)
    except fm.FloodmarkError:
        return None


@pytest.mark.soak
@pytest.mark.parametrize("in_folder", [True, False], ids=["folder", "objects"])
def test_flipped_bit_of_a_slice_is_refused_or_harmless(tmp_path: Path, in_folder: bool) -> None:
    """262 of 360 such bits were once returned as values."""
    store = LocalStore(tmp_path / "lake") if in_folder else MemoryStore()
    lake = fm.Lake(store)
    lake.create("trips", key="id").write(pa.table({"id": range(70), "fare": [n / 7 for n in range(70)]}))
    [key] = slices(store)
    data, right = store.get(key), {name: read(lake) for name, read in READS.items()}
    for flipped in flips(data, 25):
        replace(store, key, flipped)
        for name, read in READS.items():
            assert outcome(read, fm.Lake(store)) in (None, right[name])
        assert not fm.Lake(store)["trips"].verify().ok


def stored_slice() -> tuple[MemoryStore, str, bytes]:
    store = MemoryStore()
    fm.Lake(store).create("trips", key="id").write(pa.table({"id": range(70), "fare": [n / 7 for n in range(70)]}))
    [key] = slices(store)
    return store, key, bytes(store.get(key))


def test_pages_of_a_slice_have_checksums_that_any_reader_can_check() -> None:
    _, _, data = stored_slice()
    group = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
    [fare] = [group.column(n) for n in range(group.num_columns) if group.column(n).path_in_schema == "fare"]
    start = fare.data_page_offset if fare.dictionary_page_offset is None else fare.dictionary_page_offset
    last = start + fare.total_compressed_size - 1
    flipped = data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :]
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(pa.BufferReader(flipped), page_checksum_verification=True)


def test_slice_whose_checksums_are_not_found_is_compared_with_its_name() -> None:
    store, key, data = stored_slice()
    replace(store, key, data.replace(SEAL_KEY, b"x" * len(SEAL_KEY)))
    with pytest.raises(OSError, match="does not match the hash in its name"):
        check_slice(store, key)


def test_index_is_not_rebuilt_from_a_damaged_slice(tmp_path: Path) -> None:
    """A rebuilt key index once had the hashes of the damaged values, and stayed after the slice was restored."""
    store = LocalStore(tmp_path / "lake")
    fm.Lake(store).create("trips", key="id").write(pa.table({"id": range(70), "fare": [n / 7 for n in range(70)]}))
    [key] = slices(store)
    data = store.get(key)
    for info in list(store.list("datasets")):
        if "/info/" in info.key:
            store.delete(info.key)
    for flipped in flips(data, 15):
        replace(store, key, flipped)
        with pytest.raises(UnreadableSlice):
            fm.Lake(store)["trips"].get([1])
    replace(store, key, data)
    assert fm.Lake(store)["trips"].get([1]).column("fare").to_pylist() == [1 / 7]
    assert fm.Lake(store)["trips"].verify().ok


@pytest.mark.spark
def test_spark_reads_no_changed_byte(tmp_path: Path, session) -> None:
    store = LocalStore(tmp_path / "lake")
    rows = pa.table({"id": range(70), "fare": [n / 7 for n in range(70)]})
    fm.Lake(store).create("trips").write(rows)
    lake = fm.Lake(store, runtime=fm.Runtime(session=session))
    [key] = slices(store)
    for flipped in flips(store.get(key), 5):
        replace(store, key, flipped)
        with pytest.raises(Exception, match=r"damaged|checksum|CRC|hash in its name"):
            lake["trips"].read().agg({"fare": "sum"}).collect()
