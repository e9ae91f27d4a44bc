"""A folded file is a copy: whatever happens to its bytes, reads give the right rows, and a fold makes it anew."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.engine.session import Session
from floodmark.errors import BadQuery, UnreadableSlice
from floodmark.ledger import scan as scanning
from floodmark.rows.live_rows import FoldedFile, decode_manifest, looks_intact, read_manifest
from floodmark.storage import parquet
from floodmark.storage.document import DamagedDocument
from floodmark.storage.memory import MemoryStore
from floodmark.storage.page_checksums import HEADERS_KEY, PageHeaders
from limits import set_limit
from profiles import sample
from rows.current_worlds import people, rows
from rows.harm import replace as put


def things(ids: range, tag: str) -> pa.Table:
    """Rows whose columns are encoded in every way that we write."""
    return pa.table(
        {
            "id": list(ids),
            "few": [f"{tag}{i % 3}" for i in ids],
            "many": [f"{tag}-{i * 7919 % 1000}" for i in ids],
            "x": [i * 0.37 for i in ids],
            "maybe": [i % 2 == 0 if i % 5 else None for i in ids],
            "short": pa.array([i * 65537 % 9999991 for i in ids], pa.int32()),
        }
    )


@pytest.fixture(params=["folder", "bucket"])
def store(request, tmp_path):
    return tmp_path / "lake" if request.param == "folder" else MemoryStore()


@pytest.fixture
def dataset(store, clock):
    return folded(store, clock)


def folded(store, clock) -> Dataset:
    dataset = fm.Lake(store, runtime=fm.Runtime(clock=clock, fold_at=None)).create("p", key=["id"], merge="upsert")
    dataset.write(things(range(60), "a"))
    dataset.write(things(range(20), "b"))
    dataset.fold()
    return dataset


def the_file(dataset) -> FoldedFile:
    [file] = read_manifest(dataset.snapshot().objects).files
    return file


def flip(dataset, at: int, mask: int = 1) -> None:
    """Change one byte of the folded file."""
    objects = dataset.snapshot().objects
    key = the_file(dataset).key(objects)
    data = bytearray(objects.store.get(key))
    data[at] ^= mask
    put(objects.store, key, bytes(data))


def in_a_page(dataset) -> int:
    """A byte that only a page's checksum covers: one of a text in a page that is too large to pass for a header."""
    objects, file = dataset.snapshot().objects, the_file(dataset)
    data = objects.store.get(file.key(objects))
    return data.index(b"a-", 0, file.size - file.tail) + 1


def found_by(dataset, expected: pa.Table) -> str:
    """How the damage of the file is met; the rows are right in any case."""
    objects = dataset.snapshot().objects
    assert dataset.to_arrow().equals(expected)
    assert dataset.to_batches().read_all().equals(expected)
    if not looks_intact(objects, the_file(dataset)):
        return "a look"
    scan = dataset.scan()
    with pytest.raises(UnreadableSlice):
        replace(scan, selection=replace(scan.selection, unfolded=None)).to_table()
    return "a page's checksum"


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_no_flipped_byte_of_a_folded_file_gives_a_wrong_row(tmp_path, clock, part):
    dataset = folded(tmp_path / "lake", clock)
    expected, file, found = dataset.to_arrow(), the_file(dataset), Counter()
    text = in_a_page(dataset)
    for at in [text, *sample(range(part, file.size, 4), 25)]:
        mask = 1 + at * 7 % 255
        flip(dataset, at, mask)
        found_how = found_by(dataset, expected)
        assert found_how == "a look" or at < file.size - file.tail
        found[found_how] += 1
        flip(dataset, at, mask)
    assert set(found) == {"a look", "a page's checksum"}
    assert dataset.verify().ok


