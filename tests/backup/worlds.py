"""A small lake with everything that a backup must keep in step: a step with two outputs, a second step, a column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import floodmark as fm
from backup.stores import ActingStore
from floodmark.engine.session import Runtime


@fm.udf(returns="int64", version="1")
def doubled(age: pa.Array) -> pa.Array:
    return pc.multiply(age, 2)


def split(people: pa.Table) -> tuple[pa.Table, pa.Table]:
    old = pc.greater_equal(people.column("age"), 50)
    return people.filter(old), people.filter(pc.invert(old))


def count(old: pa.Table) -> pa.Table:
    return old.group_by("city").aggregate([([], "count_all")]).rename_columns(["city", "n"])


def steps() -> tuple[fm.BatchTransform, fm.BatchTransform]:
    return (
        fm.BatchTransform(split, ["people"], ["old", "young"], transform_keys=["id"], version="1", name="split"),
        fm.BatchTransform(count, ["old"], ["cities"], transform_keys=["city"], version="1", name="count"),
    )


def run_all(lake: fm.Lake) -> None:
    for step in steps():
        step.run(lake)
    lake["people"].backfill("twice", udf=doubled)


def people(number: int) -> pa.Table:
    """A batch of people: later batches change some of the earlier ones."""
    ids = [number * 3 + i for i in range(6)]
    return pa.table(
        {"id": ids, "city": ["Oslo" if i % 2 else "Rome" for i in ids], "age": [(i * 37 + number) % 100 for i in ids]}
    )


class World:
    """A lake in memory, its writer, and naive answers to what its derived data should be."""

    def __init__(self, store: ActingStore | None = None) -> None:
        self.store = ActingStore() if store is None else store
        self.lake = open_lake(self.store)
        self.batches = 0

    def build(self) -> World:
        dataset = self.lake.create("people", key="id", schema={"id": "int64", "city": "string", "age": "int64"})
        self.lake.create("log", schema={"text": "string"})
        dataset.add_column("twice", doubled, ["age"])
        self.write()
        self.write()
        run_all(self.lake)
        return self

    def write(self) -> None:
        self.lake["people"].write(people(self.batches))
        self.lake["log"].write(pa.table({"text": [f"batch {self.batches}"]}))
        self.batches += 1

    def write_and_run(self) -> None:
        self.write()
        run_all(self.lake)

    def purge_and_run(self) -> None:
        self.write_and_run()
        self.lake["people"].purge(self.lake["people"].snapshot().next_offset)
        self.lake["log"].purge(2)
        run_all(self.lake)


def open_lake(store: Any) -> fm.Lake:
    return fm.Lake(store, runtime=Runtime(fold_at=None))


def ahead(lake: fm.Lake) -> Iterator[str]:
    """Which datasets have read more than their inputs have, and first outputs that are ahead of the others."""
    blocks = {dataset.id: {entry.hash for entry in dataset.log()} for dataset in lake}
    read = {dataset.name: dataset.snapshot().state.next_inputs for dataset in lake}
    for name, positions in read.items():
        for position in positions:
            if position.block_hash is not None and position.block_hash not in blocks[position.dataset_id]:
                yield f"{name} is ahead of its input"
    if _offset(read["old"]) > _offset(read["young"]):
        yield "old is ahead of young"


def _offset(positions: Any) -> int:
    return max((-1 if one.offset is None else one.offset for one in positions), default=-1)


def wrong(lake: fm.Lake) -> Iterator[str]:
    """What derived data of a lake has that its inputs do not explain, after its steps ran again."""
    run_all(lake)
    people = lake["people"].to_arrow().to_pylist()
    found = {name: lake[name].to_arrow().to_pylist() for name in ("old", "young", "cities")}
    old = [_plain(row) for row in people if row["age"] >= 50]
    young = [_plain(row) for row in people if row["age"] < 50]
    counts = [{"city": city, "n": sum(row["city"] == city for row in old)} for city in {row["city"] for row in old}]
    expected = {"old": old, "young": young, "cities": counts}
    for name, rows in expected.items():
        if _sorted(rows) != _sorted(_plain(row) for row in found[name]):
            yield f"{name} has {_sorted(found[name])}, should have {_sorted(rows)}"
    if any(row["twice"] != row["age"] * 2 for row in people):
        yield f"the column twice is wrong: {people}"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in ("id", "city", "age", "n")}


def _sorted(rows: Any) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)
