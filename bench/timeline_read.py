"""Reading a timeline after many late commits, and again after a fold, against the same rows that came in order.

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
from floodmark.timeline.order.pieces import Partition
from measuring import Figure, alternate, measured
from ticks import DAY, LENGTH, SHAPES, Shape, World, largest_row_group, opened

WAITING_BAR = 1.6
FOLDED_BAR = 1.1
LARGEST_BAR = 1.5
HOUR = LENGTH // 24


def _measure(root: Path, args: argparse.Namespace) -> list[Figure]:
    figures = []
    for number, (name, shape) in enumerate(SHAPES.items()):
        figures += _case(root / f"shape{number}", args, name, shape)
    return figures


def _case(root: Path, args: argparse.Namespace, name: str, shape: Shape) -> list[Figure]:
    world = opened(root / "lake", args.rows, args.row_group_size, args.late, shape, "auto")
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
        _reading(f"{name}: whole timeline ÷ in order", world.dataset, in_order, WAITING_BAR, args.repeats, what),
        Figure(f"{name}: row groups read for one hour ÷ those that have rows of it", *hours),
        _range(f"{name}: one hour ÷ in order", world.dataset, in_order, args.repeats),
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
        _reading(f"{name}: after fold() ÷ in order", world.dataset, in_order, FOLDED_BAR, args.repeats, what),
        Figure(f"{name}: row groups below row_group_size/4 after fold()", small, 1, what),
        Figure(
            f"{name}: largest row group ÷ row_group_size", largest / args.row_group_size, LARGEST_BAR, f"{largest:,}"
        ),
    ]


def _same(dataset: fm.Dataset, rows: pa.Table) -> None:
    found = dataset.timeline_batches(columns=rows.column_names).read_all()
    assert found.equals(rows.cast(found.schema))


def _reading(name: str, ours: fm.Dataset, theirs: fm.Dataset, bar: float, repeats: int, what: str) -> Figure:
    """All user columns through Arrow, batch by batch; nothing is kept."""

    def whole(dataset: fm.Dataset) -> Callable[[], Any]:
        return lambda: sum(batch.num_rows for batch in dataset.timeline_batches())

    slow, quick = alternate(whole(ours), whole(theirs), repeats)
    return Figure(name, slow / quick, bar, f"{slow:.3f} s ÷ {quick:.3f} s; {what}")


def _range(name: str, ours: fm.Dataset, theirs: fm.Dataset, repeats: int) -> Figure:
    start, end = _hour()

    def some(dataset: fm.Dataset) -> Callable[[], Any]:
        return lambda: sum(batch.num_rows for batch in dataset.timeline_batches(start, end))

    slow, quick = alternate(some(ours), some(theirs), repeats)
    return Figure(name, slow / quick, None, f"{slow * 1e3:.0f} ms ÷ {quick * 1e3:.0f} ms")


def _hours(world: World, found: Partition) -> tuple[float, float, str]:
    """How many row groups reading an hour decodes, beside those of the pieces that reach into it."""
    lo, hi = DAY + 13 * HOUR, DAY + 14 * HOUR
    wanted = {(p.file, p.row_group) for p in found.pieces if p.first.time < hi and p.last.time >= lo}
    decoded = 0
    original = pq.ParquetFile.read_row_groups
    single = pq.ParquetFile.read_row_group

    def counted(file: Any, groups: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal decoded
        decoded += len(groups)
        return original(file, groups, *args, **kwargs)

    def counted_single(file: Any, group: int, *args: Any, **kwargs: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return single(file, group, *args, **kwargs)

    with (
        patch.object(pq.ParquetFile, "read_row_groups", counted),
        patch.object(pq.ParquetFile, "read_row_group", counted_single),
    ):
        rows = world.dataset.timeline_batches(*_hour()).read_all().num_rows
    all_groups = len({(p.file, p.row_group) for p in found.pieces})
    assert decoded > 0
    return decoded / len(wanted), 1.0, f"{decoded} of {all_groups} row groups for {rows:,} rows"


def _hour() -> tuple[str, str]:
    return "2026-11-02T13:00:00", "2026-11-02T14:00:00"


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=3_000_000, row_group_size=100_000, late=1_000, commits=300, repeats=9)
