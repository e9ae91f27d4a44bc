"""What a view has to show: its SQL, run from scratch by Spark over the current rows of its sources.

Nothing of the product's views is used: rows come from `to_arrow()`, records from `changes_arrow()`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.ledger.types import spark_schema
from views.view_worlds import Row

APPEND, RETRACT, CORRECT_FROM, CORRECT_TO = range(4)
SYSTEM = {"offset", "op", "system_time", "event_time"}

Cells = frozenset[tuple[str, str]]
"""A row as its values; nulls are left out, so that a column of nulls makes no difference."""


class Scratch:
    """Spark in a session of its own, with tables of rows."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark.newSession()
        self._spark.conf.set("spark.sql.shuffle.partitions", "1")
        self._spark.conf.set("spark.sql.adaptive.enabled", "false")
        self._tables: dict[str, Any] = {}  # how the sources stood that are there as tables
        self._answers: dict[tuple[Any, ...], list[Row]] = {}

    def rows(self, lake: fm.Lake, sql: str, sources: Sequence[str]) -> list[Row]:
        """What a query gives over the sources as they are now."""
        stands = {name: (str(lake[name].id), lake[name].head, _computed(lake[name])) for name in sources}
        asked = (sql, *stands.items())
        if asked not in self._answers:
            moved = [name for name in sources if self._tables.get(name) != stands[name]]
            self._answers[asked] = self.rows_of({name: lake[name].to_arrow() for name in moved}, sql)
            self._tables |= stands
        return self._answers[asked]

    def rows_of(self, tables: Mapping[str, pa.Table], sql: str) -> list[Row]:
        """What a query gives over some tables, and over those that are there already."""
        for name, table in tables.items():
            one_piece = table.combine_chunks()  # Spark takes an empty piece for the end
            rows, schema = (one_piece, None) if table.num_rows else ([], spark_schema(table.schema))  # or refuses it
            self._spark.createDataFrame(rows, schema).createOrReplaceTempView(name)
        found: list[Row] = self._spark.sql(sql).toArrow().to_pylist()
        return found


def _computed(dataset: Dataset) -> str:
    return repr(dataset.columns()) if dataset.catalog.columns else ""


def cells(row: Mapping[str, Any], columns: Collection[str] | None = None) -> Cells:
    named = {name: value for name, value in row.items() if columns is None or name in columns}
    return frozenset((name, repr(value)) for name, value in named.items() if value is not None)


def bag(rows: Iterable[Mapping[str, Any]], columns: Collection[str] | None = None) -> Counter[Cells]:
    """Rows in no order, and how often each is there."""
    return Counter(cells(row, columns) for row in rows)


def differences(one: Counter[Cells], other: Counter[Cells]) -> int:
    """How many records lead from one to the other at least."""
    return (one - other).total() + (other - one).total()


def assert_same(found: Sequence[Row], right: Sequence[Row], story: str = "") -> None:
    """The same rows, in any order."""
    shown, wanted = bag(found), bag(right)
    if shown != wanted:
        too_many = sorted(sorted(row) for row in (shown - wanted).elements())
        missing = sorted(sorted(row) for row in (wanted - shown).elements())
        raise AssertionError(f"too many: {too_many}\nmissing: {missing}\n{story}")


def replayed(rows: Counter[Cells], changes: pa.Table) -> Counter[Cells]:
    """Rows after some records, each of which must make sense."""
    found = Counter(rows)
    columns = [name for name in changes.column_names if name not in SYSTEM]
    for record in changes.to_pylist():
        row = cells(record, columns)
        if record["op"] in (APPEND, CORRECT_TO):
            found[row] += 1
        else:
            assert found[row] > 0, f"record {record['offset']} takes back what is not there: {sorted(row)}"
            found[row] -= 1
    return +found


def operations(changes: pa.Table) -> dict[str, int]:
    """How many rows of some records are new, changed and retracted."""
    count = Counter(changes["op"].to_pylist())
    assert count[CORRECT_FROM] == count[CORRECT_TO]
    return {"new": count[APPEND], "changed": count[CORRECT_TO], "retracted": count[RETRACT]}


def objects_of(dataset: Dataset) -> dict[str, int]:
    """Everything that lies in a dataset's folder, by size; empty files are locks."""
    objects = dataset.snapshot().objects
    return {info.key: info.size for info in objects.store.list(objects.folder) if info.size}


def hidden_names(names: Iterable[str]) -> list[str]:
    return [name for name in names if re.match(r"floodmark_", name)]
