"""Random queries as views: after each random change a view has the rows that Spark computes from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import floodmark as fm
from floodmark.engine.session import Runtime, Session
from floodmark.errors import QueryFailed
from floodmark.view import View
from limits import set_limit
from profiles import IN_FULL, seeds
from views.random_queries import QueryMaker
from views.random_tables import TABLES
from views.view_oracle import assert_same

pytestmark = pytest.mark.spark

QUERIES_PER_LAKE = 6
DEPTH = 5
STEPS = 5 if IN_FULL else 2


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(5))
def test_views_have_the_rows_from_scratch_after_each_change(
    seed: int, tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake, chance = fm.Lake(tmp_path, runtime=Runtime(session=session)), Random(seed)
    if chance.random() < 0.2:
        set_limit(monkeypatch, "rows.few_rows", 2)  # Spark reads the tables
    for table in TABLES:
        table.create(lake, chance)
    queries = dict(_queries(seed))
    views = {name: lake.view(name, sql=sql) for name, sql in queries.items()}
    changes: list[str] = []
    for step in range(STEPS + 1):
        for name, view in views.items():
            told = "\n".join([f"seed {seed}, step {step}: {queries[name]}", *changes])
            _refresh(lake, view, queries[name], told)
            if " div " not in queries[name]:
                assert not caplog.messages, told  # a division may fail for rows that only the changes have
        changes += [
            f"{table.name}: {table.change(lake, chance)}" for table in chance.sample(TABLES, chance.randint(1, 3))
        ]


def _refresh(lake: fm.Lake, view: View, sql: str, told: str) -> None:
    """Refresh a view: it shows the rows from scratch, or fails as the query does."""
    try:
        rows = lake.sql_spark(sql).toArrow().to_pylist()
    except Exception:  # whatever it is, the refresh must not succeed
        with pytest.raises(QueryFailed):
            view.refresh()
        return
    view.refresh()
    assert_same(_without_sign(view.to_arrow().to_pylist()), _without_sign(rows), told)


def _without_sign(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with 0.0 for -0.0. They are equal, so `max`, and an order by all columns, may return either of them."""
    return [
        {name: 0.0 if value == 0 and isinstance(value, float) else value for name, value in r.items()} for r in rows
    ]


def _queries(seed: int) -> Iterator[tuple[str, str]]:
    """The views of a lake: random queries, and parts of them, which come first."""
    for number in range(QUERIES_PER_LAKE):
        maker = QueryMaker(seed * QUERIES_PER_LAKE + number, f"part{number}_")
        query = maker.query(maker.chance.randint(1, DEPTH))
        yield from maker.views.items()
        yield f"view{number}", query.sql
