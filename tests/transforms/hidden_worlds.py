"""A view of orders whose rows go by hidden columns, in the ways that views have; a test answers its query itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import floodmark as fm
from floodmark.ledger.create import create_view
from floodmark.ledger.data_input import TableData
from floodmark.views.analysis import COPY_COLUMN, ROW_COLUMN, Analysis, InputUse, RefreshKind, schemas_digest
from floodmark.views.changed_rows import LocalRows
from floodmark.views.definition import define
from floodmark.views.evaluator import Evaluator
from floodmark.views.sources import input_schema_of
from floodmark.views.stored_definition import StoredView
from views.refresh_worlds import lake_without_spark

QUERY = "select g, v from orders"
ORDERS = pa.schema([("id", pa.int64()), ("g", pa.int64()), ("v", pa.int64())])
SHOWN = pa.schema([("g", pa.int64()), ("v", pa.int64())])
ID = "floodmark_key_id"
_TYPES = {ID: pa.int64(), ROW_COLUMN: pa.int64(), COPY_COLUMN: pa.int32()}


@dataclass(frozen=True)
class Hidden:
    """What such a view is kept by: T, what else is in its key, and which of its columns are those of orders."""

    name: str
    kind: RefreshKind
    t: tuple[str, ...]
    key: tuple[str, ...]
    of_orders: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return self.name

    @property
    def hidden(self) -> pa.Schema:
        return pa.schema([(name, kind) for name, kind in _TYPES.items() if name in self.key])


BY_RECORDS = Hidden("by_records", "rows", (ID,), (ID,), ((ID, "id"),))
WHOLE = Hidden("whole", "whole", (), (ROW_COLUMN, COPY_COLUMN), ())
BY_GROUPS = Hidden("by_groups", "join", ("g",), ("g", ROW_COLUMN, COPY_COLUMN), (("g", "g"),))  # T is shown
MIXED = Hidden("mixed", "groups", ("g", ID), ("g", ID), (("g", "g"), (ID, "id")))  # T is shown in part
KINDS = [BY_RECORDS, WHOLE, BY_GROUPS, MIXED]


def make_lake(folder: Path, kind: Hidden) -> fm.Lake:
    """Orders without rows, and the view `firm`, which was never refreshed."""
    lake = lake_without_spark(folder)
    orders = lake.create("orders", key="id", schema=ORDERS)
    analysis = Analysis(
        kind=kind.kind,
        why=None if kind.t else "the test says so",
        sources=(InputUse("orders", str(orders.id), kind.of_orders, ("id", "g", "v"), ()),),
        columns=SHOWN,
        t=kind.t,
        key=kind.key,
        hidden=kind.hidden,
        query=QUERY,
        identity=ROW_COLUMN in kind.key,
        inject={},
        schemas=schemas_digest([input_schema_of(orders)]),
    )
    stored = StoredView(define("firm", sql=QUERY), analysis)
    parts: dict[str, Any] = {"strategy": stored.strategy, "transform": stored.transform, "notes": stored.notes}
    create_view(lake.store, lake.runtime, "firm", **parts)
    return lake


def write(lake: fm.Lake, *rows: tuple[int, int | None, int]) -> None:
    """Orders, then the view brought up to date."""
    lake["orders"].write(pa.Table.from_pylist([dict(zip(ORDERS.names, row, strict=True)) for row in rows], ORDERS))
    lake.view("firm").refresh()


def delete(lake: fm.Lake, *ids: int) -> None:
    lake["orders"].delete(list(ids))
    lake.view("firm").refresh()


@contextmanager
def without_spark() -> Iterator[None]:
    with mock.patch.object(Evaluator, "evaluate", _answered):
        yield


def _answered(evaluator: Evaluator, inputs: Mapping[str, Any]) -> TableData:
    """The rows with what identifies them: the id, or a hash of the row and its number among equal ones."""
    given = inputs["orders"]
    assert isinstance(given, LocalRows)
    seen: Counter[Any] = Counter()
    rows = []
    for row in given.table.to_pylist():
        same = (row["g"], row["v"])
        rows.append(
            {"g": row["g"], "v": row["v"], ID: row["id"], ROW_COLUMN: hash(same) % 1000, COPY_COLUMN: seen[same]}
        )
        seen[same] += 1
    return TableData(pa.Table.from_pylist(rows, evaluator.analysis.stored))
