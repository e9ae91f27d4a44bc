"""Processes that upsert into one keyed dataset at once, and tell what they did, so that it can be replayed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import floodmark as fm
from faults.mortal import Log, MortalFileSystem
from floodmark.dataset import Dataset
from floodmark.errors import BadPrimaryKey
from floodmark.storage.local import LocalStore
from rows.harm import derived, replace
from rows.naive import ADD, NEW, OLD, RETRACT, Counts, Naive, Row

NAME = "people"
SCHEMA = pa.schema([("id", pa.int64()), ("by", pa.string())])
KEYS = range(8)  # few, so that all want the same


@dataclass(frozen=True)
class Deed:
    """What somebody did, and the commit that came of it."""

    what: str  # a method of the naive model
    given: tuple[Any, ...]
    commit: fm.Commit


def rows(writer: int, number: int) -> list[Row]:
    """The batch of a writer's turn: some keys of all, mostly with its name on them."""
    chance = random.Random(writer * 10_000 + number)
    chosen = chance.sample(KEYS, chance.randint(1, 4))
    return [{"id": key, "by": chance.choice([f"{writer}/{number}", f"{writer}/{number}", "all"])} for key in chosen]


def table(given: Sequence[Row]) -> pa.Table:
    fields = [*SCHEMA, pa.field("op", pa.int32())] if any("op" in row for row in given) else SCHEMA
    return pa.Table.from_pylist(list(given), pa.schema(fields))


# What they do


def write(dataset: Dataset, writer: int, times: int) -> list[Deed]:
    """One batch after the other."""
    deeds = []
    for number in range(times):
        batch = rows(writer, number)
        deeds.append(Deed("write", (batch,), dataset.write(table(batch))))
    return deeds


def write_and_take_back(dataset: Dataset, writer: int, times: int) -> list[Deed]:
    """Writes, deletes and chunks by turns."""
    deeds = []
    for number in range(times):
        batch = rows(writer, number)
        some = [(row["id"],) for row in rows(writer, number + 5_000)]
        if number % 3 == 0:
            deeds.append(Deed("write", (batch,), dataset.write(table(batch))))
        elif number % 3 == 1:
            deeds.append(Deed("delete", (some,), dataset.delete([key for (key,) in some])))
        else:
            processed = [{"id": key} for (key,) in some]
            commit = dataset.store_chunk(table(batch), processed_idx=pa.Table.from_pylist(processed))
            deeds.append(Deed("store_chunk", (batch, processed), commit))
    return deeds


def write_changelog(dataset: Dataset, writer: int, times: int) -> list[Deed]:
    """Corrections of what is there; whoever was overtaken looks again."""
    deeds: list[Deed] = []
    while len(deeds) < times:
        there = {row["id"]: row for row in dataset.to_arrow().to_pylist()}
        batch: list[Row] = []
        for row in rows(writer, len(deeds)):
            old = there.get(row["id"])
            if old is None:
                batch.append({**row, "op": ADD})
            elif row["by"] == "all":
                batch.append({**old, "op": RETRACT})
            else:
                batch += [{**old, "op": OLD}, {**row, "op": NEW}]
        try:
            deeds.append(Deed("write", (batch,), dataset.write(table(batch))))
        except BadPrimaryKey:
            continue
    return deeds


def write_in(root: str, writer: int, times: int) -> list[Deed]:
    return write(fm.Lake(root)[NAME], writer, times)


def write_and_take_back_in(root: str, writer: int, times: int) -> list[Deed]:
    return write_and_take_back(fm.Lake(root)[NAME], writer, times)


def fold_and_lose_in(root: str, times: int) -> list[Deed]:
    """Fold, and delete files of the key index and copies of rows that the others use."""
    chance = random.Random(5)
    dataset = fm.Lake(root)[NAME]
    for number in range(times):
        dataset.fold()
        if number % 3 == 0:
            there = [key for key in derived(dataset) if "/info/keys/" in key or "/info/rows/" in key]
            for key in chance.sample(there, len(there) // 2):
                replace(dataset.snapshot().objects.store, key, None)
    return []


def read(dataset: Dataset, times: int) -> list[Deed]:
    """What is read meanwhile is the state after some commit: each key once at most."""
    for _ in range(times):
        snapshot = [row["id"] for row in dataset.to_arrow().to_pylist()]
        assert len(snapshot) == len(set(snapshot)), f"a key was read twice: {sorted(snapshot)}"
    return []


def read_in(root: str, times: int) -> list[Deed]:
    return read(fm.Lake(root)[NAME], times)


# What must come of it


def assert_serial(dataset: Dataset, deeds: Iterable[Deed], kind: str = "upsert") -> None:
    """The ledger is what the naive model makes of the same deeds, done one after the other in the chain's order.

    A commit that changed nothing has the block it looked at: there and then it changes nothing in the model either.
    """
    model = Naive(kind, ("id",))
    found = dataset.changes_arrow().to_pylist()
    for deed in sorted(deeds, key=lambda deed: (deed.commit.sequence_number, deed.commit.rows == 0)):
        start = len(model.records)
        outcome = getattr(model, deed.what)(*deed.given)
        assert (deed.commit.start, deed.commit.rows) == (start, len(outcome.records)), deed
        assert [(r["op"], {"id": r["id"], "by": r["by"]}) for r in found[start : deed.commit.end]] == outcome.records
        assert Counts.of(deed.commit) == outcome.counts, deed
    assert len(found) == len(model.records)
    assert_agree(dataset, model)


def assert_agree(dataset: Dataset, model: Naive) -> None:
    """Current rows, every past and every key's life are what the records say."""
    assert dataset.to_arrow().to_pylist() == [row for _, row in model.current()]
    assert dataset.count() == len(model.current())
    for end in range(0, len(model.records) + 1, max(1, len(model.records) // 20)):
        assert dataset.to_arrow(as_of=end - 1).to_pylist() == [row for _, row in model.current(end)]
    for key in KEYS:
        assert dataset.get([key]).to_pylist() == [row for _, row in model.current() if row["id"] == key]
        assert dataset.history([key])["offset"].to_pylist() == [offset for offset, _, _ in model.history((key,))]


# A writer that is there to be killed


def write_until_killed(root: str, writer: int, nth: int, log: Path) -> None:
    """Write from the first number that is not in the log on, fold now and then, and log each that is committed."""
    said = Log(log)
    dataset = fm.Lake(LocalStore(root, MortalFileSystem(nth)))[NAME]
    for number in itertools.count(len(said.numbers())):
        dataset.write(table(rows(writer, number)), source=f"writer {writer}", state=str(number))
        if number % 3 == 2:
            dataset.fold()
        said.add(number)
