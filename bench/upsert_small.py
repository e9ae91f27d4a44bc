"""Small upserts into larger and larger datasets, and against deltalake's merge of the same rows into the same table.

Run: python bench/upsert_small.py --keys 10000000 --changed 1000 --upserts 128
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.engine.session import Session
from floodmark.rows import key_index_loader, row_hash
from measuring import Curve, Figure, Line, measured, seconds
from trips import write_files

_WARM_UPS = 3
_WORD = 8


@dataclass
class _Folder:
    """A folder, and the files in it at the last call of `written`."""

    path: Path
    _seen: set[tuple[str, int]] = field(default_factory=set)

    def written(self) -> int:
        """The bytes of the new files since the last call. A replaced file counts as new."""
        now = {(str(p), (s := p.stat()).st_ino): s.st_size for p in self.path.rglob("*") if p.is_file()}
        added = sum(size for file, size in now.items() if file not in self._seen)
        self._seen = set(now)
        return added


@dataclass
class _Upserts:
    """One dataset, and the times and bytes of the upserts into it."""

    dataset: Dataset
    rows: pa.Table
    folder: _Folder
    times: list[float] = field(default_factory=list)
    written: list[int] = field(default_factory=list)

    def upsert(self, count: int, seed: int) -> None:
        changes = _changes(self.rows, count, seed)
        self.times.append(seconds(lambda: self.dataset.write(changes)))
        self.written.append(self.folder.written())

    def probed(self, count: int, seed: int) -> int:
        """The bytes of the index that a lookup of some keys reads: compared values, and pages checked first."""
        keys = row_hash.hash_rows(_changes(self.rows, count, seed), ["id"])
        opened = key_index_loader.load(self.dataset.snapshot(), {})
        assert (opened.find(keys).offset >= 0).all()
        return opened.probes.values * _WORD + opened.probes.page_bytes


def _changes(rows: pa.Table, count: int, seed: int) -> pa.Table:
    """Random rows, each with a new fare."""
    at = np.random.default_rng(seed).choice(len(rows), count, replace=False)
    chosen = rows.take(pa.array(np.sort(at)))
    fare: Any = pc.add(chosen.column("fare"), 1000.0 * (seed + 1))
    return chosen.set_column(chosen.schema.get_field_index("fare"), "fare", fare)


def _merged_by_deltalake(path: Path, files: Path, rows: pa.Table, count: int, repeats: int) -> tuple[float, float]:
    """The median time of deltalake's merges of such changes into the same table, and the mean bytes written."""
    write_deltalake(str(path), pads.dataset(files).scanner().to_reader())
    folder = _Folder(path)
    folder.written()
    times, written = [], []
    for seed in range(repeats):
        changes = _changes(rows, count, seed)

        def merge(changes: pa.Table = changes) -> None:
            merger = DeltaTable(str(path)).merge(changes, predicate="t.id = s.id", source_alias="s", target_alias="t")
            merger.when_matched_update_all().when_not_matched_insert_all().execute()

        times.append(seconds(merge))
        written.append(folder.written())
    return median(times), mean(written)


def _loaded(root: Path, runtime: fm.Runtime, keys: int) -> _Upserts:
    files = write_files(root / f"in{keys}", keys)
    lake = root / f"lake{keys}"
    dataset = fm.Lake(lake, runtime=runtime).create("trips", key="id")
    dataset.write(files)
    folder = _Folder(lake)
    folder.written()
    return _Upserts(dataset, pq.read_table(root / f"in{keys}"), folder)


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    sizes = (args.keys // 100, args.keys // 10, args.keys)
    with Session() as session:
        runtime = fm.Runtime(session=session, fold_at=None)
        worlds = [_loaded(root, runtime, keys) for keys in sizes]
        touched = [world.probed(args.changed, seed=0) for world in worlds]
        for number in range(_WARM_UPS + args.upserts):
            for world in worlds if number % 2 else reversed(worlds):
                world.upsert(args.changed, seed=number)
    largest = worlds[-1]
    times = [median(world.times[_WARM_UPS:]) for world in worlds]
    written = mean(largest.written[_WARM_UPS:])
    merge_time, merge_written = _merged_by_deltalake(
        root / "delta", root / f"in{args.keys}", largest.rows, args.changed, args.repeats
    )
    shape = f"{args.changed:,} changed rows, median of {args.upserts} upserts"
    return [
        Figure(
            "growth",
            f"upsert among {sizes[-1]:,} keys ÷ among {sizes[0]:,}",
            times[-1] / times[0],
            f"{_listed([f'{t * 1000:.0f} ms' for t in times], sizes)}; {shape}",
        ),
        Figure(
            "index_bytes",
            f"index bytes touched among {sizes[-1]:,} keys ÷ among {sizes[0]:,}, ÷ the same of log n",
            touched[-1] / touched[0] / (math.log(sizes[-1]) / math.log(sizes[0])),
            f"{_listed([f'{b / 1e6:.2f} MB' for b in touched], sizes)}; pages unchecked before; without fences",
        ),
        Figure(
            "delta.time",
            "upsert ÷ deltalake's merge, time",
            times[-1] / merge_time,
            f"{times[-1]:.3f} s ÷ {merge_time:.3f} s among {sizes[-1]:,} keys; {shape}, of {args.repeats} merges",
        ),
        Figure(
            "delta.bytes",
            "upsert ÷ deltalake's merge, bytes written",
            written / merge_written,
            f"{written / 1e6:.3f} MB (mean of {args.upserts}, merged runs included) ÷ {merge_written / 1e6:.1f} MB",
        ),
        Curve(
            "upsert_small.time",
            f"An upsert of {args.changed:,} rows",
            "keys",
            "seconds",
            (
                Line("floodmark", tuple(zip(sizes, times, strict=True))),
                Line("deltalake's merge", ((sizes[-1], merge_time),)),
            ),
            "log",
            "log",
        ),
        Curve(
            "upsert_small.index_bytes",
            f"Index bytes touched to look {args.changed:,} keys up",
            "keys",
            "MB",
            (Line("touched", tuple((size, b / 1e6) for size, b in zip(sizes, touched, strict=True))),),
            "log",
        ),
    ]


def _listed(figures: Sequence[str], sizes: Sequence[int]) -> str:
    return ", ".join(f"{figure} at {size:,}" for figure, size in zip(figures, sizes, strict=True))


if __name__ == "__main__":
    measured(__doc__ or "", _measure, keys=1_000_000, changed=100, upserts=32, repeats=3)
