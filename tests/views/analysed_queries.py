"""Queries of all sorts over a small random world, with what is known of each: the material of the tests of analysis."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa

from floodmark.views.analysis import InputSchema

SOURCES: Mapping[str, InputSchema] = {
    source.name: source
    for source in (
        InputSchema(
            "did:t",
            "t",
            pa.schema(
                {
                    "id": pa.int32(),
                    "k": pa.string(),
                    "g": pa.string(),
                    "v": pa.float64(),
                    "n": pa.int64(),
                    "d": pa.date32(),
                    "c": pa.int64(),
                }
            ),
            key=("id",),
            computed=("c",),
        ),
        InputSchema(
            "did:u",
            "u-x",
            pa.schema({"id": pa.int32(), "k": pa.string(), "w": pa.int64()}),
            key=("id", "k"),
        ),
        InputSchema(
            "did:e",
            "e",
            pa.schema({"id": pa.int32(), "k": pa.string(), "w": pa.int64(), "a": pa.list_(pa.int32())}),
        ),
        InputSchema(  # a view whose rows are told apart by columns that nobody sees
            "did:h",
            "h",
            pa.schema({"id": pa.int32(), "w": pa.int64()}),
            key=("floodmark_row", "floodmark_copy"),
            hidden=pa.schema({"floodmark_row": pa.int64(), "floodmark_copy": pa.int32()}),
        ),
    )
}


@dataclass(frozen=True)
class Case:
    """A query that is refreshed in parts: how, by which columns, and what tells its rows apart (… : hidden columns)."""

    sql: str
    kind: str
    t: tuple[str, ...]
    key: tuple[str, ...] | None = None  # None: the same as T

    @property
    def whole_key(self) -> tuple[str, ...]:
        key = self.t if self.key is None else self.key
        return (*key[:-1], "floodmark_row", "floodmark_copy") if key[-1] == "…" else key


def rows(sql: str, *t: str) -> Case:
    return Case(sql, "rows", t)


def groups(sql: str, t: str, key: str | None = None) -> Case:
    return Case(sql, "groups", tuple(t.split()), None if key is None else tuple(key.split()))


def join(sql: str, t: str, key: str | None = None) -> Case:
    return Case(sql, "join", tuple(t.split()), None if key is None else tuple(key.split()))


OFFSET = "floodmark_offset"
ID = "floodmark_key_id"

IN_PARTS = [
    # Rows: columns renamed, dropped, given twice; nested selects; stars
    rows("select id, n + 1 as m from t where n > 1", "id"),
    rows("select id as i, id as j, k from t", "i"),
    rows("select k as id, id as k from t", "k"),
    rows("select ID as Id, K from T where N is not null", "Id"),
    rows("select * from t", "id"),
    rows("table t", "id"),
    rows(
        "select x.i, x.m from (select id as i, n * 2 as m from t where g = 'a') x where x.m > 2 order by x.m desc", "i"
    ),
    rows("select k, n + 1 as m from t", ID),
    rows("select (k), (n + 1) from t", ID),
    rows("select all k from t -- from u", ID),
    rows("select k as `a b`, 'from x' as `select` from t where k <> 'select, from' order by 1", ID),
    rows("select x.k from (select k from t where n > 1) x", ID),
    rows("select * except (id) from t", ID),
    rows("with c as (select * from t where n > 0) select k, g from c", ID),
    rows("select x.k from (select k, g from t distribute by g) x", ID),
    rows("select k, w from `u-x` where id > 2", "floodmark_key_id", "k"),
    rows("select concat(k, 'x') as kk, w from `u-x`", "floodmark_key_id", "floodmark_key_k"),
    rows("select w, id from e", OFFSET),
    rows("select * from e where w > 2", OFFSET),
    rows("select get(a, 0) as f, transform(a, x -> x + 1) as b from e", OFFSET),
    rows("select 1 as one from e", OFFSET),
    rows("select case when k in ('x', 'y') then w else null end from e", OFFSET),
    rows("select w from h", "floodmark_key_floodmark_row", "floodmark_key_floodmark_copy"),
    rows("select id, k from t where id = '3' or n in (1, 2, 3) distribute by g", "id"),
    rows("select id, hash(*) as h from t", "id"),
    rows(
        "select id, to_date('2020-02-02') e, try_to_date(k, 'yyyy') f from t where d >= '2020-01-01' or k = 'x'", "id"
    ),
    # Groups: by columns, aliases, ordinals, expressions; HAVING; DISTINCT
    groups("select g, count(*) c, sum(n) s from t group by g", "g"),
    groups("select g as h, count(*) c from t group by 1 having count(*) > 1 order by c", "h"),
    groups("select G, max(n) m from t where k = 'x' group by g having m > 2", "G"),
    groups("select g, k, min(n) m from t group by all", "g k"),
    groups("select g, n % 2 as odd, count(*) c from t group by g, n % 2", "g", "g odd"),
    groups("select g, count(*) c from t group by g, n % 2", "g", "g …"),
    groups("select g, v, count(*) c from t group by g, v", "g", "g …"),
    groups("select g, year(d) y, count(distinct n) filter (where n > 1) c from t group by g, year(d)", "g", "g y"),
    groups("select g, c, count(*) z from t group by g, c", "g", "g c"),
    groups("select d, k, first(n) is null f from t group by d, k order by max(n)", "d k"),
    groups("select g, h from (select g, sum(n) h from t group by g) where h > 2", "g"),
    groups("select h, max(c) m from (select g as h, k, count(*) c from t group by g, k) group by h", "h"),
    groups("select distinct g, k from t", "g k"),
    groups("select distinct g, n % 2 odd from t", "g", "g odd"),
    groups("select distinct id, a from e", "id", "id …"),
    groups("select distinct g from (select g, count(*) c from t group by g, k)", "g"),
    groups("with c as (select g, n from t where n > 1) select g, sum(n) s from c group by g", "g"),
    groups("select id, k, any_value(1) o from e group by id, k having count(*) > 0", "id k"),
    groups("select n, id % 2 z, count(*) c from t group by id % 2, n", "n", "n z"),
    groups("select g, sum(n) + 1 s, g = 'a' is_a from t group by g", "g"),
    # Joins: kinds, USING, ON, NATURAL, commas, further conditions
    join("select t.id, t.g, e.w from t join e on t.id = e.id", "id", "id …"),
    join("select id, g, w from t left join e using (id)", "id", "id …"),
    join("select e.id, g, w from t right join e using (id)", "id", "id …"),
    join("select id, g, w from t full join e using (id)", "id", "id …"),
    join("select coalesce(e.id, t.id) i, g, w from t full join e on t.id = e.id and t.n > 3", "i", "i …"),
    join(
        "select coalesce(t.id, e.id) i, g, w from t full join e on t.id <=> e.id where w > 1 or g is null", "i", "i …"
    ),
    join("select id, k, g, w from t full join `u-x` using (id, k)", "id k", "id k …"),
    join("select id, g from t left semi join e using (id)", "id"),
    join("select id, g from t left anti join e on t.id = e.id and e.w > t.n", "id"),
    join("select t.id, w from t, e where t.id = e.id and e.w > 1", "id", "id …"),
    join("select t.id, w from t cross join e where t.id = e.id", "id", "id …"),
    join("select id, w from t natural join (select id, w from `u-x`)", "id", "id …"),
    join("select t.id, u.k, w from t join `u-x` u on t.id = u.id", "id", "id k"),
    join("select t.id, u.k, w from t left join `u-x` u on t.id = u.id and w > 1", "id", "id k"),
    join("select u.id, u.k, t.g from t right join `u-x` u on t.id = u.id", "id", "id k"),
    join("select t.id, t.k, w from t left join `u-x` u on t.id = u.id and t.k = u.k", "id k"),
    join("select u.id, u.k, g from t join `u-x` u on t.id = u.id and t.k = u.k", "id k"),
    join("select t.id, t.k tk, u.k uk from t join `u-x` u on t.k = u.k", "tk", "tk …"),
    join("select t.k, t.id, u.id uid from t join `u-x` u on t.k = u.k", "k", "k id uid"),
    join("select t.k, t.id, u.id uid from t left join `u-x` u on t.k <=> u.k", "k", "k id uid"),
    join("select u.id a, t.id b, w from t left join `u-x` u on t.id = u.id where u.w > 1 or u.id is null", "b", "b …"),
    join("select /*+ broadcast(e) */ t.id, w from t join e on t.id = e.id and t.k = e.k", "id", "id …"),
    join("select t.id, t.k, w from t join e on t.id = e.id and t.k = e.k", "id k", "id k …"),
    join("select t.id, t.k, w from t join e on t.id = e.id and t.k < e.k", "id", "id …"),
    # Three, subqueries, groups on either side, a dataset with itself
    join("select t.id, e.w, u.w uw from t, e, `u-x` u where t.id = e.id and e.id = u.id", "id", "id …"),
    join("select id, e.w, u.w uw from t left join e using (id) left join `u-x` u using (id)", "id", "id …"),
    join("select t.id, u.k, h.w from t left join `u-x` u on u.id = t.id left join h on h.id = t.id", "id", "id …"),
    join("select id, sum(e.w) s from t join e using (id) group by id", "id"),
    join("select id, e.k, sum(e.w) s, max(t.n) m from t left join e using (id) group by id, e.k", "id", "id k"),
    join("select t.id, x.s from t left join (select id, sum(w) s from e group by id) x on x.id = t.id", "id"),
    join("select t.g, n, x.c from t join (select g, count(*) c from t group by g) x on t.g = x.g", "g", "g …"),
    join("select a.id, a.g, b.n from t a join t b on a.id = b.id", "id"),
    join("with c as (select g, n from t where n > 1) select c.g, d.n from c join c d on c.g = d.g", "g", "g …"),
    join("select distinct t.id, e.w from t join e on t.id = e.id", "id", "id w"),
    join("select x.id, x.w, g from (select id, w from e where w > 1) x left join t on x.id = t.id", "id", "id …"),
    # What an inner join or a filter below says is equal goes on being so
    join("select t.id, e.w, h.w hw from t join e on t.id = e.id left join h on e.id = h.id", "id", "id …"),
    join("select t.id, e.w from t join e on t.id = e.id left semi join h on h.id = e.id", "id", "id …"),
    join("select t.id, e.w from t join e on t.id <=> e.id left anti join h on h.id <=> e.id and h.w > 2", "id", "id …"),
    join("select t.id, h.w from h right join (t join e on t.id = e.id) on h.id = e.id", "id", "id …"),
    join(
        "select x.i, u.k, u.w from (select t.id i, e.id j, e.id l from t, e where t.id = e.id) x "
        "left join `u-x` u on x.l = u.id",
        "i",
        "i …",
    ),
    join(
        "select x.i, h.w, c "
        "from (select t.id i, e.id j, count(*) c from t join e on t.id = e.id group by t.id, e.id) x "
        "left join h on x.j = h.id",
        "i",
        "i …",
    ),
    join(
        "with x as (select t.id i, e.id j, e.w from t join e on t.id = e.id) "
        "select x.i, x.w, h.w hw from x left join h on x.j = h.id",
        "i",
        "i …",
    ),
    join("select t.id, u.k, e.w from t join `u-x` u on t.id = u.id left join e on e.id = u.id", "id", "id …"),
]

WHOLE = {
    "select id, n from t limit 3": "LIMIT",
    "select id, n from t order by id offset 2": "OFFSET",
    "select id from t tablesample (50 percent)": "TABLESAMPLE",
    "select id, row_number() over (partition by g order by id) r from t": "window functions",
    "select id, explode(a) x from e": "several rows from one",
    "select id, x from e lateral view explode(a) q as x": "several rows from one",
    "select g, count(*) c from t group by rollup (g)": "ROLLUP",
    "select g, k, count(*) c from t group by cube (g, k)": "CUBE",
    "select g, k, count(*) c from t group by grouping sets ((g), (k))": "GROUPING SETS",
    "select count(*) c from t": "no GROUP BY",
    "select g, c from (select max(g) g, count(*) c from t)": "no GROUP BY",
    "select v, count(*) c from t group by v": "floats",
    "select c, count(*) z from t group by c": "computed columns",
    "select a, count(*) z from e group by a": "nested values",
    "select year(d) y, count(*) z from t group by year(d)": "expressions",
    "select upper(g) g, count(*) z from t group by upper(g)": "expressions",
    "select count(*) z from t group by g": "in the result",
    "select id from t union all select id from e": "UNION",
    "select id from t union select id from e": "UNION",
    "select id from t intersect select id from e": "INTERSECT",
    "select id from t except select id from e": "EXCEPT",
    "select id from t where n > (select max(w) from e)": "subquery",
    "select id from t where id in (select id from e)": "subquery",
    "select id from t where not exists (select 1 from e where e.id = t.id)": "subquery",
    "select id, (select max(w) from e where e.id = t.id) m from t": "subquery",
    "select t.id, x.w from t, lateral (select w from e where e.id = t.id) x": "subquery",
    "select t.id, e.w from t cross join e": "equal (=)",
    "select t.id, e.w from t join e on t.id > e.id": "equal (=)",
    "select t.id, e.w from t join e on t.n = e.id": "equal (=)",  # one is cast
    "select t.v, e.w from t join e on t.v = e.w": "equal (=)",
    "select t.k, e.w from t join e on t.id = e.id": "equal (=)",  # not in the result
    "select t.id, e.w from t join e on t.id = e.id or t.k = e.k": "equal (=)",
    "select t.id, e.w from t join e on t.id = e.id + 1": "equal (=)",
    "select e.id, w, g from t left join e on t.id = e.id": "equal (=)",  # null for want of a partner
    "select t.id, w, g from t right join e on t.id = e.id": "equal (=)",
    "select t.id, w, g from t full join e on t.id = e.id": "equal (=)",
    "select t.id, u.w from t left join e on t.id = e.id left join `u-x` u on u.id = e.id": "equal (=)",
    "select t.c, w from t join e on t.c = e.w": "equal (=)",
    "select h.w, t.id from h left join (t join e on t.id = e.id) on h.w = e.w left join `u-x` u on u.id = e.id": "=",
    "select t.id, h.w from t full join e on t.id = e.id left join h on h.id = e.id": "equal (=)",
    "select t.id, u.w from t left join e on t.id = e.id join `u-x` u on u.id <=> e.id": "equal (=)",  # null is no t.id
    "select t.id, h.w from t left join e on t.id = e.id and t.k = e.k left join h on h.w = e.w": "equal (=)",
    "select u.id, h.w from t join `u-x` u on t.n = u.w left join h on h.id = t.id": "equal (=)",
    "select t.id, coalesce(t.id, e.id, 0) i from t full join e on t.id = e.id": "equal (=)",
    "select a.id, b.n from t a join t b on a.id = cast(b.n as int)": "itself",
    "select a.n, b.k from t a join (select id, k, n + 0 n from t) b on a.n = b.n": "itself",
    "select x.id, count(*) z from (select id from t union all select id from e) x group by x.id": "UNION",
    "select t.id, v.a from t join values (1), (2) v(a) on t.id = v.a": "literal rows",
    "select t.id, r.id rid from t join range(5) r on t.n = r.id": "literal rows",
    "with c as (select * from e) select id from t": "WITH",
    "with recursive r(i) as (select 1 union all select i + 1 from r where i < 3) select t.id, i from t, r": "",
    "select hash(*) as h from t": "cannot be added",
    "select k from t where hash(*) % 2 = 0": "cannot be added",
    "with c as (select hash(*) as h, k from t) select k from c": "cannot be added",
    "with c as (select k from t) select k from c": "cannot be added",
    "select x.k from (select k from t) as x(k)": "cannot be added",
    "from t |> where id > 3 |> select id": "PipeOperator",
    "select id, current_date() d from t": "current_date()",
    "select id from t where d < current_date": "current_date()",
    "select id, now() x from t": "now()",
    "select id, unix_timestamp() x from t": "current_timestamp()",
    "select id, rand() x from t": "rand()",
    "select id, uuid() x from t": "uuid()",
    "select id, monotonically_increasing_id() x from t": "monotonically",
    "select id, shuffle(array(1, 2)) x from t": "shuffle()",
    "select id from t where d < date'today'": "'today'",
    "select id, timestamp 'now' x from t": "'today'",
    "select id, cast('yesterday' as date) x from t": "'today'",
    "select id, to_date(concat('to', 'day')) x from t": "'today'",
    "select id, try_to_timestamp('now') x from t": "'today'",
    "select id from t where d < 'today'": "'today'",
    "select id, aes_encrypt(k, '0000111122223333') x from t": "aes_encrypt()",
    "select id, randstr(3) x from t": "rand_str()",
}


def world(seed: int) -> dict[str, list[dict[str, Any]]]:
    """Few rows with few values, nulls among them, so that all that can meet does."""
    chance = random.Random(seed)

    def one(*values: Any) -> Any:
        return chance.choice([*values, None])

    def number() -> int | None:
        return one(0, 1, 2, 3, 4)

    t = [
        {
            "id": i,
            "k": one("x", "y"),
            "g": one("a", "b", "c"),
            "v": one(0.0, 1.0, 2.5),
            "n": number(),
            "d": one(date(2020, 1, 1), date(2021, 1, 1)),
            "c": number(),
        }
        for i in chance.sample([*range(12), None], 11)  # a derived dataset may have null in its key
    ]
    pairs = [(i, k) for i in [*range(12), None] for k in ("x", "y", None)]
    u = [{"id": i, "k": k, "w": number()} for i, k in chance.sample(pairs, 18)]
    e = [{"id": one(*range(10)), "k": one("x", "y"), "w": number(), "a": one([1], [1, 2], [])} for _ in range(16)]
    e += e[:2]
    h = [{"id": one(*range(10)), "w": number(), "floodmark_row": i // 2, "floodmark_copy": i % 2} for i in range(10)]
    return {
        name: [{"offset": 10 + i, **row} for i, row in enumerate(rows)]
        for name, rows in {"t": t, "u-x": u, "e": e, "h": h}.items()
    }
