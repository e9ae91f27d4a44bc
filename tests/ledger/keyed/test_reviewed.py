"""What a reader of the code found: each a way in which rows were lost, refused or copied too often."""

from __future__ import annotations

import errno
import logging
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.ledger import fold as folding
from floodmark.ledger.keys import rows as row_copies
from floodmark.ledger.merge import buckets, intake
from floodmark.ledger.merge import write as merging
from floodmark.storage.errors import StorageError
from floodmark.storage.local import LocalStore


@pytest.fixture
def lake(tmp_path):
    return fm.Lake(tmp_path / "lake")


def stream(**columns):
    table = pa.table(columns)
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches())


def lose_the_first_race(monkeypatch):
    commit, lost = merging.Merge._commit, []

    def losing(self, snapshot, prepared):
        if lost:
            return commit(self, snapshot, prepared)
        lost.append(True)
        return None

    monkeypatch.setattr(merging.Merge, "_commit", losing)


def test_keys_of_a_stream_are_deleted_after_a_lost_race(lake, monkeypatch):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": [1, 2, 3]}))
    lose_the_first_race(monkeypatch)
    assert d.delete(stream(id=[1, 2])).retracted == 2
    assert d.to_arrow().to_pylist() == [{"id": 3}]


def test_processed_keys_of_a_stream_are_retracted_after_a_lost_race(lake, monkeypatch):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": [1, 2, 3]}))
    lose_the_first_race(monkeypatch)
    assert d.store_chunk(pa.table({"id": [1]}), processed_idx=stream(id=[1, 2])).retracted == 1


def test_column_of_any_name_survives_a_large_batch(lake, monkeypatch):
    monkeypatch.setattr("floodmark.ledger.parts.PART_BYTES", 500)
    monkeypatch.setattr(buckets, "PART_BYTES", 500)
    monkeypatch.setattr(intake, "PART_BYTES", 500)
    monkeypatch.setattr(buckets.grouped, "__defaults__", (500,))
    names = ["floodmark.dev/x", "floodmark.dev/key_high", "floodmark.dev/op", "0", "1"]
    d = lake.create("d", key="id")
    d.write(pa.table({"id": range(200), **{name: range(200) for name in names}}))
    assert d.snapshot().slices.num_rows > 1
    assert d.to_arrow().select(names).to_pydict() == {name: d.to_arrow()["id"].to_pylist() for name in names}
    assert d.verify().ok


def test_rows_that_are_repeated_are_divided_among_slices(lake, monkeypatch):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": range(1000), "text": ["x" * 50] * 1000}))
    monkeypatch.setattr(merging, "_REPEATED_BYTES", 1000)
    commit = d.delete(range(900))
    assert commit.retracted == 900
    assert commit.slices > 3
    assert sorted(d.to_arrow()["id"].to_pylist()) == list(range(900, 1000))
    assert d.verify().ok


def test_small_snapshot_of_a_large_dataset_is_divided_too(lake, monkeypatch):
    d = lake.create("d", key="id", merge="snapshot")
    d.write(pa.table({"id": range(1000), "text": ["x" * 50] * 1000}))
    monkeypatch.setattr(merging, "_REPEATED_BYTES", 1000)
    commit = d.write(pa.table({"id": [5, 2000], "text": ["x" * 50, "new"]}))
    assert (commit.new, commit.changed, commit.retracted, commit.unchanged) == (1, 0, 999, 1)
    assert commit.slices > 3
    assert sorted(d.to_arrow()["id"].to_pylist()) == [5, 2000]


def test_records_that_are_purged_do_not_make_every_write_fold(lake, monkeypatch):
    monkeypatch.setattr(folding, "WORTH_ROWS", 10)
    d = lake.create("d", key="id")
    for value in range(5):
        d.write(pa.table({"id": range(100), "v": [value] * 100}))
    kept = d.write(pa.table({"id": range(1000, 2000), "v": [0] * 1000}))
    d.purge(before=kept.start)
    folds = []
    monkeypatch.setattr(folding, "_fold_some", lambda *given: folds.append(given))
    d.write(pa.table({"id": [5000], "v": [0]}))
    assert folds == []
    d.write(pa.table({"id": range(1000, 1200), "v": [1] * 200}))
    assert len(folds) == 1


def test_lake_that_cannot_be_written_to_can_be_read_by_key(lake, monkeypatch):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": range(200), "v": range(200)}))
    for info in list(d.snapshot().objects.store.list(d.snapshot().objects.folder + "/info/rows")):
        lake.store.delete(info.key)

    def refuse(self):
        raise PermissionError(13, "read-only")

    monkeypatch.setattr(LocalStore, "staging", refuse)
    monkeypatch.setattr(row_copies, "COPY_ROWS", 10)
    assert fm.Lake(lake.store)["d"].get(range(100)).num_rows == 100


