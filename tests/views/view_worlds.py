"""Small lakes for views: sources of every kind, and views of every kind over them, each in several definitions.

What a definition means is said by plain SQL, which the oracle has Spark run from scratch; where a view calls a
function, that SQL has the same as an expression.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa

import floodmark as fm
from columns.counting import Calls, Plan
from columns.worlds import HUNDREDFOLD, TENFOLD
from faults.recording import HastyFileSystem
from floodmark.dataset import Dataset
from floodmark.storage.file_system import OsFileSystem
from floodmark.storage.local import LocalStore
from floodmark.views.changed_rows import LocalRows
from floodmark.views.evaluator import Evaluator

Row = dict[str, Any]


# Sources


@dataclass(frozen=True)
class Source:
    """A dataset that people write to: its columns, and its key (none: append-only)."""

    name: str
    columns: Mapping[str, pa.DataType]
    key: tuple[str, ...] | None

    def create(self, lake: fm.Lake) -> Dataset:
        return lake.create(self.name, key=self.key, schema=pa.schema(list(self.columns.items())))


NAN = float("nan")
VALUES: dict[str, list[Any]] = {
    "id": list(range(8)),
    "n": list(range(8)),
    "g": [None, "a", "b", "c"],
    "h": [None, 0, 1, 2],
    "v": [None, *range(8)],
    "x": [None, NAN, -0.0, 0.0, 0.5, 2.5],
    "d": [None, date(2026, 1, 1), date(2026, 1, 2)],
    "m": [None, Decimal("0.50"), Decimal("2.25")],
    "t": [None, 10, 20, 30],
    "y": [None, *range(5)],
    "extra0": [None, 1, 2],
    "extra1": [None, 1, 2],
}
"""What cells may hold; keys hold no nulls."""

INT, TEXT = pa.int64(), pa.string()
FLIGHTS = Source(
    "flights",
    {"id": INT, "g": TEXT, "h": pa.int32(), "v": INT, "x": pa.float64(), "d": pa.date32(), "m": pa.decimal128(10, 2)},
    ("id",),
)
EVENTS = Source("events", {"g": TEXT, "h": pa.int32(), "v": INT}, None)
WEATHER = Source("weather", {"g": TEXT, "t": INT}, ("g",))
NOTES = Source("notes", {"n": INT, "g": TEXT, "y": INT}, ("n",))
HOURS = Source("hours", {"g": TEXT, "h": pa.int32(), "t": INT}, ("g", "h"))
SOURCES = {source.name: source for source in (FLIGHTS, EVENTS, WEATHER, NOTES, HOURS)}


def some_rows(dataset: Dataset, chance: Random, count: int) -> list[Row]:
    """Rows with any of the values, at most one for each key."""
    assert dataset.schema is not None
    key = dataset.strategy.key
    rows = [
        {
            f.name: chance.choice([v for v in VALUES[f.name] if v is not None or f.name not in key])
            for f in _own(dataset)
        }
        for _ in range(count)
    ]
    return list({tuple(row[name] for name in key) if key else n: row for n, row in enumerate(rows)}.values())


def _own(dataset: Dataset) -> list[pa.Field]:
    assert dataset.schema is not None
    return [f for f in dataset.schema if f.name in VALUES]


def write(dataset: Dataset, rows: Sequence[Row]) -> None:
    dataset.write(pa.Table.from_pylist(list(rows), pa.schema(_own(dataset))))


# Views


@dataclass(frozen=True)
class Version:
    """One definition: what is handed to `lake.view`, and the SQL that says what it means."""

    sql: str
    asked: Mapping[str, Any] | None = None  # where it is not that SQL; a Plan stands for its udf

    def definition(self, calls: Calls) -> dict[str, Any]:
        if self.asked is None:
            return {"sql": self.sql}
        asked = dict(self.asked)
        asked["select"] = {
            name: function(value, calls) if isinstance(value, Plan) else value
            for name, value in asked["select"].items()
        }
        return asked

    @property
    def plans(self) -> list[Plan]:
        return [value for value in (self.asked or {}).get("select", {}).values() if isinstance(value, Plan)]


CHECKPOINT_ROWS = 2
"""So many rows at most are computed and lost, when a refresh ends before its time."""


def function(plan: Plan, calls: Calls) -> fm.Udf:
    return plan.udf(calls, max_checkpoint_size=CHECKPOINT_ROWS)


@dataclass(frozen=True)
class Case:
    """A view in several definitions. `exact`: a row that stays the same is never written again."""

    name: str
    kind: str
    sources: tuple[str, ...]
    versions: tuple[Version, ...]
    exact: bool = True

    def __str__(self) -> str:
        return self.name


def case(name: str, kind: str, sources: str, *versions: str | Version, exact: bool = True) -> Case:
    made = tuple(Version(one) if isinstance(one, str) else one for one in versions)
    return Case(name, kind, tuple(sources.split()), made, exact)


def with_udf(source: str, plan: Plan, factor: int, where: str | None = None, **select: str) -> Version:
    """A definition with a function of `v` beside other columns."""
    shown = ", ".join([*(f"{text} as {name}" for name, text in select.items()), f"v * {factor} as w"])
    sql = f"select {shown} from {source}" + (f" where {where}" if where else "")
    return Version(sql, {"source": source, "select": {**select, "w": plan}, "where": where})


ROWS = [
    case(
        "kept",
        "rows",
        "flights",
        "select id, upper(g) as g, v * 2 as w, x, d, m from flights where v > 2",
        "select id, upper(g) as g, v * 2 as w, x, d, m from flights where v > 4 or h is null",
        "select id, upper(g) as g, coalesce(v, 0) + 1 as w, x, d, m, h as hour from flights",
    ),
    case(
        "keyless",
        "rows",
        "flights",
        "select g, v from flights where v is not null",
        "select g, v from flights where h <> 1 or h is null",
        exact=False,
    ),
    case(
        "appended",
        "rows",
        "events",
        "select g, v + 1 as v from events where v % 2 = 0",
        "select g, v + 1 as v, h from events",
        exact=False,
    ),
    case("starred", "rows", "flights", "select * from flights where h > 0", "select * from flights where v > 2"),
    case(
        "called",
        "rows",
        "flights",
        with_udf("flights", TENFOLD, 10, "v > 2", id="id", g="g"),
        with_udf("flights", TENFOLD, 10, "h = 1", id="id", g="g"),
        with_udf("flights", HUNDREDFOLD, 100, "v > 2", id="id", g="upper(g)"),
    ),
    case(
        "called_of_events",
        "rows",
        "events",
        with_udf("events", TENFOLD, 10, None, g="g"),
        with_udf("events", TENFOLD, 10, "v > 3", g="g"),
        exact=False,
    ),
]

GROUPS = [
    case(
        "grouped",
        "groups",
        "flights",
        "select g, h, count(*) as n, sum(v) as s, max(v) as most, count(distinct d) as days from flights group by g, h",
        "select g, h, count(*) as n, sum(v) as s, min(v) as most, count(distinct d) as days from flights group by g, h",
        "select g, h, count(*) as n, sum(v) as s, max(v) as most, count(distinct d) as days, sum(m) as m from flights "
        "where v > 1 group by g, h having count(*) > 1",
    ),
    case(
        "by_remainder",
        "groups",
        "flights",
        "select g, v % 3 as r, count(*) as n, sort_array(collect_list(v)) as vs from flights group by g, v % 3",
        "select g, v % 2 as r, count(*) as n, sort_array(collect_list(v)) as vs from flights group by g, v % 2",
    ),
    case(
        "pairs",
        "groups",
        "flights",
        "select distinct g, d from flights",
        "select distinct g, d from flights where v > 3",
    ),
    case(
        "of_events",
        "groups",
        "events",
        "select h, g, count(v) as n, avg(v) as mean from events group by g, h",
        "select h, g, count(v) as n, avg(v) as mean from events where h > 0 group by g, h",
    ),
    case(
        "rekeyed",  # another key, or a column of another type: it is made anew
        "groups",
        "flights",
        "select g, count(*) as n from flights group by g",
        "select h, count(*) as n from flights group by h",
        "select g, cast(count(*) as string) as n from flights group by g",
    ),
    case(
        "unnamed",  # a grouping expression that is not shown
        "groups",
        "flights",
        "select d, count(*) as n from flights group by d, v % 2",
        "select d, count(*) as n from flights group by d, v % 3",
    ),
]

JOINS = [
    case(
        "left_joined",
        "join",
        "flights weather",
        "select f.id, f.g, f.v, w.t from flights f left join weather w on f.g = w.g",
        "select f.id, f.g, f.v, w.t from flights f left join weather w on f.g = w.g and w.t > f.v + 9",
    ),
    case("inner_joined", "join", "flights weather", "select g, id, t from flights join weather using (g) where t > 10"),
    case("many", "join", "events notes", "select e.g, e.v, n.y from events e join notes n on e.g = n.g and n.y < e.v"),
    case(
        "fully_joined",
        "join",
        "notes weather",
        "select g, n, y, t from notes full join weather using (g)",
        "select g, n, y + 1 as y, t from notes full join weather using (g)",
    ),
    case(
        "by_two",
        "join",
        "flights hours",
        "select f.*, o.t from flights f left join hours o using (g, h)",
        "select f.*, o.t from flights f left join hours o using (g, h) where f.v > 1",
    ),
    case("semi_joined", "join", "flights weather", "select id, g, v from flights left semi join weather using (g)"),
    case("anti_joined", "join", "flights notes", "select id, g, v from flights f left anti join notes n on f.g = n.g"),
    case(
        "of_three",
        "join",
        "flights weather notes",
        "select f.g, f.id, w.t, n.y from flights f join weather w on f.g = w.g left join notes n on n.g = f.g",
    ),
    case("null_safe", "join", "events notes", "select e.g, e.v, n.n from events e left join notes n on e.g <=> n.g"),
]

CARRIED = [
    case(
        "totals",
        "changes",
        "flights",
        "select count(*) as n, sum(v) as s from flights",
        "select count(*) as n, min(v) as s from flights",
    ),
    case("above_mean", "changes", "flights", "select g, v from flights where v > (select avg(v) from flights)"),
    case("united", "changes", "flights events", "select g, v from flights union all select g, v from events"),
    case("ranked", "changes", "flights", "select id, rank() over (partition by g order by v) as r from flights"),
    case(
        "sums_by_partner",
        "changes",
        "flights weather",
        "select w.t, count(*) as n, sum(f.v) as s from flights f join weather w on f.g = w.g group by w.t",
        "select w.t, count(*) as n, max(f.v) as s from flights f left join weather w on f.g = w.g group by w.t",
    ),
    case("not_among", "changes", "events notes", "select g, v from events where v not in (select y from notes)"),
    case(
        "newest",
        "changes",
        "flights",
        "select g, id, v from (select *, row_number() over (partition by upper(g) order by id desc) as r from flights) "
        "where r = 1",
    ),
]

WHOLE = [
    case("first_three", "", "flights", "select g, v from flights order by v desc nulls last, id limit 3"),
    case("listed", "whole", "flights", "select sort_array(collect_list(v)) as vs from flights"),
]

ON_VIEWS = [
    case(
        "base",
        "rows",
        "flights",
        "select id, g, v * 2 as w from flights where v > 1",
        "select v as id, g, sum(v) as w from flights group by g, v",
    ),
    case("base_keyless", "rows", "flights", "select g, v from flights where v is not null", exact=False),
    case("sums", "groups", "base", "select g, sum(w) as s, count(*) as n from base group by g"),
    case("of_keyless", "rows", "base_keyless", "select v + 1 as v from base_keyless where g is not null", exact=False),
    case("sums_of_keyless", "groups", "base_keyless", "select g, sum(v) as s from base_keyless group by g"),
    case("total_of_sums", "changes", "sums", "select sum(s) as s, count(*) as n from sums"),
    case("joined_views", "join", "sums weather", "select s.g, s.s, w.t from sums s left join weather w on s.g = w.g"),
]

ODD = [  # of whatever kind they turn out to be, as long as they are right
    case("swapped", "groups", "flights", "select h as g, g as h, count(*) as n from flights group by g, h"),
    case("renamed", "groups", "flights", "select g as grp, sum(x) as s, avg(x) as mean from flights group by grp"),
    case("shadowed", "", "flights", "select upper(g) as g, count(*) as n from flights group by upper(g)", exact=False),
    case("not_numbers", "groups", "flights", "select distinct g, x from flights"),
    case("mixed_case", "rows", "flights", "select ID, V as W from Flights where G = 'a'"),
    case("by_float", "whole", "flights", "select x, count(*) as n from flights group by x"),
    case("nested", "groups", "flights", "select g, n from (select g, count(*) n from flights group by g) where n > 1"),
    case(
        "with_with",
        "groups",
        "flights",
        "with t as (select g, v from flights where v > 1) select g, sum(v) s from t group by g",
    ),
    case("rolled_up", "", "flights", "select g, h, count(*) as n from flights group by rollup (g, h)", exact=False),
    case("limited", "", "flights", "select g, count(*) as n from flights group by g order by n desc, g limit 2"),
    case(
        "filtered_sides",
        "join",
        "flights weather",
        "select a.g, a.v, b.t from (select * from flights where v > 2) a "
        "join (select g, t from weather where t > 10) b on a.g = b.g",
    ),
    case("other_side", "", "flights weather", "select w.g, f.id from flights f left join weather w on f.g = w.g"),
    case("half_of_full", "", "notes weather", "select n.g, n.y, w.t from notes n full join weather w on n.g = w.g"),
    case(
        "right_joined",
        "join",
        "flights weather",
        "select w.g, f.id, w.t from flights f right join weather w on f.g = w.g",
    ),
    case("in_subquery", "", "flights weather", "select id, v from flights where g in (select g from weather)"),
    case("with_itself", "", "flights", "select a.id, b.id as other from flights a join flights b on a.g = b.g"),
    case("among_itself", "", "flights", "select a.g, a.id, b.id as other from flights a join flights b on a.g = b.g"),
    case(
        "not_among_itself",
        "",
        "flights",
        "select a.g, a.id from flights a left anti join flights b on a.g = b.g and a.v < b.v",
    ),
    case(
        "sums_joined",
        "",
        "flights weather",
        "select w.g, w.t, x.n from weather w left join (select g, count(*) n from flights group by g) x on x.g = w.g",
    ),
    case(
        "fully_filtered",
        "",
        "notes weather",
        "select g, n, t from notes full join weather using (g) where g > 'a' or t is null",
    ),
    case("equal_columns", "", "flights", "select g, h, v, count(*) as n from flights where h = v group by g, h, v"),
    case("cast_key", "", "flights notes", "select f.id, n.y from flights f join notes n on f.h = n.n"),
    case(
        "either", "", "flights weather", "select f.id, f.g, w.t from flights f join weather w on f.g = w.g or f.v = w.t"
    ),
    case("exploded", "", "flights", "select id, explode(array(v, h)) as e from flights", exact=False),
    case(
        "chained",
        "",
        "notes weather flights",
        "select n.g, n.n, w.t, f.id from notes n left join weather w on n.g = w.g left join flights f on w.g = f.g",
    ),
    case(
        "half_full_chain",
        "",
        "notes weather flights",
        "select n.g, n.n, w.t, f.id from notes n full join weather w on n.g = w.g left join flights f on n.g = f.g",
    ),
    case("unioned", "", "flights events", "select g, v from flights union select g, v from events"),
    case(
        "grouped_join",
        "",
        "flights weather",
        "select f.g, count(*) as n, max(w.t) as t from flights f join weather w on f.g = w.g group by f.g",
    ),
    case(
        "ranked_groups",
        "",
        "flights",
        "select g, count(*) as n, rank() over (order by count(*)) as r from flights group by g",
    ),
    case(
        "filtered_count",
        "groups",
        "flights",
        "select g, count(*) filter (where v > 2) as n, any_value(g) as a from flights group by g",
    ),
    case("constant_group", "", "flights", "select g, count(*) as n from flights where g = 'a' group by g"),
    case("twice_shown", "groups", "flights", "select g, g as again, count(*) as n from flights group by g"),
    case("except_some", "", "flights events", "select g, v from flights except all select g, v from events"),
]

COMPUTED = [  # flights has a column c that a function computes
    case("of_computed", "rows", "flights", "select id, c, g from flights where c > 20 or c is null"),
    case("sums_of_computed", "groups", "flights", "select g, sum(c) as s, count(*) as n from flights group by g"),
    case(
        "joined_computed",
        "join",
        "flights weather",
        "select f.id, f.g, f.c, w.t from flights f left join weather w on f.g = w.g",
    ),
    case("of_none_computed", "groups", "flights", "select g, sum(v) as s from flights group by g"),
]

CASES = {one.name: one for one in [*ROWS, *GROUPS, *JOINS, *CARRIED, *WHOLE, *ON_VIEWS, *ODD, *COMPUTED]}


# A lake for them


@dataclass
class ViewWorld:
    """A lake with sources and views, and the calls of the views' functions."""

    lake: fm.Lake
    calls: Calls
    versions: dict[str, int] = field(default_factory=dict)  # of each view, as it was last declared

    @property
    def views(self) -> list[Case]:
        return [CASES[name] for name in self.versions]

    def version(self, name: str) -> Version:
        return CASES[name].versions[self.versions[name]]

    def declare(self, name: str, number: int = 0) -> Any:
        """Declare a view in one of its definitions."""
        self.versions[name] = number
        return self.lake.view(name, **self.version(name).definition(self.calls))

    def refresh(self, name: str, lake: fm.Lake | None = None, **options: Any) -> Any:
        udfs = [function(plan, self.calls) for plan in self.version(name).plans]
        return (lake or self.lake).view(name).refresh(udfs=udfs, **options)

    def source(self, name: str, *rows: tuple[Any, ...]) -> Dataset:
        """Make a source if it is not there, and write rows given in the order of its first columns."""
        if name not in self.lake:
            SOURCES[name].create(self.lake)
        dataset = self.lake[name]
        if rows:
            write(dataset, [dict(zip(SOURCES[name].columns, row, strict=False)) for row in rows])
        return dataset

    def rows(self, name: str) -> list[Row]:
        """The rows as readers see them."""
        found: list[Row] = self.lake[name].to_arrow().to_pylist()
        return found

    def tuples(self, name: str) -> list[tuple[Any, ...]]:
        """The same as tuples, nulls first."""
        return sorted((tuple(row.values()) for row in self.rows(name)), key=_nulls_first)


