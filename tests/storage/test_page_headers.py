"""A file of rows has no byte without a checksum: of its page, of the page headers or of its tail."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.storage.page_checksums import HEADERS_KEY, PageHeaders
from floodmark.storage.parquet import ChecksummedFile, write_columns
from profiles import sample

MAGIC = 4  # the bytes before the first page, which say that this is Parquet


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, ChecksummedFile, PageHeaders]:
    path = tmp_path_factory.mktemp("rows") / "file"
    values = random.Random(0)  # pages that are not compressed to the size of a header
    table = pa.table({"n": [values.random() for _ in range(200)], "hash": [values.randbytes(8) for _ in range(200)]})
    made = write_columns(path, iter([table.slice(0, 100), table.slice(100)]), table.schema)
    with pq.ParquetFile(path) as file:
        return path, made, PageHeaders.decode(file.metadata.metadata[HEADERS_KEY])


def is_noticed(path: Path, made: ChecksummedFile, headers: PageHeaders) -> bool:
    if zlib.crc32(path.read_bytes()[-made.tail :]) != made.tail_checksum or not headers.are_in(path):
        return True
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            file.read()
    except OSError:
        return True
    return False


def test_whole_file_has_its_checksums(written):
    path, made, headers = written
    assert path.stat().st_size == made.size
    assert not is_noticed(path, made, headers)


@pytest.mark.soak
def test_any_changed_byte_is_noticed(written, tmp_path):
    path, made, headers = written
    data = path.read_bytes()
    assert len(headers.bounds) >= 4
    in_headers = [int(at) for at in headers.bounds[::2]]
    missed = []
    for place in sorted({*in_headers, *sample(range(MAGIC, len(data)), 150)}):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        copy = tmp_path / "copy"
        copy.write_bytes(damaged)
        if not is_noticed(copy, made, headers):
            missed.append(place)
    assert missed == []
