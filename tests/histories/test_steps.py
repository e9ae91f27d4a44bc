"""Whatever happens to its inputs and its runs: v2 = v1 = recomputing everything, and nothing is computed twice.

A machine does the same to two lakes, one with offset optimization and one without, and keeps a naive memory of what
each key was processed with. After a complete run the outputs are what the oracle makes of the inputs; before and after
every run the changelists of both ways have the same keys, in the same order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import note
from hypothesis import strategies as st

import floodmark as fm
from floodmark.errors import OutputTaken
from histories.disks import Crash, DyingFileSystem, open_lake
from histories.machines import Machine, begins, fold_all, precondition, reopened, rule, run_histories
from histories.step_oracle import Memory, Now, assert_right, expected, input_rows, keys_with_value, shown, universe
from profiles import IN_FULL
from transforms.worlds import (
    CASES,
    FACTORS,
    JOIN,
    LOOKUP_READ,
    MAP,
    MAP_READ,
    MOVING_GROUPS,
    ONE_TO_MANY,
    TWO_OUTPUTS,
    Case,
    Key,
    Row,
    World,
    in_this_process,
    make_world,
)

KEYS = range(4)
_PARTS = {"id", "ref", "i", "j", "n", "cat", "g"}
SOME = [JOIN, MOVING_GROUPS, TWO_OUTPUTS, MAP_READ, LOOKUP_READ]
_NULLABLE = {("moving_groups", "g"), ("appended", "g"), ("lookup", "cat")}


class Past:
    """Every state that the inputs have been in."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._states: list[list[list[Row]]] = []

    def look(self, lake: fm.Lake) -> None:
        self._states.append(input_rows(lake, self._case))

    def results(self, key: Key) -> list[list[list[Row]]]:
        """What a key's rows in the outputs may be: what some version makes of what was there at some moment."""
        found: list[list[list[Row]]] = []
        for inputs in self._states:
            if key in universe(self._case, inputs):
                rows = self._case.rows_of(key, inputs)
                found += [list(self._case.formula(key, rows, factor)) for factor in FACTORS.values()]
        return found


def by_key(case: Case, outputs: dict[str, list[Row]]) -> dict[Key, list[list[Row]]]:
    """The rows of each transform key in each output."""
    found: dict[Key, list[list[Row]]] = {}
    for number, output in enumerate(case.outputs):
        for row in outputs[output.name]:
            key = tuple(row[name] for name in case.keys)
            found.setdefault(key, [[] for _ in case.outputs])[number].append(row)
    return found


