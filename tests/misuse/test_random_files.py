"""Random misuse by files and commands: each is refused as a whole with an error of ours, or accounts for every row."""

from __future__ import annotations

import json
import logging
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import floodmark as fm
from floodmark import errors
from floodmark.cli.app import floodmark
from misuse.accounts import Account, Counts, NotAccounted, Row, check_commit, check_rows
from misuse.odd_data import odd_plan
from misuse.odd_files import CELLS, FORMATS, OddFile, Text, is_missing, odd_file, odd_names, value_in
from misuse.test_random_frames import is_ours
from profiles import seeds

WORLDS = 6
"""Datasets per seed, of about five tries each."""
_USAGE = ("UsageError", "CommandError", "NoLake", "NotConfirmed", "BadParameter", "NoSuchOption")


@dataclass
class FileWorld:
    """A lake in a folder, files beside it, and the rows that its dataset must have."""

    folder: Path
    random: Random
    outcomes: Counter[str]
    history: list[str] = field(default_factory=list)
    files: list[OddFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        random = self.random
        self.lake = fm.Lake(self.folder / "lake")
        self.merge = random.choice(["append", "append", "upsert", "upsert", "ledger", "snapshot"])
        self.key = () if self.merge == "append" else random.choice([("id",), ("id",), ("id", "shop")])
        self.names = odd_names(random, self.key)
        self.kinds = [random.choice([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10, 11]) for _ in self.names]
        self.plan = odd_plan(random, self.key)
        self.form = random.choice(FORMATS)
        self.account = Account(self.merge, self.key)
        self.run("init")
        (self.folder / "inbox").mkdir()

    @property
    def dataset(self) -> fm.Dataset | None:
        return next((one for one in self.lake if one.name == "d"), None)

    def act(self) -> None:
        if self.dataset is not None and self.random.random() < 0.25:
            self.command()
        else:
            self.write()

    # Writes

    def write(self) -> None:
        given, paths = self._delivery()
        broken = any(one.is_broken for one in given)
        text = "; ".join(f"{one.path.relative_to(self.folder)}={one.text}" for one in given)
        before = self._state()
        if self.random.random() < 0.5:
            self.history.append(f"write {paths} {text}")
            commit = self._by_python(paths)
        else:
            self.history.append(f"ingest {paths} {text}")
            commit = self._by_command(paths)
        if commit is None:
            self._check_unchanged(before)
            return
        if broken:
            self.fail("a broken file was accepted")
        self.outcomes["accepted"] += 1
        try:
            check_commit(commit, self.account.write(self._rows(given)))
            self.check_read()
        except (NotAccounted, KeyError) as error:
            self.fail(repr(error))

    def _delivery(self) -> tuple[list[OddFile], list[str]]:
        """Files, and the paths, folders or globs that name them."""
        inbox = self.folder / "inbox"
        number = len(self.files)
        if number and self.random.random() < 0.1:
            again = self.random.choice(self.files)
            return [again], [str(again.path)]
        folder = inbox / f"part{number}"
        folder.mkdir()
        count = self.random.choice([1, 1, 1, 2])
        columns = (self.form, self.names, self.kinds, self.plan)
        given = [odd_file(self.random, folder, f"f{at}", *columns) for at in range(count)]
        self.files += given
        match self.random.randrange(4):
            case 0 if "".join(given[0].path.suffixes) != ".CSV":
                return sorted(given, key=lambda one: one.path), [str(folder)]
            case 1:
                return sorted(given, key=lambda one: one.path), [str(folder / "*")]
            case 2 if self.random.random() < 0.2:
                return [*given, given[0]], [str(one.path) for one in [*given, given[0]]]
        return given, [str(one.path) for one in given]

    def _by_python(self, paths: Sequence[str]) -> Any:
        made = self.dataset is None
        try:
            dataset = self.dataset or self.lake.create("d", key=list(self.key) or None, merge=self.merge)
            return dataset.write(list(paths) if len(paths) > 1 else paths[0])
        except Exception as error:
            if not is_ours(error):
                self.fail("".join(traceback.format_exception(error)[-6:]))
            self.outcomes["refused"] += 1
            if made and "d" in self.lake:
                self.lake.drop("d")
            return None

    def _by_command(self, paths: Sequence[str]) -> Any:
        options = ["--merge", self.merge, *(["--key", ",".join(self.key)] if self.key else [])]
        told = self.run("ingest", "d", *paths, *(options if self.dataset is None else []))
        if told is None:
            return None
        counts = {name: told[name] for name in vars(Counts())}
        return SimpleNamespace(rows=told["records"], **counts)

    def _rows(self, given: Sequence[OddFile]) -> list[Row]:
        """The rows of the files, with the types of the dataset."""
        assert self.dataset is not None
        schema = self.dataset.schema
        types = {} if schema is None else {f.name: f.type for f in schema}
        rows = []
        for one in given:
            for row in one.rows:
                if lost := [n for n, value in row.items() if n not in types and not is_missing(value)]:
                    raise NotAccounted(f"column {lost[0]!r} of {one.path.name} is not in the dataset")
                rows.append({name: value_in(row.get(name), t) for name, t in types.items()})
        return rows

    # Commands

    def run(self, *arguments: str) -> Any:
        """What a command prints as JSON; None if it was refused as it should be."""
        with chdir(self.folder):
            ended = CliRunner().invoke(floodmark, [*arguments, "--json"])
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            self.fail(f"{arguments}: {''.join(traceback.format_exception(ended.exception)[-4:])}")
        try:
            told = json.loads(ended.stdout) if ended.stdout else {}
        except ValueError:
            self.fail(f"{arguments} printed no JSON: {ended.stdout[:300]}")
        if ended.exit_code == 0:
            return told
        error = told.get("error", {})
        kind = error.get("type", "")
        is_known = kind in _USAGE or (hasattr(errors, kind) and issubclass(getattr(errors, kind), fm.FloodmarkError))
        if ended.exit_code not in (1, 2, 3) or not (is_known and error["message"]):
            self.fail(f"{arguments} ended with {ended.exit_code}: {ended.stdout[:600]} {ended.stderr[:300]}")
        self.outcomes["refused"] += 1
        return None

    def command(self) -> None:
        """A command with odd arguments. Only `delete` may change rows, as its counts say."""
        odd = self.random.choice(
            ["0", "-1", "1", "999999999999", "", "x", "2026-11-19", "2026-11-19T08:00:00", "nan", "1.5"]
        )
        key = self.random.choice(self.key or ("id",))
        cell = self.random.choice(self.random.choice(CELLS))
        arguments = self.random.choice(
            [
                *(("delete", "d", f"{name}={cell}") for name in [key] * 4),
                ("delete", "d", odd),
                ("delete", "D", f"{key}=1"),
                ("delete", "d", f"{key}=1", f"{key}=2"),
                ("history", "d", f"{key}={cell}"),
                ("changes", "d", "--since", odd),
                ("changes", "d", "--limit", odd),
                ("tail", "d", "-n", odd),
                ("why", "d", odd),
                (
                    "sql",
                    self.random.choice(
                        ["select * from d", "selec", "", f"select {odd}", "drop table d", "select * from x"]
                    ),
                ),
                ("log", "d"),
                ("purge", "d", "--before", odd),
                ("schema", "d"),
                ("list",),
                ("fold", "d"),
                ("verify", "d"),
                ("rename", "d", odd),
                ("ingest", "d", odd),
                ("ingest", "d", ".", "--key", odd),
                ("ingest", odd, "inbox/nothing.csv"),
            ]
        )
        self.history.append(f"command {arguments}")
        before = self._state()
        told = self.run(*arguments)
        if arguments[0] == "rename" and told is not None:
            self.run("rename", odd, "d")
        if arguments[0] == "delete" and told is not None:
            self._check_deleted(arguments[2:], told)
            return
        self._check_unchanged(before, is_head_same=told is None)

    def _check_deleted(self, given: Sequence[str], told: dict[str, Any]) -> None:
        """A deletion has the counts of the account."""
        assert self.dataset is not None
        assert self.dataset.schema is not None
        keys: list[Row] = []
        for text in given:
            name, _, value = text.partition("=")
            try:
                keys.append({name: value_in(Text(value), self.dataset.schema.field(name).type)})
            except (NotAccounted, KeyError):
                keys.append({name: ("unknown", value)})
        expected = self.account.delete(keys)
        if told["retracted"] != expected.retracted or (len(self.key) == 1 and told["unknown"] != expected.unknown):
            self.fail(f"delete counts {told['retracted']} and {told['unknown']} unknown, the account {expected}")
        try:
            self.check_read()
        except NotAccounted as error:
            self.fail(repr(error))

    # Checks

    def _state(self) -> Any:
        return None if self.dataset is None else self.dataset.head

    def _check_unchanged(self, before: Any, is_head_same: bool = True) -> None:
        if is_head_same and self._state() != before:
            self.fail("a refused call moved the head")
        try:
            self.check_read()
        except NotAccounted as error:
            self.fail(f"rows changed: {error}")

    def check_read(self) -> None:
        dataset = self.dataset
        if dataset is None or dataset.schema is None:
            if self.account.rows():
                raise NotAccounted("the dataset is gone")
            return
        check_rows(dataset.to_arrow(), self.account, "to_arrow")

    def fail(self, why: str) -> None:
        raise AssertionError("\n".join([why[-3000:], "after:", *(line[:1500] for line in self.history)]))


def play(seed: str, folder: Path, outcomes: Counter[str]) -> None:
    """One world and its tries."""
    folder.mkdir()
    random = Random(seed)
    world = FileWorld(folder, random, outcomes)
    world.history.append(f"(world {seed}: {world.merge} {world.key} {world.names})")
    for _ in range(random.randrange(3, 8)):
        world.act()


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20))
def test_every_row_of_odd_files_is_accounted_for(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.CRITICAL)
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    outcomes: Counter[str] = Counter()
    for number in range(WORLDS):
        play(f"{seed}-{number}", tmp_path / str(number), outcomes)
    assert min(outcomes["accepted"], outcomes["refused"]) >= 2
