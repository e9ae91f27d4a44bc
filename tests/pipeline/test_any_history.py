"""Whatever happened before, one good run makes everything as if it were computed from the sources at once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.storage.local import LocalStore
from transform.crashing import Crash, DyingFileSystem
from transform.worlds import in_this_process

Rows = dict[int, int]
"""All datasets of these graphs are keyed by `id` and have a number `n`."""

SOURCES = ("files", "frame")


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


# What steps compute: as the product does, and naively


def by_id(frame: pa.Table) -> Rows:
    return dict(zip(frame["id"].to_pylist(), frame["n"].to_pylist(), strict=True))


def as_frame(rows: Rows) -> pa.Table:
    return pa.table({"id": pa.array(rows.keys(), pa.int64()), "n": pa.array(rows.values(), pa.int64())})


def mapped(one: Rows) -> Rows:
    return {key: n + 1 for key, n in one.items() if n % 5}


def joined(one: Rows, other: Rows) -> Rows:
    return {key: 2 * one.get(key, 0) + other.get(key, 0) for key in {*one, *other}}


def added_up(*all_of: Rows) -> Rows:
    return {number: sum(rows.values()) for number, rows in enumerate(all_of)}


KINDS: dict[str, Callable[..., Rows]] = {"map": mapped, "join": joined, "table": added_up}


@dataclass(frozen=True)
class Drawn:
    """A step of a graph: what it does, and to which datasets; its output has its name."""

    name: str
    kind: str
    reads: tuple[str, ...]

    def step(self, folder: Path) -> fm.BatchTransform | fm.DatatableTransform:
        flag, compute = str(folder / self.name), KINDS[self.kind]

        def call(*frames: pa.Table) -> pa.Table:
            told = Path(flag).read_text() if Path(flag).exists() else ""
            if told == "all" or (told == "some" and any(key % 2 for frame in frames for key in by_id(frame))):
                raise ValueError("told to fail")
            return as_frame(compute(*map(by_id, frames)))

        def one(a: pa.Table) -> pa.Table:
            return call(a)

        def two(a: pa.Table, b: pa.Table) -> pa.Table:
            return call(a, b)

        func = one if len(self.reads) == 1 else two
        output = [fm.Dataset(self.name, key="id")]
        if self.kind == "table":
            return fm.DatatableTransform(func, list(self.reads), output, name=f"make_{self.name}", version="1")
        return fm.BatchTransform(func, list(self.reads), output, name=f"make_{self.name}", version="1", chunk_size=3)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Drawn, ...]:
    steps: list[Drawn] = []
    for number in range(draw(st.integers(1, 4))):
        there = [*SOURCES, *(step.name for step in steps)]
        kind = draw(st.sampled_from(sorted(KINDS)))
        least, most = {"map": (1, 1), "join": (2, 2), "table": (1, 2)}[kind]
        reads = draw(st.lists(st.sampled_from(there), min_size=least, max_size=most, unique=True))
        steps.append(Drawn(f"d{number}", kind, tuple(reads)))
    return tuple(steps)


# The world that they are in


@dataclass
class World:
    """A project in a folder: files that are there, rows that its frame has, functions that are told to fail."""

    folder: Path
    steps: Sequence[Drawn]
    files: dict[str, Rows] = field(default_factory=dict)
    frame: Rows = field(default_factory=dict)

    def __post_init__(self) -> None:
        sources = [
            fm.Source(fm.Dataset("files", key="id"), files=str(self.folder / "*.csv")),
            fm.Source(fm.Dataset("frame", key="id"), frame=lambda: as_frame(self.frame) if self.frame else None),
        ]
        self.pipeline = fm.Pipeline([*(step.step(self.folder) for step in reversed(self.steps)), *sources])

    def lake(self, files: Any) -> fm.Lake:
        return fm.Lake(LocalStore(self.folder / "lake", fs=files))

    def put(self, number: int, rows: Rows) -> None:
        """A file whose rows nobody else has, or the same file with other rows."""
        name = f"{number}.csv"
        rows = {100 * number + key: n for key, n in rows.items()}
        self.files[name] = {**self.files.get(name, {}), **rows}
        text = "".join(f"{key},{n}\n" for key, n in self.files[name].items())
        (self.folder / name).write_text(f"id,n\n{text}")

    def run(self, workers: int) -> fm.Ran:
        return self.pipeline.run(self.lake(HastyFileSystem()), workers=workers)

    def killed_run(self, changes: int) -> None:
        """A run whose process ends after so many changes of the disk; in one thread, as others would be interrupted.

        An interrupt may come where a file was just opened, and Python warns of files that nobody closed.
        """
        disk = DyingFileSystem(changes)
        try:
            self.pipeline.run(self.lake(disk), workers=1)
        except Crash:
            assert disk.dead

    def oracle(self) -> Mapping[str, Rows]:
        """Everything computed from the sources, and from nothing else."""
        found = {"files": {key: n for rows in self.files.values() for key, n in rows.items()}, "frame": self.frame}
        for step in self.steps:
            found[step.name] = KINDS[step.kind](*(found[name] for name in step.reads))
        return found


numbers = st.dictionaries(st.integers(0, 5), st.integers(0, 20), min_size=1, max_size=4)
acts = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 2), numbers),
    st.tuples(st.just("frame"), numbers),
    st.tuples(st.just("fail"), st.integers(0, 3), st.sampled_from(["", "all", "some"])),
    st.tuples(st.just("run")),
    st.tuples(st.just("kill"), st.integers(0, 150)),
)


def perform(world: World, act: tuple[Any, ...], workers: int) -> None:
    match act:
        case ("put", number, rows):
            world.put(number, rows)
        case ("frame", rows):
            world.frame = {**world.frame, **rows}
        case ("fail", number, told):
            (world.folder / f"d{number}").write_text(told)
        case ("run",):
            world.run(workers)
        case ("kill", changes):
            world.killed_run(changes)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs(), st.lists(acts, max_size=8), st.sampled_from([1, 3]))
def test_after_any_history_a_good_run_makes_what_the_sources_come_to(
    steps: tuple[Drawn, ...], history: list[tuple[Any, ...]], workers: int
):
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), steps)
        for act in [*history, ("put", 0, {1: 1, 2: 7}), ("frame", {2: 3, 4: 4})]:
            perform(world, act, workers)
        for step in steps:
            (world.folder / step.name).unlink(missing_ok=True)
        ran = world.run(workers)
        assert ran.ok, [(one.node.name, one.why) for one in ran.outcomes]
        lake = world.lake(HastyFileSystem())
        for name, rows in world.oracle().items():
            there = lake[name].to_arrow() if lake[name].schema is not None else as_frame({})
            assert by_id(there) == rows, name
        heads = {dataset.name: dataset.head for dataset in lake}
        again = world.run(workers)
        assert {one.state for one in again.outcomes} <= {"nothing", "waiting"}
        assert {dataset.name: dataset.head for dataset in lake} == heads
