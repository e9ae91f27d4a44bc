"""A slice is a Parquet file with the system columns first, dense offsets, and both of its hashes."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.storage import logical_hash as slices
from floodmark.storage import parquet
from floodmark.storage.logical_hash import logical_hash, table_digests
from floodmark.storage.parquet import Vocabulary, event_time_bounds, recorded_digests, write_slice

NOW_MS = 1_772_323_200_123
TIMES = [datetime(2026, 1, day, 12, tzinfo=UTC) for day in (1, 2, 3)]


def payload(**columns):
    return pa.table({"event_time": pa.array(TIMES, pa.timestamp("us", "UTC")), **columns})


def write(tmp_path, data, start=5, known=None, vocab=None):
    return write_slice(
        tmp_path / f"slice-{len(list(tmp_path.iterdir()))}",
        data,
        vocab=vocab or Vocabulary(),
        start=start,
        system_time_ms=NOW_MS,
        known_digests=known or {},
    )


def read(slice_file):
    with pq.ParquetFile(slice_file.path) as file:
        return file.read(), file.metadata


def test_system_columns_come_first_and_have_their_types(tmp_path):
    table, _ = read(write(tmp_path, payload(city=["a", "b", None])))
    assert table.schema.remove_metadata().equals(
        pa.schema(
            [
                pa.field("offset", pa.int64(), nullable=False),
                pa.field("op", pa.int32(), nullable=False),
                pa.field("system_time", pa.timestamp("ms", "UTC"), nullable=False),
                pa.field("event_time", pa.timestamp("us", "UTC")),
                pa.field("city", pa.string()),
            ]
        )
    )


def test_offsets_are_dense_from_the_start_and_records_are_appends(tmp_path):
    table, _ = read(write(tmp_path, payload(), start=1000))
    assert table.column("offset").to_pylist() == [1000, 1001, 1002]
    assert table.column("op").to_pylist() == [0, 0, 0]
    assert table.column("system_time").cast(pa.int64()).to_pylist() == [NOW_MS] * 3


def test_physical_hash_and_size_are_those_of_the_file(tmp_path):
    made = write(tmp_path, payload(city=["a", "b", None]))
    data = made.path.read_bytes()
    assert made.physical_hash.text == "f1620" + hashlib.sha3_256(data).hexdigest()
    assert made.size == len(data)


def test_logical_hash_is_that_of_the_rows_read_back(tmp_path):
    made = write(
        tmp_path, payload(city=["a", "b", None], tags=[["x"], [], None], place=[{"x": 1.5}, None, {"x": None}])
    )
    assert made.logical_hash == logical_hash(read(made)[0])


def test_footer_holds_the_digest_of_every_column(tmp_path):
    table, metadata = read(write(tmp_path, payload(place=[{"x": 1, "y": "u"}, None, {"x": 2, "y": None}])))
    assert recorded_digests(metadata) == {
        name: [digest.hex() for digest in digests] for name, digests in table_digests(table).items()
    }
    assert len(recorded_digests(metadata)["place"]) == 2


def test_parquet_file_of_others_has_no_digests(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other")
    with pq.ParquetFile(tmp_path / "other") as file:
        assert recorded_digests(file.metadata) is None


def test_known_digests_give_the_same_hash_at_other_offsets_without_hashing_again(tmp_path, monkeypatch):
    data = payload(city=["a", "b", None])
    first = write(tmp_path, data, start=0)
    assert set(first.digests) == {"event_time", "city"}
    hashed = []
    real = slices.column_digests

    def counted(column):
        hashed.append(column.type)
        return real(column)

    monkeypatch.setattr(parquet, "column_digests", counted)
    moved = write(tmp_path, data, start=70, known=first.digests)
    assert hashed == [pa.int64(), pa.int32(), pa.timestamp("ms", "UTC")]
    monkeypatch.undo()
    assert moved.logical_hash == write(tmp_path, data, start=70).logical_hash != first.logical_hash


def test_equal_slices_have_equal_names(tmp_path):
    assert write(tmp_path, payload(n=[1, 2, 3])).physical_hash == write(tmp_path, payload(n=[1, 2, 3])).physical_hash


def test_system_columns_take_their_names_from_the_vocabulary(tmp_path):
    vocab = Vocabulary(offset="o", op="p", system_time="s", event_time="seen_at")
    table, _ = read(write(tmp_path, payload().rename_columns(["seen_at"]), vocab=vocab))
    assert table.column_names == ["o", "p", "s", "seen_at"]


@pytest.mark.parametrize(
    ("values", "data_type", "low", "high"),
    [
        ([3, 1, 2], pa.timestamp("ms", "UTC"), 1_000_000, 3_000_000),
        ([3, -1, 2], pa.timestamp("us"), -1000, 3000),
        ([date(1970, 1, 2), date(1970, 1, 1)], pa.date32(), 0, 86_400 * 10**9),
        ([], pa.timestamp("us"), None, None),
    ],
)
def test_bounds_of_event_times_are_nanoseconds(values, data_type, low, high):
    assert event_time_bounds(pa.chunked_array([pa.array(values, data_type)])) == (low, high)


def test_file_is_never_written_over(tmp_path):
    (tmp_path / "slice").write_bytes(b"somebody's")
    with pytest.raises(FileExistsError):
        write_slice(tmp_path / "slice", payload(), vocab=Vocabulary(), start=0, system_time_ms=NOW_MS, known_digests={})
    assert (tmp_path / "slice").read_bytes() == b"somebody's"


@pytest.mark.parametrize("rows", [1, 100])
def test_columns_of_many_shapes_survive(tmp_path, rows):
    data = pa.table(
        {
            "event_time": pa.array([TIMES[0]] * rows, pa.timestamp("us", "UTC")),
            "steady": pa.array(range(rows)),
            "wild": pa.array([(-1) ** i * 2**62 for i in range(rows)]),
            "extreme": pa.array([(-(2**63), 2**63 - 1)[i % 2] for i in range(rows)]),
            "repeated": ["x"] * rows,
            "unique": [f"u{i}" for i in range(rows)],
            "dotted.name": pa.array(range(rows)),
            "nulls": pa.array([None] * rows, pa.string()),
        }
    )
    made = write(tmp_path, data, start=0)
    table, _ = read(made)
    assert table.select(data.column_names).to_pydict() == data.to_pydict()
    assert made.logical_hash == logical_hash(table)
