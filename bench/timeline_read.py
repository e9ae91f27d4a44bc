"""Read a timeline after many late commits, and again after a fold, against the same rows written in order.

Run: python bench/timeline_read.py --rows 10000000 --commits 2000 --repeats 7
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.timeline.pieces import Partition
from measuring import Figure, alternate, measured
from ticks import DAY, LENGTH, SHAPES, World, largest_row_group, opened

HOUR = LENGTH // 24


def _measure(root: Path, args: argparse.Namespace) -> list[Figure]:
    figures = []
    for key, name in SHAPES.items():
        figures += _case(root / key, args, key, name)
    return figures


def _case(root: Path, args: argparse.Namespace, key: str, name: str) -> list[Figure]:
    world = opened(root / "lake", args.rows, args.row_group_size, args.late, key, "auto")
    for _ in range(args.commits):
        world.commit()
    in_order = fm.Lake(root / "sorted").create(
        "ticks", event_time="at", partition_by="day", row_group_size=args.row_group_size
    )
    everything = world.all_rows()
    in_order.write(everything)
    for dataset in (world.dataset, in_order):
        _same(dataset, everything)
    found = world.partition()
    waiting = sum(run.rows for run in found.waiting)
    what = f"{len(found.settled)} settled pieces, {waiting:,} rows wait in {len(found.waiting)} runs"
    hours = _hours(world, found)
    figures = [
        Figure(
            f"{key}.waiting",
            f"{name}: whole timeline ÷ in order",
            *_reading(world.dataset, in_order, args.repeats, what),
        ),
        Figure(f"{key}.hour_groups", f"{name}: row groups read for one hour ÷ those that have rows of it", *hours),
        Figure(f"{key}.hour", f"{name}: one hour ÷ in order", *_range(world.dataset, in_order, args.repeats)),
    ]
    world.dataset.fold()
    folded = world.partition()
    _same(world.dataset, everything)
    assert not folded.waiting
    small = sum(4 * piece.group_rows < args.row_group_size for piece in folded.settled)
    largest = max(largest_row_group(found), largest_row_group(folded))
    what = f"{len(folded.settled)} pieces"
    return [
        *figures,
        Figure(
            f"{key}.folded",
            f"{name}: after fold() ÷ in order",
            *_reading(world.dataset, in_order, args.repeats, what),
        ),
        Figure(f"{key}.small", f"{name}: row groups below row_group_size/4 after fold()", small, what),
        Figure(
            f"{key}.largest",
            f"{name}: largest row group ÷ row_group_size",
            largest / args.row_group_size,
            f"{largest:,} rows",
        ),
    ]


def _same(dataset: Dataset, rows: pa.Table) -> None:
    found = dataset.timeline_batches(columns=rows.column_names).read_all()
    assert found.equals(rows.cast(found.schema))


def _reading(ours: Dataset, theirs: Dataset, repeats: int, what: str) -> tuple[float, str]:
    """Read all user columns through Arrow, batch by batch, and discard them."""

    def whole(dataset: Dataset) -> Callable[[], Any]:
        return lambda: sum(batch.num_rows for batch in dataset.timeline_batches())

    slow, quick = alternate(whole(ours), whole(theirs), repeats)
    return slow / quick, f"{slow:.3f} s ÷ {quick:.3f} s; {what}"


def _range(ours: Dataset, theirs: Dataset, repeats: int) -> tuple[float, str]:
    start, end = _hour()

    def some(dataset: Dataset) -> Callable[[], Any]:
        return lambda: sum(batch.num_rows for batch in dataset.timeline_batches(start, end))

    slow, quick = alternate(some(ours), some(theirs), repeats)
    return slow / quick, f"{slow * 1e3:.0f} ms ÷ {quick * 1e3:.0f} ms"


def _hours(world: World, found: Partition) -> tuple[float, str]:
    """The number of row groups that a read of one hour touches ÷ the number of row groups with rows of this hour."""
    lo, hi = DAY + 13 * HOUR, DAY + 14 * HOUR
    needed = {(p.file, p.row_group) for p in found.pieces if p.first.time < hi and p.last.time >= lo}
    # Identified by their metadata: the columns of a row group may be read separately, and through two handles.
    touched: set[str] = set()
    several, single = pq.ParquetFile.read_row_groups, pq.ParquetFile.read_row_group

    def noted(file: pq.ParquetFile, groups: Any, *args: Any, **kwargs: Any) -> Any:
        touched.update(_footer(file, group) for group in groups)
        return several(file, groups, *args, **kwargs)

    def noted_single(file: pq.ParquetFile, group: int, *args: Any, **kwargs: Any) -> Any:
        touched.add(_footer(file, group))
        return single(file, group, *args, **kwargs)

    with (
        patch.object(pq.ParquetFile, "read_row_groups", noted),
        patch.object(pq.ParquetFile, "read_row_group", noted_single),
    ):
        rows = world.dataset.timeline_batches(*_hour()).read_all().num_rows
    everything = len({(p.file, p.row_group) for p in found.pieces})
    assert touched
    return len(touched) / len(needed), f"{len(touched)} of {everything} row groups for {rows:,} rows"


def _footer(file: pq.ParquetFile, group: int) -> str:
    """The footer's metadata of a row group: sizes, and the bounds of each column."""
    return str(file.metadata.row_group(group).to_dict())


def _hour() -> tuple[str, str]:
    return "2026-11-02T13:00:00Z", "2026-11-02T14:00:00Z"


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=3_000_000, row_group_size=100_000, late=1_000, commits=300, repeats=9)
