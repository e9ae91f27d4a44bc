"""An erasure removes every version of a key from every file. Offsets stay, the chain says it, and verify proves it."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadData, BadPrimaryKey, DatasetInUse, UnreadableSlice
from floodmark.storage.memory import MemoryStore
from histories.calls import in_this_process
from ledger.worlds import Clock, untouched
from profiles import sample
from rows.mortal_store import Dies, copied

SECRET = "secret"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


@fm.udf(returns="string", on_error=fm.Skip(ValueError))
def greeting(name):
    if name.endswith("!"):
        raise ValueError(f"{name} has no greeting")
    return f"hello {name}"


def write(dataset, *rows):
    times = pa.array([1_000_000_000 + i for i in range(len(rows))], pa.timestamp("s", "UTC"))
    ids, names = zip(*rows, strict=True)
    dataset.write(pa.table({"id": list(ids), "name": list(names), "at": times}))


def lived_in(store, **options):
    """A dataset with many versions of the row of ann: folded, copied, computed, in a timeline."""
    lake = fm.Lake(store, runtime=fm.Runtime(clock=Clock(), fold_at=None))
    dataset = lake.create("d", key="id", schema=SCHEMA, event_time="at", **options)
    dataset.add_column("hello", greeting, fragment_rows=4)
    write(dataset, ("ann", f"{SECRET}1"), ("bob", "bobby1"), ("cy", "c1"))
    write(dataset, ("ann", f"{SECRET}2!"), ("bob", "bobby2"))
    with in_this_process():
        dataset.backfill("hello", udf=greeting)
    dataset.fold()
    dataset.delete(["ann"])
    write(dataset, ("ann", f"{SECRET}3"), ("dee", "d1"))
    with in_this_process():
        dataset.backfill("hello", udf=greeting)
    return dataset


def rows(dataset):
    return sorted(dataset.to_arrow(columns=["id", "name", "hello"]).to_pylist(), key=lambda row: row["id"])


def files_with(dataset, *words):
    store = dataset.parts.ledger.objects.store
    return [
        i.key for i in list(store.list("")) for data in [store.get(i.key)] if any(w.encode() in data for w in words)
    ]


OPTIONS = {"": {}, "eager": {"partition_by": "day"}, "lazy": {"partition_by": "day", "timeline": "lazy"}}


@pytest.fixture(params=OPTIONS)
def dataset(request):
    dataset = lived_in(MemoryStore(), **OPTIONS[request.param])
    if request.param == "lazy":
        dataset.update_timeline()
    return dataset


def test_every_version_leaves_every_file_and_all_else_stays(dataset):
    before, last = rows(dataset), dataset.last_offset
    others = dataset.history(["bob", "cy", "dee"]).to_pylist()
    assert len(files_with(dataset, SECRET)) > 3
    plan = dataset.plan_erase("ann")
    done = dataset.erase("ann")
    assert done == plan
    assert (done.keys, done.records, done.current, done.slices) == (1, 5, 1, 4)
    assert files_with(dataset, SECRET, "ann") == []
    assert rows(dataset) == [row for row in before if row["id"] != "ann"]
    assert (dataset.count(), dataset.last_offset) == (3, last)
    assert dataset.history(["bob", "cy", "dee"]).to_pylist() == others
    assert dataset.history("ann").num_rows == dataset.get("ann").num_rows == 0
    assert dataset.changes_arrow().to_pylist() == sorted(others, key=lambda row: row["offset"])
    assert dataset.verify().problems == ()
    assert fm.Lake(dataset.parts.ledger.objects.store)["d"].verify().problems == ()


def test_life_goes_on_after_an_erasure(dataset):
    dataset.erase("ann")
    write(dataset, ("ann", "another"), ("bob", "bobby3"))
    assert {row["id"]: row["name"] for row in rows(dataset)} == {
        "ann": "another",
        "bob": "bobby3",
        "cy": "c1",
        "dee": "d1",
    }
    dataset.fold()
    with in_this_process():
        dataset.backfill("hello", udf=greeting)
    assert dataset.verify().problems == ()
    assert dataset.erase(["bob", "nobody"]).keys == 1
    assert files_with(dataset, "bobby") == []
    assert dataset.history("ann")["name"].to_pylist() == ["another"]
    before = rows(dataset)
    dataset.purge(before=dataset.last_offset + 1)
    assert rows(dataset) == before
    assert dataset.verify().problems == ()


def test_past_without_the_erased_rows_can_be_read(dataset):
    dataset.erase("ann")
    assert [row["id"] for row in dataset.to_arrow(as_of=2).to_pylist()] == ["bob", "cy"]


def test_chain_says_what_was_erased_and_not_whom(dataset):
    dataset.erase("ann")
    assert next(iter(dataset.log())).summary == "erased 1 key from 4 slices"


def test_erasing_again_is_nothing_to_do(dataset):
    dataset.erase("ann")
    head = dataset.head
    assert dataset.erase("ann").records == 0
    assert dataset.head == head


def test_erasure_is_refused_without_a_key_or_with_readers_that_may_have_the_values(dataset):
    plain = fm.Lake(dataset.parts.ledger.objects.store).create("plain")
    plain.write(pa.table({"n": [1]}))
    with pytest.raises(BadPrimaryKey):
        plain.erase([1])
    lake = fm.Lake(dataset.parts.ledger.objects.store)
    fm.BatchTransform(lambda d: d, inputs=["d"], outputs=["copy"], version="1", name="copy").run(lake)
    with untouched(dataset), pytest.raises(DatasetInUse, match="copy is computed from it") as refused:
        dataset.erase("ann")
    assert "lake.erase('d', keys)" in refused.value.hint
    lake.drop("copy")
    assert dataset.erase("ann").records == 5


def test_name_of_the_erasure_is_reserved(dataset):
    with pytest.raises(BadData, match="reserved"):
        dataset.write(pa.table({"id": ["x"]}), source="floodmark.dev/erase", state="1")


def test_damaged_slice_is_not_written_again_as_if_it_were_right(dataset):
    store = dataset.parts.ledger.objects.store
    key = next(i.key for i in store.list("") if "/data/" in i.key and SECRET.encode() in store.get(i.key))
    data = bytearray(store.get(key))
    data[len(data) // 3] ^= 1
    store.delete(key)
    store.put_if_absent(key, bytes(data))
    with untouched(dataset), pytest.raises(UnreadableSlice):
        dataset.erase("ann")


def test_verify_finds_values_that_came_back(dataset):
    store = dataset.parts.ledger.objects.store
    old = {i.key: store.get(i.key) for i in list(store.list("")) if SECRET.encode() in store.get(i.key)}
    dataset.erase("ann")
    kinds = {
        "/data/": "data",
        "/fold/files": "fold",
        "/columns/": "column",
        "/timeline/files": "timeline",
        "/rows/": "rows",
    }
    for key, data in old.items():
        if store.stat(key) is None and any(part in key for part in kinds):
            store.put_if_absent(key, data)
            problems = fm.Lake(store)["d"].verify().problems
            assert problems, key
            assert key in {problem.object for problem in problems}
            if "/data/" in key:  # found without the rows, too, which are checked only if the ledger is intact
                assert key in {problem.object for problem in dataset.parts.ledger.verify(None).problems}
            dataset.erase("ann")
            assert dataset.verify().problems == ()
            assert store.stat(key) is None


@pytest.mark.slow
def test_crash_at_any_change_erases_nothing_or_another_erasure_completes_it():
    template = lived_in(MemoryStore(), partition_by="day").parts.ledger.objects.store
    whole, enough = copied(template), 10**9
    whole.left = enough
    before = rows(fm.Lake(whole)["d"])
    fm.Lake(whole)["d"].erase("ann")
    expected = rows(fm.Lake(whole)["d"])
    changes = enough - whole.left
    assert changes > 20
    for number in sample(range(changes), 14):
        store = copied(template)
        store.left = number
        with suppress(Dies):
            fm.Lake(store)["d"].erase("ann")
        store.left = enough
        dataset = fm.Lake(store)["d"]
        now = rows(dataset)
        assert now in (before, expected), number
        assert dataset.count() == len(now)
        dataset.erase("ann")
        assert rows(dataset) == expected, number
        assert files_with(dataset, SECRET) == [], number
        assert dataset.verify().problems == (), number


def test_erasure_after_a_purge_and_garbage_collection_leave_nothing_and_lose_nothing(dataset):
    before = [row for row in rows(dataset) if row["id"] != "ann"]
    dataset.purge(before=6)
    assert files_with(dataset, SECRET) != []
    dataset.erase("ann")
    assert files_with(dataset, SECRET, "ann") == []
    clock = Clock()
    clock.tick(3 * 365 * 86_400)
    later = fm.Lake(dataset.parts.ledger.objects.store, runtime=fm.Runtime(clock=clock))["d"]
    later.collect_garbage()
    assert rows(later) == before
    assert later.verify().problems == ()
