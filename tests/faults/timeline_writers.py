"""Processes and threads that write to one timeline, fold it and read it at once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

import floodmark as fm
from faults.mortal import Log, MortalFileSystem
from faults.timeline_runs import NAME, SCHEMA, rows
from floodmark.dataset import Dataset
from floodmark.storage.local import LocalStore
from timeline.oracle import found, micros

ROW_GROUP = 20


def create(lake: fm.Lake, **options: object) -> Dataset:
    given = {"partition_by": "day", "row_group_size": ROW_GROUP, "schema": SCHEMA, **options}
    return lake.create(NAME, event_time="at", **given)  # type: ignore[arg-type]


def batch(writer: int, number: int) -> pa.Table:
    """A writer's turn: some rows near each other, or all over two days. Ids tell writer and number."""
    chance = random.Random(writer * 10_000 + number)
    low = chance.randrange(2880)
    times = [low + chance.randrange(4 if number % 2 else 2880 - low) for _ in range(chance.randint(1, 30))]
    return rows(times, first=writer * 1_000_000 + number * 100, value=number)


def write(dataset: Dataset, writer: int, times: int) -> list[int]:
    """One batch after the other; the ids that were written."""
    ids: list[int] = []
    for number in range(times):
        table = batch(writer, number)
        dataset.write(table)
        ids += table["id"].to_pylist()
    return ids


def correct(dataset: Dataset, writer: int, times: int) -> list[int]:
    """Move rows of one's own to other times, again and again; the ids that were written."""
    ids = write(dataset, writer, 1)
    for number in range(times):
        chance = random.Random(number)
        dataset.write(pa.concat_tables([rows([chance.randrange(2880)], i, number) for i in ids[: 5 + number % 5]]))
    return ids


def fold(dataset: Dataset, writer: int, times: int) -> list[int]:
    for number in range(times):
        if number % 3 == 2:
            dataset.update_timeline()
        else:
            dataset.fold()
    return []


def read(dataset: Dataset, writer: int, times: int) -> list[int]:
    """What is read meanwhile is in order, has no row twice, and never less than before."""
    before: set[int] = set()
    for _ in range(times):
        now = assert_ordered(found(dataset))
        assert before <= now, f"rows have gone: {sorted(before - now)[:10]}"
        before = now
    return []


def assert_ordered(table: pa.Table) -> set[int]:
    """The rows are in the timeline's order, none twice; their ids."""
    places = list(zip(map(micros, table["at"].to_pylist()), table["offset"].to_pylist(), strict=True))
    assert places == sorted(set(places)), "not in order, or something twice"
    ids = table["id"].to_pylist()
    assert len(set(ids)) == len(ids), "an id was read twice"
    return set(ids)


def write_in(root: str, writer: int, times: int) -> list[int]:
    return write(fm.Lake(root)[NAME], writer, times)


def fold_in(root: str, writer: int, times: int) -> list[int]:
    return fold(fm.Lake(root)[NAME], writer, times)


def read_in(root: str, writer: int, times: int) -> list[int]:
    return read(fm.Lake(root)[NAME], writer, times)


def written(writer: int, numbers: Iterable[int]) -> set[int]:
    return {i for number in numbers for i in batch(writer, number)["id"].to_pylist()}


# A writer that is there to be killed


def write_until_killed(root: str, writer: int, nth: int, log: Path) -> None:
    """Write from the first number that is not in the log on, fold now and then, and log each that is committed."""
    said = Log(log)
    dataset = fm.Lake(LocalStore(root, MortalFileSystem(nth)))[NAME]
    for number in itertools.count(len(said.numbers())):
        dataset.write(batch(writer, number), source=f"writer {writer}", state=str(number))
        said.add(number)
        if number % 3 == 2:
            dataset.fold()