def test_header_that_names_another_encoding_is_seen(tmp_path, clock):
    """The page is whole and its checksum right: only its header says that its bytes mean other numbers."""
    dataset = folded(tmp_path / "lake", clock)
    expected, objects, file = dataset.to_arrow(), dataset.snapshot().objects, the_file(dataset)
    data = objects.store.get(file.key(objects))
    plain = b"\x15\x00\x15\x06\x15\x06"  # thrift: encoding PLAIN, levels RLE
    places = [i for i in range(file.size - file.tail) if data.startswith(plain, i)]
    assert places
    for at in places:
        flip(dataset, at + 1, 0x12)  # BYTE_STREAM_SPLIT
        assert not looks_intact(objects, file)
        assert dataset.to_arrow().equals(expected)
        flip(dataset, at + 1, 0x12)


def test_damaged_page_is_read_from_the_slices_with_a_warning(dataset, caplog):
    expected = rows(dataset)
    flip(dataset, in_a_page(dataset))
    assert dataset.to_arrow().to_pylist() == expected
    assert "call fold() to write the file again" in caplog.text
    assert dataset.to_batches().read_all().to_pylist() == expected
    assert dataset.to_batches(where="id >= 0").read_all().num_rows == 60
    assert dataset.to_batches(where="id < 10").read_all().to_pylist() == [r for r in expected if r["id"] < 10]


def test_wrong_filter_is_still_the_users_mistake(dataset):
    flip(dataset, in_a_page(dataset))
    with pytest.raises(BadQuery, match="nowhere"):
        dataset.to_batches(where="nowhere = 1")


def test_stream_that_has_begun_says_that_the_copy_is_damaged(dataset, monkeypatch):
    real = scanning.Scan.batches

    def breaks_off(scan, where=None):
        batches = real(scan, where)
        yield next(batches)
        if scan.selection.unfolded is not None:
            raise OSError("CRC checksum verification failed")
        yield from batches

    monkeypatch.setattr(scanning.Scan, "batches", breaks_off)
    stream = dataset.to_batches()
    assert stream.read_next_batch().num_rows > 0
    with pytest.raises(UnreadableSlice, match="folded file") as caught:
        stream.read_next_batch()
    assert "fold()" in caught.value.hint


def test_damage_of_slices_is_no_damage_of_the_fold(dataset):
    """When the slices cannot be read either, the error is about them."""
    objects = dataset.snapshot().objects
    flip(dataset, in_a_page(dataset))
    for info in list(objects.store.list(f"{objects.folder}/data")):
        objects.store.delete(info.key)
    with pytest.raises(UnreadableSlice, match="/data/"):
        dataset.to_arrow()


@pytest.mark.parametrize("error", [pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowInvalid, OSError])
def test_every_error_of_arrow_about_a_damaged_file_becomes_one(dataset, error):
    with pytest.raises(UnreadableSlice), dataset.scan().readable():
        raise error("what")


# Repair


@pytest.mark.parametrize("where", ["page", "tail", "everywhere", "gone"])
def test_fold_rewrites_a_damaged_file(dataset, where):
    expected, objects = rows(dataset), dataset.snapshot().objects
    before = the_file(dataset)
    key = before.key(objects)
    match where:
        case "page":
            flip(dataset, in_a_page(dataset))
        case "tail":
            flip(dataset, before.size - 20)
        case "everywhere":
            put(objects.store, key, bytes(before.size))
        case "gone":
            objects.store.delete(key)
    assert [p.object for p in dataset.verify().problems] == ([] if where == "gone" else [key])
    assert dataset.fold().rows == before.rows
    assert dataset.verify().ok
    assert [f.key for f in dataset.scan().selection.files] == [the_file(dataset).key(objects)]
    assert dataset.to_arrow().to_pylist() == expected
    assert [info.key for info in objects.fold_files()] == [the_file(dataset).key(objects)]


def test_fold_after_more_writes_does_not_read_the_damaged_file(dataset):
    flip(dataset, in_a_page(dataset))
    dataset.write(things(range(10, 70), "c"))
    dataset.fold()
    assert dataset.verify().ok
    assert dataset.to_arrow().to_pylist() == rows(dataset)
    assert dataset.count() == 70


