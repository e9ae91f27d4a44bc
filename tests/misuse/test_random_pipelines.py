"""Random misuse of a pipeline: files come, change and go, functions fail and skip. Every row is accounted for."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

import floodmark as fm
from floodmark.cli.app import floodmark
from profiles import seeds
from transforms.worlds import in_this_process

WORLDS = 4
"""Pipelines per seed, of about eight tries each."""
VALUES = range(6)
Rows = dict[int, int]

PIPELINE = """\
import json
from pathlib import Path

import pyarrow as pa

import floodmark as fm

FOLDER = Path({folder!r})


def tenfold(k: pa.Table) -> pa.Table:
    bad, skipped = json.loads((FOLDER / "failing.json").read_text())
    values = k["v"].to_pylist()
    if {{*values}} & {{*bad}}:
        raise ValueError("bad")
    if {{*values}} & {{*skipped}}:
        raise KeyError("skipped")
    return k.append_column("w", pa.array([10 * value for value in values], pa.int64()))


pipeline = fm.Pipeline(
    [
        fm.Source(fm.DatasetSpec("k", key="id"), files="in/*.csv"),
        fm.BatchTransform(tenfold, ["k"], ["out"], on_error=[fm.Skip(KeyError)]),
    ]
)
"""


@dataclass
class PipelineWorld:
    """A project with files, and what was done to it."""

    folder: Path
    random: Random
    history: list[str] = field(default_factory=list)
    lacks_rows: bool = False  # whether a file with rows is gone, so that the files are not all that was loaded

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir(parents=True)
        (self.folder / "pipeline.py").write_text(PIPELINE.format(folder=str(self.folder)))
        self.skipped = self.random.sample(VALUES, self.random.randrange(2))
        self.fail_for([])
        self.command("init")
        self.lake = fm.Lake(self.folder / "lake")

    # Tries

    def act(self) -> None:
        kinds = [self.add, self.add, self.change, self.empty, self.remove, self.rename, self.break_function]
        self.random.choice(kinds)()

    def add(self) -> None:
        """A new file; a few have a key twice."""
        size = self.random.randrange(1, 5)
        ids = self.random.sample(range(8), size) if self.random.random() < 0.85 else [3, 5, 3]
        self.write(self.new_path(), ids)

    def change(self) -> None:
        if path := self.some_file():
            self.write(path, self.random.sample(range(8), self.random.randrange(5)))

    def empty(self) -> None:
        if path := self.some_file():
            path.write_text("")
            self.history.append(f"empty {path.name}")

    def remove(self) -> None:
        if path := self.some_file():
            path.unlink()
            self.lacks_rows = True
            self.history.append(f"remove {path.name}")

    def rename(self) -> None:
        """Renamed and changed before the next run, a file is gone and another one is new."""
        new = self.new_path()
        if (path := self.some_file()) and not new.exists():
            path.rename(new)
            self.lacks_rows = True
            self.history.append(f"rename {path.name} to {new.name}")

    def break_function(self) -> None:
        self.fail_for(self.random.sample(VALUES, self.random.randrange(3)))

    def fail_for(self, values: list[int]) -> None:
        self.failing = values
        (self.folder / "failing.json").write_text(json.dumps([values, self.skipped]))
        self.history.append(f"fail for {values}, skip {self.skipped}")

    def write(self, path: Path, ids: list[int]) -> None:
        rows = [(one, self.random.choice(VALUES)) for one in ids]
        path.write_text("id,v\n" + "".join(f"{one},{value}\n" for one, value in rows))
        self.history.append(f"write {path.name} {rows}")

    def new_path(self) -> Path:
        return self.folder / "in" / f"{self.random.choice('abc')}{self.random.randrange(30)}.csv"

    def some_file(self) -> Path | None:
        found = sorted((self.folder / "in").iterdir())
        return self.random.choice(found) if found else None

    # Checks

    def run(self) -> None:
        """Run the pipeline: its counts, exit code and rows must be what the files and the function lead to."""
        kept, results = self.rows("k", "v"), self.rows("out", "w")
        full = ["--full"] if self.random.random() < 0.1 else []
        code, told = self.command("run", *full)
        self.history.append(f"run {full}: {code} {told}")
        source, step = told["runs"]
        now, after = self.rows("k", "v"), self.rows("out", "w")
        assert code == (1 if "failed" in (source["state"], step["state"]) else 0), "the exit code"
        assert len(now) - len(kept) == source.get("new", 0) - source.get("retracted", 0), "the counts of the source"
        if not self.lacks_rows:
            assert now == self.rows_of_files(), "other rows than those of the files in their order"
        if step["state"] == "failed":
            assert after == results, "a failed run changed rows"
            return
        assert len(after) - len(results) == step.get("new", 0) - step.get("retracted", 0), "the counts of the step"
        assert after.keys() <= now.keys(), "a key without input rows has results"
        for key, value in now.items():
            if value in self.failing:
                assert after.get(key) in (10 * value, results.get(key)), f"failed key {key} has a new result"
                assert key in after or key not in results, f"failed key {key} lost its row"
            elif value in self.skipped:
                assert key not in after, f"skipped key {key} has a row"
            else:
                assert after.get(key) == 10 * value, f"key {key} has another result"

    def rows_of_files(self) -> Rows:
        lines = [line for path in sorted((self.folder / "in").iterdir()) for line in path.read_text().splitlines()[1:]]
        return {int(one): int(value) for one, value in (line.split(",") for line in lines)}

    def rows(self, name: str, column: str) -> Rows:
        if name not in self.lake or self.lake[name].schema is None:
            return {}
        table = self.lake[name].to_arrow()
        return dict(zip(table["id"].to_pylist(), table[column].to_pylist(), strict=True))

    def command(self, *arguments: str) -> tuple[int, Any]:
        sys.modules.pop("pipeline", None)
        with chdir(self.folder), in_this_process():
            ended = CliRunner().invoke(floodmark, [*arguments, "--json"])
        sys.modules.pop("pipeline", None)
        assert ended.exception is None or isinstance(ended.exception, SystemExit), traceback.format_exception(
            ended.exception
        )
        return ended.exit_code, json.loads(ended.stdout)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(6))
def test_every_row_of_odd_pipelines_is_accounted_for(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.CRITICAL)
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for number in range(WORLDS):
        world = PipelineWorld(tmp_path / str(number), Random(f"{seed}-{number}"))
        world.history.append(f"(world {number} of seed {seed})")
        for _ in range(world.random.randrange(3, 7)):
            world.act()
            if world.random.random() < 0.7:
                world.act()
            try:
                world.run()
            except AssertionError as error:
                raise AssertionError("\n".join([str(error), "after:", *world.history])) from error
        assert not world.lake["k"].verify().problems if "k" in world.lake else True
