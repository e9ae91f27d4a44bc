"""A restore puts datasets back as they were, and refuses to remove what only the lake has."""

from __future__ import annotations

import pyarrow as pa
import pytest

import floodmark as fm
from backup.stores import content, copied, problems
from backup.worlds import World, doubled, open_lake, wrong
from floodmark.errors import BadBackup, NewerData
from floodmark.storage.memory import MemoryStore


@pytest.fixture
def world() -> World:
    return World().build()


@pytest.fixture
def backup(world: World) -> MemoryStore:
    store = MemoryStore()
    world.lake.backup(store)
    return store


def test_restore_into_an_empty_lake_gives_the_same_lake(world, backup):
    lake = open_lake(MemoryStore())
    plan = lake.restore(backup)
    assert {one.direction for one in plan.datasets} == {"new"}
    assert content(lake) == content(world.lake)
    assert problems(lake) == []
    assert not list(wrong(lake))


def test_restore_of_an_unchanged_lake_changes_nothing(world, backup):
    before = content(world.lake)
    assert {one.direction for one in world.lake.restore(backup).datasets} == {"same"}
    assert content(world.lake) == before


def test_restore_over_newer_data_is_refused_without_replace(world, backup):
    world.write_and_run()
    before = content(world.lake)
    with pytest.raises(NewerData, match=r"\d+ newer records of people"):
        world.lake.restore(backup)
    assert content(world.lake) == before


def test_restore_over_newer_data_goes_back(world, backup):
    before = content(world.lake)
    world.write_and_run()
    world.lake.restore(backup, replace=True)
    assert content(world.lake) == before
    assert problems(world.lake) == []
    world.write_and_run()
    assert not list(wrong(world.lake))


def test_restore_of_an_older_lake_goes_forward_without_replace(world, backup):
    older = copied(world.store)
    world.write_and_run()
    world.lake.backup(backup)
    plan = open_lake(older).restore(backup)
    assert "forward" in {one.direction for one in plan.datasets}
    assert content(open_lake(older)) == content(world.lake)


def test_dropped_dataset_comes_back(world, backup):
    before = content(world.lake)
    world.lake.drop("log")
    assert [(one.name, one.direction) for one in world.lake.restore(backup, "log").datasets] == [("log", "new")]
    assert content(world.lake) == before


def test_renamed_dataset_gets_its_name_back(world, backup):
    before = content(world.lake)
    world.lake.rename("log", "journal")
    world.lake.restore(backup, "log")
    assert content(world.lake) == before


def test_dataset_that_was_created_again_under_the_name_is_replaced_only_on_request(world, backup):
    before = content(world.lake)
    world.lake.drop("log")
    other = world.lake.create("log").id
    with pytest.raises(NewerData, match="log is another dataset there"):
        world.lake.restore(backup, "log")
    plan = world.lake.restore(backup, "log", replace=True)
    assert plan.datasets[0].replaces_dataset == other
    assert content(world.lake) == before


def test_damaged_files_of_the_lake_are_replaced(world, backup):
    before = content(world.lake)
    objects = world.lake["people"].snapshot().objects
    for folder in ("blocks", "data", "columns/files"):
        first, *_ = world.store.list(f"{objects.folder}/{folder}")
        world.store.put_derived(first.key, b"x" * first.size)
    world.lake.restore(backup, replace=True)
    assert content(open_lake(world.store)) == before
    assert problems(open_lake(world.store)) == []


def test_damaged_name_and_head_are_replaced(world, backup):
    before = content(world.lake)
    objects = world.lake["log"].snapshot().objects
    world.store.put_derived("names/log", b"")
    world.store.put_derived(objects.head_key, b"")
    with pytest.raises(NewerData, match="log, whose newest blocks cannot be read"):
        world.lake.restore(backup)
    world.lake.restore(backup, replace=True)
    assert content(open_lake(world.store)) == before


def test_plan_says_what_would_go_and_what_has_to_catch_up(world, backup):
    world.write_and_run()
    before = content(world.lake)
    plan = world.lake.plan_restore(backup, "people")
    assert [(one.name, one.direction, one.lost_records) for one in plan.datasets] == [("people", "back", 9)]
    assert plan.readers == ("cities", "old", "young")
    assert plan.unaffected == ("cities", "log", "old", "young")
    assert content(world.lake) == before


def test_plan_counts_erasures_that_would_be_undone(world, backup):
    world.lake["log"].write(pa.Table.from_pylist([{"text": "secret"}]))
    lake = world.lake
    lake.create("keyed", key="id").write(pa.Table.from_pylist([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]))
    lake.backup(backup)
    lake.erase("keyed", [1])
    (one,) = lake.plan_restore(backup, "keyed").datasets
    assert one.lost_erasures == 1


def test_columns_that_only_the_lake_has_are_replaced_only_on_request(world, backup):
    world.lake["people"].add_column("again", doubled, ["age"])
    with pytest.raises(NewerData, match="computed columns of people"):
        world.lake.restore(backup)
    world.lake.restore(backup, replace=True)
    assert world.lake["people"].to_arrow().column_names == ["id", "city", "age", "twice"]
    assert not list(wrong(world.lake))


def test_dropped_column_comes_back(world, backup):
    before = content(world.lake)
    world.lake["people"].drop_column("twice")
    world.lake.restore(backup)
    assert content(world.lake) == before


def test_column_that_was_added_after_the_backup_goes(world):
    backup = MemoryStore()
    world.lake["people"].drop_column("twice")
    lake = open_lake(MemoryStore())
    lake.create("plain").write(pa.Table.from_pylist([{"age": 1}]))
    lake.backup(backup)
    lake["plain"].add_column("twice", doubled, ["age"])
    lake["plain"].backfill("twice")
    lake.restore(backup, replace=True)
    assert lake["plain"].to_arrow().column_names == ["age"]
    assert problems(lake) == []


def test_damaged_backup_is_refused_before_anything_changes(world, backup):
    world.write_and_run()
    before = content(world.lake)
    key = next(backup.list(f"{world.lake['people'].snapshot().objects.folder}/data")).key
    data = backup.get(key)
    backup.delete(key)
    with pytest.raises(BadBackup, match="missing or incomplete"):
        world.lake.restore(backup, replace=True)
    backup.put_derived(key, bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(BadBackup, match="does not match its hash"):
        world.lake.restore(backup, replace=True)
    assert content(world.lake) == before


def test_folder_that_is_no_backup_is_refused(world):
    with pytest.raises(BadBackup, match="not a finished backup"):
        world.lake.restore(MemoryStore())


def test_unknown_dataset_of_a_backup_is_refused(world, backup):
    with pytest.raises(fm.UnknownDataset, match="did you mean 'people'"):
        world.lake.restore(backup, "peeple")


def test_restore_resets_what_this_machine_has_seen(tmp_path, world):
    lake = fm.Lake(tmp_path / "lake")
    lake.create("a").write(pa.Table.from_pylist([{"x": 1}]))
    lake.backup(tmp_path / "backup")
    lake["a"].write(pa.Table.from_pylist([{"x": 2}]))
    lake.restore(tmp_path / "backup", replace=True)
    assert lake["a"].verify().ok
