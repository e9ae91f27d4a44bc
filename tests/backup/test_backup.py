"""A backup is the lake as of one moment, and has everything that cannot be rebuilt."""

from __future__ import annotations

import pyarrow as pa
import pytest

import floodmark as fm
from backup.stores import ActingStore, content, problems
from backup.worlds import World, open_lake, wrong
from floodmark.errors import BadBackup, NewerData
from floodmark.storage.memory import MemoryStore


@pytest.fixture
def world() -> World:
    return World().build()


def test_backup_is_a_lake_with_the_same_content(world):
    copy = MemoryStore()
    report = world.lake.backup(copy)
    assert content(open_lake(copy)) == content(world.lake)
    assert problems(open_lake(copy)) == []
    assert report.datasets == ("cities", "log", "old", "people", "young")
    assert report.copied_objects == report.objects


def test_backup_leaves_out_what_can_be_rebuilt(world):
    copy = MemoryStore()
    world.lake["people"].to_arrow()
    world.lake.backup(copy)
    kept = {info.key.split("/", 2)[2].rpartition("/")[0] for info in copy.list("datasets")}
    assert kept == {
        "refs",
        "blocks",
        "data",
        "checkpoints",
        "columns",
        "columns/manifests",
        "columns/files",
        "info/transform/made",
        "info/transform/declared",
    }


def test_steps_and_columns_continue_in_a_backup_with_nothing_to_do(world):
    copy = MemoryStore()
    world.lake.backup(copy)
    lake = open_lake(copy)
    before = {dataset.name: dataset.head for dataset in lake}
    assert list(wrong(lake)) == []
    assert {dataset.name: dataset.head for dataset in lake} == before


def test_second_backup_copies_only_what_is_new(world):
    copy = MemoryStore()
    first = world.lake.backup(copy)
    assert world.lake.backup(copy).copied_objects == 0
    world.lake["log"].write(pa.Table.from_pylist([{"text": "more"}]))
    again = world.lake.backup(copy)
    assert (again.copied_objects, again.objects) == (2, first.objects + 2)  # a block and a slice
    assert content(open_lake(copy)) == content(world.lake)


def test_second_backup_does_not_read_old_blocks_again(world):
    copy = ActingStore()
    world.lake.backup(copy)
    world.store.count(("get", "open"))
    world.lake.backup(copy)
    idle = world.store.calls
    for number in range(20):
        world.lake["log"].write(pa.Table.from_pylist([{"text": f"{number}"}]))
    world.lake.backup(copy)
    world.lake["log"].write(pa.Table.from_pylist([{"text": "one more"}]))
    world.store.count(("get", "open"))
    world.lake.backup(copy)
    assert world.store.calls < idle + 20


def test_what_was_purged_or_erased_is_deleted_in_the_backup(world):
    copy = MemoryStore()
    world.lake.backup(copy)
    world.purge_and_run()
    world.lake.backup(copy)
    assert content(open_lake(copy)) == content(world.lake)
    assert problems(open_lake(copy)) == []
    log = world.lake["log"].snapshot()
    kept = {info.name for info in copy.list(f"{log.objects.folder}/data")}
    assert kept == {info.name for info in world.store.list(f"{log.objects.folder}/data")}


def test_dropped_and_renamed_datasets_lose_their_names_in_the_backup(world):
    copy = MemoryStore()
    world.lake.backup(copy)
    world.lake.rename("log", "journal")
    world.lake.drop("cities")
    world.lake.backup(copy)
    assert [dataset.name for dataset in open_lake(copy)] == ["journal", "old", "people", "young"]


def test_object_that_was_lost_or_cut_in_the_backup_is_copied_again(world):
    copy = MemoryStore()
    world.lake.backup(copy)
    lost, cut, *_ = copy.list(f"{world.lake['people'].snapshot().objects.folder}/data")
    copy.delete(lost.key)
    copy.put_derived(cut.key, b"cut")
    assert len(problems(open_lake(copy))) >= 2
    assert world.lake.backup(copy).copied_objects == 2
    assert problems(open_lake(copy)) == []


def test_named_backup_has_the_inputs_and_the_other_outputs_of_the_step(world):
    copy = MemoryStore()
    world.lake.backup(copy, "cities")
    assert [dataset.name for dataset in open_lake(copy)] == ["cities", "old", "people", "young"]
    world.write_and_run()
    world.lake.backup(copy, "log")
    assert [dataset.name for dataset in open_lake(copy)] == ["cities", "log", "old", "people", "young"]
    assert open_lake(copy)["people"].head != world.lake["people"].head
    assert list(wrong(open_lake(copy))) == []


def test_unknown_name_is_refused(world):
    with pytest.raises(fm.UnknownDataset, match="did you mean 'cities'"):
        world.lake.backup(MemoryStore(), "citys")


def test_lake_is_not_overwritten_by_a_backup(world):
    with pytest.raises(BadBackup, match="is a lake, and not a backup"):
        world.lake.backup(World().build().store)


def test_lake_is_not_backed_up_into_itself(tmp_path):
    lake = fm.Lake(tmp_path / "lake")
    lake.create("a")
    with pytest.raises(BadBackup, match="inside the other"):
        lake.backup(tmp_path / "lake" / "backup")


def test_backup_of_an_older_copy_does_not_replace_newer_blocks(world):
    older, copy = MemoryStore(), MemoryStore()
    world.lake.backup(older)
    world.write_and_run()
    world.lake.backup(copy)
    with pytest.raises(NewerData):
        open_lake(older).backup(copy)
    assert content(open_lake(copy)) == content(world.lake)
    open_lake(older).backup(copy, replace=True)
    assert content(open_lake(copy)) == content(open_lake(older))
    assert problems(open_lake(copy)) == []


def test_backup_that_was_written_to_is_not_overwritten(world):
    copy = MemoryStore()
    world.lake.backup(copy)
    open_lake(copy)["log"].write(pa.Table.from_pylist([{"text": "only here"}]))
    assert [one.kind for one in problems(open_lake(copy))] == ["backup"]
    with pytest.raises(NewerData):
        world.lake.backup(copy)


def test_damaged_slice_is_never_backed_up(world):
    objects = world.lake["people"].snapshot().objects
    first = next(world.store.list(f"{objects.folder}/data"))
    data = bytearray(world.store.get(first.key))
    data[len(data) // 2] ^= 1
    world.store.put_derived(first.key, bytes(data))
    with pytest.raises(BadBackup, match="does not match its hash"):
        world.lake.backup(MemoryStore())


@pytest.mark.parametrize("folder", ["blocks", "data", "columns/files"])
def test_missing_object_is_an_error_that_names_it(world, folder):
    objects = world.lake["people"].snapshot().objects
    first, *_ = world.store.list(f"{objects.folder}/{folder}")
    world.store.delete(first.key)
    with pytest.raises(BadBackup, match="was not backed up"):
        world.lake.backup(MemoryStore())


def test_missing_checkpoint_is_an_error(world):
    snapshot = world.lake["old"].snapshot()
    world.store.delete(snapshot.objects.checkpoint_key(snapshot.state.checkpoint))
    with pytest.raises(BadBackup, match="nothing was backed up"):
        world.lake.backup(MemoryStore())
