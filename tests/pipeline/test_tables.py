"""Which datasets an SQL text reads, without a parser and without Spark."""

from __future__ import annotations

import pytest

from floodmark.pipeline.graph import tables_in_sql


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("select * from a", "a"),
        ("SELECT x FROM a WHERE y IN (SELECT y FROM b) AND z = 1", "a b"),
        ("select * from a join b using (id) left join c on a.x = c.x", "a b c"),
        ("select * from a, b as c, d where a.x = 1", "a b d"),
        ("select * from a x join b y on x.i = y.i, c", "a b c"),
        ("select (select max(y) from b) from a", "b a"),
        ("select * from (select * from a) t", "a"),
        ("select * from (a join b using (id))", "a b"),
        ("select 1 from a union all select 2 from b except (select 3 from c)", "a b c"),
        ("with t as (select * from a), u (x) as (select x from t) select * from u join b on true", "a b"),
        ("select * from a as t, t", "a t"),
        ("from a select x", "a"),
        ("select extract(year from at), trim(both 'x' from name) from a", "a"),
        ("select x is distinct from y from a where x is not distinct from z", "a"),
        ("select * from range(10), a", "a"),
        ("select * from values (1), (2)", ""),
        ("select * from a lateral view explode(xs) t as x", "a"),
        ("select 'from b' as \"from c\", x -- from d\n from a /* from e */", "a"),
        ("select * from `my-data` join `x` using (id)", "my-data x"),
        ("select * from a where x in (1, 2) group by y order by z, w limit 3", "a"),
        ("select * from a full outer join b on a.i = b.i and a.j in (1, 2), c", "a b c"),
        ("select * from a join lateral (select * from b where b.i = a.i) t", "a b"),
        ("select sum(x) over (partition by y order by z), from_unixtime(t) from a", "a"),
        ("select * from A join a on true", "A a"),
        ("select 1", ""),
    ],
)
def test_names_that_stand_where_tables_do_are_found(sql: str, found: str):
    assert tables_in_sql(sql) == tuple(found.split())
