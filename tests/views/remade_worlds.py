"""Views that change their key or types, with DuckDB in place of Spark: what a query means stands beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa

import floodmark as fm
from floodmark.derive.inputs import LakeLike
from floodmark.engine.session import Runtime
from floodmark.ledger.data_input import TableData
from floodmark.ledger.names import find_input_name
from floodmark.storage.local import LocalStore
from floodmark.views import analyzer, declare
from floodmark.views.analysis import Analysis, InputUse, schemas_digest
from floodmark.views.changed_rows import LocalRows
from floodmark.views.definition import ViewDefinition
from floodmark.views.evaluator import Evaluator
from floodmark.views.sources import input_schema_of
from views.refresh_worlds import NoSession

COUNTS = "select g, count(*) as n from flights group by g"
MOST = "select g, max(v) as n from flights group by g"  # the same columns as COUNTS
TEXTS = "select g, cast(count(*) as varchar) as n from flights group by g"  # n has another type
FINER = "select g, v, count(*) as n from flights group by g, v"  # another key
ON_VIEW = "select * from daily"

Rows = list[dict[str, Any]]


def analysed(
    lake: LakeLike,
    definition: ViewDefinition,
    *,
    view: str | None = None,
    known: Analysis | None = None,
    settings: Mapping[str, str] | None = None,
) -> Analysis:
    """What Spark would say of the queries above."""
    query = definition.query
    alias = "daily" if query == ON_VIEW else "flights"
    ids = {} if known is None else {use.alias: use.dataset_id for use in known.sources}
    dataset = lake[(find_input_name(lake.store, ids[alias], alias) if alias in ids else None) or alias]
    source = input_schema_of(dataset)
    count = pa.field("n", pa.string() if query == TEXTS else pa.int64())
    grouped = ("g", "v") if query == FINER else ("g",)
    is_rows = query == ON_VIEW
    key = source.key if is_rows else grouped
    columns = list(source.schema) if is_rows else [*map(source.schema.field, grouped), count]
    return Analysis(
        kind="rows" if is_rows else "groups",
        why=None,
        sources=(InputUse(alias, source.dataset_id, tuple((k, k) for k in key), tuple(source.schema.names), ()),),
        columns=pa.schema([f.with_nullable(True) for f in columns]),
        t=key,
        key=key,
        hidden=pa.schema([]),
        query=query,
        identity=False,
        inject={},
        schemas=schemas_digest([source]),
    )


def answered(evaluator: Evaluator, inputs: Mapping[str, Any]) -> TableData:
    tables = {alias: given.table for alias, given in inputs.items() if isinstance(given, LocalRows)}
    return TableData(asked(evaluator.analysis.query, tables))


def asked(query: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(query).to_arrow_table()


@contextmanager
def without_spark() -> Iterator[None]:
    with (
        mock.patch.object(declare, "analyse_for_lake", analysed),
        mock.patch.object(analyzer, "analyse_for_lake", analysed),
        mock.patch.object(Evaluator, "evaluate", answered),
    ):
        yield


def open_lake(folder: Path, files: Any = None) -> fm.Lake:
    store = LocalStore(folder) if files is None else LocalStore(folder, files)
    return fm.Lake(store, runtime=Runtime(session=NoSession()))


def make_lake(folder: Path) -> fm.Lake:
    """A lake with a few rows and one refreshed view, `daily`, of COUNTS."""
    lake = open_lake(folder)
    lake.create("flights", key="id")
    write(lake, [(1, "a", 1), (2, "a", 2), (3, "b", 2), (4, None, 5)])
    lake.view("daily", sql=COUNTS).refresh()
    return lake


def write(lake: fm.Lake, rows: list[tuple[int, str | None, int]]) -> None:
    ids, groups, values = zip(*rows, strict=True)
    columns = {"id": pa.array(ids, pa.int64()), "g": pa.array(groups, pa.string()), "v": pa.array(values, pa.int64())}
    lake["flights"].write(pa.table(columns))


def right(lake: fm.Lake, query: str) -> Rows:
    """What a query over the flights gives from scratch."""
    return in_order(asked(query, {"flights": lake["flights"].to_arrow()}))


def shown(lake: fm.Lake, name: str = "daily") -> Rows:
    return in_order(lake[name].to_arrow())


def in_order(table: pa.Table) -> Rows:
    return sorted(table.to_pylist(), key=repr)


def datasets(lake: fm.Lake) -> set[str]:
    """The folders of all datasets, be they named or not."""
    return {info.key.split("/")[1] for info in lake.store.list("datasets")}