def test_fold_removes_a_damaged_manifest_even_when_there_is_nothing_to_fold(clock):
    dataset = fm.Lake(MemoryStore(), runtime=fm.Runtime(clock=clock)).create("p", key=["id"], merge="upsert")
    dataset.write(people(range(5), "a"))
    objects = dataset.snapshot().objects
    objects.store.put_derived(objects.fold_manifest_key, b"what")
    assert not dataset.verify().ok
    dataset.fold()
    assert dataset.verify().ok


def test_automatic_fold_does_not_copy_damage(store, clock, monkeypatch):
    set_limit(monkeypatch, "fold.worth_rows", 5)
    dataset = folded(store, clock)
    flip(dataset, in_a_page(dataset))
    before = the_file(dataset)
    dataset = fm.Lake(store, runtime=fm.Runtime(clock=clock, fold_at=0.1))["p"]
    dataset.write(things(range(30, 60), "c"))
    assert the_file(dataset).digest != before.digest
    assert dataset.verify().ok
    assert dataset.to_arrow().to_pylist() == rows(dataset)


def test_manifest_of_an_older_format_is_not_believed(dataset):
    objects = dataset.snapshot().objects
    data = objects.store.get(objects.fold_manifest_key)
    with pytest.raises(DamagedDocument):
        decode_manifest(b"FMFOLD2\n" + data, objects.fold_manifest_key)


def test_headers_are_noted_to_the_byte_between_large_pages(tmp_path):
    """Every byte that no page's checksum covers is either in a span of headers or in the tail."""
    table = pa.table({"x": pa.array(np.random.default_rng(1).random(50_000))})
    made = parquet.write_rows(tmp_path / "f", iter([table]), table.schema, parquet.Vocabulary())
    data = (tmp_path / "f").read_bytes()
    column = pq.read_metadata(tmp_path / "f").row_group(0).column(0)
    text = pq.read_metadata(tmp_path / "f").metadata[HEADERS_KEY]
    headers = PageHeaders.decode(text)
    assert headers.are_in(tmp_path / "f")
    starts, ends = headers.bounds[::2], headers.bounds[1::2]
    assert len(starts) >= 3  # several pages
    assert starts[0] == 0  # the magic number and the first header
    assert ends[0] > column.data_page_offset
    assert (ends[1:] - starts[1:] < 64).all()
    assert zlib.crc32(data[-made.tail :]) == made.tail_checksum
    assert made.tail == made.size - (column.data_page_offset + column.total_compressed_size)


# Other readers


@pytest.mark.spark
@pytest.mark.parametrize("way", ["native", "tasks"])
def test_spark_gives_no_wrong_row_but_an_error(tmp_path, clock, spark, monkeypatch, way):
    """The error is Spark's own; after a fold it reads again."""
    if way == "tasks":
        set_limit(monkeypatch, "spark_read.native_slices", 0)
    folded(tmp_path / "lake", clock)
    runtime = fm.Runtime(session=Session(spark), fold_at=None)
    dataset = fm.Lake(tmp_path / "lake", runtime=runtime)["p"]
    flip(dataset, in_a_page(dataset))
    with pytest.raises(
        (PySparkException, Py4JJavaError), match="info/fold/files" if way == "native" else "UnreadableSlice"
    ):
        dataset.read().collect()
    dataset.fold()
    assert dataset.read().count() == 60


def test_sql_gives_no_wrong_row_but_an_error(store, clock):
    dataset = folded(store, clock)
    lake = fm.Lake(store, runtime=fm.Runtime(clock=clock, fold_at=None))
    flip(dataset, in_a_page(dataset))
    with pytest.raises(UnreadableSlice, match="CRC"):
        lake.sql("select many from p")
    dataset.fold()
    assert lake.sql("select many from p").num_rows == 60
