"""Random queries as views: after each random change a view has the rows that Spark computes from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import floodmark as fm
from floodmark.engine.session import Runtime, Session
from profiles import seeds
from views.random_queries import TABLES, QueryMaker
from views.view_oracle import assert_same

pytestmark = pytest.mark.spark

QUERIES_PER_LAKE = 4
DEPTH = 5
STEPS = 5


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(5))
def test_views_have_the_rows_from_scratch_after_each_change(seed: int, tmp_path: Path, session: Session) -> None:
    lake, chance = fm.Lake(tmp_path, runtime=Runtime(session=session)), Random(seed)
    for table in TABLES:
        table.create(lake)
        if table.name != "empty":
            lake[table.name].write(table.rows(chance, 8))
    queries = {f"view{n}": query for n, query in enumerate(_queries(seed))}
    views = {name: lake.view(name, sql=sql) for name, sql in queries.items()}
    for step in range(STEPS + 1):
        for name, view in views.items():
            view.refresh()
            rows = lake.sql_spark(queries[name]).toArrow().to_pylist()
            assert_same(view.to_arrow().to_pylist(), rows, f"seed {seed}, step {step}: {queries[name]}")
        for table in chance.sample(TABLES, chance.randint(1, 2)):
            table.change(lake, chance)


def _queries(seed: int) -> Iterator[str]:
    for number in range(QUERIES_PER_LAKE):
        maker = QueryMaker(seed * QUERIES_PER_LAKE + number)
        yield maker.query(maker.chance.randint(1, DEPTH)).sql
