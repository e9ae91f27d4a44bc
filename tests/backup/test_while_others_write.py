"""A backup while others write, run steps, purge and drop is the lake as of one moment, or an error."""

from __future__ import annotations

import pytest

import floodmark as fm
from backup.stores import READS, ActingStore, content, copied, problems
from backup.worlds import World, ahead, open_lake, wrong
from floodmark.backup.snapshot import order_levels
from floodmark.maintenance.gc import collect_garbage
from floodmark.storage.memory import MemoryStore
from profiles import sample

ACTS = {
    "write": World.write,
    "write and run": World.write_and_run,
    "purge and run": World.purge_and_run,
    "rename": lambda world: world.lake.rename("log", "journal"),
    "drop": lambda world: world.lake.drop("log"),
    "fold": lambda world: world.lake["people"].fold(),
    "gc": lambda world: list(collect_garbage(world.lake)),
    "new column": lambda world: world.lake["people"].drop_column("twice"),
}


def world_of(store: ActingStore) -> World:
    world = World(store)
    world.batches = 2
    return world


def reads_of_a_backup(template: ActingStore) -> int:
    store = copied(template)
    lake = open_lake(store)
    store.count(READS)
    lake.backup(MemoryStore())
    return store.calls


@pytest.mark.soak
@pytest.mark.parametrize("name", ACTS)
def test_backup_is_consistent_whenever_another_process_acts(name):
    template = World().build().store
    for nth in sample(range(reads_of_a_backup(template)), 12):
        world, copy = world_of(copied(template)), MemoryStore()
        world.store.before(nth, lambda world=world: ACTS[name](world), READS)
        world.lake.backup(copy)
        assert problems(open_lake(copy)) == [], nth
        assert list(ahead(open_lake(copy))) == [], nth
        heads = {dataset.name: {entry.hash for entry in dataset.log()} for dataset in world.lake}
        for dataset in open_lake(copy):
            assert dataset.head in heads.get(dataset.name, {dataset.head})
        if name == "new column":
            continue
        run = open_lake(copy)
        assert not list(wrong(run)), nth


def test_readers_are_read_before_their_inputs():
    levels = order_levels({"report": {"totals"}, "totals": {"orders", "rates"}, "orders": set(), "rates": {"orders"}})
    assert levels == [["report"], ["totals"], ["rates"], ["orders"]]


def test_circle_is_read_in_some_order():
    levels = order_levels({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})
    assert sorted(one for level in levels for one in level) == ["a", "b", "c", "d"]
    order = {one: number for number, level in enumerate(levels) for one in level}
    assert sum(order[one] >= order[other] for one, other in ("ab", "bc", "ca")) == 1


def test_lake_that_never_rests_is_backed_up():
    """The step runs again before every 20th read: the backup follows, and is as of one moment."""
    world, copy = World().build(), MemoryStore()

    def run_again():
        world.write_and_run()
        world.store.before(20, run_again, READS)

    world.store.before(20, run_again, READS)
    with_writers = world.lake.backup(copy)
    world.store.count(())
    assert set(with_writers.datasets) == {"cities", "log", "old", "people", "young"}
    assert problems(open_lake(copy)) == []
    assert list(ahead(open_lake(copy))) == []
    assert not list(wrong(open_lake(copy)))


def test_two_backups_into_one_place_end_with_one_of_them():
    world, copy = World().build(), ActingStore()
    world.lake.backup(copy)
    world.write_and_run()
    other = copied(copy)
    fm.Lake(world.store).backup(other)
    manifest = other.get("backup/manifest")
    copy.before(0, lambda: copy.put_derived("backup/manifest", manifest), ("compare_and_swap",))
    with pytest.raises(fm.CommitConflict, match="another backup"):
        world.lake.backup(copy)
    world.lake.backup(copy)
    assert content(open_lake(copy)) == content(world.lake)
