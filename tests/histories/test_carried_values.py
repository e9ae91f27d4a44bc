"""Random updates, backfills and kills: values are as computed from scratch, and calls are for changed inputs only."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import floodmark as fm
from columns.carried_worlds import BAD, CarriedWorld
from histories.calls import CallLog
from histories.disks import Crash, DyingFileSystem, after_faults, open_lake
from profiles import seeds

SURE, PERHAPS = "sure", "perhaps"
STEPS = (
    ["write"] * 4
    + ["touch"] * 4
    + ["delete", "fold", "reopen", "alter", "mend", "kill", "kill"]
    + ["backfill"] * 4
    + ["ask"] * 2
)
VIEW = 10
"""Added to a version, it stands for the results that a view has of it."""
SIZES: list[dict[str, int]] = [{}, {"max_checkpoint_size": 3}, {"task_size": 4}, {"commit_granularity": 1}]


@dataclass
class Record:
    """A record of one id, the record that it replaced, and which versions of the function have a result for it."""

    x: int | None
    other: int
    before: Record | None = None
    follows_deletion: bool = False
    results: dict[int, str] = field(default_factory=dict)

    def outcomes(self, version: int) -> set[str]:
        """What a backfill may do for this record: find a result ("has"), carry one over, or call the function."""
        own = self.results.get(version)
        if own == SURE:
            return {"has"}
        return {"has", *self._without(version)} if own == PERHAPS else self._without(version)

    def _without(self, version: int) -> set[str]:
        found: set[str] = set()
        at: Record | None = self
        while at is not None and at.before is not None:
            if at.follows_deletion:  # the two records may be neighbours, then the search goes on
                if at is self:
                    break
                found.add("call")
            at = at.before
            if version in at.results:
                found.add("carry" if at.x == self.x else "call")
                if at.results[version] == SURE:
                    return found
        return found | {"call"}


@dataclass
class History:
    """A world in a folder, and the oracle of its records."""

    world: CarriedWorld
    root: Path
    chance: random.Random
    live: dict[int, Record] = field(default_factory=dict)
    gone: dict[int, Record] = field(default_factory=dict)
    version: int = 1

    def write(self, rows: dict[int, tuple[int | None, int]] | None = None) -> None:
        """Rows with few different values, so that inputs also change back."""
        if rows is None:
            ids = self.chance.sample(range(16), self.chance.randint(1, 8))
            rows = {i: (self.chance.choice([None, 1, 2, BAD]), self.chance.randint(0, 3)) for i in ids}
        self.world.write(*[(i, x, other) for i, (x, other) in rows.items()])
        for i, (x, other) in rows.items():
            now = self.live.get(i)
            if now is None:
                self.live[i] = Record(x, other, self.gone.pop(i, None), follows_deletion=True)
            elif (now.x, now.other) != (x, other):
                self.live[i] = Record(x, other, now)

    def touch(self) -> None:
        """Changes of the other column only."""
        if self.live:
            ids = self.chance.sample(sorted(self.live), min(len(self.live), self.chance.randint(1, 8)))
            self.write({i: (self.live[i].x, self.live[i].other + 1) for i in ids})

    def delete(self) -> None:
        if self.live:
            i = self.chance.choice(sorted(self.live))
            self.world.dataset.delete([i])
            self.gone[i] = self.live.pop(i)

    def fold(self) -> None:
        self.world.dataset.fold()

    def reopen(self) -> None:
        self.world.lake = open_lake(self.root)

    def alter(self) -> None:
        self.version = self.chance.choice([1, 2])
        self.world.dataset.alter_column("y", self.world.udf(self.version))

    def mend(self) -> None:
        """From now on, or no longer, the function takes all values."""
        if self.world.calls.ordered("mended") is None:
            self.world.calls.order("mended")
        else:
            self.world.calls.cancel("mended")

    def kill(self) -> None:
        """The disk dies at some change. What was called may be stored or not."""
        self.world.calls.forget()
        self.world.lake = open_lake(self.root, DyingFileSystem(self.chance.randint(0, 12), Crash))
        with suppress(Crash, OSError, fm.FloodmarkError):
            self.world.backfill_only(version=self.version, **self.chance.choice(SIZES))
        self.reopen()
        for record in self.live.values():
            if record.results.get(self.version) != SURE:
                record.results[self.version] = PERHAPS

    def backfill(self) -> None:
        where, limit = self.chance.choice([(None, 99), (None, 99), ("id < 8", 8)])
        expected = {i: record.outcomes(self.version) for i, record in self.live.items() if i < limit}
        done = self.world.backfill(where, self.version, **self.chance.choice(SIZES))
        called = set(self.world.called)
        assert {i for i, ways in expected.items() if ways == {"call"}} <= called, "a changed input was not computed"
        assert called <= {i for i, ways in expected.items() if "call" in ways}, "an unchanged input was computed"
        surely = sum(ways == {"carry"} for ways in expected.values())
        assert surely <= done.carried <= sum("carry" in ways for ways in expected.values())
        for i in expected:
            self.live[i].results[self.version] = SURE
        self.check(set(expected), called)

    def ask(self) -> None:
        """The values of some rows for a view, which reads the keys of its checkpoints first, and stops at ranges."""
        version = self.version + VIEW
        ids = sorted(self.chance.sample(sorted(self.live), self.chance.randint(0, len(self.live))))
        expected = {i: self.live[i].outcomes(version) for i in ids}
        found = self.world.ask(ids, self.version, **self.chance.choice(SIZES[:2]))
        called = set(self.world.called)
        assert {i for i, ways in expected.items() if ways == {"call"}} <= called
        for i in called:
            before = self.live[i].before
            direct = before is not None and not self.live[i].follows_deletion and version in before.results
            assert "call" in expected[i] or not direct
        assert found.carried <= sum("carry" in ways for ways in expected.values())
        offsets = self.world.offsets()
        errors = set(found.errors["offset"].to_pylist())
        for i, value in zip(ids, found.take(np.array([offsets[i] for i in ids], np.int64)).to_pylist(), strict=True):
            self.live[i].results[version] = SURE
            x = self.live[i].x
            assert offsets[i] not in errors or x == BAD
            if offsets[i] not in errors:
                assert value == (None if x is None else x * 10 + self.version)

    def check(self, ids: set[int], called: set[int]) -> None:
        """Values are those from scratch; where x is BAD, they are null if the last call for these inputs failed."""
        values, errors = self.world.values(), dict(self.world.errors())
        for i in ids:
            x = self.live[i].x
            if x == BAD:
                assert (values[i] is None) == (i in errors)
                assert i not in called or (i in errors) == (self.world.calls.ordered("mended") is None)
            else:
                assert i not in errors
            if i not in errors:
                assert values[i] == (None if x is None else x * 10 + self.version)


def begun(folder: Path, chance: random.Random) -> History:
    world = CarriedWorld.new(folder, store=open_lake(folder / "lake").store)
    world.fragment_rows = chance.choice([4, 8, 16])
    history = History(world, folder / "lake", chance)
    history.write()
    world.add()
    return history


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(12))
def test_histories(seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="floodmark-", ignore_cleanup_errors=True) as folder:
        history = begun(Path(folder), chance)
        for _ in range(40):
            getattr(history, chance.choice(STEPS))()
        history.backfill()


# A kill at every step

XS = {i: i % 5 for i in range(20)}
CHANGED = {2, 7, 19}


@pytest.mark.parametrize("size", [None, 2])
def test_backfill_that_is_killed_anywhere_never_calls_for_unchanged_inputs(tmp_path: Path, size: int | None) -> None:
    for world, _ in after_faults(lambda: updated(tmp_path, next(numbers)), lambda w, d: killed(w, d, size), Crash):
        called = world.called
        world.lake = open_lake(world.calls.folder / "lake")
        done = world.backfill()
        assert set(called) | set(world.called) == CHANGED
        assert world.values() == {i: x * 10 + 1 for i, x in after().items()}
        assert world.status.carried + len(CHANGED) == 20
        assert done.carried + done.reused + done.computed + done.done == 20


def after() -> dict[int, int]:
    return {i: x + 50 * (i in CHANGED) for i, x in XS.items()}


def counted() -> Iterator[int]:
    n = 0
    while True:
        n += 1
        yield n


numbers = counted()


def updated(folder: Path, number: int) -> CarriedWorld:
    """A world in which every row was updated after it was computed, most of them in the other column only."""
    original, copy = folder / "original", folder / str(number)
    if not original.exists():
        world = CarriedWorld.new(original, store=open_lake(original / "lake").store)
        world.write(*[(i, x, 0) for i, x in XS.items()])
        world.add()
        world.backfill()
        for other in (1, 2):
            world.write(*[(i, x, other) for i, x in after().items()])
        world.calls.forget()
    shutil.copytree(original, copy)
    return CarriedWorld(open_lake(copy / "lake"), CallLog(copy))


def killed(world: CarriedWorld, disk: DyingFileSystem, size: int | None) -> None:
    world.lake = open_lake(world.calls.folder / "lake", disk)
    world.backfill_only(max_checkpoint_size=size)
