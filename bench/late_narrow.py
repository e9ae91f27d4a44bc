"""Small late commits, each in the span of one row group: bytes written against the same rows alone, and growth.

All bytes of the lake count: data, manifests, chain, indexes, and automatic merges and folds. The second half of the
commits is the steady state. For the times, more commits to the lake alternate with commits to an early copy of it, so
that a busy machine affects both alike.

Run: python bench/late_narrow.py --rows 10000000 --commits 2000
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import floodmark as fm
from measuring import Curve, Figure, Line, binned, measured, seconds
from ticks import SHAPES, World, Written, day, largest_row_group, opened

YOUNG = 100  # commits
AROUND = 100


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    figures: list[Figure | Curve] = []
    ours: dict[str, World] = {}
    for key, name in SHAPES.items():
        ours[name], found = _case(root / key, args, key, name)
        figures += found
    figures += _against_deltalake(root / "delta", next(iter(ours.values())), args.repeats)
    return [*figures, *_curves(ours, args)]


def _curves(ours: dict[str, World], args: argparse.Namespace) -> list[Curve]:
    """Time and bytes by commit, without the extra commits that alternate with the early copy."""
    times = [Line(name, tuple(binned(world.times[: args.commits]))) for name, world in ours.items()]
    written = [Line(name, tuple(binned(world.written[: args.commits]))) for name, world in ours.items()]
    late = f"Commits of {args.late:,} late rows into {args.rows:,}"
    in_ms, in_kb = (
        [Line(one.name, tuple((x, y * by) for x, y in one.points)) for one in lines]
        for lines, by in ((times, 1e3), (written, 1e-3))
    )
    return [
        Curve("late_narrow.time", f"{late}: time of each", "commit", "ms, median", tuple(in_ms)),
        Curve("late_narrow.bytes", f"{late}: bytes written by each", "commit", "kB, median", tuple(in_kb)),
    ]


def _case(root: Path, args: argparse.Namespace, key: str, name: str) -> tuple[World, list[Figure]]:
    world = opened(root / "lake", args.rows, args.row_group_size, args.late, key, "auto")
    largest = 0
    young: World | None = None
    for number in range(args.commits):
        if number == YOUNG - AROUND // 2:
            young = _copied(world, root)
        world.commit()
        if number % AROUND == AROUND - 1:
            largest = max(largest, largest_row_group(world.partition()))
    on_disk = sum(p.stat().st_size for p in (root / "lake").rglob("*") if p.is_file())
    assert world.store.bytes >= on_disk, (world.store.bytes, on_disk)  # all bytes were counted
    written, alone = mean(_second_half(world.written)), world.alone(root)
    assert young is not None, "too few commits"
    for number in range(AROUND):
        for each in (young, world) if number % 2 else (world, young):
            each.commit()
    late, early = median(world.times[-AROUND:]), median(young.times[-AROUND:])
    late_mean, early_mean = mean(world.times[-AROUND:]), mean(young.times[-AROUND:])
    found = world.partition()
    shape_of_it = f"{len(found.settled)} settled pieces, {sum(len(r.pieces) for r in found.waiting)} waiting"
    return world, [
        Figure(
            f"{key}.bytes",
            f"{name}: bytes written ÷ the same rows alone",
            written / alone,
            f"{written / 1e3:.0f} kB ÷ {alone / 1e3:.1f} kB, commits {args.commits // 2:,} to {args.commits:,}",
        ),
        Figure(
            f"{key}.time",
            f"{name}: time around commit {args.commits:,} ÷ around commit {YOUNG}",
            late / early,
            f"medians {_ms(late)} ÷ {_ms(early)}, means {_ms(late_mean)} ÷ {_ms(early_mean)}; {shape_of_it}",
        ),
        Figure(
            f"{key}.largest",
            f"{name}: largest row group ÷ row_group_size",
            largest / args.row_group_size,
            f"{largest:,} rows",
        ),
    ]


def _ms(took: float) -> str:
    return f"{took * 1e3:.0f} ms"


def _second_half(values: list[int]) -> list[int]:
    return values[len(values) // 2 :]


def _copied(world: World, root: Path) -> World:
    """A copy of the lake in another folder."""
    shutil.copytree(root / "lake", root / "young")
    store = Written(root / "young")
    return replace(world, store=store, dataset=fm.Lake(store)["ticks"], times=[], written=[])


def _against_deltalake(path: Path, ours: World, repeats: int) -> list[Figure]:
    """Compare with a Delta table in the order of event times: append the late rows, then sort and rewrite all rows."""
    write_deltalake(str(path), day(ours.rows))
    append = _timed(path, lambda rows: write_deltalake(str(path), rows, mode="append"))
    rewrite = _timed(path, lambda _: _sorted_again(path))
    times, written = [], []
    for number in range(repeats):
        batch = ours.batch(number)
        took, wrote = zip(append(batch), rewrite(batch), strict=True)
        times.append(sum(took))
        written.append(sum(wrote))
    assert DeltaTable(str(path)).to_pyarrow_table().num_rows == ours.rows + repeats * ours.late
    our_bytes, our_time = mean(_second_half(ours.written)), mean(ours.times[len(ours.times) // 2 :])
    their_bytes, their_time = mean(written), mean(times)
    return [
        Figure(
            "delta.bytes",
            "a commit ÷ deltalake's append and sorted rewrite, bytes",
            our_bytes / their_bytes,
            f"{our_bytes / 1e6:.2f} MB ÷ {their_bytes / 1e6:.1f} MB: {their_bytes / our_bytes:.0f} × fewer",
        ),
        Figure(
            "delta.time",
            "a commit ÷ deltalake's append and sorted rewrite, time",
            our_time / their_time,
            f"means {our_time * 1e3:.0f} ms ÷ {their_time * 1e3:.0f} ms: {their_time / our_time:.0f} × faster",
        ),
    ]


def _sorted_again(path: Path) -> None:
    write_deltalake(str(path), DeltaTable(str(path)).to_pyarrow_table().sort_by("at"), mode="overwrite")


def _timed(path: Path, action: Callable[[pa.Table], Any]) -> Callable[[pa.Table], tuple[float, int]]:
    """The action, returning its time and the bytes of the files that it adds."""

    def files() -> dict[Path, int]:
        return {p: p.stat().st_size for p in path.rglob("*") if p.is_file()}

    def run(rows: pa.Table) -> tuple[float, int]:
        before = files()
        took = seconds(lambda: action(rows))
        return took, sum(size for p, size in files().items() if p not in before)

    return run


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=1_000_000, row_group_size=100_000, late=1_000, commits=300, repeats=3)
