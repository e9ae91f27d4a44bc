"""The catalog changes as a whole or not at all, and whoever changed it knows whether it did."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from columns.column_worlds import DATASET, add, objects_at, objects_in
from floodmark.columns import catalog as catalogs
from floodmark.columns.catalog import Catalog, ColumnDefinition, FunctionRef, hash_inputs, identity
from floodmark.errors import CommitConflict, CommitUnknown, SwapUnknown, UnknownColumn, UnreadableColumn
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from floodmark.storage.pointer import MAX_RACES
from ledger.arrow_types import data_types
from limits import set_limit
from rows.harm import HARM
from rows.harm import replace as put


@pytest.fixture(params=["folder", "bucket"])
def objects(request, tmp_path):
    return objects_at(request.param, tmp_path)


def named(name, inputs=(), **more):
    function = FunctionRef("f", "v1", "scalar")
    return ColumnDefinition(name, more.pop("field_id", 1), pa.int64(), True, tuple(inputs), function, **more)


def test_a_dataset_begins_with_an_empty_catalog(objects):
    assert catalogs.load(objects) == Catalog()
    assert list(objects.store.list("")) == []


@given(data_types(), st.booleans(), st.text(max_size=8), st.none() | st.integers(1, 10**9))
def test_a_catalog_comes_back_as_it_was(data_type, nullable, name, most):
    objects = objects_in(MemoryStore())
    function = FunctionRef(name, "v", "batch", "m", "q", "source\n")
    inputs = (f"{name} 1", f"{name} 2")
    column = ColumnDefinition(name, 3, data_type, nullable, inputs, function, 1, most, 5, "ab" * 32, "origin", True)
    wanted = Catalog(16, 4, (column,), 7, ("x", "y"))
    assert catalogs.change(objects, lambda _: wanted) == wanted
    assert catalogs.load(objects) == wanted


def test_a_columns_field_carries_its_id():
    assert named("a", field_id=9).field.metadata == {b"PARQUET:field_id": b"9"}


def test_an_unknown_column_says_which_one_may_be_meant(objects):
    add(objects, "brightness")
    with pytest.raises(UnknownColumn, match="did you mean 'brightness'") as caught:
        catalogs.load(objects).column("brigthness")
    assert caught.value.column == "brigthness"
    with pytest.raises(UnknownColumn, match="use one of brightness"):
        catalogs.load(objects).column("zzz")


@given(st.integers(1, 7), st.randoms(use_true_random=False))
def test_dependents_are_all_that_can_be_reached_and_come_after_their_inputs(count, chosen):
    names = [f"c{n}" for n in range(count)]
    columns = [named(n, chosen.sample(names[:at], chosen.randrange(at + 1))) for at, n in enumerate(names)]
    chosen.shuffle(columns)
    catalog = Catalog(columns=tuple(columns))

    def uses(column, name):
        return name in column.inputs or any(uses(catalog.column(i), name) for i in column.inputs)

    for name in names:
        found = [c.name for c in catalog.dependents(name)]
        assert sorted(found) == sorted(c.name for c in columns if uses(c, name))
        for at, dependent in enumerate(found):
            assert not set(catalog.column(dependent).inputs) & set(found[at:])


@pytest.mark.parametrize("harm", ["empty", "truncate", "flip", "longer"])
def test_a_damaged_catalog_is_refused(objects, harm):
    add(objects, "a")
    data = objects.store.get(objects.catalog_key)
    for at in range(0, len(data), 11):
        put(objects.store, objects.catalog_key, HARM[harm](data, at))
        with pytest.raises(UnreadableColumn) as caught:
            catalogs.load(objects)
        assert caught.value.key == objects.catalog_key


# What stands for the inputs


def test_identity_follows_version_type_inputs_their_order_fragments_and_dataset():
    base, column = Catalog(columns=(named("a", field_id=1),)), named("b", ["a", "pixels"], field_id=2)
    function = replace(column.function, version="v2")
    others = [
        identity(base, DATASET, replace(column, function=function)),
        identity(base, DATASET, replace(column, type=pa.float32())),
        identity(base, DATASET, replace(column, type=pa.list_(pa.float32()))),
        identity(base, DATASET, replace(column, type=pa.list_(pa.float32(), 3))),
        identity(base, DATASET, replace(column, inputs=("pixels", "a"))),
        identity(base, DATASET, replace(column, inputs=("a",))),
        identity(replace(base, fragment_rows=8), DATASET, column),
        identity(base, "did:odf:other", column),
        identity(base.with_column(named("a", field_id=1, generation=1)), DATASET, column),
        identity(base.with_column(named("a", field_id=1, origin="other")), DATASET, column),
    ]
    assert len({identity(base, DATASET, column), *others}) == len(others) + 1


def test_identity_does_not_follow_names_manifests_or_other_columns():
    base, column = Catalog(columns=(named("a", field_id=1),)), named("b", ["a"], field_id=2)
    longer = Catalog(base.fragment_rows, 9, (*base.columns, named("c", field_id=3, generation=4)), 5)
    extended = base.with_column(named("a", field_id=1, manifest="more"))
    again = Catalog(columns=(named("a", field_id=7),))
    same = [identity(c, DATASET, column) for c in (base, longer, extended, again)]
    same.append(identity(base, DATASET, replace(column, name="z", field_id=8, generation=3, manifest="m")))
    assert len(set(same)) == 1


def test_the_hash_of_the_inputs_never_changes_between_releases():
    catalog = Catalog(8, columns=(named("a", origin="o", generation=2),))
    assert hash_inputs(catalog, DATASET, named("b", ["a", "pixels"])) == "f00f367321c694bb92feee52f03fec6f"


# Races


def racing(base):
    """A store without turns, in which rivals act just before our swaps."""

    class Racing(base):
        rivals = ()

        def compare_and_swap(self, key, expected, new):
            if expected != new and self.rivals:
                first, *rest = self.rivals
                self.rivals = ()
                first()
                self.rivals = tuple(rest)
            return super().compare_and_swap(key, expected, new)

        def turn(self, key):
            return nullcontext()

    return Racing


@pytest.fixture(params=["folder", "bucket"])
def contested(request, tmp_path):
    return objects_in(racing(LocalStore)(tmp_path / "lake") if request.param == "folder" else racing(MemoryStore)())


def test_a_lost_race_builds_on_what_the_winner_left(contested):
    contested.store.rivals = tuple((lambda n=n: add(contested, n)) for n in ("x", "y"))
    add(contested, "a")
    catalog = catalogs.load(contested)
    assert [(c.name, c.field_id) for c in catalog.columns] == [("x", 1), ("y", 2), ("a", 3)]


def test_one_who_always_loses_gives_up(contested):
    contested.store.rivals = tuple((lambda n=n: add(contested, f"r{n}")) for n in range(MAX_RACES))
    with pytest.raises(CommitConflict):
        add(contested, "a")
    assert catalogs.load(contested).find("a") is None


def test_no_change_swaps_nothing(objects):
    add(objects, "a")
    before = objects.store.get(objects.catalog_key)
    catalogs.change(objects, lambda catalog: catalog)
    assert objects.store.get(objects.catalog_key) == before


def unsure(base):
    """A store that loses the answers to some swaps; `happens` says which of them it makes."""

    class Unsure(base):
        happens: tuple[bool, ...] = ()
        meanwhile = staticmethod(lambda: None)

        def compare_and_swap(self, key, expected, new):
            if not self.happens:
                return super().compare_and_swap(key, expected, new)
            made, *rest = self.happens
            self.happens = tuple(rest)
            if made:
                super().compare_and_swap(key, expected, new)
            self.meanwhile()
            raise SwapUnknown("the line was cut", key=key, url=self.url)

        def turn(self, key):
            return nullcontext()

    return Unsure


@pytest.fixture(params=["folder", "bucket"])
def doubtful(request, tmp_path):
    made = objects_in(unsure(LocalStore)(tmp_path / "lake") if request.param == "folder" else unsure(MemoryStore)())
    add(made, "first")
    return made


@pytest.mark.parametrize("happens", [True, False])
def test_a_swap_whose_answer_was_lost_happens_once(doubtful, happens):
    doubtful.store.happens = (happens,)
    assert add(doubtful, "a").field_id == 2
    assert [c.name for c in catalogs.load(doubtful).columns] == ["first", "a"]


@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("others", [1, 5])
def test_others_may_swap_before_the_lost_answer_is_looked_for(doubtful, happens, others):
    rival = objects_in(doubtful.store)

    def meanwhile():
        doubtful.store.meanwhile = lambda: None
        for n in range(others):
            add(rival, f"r{n}")

    doubtful.store.happens, doubtful.store.meanwhile = (happens,), meanwhile
    add(doubtful, "a")
    names = [c.name for c in catalogs.load(doubtful).columns]
    rivals = [f"r{n}" for n in range(others)]
    assert names == (["first", "a", *rivals] if happens else ["first", *rivals, "a"])


@pytest.mark.parametrize("happens", [True, False])
def test_after_too_many_swaps_nobody_claims_to_know(doubtful, happens, monkeypatch):
    set_limit(monkeypatch, "catalog.marks", 3)
    rival = objects_in(doubtful.store)

    def meanwhile():
        doubtful.store.meanwhile = lambda: None
        for n in range(6):
            add(rival, f"r{n}")

    doubtful.store.happens, doubtful.store.meanwhile = (happens,), meanwhile
    with pytest.raises(CommitUnknown):
        add(doubtful, "a")


def test_when_no_answer_comes_the_error_says_so(doubtful):
    doubtful.store.happens = (False,) * 50
    with pytest.raises(CommitUnknown) as caught:
        add(doubtful, "a")
    assert caught.value.key == doubtful.catalog_key
