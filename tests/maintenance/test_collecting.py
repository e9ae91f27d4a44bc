"""A collection removes all that is of no use and old, and nothing else; every read gives the same before and after."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.engine.session import Runtime
from floodmark.errors import StorageError
from floodmark.lake import Lake
from floodmark.maintenance import gc
from floodmark.maintenance.gc import FailedCollection
from floodmark.rows import key_index_loader as key_index
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from maintenance.rivals import age
from maintenance.worlds import DAY, Dying, Killed, World, collected, everything, found, needed, stored
from profiles import sample, seeds


@fm.udf(returns="int64", version="1")
def double(n: int) -> int:
    return 2 * n


def people(ids: list[int], city: str) -> pa.Table:
    return pa.table({"id": ids, "city": [city] * len(ids), "n": ids})


def ticks(times: list[int]) -> pa.Table:
    return pa.table({"at": pa.array([t * 60_000_000 for t in times], pa.timestamp("us", "UTC"))})


def long_ago(world: World, days: float = 30) -> None:
    """A lake that has had most things happen to it, so many days ago."""
    with world.days_ago(days) as lake:
        dataset = lake.create("people", key="id")
        for city in ("Oslo", "Rome", "Bonn"):
            dataset.write(people(list(range(200)), city))
        dataset.fold()
        dataset.write(people(list(range(100)), "Graz"))
        dataset.write(people(list(range(200)), "Linz"))
        dataset.fold()
        dataset.write(people(list(range(200)), "Ulm"))
        dataset.add_column("twice", double)
        dataset.backfill("twice", checkpoint_size=50, max_checkpoint_size=50)
        late = lake.create("ticks", event_time="at", partition_by="day", row_group_size=4, late_merge="always")
        for times in ([1, 2, 3, 4, 9, 10], [2, 3], [5, 1]):
            late.write(ticks(times))
        lake.create("empty")
        lose_a_race(lake)


def lose_a_race(lake: Lake) -> None:
    """Slices and a block of a write that did not happen."""
    objects = lake["people"].snapshot().objects
    objects.store.put_if_absent(f"{objects.folder}/data/f1620{'ab' * 32}", b"a slice that no block names")
    objects.store.put_if_absent(f"{objects.folder}/blocks/f1620{'cd' * 32}", b"a block that is on no chain")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "lake")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("old") / "lake")
    long_ago(world)
    return world


@pytest.fixture
def old_world(old: World, tmp_path: Path) -> World:
    """A lake that has had most things happen to it, a month ago."""
    return old.copied(tmp_path / "lake")


@pytest.mark.slow
def test_everything_reads_the_same_before_and_after(old_world: World):
    world = old_world
    lake = world.lake()
    before = everything(lake)
    gone = collected(lake)
    assert everything(world.lake()) == before
    kinds = {kind for _, kind in gone}
    assert kinds == {
        "checkpoints",
        "files of columns and timelines",
        "folded files",
        "key index",
        "copies of rows",
        "slices and blocks",
    }


def test_what_is_left_of_old_things_is_what_the_chain_needs(old_world: World):
    world = old_world
    lake = world.lake()
    before = {(d.name, folder): stored(d, folder) for d in lake.datasets() for folder in needed(d)}
    collected(lake)
    for dataset in lake.datasets():
        for folder, wanted in needed(dataset).items():
            assert stored(dataset, folder) == wanted & before[dataset.name, folder], (dataset.name, folder)
        assert needed(dataset)["data"] <= before[dataset.name, "data"]
    dataset = lake["people"]
    index = key_index.load(dataset.snapshot(), {})
    files = {key.rpartition("/")[2] for key in stored(dataset, "info/keys/files")}
    assert files == index.manifest.names
    assert len(stored(dataset, "info/keys/manifests")) == 1


@pytest.mark.slow
def test_nothing_that_is_younger_than_a_week_goes(world: World):
    long_ago(world, days=6.9)
    before = world.files()
    assert collected(world.lake()) == {}
    assert before.items() <= world.files().items()  # an index that was not there yet is made by looking


def test_the_same_goes_that_a_dry_run_says(old_world: World):
    world = old_world
    before = world.files()
    said = found(world.lake())
    assert {path for path in before if "/info/index/" not in path} <= set(world.files())
    assert collected(world.lake()) == said
    assert collected(world.lake()) == {}


def test_what_was_replaced_lately_stays_though_it_was_made_long_ago(old_world: World):
    world = old_world
    collected(world.lake())
    with world.days_ago(1) as lake:
        lake["people"].fold()
        lake["people"].write(people(list(range(200)), "Wien"))  # a new index, and a slice that is lifeless since
    before = world.files()
    gone = collected(world.lake())
    assert set(before) - set(world.files()) == set()
    assert gone == {}


def test_a_dataset_that_is_named_is_looked_through_alone(old_world: World):
    world = old_world
    gone = collected(world.lake(), "ticks")
    assert {dataset for dataset, _ in gone} == {"ticks"}
    with pytest.raises(fm.FloodmarkError, match="there is no dataset 'tick'"):
        collected(world.lake(), "people", "tick")


def test_a_damaged_dataset_does_not_keep_the_others_from_being_collected(old_world: World):
    world = old_world
    lake = world.lake()
    head = world.folder / lake["people"].snapshot().objects.head_key
    head.write_bytes(b"no hash")
    results = list(gc.collect_garbage(lake))
    failed = {one.dataset for one in results if isinstance(one, FailedCollection)}
    assert failed >= {"people"}
    assert "ticks" in {one.dataset for one in results if not isinstance(one, FailedCollection)}


def test_a_clock_that_is_days_ahead_removes_nothing(world: World):
    long_ago(world, days=0)
    before = world.files()
    world.now += 30 * DAY
    with pytest.raises(StorageError, match="hours ahead"):
        collected(world.lake())
    assert world.files() == before


def test_a_manifest_that_cannot_be_read_keeps_what_it_names(old_world: World):
    world = old_world
    people_now = world.lake()["people"]
    objects = people_now.snapshot().objects
    (world.folder / objects.fold_manifest_key).write_bytes(b"torn")
    (newest,) = [max(stored(people_now, "info/keys/manifests"))]
    (world.folder / newest).write_bytes(b"torn")
    before = stored(people_now, "info/fold/files"), stored(people_now, "info/keys/files")
    gone = {kind for name, kind in found(world.lake(), "people")}
    assert not gone & {"folded files"}
    collected(world.lake(), "people")
    assert stored(people_now, "info/fold/files") == before[0]
    assert sorted(people_now.to_arrow().column("city").unique().to_pylist()) == ["Ulm"]


@pytest.mark.slow
@pytest.mark.soak
def test_a_crash_in_the_middle_harms_nothing_and_the_next_one_goes_on(old_world: World):
    world = old_world
    before = everything(world.lake())
    done = world.copied(world.folder.with_name("done"))
    total = sum(collected(done.lake()).values())
    for unlinks in sample(range(total), 3):
        other = world.copied(world.folder.with_name(f"after-{unlinks}"))
        with pytest.raises(Killed):
            collected(other.lake(LocalStore(other.folder, Dying(unlinks))))
        assert everything(other.lake()) == before
        collected(other.lake())
        assert set(other.files()) == set(done.files())


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(3))
def test_any_history_reads_the_same_and_only_old_things_go(world: World, seed: int):
    chance = random.Random(seed)
    days = sorted((chance.uniform(0, 20) for _ in range(12)), reverse=True)
    with world.days_ago(30) as lake:
        lake.create("people", key="id")
        lake.create("ticks", event_time="at", partition_by="day", row_group_size=4)
    for day in days:
        with world.days_ago(day) as lake:
            some = chance.sample(range(40), chance.randint(1, 40))
            match chance.randrange(5):
                case 0 | 1:
                    lake["people"].write(people(some, f"city {chance.randrange(3)}"))
                case 2:
                    lake["ticks"].write(ticks(some))
                case 3:
                    lake["people"].write(people([1], "Bern"))
                    lake["people"].fold()
                case 4:
                    lose_a_race(lake)
    before, files = everything(world.lake()), world.files()
    collected(world.lake())
    after = world.files()
    gone = {path: status for path, status in files.items() if path not in after}
    assert [path for path, (_, modified) in gone.items() if modified >= world.now - 7 * DAY] == []
    assert everything(world.lake()) == before


def test_a_store_that_is_no_folder_is_collected_alike():
    store = MemoryStore()
    month_ago = Runtime(clock=lambda: time.time_ns() - 30 * DAY * 10**9)
    dataset = Lake(store, runtime=month_ago).create("people", key="id")
    for city in ("Oslo", "Rome", "Bonn"):
        dataset.write(people(list(range(100)), city))
        dataset.fold()
    lose_a_race(Lake(store))
    age(store, days=30)
    before = everything(Lake(store))
    with pytest.raises(StorageError):
        collected(Lake(store, runtime=Runtime(clock=lambda: time.time_ns() + 30 * DAY * 10**9)))
    gone = collected(Lake(store))
    assert {kind for _, kind in gone} >= {"folded files", "key index", "slices and blocks"}
    assert everything(Lake(store)) == before
    assert [info.key for info in store.list("runs")] == []


def test_what_a_killed_purge_left_goes_and_can_be_verified(world: World):
    with world.days_ago(20) as lake:
        dataset = lake.create("log")
        for n in range(3):
            dataset.write(pa.table({"n": [n]}))
        first = dataset.snapshot().objects
        kept = {info.key: first.store.get(info.key) for info in first.store.list(f"{first.folder}/data")}
        dataset.purge(2)
        for key, data in kept.items():
            first.store.put_if_absent(key, data)  # as if it had been killed before it removed them
    assert collected(world.lake()) == {("log", "slices and blocks"): 2}
    assert world.lake()["log"].verify().ok
    assert world.lake()["log"].to_arrow().column("n").to_pylist() == [2]


def test_what_a_running_writer_has_put_and_not_named_yet_stays(old_world: World):
    world = old_world
    collected(world.lake())

    def put(lake: Lake) -> list[str]:
        folder = lake["people"].snapshot().objects.folder
        places = ("info/fold/files", "info/keys/files", "info/rows", "data", "blocks")
        keys = [f"{folder}/{place}/not-named-yet" for place in places]
        for key in keys:
            lake.store.put_derived(key, b"1")
        return keys

    with world.days_ago(6.9) as lake:
        keys = put(lake)
    assert collected(world.lake()) == {}
    with world.days_ago(7.1) as lake:
        put(lake)
    collected(world.lake())
    assert [key for key in keys if (world.folder / key).exists()] == []
