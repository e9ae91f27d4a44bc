"""Whatever happens: a value that is shown is a function of the input that is shown, and a failure is never a result.

These checks know nothing of generations, identities or checkpoints: no rule of the product can be wrong in them, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.compute import backfill as backfills
from floodmark.compute import runner
from floodmark.compute.stored import manifest as manifests
from floodmark.dataset import Dataset
from floodmark.storage.local import LocalStore

VERSIONS = 3
INPUTS = {"a": "v", "b": "a", "c": "b"}
FORMULAS: dict[str, Callable[[int, int], int]] = {
    "a": lambda v, version: v * 7 + 1000 * (version if v % 2 else 0) + 5,
    "b": lambda a, version: a * 3 + 100_000 * version + 1,
    "c": lambda b, version: b * 2 + 10**7 * version + 3,
}
WHERE = ["id < 10", "v % 2 = 0", "id % 3 = 0"]
STEPS = [
    "write",
    "write",
    "delete",
    "backfill",
    "filtered",
    "filtered",
    "stop",
    "alter",
    "add",
    "readd",
    "readd",
    "lose",
    "all",
    "all",
    "mend",
    "retry",
    "fold",
]
SIZES: list[dict[str, int]] = [{}, {"max_checkpoint_size": 2}, {"task_size": 3}, {"commit_granularity": 1}]


MENDED = [False]
"""Whether functions have stopped failing; a list, since workers are this process here."""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run in this process, so that a history takes a second."""
    monkeypatch.setattr(runner, "run_in_processes", lambda tasks, function, **_: [function(t) for t in tasks])
    MENDED[0] = False


def _udf(column: str, version: int) -> fm.Udf:
    def compute(x: int | None) -> int:
        if x is None:
            return -1000 - version
        if x % 5 == version and not MENDED[0]:
            raise ValueError("no")
        return FORMULAS[column](x, version)

    options: dict[str, Any] = {"name": f"f{column}", "version": str(version), "inputs": [INPUTS[column]]}
    return fm.udf(returns="int64", on_error=[fm.Skip(ValueError)], **options)(compute)


@dataclass
class World:
    """A dataset of twenty rows with up to three columns, each made from the one before it."""

    chance: random.Random
    dataset: Dataset
    versions: dict[str, int] = field(default_factory=dict)

    def write(self, rows: int) -> None:
        ids = self.chance.sample(range(20), rows)
        self.dataset.write(pa.table({"id": ids, "v": [self.chance.randrange(100) for _ in ids]}))

    def add(self, column: str, version: int, **options: int) -> None:
        self.dataset.add_column(column, _udf(column, version), **options)
        self.versions[column] = version

    def backfill(self, column: str, where: str | None = None, **options: Any) -> None:
        self.dataset.backfill(column, where, udf=_udf(column, self.versions[column]), **options)

    def step(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """Something happens; what it was."""
        chance = self.chance
        column = chance.choice(sorted(self.versions))
        where = chance.choice(WHERE)
        sizes = chance.choice(SIZES)
        what = chance.choice(STEPS)
        match what:
            case "write":
                self.write(chance.randrange(1, 6))
            case "delete":
                self.dataset.delete([chance.randrange(20)])
            case "backfill":
                self.backfill(column, **sizes)
            case "filtered":
                self.backfill(column, where, **sizes)
            case "stop":
                with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
                    patched.setattr(backfills, "install", _stopped)
                    self.backfill(column, chance.choice([where, None]), **sizes)
            case "alter":
                version = chance.randrange(VERSIONS)
                self.dataset.alter_column(column, _udf(column, version))
                self.versions[column] = version
            case "add":
                missing = [c for c in INPUTS if c not in self.versions]
                if missing:
                    self.add(missing[0], chance.randrange(VERSIONS))
            case "readd":
                last = max(self.versions)
                self.dataset.drop_column(last)
                self.add(last, self.versions[last])
            case "lose":
                self.lose_a_file(column)
            case "all":
                for each in sorted(self.versions):
                    self.backfill(each, **sizes)
            case "mend":
                MENDED[0] = not MENDED[0]
            case "retry":
                self.backfill(column, retry_errors=True, **sizes)
            case "fold":
                self.dataset.fold()
        return what

    def lose_a_file(self, column: str) -> None:
        objects = self.dataset._columns_objects
        manifest = manifests.load(objects, self.dataset.column(column))
        segments = [s for f in manifest.fragments for s in f.segments]
        if segments:
            objects.store.delete(self.chance.choice(segments).key(objects))
            self.backfill(column)

    def check(self, what: str) -> None:
        rows = self.dataset.to_arrow(columns=["offset", "id", "v", *sorted(self.versions)]).to_pylist()
        failed = {c: set(self.dataset.column_errors(c)["offset"].to_pylist()) for c in self.versions}
        for row in rows:
            for column, version in self.versions.items():
                given, value, is_failed = row[INPUTS[column]], row[column], row["offset"] in failed[column]
                if value is None:
                    assert what != "all" or is_failed, f"{column} of {row} is missing"
                    continue
                assert not is_failed, f"{column} of {row} has a value and an error"
                made = [_made(column, given, v) for v in range(VERSIONS)]
                assert value in made, f"{column} of {row} is stale"
                if given is None:
                    assert row["offset"] in failed[INPUTS[column]], f"{column} of {row} was made from nothing"
                assert what != "all" or value == made[version], f"{column} of {row} is not of the present function"


def _made(column: str, given: int | None, version: int) -> int:
    return -1000 - version if given is None else FORMULAS[column](given, version)


def _stopped(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def _history(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    lake = fm.Lake(LocalStore(folder, HastyFileSystem()))
    dataset = lake.create("d", key="id", schema={"id": "int64", "v": "int64"})
    world = World(chance, dataset)
    world.write(8)
    world.add("a", 0, fragment_rows=chance.choice([4, 8, 16]))
    for _ in range(14):
        world.check(world.step(monkeypatch))
    assert dataset.verify().problems == ()


@pytest.mark.parametrize("seed", [*range(20), 227])
def test_values_follow_from_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    _history(tmp_path, seed, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 120))
def test_values_follow_from_what_is_shown_in_many_histories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    _history(tmp_path, seed, monkeypatch)
