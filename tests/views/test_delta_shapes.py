"""Everyday queries that are refreshed by changes carried through them: after each random change they equal Spark."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.engine.session import Runtime, Session
from profiles import seeds
from views.view_oracle import Scratch, assert_same

pytestmark = pytest.mark.spark

INT, TEXT = pa.int64(), pa.string()
NAN = float("nan")
SALES = pa.schema(
    {
        "id": INT,
        "k": INT,
        "c": TEXT,
        "n": INT,
        "m": pa.decimal128(10, 2),
        "x": pa.float64(),
        "tags": pa.list_(TEXT),
    }
)
PRODUCTS = pa.schema({"k": INT, "name": TEXT, "cat": TEXT})
CUSTOMERS = pa.schema({"c": TEXT, "city": TEXT})
EVENTS = pa.schema({"k": INT, "c": TEXT, "n": INT})  # without a key: rows may be equal
TABLES = {"sales": (SALES, "id"), "products": (PRODUCTS, "k"), "customers": (CUSTOMERS, "c"), "events": (EVENTS, None)}

SHAPES = {
    "join with a dimension": "select s.id, s.n, p.name from sales s join products p on s.k = p.k",
    "left join with a dimension": "select s.id, s.n, p.name, p.cat from sales s left join products p on s.k = p.k",
    "right join": "select s.n, p.name from sales s right join products p on s.k = p.k and s.n > 2",
    "full join of other columns": (
        "select s.n a, e.n b, s.c from sales s full join events e on s.n = e.n and s.k <> e.k"
    ),
    "star join": (
        "select s.id, p.name, u.city, s.m from sales s join products p on s.k = p.k join customers u on s.c = u.c"
    ),
    "null-safe join": "select s.n, e.n m from sales s join events e on s.c <=> e.c",
    "cross join": "select s.id, u.city from sales s cross join customers u",
    "join by range": "select s.id, e.n from sales s join events e on s.n < e.n",
    "latest per key": (
        "select k, id, n from (select *, row_number() over (partition by k order by n desc, id) r from "
        "sales) where r = 1"
    ),
    "latest per key with ties": (
        "select k, n from (select *, row_number() over (partition by k order by n desc) r from sales) where r = 1"
    ),
    "ranks": (
        "select id, rank() over w r, dense_rank() over w d, sum(n) over w s, lag(n) over (partition by c "
        "order by n, id) l from sales window w as (partition by c order by n)"
    ),
    "union all": "select k, n from sales union all select k, n from events",
    "union": "select k, n from sales union select k, n from events",
    "union of renamed": (
        "select n as a from sales where n > 3 union all select k from products union all select n from events"
    ),
    "explode": "select id, tag from sales lateral view explode(tags) as tag",
    "explode outer": "select n, tag from sales lateral view outer explode(tags) as tag",
    "group by expression": "select upper(c) c, sum(n) s, count(*) n, avg(m) a from sales group by upper(c)",
    "total": "select count(*) n, sum(n) s, sum(m) m, max(n) b from sales",
    "total of an empty selection": "select count(*) n, sum(n) s from sales where n > 1000",
    "join grouped by another column": (
        "select p.cat, sum(s.m) m, count(*) n from sales s join products p on s.k = p.k group by p.cat"
    ),
    "in subquery": "select id, n from sales where k in (select k from products where cat = 'b')",
    "not in subquery": (
        "select id, n from sales where k not in (select k from products where cat = 'b' and k is not null)"
    ),
    "exists": "select n from sales s where exists (select * from events e where e.k = s.k and e.n > s.n)",
    "not exists": "select n from events e where not exists (select * from sales s where e.k = s.k)",
    "exists or": "select id from sales s where n = 1 or exists (select * from events e where e.k = s.k)",
    "running sum": "select id, k, sum(n) over (partition by k order by id) s from sales",
    "rollup": "select c, k, sum(n) s, count(*) n from sales group by rollup (c, k)",
    "grouping sets": "select c, k, max(n) s, grouping_id() g from sales group by grouping sets ((c), (k), ())",
    "distinct of a union": "select distinct c from (select c from sales union all select c from events)",
    "count distinct": (
        "select upper(c) c, count(distinct k) a, count(distinct n) b, sum(n) s from sales group by upper(c)"
    ),
    "intersect": "select k, n from sales intersect select k, n from events",
    "except": "select k, n from events except select k, n from sales",
    "except all": "select k, n from events except all select k, n from sales",
    "intersect all": "select k from events intersect all select k from sales",
    "group of groups": "select s, count(*) n from (select k, sum(n) s from sales group by k) group by s",
    "groups joined": (
        "select s.id, s.n, t.a from sales s join (select k, avg(m) a, max(n) b from sales group by k) t on "
        "s.k = t.k where s.n < t.b"
    ),
    "group by float": "select x, count(*) n, sum(m) m from sales group by x",
    "sums of floats": (
        "select p.cat, sum(s.x) x from sales s join products p on s.k = p.k where not isnan(s.x) group by p.cat"
    ),
    "correlated value": "select p.k, p.name, (select max(s.n) from sales s where s.k = p.k) m from products p",
    "self join": "select a.id, b.id other from sales a join sales b on a.k = b.k and a.id < b.id",
    "unkeyed rows": "select e.k, upper(e.c) c from events e join events f on e.k = f.n",
    "with": "with t as (select k, count(*) n from sales group by k) select a.k, b.n from t a join t b on a.k = b.n",
    "windows joined": (
        "select p.name, t.id, t.z from products p join (select id, k, count(*) over (partition by c) z from sales) t "
        "on p.k = t.k"
    ),
    "explode of a join": "select e.*, s.id, s.k sk, explode(s.tags) tag from events e join sales s on s.k = e.k",
    "scalar subquery": "select id, n from sales where n >= (select avg(n) from sales)",
    "scalar subqueries": (
        "select id, n - (select min(n) from events) d from sales where k < (select max(k) from products)"
    ),
    "first by order": "select id, k, n from sales order by n desc, id limit 3",
    "first of groups": (
        "select p.cat, sum(s.m) m from sales s join products p on s.k = p.k group by p.cat order by m desc, cat limit 1"
    ),
    "after some": "select k from sales order by m desc, id limit 2 offset 2",
    "first of equal rows": "select k, n from events order by k, n limit 4",
    "joined with the first": (
        "select s.id, t.n from sales s join (select k, n from products p join events e using (k) order by n, c limit 2)"
        " t on s.k = t.k"
    ),
    "sums": "select c, sum(n) s, avg(n) a, avg(m) b, sum(m) t, count(m) d, count(*) n from sales group by c",
    "sums of a filter": "select k, sum(n + 1) * 2 s, count(c) + 1 d from sales where n > 1 group by k",
    "sums of no columns": "select count(*) n from (select k from sales group by k) g",
    "sums and others": "select upper(c) c, sum(n) s, max(n) x from sales group by upper(c)",
    "having": "select p.cat, count(*) n from sales s join products p on s.k = p.k group by p.cat having count(*) > 2",
}


@dataclass
class World:
    """A lake with small tables that change at random."""

    lake: fm.Lake
    chance: Random

    def __post_init__(self) -> None:
        for name, (schema, key) in TABLES.items():
            self.lake.create(name, key=key, schema=schema)
        self.write("sales", 14)
        self.write("products", 5)
        self.write("customers", 3)
        self.write("events", 6)

    def row(self, name: str) -> dict[str, Any]:
        pick = self.chance.choice
        k, c, n = pick([None, *range(6)]), pick([None, "a", "b", "B"]), pick([None, *range(6)])
        match name:
            case "sales":
                m, x = pick([None, Decimal("1.50"), Decimal("2.25")]), pick([None, NAN, -0.0, 0.0, 0.5, 0.1])
                tags = pick([None, [], ["s"], ["s", "t", "s"], [None]])
                return {"id": self.chance.randrange(24), "k": k, "c": c, "n": n, "m": m, "x": x, "tags": tags}
            case "products":
                return {"k": self.chance.randrange(7), "name": pick(["p", "q", None]), "cat": pick(["a", "b", None])}
            case "customers":
                return {"c": pick(["a", "b", "B", "z"]), "city": pick(["u", "v", None])}
            case _:
                return {"k": k, "c": c, "n": n}

    def write(self, name: str, count: int) -> None:
        dataset = self.lake[name]
        rows = [self.row(name) for _ in range(count)]
        schema, key = TABLES[name]
        if key:
            rows = list({row[key]: row for row in rows}.values())
        dataset.write(pa.Table.from_pylist(rows, schema))

    def change(self) -> None:
        name = self.chance.choice(["sales", "sales", "products", "customers", "events"])
        dataset = self.lake[name]
        if name != "events" and self.chance.random() < 0.4:
            present = dataset.to_arrow().select([TABLES[name][1]])
            count = min(present.num_rows, self.chance.randint(1, 3))
            if count:
                dataset.delete(present.take(self.chance.sample(range(present.num_rows), count)))
                return
        self.write(name, self.chance.randint(1, 3))


@pytest.fixture(scope="module")
def scratch(session: Session) -> Scratch:
    return Scratch(session.get())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", seeds(3))
def test_view_equals_its_query_after_each_change(
    shape: str, seed: int, tmp_path: Path, session: Session, scratch: Scratch
) -> None:
    world = World(fm.Lake(tmp_path, runtime=Runtime(session=session)), Random(seed))
    sql = SHAPES[shape]
    sources = [name for name in ("sales", "products", "customers", "events") if name in sql]
    view = world.lake.view("v", sql=sql)
    assert view.analysis.carries_changes, view.whole_reason
    view.refresh()
    for _ in range(6):
        for _ in range(world.chance.randint(1, 3)):
            world.change()
        report = view.refresh()
        assert_same(view.to_arrow().to_pylist(), scratch.rows(world.lake, sql, sources), f"{shape}: {report}")
        assert not report.is_whole, report.stale


ON_BOTH_SIDES = [
    "self join",
    "join by range",
    "left join with a dimension",
    "right join",
    "full join of other columns",
    "exists",
    "not exists",
    "exists or",
    "groups joined",
]


@pytest.mark.parametrize("shape", ON_BOTH_SIDES)
def test_rows_that_change_on_both_sides_of_a_join_meet_once(
    shape: str, tmp_path: Path, session: Session, scratch: Scratch
) -> None:
    world, sql = World(fm.Lake(tmp_path, runtime=Runtime(session=session)), Random(0)), SHAPES[shape]
    sources = [name for name in TABLES if name in sql]
    view = world.lake.view("v", sql=sql)
    view.refresh()
    for changed in (ADDED, CORRECTED, REMOVED):
        for name, rows in changed.items():
            if isinstance(rows[0], dict):
                world.lake[name].write(pa.Table.from_pylist(rows, TABLES[name][0]))
            else:
                world.lake[name].delete(rows)
        report = view.refresh()
        assert_same(view.to_arrow().to_pylist(), scratch.rows(world.lake, sql, sources), f"{shape}: {report}")
        assert not report.is_whole, report.stale


ADDED: dict[str, list[Any]] = {
    "sales": [{"id": 100, "k": 50, "c": "y", "n": 3}, {"id": 101, "k": 50, "c": "y", "n": 1}],
    "products": [{"k": 50, "name": "p", "cat": "a"}],
    "events": [{"k": 50, "c": "y", "n": 2}, {"k": 50, "c": "y", "n": 3}, {"k": 51, "c": "y", "n": 3}],
}
CORRECTED: dict[str, list[Any]] = {
    "sales": [{"id": 100, "k": 50, "c": "y", "n": 4}, {"id": 102, "k": 50, "c": "y", "n": 4}],
    "products": [{"k": 50, "name": "q", "cat": "b"}],
    "events": [{"k": 50, "c": "z", "n": 5}],
}
REMOVED: dict[str, list[Any]] = {"sales": [100], "products": [50]}
