"""A sweep deletes what no root names and what is old enough, whatever others do meanwhile, and nothing else."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.storage import sweep
from floodmark.storage.memory import MemoryStore
from floodmark.storage.sweep import ROOT_CHECK_INTERVAL, ObjectUsage, collect, find, remove
from maintenance.rivals import age
from storage.garbage_sources import NamingSource, StaticSource

DAY = 86_400.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def put(store: MemoryStore, *names: str, days_ago: float = 30) -> None:
    """Files that are so many days old, together with all that is there."""
    for name in names:
        store.put_derived(f"files/{name}", b"1")
    age(store, days_ago)


def name(store: MemoryStore, *names: str) -> None:
    store.put_derived("root", " ".join(names).encode())


def files(store: MemoryStore) -> list[str]:
    return [info.name for info in store.list("files")]


def week_ago() -> float:
    return time.time() - 7 * DAY


def names_of(garbage: sweep.Garbage) -> list[str]:
    return [info.name for info in garbage.objects]


def test_what_the_root_does_not_name_goes_once_it_is_old(store):
    put(store, "named", "old")
    put(store, "young", days_ago=0)
    name(store, "named")
    found = find(NamingSource(store), week_ago())
    assert names_of(found) == ["old"]
    assert found.bytes == 1
    assert files(store) == ["named", "old", "young"]
    assert remove(found) == found
    assert files(store) == ["named", "young"]


def test_grace_counts_from_the_release_not_from_the_creation(store):
    put(store, "a", "b", days_ago=30)
    name(store)
    released = {"files/a": time.time() - 6 * DAY, "files/b": time.time() - 8 * DAY}
    assert names_of(find(NamingSource(store, released), week_ago())) == ["b"]


def test_an_object_that_was_put_again_after_its_release_is_young(store):
    put(store, "a", days_ago=1)
    name(store)
    assert names_of(find(NamingSource(store, {"files/a": time.time() - 30 * DAY}), week_ago())) == []


def test_purged_objects_go_at_once(store):
    put(store, "a", "b", days_ago=0)
    name(store)
    source = NamingSource(store, {"files/a": time.time()}, frozenset({"files/a"}))
    assert names_of(remove(find(source, week_ago()))) == ["a"]
    assert files(store) == ["b"]


@pytest.mark.parametrize("root", [b"damaged", b"unreadable"])
def test_a_root_that_cannot_be_read_keeps_all(store, root):
    put(store, "a", "b")
    store.put_derived("root", root)
    source = NamingSource(store, purged=frozenset({"files/a"}))
    assert names_of(remove(find(source, week_ago()))) == []
    assert files(store) == ["a", "b"]


def test_a_root_that_becomes_unreadable_stops_the_sweep(store):
    put(store, "a")
    name(store)
    found = find(NamingSource(store), week_ago())
    store.put_derived("root", b"damaged")
    assert names_of(remove(found)) == []


def test_nothing_is_asked_where_nothing_is_listed(store):
    steps = []
    assert find(NamingSource(store, before=steps.append), week_ago()).objects == ()
    assert steps == ["list"]


def test_objects_are_listed_before_the_root_is_read(store):
    """A writer puts and names a file between any two steps: it is never garbage, old as it may look."""
    for step in ("list", "root", "usage"):
        writes = MemoryStore()
        put(writes, "old")
        name(writes)

        def write(now: str, writes: MemoryStore = writes, step: str = step) -> None:
            if now == step:
                put(writes, "new")
                name(writes, "new")

        found = find(NamingSource(writes, before=write), week_ago())
        assert names_of(found) == ["old"], step


def test_an_object_that_is_renewed_between_listing_and_deletion_stays(store):
    put(store, "again", "once")
    name(store)
    found = find(NamingSource(store), week_ago())
    store.put_if_absent("files/again", b"1")
    assert names_of(remove(found)) == ["once"]
    assert files(store) == ["again"]


def test_an_object_that_another_sweep_deleted_is_not_counted(store):
    put(store, "a", "b")
    name(store)
    found = find(NamingSource(store), week_ago())
    store.delete("files/a")
    assert names_of(remove(found)) == ["b"]


def test_nothing_goes_once_the_root_has_moved(store):
    put(store, "a", "b")
    name(store)
    found = find(NamingSource(store), week_ago())
    name(store, "a")
    assert names_of(remove(found)) == []
    assert files(store) == ["a", "b"]
    assert names_of(remove(find(NamingSource(store), week_ago()))) == ["b"]


def test_a_root_that_moves_during_the_deletions_stops_them_at_the_next_look(store):
    count = 2 * ROOT_CHECK_INTERVAL + 10
    put(store, *(f"{n:04}" for n in range(count)))
    name(store)
    looks = []

    def move(step: str) -> None:
        looks.append(step)
        if len(looks) == 2:
            name(store, "0511")

    found = find(NamingSource(store), week_ago())
    removed = remove(replace(found, source=NamingSource(store, before=move)))
    assert names_of(removed) == [f"{n:04}" for n in range(ROOT_CHECK_INTERVAL)]
    assert len(files(store)) == count - ROOT_CHECK_INTERVAL
    assert looks == ["root"] * 2


def test_in_turn_the_search_is_done_again_and_no_turn_is_taken_for_nothing(store):
    put(store, "a", "b")
    name(store)
    turns = []

    class InTurn(NamingSource):
        @contextmanager
        def turn(self):
            turns.append("taken")
            name(store, "a")  # the one who had the turn before
            yield

    assert names_of(collect(InTurn(store), week_ago())) == ["b"]
    assert names_of(collect(InTurn(store), week_ago())) == []
    assert turns == ["taken"]


def test_an_object_can_stay_as_long_as_another_that_is_listed_before_it():
    usage = ObjectUsage(lambda info, going: info.key == "note" and "file" not in going)
    assert find(StaticSource({"file": 9.0, "note": 1.0}, usage), 5.0).keys == []
    assert find(StaticSource({"file": 1.0, "note": 1.0}, usage), 5.0).keys == ["file", "note"]


keys = st.sampled_from("abcdef")
moments = st.floats(0, 10)


@given(st.dictionaries(keys, moments), st.sets(keys), st.dictionaries(keys, moments), st.sets(keys))
def test_garbage_is_what_is_purged_or_neither_young_nor_lately_released_nor_in_use(modified, named, released, purged):
    found = find(StaticSource(modified, ObjectUsage(lambda info, _: info.key in named, released, purged)), 5.0)
    expected = [
        key
        for key in modified
        if key in purged or (key not in named and modified[key] < 5 and released.get(key, 0) < 5)
    ]
    assert found.keys == expected
