"""What docs/views.md says of queries is so: which are refreshed by records, groups or join keys, and which are not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark import Lake

pytestmark = pytest.mark.spark

RECORDS = [
    "select id, delay / 60 hours from flights where delay > 0",
    "select upper(carrier) c from (select * from flights where day > 1) where id > 3 order by c",
    "with recent as (select * from flights where day > 1) select id from recent",
    "select at from log",
]
GROUPS = [
    "select carrier, day, avg(delay) d, count(*) n from flights group by carrier, day having count(*) > 1",
    "select carrier, upper(origin) o, max(delay) - min(delay) d from flights group by carrier, upper(origin)",
    "select distinct carrier, day from flights",
    "select carrier, percentile(delay, 0.5) m, collect_set(origin) o from flights group by carrier",
]
JOINS = [
    "select f.*, w.temp from flights f left join weather w using (origin, day)",
    "select f.id, f.origin, w.temp from flights f join weather w on f.origin = w.origin and w.day < f.day",
    "select origin, f.id, w.temp from flights f full join weather w using (origin)",
    "select f.* from flights f left semi join weather w on f.origin <=> w.origin",
    "select f.* from flights f left anti join weather w using (origin)",
    "select w.*, f.id from flights f right join weather w on f.origin = w.origin",
    "select origin, count(*) n, max(temp) t from flights join weather using (origin) group by origin",
    "select f.carrier, f.id, g.id other from flights f join flights g on f.carrier = g.carrier and f.id < g.id",
]
CHANGES = [
    "select * from flights where origin in (select origin from weather)",
    "select origin from flights union all select origin from weather",
    "select id, explode(split(carrier, '')) c from flights",
    "select carrier, day, count(*) n from flights group by rollup (carrier, day)",
    "select count(*) n from flights",
    "select upper(carrier) c, count(*) n from flights group by upper(carrier)",
    "select delay, count(*) n from flights group by delay",
    "select f.id, w.temp from flights f join weather w on f.delay = w.temp",
    "select f.id, w.temp from flights f join weather w on f.day < w.day",
    "select f.origin, l.at from flights f join weather w on f.origin = w.origin join log l on w.day = l.at",
    "select carrier, count(*) n from flights join weather using (origin) group by carrier",
    "select f.id, f.origin, l.at from flights f join log l on f.origin = l.at",
    "select f.id a, g.id b from flights f join flights g on f.id = g.day",
]
EVERYTHING = [
    "select * from flights limit 3",
    "select id, rank() over (order by delay) r from flights",
    "select id from flights where delay > (select avg(delay) from flights)",
    "select id, rand() r from flights",
    "select id, current_date() d from flights",
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark) -> Lake:
    made = Lake(tmp_path_factory.mktemp("subset") / "lake")
    strings, whole, real = pa.string(), pa.int64(), pa.float64()
    flights = {"id": whole, "carrier": strings, "origin": strings, "day": whole, "delay": real}
    made.create("flights", key="id", schema=flights)
    made.create("weather", key=["origin", "day"], schema={"origin": strings, "day": whole, "temp": real})
    made.create("log", schema={"at": whole, "what": strings})
    return made


@pytest.mark.parametrize(
    ("way", "query"),
    [
        *(("rows", query) for query in RECORDS),
        *(("groups", query) for query in GROUPS),
        *(("join", query) for query in JOINS),
        *(("changes", query) for query in CHANGES),
        *(("whole", query) for query in EVERYTHING),
    ],
)
def test_query_is_refreshed_as_the_page_says(lake: Lake, way: str, query: str):
    view = lake.view("v", sql=query)  # never refreshed, so that it can be declared otherwise
    assert view.refresh_kind == way
    assert (view.whole_reason is not None) is (way == "whole")
