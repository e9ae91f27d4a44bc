"""Whatever happens to a dataset, its computed columns read as a dictionary says, and nothing is computed twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import note
from hypothesis import strategies as st

import floodmark as fm
from columns.counting import Calls, Plan
from columns.worlds import checkpoint_path
from floodmark.columns import backfill, catalog, manifest
from floodmark.columns import commit as filling
from floodmark.columns import garbage as gc
from floodmark.columns.catalog import ColumnObjects
from floodmark.derive.checkpoint_key import CheckpointPrefix, parse_key
from floodmark.errors import FunctionFailed
from histories.calls import in_this_process
from histories.column_oracle import DONE, HIDDEN, KEPT, Expected, Keeps, Oracle, shown
from histories.disks import open_lake
from histories.machines import Machine, begins, precondition, reopened, rule, run_histories
from rows.harm import HARM, replace
from rows.naive import Naive, Row

BASE = {"id": pa.int64(), "v": pa.int64(), "w": pa.int64()}


# What is computed. Versions agree on some values, fail at others, and one takes another column.


def plain(v: int | None) -> int | None:
    if v == 7:
        raise ValueError("seven")
    return None if v is None else v * 10 + 1


def nearly_plain(v: int | None) -> int | None:
    if v == 3:
        raise ValueError("three")
    return None if v is None else v * 10 + (1 if v % 2 else 2)


def hundreds(w: int | None) -> int | None:
    return None if w is None else w * 100


def together(a: int | None, w: int | None) -> int | None:
    if a == 41:
        raise ValueError("forty-one")
    return None if a is None else a + 1000 * (w or 0)


def doubled(a: int | None, w: int | None) -> int | None:
    return -1 if a is None else 2 * a


def next_one(b: int | None) -> int | None:
    return None if b is None else b + 1


PLANS = {
    "a": [
        Plan("tens", "1", ("v",), plain),
        Plan("tens", "2", ("v",), nearly_plain),
        Plan("tens", "3", ("w",), hundreds),
    ],
    "b": [Plan("sum_range-1", "1", ("a", "w"), together), Plan("sum_range-1", "2", ("a", "w"), doubled)],
    "c": [Plan("next", "1", ("b",), next_one)],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "a": {"on_error": [fm.Skip(ValueError)]},
    "b": {"on_error": [fm.Retry(ValueError, attempts=2), fm.Skip(ValueError)]},
    "c": {},
}


def made(name: str, row: Row) -> set[int | None]:
    """What any version of a column's function makes of a row; one that fails may be mended."""
    found: set[int | None] = set()
    for plan in PLANS[name]:
        first, *others = [row.get(given) for given in plan.inputs]
        try:
            found.add(plan.formula(first, *others))
        except ValueError:
            found.add(None if first is None else -first)
    return found


names = st.sampled_from("aaabbc")
columns = st.integers(0, 5)
kinds = st.sampled_from(["array", "scalar", "batch"])
numbers = st.none() | st.integers(0, 9)
rows = st.fixed_dictionaries({"id": st.integers(0, 9), "v": numbers, "w": st.none() | st.integers(0, 3)})
batches = st.lists(rows, min_size=3, max_size=9)
sizes = st.fixed_dictionaries(
    {
        "checkpoint_size": st.none() | st.integers(1, 6),
        "max_checkpoint_size": st.none() | st.integers(1, 6),
        "task_size": st.none() | st.integers(1, 9),
        "commit_granularity": st.integers(1, 3),
    }
)


@dataclass(frozen=True)
class Filter:
    """A `where` and what it means."""

    where: Any
    keeps: Keeps | None

    def __repr__(self) -> str:
        return f"where {self.where}"


def above(name: str, bound: int) -> Keeps:
    return lambda row: row[name] is not None and row[name] > bound


FILTERS: dict[str, Callable[[str], Filter]] = {
    "all": lambda _: Filter(None, None),
    "v > 4": lambda _: Filter("v > 4", above("v", 4)),
    "w > 0": lambda _: Filter(pc.field("w") > 0, above("w", 0)),
    "itself is null": lambda name: Filter(f"{name} is null", lambda row: row[name] is None),
    "itself > 40": lambda name: Filter(f"{name} > 40", above(name, 40)),
    "none": lambda _: Filter("v > 99", lambda row: False),
}
filters = st.sampled_from(["all", "all", *FILTERS])


