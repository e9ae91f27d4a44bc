"""What a reader of the code found: each a way in which rows were lost, refused or copied too often."""

from __future__ import annotations

import errno
import logging
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.errors import StorageError
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import CountingStore, MemoryStore
from ledger.worlds import InterleavingStore, keys, racing
from limits import set_limit


@pytest.fixture
def lake(tmp_path):
    return fm.Lake(LocalStore(tmp_path / "lake", HastyFileSystem()))


def stream(**columns):
    table = pa.table(columns)
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches())


@pytest.fixture
def racing_lake():
    """A lake whose next commit of `d` loses a race."""
    lake = fm.Lake(racing(MemoryStore)(), runtime=fm.Runtime(sleep=lambda _: None))
    lake.create("d", key="id").write(pa.table({"id": [1, 2, 3]}))
    lake.store.rivals = (lambda: lake["d"].advance_watermark("2030-01-01"),)
    return lake


def test_keys_of_a_stream_are_deleted_after_a_lost_race(racing_lake):
    d = racing_lake["d"]
    assert d.delete(stream(id=[1, 2])).retracted == 2
    assert racing_lake.store.rivals == ()
    assert d.to_arrow().to_pylist() == [{"id": 3}]


def test_processed_keys_of_a_stream_are_retracted_after_a_lost_race(racing_lake):
    d = racing_lake["d"]
    assert d.store_chunk(pa.table({"id": [1]}), processed_idx=stream(id=[1, 2])).retracted == 1
    assert racing_lake.store.rivals == ()


def test_column_of_any_name_survives_a_large_batch(lake, monkeypatch):
    set_limit(monkeypatch, "parts.part_bytes", 2000)
    set_limit(monkeypatch, "buckets.part_bytes", 8000)
    set_limit(monkeypatch, "intake.part_bytes", 2000)
    names = ["floodmark.dev/x", "floodmark.dev/key_high", "floodmark.dev/op", "0", "1"]
    d = lake.create("d", key="id")
    d.write(pa.table({"id": range(100), **{name: range(100) for name in names}}))
    assert d.snapshot().slices.num_rows > 1
    assert d.to_arrow().select(names).to_pydict() == {name: d.to_arrow()["id"].to_pylist() for name in names}
    assert d.verify().ok


def test_rows_that_are_repeated_are_divided_among_slices(lake, monkeypatch):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": range(1000), "text": ["x" * 50] * 1000}))
    set_limit(monkeypatch, "write.repeated_bytes", 1000)
    commit = d.delete(range(900))
    assert commit.retracted == 900
    assert commit.slices > 3
    assert sorted(d.to_arrow()["id"].to_pylist()) == list(range(900, 1000))
    assert d.verify().ok


def test_small_snapshot_of_a_large_dataset_is_divided_too(lake, monkeypatch):
    d = lake.create("d", key="id", merge="snapshot")
    d.write(pa.table({"id": range(1000), "text": ["x" * 50] * 1000}))
    set_limit(monkeypatch, "write.repeated_bytes", 1000)
    commit = d.write(pa.table({"id": [5, 2000], "text": ["x" * 50, "new"]}))
    assert (commit.new, commit.changed, commit.retracted, commit.unchanged) == (1, 0, 999, 1)
    assert commit.slices > 3
    assert sorted(d.to_arrow()["id"].to_pylist()) == [5, 2000]


def test_records_that_are_purged_do_not_make_every_write_fold(lake, monkeypatch):
    set_limit(monkeypatch, "fold.worth_rows", 10)
    d = lake.create("d", key="id")
    for value in range(5):
        d.write(pa.table({"id": range(100), "v": [value] * 100}))
    kept = d.write(pa.table({"id": range(1000, 2000), "v": [0] * 1000}))
    d.purge(before=kept.start)
    folded = keys(d, "info/fold/files")
    d.write(pa.table({"id": [5000], "v": [0]}))
    assert keys(d, "info/fold/files") == folded
    d.write(pa.table({"id": range(1000, 1200), "v": [1] * 200}))
    assert len(keys(d, "info/fold/files")) == len(folded) + 1