class Histories(Machine):
    """Two lakes, the oracle's memory of each, and the keys that are to fail in both."""

    case: Case

    @begins()
    def begin(self) -> None:
        self.worlds = [
            make_world(self.case, self.root / name, use_offset_optimization=offsets)
            for name, offsets in (("v2", True), ("v1", False))
        ]
        # By version: one that was never committed may have left results behind.
        self.known = [{version: Memory(self.case) for version in FACTORS} for _ in self.worlds]
        self.version = "1"
        self.chunk_size = 3
        self.name = "step"
        # How far each input was when a key was processed, if that may be further than the positions.
        self.seen: list[dict[Key, tuple[int, ...]]] = [{} for _ in self.worlds]
        self.failing: set[Key] = set()
        self.max_failed: float | None = None
        self.stale = False
        self.ran = False  # in the last step
        self.crashed = False  # since the last whole run: the other outputs may be ahead of the first
        self.past = Past(self.case)
        for number in range(len(self.case.sources)):
            self.write(number, [(i, i % 3, i, i) for i in range(5)])

    @property
    def memories(self) -> list[Memory]:
        """What the present version has processed in each lake."""
        return [known[self.version] for known in self.known]

    # The inputs

    @rule(which=st.integers(0, 2), row=st.tuples(*[st.integers(0, 9)] * 4))
    def write_one(self, which: int, row: tuple[int, ...]) -> None:
        self.write(which, [row])

    @rule(which=st.integers(0, 2), rows=st.lists(st.tuples(*[st.integers(0, 9)] * 4), min_size=1, max_size=4))
    def write(self, which: int, rows: list[tuple[int, ...]]) -> None:
        source = self.case.sources[which % len(self.case.sources)]
        found = []
        for row in rows:
            values = [
                value % len(KEYS) if c in _PARTS else value for c, value in zip(source.columns, row, strict=False)
            ]
            for at, column in enumerate(source.columns):
                if (self.case.name, column) in _NULLABLE and row[at] == 9 and column not in (source.key or ()):
                    values[at] = None
            found.append(tuple(values))
        if source.key is not None:
            at = [list(source.columns).index(column) for column in source.key]
            found = list({tuple(row[n] for n in at): row for row in found}.values())
        for world in self.worlds:
            world.write(source.name, *found)
        self.past.look(self.worlds[0].lake)

    @precondition(lambda self: any(source.reads is not None for source in self.case.sources))
    @rule(which=st.integers(0, 2), at=st.integers(0, 20), count=st.integers(1, 3), value=st.integers(10, 99))
    def change_what_is_not_read(self, which: int, at: int, count: int, value: int) -> None:
        sources = [source for source in self.case.sources if source.reads is not None]
        source = sources[which % len(sources)]
        found = self.worlds[0].lake[source.name].to_arrow().to_pylist()
        rows = sorted(found, key=str)[at % max(1, len(found)) :][:count]
        if rows:
            for world in self.worlds:
                world.write(source.name, *[tuple({**row, "other": value}[c] for c in source.columns) for row in rows])
            self.past.look(self.worlds[0].lake)

    @rule(which=st.integers(0, 2), at=st.integers(0, 20), count=st.integers(1, 2))
    def delete(self, which: int, at: int, count: int) -> None:
        source = self.case.sources[which % len(self.case.sources)]
        if source.key is None:
            return
        for world in self.worlds:
            rows = world.lake[source.name].to_arrow().to_pylist()
            for row in sorted(rows, key=str)[at % max(1, len(rows)) :][:count]:
                world.lake[source.name].delete([{column: row[column] for column in source.key}])
        self.past.look(self.worlds[0].lake)

    @rule(at=st.integers(0, 20), bad=st.booleans())
    def switch_failures(self, at: int, bad: bool) -> None:
        keys = sorted(self.case.keys_in(input_rows(self.worlds[0].lake, self.case)), key=str)
        self.failing = {keys[at % len(keys)]} if bad and keys else set()
        for world in self.worlds:
            world.calls.fail(*self.failing)

    @rule(share=st.sampled_from([None, 0.3, 1]))
    def change_share(self, share: float | None) -> None:
        self.max_failed = share

    @rule(what=st.sampled_from(["fold", "reopen", "rename", "chunks"]))
    def disturb(self, what: str) -> None:
        """What changes no result."""
        match what:
            case "fold":
                for world in self.worlds:
                    fold_all(world.lake)
            case "reopen":
                for world in self.worlds:
                    world.lake = reopened(world.lake)
            case "rename" if not self.stale:
                self.name = f"step{len(self.name)}"
            case "chunks":
                self.chunk_size = {3: 1, 1: 2, 2: 100, 100: 3}[self.chunk_size]

    # Runs

    def step(self, world: World) -> fm.BatchTransform:
        self.ran = True
        return world.step(self.version, chunk_size=self.chunk_size, name=self.name, max_failed=self.max_failed)

    def look_around(self) -> None:
        """Whether part of the keys can be processed; and a step whose function changed goes by its old name."""
        self.stale = False
        for world in self.worlds:
            try:
                status = self.step(world).status(world.lake)
            except OutputTaken as taken:
                self.name = taken.owner
                status = self.step(world).status(world.lake)
            self.stale = self.stale or status.stale is not None

    def settle(self, number: int) -> None:
        """What other versions have processed is replaced once the present one has committed."""
        world = self.worlds[number]
        if any(o.name in world.lake for o in self.case.outputs) and not self.step(world).status(world.lake).stale:
            for version, memory in self.known[number].items():
                if version != self.version:
                    memory.replaced()

    def keys(self, world: World, offsets: bool) -> list[Key]:
        table = self.step(world).changelist(world.lake, offsets)
        found = list(zip(*(table[name].to_pylist() for name in self.case.keys), strict=True))
        assert len(found) == len(set(found)), "a key is in the changelist twice"
        return found

    def errors(self, world: World) -> set[Key]:
        table = self.step(world).errors(world.lake)
        return {tuple(row[name] for name in self.case.keys) for row in table.to_pylist()}

    def showing_older(self, world: World) -> set[Key]:
        table = self.step(world).errors(world.lake)
        return {tuple(row[name] for name in self.case.keys) for row in table.to_pylist() if row["stale"]}

    def known_failures(self, number: int) -> set[Key]:
        """Keys that have failed in any version: the step may know of their failures."""
        return {key for memory in self.known[number].values() for key in memory.broken()}

    def check_refusal(self, world: World, memory: Memory, known: set[Key], is_refused: bool) -> None:
        """A run is refused when all newly tried keys fail, or more than the share that may."""
        ended = world.calls.last()
        failed, tried = sum(ended.values()), len(ended)
        if not known and not memory.perhaps:  # else which keys are new, or have stored results, is not certain
            too_many = failed == tried or (self.max_failed is not None and failed > self.max_failed * tried)
            assert is_refused == (failed > 0 and too_many and self.max_failed != 1), (ended, self.max_failed)
        elif is_refused:
            assert failed
            assert self.max_failed != 1

    def check_refused(
        self, world: World, memory: Memory, now: Now, before: dict[str, list[Row]], keys: set[Key], every: int | None
    ) -> None:
        """A refused run has changed no row, except in waves that it had committed. It has stored what succeeded."""
        ended, after = world.calls.last(), shown(world.lake, self.case)
        assert self.errors(world) >= {key for key, bad in ended.items() if bad}
        if every is None:
            assert after == before
            memory.cut_short([key for key, bad in ended.items() if not bad], now)
            return
        right = by_key(self.case, expected(self.case, now.inputs, FACTORS[self.version]))
        one, other, nothing = by_key(self.case, before), by_key(self.case, after), [[] for _ in self.case.outputs]
        for key in {*one, *other, *right}:
            may_be = [one.get(key, nothing)] if ended.get(key) else [r.get(key, nothing) for r in (one, right)]
            assert other.get(key, nothing) in may_be, f"{key} is neither as it was nor as it should be"
        memory.cut_short([key for key in keys if not ended.get(key)], now)

    def look(self, world: World, memory: Memory) -> tuple[Now, set[Key]]:
        """The inputs now, and the keys of the changelist, which is the same both ways and as it must be."""
        now = memory.now(world.lake)
        keys = self.agreed_keys(world)
        must, may = memory.must(now), memory.may(now)
        assert must <= keys, f"not in the changelist: {must - keys}"
        alive = keys & set(now.universe)
        assert alive <= may, f"in the changelist without a reason: {alive - may}"
        return now, keys

    def check_called(self, world: World, memory: Memory, now: Now, keys: set[Key], wanted: set[Key]) -> None:
        """What was called had to be, or may have been; a key that did not fail is called once."""
        count = world.calls.count()
        called = set(count)
        must, may = memory.must(now) & wanted, memory.may(now) & keys & wanted
        note(f"called {sorted(called, key=str)}, must {sorted(must, key=str)}")
        assert must <= called | set(memory.perhaps), f"not called: {must - called}"
        assert called <= may, f"called without a reason: {called - may}"
        if not self.failing:
            assert set(count.values()) <= {1}, f"called twice in one run: {count}"

    @rule(every=st.sampled_from([None, None, 1, 2]))
    def run(self, every: int | None) -> None:
        self.run_all(every)

    @rule()
    def run_once_more(self) -> None:
        """The same, so that it comes more often than the rest."""
        self.run_all(None)

    def run_all(self, every: int | None) -> None:
        was_cut_short = False
        for number, (world, memory) in enumerate(zip(self.worlds, self.memories, strict=True)):
            now, keys = self.look(world, memory)
            before, positions = shown(world.lake, self.case), self.positions(world)
            known = self.known_failures(number)
            world.calls.forget()
            report = self.step(world).run(world.lake, commit_every=every, check=False)
            self.settle(number)
            note(str(report))
            self.check_called(world, memory, now, keys, keys)
            self.check_refusal(world, memory, known, bool(report.problem))
            memory.called(world.calls.last())
            if report.problem:
                failing = [key for key, bad in world.calls.last().items() if bad]
                if not self.stale:
                    self.seen[number] |= dict.fromkeys(failing, now.heads)
                assert report.failed == len(failing)
                self.check_refused(world, memory, now, before, keys, every)
                if every is None:
                    assert self.positions(world) == positions
                else:
                    was_cut_short = True  # which waves were committed before is not known here
                continue
            memory.processed({*keys, *now.universe}, now)
            for key in [key for key in memory.done if key not in now.universe]:
                memory.processed([key], now)
            memory.perhaps.clear()
            self.seen[number].clear()  # the positions are as far
            failed = {key for key in memory.broken() if key in now.universe}
            good = by_key(self.case, before)
            assert shown(world.lake, self.case) == expected(self.case, now.inputs, FACTORS[self.version], failed, good)
            assert self.errors(world) == failed
            assert self.showing_older(world) == {key for key in failed if any(good.get(key, []))}
            assert report.failed == len(failed & keys)
            assert self.positions(world) == world.heads()
            assert self.agreed_keys(world) == failed
        self.look_around()
        # A key that fails since a crash may still show a result of that run in some outputs.
        self.crashed = was_cut_short or (self.crashed and any(memory.broken() for memory in self.memories))
        if not self.memories[0].broken() and not self.memories[1].broken():
            assert shown(self.worlds[0].lake, self.case) == shown(self.worlds[1].lake, self.case)

    @precondition(lambda self: not self.stale)
    @rule(
        values=st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True),
        limit=st.sampled_from([None, None, 1, 2]),
        filtered=st.booleans(),
    )
    def run_part(self, values: list[int], limit: int | None, filtered: bool) -> None:
        """Filters, a limit, or both: what is processed is right, the rest is as it was."""
        how: dict[str, Any] = {"max_records": limit} if limit else {}
        if filtered or not limit:
            how["filters"] = {self.case.keys[0]: values}
        self.run_some(how, lambda _, keys: {key for key in keys if key[0] in values} if "filters" in how else keys)

    @precondition(lambda self: not self.stale and not self.crashed)
    @rule(at=st.integers(0, 20), values=st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))
    def run_by_rows(self, at: int, values: list[int]) -> None:
        """A filter by a column that is not a transform key."""
        columns = sorted({c for source in self.case.sources for c in source.columns} - set(self.case.keys))
        column = columns[at % len(columns)]

        def wanted(number: int, keys: set[Key]) -> set[Key]:
            world, seen = self.worlds[number], self.seen[number]
            positions = [self.positions(world)[source.name] for source in self.case.sources]

            def since(key: Key) -> list[int]:
                return [max(pair) for pair in zip(positions, seen.get(key, positions), strict=True)]

            return keys_with_value(world.lake, self.case, keys, column, values, since)

        self.run_some({"filters": {column: values}}, wanted)

    def run_some(self, how: dict[str, Any], choose: Callable[[int, set[Key]], set[Key]]) -> None:
        limit = how.get("max_records")
        for number, (world, memory) in enumerate(zip(self.worlds, self.memories, strict=True)):
            now, keys = self.look(world, memory)
            before, positions = shown(world.lake, self.case), self.positions(world)
            wanted = choose(number, keys)
            world.calls.forget()
            known = self.known_failures(self.worlds.index(world))
            report = self.step(world).run(world.lake, **how, check=False)
            called = set(world.calls.count())
            self.check_refusal(world, memory, known, bool(report.problem))
            if report.problem:
                memory.called(world.calls.last())
                self.seen[number] |= dict.fromkeys([key for key, bad in world.calls.last().items() if bad], now.heads)
                self.check_refused(world, memory, now, before, keys, None)
                assert self.positions(world) == positions
                continue
            if limit:
                assert report.keys <= limit
                assert report.keys == min(limit, len(wanted))
                assert called <= wanted
            else:
                assert report.keys == len(wanted)
                self.check_called(world, memory, now, keys, wanted)
            left = self.agreed_keys(world)
            processed = (wanted - left) | called
            memory.called(world.calls.last())
            failed, good = memory.broken(), by_key(self.case, before)
            right = expected(self.case, now.inputs, FACTORS[self.version], failed, good)
            after = shown(world.lake, self.case)
            for output in self.case.outputs:
                of = {
                    k: [tuple(r[c] for c in self.case.keys) for r in t[output.name]]
                    for k, t in (("right", right), ("after", after), ("before", before))
                }
                for key in {*of["right"], *of["after"], *of["before"]}:
                    source = right if key in processed else before
                    mine = [r for r in source[output.name] if tuple(r[c] for c in self.case.keys) == key]
                    found = [r for r in after[output.name] if tuple(r[c] for c in self.case.keys) == key]
                    assert found == mine, f"{key} was {'processed' if key in processed else 'left alone'}"
            memory.processed(processed, now)
            self.seen[number] |= dict.fromkeys(processed | wanted if limit is None else processed, now.heads)
            if "filters" in how:
                assert self.positions(world) == positions, "a filtered run does not move positions"

    def agreed_keys(self, world: World) -> set[Key]:
        """The keys of the changelist, which is the same both ways."""
        keys = self.keys(world, True)
        assert keys == self.keys(world, False), "v1 and v2 do not list the same keys in the same order"
        return set(keys)

    @precondition(lambda self: not self.stale)
    @rule(at=st.integers(0, 20))
    def run_given(self, at: int) -> None:
        """A key that somebody asks for is processed, changed or not."""
        for number, (world, memory) in enumerate(zip(self.worlds, self.memories, strict=True)):
            now = memory.now(world.lake)
            keys = sorted(now.universe, key=str)
            if not keys or not all(self.case.is_full(s) for s in self.case.sources) or None in keys[at % len(keys)]:
                return
            key = keys[at % len(keys)]
            positions = self.positions(world)
            source = self.case.sources[0]
            asked = {source.part[name]: value for name, value in zip(self.case.keys, key, strict=True)}
            world.calls.forget()
            report = self.step(world).run_changelist(world.lake, {source.name: [asked]}, check=False)
            assert set(world.calls.count()) <= {key}
            assert key in world.calls.count() or key in memory.perhaps
            memory.called(world.calls.last())
            self.seen[number][key] = now.heads
            if not report.problem:
                memory.processed([key], now)
            assert self.positions(world) == positions
            self.agreed_keys(world)

    @rule(version=st.sampled_from(sorted(FACTORS)))
    def change_version(self, version: str) -> None:
        self.version = version
        self.look_around()

    @precondition(lambda self: any(o.name in self.worlds[0].lake for o in self.case.outputs))
    @rule()
    def reset(self) -> None:
        for world, known in zip(self.worlds, self.known, strict=True):
            before = shown(world.lake, self.case)
            self.step(world).reset(world.lake)
            assert shown(world.lake, self.case) == before
            for memory in known.values():
                memory.forget()
        self.look_around()

    @precondition(lambda self: not self.stale)
    @rule()
    def retry(self) -> None:
        for number, (world, memory) in enumerate(zip(self.worlds, self.memories, strict=True)):
            now = memory.now(world.lake)
            failed = self.errors(world)
            self.seen[number] |= dict.fromkeys(failed, now.heads)
            world.calls.forget()
            self.step(world).retry(world.lake)
            called = set(world.calls.count())
            assert called <= failed
            memory.called(world.calls.last())
            memory.processed(called, now)
            self.agreed_keys(world)

    @rule(nth=st.integers(0, 60), every=st.sampled_from([None, 1, 2]))
    def crash(self, nth: int, every: int | None) -> None:
        """The process ends at its nth change of the disk."""
        self.crashed = True
        for number, (world, memory) in enumerate(zip(self.worlds, self.memories, strict=True)):
            now, keys = self.look(world, memory)
            dying = open_lake(Path(world.lake.store.url), DyingFileSystem(nth))
            world.calls.forget()
            try:
                self.step(world).run(dying, commit_every=every, check=False)
            except Crash:
                note("crashed")
            called = set(world.calls.count())
            assert called <= memory.may(now) & keys
            memory.called(world.calls.last())
            memory.cut_short({*keys, *called}, now)
            self.settle(number)
            self.look_only(world, memory)
        self.look_around()

    def look_only(self, world: World, memory: Memory) -> None:
        """After a crash the chains are sound, and both ways still agree."""
        for dataset in world.lake:
            assert dataset.verify().problems == ()
        self.agreed_keys(world)

    # What is always true

    def positions(self, world: World) -> dict[str, int]:
        table = self.step(world).offsets(world.lake)
        found = dict(zip(table["input"].to_pylist(), table["offset"].to_pylist(), strict=True))
        return {name: -1 if offset is None else offset for name, offset in found.items()}

    def check(self) -> None:
        if self.ran:
            self.positions_never_pass_the_heads()
            self.shown_rows_are_results_of_rows_that_were_there()
        self.ran = False

    def positions_never_pass_the_heads(self) -> None:
        for world in self.worlds:
            heads = world.heads()
            assert all(-1 <= offset <= heads[name] for name, offset in self.positions(world).items())

    def shown_rows_are_results_of_rows_that_were_there(self) -> None:
        """This check knows nothing of which keys a run takes, what it remembers or how far it has read."""
        for world in self.worlds:
            outputs = shown(world.lake, self.case)
            for output in self.case.outputs:
                keys = [tuple(row[name] for name in output.key) for row in outputs[output.name]]
                assert len(keys) == len(set(keys)), "a key is shown twice"
            for key, rows in by_key(self.case, outputs).items():
                results = self.past.results(key)
                if self.crashed:
                    for number, shown_rows in enumerate(rows):
                        alone = [[], *(result[number] for result in results)]
                        assert shown_rows in alone, f"no version makes {shown_rows} of {key}"
                else:
                    assert rows in results, f"no version makes {rows} of {key}"

    def check_end(self) -> None:
        """Whatever came before: a key fails, another loses a row, and a good run makes everything right."""
        self.write(0, [(key, key % 3, key + 1, key) for key in KEYS])
        self.switch_failures(0, True)
        self.change_version(next(version for version in sorted(FACTORS) if version != self.version))
        self.run_all(None)
        self.switch_failures(0, False)
        self.delete(0, 1, 2)
        self.run_all(None)
        for world in self.worlds:
            assert_right(world, FACTORS[self.version])
            assert self.step(world).run(world.lake).nothing


