"""Queries that have an operator through which changes cannot be carried, and the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from floodmark.views.analyzer import analyse
from floodmark.views.definition import ViewDefinition
from floodmark.views.spark_sql import isolated_session
from views.analysed_queries import SOURCES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COMPARES_FLOATS = "sums of floating-point numbers"
NESTED = "a structure or a map"
COLLATED = "texts with a collation"
RUNNING_SUM = "select id, sum(double(w)) over (partition by upper(k) order by w) s from e"
TEXTS = "a.k collate utf8_lcase = b.k collate utf8_lcase"
WHOLE = {
    "select count(*) z from e group by k collate utf8_lcase": COLLATED,
    "select id, count(*) over (partition by k collate utf8_lcase) z from e": COLLATED,
    "select id, size(m) z from (select id, map('a', w) m from e order by id limit 3)": "a type without an order",
    "select id from e order by k collate utf8_lcase limit 3": COLLATED,
    "select count(*) z from e group by map('a', w)": NESTED,
    "select count(*) z from e group by named_struct('a', double(w))": NESTED,
    "select id, count(*) over (partition by named_struct('a', w)) z from e": NESTED,
    f"select a.id, b.id i from e a full join e b on {TEXTS}": "without an equality",
    "select id from e where exists (select 1 from h)": "a subquery whose value may change",
    f"select id, s from ({RUNNING_SUM}) where s > 0.3": COMPARES_FLOATS,
    f"select s, count(*) z from ({RUNNING_SUM}) group by s": COMPARES_FLOATS,
    "select k from (select upper(k) k, sum(double(w)) s from e group by upper(k)) where s > 0.3": COMPARES_FLOATS,
    "select id, m['a'] a from (select id, m, row_number() over (partition by upper(k) order by id) r "
    "from (select *, map('a', w) m from e)) where r = 1": "a type without an order",
}


@pytest.mark.parametrize(("sql", "why"), WHOLE.items(), ids=list(WHOLE))
def test_operator_without_a_rule_makes_the_query_whole(spark: SparkSession, sql: str, why: str) -> None:
    analysis = analyse(isolated_session(spark), ViewDefinition(sql=sql), SOURCES)
    assert analysis.kind == "whole"
    assert analysis.rules is not None
    assert why in str(analysis.rules.reason)


@pytest.mark.parametrize(
    "sql",
    [
        "select id from (select id, sum(double(w)) over (partition by upper(k)) s from e) where s > 0.3",
        "select id, m['a'] a, count(*) over (partition by upper(k) order by w) z from (select *, map('a', w) m from e)",
    ],
)
def test_changes_are_carried_through_windows(spark: SparkSession, sql: str) -> None:
    assert analyse(isolated_session(spark), ViewDefinition(sql=sql), SOURCES).kind == "changes"