class Crash(Exception):
    """The driver ends here."""


class Histories(Machine):
    """One dataset with up to three columns, done to by chance."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.killed = False

    @begins(
        fragment_rows=st.sampled_from([4, 5, 8, 16]),
        first=batches,
        kind=kinds,
        columns=st.sampled_from(["a", "ab", "abc"]),
    )
    def create(self, fragment_rows: int, first: list[Row], kind: str, columns: str) -> None:
        key = () if self.kind == "append" else ("id",)
        self.lake = open_lake(self.root / "lake")
        self.dataset = self.lake.create("d", key=list(key) or None, merge=self.kind, schema=BASE)
        self.calls = Calls(self.root)
        self.oracle = Oracle(Naive(self.kind, key), fragment_rows)
        self.schema = pa.schema(list(BASE.items()))
        self.write(first)
        for name in columns:
            plan = PLANS[name][0]
            self.dataset.add_column(name, plan.udf(self.calls, kind, **OPTIONS[name]), fragment_rows=fragment_rows)
            self.oracle.add(name, plan)

    # The records

    @rule(rows=batches)
    def write(self, rows: list[Row]) -> None:
        self.dataset.write(pa.Table.from_pylist(rows, self.schema))
        added = [name for name in self.schema.names if name not in BASE]
        self.oracle.ledger.write([{**row, **dict.fromkeys(added)} for row in rows])

    @precondition(lambda self: self.kind != "append")
    @rule(ids=st.sets(st.integers(0, 9), min_size=1, max_size=4))
    def delete(self, ids: set[int]) -> None:
        self.dataset.delete(sorted(ids))
        self.oracle.ledger.delete([(key,) for key in ids])

    @precondition(lambda self: self.kind == "append")
    @rule(share=st.floats(0, 0.7))
    def purge(self, share: float) -> None:
        end = len(self.oracle.ledger.records)
        start = self.oracle.purged_before
        before = self.dataset.purge(before=start + int(share * (end - start))).before
        self.oracle.purge(before)
        for key in self.objects.checkpoints.list_keys():
            parsed = parse_key(key)
            assert parsed is not None
            assert parsed.fragment * self.oracle.fragment_rows + parsed.start >= before, (
                "a purged value is still stored"
            )

    @rule(how=st.sampled_from(["fold", "evolve", "reopen", "mend", "unmend"]))
    def disturb(self, how: str) -> None:
        """What changes no value by itself."""
        match how:
            case "fold":
                self.dataset.fold()
            case "evolve" if len(self.schema) < 5:
                self.evolve()
            case "reopen":
                self.lake = reopened(self.lake)
                self.dataset = self.lake["d"]
            case "mend":  # rows that failed would not fail again
                self.calls.mend()
            case "unmend":
                self.calls.unmend()

    def evolve(self) -> None:
        name = f"x{len(self.schema)}"
        self.dataset.evolve({name: pa.string()})
        self.schema = self.schema.append(pa.field(name, pa.string()))
        self.oracle.ledger.records = [(op, {**row, name: None}) for op, row in self.oracle.ledger.records]

    # The columns

    @rule(name=names, version=st.integers(0, 2), kind=kinds)
    def add_or_alter(self, name: str, version: int, kind: str) -> None:
        plan = PLANS[name][version % len(PLANS[name])]
        udf = plan.udf(self.calls, kind, **OPTIONS[name])
        if name in self.oracle.columns:
            self.dataset.alter_column(name, udf)
            self.oracle.alter(name, plan)
        elif all(i in self.oracle.columns or i in BASE for i in plan.inputs):
            self.dataset.add_column(name, udf)
            self.oracle.add(name, plan)

    @precondition(lambda self: self.oracle.columns)
    @rule(adds=st.booleans())
    def drop(self, adds: bool) -> None:
        """The last column, which no other is made from; it comes back, or not yet."""
        name = max(self.oracle.columns)
        plan = self.oracle.columns[name].plan
        self.dataset.drop_column(name)
        self.oracle.drop(name)
        if adds:
            self.dataset.add_column(name, plan.udf(self.calls, **OPTIONS[name]))
            self.oracle.add(name, plan)

    def pick(self, which: int) -> str:
        return sorted(self.oracle.columns)[which % len(self.oracle.columns)]

    # Backfills

    @precondition(lambda self: self.oracle.columns)
    @rule(which=columns, kind=kinds, only=filters, sizes=sizes, retry=st.booleans())
    def backfill(self, which: int, kind: str, only: str, sizes: dict[str, Any], retry: bool) -> None:
        name = self.pick(which)
        self._backfill(name, kind, FILTERS[only](name), sizes, retry)

    @rule(kind=kinds, sizes=sizes)
    def backfill_all(self, kind: str, sizes: dict[str, Any]) -> None:
        """Every column, each after those that it is made from."""
        for name in sorted(self.oracle.columns):
            self._backfill(name, kind, FILTERS["all"](name), sizes)

    def _backfill(
        self, name: str, kind: str, only: Filter, sizes: dict[str, Any], retry: bool = False, processes: bool = False
    ) -> None:
        expected = self.oracle.expected(name, only.keeps, retry=retry)
        self.calls.forget()
        found = self._run(name, kind, only, sizes, retry, processes)
        called = self.calls.count()
        self.check_called(expected, set(called))
        if not processes:
            assert found.called == called.total()
        before = set() if not retry else self.oracle.errors(name, DONE)
        self.oracle.store(name, called, self.calls.mended)
        for wave in self.oracle.waves(name, expected.open, sizes.get("commit_granularity", 64)):
            self.oracle.commit(name, wave)
        failed = self.oracle.errors(name, DONE) & called.keys()
        note(f"{name}: {found}, {sorted(called)} called, retried among {sorted(before)}")
        assert (found.computed, found.failed) == (len(called) - len(failed), len(failed))
        assert found.reused == len(expected.open) - len(called)
        assert found.done == len(expected.done)

    def _run(
        self, name: str, kind: str, only: Filter, sizes: dict[str, Any], retry: bool = False, processes: bool = False
    ) -> fm.BackfillReport:
        udf = self.oracle.columns[name].plan.udf(self.calls, kind, **OPTIONS[name])
        with nullcontext() if processes else in_this_process():
            return self.dataset.backfill(name, only.where, udf=udf, retry_errors=retry, **sizes)

    def check_called(self, expected: Expected, called: set[int]) -> None:
        assert expected.missing <= called, f"not computed: {sorted(expected.missing - called)}"
        again = called - expected.missing - expected.unsure
        assert not again, f"computed again: {sorted(again)}"

    @precondition(lambda self: self.oracle.columns)
    @rule(which=columns, kind=kinds, only=filters, sizes=sizes, at=st.integers(0, 100))
    def backfill_that_fails(self, which: int, kind: str, only: str, sizes: dict[str, Any], at: int) -> None:
        """The function raises at some row: waves before it are committed, the rest of it may be kept or not."""
        name = self.pick(which)
        chosen = FILTERS[only](name)
        expected = self.oracle.expected(name, chosen.keeps)
        if not expected.missing:
            return
        row = sorted(expected.missing)[at % len(expected.missing)]
        self.calls.forget()
        self.calls.raise_at(row)
        with pytest.raises(FunctionFailed) as failed:
            self._run(name, kind, chosen, sizes)
        self.calls.behave()
        assert failed.value.offsets == (row,)
        called = set(self.calls.offsets())
        assert called <= expected.missing | expected.unsure
        waves = self.oracle.waves(name, expected.open, sizes["commit_granularity"])
        self.oracle.store(name, called, self.calls.mended, surely=False)
        for wave in waves[: next(i for i, wave in enumerate(waves) if row in wave.rows)]:
            self.oracle.commit(name, wave)

    @precondition(lambda self: self.oracle.columns)
    @rule(which=columns, kind=kinds, sizes=sizes, nth=st.integers(0, 2))
    def backfill_whose_driver_ends_before_it_commits(
        self, which: int, kind: str, sizes: dict[str, Any], nth: int
    ) -> None:
        """Everything is computed and stored, and the commit of one wave does not come to pass."""
        name = self.pick(which)
        chosen = FILTERS["all"](name)
        expected = self.oracle.expected(name)
        waves = self.oracle.waves(name, expected.open, sizes["commit_granularity"])
        if nth >= len(waves):
            return
        self.calls.forget()
        commits: list[Any] = []

        def install(*args: Any) -> Any:
            commits.append(args)
            if len(commits) > nth:
                raise Crash
            return real(*args)

        real = filling.commit_fragments
        with mock.patch.object(backfill, "commit_fragments", install), pytest.raises(Crash):
            self._run(name, kind, chosen, sizes)
        called = set(self.calls.offsets())
        reached: set[int] = set().union(*[wave.rows for wave in waves[: nth + 1]])
        assert expected.missing & reached <= called <= (expected.missing | expected.unsure) & reached
        self.oracle.store(name, called, self.calls.mended)
        for wave in waves[:nth]:
            self.oracle.commit(name, wave)

    @precondition(lambda self: self.oracle.columns)
    @rule(which=columns, kind=kinds, sizes=sizes, at=st.integers(0, 100))
    def backfill_whose_worker_is_killed(self, which: int, kind: str, sizes: dict[str, Any], at: int) -> None:
        name = self.pick(which)
        expected = self.oracle.expected(name)
        if expected.missing and not self.killed:  # a new worker takes its time
            self.killed = True
            self.calls.kill_at(sorted(expected.missing)[at % len(expected.missing)])
            self._backfill(name, kind, FILTERS["all"](name), sizes, processes=True)

    # What is lost

    @property
    def objects(self) -> ColumnObjects:
        return ColumnObjects(self.dataset.snapshot().objects)

    @rule(
        what=st.sampled_from(["checkpoint", "checkpoint", "file", "garbage"]),
        which=st.integers(0, 10**6),
        at=st.integers(0, 10**6),
        how=st.sampled_from([*sorted(HARM), "foreign"]),
    )
    def lose(self, what: str, which: int, at: int, how: str) -> None:
        match what:
            case "checkpoint":
                self.harm_checkpoint(which, at, how)
            case "file":
                self.lose_file(which, how if how in ("delete", "empty", "longer") else "truncate")
            case "garbage":
                self.collect_garbage()

    def harm_checkpoint(self, which: int, at: int, how: str) -> None:
        """One checkpoint is no longer what it was; only its computation's rows of its fragment may suffer."""
        objects = self.objects
        checkpoints = objects.checkpoints
        keys = checkpoints.list_keys()
        if not keys:
            return
        key, other = (checkpoint_path(checkpoints, keys[number % len(keys)]) for number in (which, at))
        store = objects.store
        if data := store.get(key):
            replace(store, key, store.get(other) if how == "foreign" else HARM[how](data, at))
        parsed = parse_key(keys[which % len(keys)])
        assert parsed is not None
        prefix = CheckpointPrefix.parse(parsed.prefix)
        assert prefix is not None
        self.oracle.doubt(
            lambda identity: identity[:3] == (prefix.column, prefix.udf, prefix.version),
            lambda offset: offset // self.oracle.fragment_rows == parsed.fragment,
        )

    def lose_file(self, which: int, how: str) -> None:
        """A file with values is gone or cut short: what it held is computed again, or found in checkpoints."""
        objects = self.objects
        files = sorted(info.key for info in objects.files())
        if not files:
            return
        key = files[which % len(files)]
        if data := objects.store.get(key):
            replace(objects.store, key, HARM[how](data, which))
        self.oracle.doubt(lambda identity: True, lambda offset: True)
        for column in catalog.load(objects).columns:
            for fragment in manifest.load(objects, column).fragments:
                for segment in fragment.segments:
                    if segment.key(objects) == key:
                        self.oracle.lose(column.name, segment.start, segment.end)
        for name in sorted(self.oracle.columns):
            self._backfill(name, "array", FILTERS["all"](name), {})

    def collect_garbage(self) -> None:
        snapshot = self.dataset.snapshot()
        dead = self.dataset.parts.rows.dead(snapshot)
        later = time.time_ns() + 10**12
        garbage = gc.find_garbage(self.objects, str(self.dataset.id), dead, later, 0)
        gc.remove_garbage(garbage)
        self.oracle.collect()

    # What is seen

    def check(self) -> None:
        self.steps += 1
        expected = self.oracle.rows()
        columns = [*self.schema.names, *sorted(self.oracle.columns, key=lambda n: self.oracle.columns[n].number)]
        table = self.dataset.to_arrow()
        assert table.column_names == columns
        assert list(zip(*table.to_pydict().values(), strict=True)) == shown(expected, columns)
        look = [self.look_at_batches, self.look_by_sql, self.look_at_plans, self.look_at_errors][self.steps % 4]
        look(expected)
        self.values_follow_from_what_is_shown()

    def values_follow_from_what_is_shown(self) -> None:
        """This check knows nothing of generations, identities or checkpoints, nor of the oracle's rules."""
        failed = {name: set(self.dataset.column_errors(name)["offset"].to_pylist()) for name in self.oracle.columns}
        for row in self.dataset.to_arrow(columns=["offset", *BASE, *self.oracle.columns]).to_pylist():
            for name in self.oracle.columns:
                if row[name] is not None:
                    assert row["offset"] not in failed[name], f"{name} of {row} has a value and an error"
                    assert row[name] in made(name, row), f"{name} of {row} is stale"
                    for given in self.oracle.columns[name].plan.inputs:
                        known = row.get(given) is not None or given in BASE or row["offset"] in failed[given]
                        assert known or None in made(given, row), f"{name} of {row} was computed before its input"

    def look_at_batches(self, expected: dict[int, Row]) -> None:
        names = ["offset", *sorted(self.oracle.columns)]
        found = self.dataset.to_batches(columns=names).read_all().to_pydict()
        with_offset = {offset: {**row, "offset": offset} for offset, row in expected.items()}
        assert list(zip(*found.values(), strict=True)) == shown(with_offset, names)

    def look_by_sql(self, expected: dict[int, Row]) -> None:
        for name in self.oracle.columns:
            found = self.lake.sql(f"select count({name}) as n, sum({name})::bigint as s from d").to_pylist()
            values = [row[name] for row in expected.values() if row[name] is not None]
            assert found == [{"n": len(values), "s": sum(values) if values else None}]

    def look_at_plans(self, expected: dict[int, Row]) -> None:
        self.calls.forget()
        for name in self.oracle.columns:
            wanted, plan = self.oracle.expected(name), self.dataset.plan_backfill(name)
            assert (plan.rows, plan.done) == (len(expected), len(wanted.done))
            assert plan.waiting == len(expected) - len(wanted.wanted)
            missing = {offset for r in plan.ranges for offset in range(r.start, r.end)}
            self.check_called(wanted, missing)
            assert plan.missing == len(missing)
            assert plan.reused == len(wanted.open) - len(missing)
        assert self.calls.offsets() == []

    def look_at_errors(self, expected: dict[int, Row]) -> None:
        for status in self.dataset.columns():
            done = self.oracle.done(status.name)
            assert (status.rows, status.done) == (len(expected), len(done))
            found = set(self.dataset.column_errors(status.name)["offset"].to_pylist())
            assert found - self.oracle.errors(status.name, HIDDEN) == self.oracle.errors(status.name, DONE, KEPT)

    def check_end(self) -> None:
        for name in sorted(self.oracle.columns):
            self._backfill(name, "array", FILTERS["all"](name), {})
        for name in self.oracle.columns:
            assert self.oracle.done(name) == self.oracle.rows().keys()
        self.check()
        assert self.dataset.verify().problems == ()


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_computed_columns_agree_with_a_dictionary_whatever_happens(kind):
    run_histories(Histories, ci=2, steps=15, kind=kind)