@pytest.mark.soak
@pytest.mark.parametrize(
    "case", CASES if IN_FULL else [JOIN, MOVING_GROUPS, TWO_OUTPUTS, MAP_READ, LOOKUP_READ], ids=str
)
def test_v2_is_v1_is_everything_from_scratch_whatever_happens(case: Case):
    with in_this_process():
        run_histories(Histories, ci=1, steps=9, case=case)


@pytest.fixture
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.mark.usefixtures("_here")
def test_run_shows_all_rows_of_a_key_at_once_or_none(tmp_path: Path):
    """With one to many, a reader never sees half of a key's rows."""
    world = make_world(ONE_TO_MANY, tmp_path, chunk_size=1)
    world.write("a", *[(i, 3) for i in range(6)])
    world.run(run={"commit_every": 1})
    for offset in range(world.lake["many"].last_offset or 0):
        rows = world.lake["many"].to_arrow(as_of=offset).to_pylist()
        counts = {row["id"]: sum(other["id"] == row["id"] for other in rows) for row in rows}
        assert set(counts.values()) <= {3}


WAYS: list[dict[str, Any]] = [{}, {}, {"max_records": 1}, {"max_records": 2}, {"commit_every": 1}]


@pytest.mark.usefixtures("_here")
def test_order_of_writes_does_not_change_what_is_shown_in_the_end(tmp_path: Path):
    rows = [(i, i * 3) for i in range(9)]
    for seed in range(2):
        chance = random.Random(seed)
        world = make_world(MAP, tmp_path / str(seed))
        left = chance.sample(rows, len(rows))
        while left:
            take, left = left[: (n := chance.randint(1, 4))], left[n:]
            world.write("a", *take)
            world.run(run=chance.choice(WAYS))
        world.run()
        assert world.rows() == [{"id": i, "w": v * 10} for i, v in rows]
