"""Processes and threads that write to one timeline, fold it and read it at once."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterable

import pyarrow as pa

import floodmark as fm
from faults.timeline_runs import NAME, SCHEMA, rows
from floodmark.dataset import Dataset
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
        time.sleep(0.005)
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


# A writer that is there to be killed: python -m faults.timeline_writers FOLDER WRITER FIRST


def write_and_tell(root: str, writer: int, first: int) -> None:
    """Write without end once a line comes in, folding now and then, and say each number that is committed."""
    dataset = fm.Lake(root)[NAME]
    print("ready", flush=True)
    sys.stdin.readline()
    for number in itertools.count(first):
        dataset.write(batch(writer, number), source=f"writer {writer}", state=str(number))
        print(number, flush=True)
        if number % 4 == 3:
            dataset.fold()


if __name__ == "__main__":
    write_and_tell(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
