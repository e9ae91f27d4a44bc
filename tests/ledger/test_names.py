"""A dataset has one name, a plain path segment; who finds it taken or misspelt is told."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest

import floodmark as fm
from floodmark.ledger import names
from floodmark.ledger.errors import BadName, DatasetExists, UnknownDataset
from floodmark.ledger.names import DamagedName
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


@pytest.mark.parametrize(("name", "hint"), [("trps", "did you mean 'Trips'?"), ("zzz", "there are: Trips, users")])
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
        with pytest.raises(UnknownDataset, match="gone"):
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


def test_name_is_given_from_one_dataset_to_another_and_from_nobody_else(lake):
    one, two, three = (lake.create(name).id for name in ("one", "two", "three"))
    assert names.give(lake.store, "One", one, two)
    assert names.find(lake.store, "one") == names.Entry("one", two)
    assert names.give(lake.store, "one", one, two)
    assert not names.give(lake.store, "one", one, three)
    assert not names.give(lake.store, "nobody", one, two)
    assert names.find(lake.store, "one").id == two