def test_purge_under_a_write_makes_it_begin_again(lake, monkeypatch):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": range(10), "v": [0] * 10}))
    d.write(pa.table({"id": range(10, 20), "v": [0] * 10}))
    prepared, purged = merging.Merge._prepared, []

    def overtaken(self, *given):
        if not purged:
            purged.append(fm.Lake(lake.store)["d"].purge(before=10))
            for info in list(lake.store.list(d.snapshot().objects.folder + "/info/rows")):
                lake.store.delete(info.key)
        return prepared(self, *given)

    monkeypatch.setattr(merging.Merge, "_prepared", overtaken)
    commit = d.write(pa.table({"id": [1, 11], "v": [1, 1]}))
    assert (commit.new, commit.changed) == (1, 1)


def test_state_that_a_rival_brought_during_a_purge_is_not_written_again(lake, monkeypatch):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": range(10), "v": [0] * 10}))
    d.write(pa.table({"id": range(10, 20), "v": [0] * 10}))
    prepared, rival = merging.Merge._prepared, []

    def overtaken(self, *given):
        if not rival:
            rival.append(None)
            other = fm.Lake(lake.store)["d"]
            rival[0] = other.write(pa.table({"id": [1], "v": [5]}), source="s", state="1")
            other.purge(before=10)
            for info in list(lake.store.list(d.snapshot().objects.folder + "/info/rows")):
                lake.store.delete(info.key)
        return prepared(self, *given)

    monkeypatch.setattr(merging.Merge, "_prepared", overtaken)
    assert d.write(pa.table({"id": [1], "v": [7]}), source="s", state="1") == rival[0]
    assert d.get([1])["v"].to_pylist() == [5]


def test_folds_that_were_thrown_away_are_made_again_in_the_same_process(lake, tmp_path):
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


def test_rows_by_another_part_of_the_key_leave_out_what_is_purged(lake):
    d = lake.create("d", key=["a", "b"])
    d.write(pa.table({"a": [1, 2], "b": [7, 7]}))
    d.write(pa.table({"a": [3, 4], "b": [7, 8]}))
    d.purge(before=2)
    assert d.get({"b": 7}).to_pylist() == [{"a": 3, "b": 7}]


def test_reader_goes_on_while_writers_replace_the_files_of_the_index(lake, monkeypatch):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": range(50), "v": [0] * 50}))
    slow = fm.Lake(lake.store)["d"]
    slow.snapshot()
    numbers = np.random.default_rng(1)
    for value in range(1, 40):
        d.write(pa.table({"id": numbers.choice(50, 5, replace=False), "v": [value] * 5}))
    monkeypatch.setattr("floodmark.ledger.keys.index.rebuild", lambda *_: pytest.fail("made anew"))
    assert slow.get(range(50)).num_rows == 50


def full(*_args, **_options):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["write_copy", "write_slice", "write_addition"])
def test_disk_that_is_full_before_the_commit_leaves_the_dataset_as_it_was(lake, monkeypatch, step):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": [1, 2], "v": [0, 0]}))
    with monkeypatch.context() as patch:
        patch.setattr(f"floodmark.ledger.merge.slices.{step}", full)
        with pytest.raises(StorageError, match="No space left") as refused:
            d.write(pa.table({"id": [2, 3], "v": [1, 1]}))
    assert "make room" in refused.value.hint
    assert d.to_arrow().to_pylist() == [{"id": 1, "v": 0}, {"id": 2, "v": 0}]
    assert list(lake.store.staging().iterdir()) == []
    commit = d.write(pa.table({"id": [2, 3], "v": [1, 1]}))
    assert (commit.new, commit.changed) == (1, 1)


def test_disk_that_is_full_after_the_commit_does_not_undo_it(lake, monkeypatch):
    d = lake.create("d", key="id")
    d.write(pa.table({"id": [1, 2], "v": [0, 0]}))
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_derived_file", full)
        patch.setattr(LocalStore, "put_derived", full)
        assert d.write(pa.table({"id": [2, 3], "v": [1, 1]})).rows == 3
        assert d.count() == 3
    assert (d.write(pa.table({"id": [2, 3], "v": [1, 2]})).unchanged, d.count()) == (1, 3)
    assert fm.Lake(lake.store)["d"].verify().ok


def test_fold_removes_copies_of_rows_that_nobody_can_ask_for(lake):
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