def _nulls_first(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    return [(value is not None, value if value is not None else 0) for value in row]


@contextmanager
def answers_remembered() -> Iterator[None]:
    """Spark is asked once for the answer to a query over some rows: the same again is taken from memory."""
    known: dict[str, Any] = {}
    ask = Evaluator.evaluate

    def evaluate(evaluator: Evaluator, inputs: Mapping[str, Any]) -> Any:
        if not all(isinstance(rows, LocalRows) for rows in inputs.values()):
            return ask(evaluator, inputs)
        tables = [(alias, rows.table.to_pylist()) for alias, rows in inputs.items()]
        asked = repr((evaluator.analysis.query, evaluator.analysis.t, evaluator.columns, tables))
        if asked not in known:
            known[asked] = ask(evaluator, inputs)
        return known[asked]

    with mock.patch.object(Evaluator, "evaluate", evaluate):
        yield


class HastyAtHome(HastyFileSystem):
    """Does not wait for the disk in this process; in those of Spark, which know no tests, it is an ordinary one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return OsFileSystem, ()


def open_lake(folder: Path, session: Any, fs: Any = None) -> fm.Lake:
    store = LocalStore(folder / "lake", HastyAtHome() if fs is None else fs)
    return fm.Lake(store, runtime=fm.Runtime(session=session, checkpoint_seconds=0.001))


def make_view_world(folder: Path, session: Any, *views: str) -> ViewWorld:
    """A world with the sources of some views, empty, and the views themselves, declared and not refreshed."""
    folder.mkdir(parents=True, exist_ok=True)
    world = ViewWorld(open_lake(folder, session), Calls(folder))
    for name in views:
        for source in CASES[name].sources:
            if source in SOURCES:
                world.source(source)
        world.declare(name)
    return world
