"""Common parts of the timeline benchmarks: synthetic ticks of one day, ordered and late, and the count of bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import CountingStore
from floodmark.storage.parquet import write_columns
from floodmark.timeline.pieces import Partition
from measuring import seconds

I64 = npt.NDArray[np.int64]

DAY = 1_793_577_600_000_000  # 2026-11-02, in microseconds
LENGTH = 86_400_000_000
CLUSTER = 0.01

_SYMBOLS = np.array([f"S{i:03d}" for i in range(200)])


class Written(CountingStore):
    """A local store that counts every byte written to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalStore(folder))

    @property
    def bytes(self) -> int:
        return self.counts.bytes_put

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        self._add(bytes_put=len(new))
        return super().compare_and_swap(key, expected, new)


def ticks(times: I64, seed: int) -> pa.Table:
    """A tick at each of these times, identical on every call."""
    rng = np.random.default_rng(seed)
    rows = len(times)
    return pa.table(
        {
            "at": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "symbol": pa.array(_SYMBOLS[rng.integers(0, len(_SYMBOLS), rows)]),
            "price": np.round(rng.gamma(3, 50, rows), 2),
            "size": rng.integers(1, 1000, rows).astype(np.int32),
        }
    )


def day(rows: int) -> pa.Table:
    """This many ticks of one day, in order."""
    return ticks(DAY + np.arange(rows) * LENGTH // rows, seed=0)


def anywhere(rng: np.random.Generator, start: int, length: int, rows: int) -> I64:
    """Random times over the whole interval, unsorted."""
    return start + rng.integers(0, length, rows)


def clustered(rng: np.random.Generator, start: int, length: int, rows: int) -> I64:
    """Random times within 1 % of the interval, unsorted."""
    width = max(1, int(length * CLUSTER))
    return anywhere(rng, start + int(rng.integers(0, length - width)), width, rows)


Shape = Callable[[np.random.Generator, int, int, int], I64]
SHAPES = {"anywhere": "all over a row group", "clustered": "in 1 % of a row group"}
"""The distributions of late rows, with their printed names."""
_TIMES: dict[str, Shape] = {"anywhere": anywhere, "clustered": clustered}


@dataclass
class World:
    """A dataset with one day of ticks, and the times and bytes of its late commits."""

    store: Written
    dataset: Dataset
    rows: int  # ordered rows at the start
    row_group_size: int
    late: int  # rows per late commit
    shape: str  # one of SHAPES
    commits: int = 0
    times: list[float] = field(default_factory=list)
    written: list[int] = field(default_factory=list)

    def batch(self, number: int) -> pa.Table:
        """The late rows of a commit: unsorted, inside the span of one of the initial row groups."""
        rng = np.random.default_rng(number + 1)
        groups = self.rows // self.row_group_size
        group = int(rng.integers(0, groups))
        return ticks(
            _TIMES[self.shape](rng, DAY + group * LENGTH // groups, LENGTH // groups, self.late), seed=number + 1
        )

    def commit(self) -> None:
        """Write the next late rows."""
        batch = self.batch(self.commits)
        before = self.store.bytes
        self.times.append(seconds(lambda: self.dataset.write(batch)))
        self.written.append(self.store.bytes - before)
        self.commits += 1

    def alone(self, folder: Path) -> int:
        """The bytes of one commit's rows as a separate Parquet file with our encoding."""
        batch = self.batch(0)
        return write_columns(folder / "alone.parquet", iter([batch]), batch.schema).size

    def all_rows(self) -> pa.Table:
        """All rows written so far, in timeline order."""
        table = pa.concat_tables([day(self.rows), *(self.batch(i) for i in range(self.commits))]).combine_chunks()
        times = table.column("at").cast(pa.int64()).to_numpy()
        return table.take(pa.array(np.argsort(times, kind="stable")))

    def partition(self) -> Partition:
        """The day's pieces."""
        [found] = self.dataset.timeline_pieces().partitions
        return found


def largest_row_group(partition: Partition) -> int:
    return max(piece.group_rows for piece in partition.pieces)


def opened(folder: Path, rows: int, row_group_size: int, late: int, shape: str, late_merge: str) -> World:
    """A new lake with one day of ticks in it."""
    store = Written(folder)
    dataset = fm.Lake(store).create(
        "ticks", event_time="at", partition_by="day", row_group_size=row_group_size, late_merge=late_merge
    )
    dataset.write(day(rows))
    world = World(store, dataset, rows, row_group_size, late, shape)
    found = world.partition()
    assert len(found.settled) == rows // row_group_size, len(found.settled)
    assert not found.waiting
    return world
