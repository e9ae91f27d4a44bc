"""A dataset has one name, a plain path segment; who finds it taken or misspelt is told."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from threading import Barrier, Thread

import pytest

import floodmark as fm
from floodmark.chain.ids import DatasetId
from floodmark.errors import BadName, DatasetExists, SwapUnknown, UnknownDataset
from floodmark.ledger import names
from floodmark.ledger.names import DamagedName
from floodmark.storage.memory import MemoryStore
from ledger.worlds import numbers

BAD = ["../x", "a/b", "", ".", "..", ".hidden", "-x", "a b", "a\nb", "trips\n", "ü", "a" * 101, "a\\b", "a\0b", None, 7]


@pytest.mark.parametrize("name", BAD, ids=repr)
def test_name_that_is_not_one_plain_path_segment_is_refused(lake, name):
    lake.create("trips")
    before = list(lake.store.list(""))
    for use in (
        lake.create,
        lake.__getitem__,
        lake.drop,
        lambda n: lake.rename(n, "x"),
        lambda n: lake.rename("trips", n),
    ):
        with pytest.raises(BadName) as refused:
            use(name)
        assert refused.value.name == name
    assert list(lake.store.list("")) == before
    assert name not in lake


@pytest.mark.parametrize("name", ["a", "_x", "7", "a.b-c_D", "a" * 100, "con", "Trips"])
def test_plain_names_are_taken(lake, name):
    lake.create(name)
    assert [d.name for d in fm.Lake(lake.store)] == [name]


def test_datasets_are_listed_in_the_order_of_their_names(lake):
    for name in ("zebra", "Apple", "mango"):
        lake.create(name)
    assert [d.name for d in lake.datasets()] == ["Apple", "mango", "zebra"]


def test_capitals_do_not_make_another_name(lake):
    made = lake.create("Trips")
    assert lake["tRIPS"].id == made.id
    assert lake["tRIPS"].name == "Trips"
    assert "TRIPS" in lake
    with pytest.raises(DatasetExists):
        lake.create("trips")


def test_name_that_is_taken_is_refused(lake):
    first = lake.create("trips")
    with pytest.raises(DatasetExists, match="'trips'") as refused:
        lake.create("trips", schema={"n": "int64"})
    assert "another name" in refused.value.hint
    assert lake["trips"].schema is None
    assert len({info.key.split("/")[1] for info in lake.store.list("datasets")}) == 1
    assert lake["trips"].id == first.id


def test_existing_dataset_is_opened_when_that_is_fine(lake):
    first = lake.create("trips", schema={"n": "int64"})
    again = lake.create("trips", exist_ok=True)
    assert (again.id, again.schema) == (first.id, first.schema)
    assert lake.create("new", exist_ok=True).count() == 0


@pytest.mark.parametrize(("name", "hint"), [("trps", "did you mean 'Trips'?"), ("zzz", "choose one of Trips, users")])
def test_unknown_dataset_gets_a_hint(lake, name, hint):
    lake.create("Trips")
    lake.create("users")
    for use in (lake.__getitem__, lake.drop, lambda n: lake.rename(n, "other")):
        with pytest.raises(UnknownDataset, match=name) as refused:
            use(name)
        assert refused.value.hint == hint
    assert name not in lake


def test_empty_lake_says_that_it_is_empty(lake):
    with pytest.raises(UnknownDataset) as refused:
        lake["trips"]
    assert "empty" in refused.value.hint


def test_renaming_moves_no_data_and_disturbs_nobody(lake):
    dataset = lake.create("trips")
    dataset.write(numbers(0, 3))
    objects = [info.key for info in lake.store.list("datasets")]
    renamed = lake.rename("trips", "rides")
    assert [info.key for info in lake.store.list("datasets")] == objects
    assert (renamed.name, renamed.id, renamed.count()) == ("rides", dataset.id, 3)
    assert [d.name for d in lake] == ["rides"]
    assert dataset.write(numbers(3, 4)).start == 3
    assert renamed.count() == 4


@pytest.mark.parametrize("new", ["TRIPS", "Trips", "trips"])
def test_capitals_of_a_name_can_be_changed(lake, new):
    lake.create("trips").write(numbers(0, 3))
    assert lake.rename("trips", new).name == new
    assert [d.name for d in lake] == [new]
    assert lake["trips"].count() == 3


def test_renaming_to_a_name_that_is_taken_changes_nothing(lake):
    lake.create("trips").write(numbers(0, 3))
    lake.create("rides").write(numbers(0, 1))
    with pytest.raises(DatasetExists):
        lake.rename("trips", "Rides")
    assert {d.name: d.count() for d in lake} == {"rides": 1, "trips": 3}


def test_dropped_dataset_leaves_nothing(lake):
    other = lake.create("other")
    dataset = lake.create("trips")
    dataset.write(numbers(0, 3))
    lake.drop("Trips")
    assert [d.name for d in lake] == ["other"]
    assert {info.key.split("/")[1] for info in lake.store.list("datasets")} == {other.id.bytes.hex()}
    for use in (dataset.count, dataset.to_arrow, lambda: dataset.write(numbers(0, 1)), lambda: dataset.head):
        with pytest.raises(UnknownDataset, match="no longer exists"):
            use()


def test_name_of_a_dropped_dataset_is_free(lake):
    first = lake.create("trips").id
    lake.drop("trips")
    assert lake.create("trips").id != first


def test_one_of_many_who_create_at_once_wins(lake):
    start, results = Barrier(4), []

    def create():
        start.wait()
        try:
            results.append(lake.create("trips", schema={"n": "int64"}).id)
        except DatasetExists:
            results.append(None)

    threads = [Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [r for r in results if r is not None]
    assert len(winners) == 1
    assert lake["trips"].id == winners[0]
    assert len({info.key.split("/")[1] for info in lake.store.list("datasets")}) == 1


def test_damaged_name_file_is_named(lake):
    lake.create("trips")
    lake.store.local_path("names/trips").write_text("{}")
    with pytest.raises(DamagedName, match="names/trips"):
        lake["trips"]


def test_entry_is_swapped_only_from_what_was_read(lake):
    one, two = (lake.create(name).id for name in ("One", "two"))
    entry = names.require_entry(lake.store, "one")
    begun = replace(entry, pending=two)
    assert names.swap(lake.store, entry, begun)
    assert not names.swap(lake.store, entry, replace(entry, pending=one))
    assert not names.swap(lake.store, entry, None)
    assert names.require_entry(lake.store, "one") == begun == names.NameEntry("One", one, two)
    assert names.swap(lake.store, begun, begun)
    assert names.swap(lake.store, begun, None)
    assert names.read_entry(lake.store, "one") is None


ONE, TWO, THREE = (DatasetId.generate(lambda size, fill=fill: bytes([fill]) * size) for fill in (1, 2, 3))
PLAIN = names.NameEntry("x", ONE)
BEGUN = names.NameEntry("x", ONE, TWO)
DONE = names.NameEntry("x", TWO, None, (ONE,))
LATER = names.NameEntry("x", THREE, None, (ONE, TWO))
OTHER = names.NameEntry("x", ONE, THREE)
SWAPS = {  # what is swapped, to what, what others make of it, and whether it happened
    "begun and installed, so that nothing is left to do": (PLAIN, BEGUN, DONE, False),
    "begun, or not, before another was": (PLAIN, BEGUN, OTHER, True),
    "installed and replaced again, so that nothing is left to do": (BEGUN, DONE, LATER, False),
    "withdrawn before the install": (BEGUN, DONE, PLAIN, False),
    "withdrawn and begun again": (BEGUN, PLAIN, OTHER, True),
    "installed before it was withdrawn": (BEGUN, PLAIN, DONE, False),
    "released and claimed by another": (PLAIN, None, names.NameEntry("x", THREE), True),
    "installed before it was released": (BEGUN, None, DONE, False),
    "released before the install": (BEGUN, DONE, None, False),
}


@pytest.mark.parametrize(("old", "new", "then", "happened"), SWAPS.values(), ids=SWAPS.keys())
def test_swap_of_a_name_whose_answer_is_lost_is_told_by_what_others_made_of_it(old, new, then, happened):
    class Unsure(MemoryStore):
        def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
            if expected == new or expected is None or self.others:
                return super().compare_and_swap(key, expected, new)
            self.others = True
            with suppress(UnknownDataset):
                now = names.require_entry(self, "x")
                names.swap(self, now, None) if then is None else names.swap(self, now, then)
            raise SwapUnknown("the line was cut", key=key, url=self.url)

        others = True

    store = Unsure()
    names.claim(store, "x", ONE)
    assert old == PLAIN or names.swap(store, PLAIN, old)
    store.others = False
    assert (names.swap(store, old, None) if new is None else names.swap(store, old, new)) is happened
    assert names.read_entry(store, "x") == then


def test_rename_carries_the_whole_entry(lake):
    entry = names.NameEntry("x", TWO, THREE, (ONE,))
    names.claim(lake.store, "x", TWO)
    names.swap(lake.store, names.require_entry(lake.store, "x"), entry)
    names.rename(lake.store, "x", "y")
    assert list(names.entries(lake.store)) == [replace(entry, name="y")]
    names.rename(lake.store, "y", "Y")
    assert list(names.entries(lake.store)) == [replace(entry, name="Y")]


CUT_SHORT = {  # the entry of the old name, that of the new one, and what the rename makes of them
    "begun under the old name": (BEGUN, PLAIN, BEGUN),
    "begun under the new name": (PLAIN, BEGUN, BEGUN),
    "installed under the old name": (DONE, BEGUN, DONE),
    "installed under the new name": (BEGUN, DONE, DONE),
}


@pytest.mark.parametrize(("old", "new", "becomes"), CUT_SHORT.values(), ids=CUT_SHORT.keys())
def test_rename_that_was_cut_short_and_continued_loses_no_replacement(lake, old, new, becomes):
    for name, entry in (("x", old), ("y", new)):
        names.claim(lake.store, name, entry.id)
        assert names.swap(lake.store, names.require_entry(lake.store, name), replace(entry, name=name))
    names.rename(lake.store, "x", "y")
    assert list(names.entries(lake.store)) == [replace(becomes, name="y")]


def test_old_rows_of_a_view_are_not_renamed_over_nor_a_view_over_them(lake):
    names.claim(lake.store, "x", TWO)
    names.swap(lake.store, names.require_entry(lake.store, "x"), DONE)
    names.claim(lake.store, "x-old-1", ONE, rows_of="x")
    for old, new in (("x", "x-old-1"), ("x-old-1", "x")):
        with pytest.raises(DatasetExists):
            names.rename(lake.store, old, new)


def test_dataset_is_found_by_its_name_or_that_of_the_one_that_replaced_it(lake):
    names.claim(lake.store, "x", THREE)
    names.swap(lake.store, names.require_entry(lake.store, "x"), LATER)
    names.claim(lake.store, "x-old-1", ONE, rows_of="x")
    for dataset_id in (ONE, TWO, THREE):
        for likely in ("x", "x-old-1", "no such name", "unknown"):
            assert names.find_entry_of(lake.store, dataset_id, likely) == LATER
            direct = dataset_id == ONE and likely == "x-old-1"
            assert names.find_input_name(lake.store, str(dataset_id), likely) == ("x-old-1" if direct else "x")
    names.swap(lake.store, LATER, None)
    assert names.find_entry_of(lake.store, ONE, "x-old-1") is None


def test_rename_of_old_rows_that_was_cut_short_is_continued(lake):
    for name in ("x-old-1", "y"):
        names.claim(lake.store, name, ONE, rows_of="x")
    names.rename(lake.store, "x-old-1", "y")
    assert list(names.entries(lake.store)) == [names.NameEntry("y", ONE, rows_of="x")]


def test_name_file_that_was_renamed_by_hand_counts_by_its_key(lake):
    lake.create("trips").write(numbers(0, 3))
    folder = lake.store.local_path("names/trips").parent
    (folder / "trips").rename(folder / "rides")
    assert [(d.name, d.count()) for d in lake] == [("rides", 3)]
    lake.rename("rides", "tours")
    lake.drop("tours")
    assert lake.datasets() == []