class ReadOnlyFolder(LocalStore):
    """A folder in which no file can be staged."""

    def staging(self):
        raise PermissionError(13, "read-only")


def test_lake_that_cannot_be_written_to_can_be_read_by_key(tmp_path, monkeypatch):
    lake = fm.Lake(tmp_path / "lake")
    d = lake.create("d", key="id")
    d.write(pa.table({"id": range(200), "v": range(200)}))
    forget_row_copies(d)
    set_limit(monkeypatch, "rows.copy_rows", 10)
    assert fm.Lake(ReadOnlyFolder(tmp_path / "lake"))["d"].get(range(100)).num_rows == 100


def forget_row_copies(dataset):
    for key in keys(dataset, "info/rows"):
        dataset.snapshot().objects.store.delete(key)


@pytest.fixture
def twenty():
    """Two slices of ten keys each, in a store that other writers can interleave with; one more key is gone."""
    lake = fm.Lake(InterleavingStore())
    d = lake.create("d", key="id")
    d.write(pa.table({"id": range(10), "v": [0] * 10}))
    d.write(pa.table({"id": range(10, 20), "v": [0] * 10}))
    d.delete([0])
    return lake


def test_purge_under_a_write_makes_it_begin_again(twenty):
    def purge():
        twenty["d"].purge(before=10)
        forget_row_copies(twenty["d"])

    d = fm.Lake(twenty.store)["d"]
    twenty.store.at("before get", purge, "/info/keys/")
    commit = d.write(pa.table({"id": [1, 11], "v": [1, 1]}))
    assert (commit.new, commit.changed) == (0, 2)
    assert (d.count(), d.snapshot().purged_before) == (19, 10)
    assert d.verify().ok


def test_state_that_a_rival_brought_during_a_purge_is_not_written_again(twenty):
    rival = []

    def overtake():
        rival.append(twenty["d"].write(pa.table({"id": [1], "v": [5]}), source="s", state="1"))
        twenty["d"].purge(before=10)
        forget_row_copies(twenty["d"])

    d = fm.Lake(twenty.store)["d"]
    twenty.store.at("before get", overtake, "/info/keys/")
    assert d.write(pa.table({"id": [1], "v": [7]}), source="s", state="1") == rival[0]
    assert d.get([1])["v"].to_pylist() == [5]


def test_folds_that_were_deleted_are_written_again_in_the_same_process(lake, tmp_path):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": range(10), "v": [0] * 10}))
    d.write(pa.table({"id": range(10), "v": [1] * 10}))
    assert d.fold().files == 1
    objects = d.snapshot().objects
    folder = objects.store.local_path(objects.folder + "/info/fold")
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    d.delete([3])
    assert d.fold().files == 1
    assert d.count() == d.to_arrow().num_rows == 9


@pytest.mark.parametrize(
    ("data_type", "key"),
    [(pa.uint64(), 2**63 + 1), (pa.float32(), 0.1), (pa.int8(), 7), (pa.uint64(), 1)],
)
def test_plain_values_find_keys_of_the_columns_type(lake, data_type, key):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": pa.array([key], data_type), "v": [1]}))
    assert d.get([key]).num_rows == 1
    assert d.delete(key).retracted == 1


@pytest.mark.parametrize("columns", [("a",), ("a", "b")])
def test_no_keys_are_no_rows(lake, columns):
    d = lake.create("d", key=columns)
    d.write(pa.table({"a": [1], "b": [1]}))
    assert d.get([]).num_rows == 0
    assert d.delete([]).retracted == 0
    assert d.store_chunk(pa.table({"a": [1], "b": [1]}), processed_idx=[]).rows == 0


def test_key_given_twice_is_one_key(lake, caplog):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": [3]}))
    assert d.delete([3, 3]).retracted == 1
    assert caplog.records == []


def test_one_column_to_compare_may_be_given_by_its_name(lake):
    d = lake.create("d", key="id", merge="snapshot", compare="price")
    d.write(pa.table({"id": [1], "price": [1], "note": ["a"]}))
    assert d.write(pa.table({"id": [1], "price": [1], "note": ["b"]})).unchanged == 1


