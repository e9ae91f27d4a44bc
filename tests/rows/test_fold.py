"""A folded copy of the living rows reads like the slices, is used, and can be lost or damaged without harm."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodmark as fm
from floodmark.rows import fold as folding
from floodmark.rows.fold import FoldRule
from floodmark.rows.live_rows import FoldedFile, FoldManifest, decode_manifest, encode_manifest, read_manifest
from floodmark.storage.document import DamagedDocument
from floodmark.storage.memory import CountingStore, MemoryStore
from ledger.worlds import Clock, InterleavingStore, keys, numbers
from limits import set_limit
from rows.current_worlds import lived_in, people, rows

DAY = 86_400


@pytest.fixture
def lake(tmp_path, clock):
    return fm.Lake(tmp_path / "lake", runtime=fm.Runtime(clock=clock, fold_at=None))


@pytest.fixture
def dataset(lake):
    return lived_in(lake.create("p", key=["id"], merge="upsert"), seed=3, writes=10)


def files(dataset):
    return dataset.scan().selection.files


def folded_files(dataset):
    return keys(dataset, "info/fold/files")


def test_fold_changes_how_rows_are_read_and_nothing_else(dataset):
    before, head, records = dataset.to_arrow(), dataset.head, dataset.changes_arrow()
    done = dataset.fold()
    assert (done.files, done.rows, done.dead) == (1, before.num_rows, dataset.last_offset + 1 - before.num_rows)
    assert [f.key for f in files(dataset)] == folded_files(dataset)
    assert dataset.to_arrow().equals(before)
    assert dataset.scan().to_table().num_rows == dataset.count() == before.num_rows
    assert dataset.changes_arrow().equals(records)
    assert dataset.head == head
    assert dataset.verify().ok
    assert list(dataset.snapshot().objects.store.staging().iterdir()) == []


def test_what_died_since_the_fold_is_masked_and_what_came_is_read(dataset):
    dataset.fold()
    lived_in(dataset, seed=4, writes=4)
    assert folded_files(dataset)[0] in [f.key for f in files(dataset)]
    assert dataset.to_arrow().to_pylist() == rows(dataset)


def test_folding_again_does_nothing_when_nothing_happened(dataset):
    dataset.fold()
    before = folded_files(dataset)
    assert dataset.fold() == folding.FoldReport(read=0, files=0, rows=0, bytes=0, dead=0)
    assert folded_files(dataset) == before


def test_large_clean_slices_are_not_copied(lake, monkeypatch):
    monkeypatch.setattr(folding.FoldRule, "is_small", lambda self, rows, size: rows < 50)
    dataset = lake.create("p", key=["id"], merge="upsert")
    dataset.write(people(range(100), "large"))
    dataset.write(people(range(100, 200), "dirty"))
    dataset.write(people([150], "x"))
    done = dataset.fold()
    assert done.read == 2  # the dirty slice and the small one behind it
    assert [f.start for f in read_manifest(dataset.snapshot().objects).files] == [100]
    assert dataset.to_arrow().to_pylist() == rows(dataset)


def test_small_slices_of_an_append_dataset_become_one_file(lake):
    dataset = lake.create("d")
    for i in range(20):
        dataset.write(numbers(10 * i, 10 * i + 10))
    dataset.fold()
    assert len(files(dataset)) == 1
    assert dataset.to_arrow().column("n").to_pylist() == list(range(200))
    assert dataset.to_arrow(as_of=44).num_rows == 45
    dataset.write(numbers(200, 210))
    assert len(files(dataset)) == 2
    assert dataset.to_arrow().column("n").to_pylist() == list(range(210))


def test_folded_reads_ask_the_store_for_few_objects(clock):
    store = CountingStore(MemoryStore())
    dataset = fm.Lake(store, runtime=fm.Runtime(clock=clock, fold_at=None)).create("d")
    for i in range(30):
        dataset.write(numbers(i, i + 1))
    dataset.fold()
    dataset.snapshot()
    before = store.counts
    assert dataset.to_arrow().num_rows == 30
    assert (store.counts - before).reads < 12


def test_column_added_after_the_fold_is_null_in_folded_rows(dataset):
    dataset.fold()
    dataset.evolve({"w": "int64"})
    assert dataset.to_arrow().column("w").null_count == dataset.count()
    dataset.write(people([1, 999], "n").append_column("w", pa.array([5, 6])))
    assert dataset.to_arrow().to_pylist() == rows(dataset)
    dataset.fold()
    assert dataset.to_arrow().to_pylist() == rows(dataset)


def test_dataset_of_dead_records_only_needs_no_file(lake):
    dataset = lake.create("p", key=["id"], merge="upsert")
    dataset.write(people(range(5), "a"))
    dataset.delete(list(range(5)))
    assert dataset.fold().files == 0
    assert folded_files(dataset) == []
    assert (dataset.to_arrow().num_rows, dataset.count()) == (0, 0)
    dataset.write(people([1], "b"))
    assert dataset.to_arrow().to_pylist() == rows(dataset)
    dataset.fold()
    assert dataset.to_arrow().to_pylist() == rows(dataset)


def test_dataset_without_records_folds_to_nothing(lake):
    dataset = lake.create("d", schema={"n": "int64"})
    assert dataset.fold().files == 0
    assert dataset.to_arrow().num_rows == 0


def test_slices_of_dead_records_only_are_not_read(lake):
    dataset = lake.create("p", key=["id"], merge="upsert")
    dataset.write(people(range(5), "a"))
    dataset.write(people(range(5, 8), "b"))
    dataset.delete(list(range(5)))
    assert [(f.start, f.end) for f in files(dataset)] == [(5, 8)]


# What is lost or damaged


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["missing file", "short file", "no manifest", "torn manifest", "flipped manifest"])
def test_slices_are_read_when_the_fold_is_of_no_use(dataset, harm):
    dataset.fold()
    objects = dataset.snapshot().objects
    store, manifest, [file] = objects.store, objects.fold_manifest_key, folded_files(dataset)
    data = store.get(manifest)
    match harm:
        case "missing file":
            store.delete(file)
        case "short file":
            store.local_path(file).chmod(0o644)
            store.local_path(file).write_bytes(b"PAR1")
        case "no manifest":
            store.delete(manifest)
        case "torn manifest":
            store.put_derived(manifest, data[:-40])
        case "flipped manifest":
            store.put_derived(manifest, data.replace(b'"rows": ', b'"rows": 1', 1))
    assert dataset.to_arrow().to_pylist() == rows(dataset)
    dataset.fold()
    assert dataset.to_arrow().to_pylist() == rows(dataset)


def test_verify_names_a_folded_file_that_was_changed(dataset):
    dataset.fold()
    store, [file] = dataset.snapshot().objects.store, folded_files(dataset)
    path = store.local_path(file)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))
    [problem] = dataset.verify().problems
    assert (problem.kind, problem.object) == ("fold", file)
    store.delete(file)
    assert dataset.verify().ok


def test_fold_of_another_chain_is_not_believed(lake, clock):
    """A folder that was put back from a backup has other blocks for the same offsets."""
    dataset = lake.create("p", key=["id"], merge="upsert")
    other = lake.create("q", key=["id"], merge="upsert")
    for made, tag in ((dataset, "a"), (other, "b")):
        made.write(people(range(5), tag))
        made.write(people(range(3), tag + tag))
    other.fold()
    ours, theirs = dataset.snapshot().objects, other.snapshot().objects
    ours.store.put_derived(ours.fold_manifest_key, theirs.store.get(theirs.fold_manifest_key))
    [file] = read_manifest(theirs).files
    ours.store.put_derived(file.key(ours), theirs.store.get(file.key(theirs)))
    assert dataset.to_arrow().to_pylist() == rows(dataset)


def test_manifest_survives_writing_and_reading():
    file = FoldedFile(3, 9, 4, 100, 2, "ab" * 32, 10, 7, 12, "cd" * 32)
    manifest = FoldManifest((file,)).with_files([FoldedFile(0, 4, 4, 100, 1, "ef" * 32, 10, 7, 12, "cd" * 32)], now=5)
    assert [f.digest for f in manifest.files] == ["ef" * 32]
    assert [r.digest for r in manifest.retired] == ["ab" * 32]
    assert decode_manifest(encode_manifest(manifest), "manifest") == manifest
    for harm in (encode_manifest(manifest)[:-1], encode_manifest(manifest)[1:], b""):
        with pytest.raises(DamagedDocument):
            decode_manifest(harm, "manifest")


# What goes, and when


def test_replaced_files_stay_for_a_week(lake, dataset, clock):
    dataset.fold()
    [first] = folded_files(dataset)
    dataset.write(people(range(7), "later"))
    dataset.fold()
    [second] = [key for key in folded_files(dataset) if key != first]
    clock.now += 8 * 365 * DAY * 10**9  # long after the files' own dates
    dataset.write(people([1], "once more"))
    dataset.fold()
    assert first not in folded_files(dataset)
    assert second in folded_files(dataset)  # replaced just now, however old it is
    assert dataset.to_arrow().to_pylist() == rows(dataset)


@pytest.mark.parametrize("harm", [None, "the manifest is lost"])
def test_purge_takes_the_folded_copies_along(dataset, harm):
    dataset.fold()
    dataset.write(people(range(7), "later"))
    dataset.fold()
    assert len(folded_files(dataset)) == 2
    if harm:
        dataset.snapshot().objects.store.delete(dataset.snapshot().objects.fold_manifest_key)
    dataset.purge(before=10**6)
    assert folded_files(dataset) == []
    assert read_manifest(dataset.snapshot().objects).files == ()


def test_purge_inside_a_folded_file_leaves_the_newer_slices(lake):
    dataset = lake.create("d")
    for i in range(4):
        dataset.write(numbers(i, i + 1))
    dataset.fold()
    dataset.purge(before=2)
    assert folded_files(dataset) == []
    assert dataset.to_arrow().column("n").to_pylist() == [2, 3]
    dataset.fold()
    assert len(files(dataset)) == 1
    assert dataset.to_arrow().column("n").to_pylist() == [2, 3]


@pytest.fixture
def racing_lake(clock):
    return fm.Lake(InterleavingStore(), runtime=fm.Runtime(clock=clock, fold_at=None))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_purge_during_a_fold_leaves_no_copy(racing_lake, moment):
    dataset = racing_lake.create("d")
    for i in range(4):
        dataset.write(numbers(i, i + 1))
    racing_lake.store.at(f"{moment} put_derived_file", lambda: racing_lake["d"].purge(before=2), "/info/fold/")
    dataset.fold()
    assert folded_files(dataset) == []
    assert racing_lake["d"].to_arrow().column("n").to_pylist() == [2, 3]


def test_two_folds_at_once_lose_nothing(racing_lake):
    dataset = lived_in(racing_lake.create("p", key=["id"], merge="upsert"), seed=3, writes=10)

    def overtake():
        racing_lake["p"].write(people(range(9), "meanwhile"))
        racing_lake["p"].fold()

    racing_lake.store.at("after put_derived_file", overtake, "/info/fold/files/")
    dataset.fold()
    assert dataset.to_arrow().to_pylist() == rows(dataset)
    dataset.fold()
    assert len(files(dataset)) == 1
    assert dataset.to_arrow().to_pylist() == rows(dataset)


def test_reader_that_began_before_a_fold_reads_on(dataset):
    dataset.fold()
    dataset.write(people(range(9), "later"))
    began, expected = dataset.to_batches(), rows(dataset)
    dataset.fold()
    assert began.read_all().to_pylist() == expected


# By itself


def automatic(tmp_path, fold_at):
    return fm.Lake(tmp_path / "lake", runtime=fm.Runtime(clock=Clock(), fold_at=fold_at))


def test_fold_happens_by_itself_when_enough_records_are_dead(tmp_path, monkeypatch):
    set_limit(monkeypatch, "fold.worth_rows", 10)
    dataset = automatic(tmp_path, 0.10).create("p", key=["id"], merge="upsert")
    dataset.write(people(range(1000), "a"))
    dataset.write(people(range(50), "b"))  # 100 of 1100 are dead
    assert folded_files(dataset) == []
    dataset.write(people(range(50, 100), "c"))  # 200 of 1200
    assert len(folded_files(dataset)) == 1
    assert dataset.to_arrow().to_pylist() == rows(dataset)
    dataset.write(people(range(20), "d"))  # only 40 since
    assert len(folded_files(dataset)) == 1
    dataset.write(people(range(80), "e"))
    assert len(folded_files(dataset)) == 2
    assert dataset.to_arrow().to_pylist() == rows(dataset)


@pytest.mark.parametrize("fold_at", [None, 0.9])
def test_fold_does_not_happen_by_itself_when_it_should_not(tmp_path, monkeypatch, fold_at):
    set_limit(monkeypatch, "fold.worth_rows", 10)
    dataset = automatic(tmp_path, fold_at).create("p", key=["id"], merge="upsert")
    dataset.write(people(range(100), "a"))
    dataset.write(people(range(100), "b"))
    assert folded_files(dataset) == []


def test_many_small_slices_are_folded_by_themselves(tmp_path, monkeypatch):
    set_limit(monkeypatch, "fold.small_slices", 5)
    dataset = automatic(tmp_path, 0.10).create("d")
    for i in range(12):
        dataset.write(numbers(i, i + 1))
    assert len(files(dataset)) == 3  # two folds of five, the second of the first's file too, and two slices since
    assert dataset.to_arrow().column("n").to_pylist() == list(range(12))


class NoRoomForFolds(MemoryStore):
    """A store whose disk is full when a fold writes."""

    def put_derived_file(self, key, path):
        if "/info/fold/files/" in key:
            raise OSError("no room")
        super().put_derived_file(key, path)


def test_write_stands_when_folding_fails(monkeypatch, caplog):
    set_limit(monkeypatch, "fold.worth_rows", 1)
    lake = fm.Lake(NoRoomForFolds(), runtime=fm.Runtime(clock=Clock(), fold_at=0.01))
    dataset = lake.create("p", key=["id"], merge="upsert")
    dataset.write(people(range(10), "a"))
    assert dataset.write(people(range(5), "b")).changed == 5
    assert "not folded" in caplog.text
    assert dataset.to_arrow().to_pylist() == rows(dataset)


def test_rows_are_written_in_row_groups_whatever_the_slices(lake, monkeypatch):
    set_limit(monkeypatch, "fold.row_group_rows", 7)
    dataset = lake.create("d")
    for i in range(0, 40, 5):
        dataset.write(numbers(i, i + 5))
    dataset.fold()
    [file] = files(dataset)
    footer = pq.read_metadata(dataset.snapshot().objects.store.local_path(file.key))
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [7, 7, 7, 7, 7, 5]
    assert dataset.to_arrow().column("n").to_pylist() == list(range(40))


def test_targets_are_large():
    assert FoldRule().target_bytes == 128 << 20
    assert FoldRule().is_small(100, 4000)
    assert not FoldRule().is_small(1 << 20, 4000)
