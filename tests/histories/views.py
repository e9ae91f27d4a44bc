"""Random histories of sources and views, checked against the oracle step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa

import floodmark as fm
from columns.worlds import TENFOLD
from faults.recording import WatchedFileSystem
from floodmark.dataset import Dataset
from floodmark.maintenance.gc import collect_garbage
from floodmark.views import changed_rows as touched_rows
from floodmark.views import evaluator
from histories.calls import in_this_process
from histories.disks import Crash, DyingFileSystem
from histories.machines import reopened
from views.view_oracle import (
    APPEND,
    CORRECT_TO,
    RETRACT,
    Scratch,
    assert_same,
    bag,
    differences,
    hidden_names,
    objects_of,
    operations,
    replayed,
)
from views.view_worlds import (
    CARRIED,
    CASES,
    COMPUTED,
    GROUPS,
    JOINS,
    ON_VIEWS,
    ROWS,
    SOURCES,
    VALUES,
    WHOLE,
    Row,
    ViewWorld,
    make_view_world,
    open_lake,
    some_rows,
    write,
)

THEMES = {
    "rows": [one.name for one in ROWS],
    "groups": [one.name for one in GROUPS],
    "joins": [one.name for one in JOINS],
    "carried": [one.name for one in CARRIED],
    "whole": [one.name for one in WHOLE],
    "views": [one.name for one in ON_VIEWS],
    "computed": [one.name for one in COMPUTED],
}
MOST_CHANGES = 40
"""Changes of the disk within which a killed refresh ends."""

MOST_CALLS = 200
"""Calls of the file system within which most refreshes end."""


@dataclass
class Moment:
    """A view after a refresh: how far its records went, and what it showed."""

    last: int | None
    rows: list[Row]


@dataclass
class History:
    """A world, what was done to it, and what its views have shown."""

    world: ViewWorld
    scratch: Scratch
    chance: Random
    story: list[str] = field(default_factory=list)
    seen: dict[str, list[Moment]] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)  # views whose definition or columns changed since their refresh
    computed: dict[tuple[str, ...], set[int]] = field(default_factory=dict)  # offsets that a view's function has seen
    steps: dict[str, fm.BatchTransform] = field(default_factory=dict)  # by the view they are fed by

    # What happens to sources

    @property
    def sources(self) -> list[Dataset]:
        return [self.world.lake[name] for name in SOURCES if name in self.world.lake]

    def append(self) -> str:
        dataset = self.chance.choice(self.sources)
        rows = some_rows(dataset, self.chance, self.chance.choice([1, 1, 2, 4, 8]))
        write(dataset, rows)
        return f"write {dataset.name} {rows}"

    def update(self) -> str:
        """Some rows that are there get another value in one column."""
        return self._alter([name for name in VALUES if name != "g"])

    def move(self) -> str:
        """Some rows that are there get into another group."""
        return self._alter(["g", "h", "d"])

    def _alter(self, columns: list[str]) -> str:
        dataset = self.chance.choice(self.sources)
        key = dataset.strategy.key
        rows = dataset.to_arrow().to_pylist()
        free = [name for name in columns if rows and name in rows[0] and name not in key]
        if not key or not free:
            return self.append()
        chosen = self.chance.sample(rows, min(len(rows), self.chance.choice([1, 1, 2])))
        column = self.chance.choice(free)
        altered = [{**row, column: self.chance.choice(VALUES[column])} for row in chosen]
        write(dataset, altered)
        return f"alter {column} in {dataset.name}: {altered}"

    def delete(self) -> str:
        dataset = self.chance.choice(self.sources)
        rows = dataset.to_arrow().to_pylist()
        if not dataset.strategy.key or not rows:
            return self.append()
        count = self.chance.choice([1, 1, 2, 3, len(rows)])
        keys = [{name: row[name] for name in dataset.strategy.key} for row in self.chance.sample(rows, count)[:count]]
        dataset.delete(keys)
        return f"delete from {dataset.name}: {keys}"

    def fold(self) -> str:
        dataset = self.chance.choice([d for d in self.world.lake if d.schema is not None])
        dataset.fold()
        return f"fold {dataset.name}"

    def purge(self) -> str:
        dataset = self.chance.choice(self.sources)
        if not dataset.last_offset:
            return self.append()
        before = self.chance.randrange(dataset.last_offset + 1)
        dataset.purge(before)
        return f"purge {dataset.name} before {before}"

    def evolve(self) -> str:
        """A source gets one more column, and rows with a value in it."""
        dataset = self.chance.choice(self.sources)
        assert dataset.schema is not None
        name = next((extra for extra in ("extra0", "extra1") if extra not in dataset.schema.names), None)
        if name is None:
            return self.append()
        dataset.evolve({name: "int64"})
        rows = some_rows(dataset, self.chance, 2)
        write(dataset, rows)
        for case in self.world.views:
            if dataset.name in case.sources and "*" in self.world.version(case.name).sql.replace("count(*)", ""):
                self.changed.add(case.name)
        return f"evolve {dataset.name} by {name}, write {rows}"

    # What happens to views

    def define(self) -> str:
        case = self.chance.choice(self.world.views)
        number = self.chance.randrange(len(case.versions))
        if number != self.world.versions[case.name]:
            self.changed.add(case.name)
        self.world.declare(case.name, number)
        return f"define {case.name} as number {number}"

    def reopen(self) -> str:
        self.world.lake = reopened(self.world.lake)
        return "reopen"

    def kill(self) -> str:
        """A refresh ends at some change of the disk, and shows what was there or what is to be."""
        case = self.chance.choice(self.world.views)
        changes = self.chance.randrange(MOST_CHANGES)
        before = self.shown(case.name)
        folder = Path(self.world.lake.store.url).parent
        dying = open_lake(folder, self.world.lake.runtime.session, DyingFileSystem(changes))
        told = f"kill the refresh of {case.name} after {changes} changes"
        try:
            self.world.refresh(case.name, dying)
        except Crash:
            after = self.shown(case.name)
            assert self.world.lake[case.name].verify().problems == ()
            if bag(after) == bag(before):
                return told
        assert_same(self.shown(case.name), self.right(case.name), "\n".join([*self.story, told]))
        self.note(case.name)
        return f"{told}: it was done by then"

    def meanwhile(self) -> str:
        """A source moves, is purged, or loses its garbage, while a refresh reads it; the next refresh sees that."""
        case, lake = self.chance.choice(self.world.views), self.world.lake
        what = self.chance.choice(["append", "update", "purge", "collect"])
        told: list[str] = []

        def act(number: int, _: str) -> None:
            if number == call:
                told.append(getattr(self, what)())

        folder, call = Path(lake.store.url).parent, self.chance.randrange(MOST_CALLS)
        self.world.refresh(case.name, open_lake(folder, lake.runtime.session, WatchedFileSystem(act)))
        assert lake[case.name].verify().problems == ()
        self.story.append(f"refresh {case.name}, and before its call {call}: {told}")
        self.refresh(case.name)
        return f"refresh {case.name}"

    def collect(self) -> str:
        names = [dataset.name for dataset in self.sources]
        return f"collect garbage: {list(collect_garbage(self.world.lake, names))}"

    def refresh_one(self) -> str:
        """One view alone, without those it is made of."""
        case = self.chance.choice(self.world.views)
        self.refresh(case.name)
        return f"refresh {case.name}"

    def refresh_all(self) -> str:
        for case in self.world.views:
            self.refresh(case.name)
        for name, step in self.steps.items():
            self.feed(name, step)
        return "refresh all"

    # What must be true

    def right(self, name: str) -> list[Row]:
        return self.scratch.rows(self.world.lake, self.world.version(name).sql, CASES[name].sources)

    def shown(self, name: str) -> list[Row]:
        dataset = self.world.lake[name]
        return [] if dataset.schema is None else dataset.to_arrow().to_pylist()

    def refresh(self, name: str) -> None:
        """Refresh a view: it shows what the oracle says, wrote the difference and no more, and has nothing to do."""
        case, view = CASES[name], self.world.lake[name]
        told = "\n".join([*self.story, f"refresh {name}"])
        if any(self.world.lake[source].schema is None for source in case.sources):
            return  # it is made of a view that was never refreshed
        before, last = self.shown(name), view.last_offset
        self.world.calls.forget()
        plan = self.world.lake.view(name).plan_refresh()
        with as_if_large() if self.chance.random() < 0.25 else nullcontext():
            report = self.world.refresh(name)
        if plan.keys is not None and not report.is_whole:  # else nobody knows before it is done
            assert plan.nothing_to_do == report.nothing, f"{plan}\n{report}\n{told}"
            assert plan.records == report.records, f"{plan}\n{report}\n{told}"
            if self.world.lake.view(name).analysis.carries_changes:  # groups whose rows do not change are left out
                assert plan.keys >= report.keys, f"{plan}\n{report}\n{told}"
            else:
                assert plan.keys == report.keys, f"{plan}\n{report}\n{told}"
        calls = self.world.calls.count()
        assert set(calls.values()) <= {1}, f"called twice for one row: {calls}\n{told}"
        assert report.called == len(calls), told
        known = self.computed.setdefault((name, *[plan.version for plan in self.world.version(name).plans]), set())
        assert not known & calls.keys(), f"called again: {known & calls.keys()}\n{told}"
        known |= calls.keys()
        rows = self.shown(name)
        assert_same(rows, self.right(name), told)
        if self.world.lake[name].id != view.id:  # it was made anew, and its records begin again
            view, last, before = self.world.lake[name], None, []
            self.seen.pop(name, None)
        written = view.changes_arrow(since=last) if view.last_offset is not None else pa.table({"op": []})
        assert operations(written) == {what: getattr(report, what) for what in ("new", "changed", "retracted")}, told
        if case.exact and name not in self.changed:
            assert written.num_rows == differences(bag(before), bag(rows)), (
                f"more than the difference is written\n{told}"
            )
        self.note(name)
        self.settled(name, told)
        self.replays(name, told)

    def note(self, name: str) -> None:
        self.changed.discard(name)
        self.seen.setdefault(name, []).append(Moment(self.world.lake[name].last_offset, self.shown(name)))

    def settled(self, name: str, told: str) -> None:
        """Another refresh does nothing, and what there is is sound and hides what is hidden."""
        view = self.world.lake.view(name)
        head, objects = view.head, objects_of(view)
        assert view.plan_refresh().nothing_to_do, told
        assert self.world.refresh(name).nothing, told
        assert (view.head, objects_of(view)) == (head, objects), f"a refresh with nothing to do wrote something\n{told}"
        assert view.verify().problems == (), told
        assert hidden_names(view.schema.names) == [], told

    def replays(self, name: str, told: str) -> None:
        """From any moment on, the records lead to what is shown now; and each moment can be read again."""
        view = self.world.lake[name]
        now = bag(self.shown(name))
        if view.last_offset is None:
            assert not now
            return
        columns = view.schema.names
        assert replayed(Counter(), view.changes_arrow()) == now, told
        for moment in self.chance.sample(self.seen[name], min(3, len(self.seen[name]))):
            rows = bag(moment.rows, columns)
            if moment.last is not None:
                assert bag(view.to_arrow(as_of=moment.last).to_pylist()) == rows, told
            assert replayed(rows, view.changes_arrow(since=moment.last)) == now, told

    def feed(self, name: str, step: fm.BatchTransform) -> None:
        """A step that reads a view has its rows, all of them and no others."""
        if self.world.lake[name].schema is None:
            return
        step.run(self.world.lake)
        output = self.world.lake[f"{name}_fed"]
        fed = output.to_arrow().to_pylist() if output.schema is not None else []
        right = [{"g": row["g"], "fed": (row["s"] or 0) + 1} for row in self.shown(name)]
        assert_same(fed, right, "\n".join(self.story))
        assert step.run(self.world.lake).nothing

    # Living

    def live(self, steps: int, weights: dict[Callable[[], str], int]) -> None:
        for _ in range(steps):
            (act,) = self.chance.choices(list(weights), list(weights.values()))
            before = {case.name: self.shown(case.name) for case in self.world.views}
            told = act()
            self.story.append(told)
            if not told.startswith(("refresh", "kill")):
                for name, rows in before.items():
                    assert bag(self.shown(name), rows[0].keys() if rows else None) == bag(rows), "\n".join(self.story)
        self.story.append(self.refresh_all())


@dataclass
class ComputedHistory(History):
    """One in which flights has a computed column, which is not always there for all rows."""

    filled: set[int] = field(default_factory=set)  # offsets of the records that have a value

    def backfill(self) -> str:
        """Compute all of the column, or some of it."""
        flights = self.world.lake["flights"]
        where = self.chance.choice([None, None, "id < 4", "id >= 4"])
        flights.backfill("c", where, udf=TENFOLD.udf(self.world.calls))
        rows = flights.scan().to_table().to_pylist()
        kept = {None: lambda i: True, "id < 4": lambda i: i < 4, "id >= 4": lambda i: i >= 4}[where]
        self.filled |= {row["offset"] for row in rows if kept(row["id"])}
        return f"backfill where {where}"

    def right(self, name: str) -> list[Row]:
        if name == "of_none_computed":
            return super().right(name)
        tables = {"flights": self.readable()}
        if "weather" in CASES[name].sources:
            tables["weather"] = self.world.lake["weather"].to_arrow()
        return self.scratch.rows_of(tables, self.world.version(name).sql)

    def readable(self) -> pa.Table:
        """The rows of flights after the newest commit after which all rows had a value, with these values."""
        flights = self.world.lake["flights"]
        ends = {
            entry.event.new_data.offset_interval.end for entry in flights.log() if getattr(entry.event, "new_data", 0)
        }
        alive: dict[int, Row] = {}
        complete: list[Row] = []
        for record in flights.changes_arrow().to_pylist():
            if record["op"] in (APPEND, CORRECT_TO):
                alive[record["id"]] = record
            elif record["op"] == RETRACT:
                del alive[record["id"]]
            if record["offset"] in ends and {row["offset"] for row in alive.values()} <= self.filled:
                complete = list(alive.values())
        values = [{**row, "c": None if row["v"] is None else row["v"] * 10} for row in complete]
        assert flights.schema is not None
        names = [f for f in flights.schema if f.name != "c"]
        return pa.Table.from_pylist(values, pa.schema([*names, pa.field("c", pa.int64())]))


def add_fed(table: pa.Table) -> pa.Table:
    rows = [{"g": row["g"], "fed": (row["s"] or 0) + 1} for row in table.to_pylist()]
    return pa.Table.from_pylist(rows, pa.schema([("g", pa.string()), ("fed", pa.int64())]))


@contextmanager
def as_if_large() -> Iterator[None]:
    """Three rows are too many to be held in memory: Spark reads the sources, and its answer stays with it."""
    with (
        mock.patch.object(touched_rows, "LOCAL_ROWS", 2),
        mock.patch.object(touched_rows, "LOCAL_WHOLE_ROWS", 2),
        mock.patch.object(evaluator, "MEMORY_ROWS", 2),
    ):
        yield


@contextmanager
def history(theme: str, seed: int, folder: Path, session: Any) -> Iterator[History]:
    """A history at its beginning: sources with some rows, the views of a theme refreshed once."""
    chance = Random(f"{theme}-{seed}")
    with in_this_process():
        world = make_view_world(folder, session)
        for name in THEMES[theme]:
            for source in CASES[name].sources:
                if source in SOURCES and source not in world.lake:
                    write(world.source(source), some_rows(world.source(source), chance, 6))
        kind = ComputedHistory if theme == "computed" else History
        found = kind(world, Scratch(session.get()), chance)
        if isinstance(found, ComputedHistory):
            world.lake["flights"].add_column("c", TENFOLD.udf(world.calls))
            found.story.append(found.backfill())
        chosen = THEMES[theme] if theme == "views" else chance.sample(THEMES[theme], min(4, len(THEMES[theme])))
        for name in chosen:
            world.declare(name)
            found.refresh(name)
            assert CASES[name].kind in ("", world.lake.view(name).refresh_kind), world.lake.view(name).whole_reason
        if "sums" in chosen:
            found.steps["sums"] = fm.BatchTransform(
                add_fed, inputs=["sums"], outputs=["sums_fed"], transform_keys=["g"], version="1", name="fed"
            )
        yield found


def weights(of: History) -> dict[Callable[[], str], int]:
    own = {of.backfill: 4, of.purge: 0} if isinstance(of, ComputedHistory) else {}
    return {
        of.append: 4,
        of.update: 4,
        of.move: 4,
        of.delete: 3,
        of.fold: 1,
        of.purge: 1,
        of.evolve: 1,
        of.define: 2,
        of.reopen: 1,
        of.kill: 3,
        of.meanwhile: 3,
        of.collect: 1,
        of.refresh_one: 4,
        of.refresh_all: 3,
        **own,
    }