def test_now_that_is_now_is_no_reason_to_warn(lake, caplog):
    d = lake.create("d", key="id")
    with caplog.at_level(logging.WARNING):
        d.store_chunk(pa.table({"id": [1]}), now=datetime.now(UTC))
    assert caplog.records == []


def test_rows_by_another_part_of_the_key_are_found_once_after_a_purge(lake):
    d = lake.create("d", key=["a", "b"])
    d.write(pa.table({"a": [1, 2], "b": [7, 7]}))
    d.write(pa.table({"a": [3, 4], "b": [7, 8]}))
    d.delete([{"a": 1, "b": 7}])
    d.purge(before=2)
    assert d.get({"b": 7}).to_pylist() == [{"a": 3, "b": 7}, {"a": 2, "b": 7}]


@pytest.mark.slow
def test_reader_goes_on_while_writers_replace_the_files_of_the_index():
    store = CountingStore(MemoryStore())
    d = fm.Lake(store).create("d", key="id")
    d.write(pa.table({"id": range(50), "v": [0] * 50}))
    slow = fm.Lake(store)["d"]
    slow.snapshot()
    numbers = np.random.default_rng(1)
    for value in range(1, 40):
        d.write(pa.table({"id": numbers.choice(50, 5, replace=False), "v": [value] * 5}))
    before = len(store.keys_read)
    assert slow.get(range(50)).num_rows == 50
    assert not any("/data/" in key for key in store.keys_read[before:])  # so the index was not rebuilt


def full(*_args, **_options):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["write_copy", "write_slice", "write_delta"])
def test_disk_that_is_full_before_the_commit_leaves_the_dataset_as_it_was(lake, monkeypatch, step):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": [1, 2], "v": [0, 0]}))
    with monkeypatch.context() as patch:
        patch.setattr(f"floodmark.rows.bucket_merge.{step}", full)
        with pytest.raises(StorageError, match="No space left") as refused:
            d.write(pa.table({"id": [2, 3], "v": [1, 1]}))
    assert "Free disk space" in refused.value.hint
    assert d.to_arrow().to_pylist() == [{"id": 1, "v": 0}, {"id": 2, "v": 0}]
    assert list(lake.store.staging().iterdir()) == []
    commit = d.write(pa.table({"id": [2, 3], "v": [1, 1]}))
    assert (commit.new, commit.changed) == (1, 1)


class FullFolder(LocalStore):
    """A folder without room for derived files while `is_full`."""

    is_full = False

    def put_derived(self, key, data):
        if self.is_full:
            full()
        super().put_derived(key, data)

    def put_derived_file(self, key, path):
        if self.is_full:
            full()
        super().put_derived_file(key, path)


def test_disk_that_is_full_after_the_commit_does_not_undo_it(tmp_path):
    lake = fm.Lake(FullFolder(tmp_path / "lake"))
    d = lake.create("d", key="id")
    d.write(pa.table({"id": [1, 2], "v": [0, 0]}))
    lake.store.is_full = True
    assert d.write(pa.table({"id": [2, 3], "v": [1, 1]})).rows == 3
    assert d.count() == 3
    lake.store.is_full = False
    assert (d.write(pa.table({"id": [2, 3], "v": [1, 2]})).unchanged, d.count()) == (1, 3)
    assert fm.Lake(lake.store)["d"].verify().ok


def test_fold_removes_copies_of_rows_that_are_no_longer_current(lake):
    d = lake.create("d", key="id")
    for value in range(5):
        d.write(pa.table({"id": [1, 2], "v": [value] * 2}))
    kept = d.write(pa.table({"id": [1], "v": [9]}))
    objects = d.snapshot().objects

    def copies():
        return len(list(lake.store.list(objects.folder + "/info/rows")))

    assert copies() == 6
    d.fold()
    assert copies() == 2  # the newest row of 2 is in the fifth slice, that of 1 in the sixth
    assert d.get([1, 2])["v"].to_pylist() == [4, 9]
    assert d.write(pa.table({"id": [1, 2], "v": [9, 7]})).changed == 1
    assert kept.rows == 2
    assert d.verify().ok
