"""A keyed dataset with a column that the function reads and one that it does not, and what was called for which key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import floodmark as fm
from floodmark.columns.catalog import ColumnObjects
from floodmark.columns.checkpoint_values import FunctionValues
from floodmark.columns.columns import ColumnStatus
from floodmark.columns.function_values import compute_function_values
from floodmark.columns.plan import BackfillOptions
from floodmark.dataset import Dataset
from floodmark.engine.progress import SilentProgress
from floodmark.engine.rounds import TaskRunner
from floodmark.storage.memory import MemoryStore
from floodmark.storage.store import Store
from histories.calls import CallLog, in_this_process

FRAGMENT_ROWS = 8
BAD = 13
"""The function refuses this value of x until the calls are mended."""


@dataclass
class CarriedWorld:
    """The dataset `d` (id, x, other) with the column y = 10 x + version, which is skipped where x is BAD."""

    lake: fm.Lake
    calls: CallLog
    kind: pa.DataType = field(default_factory=pa.int64)
    fragment_rows: int = FRAGMENT_ROWS

    @staticmethod
    def new(folder: Path, kind: pa.DataType | None = None, store: Store | None = None) -> CarriedWorld:
        world = CarriedWorld(fm.Lake(store or MemoryStore()), CallLog(folder), kind or pa.int64())
        world.lake.create("d", key="id", schema=world.schema)
        return world

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("id", pa.int64()), ("x", self.kind), ("other", pa.int64())])

    @property
    def dataset(self) -> Dataset:
        return self.lake["d"]

    @property
    def status(self) -> ColumnStatus:
        return self.dataset.columns()[0]

    def write(self, *rows: tuple[int, Any, int | None]) -> None:
        """Rows (id, x, other)."""
        self.dataset.write(
            pa.Table.from_pylist([dict(zip(self.schema.names, r, strict=True)) for r in rows], self.schema)
        )

    def udf(self, version: int = 1, **options: Any) -> fm.Udf:
        calls = self.calls

        def y(id: int, x: Any) -> int | None:  # noqa: A002  the name of the key column
            calls.add(f"{id}\n")
            if x == BAD and calls.ordered("mended") is None:
                raise ValueError("bad luck")
            return None if x is None else int(x) * 10 + version if isinstance(x, int) else version

        return fm.udf(returns="int64", name="y", version=str(version), on_error=[fm.Skip(ValueError)], **options)(y)

    def add(self, version: int = 1) -> None:
        self.dataset.add_column("y", self.udf(version), fragment_rows=self.fragment_rows)

    def backfill(self, where: str | None = None, version: int = 1, **options: Any) -> fm.BackfillReport:
        """A backfill whose plan and report must agree with each other and with what was called."""
        self.calls.forget()
        plan = self.dataset.plan_backfill("y", where, retry_errors=options.get("retry_errors", False))
        assert not self.called, "a plan calls nothing"
        done = self.backfill_only(where, version, **options)
        assert done.called == len(self.called) == plan.missing
        assert (done.computed + done.failed, done.reused, done.carried) == (plan.missing, plan.reused, plan.carried)
        return done

    def backfill_only(self, where: str | None = None, version: int = 1, **options: Any) -> fm.BackfillReport:
        with in_this_process():
            return self.dataset.backfill("y", where, udf=self.udf(version), **options)

    @property
    def called(self) -> list[int]:
        """The ids that the function was called for since the calls were forgotten."""
        return [int(line) for line in self.calls.lines()]

    def values(self) -> dict[int, int | None]:
        table = self.dataset.to_arrow()
        return dict(zip(table["id"].to_pylist(), table["y"].to_pylist(), strict=True))

    def errors(self) -> list[tuple[int, str]]:
        """The id and the message of each row that failed."""
        errors = self.dataset.column_errors("y")
        ids = dict(zip(*self.dataset.to_batches(["offset", "id"]).read_all().to_pydict().values(), strict=True))
        return [(ids[row["offset"]], row["message"]) for row in errors.to_pylist()]

    # The values of a function in a view

    def offsets(self) -> dict[int, int]:
        """The offset of the current row of each id."""
        table = self.dataset.to_batches(["offset", "id"]).read_all()
        return dict(zip(table["id"].to_pylist(), table["offset"].to_pylist(), strict=True))

    def ask(self, ids: Iterable[int] | None = None, version: int = 1, **options: Any) -> FunctionValues:
        """The values of the function as a view computes them."""
        self.calls.forget()
        if "view" not in self.lake:
            self.lake.create("view")
        present = self.offsets()
        chosen = sorted(present.values() if ids is None else (present[i] for i in ids))
        with in_this_process():
            found = compute_function_values(
                self.dataset.parts.columns.snapshot(),
                pa.field("y", pa.int64()),
                self.udf(version),
                ("id", "x"),
                np.array(chosen, np.int64),
                ColumnObjects(self.lake["view"].snapshot().objects),
                BackfillOptions(**options),
                TaskRunner(self.lake.runtime.session),
                SilentProgress(),
                self.fragment_rows,
            )
        assert found.called == len(self.called) == found.computed + found.failed
        assert found.computed + found.failed + found.carried + found.reused == len(chosen)
        return found
