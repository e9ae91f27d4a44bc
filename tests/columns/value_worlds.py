"""A dataset, a place where a view keeps checkpoints, and functions that count: the world of tests of `values`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import floodmark as fm
from columns.counting import Calls, Plan
from columns.worlds import TENFOLD, CrashingStore, World
from faults.recording import HastyFileSystem
from floodmark.columns.catalog import ColumnObjects
from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.columns.checkpoint_values import FunctionValues
from floodmark.columns.function_values import compute_function_values
from floodmark.columns.plan import BackfillOptions
from floodmark.columns.snapshot import ColumnSnapshot
from floodmark.derive.checkpoint_key import parse_key
from floodmark.engine.progress import Progress, SilentProgress
from floodmark.engine.rounds import TaskRunner
from floodmark.storage.arrays import I64

COLUMN = pa.field("b", pa.int64())
FRAGMENT_ROWS = 100
SMALL = {"checkpoint_size": 10, "min_checkpoint_size": 10, "max_checkpoint_size": 10}
"""Checkpoints of exactly ten rows."""


@dataclass
class ValueWorld(World):
    """The dataset `d` (id, v) of other tests, and the checkpoints of a view that is computed from it."""

    fragment_rows: int = FRAGMENT_ROWS
    progress: Progress = field(default_factory=SilentProgress)

    @property
    def kept_in(self) -> ColumnObjects:
        return ColumnObjects(self.lake["view"].snapshot().objects)

    @property
    def checkpoints(self) -> CheckpointStore:
        return self.kept_in.checkpoints

    @property
    def column_snapshot(self) -> ColumnSnapshot:
        return self.dataset.parts.columns.snapshot()

    def ranges(self) -> list[tuple[int, int, int]]:
        """Fragment, start and end of every checkpoint that is stored."""
        found = [parse_key(key) for key in self.checkpoints.list_keys()]
        return sorted((key.fragment, key.start, key.end) for key in found if key is not None)

    def ask(self, offsets: Iterable[int], udf: fm.Udf | None = None, **options: Any) -> FunctionValues:
        """Values whose calls are counted from the start; what it counted must be what was called."""
        self.calls.forget()
        got = self.ask_only(offsets, udf, **options)
        assert got.called == len(self.calls.offsets())
        assert got.computed + got.failed == len(set(self.calls.offsets()))
        return got

    def ask_only(
        self, offsets: Iterable[int], udf: fm.Udf | None = None, column: pa.Field = COLUMN, **options: Any
    ) -> FunctionValues:
        """Values that are not looked at."""
        function = udf or TENFOLD.udf(self.calls)
        return compute_function_values(
            self.column_snapshot,
            column,
            function,
            function.inputs_from(None),
            np.array(list(offsets), np.int64),
            self.kept_in,
            BackfillOptions(**options),
            TaskRunner(self.lake.runtime.session),
            self.progress,
            self.fragment_rows,
        )

    def inputs(self) -> dict[int, int | None]:
        """The value of v of each current record."""
        table = self.dataset.to_batches(["offset", "v"]).read_all()
        return dict(zip(table["offset"].to_pylist(), table["v"].to_pylist(), strict=True))


def value_world(folder: Path) -> ValueWorld:
    lake = fm.Lake(CrashingStore(folder / "lake", HastyFileSystem()))
    lake.create("d", key=["id"], schema={"id": "int64", "v": "int64"})
    lake.create("view")
    return ValueWorld(lake, Calls(folder))


def taken(got: FunctionValues, offsets: Iterable[int]) -> list[int | None]:
    """The values at some offsets."""
    at: I64 = np.array(list(offsets), np.int64)
    found: list[int | None] = got.take(at).to_pylist()
    return found


def tens(offsets: Iterable[int]) -> list[int]:
    return [offset * 10 for offset in offsets]


def picky(v: int | None) -> int | None:
    """Tenfold; multiples of seven are refused."""
    if v is None or v % 7 == 0:
        raise ValueError(f"{v} is refused")
    return v * 10


PICKY = Plan("picky", "1", ("v",), picky)
