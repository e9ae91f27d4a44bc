"""Processes that work on one lake at the same moment."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest import mock

import pyarrow as pa

import floodmark as fm
from faults.mortal import Log, MortalFileSystem, context, serving
from floodmark.errors import BadData, MissingColumns, UnknownDataset
from floodmark.ledger import append as finalise
from floodmark.ledger import parts
from floodmark.storage.local import LocalStore
from waiting import PATIENCE, wait_until

COUNT = 4
_start: Any = None

Work = Callable[..., Any]


class Crew:
    """As many processes as there are pieces of work, which begin together."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, work: Sequence[tuple[Work, tuple[Any, ...]]]) -> list[Any]:
        assert len(work) == COUNT, "each process takes one piece, and all wait for each other"
        futures = [self._pool.submit(_together, function, arguments) for function, arguments in work]
        return [future.result(timeout=PATIENCE * 2) for future in futures]


@contextmanager
def crew() -> Iterator[Crew]:
    with serving(), ProcessPoolExecutor(COUNT, context, _enlist, (context.Barrier(COUNT),)) as pool:
        yield Crew(pool)


def _enlist(barrier: Barrier) -> None:
    global _start
    _start = barrier


def _together(function: Work, arguments: tuple[Any, ...]) -> Any:
    _start.wait(PATIENCE)
    return function(*arguments)


# What they do


def row(writer: int, number: int, **more: Any) -> pa.Table:
    return pa.table({"writer": [writer], "number": [number], **{name: [value] for name, value in more.items()}})


def append(root: str, name: str, writer: int, times: int) -> list[fm.Commit]:
    """One commit after the other."""
    dataset = fm.Lake(root)[name]
    return [dataset.write(row(writer, number)) for number in range(times)]


def append_once(root: str, name: str, states: Sequence[str]) -> list[fm.Commit]:
    """One commit per state of a source that everybody reads."""
    dataset = fm.Lake(root)[name]
    return [dataset.write(row(0, int(state)), source="shared", state=state) for state in states]


def append_until_it_is_gone(root: str, name: str, writer: int, times: int) -> fm.FloodmarkError | None:
    """How the writing ended: with an error, or with None when all was written."""
    try:
        append(root, name, writer, times)
    except fm.FloodmarkError as error:
        return error
    return None


def append_around(root: str, name: str, writer: int, times: int, marker: Path) -> list[fm.Commit]:
    """One commit after the other, half of them once the marker is there."""
    dataset, commits = fm.Lake(root)[name], []
    for number in range(times):
        if number == times // 2:
            wait_until(marker.exists)
        commits.append(dataset.write(row(writer, number)))
    return commits


def append_large(root: str, name: str, writer: int, slices: int, marker: Path) -> tuple[fm.Commit, int]:
    """One commit of many slices, which sets the marker and waits to be overtaken; how often it was finalised."""
    dataset = fm.Lake(root)[name]
    numbers = list(range(slices))
    table = pa.table({"writer": [writer] * slices, "number": numbers})
    rounds = 0
    real = finalise.finalise_tasks

    def plan(*args: Any) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            seen = dataset.head
            marker.touch()
            wait_until(lambda: dataset.head != seen)
        return real(*args)

    with mock.patch.object(finalise, "finalise_tasks", plan), mock.patch.object(parts, "PART_BYTES", 16):
        return dataset.write(table), rounds


def create(root: str, name: str) -> str | fm.FloodmarkError:
    try:
        return fm.Lake(root).create(name).id.text
    except fm.FloodmarkError as error:
        return error


def create_or_open(root: str, name: str) -> str:
    return fm.Lake(root).create(name, exist_ok=True).id.text


def write_first(root: str, name: str, table: pa.Table) -> fm.Commit | BadData:
    try:
        return fm.Lake(root)[name].write(table)
    except BadData as error:
        return error


def append_as_it_evolves(root: str, name: str, writer: int, times: int) -> list[fm.Commit]:
    """One commit after the other, each with the columns that there are by then."""
    dataset = fm.Lake(root)[name]
    commits = []
    for number in range(times):
        while len(commits) <= number:
            schema = dataset.schema
            assert schema is not None
            added = {column: None for column in schema.names if column not in ("writer", "number")}
            try:
                commits.append(dataset.write(row(writer, number, **added).cast(schema)))
            except MissingColumns:
                continue  # somebody has added one meanwhile
    return commits


def evolve(root: str, name: str, columns: Sequence[str]) -> None:
    for column in columns:
        fm.Lake(root)[name].evolve({column: "string"})


def purge(root: str, name: str, times: int) -> list[int]:
    """Purge all but the newest records again and again; up to where."""
    dataset = fm.Lake(root)[name]
    purged = []
    while len(purged) < times:
        last = dataset.last_offset
        if last is not None and last > 4 * (1 + len(purged)):
            purged.append(dataset.purge(before=last - 3).before)
        time.sleep(0.005)
    return purged


def drop(root: str, name: str, after: int) -> None:
    """Drop the dataset once it has some records."""
    lake = fm.Lake(root)
    while (lake[name].last_offset or 0) < after:
        time.sleep(0.001)
    lake.drop(name)
    assert name not in lake
    try:
        lake[name]
    except UnknownDataset:
        return
    raise AssertionError(f"{name} is still there")


# A writer that is there to be killed


def write_until_killed(root: str, name: str, writer: int, nth: int, log: Path) -> None:
    """Write from the first number that is not in the log on, and log each that is committed."""
    said = Log(log)
    dataset = fm.Lake(LocalStore(root, MortalFileSystem(nth)))[name]
    for number in itertools.count(len(said.numbers())):
        table = pa.concat_tables([row(writer, number)] * (1 + number % 3))
        with mock.patch.object(parts, "PART_BYTES", 16):
            dataset.write(table, source=f"writer {writer}", state=str(number))
        said.add(number)
