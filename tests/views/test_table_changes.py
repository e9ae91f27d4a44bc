"""The changes of one table: with the rows as they were they give the rows as they are, after any history."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.derive.row_search import SearchLimits
from floodmark.ledger.scan import Scan
from floodmark.storage.memory import MemoryStore
from floodmark.views.analysis import InputUse
from floodmark.views.sources import take_input_snapshot
from floodmark.views.table_changes import TableChanges, cancel_equal, repeat_rows
from profiles import seeds

SCHEMA = pa.schema({"id": pa.int64(), "g": pa.string(), "x": pa.float64(), "unread": pa.int64()})
READ = ("id", "g", "x")
ANY = SearchLimits(1 << 30)


@pytest.fixture
def lake() -> fm.Lake:
    return fm.Lake(MemoryStore())


def changes_since(dataset: Dataset, position: int, columns: tuple[str, ...] = READ) -> TableChanges:
    source = take_input_snapshot(dataset, InputUse(dataset.name, str(dataset.id), (), columns, ()))
    return TableChanges(source, position)


def bag(table: pa.Table) -> Counter[str]:
    return Counter(repr([row[name] for name in READ]) for row in table.to_pylist())


def weighed(changes: TableChanges) -> Counter[str]:
    rows, weights = repeat_rows(*changes.weighed)
    found: Counter[str] = Counter()
    for row, weight in zip(rows.to_pylist(), weights.tolist(), strict=True):
        found[repr([row[name] for name in READ])] += weight
    return found


def some_rows(chance: Random, number: int, *, is_keyed: bool) -> pa.Table:
    pick = chance.choice
    rows = [
        {
            "id": chance.randrange(8),
            "g": pick([None, "a", "b"]),
            "x": pick([None, 0.5, float("nan")]),
            "unread": pick([1, 2]),
        }
        for _ in range(number)
    ]
    return pa.Table.from_pylist(list({row["id"]: row for row in rows}.values()) if is_keyed else rows, SCHEMA)


@pytest.mark.soak
@pytest.mark.parametrize("is_keyed", [True, False])
@pytest.mark.parametrize("seed", seeds(10))
def test_changes_lead_from_the_rows_as_they_were_to_those_that_are_there(lake: fm.Lake, seed: int, is_keyed: bool):
    chance = Random(seed)
    dataset = lake.create("t", key="id" if is_keyed else None, schema=SCHEMA)
    dataset.write(some_rows(chance, 6, is_keyed=is_keyed))
    position, before = dataset.last_offset, dataset.to_arrow()
    assert position is not None
    for _ in range(chance.randint(1, 5)):
        kind = chance.random()
        if kind < 0.1:
            dataset.fold()
        elif is_keyed and kind < 0.4:
            dataset.delete([{"id": chance.randrange(8)}, {"id": 8}])
        else:
            dataset.write(some_rows(chance, chance.randint(1, 3), is_keyed=is_keyed))
    changes, now = changes_since(dataset, position), dataset.to_arrow()
    left, right = bag(before), bag(now)
    left.update(weighed(changes))
    assert +left == right
    assert not [row for row, count in left.items() if count < 0]
    old = changes.source_before.given
    assert bag(Scan(old.snapshot.objects, old.layout, old.current_rows(), READ).to_table()) == bag(before)
    values = pa.table({"g": pa.array(chance.sample([None, "a", "b"], 2), pa.string())})
    found = changes.rows_among(values, ANY)
    known = values["g"].to_pylist()
    for rows, all_rows in ((found.now, now), (found.before, before)):
        assert bag(rows) == bag(all_rows.filter(pa.array([g in known for g in all_rows["g"].to_pylist()])))


def write(dataset: Dataset, *rows: tuple[Any, ...]) -> None:
    dataset.write(pa.table(list(zip(*rows, strict=True)), schema=SCHEMA))


def test_change_of_a_column_that_is_not_read_is_no_change(lake: fm.Lake):
    dataset = lake.create("t", key="id", schema=SCHEMA)
    write(dataset, (1, "a", 0.5, 1), (2, "b", 0.5, 1))
    write(dataset, (1, "a", 0.5, 2), (2, "c", 0.5, 1))
    rows, weights = changes_since(dataset, 1).weighed
    assert rows.to_pylist() == [{"id": 2, "g": "c", "x": 0.5}, {"id": 2, "g": "b", "x": 0.5}]
    assert weights.tolist() == [1, -1]


def test_row_that_came_and_went_is_no_change(lake: fm.Lake):
    dataset = lake.create("t", key="id", schema=SCHEMA)
    write(dataset, (1, "a", 0.5, 1))
    write(dataset, (2, "b", 0.5, 1))
    dataset.delete([{"id": 2}])
    changes = changes_since(dataset, 0)
    assert not changes.is_unchanged
    assert not len(changes.weighed[1])


def test_nothing_new_is_unchanged(lake: fm.Lake):
    dataset = lake.create("t", key="id", schema=SCHEMA)
    write(dataset, (1, "a", 0.5, 1))
    assert changes_since(dataset, 0).is_unchanged
    assert not changes_since(dataset, -1).is_unchanged


def test_equal_rows_cancel_and_count_as_often_as_they_occur():
    rows = pa.table({"a": [1, 1, 2, None, None, 1]})
    kept, weights = cancel_equal(rows, pa.array([1, 1, 1, 1, -1, 1]).to_numpy())
    assert (kept["a"].to_pylist(), weights.tolist()) == ([1, 2], [3, 1])
    again, ones = repeat_rows(kept, -weights)
    assert (again["a"].to_pylist(), ones.tolist()) == ([1, 1, 1, 2], [-1, -1, -1, -1])


def test_rows_of_values_that_a_column_cannot_hold_are_none(lake: fm.Lake):
    dataset = lake.create("t", key="id", schema=replace_type(SCHEMA, "id", pa.int8()))
    dataset.write(pa.table({"id": pa.array([1], pa.int8()), "g": ["a"], "x": [0.5], "unread": [1]}))
    found = changes_since(dataset, 0).rows_among(pa.table({"id": pa.array([1000, 1])}), ANY)
    assert found.now["id"].to_pylist() == [1]


def replace_type(schema: pa.Schema, name: str, data_type: pa.DataType) -> pa.Schema:
    return schema.set(schema.get_field_index(name), pa.field(name, data_type))
