"""The parts of a dataset: what each answers by itself, and what the dataset joins."""

from __future__ import annotations

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import UnknownDataset
from floodmark.ledger.data_input import Incoming, recognise
from floodmark.ledger.ledger import Ledger
from floodmark.rows.rows import Rows
from floodmark.storage.memory import MemoryStore
from rows.current_worlds import people


@pytest.fixture
def lake() -> fm.Lake:
    return fm.Lake(MemoryStore())


def opened(lake: fm.Lake, name: str) -> Ledger:
    return Ledger(name, lake[name].snapshot().objects, lake.runtime)


def test_ledger_appends_whatever_the_key_and_knows_no_dead_records(lake):
    dataset = lake.create("d", key="id")
    dataset.write(people(range(3), "a"))
    dataset.write(people(range(2), "b"))
    ledger = opened(lake, "d")
    assert ledger.changes(None, None).to_table().num_rows == ledger.snapshot().records == 7  # -C and +C of two rows
    assert Rows(ledger, lambda _: None).count() == 3


def test_rows_of_a_ledger_that_moved_are_those_of_the_other_dataset(lake):
    for name, tag in (("old", "a"), ("new", "b")):
        lake.create(name, key="id").write(people(range(4), tag))
        lake[name].delete([1])
    ledger = opened(lake, "old")
    rows = Rows(ledger, lambda _: None)
    assert [row["v"] for row in rows.get([0, 1]).to_pylist()] == ["a0"]
    before = rows.cache
    assert rows.cache is before
    ledger.move_to(lake["new"].snapshot().objects)
    assert rows.cache is not before
    assert [row["v"] for row in rows.get([0, 1]).to_pylist()] == ["b0"]
    assert rows.scan(None, ["v"]).to_table().to_pydict() == {"v": ["b0", "b2", "b3"]}
    assert rows.count() == 3


def test_ledger_that_moved_reads_the_head_of_the_other_dataset(lake):
    lake.create("old").write(pa.table({"n": [1, 2]}))
    lake.create("new").write(pa.table({"n": [3]}))
    ledger = opened(lake, "old")
    assert ledger.snapshot().records == 2
    ledger.move_to(lake["new"].snapshot().objects)
    assert ledger.snapshot().head == lake["new"].head
    lake.drop("new")
    with pytest.raises(UnknownDataset, match="'old' no longer exists"):  # by the name under which it was opened
        ledger.snapshot()


def test_rows_are_checked_only_against_a_ledger_that_is_whole(lake):
    dataset = lake.create("d", key="id")
    dataset.write(people(range(3), "a"))
    store, objects = lake.store, dataset.snapshot().objects
    store.put_derived(objects.fold_manifest_key, b"damaged")
    assert [problem.kind for problem in dataset.verify().problems] == ["fold"]
    [slice_key] = [info.key for info in store.list(f"{objects.folder}/data/")]
    store.delete(slice_key)
    assert {problem.kind for problem in dataset.verify().problems} == {"data"}


def test_write_from_outside_is_followed_by_the_timeline(lake):
    dataset = lake.create("d", event_time="at", partition_by="day")
    dataset.write(pa.table({"at": pa.array([1], pa.timestamp("us", "UTC"))}))
    ledger = opened(lake, "d")
    ledger.append(_frame([2, 3]), None)
    assert dataset.timeline_root().applied == 1
    dataset.parts.follow(ledger.snapshot())
    assert dataset.timeline_root().applied == 3


def _frame(times: list[int]) -> Incoming:
    return recognise(pa.table({"at": pa.array(times, pa.timestamp("us", "UTC"))}), None)
