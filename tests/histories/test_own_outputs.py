"""A step that reads its own output: whatever happens, v1 = v2 = a naive replay of the runs.

The result of a key depends on the one before it, so a key that is processed twice, or not at all, shows at once. The
model is two dictionaries and the set of keys that users changed since a run processed them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import note
from hypothesis import strategies as st

import floodmark as fm
from histories.calls import in_this_process
from histories.disks import Crash, DyingFileSystem, open_lake
from histories.machines import Machine, begins, fold_all, precondition, reopened, rule, run_histories

KEYS = st.integers(0, 3)
ROWS = st.dictionaries(KEYS, st.integers(0, 4), min_size=1, max_size=3)
SCHEMAS = {"a": {"id": "int64", "v": "int64"}, "t": {"id": "int64", "w": "int64"}}
Values = dict[int, int]


def result(v: int | None, w: int | None, factor: int) -> int | None:
    """The new total of a key from its value and its total before; None for no row."""
    if v == 0 or (v is None and w == 4):
        return None
    return ((w or 0) * factor + 1 if v is None else (w or 0) * factor + v) % 1009


class World:
    """A lake, and what its functions were called with."""

    def __init__(self, folder: Path, offsets: bool, inputs: tuple[str, ...]) -> None:
        self.lake = open_lake(folder)
        self.offsets, self.inputs = offsets, inputs
        self.called: list[int] = []
        for name, schema in SCHEMAS.items():
            self.lake.create(name, key="id", schema=schema)

    def step(self, version: str) -> fm.BatchTransform:
        def work(*frames: pa.Table) -> pa.Table:
            columns = [dict(zip(f["id"].to_pylist(), f.column(1).to_pylist(), strict=True)) for f in frames]
            values, totals = columns if len(columns) == 2 else ({}, columns[0])
            keys = sorted({*values, *totals})
            self.called += keys
            made = {key: result(values.get(key), totals.get(key), int(version)) for key in keys}
            rows = {key: value for key, value in made.items() if value is not None}
            return pa.table({"id": pa.array(rows, pa.int64()), "w": pa.array(rows.values(), pa.int64())})

        def one(t: pa.Table) -> pa.Table:
            return work(t)

        def two(a: pa.Table, t: pa.Table) -> pa.Table:
            return work(a, t)

        func: Callable[..., Any] = one if len(self.inputs) == 1 else two
        options = {"version": version, "name": "totals", "chunk_size": 2, "use_offset_optimization": self.offsets}
        return fm.BatchTransform(func, list(self.inputs), ["t"], transform_keys=["id"], **options)

    def values(self, name: str) -> Values:
        table = self.lake[name].to_arrow()
        return dict(zip(table["id"].to_pylist(), table.column(1).to_pylist(), strict=True))


class OwnOutputs(Machine):
    """Two lakes, one with each changelist, and the model."""

    inputs: tuple[str, ...]

    @begins()
    def begin(self) -> None:
        self.worlds = [World(self.root / name, offsets, self.inputs) for name, offsets in (("2", True), ("1", False))]
        self.model: dict[str, Values] = {"a": {}, "t": {}}
        self.pending: set[int] = set()
        self.version, self.committed = "2", "2"
        self.is_reset = False
        self.write("t", {1: 1, 2: 2})
        self.write("a", {0: 3, 1: 4})

    @property
    def existing(self) -> set[int]:
        return {key for name in self.inputs for key in self.model[name]}

    @property
    def is_stale(self) -> bool:
        return self.is_reset or self.version != self.committed

    @property
    def due(self) -> set[int]:
        """The keys that a whole run calls the function for."""
        return self.existing if self.is_stale else self.pending & self.existing

    def changed(self, name: str, keys: set[int]) -> None:
        if name in self.inputs:
            self.pending |= keys

    # What users do

    @rule(name=st.sampled_from(["a", "a", "t"]), rows=ROWS)
    def write(self, name: str, rows: Values) -> None:
        for world in self.worlds:
            columns = zip(SCHEMAS[name], (rows, rows.values()), strict=True)
            world.lake[name].write(pa.table({column: pa.array(values, pa.int64()) for column, values in columns}))
        now = self.model[name]
        self.changed(name, {key for key, value in rows.items() if now.get(key) != value})
        now |= rows

    @rule(name=st.sampled_from(["a", "t"]), keys=st.lists(KEYS, min_size=1, max_size=2, unique=True))
    def delete(self, name: str, keys: list[int]) -> None:
        for world in self.worlds:
            world.lake[name].delete(keys)
        gone = {key for key in keys if self.model[name].pop(key, None) is not None}
        self.changed(name, gone)

    @rule(what=st.sampled_from(["fold", "reopen", "purge"]), name=st.sampled_from(["a", "t"]))
    def disturb(self, what: str, name: str) -> None:
        """What changes no row. A purge removes only what was processed."""
        for world in self.worlds:
            match what:
                case "fold":
                    fold_all(world.lake)
                case "reopen":
                    world.lake = reopened(world.lake)
                case "purge" if not self.pending and not self.is_stale:
                    world.lake[name].purge(before=world.lake[name].snapshot().next_offset)

    @rule(version=st.sampled_from(["2", "3"]))
    def change_version(self, version: str) -> None:
        self.version = version

    @rule()
    def reset(self) -> None:
        for world in self.worlds:
            world.step(self.version).reset(world.lake)
        self.is_reset = self.is_reset or self.has_run

    # Runs

    has_run = False

    @rule(every=st.sampled_from([None, None, 1, 2]))
    def run(self, every: int | None) -> None:
        due = self.due
        for world in self.worlds:
            self.check_agreement(world)
            world.called.clear()
            report = world.step(self.version).run(world.lake, commit_every=every)
            note(str(report))
            assert sorted(world.called) == sorted(due)
            assert world.step(self.version).run(world.lake).nothing
            assert world.step(self.version).status(world.lake).behind == 0
        self.processed(due)
        self.pending.clear()
        self.committed, self.is_reset, self.has_run = self.version, False, True

    @precondition(lambda self: self.has_run and not self.is_stale)
    @rule(keys=st.lists(KEYS, min_size=1, max_size=2, unique=True))
    def run_filtered(self, keys: list[int]) -> None:
        due = self.due & set(keys)
        for world in self.worlds:
            world.called.clear()
            world.step(self.version).run(world.lake, filters={"id": keys})
            assert sorted(world.called) == sorted(due)
        self.processed(due)
        self.pending -= set(keys)

    @precondition(lambda self: self.has_run and not self.is_stale)
    @rule(most=st.integers(1, 2))
    def run_limited(self, most: int) -> None:
        called = []
        for world in self.worlds:
            world.called.clear()
            report = world.step(self.version).run(world.lake, max_records=most)
            assert report.keys <= most
            assert set(world.called) <= self.due
            assert len(world.called) == len(set(world.called))
            called.append(set(world.called))
        assert called[0] == called[1]
        self.processed(called[0])
        self.pending -= called[0]

    @precondition(lambda self: self.has_run and not self.is_stale)
    @rule(key=KEYS)
    def run_requested(self, key: int) -> None:
        if key not in self.existing:
            return
        for world in self.worlds:
            world.called.clear()
            world.step(self.version).run_changelist(world.lake, {self.inputs[0]: [key]})
            assert world.called == [key]
        self.processed({key})
        self.pending.discard(key)

    @precondition(lambda self: self.has_run and not self.is_stale)
    @rule(nth=st.integers(0, 60), every=st.sampled_from([None, 1]))
    def crash(self, nth: int, every: int | None) -> None:
        """The process ends at its nth change of the disk: each key is processed once, then or later."""
        due = self.due
        for world in self.worlds:
            dying = open_lake(Path(world.lake.store.url), DyingFileSystem(nth))
            try:
                world.step(self.version).run(dying, commit_every=every)
            except Crash:
                note("crashed")
            left = self.check_agreement(world) & self.existing
            assert left <= due
            once = {key: self.applied(key) if key in due - left else self.model["t"].get(key) for key in range(5)}
            assert world.values("t") == {key: value for key, value in once.items() if value is not None}
            world.step(self.version).run(world.lake)
        self.processed(due)
        self.pending.clear()

    def check_agreement(self, world: World) -> set[int]:
        """The keys of the changelist, which is the same both ways."""
        step = world.step(self.version)
        two, one = (step.changelist(world.lake, way)["id"].to_pylist() for way in (True, False))
        assert two == one
        return set(two)

    def applied(self, key: int) -> int | None:
        value = self.model["a"].get(key) if "a" in self.inputs else None
        return result(value, self.model["t"].get(key), int(self.version))

    def processed(self, keys: set[int]) -> None:
        made = {key: self.applied(key) for key in keys}
        for key, value in made.items():
            self.model["t"].pop(key, None)
            if value is not None:
                self.model["t"][key] = value

    def check(self) -> None:
        for world in self.worlds:
            for name, values in self.model.items():
                assert world.values(name) == values, f"{name} differs"

    def check_end(self) -> None:
        self.run(None)
        self.check()
        for world in self.worlds:
            for dataset in world.lake:
                assert dataset.verify().problems == ()


@pytest.mark.soak
@pytest.mark.parametrize("inputs", [("a", "t"), ("t",)], ids=["with another input", "in place"])
def test_step_that_reads_its_own_output_is_a_naive_replay_of_its_runs(inputs: tuple[str, ...]) -> None:
    with in_this_process():
        run_histories(OwnOutputs, ci=3, steps=12, inputs=inputs)
