"""A collection beside a writer, whoever is in the middle of its work: nothing that anybody needs is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.engine.session import Runtime
from floodmark.storage.memory import MemoryStore
from maintenance.rivals import DAY, Held, Impatient, Shared, age, copied, interrupted, operations
from maintenance.worlds import collected
from profiles import sample
from transforms.worlds import in_this_process
from views.refresh_worlds import Answers, NoSession, orders, view_of
from views.refresh_worlds import write as write_orders

LONG_AGO = 40.0
"""Days: longer than anything stays that nobody needs."""


class Died(BaseException):
    """The process ends here."""


@fm.udf(returns="int64", version="1")
def double(n: int) -> int:
    return 2 * n


@fm.udf(returns="int64", version="1")
def triple(n: int) -> int:
    return 3 * n


def copy(rows: pa.Table) -> pa.Table:
    return rows.select(["id", "n"])


def step() -> fm.BatchTransform:
    return fm.BatchTransform(copy, ["people"], ["copies"], version="1", chunk_size=20)


def people(ids: range, city: str, more: int = 0) -> pa.Table:
    return pa.table({"id": list(ids), "city": [city] * len(ids), "n": [number + more for number in ids]})


def ticks(*times: int) -> pa.Table:
    return pa.table({"at": pa.array([t * 60_000_000 for t in times], pa.timestamp("us", "UTC"))})


def lake_of(store: MemoryStore, days_ago: float = 0) -> fm.Lake:
    clock = lambda: time.time_ns() - int(days_ago * DAY) * 10**9  # noqa: E731
    return fm.Lake(store, runtime=Runtime(session=NoSession(), clock=clock, fold_at=None))


def dying_at(operation: str, part: str, nth: int = 0) -> Callable[[str, str], None]:
    """Ends the process before the nth operation of a kind on a key with this part."""
    left = [nth]

    def before(told: str, key: str) -> None:
        if told == operation and part in key:
            left[0] -= 1
            if left[0] < 0:
                raise Died

    return before


def killed(store: MemoryStore, work: Callable[[fm.Lake], Any], before: Callable[[str, str], None]) -> None:
    with pytest.raises(Died):
        work(lake_of(Shared(store, before), LONG_AGO))


# What was there before


@pytest.fixture(scope="module")
def long_ago() -> MemoryStore:
    """A lake that has had most things happen to it, killed writers among them, and then nothing for 40 days."""
    store = MemoryStore()
    with in_this_process(), Answers().instead_of_spark():
        lake = lake_of(store, LONG_AGO)
        dataset = lake.create("people", key="id")
        for city in ("Oslo", "Rome", "Bonn"):
            dataset.write(people(range(60), city))
            dataset.fold()
        dataset.write(people(range(30), "Graz", more=1))
        dataset.add_column("gone", triple)
        dataset.backfill("gone", checkpoint_size=10)
        dataset.drop_column("gone")
        dataset.add_column("twice", double)
        dataset.backfill("twice", "id < 20", checkpoint_size=5)
        killed(store, lambda lake: lake["people"].backfill("twice", checkpoint_size=5), dying_at("swap", "columns"))
        step().run(lake)
        dataset.write(people(range(30, 50), "Bern", more=2))
        killed(store, lambda lake: step().run(lake), dying_at("swap", "head"))
        killed(store, lambda lake: lake["people"].write(people(range(9), "Linz")), dying_at("swap", "head"))
        late = lake.create("ticks", event_time="at", partition_by="day", row_group_size=4, late_merge="always")
        for times in ((1, 2, 3, 4, 9, 10), (2, 3), (5, 1)):
            late.write(ticks(*times))
        source = orders(lake)
        write_orders(source, {n: n for n in range(30)})
        view_of(lake, source).refresh()
        write_orders(source, {n: 2 * n for n in range(10, 20)})
        killed(store, lambda lake: lake.view("doubled").refresh(), dying_at("swap", "head"))
    age(store, LONG_AGO)
    return store


# Who writes


def add_again(lake: fm.Lake) -> None:
    lake["people"].add_column("gone", triple)
    lake["people"].backfill("gone")


def add_another(lake: fm.Lake) -> None:
    lake["people"].drop_column("twice")
    lake["people"].add_column("twice", double)
    lake["people"].backfill("twice")


WRITERS: dict[str, tuple[str, Callable[[fm.Lake], Any]]] = {
    "upsert": ("people", lambda lake: lake["people"].write(people(range(20, 70), "Wien", more=3))),
    "delete": ("people", lambda lake: lake["people"].delete(list(range(5)))),
    "fold": ("people", lambda lake: lake["people"].fold()),
    "late rows": ("ticks", lambda lake: lake["ticks"].write(ticks(1, 4, 6))),
    "timeline fold": ("ticks", lambda lake: lake["ticks"].fold()),
    "step": ("copies", lambda lake: step().run(lake)),
    "backfill": ("people", lambda lake: lake["people"].backfill("twice")),
    "column again": ("people", add_again),
    "column anew": ("people", add_another),
    "refresh": ("doubled", lambda lake: lake.view("doubled").refresh()),
}


@pytest.fixture(autouse=True)
def _without_spark() -> Iterator[None]:
    with in_this_process(), Answers().instead_of_spark():
        yield


def shown(store: MemoryStore, *names: str) -> dict[str, Any]:
    """What can be read of datasets, now and as of some commits (all under `soak`), and what they verify to."""
    lake, found = lake_of(store), {}
    for dataset in (lake[name] for name in names) if names else lake:
        ends = dataset.snapshot().slices.column("end").to_pylist()
        past = [in_order(dataset.to_arrow(as_of=end - 1)) for end in sample(ends, 2)]
        found[dataset.name] = [in_order(dataset.to_arrow()), past, dataset.verify().problems]
        if dataset.name == "ticks":
            found["in time"] = dataset.timeline_batches().read_all().column("at").to_pylist()
    return found


def in_order(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def after_later_runs(store: MemoryStore) -> dict[str, Any]:
    """What everything comes to when all of it is written to, and brought up to date, once more."""
    lake = lake_of(store)
    lake["people"].write(people(range(10), "Lyon", more=9))
    lake["ticks"].write(ticks(2, 7))
    write_orders(lake["orders"], {3: 50, 50: 50})
    lake["people"].backfill("twice")
    step().run(lake)
    lake.view("doubled").refresh()
    lake["people"].fold()
    return shown(store)


def deletions(seen: list[tuple[str, str]]) -> list[int]:
    """The first and the last deletion in each folder: those between do the same to more objects."""
    found: dict[str, list[int]] = {}
    for number, (operation, key) in enumerate(seen):
        if operation == "delete":
            found.setdefault(key.rpartition("/")[0], []).append(number)
    return sorted({at for numbers in found.values() for at in (numbers[0], numbers[-1])})


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", WRITERS)
def test_writer_between_the_looking_and_the_removing_of_a_collection_loses_nothing(long_ago: MemoryStore, name: str):
    dataset, write = WRITERS[name]
    alone = copied(long_ago)
    write(lake_of(alone))
    expected = shown(alone, dataset)
    seen = operations(copied(long_ago), lambda store: collected(lake_of(store), dataset))
    points = deletions(seen)
    assert points
    for at in sample(points, 2):
        store = copied(long_ago)
        interrupted(store, lambda mine: collected(lake_of(mine), dataset), at, lambda other: write(lake_of(other)))
        assert shown(store, dataset) == expected, (at, seen[at])


def crossroads(seen: list[tuple[str, str]]) -> set[int]:
    """Every swap of a writer, and some of its other operations; under `soak` all of them."""
    swaps = {number for number, (operation, _) in enumerate(seen) if operation == "swap"}
    return swaps | set(sample(range(len(seen)), 4))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", WRITERS)
def test_collections_before_operations_of_a_writer_leave_what_later_runs_need(long_ago: MemoryStore, name: str):
    _, write = WRITERS[name]
    alone, store = copied(long_ago), copied(long_ago)
    chosen = crossroads(operations(alone, lambda mine: write(lake_of(mine))))
    numbers = count()

    def collect(*_: str) -> None:
        if next(numbers) in chosen:
            with suppress(Held):
                collected(lake_of(Impatient(store)))

    write(lake_of(Shared(store, collect)))
    assert shown(store) == shown(alone)
    assert after_later_runs(store) == after_later_runs(alone)
