"""A lake with orders and a view on them whose query a test answers itself, so that no JVM is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.engine.session import Runtime, Session
from floodmark.ledger.create import create_view
from floodmark.ledger.data_input import TableData
from floodmark.view import View
from floodmark.views.analysis import Analysis, InputUse, schemas_digest
from floodmark.views.changed_rows import LocalRows, SparkRows
from floodmark.views.definition import define
from floodmark.views.evaluator import Evaluator
from floodmark.views.sources import input_schema_of
from floodmark.views.stored_definition import StoredView

QUERY = "select id, amount * 2 as twice from orders where amount > 10"
COLUMNS = pa.schema([("id", pa.int64()), ("twice", pa.int64())])
ORDERS = pa.schema([("id", pa.int64()), ("amount", pa.int64())])


class NoSession(Session):
    """A session that must not be started."""

    def get(self) -> Any:
        raise AssertionError("Spark was started")

    @property
    def is_local(self) -> bool:
        return True  # without asking a session that another test has started


@dataclass
class Answers:
    """Stands for Spark: answers the one query that it knows, and writes down what it was asked about."""

    asked: list[list[int]] = field(default_factory=list)

    def evaluate(self, inputs: Mapping[str, LocalRows | SparkRows]) -> TableData:
        rows = inputs["orders"]
        assert isinstance(rows, LocalRows)
        self.asked.append(sorted(rows.table.column("id").to_pylist()))
        chosen = rows.table.filter(pc.greater(rows.table.column("amount"), 10))
        twice = pc.multiply(chosen.column("amount"), 2)
        return TableData(pa.table([chosen.column("id"), twice], schema=COLUMNS))

    def instead_of_spark(self) -> Any:
        return mock.patch.object(Evaluator, "evaluate", lambda _, inputs: self.evaluate(inputs))


def lake_without_spark(folder: Path) -> fm.Lake:
    return fm.Lake(folder, runtime=Runtime(session=NoSession()))


def orders(lake: fm.Lake) -> Dataset:
    return lake.create("orders", key="id", schema=ORDERS)


def write(dataset: Dataset, rows: Mapping[int, int]) -> None:
    dataset.write(pa.table([list(rows), list(rows.values())], schema=ORDERS))


def delete(dataset: Dataset, ids: Sequence[int]) -> None:
    dataset.delete(pa.table({"id": pa.array(ids, pa.int64())}))


def view_of(lake: fm.Lake, dataset: Dataset, name: str = "doubled") -> View:
    """The view as `lake.view` would declare it."""
    analysis = Analysis(
        kind="rows",
        why=None,
        sources=(InputUse(dataset.name, str(dataset.id), (("id", "id"),), ("id", "amount"), ()),),
        columns=COLUMNS,
        t=("id",),
        key=("id",),
        hidden=pa.schema([]),
        query=QUERY,
        identity=False,
        inject={},
        schemas=schemas_digest([input_schema_of(dataset)]),
    )
    stored = StoredView(define(name, sql=QUERY), analysis)
    parts: dict[str, Any] = {"strategy": stored.strategy, "transform": stored.transform, "notes": stored.notes}
    create_view(lake.store, lake.runtime, name, **parts)
    return lake.view(name)


def shown(view: Dataset) -> dict[int, int]:
    return {row["id"]: row["twice"] for row in view.to_arrow().to_pylist()}
