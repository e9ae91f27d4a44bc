"""Datasets without a name go only when a crash left them: old, without records, and when all names can be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark.chain.ids import DatasetId
from floodmark.dataset import Dataset
from floodmark.lake import Lake
from floodmark.ledger import names
from floodmark.ledger.create import create, dataset_objects
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.strategy import APPEND
from floodmark.maintenance import gc
from floodmark.storage.local import LocalStore
from floodmark.storage.store import ObjectInfo
from maintenance.worlds import World, collected, found

KIND = "unnamed dataset"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "lake")
    with world.days_ago(30) as lake:
        lake.create("kept").write(pa.table({"n": [1]}))
    return world


def left(world: World, days: float, rows: list[int] | None = None) -> DatasetId:
    """A dataset that lost its name so many days ago: a drop was killed, or whoever made it before it had one."""
    with world.days_ago(days) as lake:
        dataset = lake.create("left")
        if rows:
            dataset.write(pa.table({"n": rows}))
        entry = names.require_entry(lake.store, "left")  # asking the dataset would make an index of it
        names.swap(lake.store, entry, None)
        return entry.id


def is_there(world: World, dataset_id: DatasetId) -> bool:
    return any(True for _ in world.lake().store.list(dataset_objects(world.lake().store, dataset_id).folder))


def test_one_without_records_goes_after_a_week(world: World):
    old, young = left(world, 8), left(world, 6)
    assert list(collected(world.lake())) == [(str(old), KIND)]
    assert not is_there(world, old)
    assert is_there(world, young)
    assert world.lake()["kept"].to_arrow().num_rows == 1


def test_looking_at_one_does_not_make_it_young(world: World):
    old = left(world, 8)
    gc.find_unnamed(world.lake().store)
    assert (str(old), KIND) in collected(world.lake())


def test_one_with_records_goes_only_by_its_id(world: World):
    old, other = left(world, 8, [1, 2]), left(world, 8, [3])
    assert collected(world.lake()) == {}
    assert list(collected(world.lake(), str(old))) == [(str(old), KIND)]
    assert not is_there(world, old)
    assert is_there(world, other)


def test_it_stays_when_other_datasets_are_named(world: World):
    old = left(world, 8)
    assert collected(world.lake(), "kept") == {}
    assert is_there(world, old)


def test_a_young_one_does_not_even_go_by_its_id(world: World):
    young = left(world, 6, [1])
    assert collected(world.lake(), str(young)) == {}
    assert is_there(world, young)


def test_a_named_one_does_not_go_by_its_id(world: World):
    kept = world.lake()["kept"]
    assert collected(world.lake(), str(kept.id)) == {}
    assert kept.to_arrow().num_rows == 1


def test_what_a_killed_drop_left_goes_though_it_had_records(world: World):
    old = left(world, 8, [1, 2])
    store = world.lake().store
    store.delete(dataset_objects(store, old).head_key)  # the first that a drop removes
    assert (str(old), KIND) in collected(world.lake())
    assert not is_there(world, old)


def test_a_head_that_cannot_be_read_is_not_taken_for_an_empty_dataset(world: World):
    old = left(world, 8)
    with world.days_ago(8) as lake:
        (world.folder / dataset_objects(lake.store, old).head_key).write_bytes(b"no hash")
    assert collected(world.lake()) == {}


def test_nothing_goes_while_a_name_is_damaged(world: World):
    old = left(world, 8)
    (world.folder / "names/other").write_bytes(b"{")
    assert collected(world.lake()) == found(world.lake()) == {}
    (world.folder / "names/other").unlink()
    assert (str(old), KIND) in collected(world.lake())


def test_nothing_goes_when_all_names_are_lost(world: World):
    left(world, 8)
    for path in (world.folder / "names").iterdir():
        path.unlink()
    assert collected(world.lake()) == found(world.lake()) == {}


def test_one_that_is_to_take_the_place_of_a_view_stays(world: World):
    pending = left(world, 8)
    with world.days_ago(8) as lake:
        lake.create_derived("view", key="n")
        entry = names.require_entry(lake.store, "view")
        assert names.swap(lake.store, entry, replace(entry, pending=pending))
    assert collected(world.lake()) == {}
    assert is_there(world, pending)


def filled(world: World, replaced: DatasetId) -> DatasetId:
    """A dataset without a name that was filled eight days ago to replace a view."""
    with world.days_ago(8) as lake:
        notes = {"replaces": str(replaced)}
        pending = create(lake.store, lake.runtime, "left", event_time=None, schema=None, strategy=APPEND, notes=notes)
        Dataset.open(Ledger("left", pending, lake.runtime)).write(pa.table({"n": [1]}))
        entry = names.require_entry(lake.store, "left")
        names.swap(lake.store, entry, None)
        return entry.id


@pytest.mark.parametrize("becomes", ["kept", "replaced by another"])
def test_one_that_was_to_replace_a_view_and_did_not_goes_with_its_records(world: World, becomes: str):
    with world.days_ago(8) as lake:
        view = names.require_entry(lake.store, "kept")
        if becomes == "replaced by another":
            other = lake.create("other").id
            names.claim(lake.store, "kept-old-1", view.id, rows_of="kept")
            assert names.swap(lake.store, view, replace(view, id=other, previous=(view.id,)))
    pending = filled(world, view.id)
    assert list(collected(world.lake())) == [(str(pending), KIND)]
    assert not is_there(world, pending)


@pytest.mark.parametrize("becomes", ["name lost", "replaced itself"])
def test_one_that_has_replaced_a_view_and_lost_its_name_stays(world: World, becomes: str):
    view = names.require_entry(world.lake().store, "kept")
    pending = filled(world, view.id)
    with world.days_ago(8) as lake:
        names.claim(lake.store, "kept-old-1", view.id, rows_of="kept")
        if becomes == "name lost":
            names.swap(lake.store, view, None)
        else:
            other = lake.create("other").id
            assert names.swap(lake.store, view, replace(view, id=other, previous=(view.id, pending)))
    assert collected(world.lake()) == {}
    assert is_there(world, pending)


class Renaming(LocalStore):
    """A store in which a dataset is renamed while names are listed: to one before the point that was reached."""

    renamed: Dataset | None = None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for info in super().list(prefix):
            if info.key == "names/zebra" and self.renamed is None:
                self.renamed = Lake(LocalStore(self.url)).rename("zebra", "ant")
            yield info


def test_a_rename_on_its_way_hides_no_dataset(world: World):
    with world.days_ago(8) as lake:
        lake.create("ant")
        lake.drop("ant")
        zebra = lake.create("zebra").id
    store = Renaming(world.folder)
    assert gc.find_unnamed(store) == []
    assert store.renamed is not None
    assert is_there(world, zebra)
