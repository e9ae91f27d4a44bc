"""A query over some rows of its tables gives those rows of its result: of every query that is said to be such a one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from floodmark.ledger.spark_read import table_frame
from floodmark.views.analysis import COPY_COLUMN, OFFSET_COLUMN, ROW_COLUMN, Analysis
from floodmark.views.analyzer import analyse
from floodmark.views.definition import ViewDefinition
from floodmark.views.spark_sql import isolated_session, register_table, with_identity
from profiles import sample
from views.analysed_queries import IN_PARTS, SOURCES, Case, world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Rows = list[dict[str, Any]]
_QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="module")
def quick(spark: SparkSession) -> SparkSession:
    ours = isolated_session(spark)
    for name, value in _QUICK.items():
        ours.conf.set(name, value)
    return ours


@pytest.mark.parametrize("case", IN_PARTS, ids=lambda case: case.sql)
def test_query_is_refreshed_in_parts(quick: SparkSession, case: Case) -> None:
    analysis = analyse(quick, ViewDefinition(sql=case.sql), SOURCES)
    assert (analysis.kind, analysis.t, analysis.key) == (case.kind, case.t, case.whole_key), analysis.why


@pytest.mark.soak
@pytest.mark.parametrize("case", sample(IN_PARTS, 20), ids=lambda case: case.sql)
def test_query_over_some_rows_gives_some_rows_of_the_result(quick: SparkSession, case: Case) -> None:
    analysis = analyse(quick, ViewDefinition(sql=case.sql), SOURCES)
    seed = sum(case.sql.encode())
    tables = world(seed)
    full = _result(quick, analysis, tables)
    assert full, "a world in which there is nothing to compare"
    chosen = _some([tuple(row[name] for name in analysis.t) for row in full], seed)
    chosen |= _some([_key(use, row) for use in analysis.sources for row in tables[use.alias]], seed)
    restricted = {use.alias: [row for row in tables[use.alias] if _key(use, row) in chosen] for use in analysis.sources}
    expected = [row for row in full if tuple(row[name] for name in analysis.t) in chosen]
    assert expected
    assert _counted(_result(quick, analysis, restricted)) == _counted(expected)
    keys = Counter(repr([row[name] for name in analysis.key]) for row in full)
    assert max(keys.values()) == 1


def test_query_that_is_run_has_the_result_of_the_users_query(quick: SparkSession) -> None:
    for case in sample(IN_PARTS, 5):
        analysis = analyse(quick, ViewDefinition(sql=case.sql), SOURCES)
        tables = world(1)
        names = analysis.columns.names
        ran = [{name: row[name] for name in names} for row in _result(quick, analysis, tables)]
        for alias, rows in tables.items():
            register_table(alias, _frame(quick, rows, SOURCES[alias].schema))
        asked = [row.asDict() for row in quick.sql(case.sql).collect()]
        assert _counted(ran) == _counted(asked), case.sql


def _some(keys: list[tuple[Any, ...]], seed: int) -> set[tuple[Any, ...]]:
    """About half of the keys, and at least one."""
    known = sorted(set(keys), key=repr)
    return set(random.Random(seed).sample(known, (len(known) + 1) // 2))


def _key(use: Any, row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[column] for _, column in use.keys)


def _result(spark: SparkSession, analysis: Analysis, tables: Mapping[str, Rows]) -> Rows:
    """What a refresh would keep of these rows of the tables."""
    for use in analysis.sources:
        source = SOURCES[use.alias]
        inject = analysis.inject.get(use.alias, ())
        fields = [*[source.schema.field(c) for c in use.columns], *[pa.field(n, source.type_of(c)) for n, c in inject]]
        rows = [
            {**{c: row[c] for c in use.columns}, **{name: row[column] for name, column in inject}}
            for row in tables[use.alias]
        ]
        register_table(use.alias, _frame(spark, rows, pa.schema(fields)))
    answer = spark.sql(analysis.query)
    kept = answer.select(*[f"`{name}`" for name in analysis.stored.names if name not in (ROW_COLUMN, COPY_COLUMN)])
    made = with_identity(kept, analysis.t) if analysis.identity else kept
    assert made.columns == analysis.stored.names
    return [row.asDict() for row in made.collect()]


def _frame(spark: SparkSession, rows: Rows, schema: pa.Schema) -> Any:
    return table_frame(
        pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema), spark
    )


def _counted(rows: Rows) -> Counter[str]:
    return Counter(repr(sorted((name, value) for name, value in row.items() if name != OFFSET_COLUMN)) for row in rows)
