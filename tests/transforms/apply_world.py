"""Work without datasets: units of whole numbers, and a function that writes down every key it is called with.

It runs in worker processes, so what it saw is in a file, and what it is told is in files too.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.engine.progress import SilentProgress
from floodmark.engine.rounds import TaskRunner
from floodmark.engine.session import Session
from floodmark.functions.on_error import parse_on_error
from floodmark.functions.step_function import StepFunction
from floodmark.functions.step_result import OutputShape
from floodmark.ledger.objects import DatasetObjects
from floodmark.rows.buckets import BUCKETS, FileBucket
from floodmark.rows.row_hash import hash_rows
from floodmark.storage.arrays import Hashes
from floodmark.storage.local import LocalStore
from floodmark.transforms import rounds
from floodmark.transforms.chunk_results import StoredChunk
from floodmark.transforms.chunks import Chunk, Side
from floodmark.transforms.meta import TransformMeta
from floodmark.transforms.stored_results import ChunkStore
from floodmark.transforms.task import TransformWork

T = pa.schema([pa.field("k", pa.int64())])
NOW = 1_700_000_000_000


@dataclass(frozen=True)
class Keys:
    """The keys [start, end): some changed since the first time, some without rows."""

    start: int
    end: int
    changed: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()

    @property
    def rows(self) -> int:
        return self.end - self.start

    def halves(self) -> tuple[Keys, Keys] | None:
        if self.rows < 2:
            return None
        middle = (self.start + self.end) // 2
        return replace(self, end=middle), replace(self, start=middle)

    def chunks(self, chunk_size: int) -> Iterator[Chunk]:
        for at in range(self.start, self.end, chunk_size):
            numbers = range(at, min(at + chunk_size, self.end))
            there = np.array([k for k in numbers if k not in self.gone], np.int64)
            gone = np.array([k for k in numbers if k in self.gone], np.int64)
            is_changed = np.isin(there, list(self.changed))
            rows = pa.table({"k": there, "x": there + 1000 * is_changed})
            everyone = np.arange(len(there))
            side = Side(rows, there + 1_000_000 * is_changed, everyone, everyone, seed=7)
            yield Chunk(rows.select(["k"]), hashes(there), (side,), hashes(gone), pa.table({"k": gone}))


def hashes(keys: Any) -> Hashes:
    return hash_rows(pa.table({"k": pa.array(keys, pa.int64())}), ["k"])


@dataclass(frozen=True)
class UnitWork(TransformWork):
    """Work whose units have their chunks themselves."""

    def chunks(self, unit: Any, chunk_size: int) -> Iterator[Chunk]:
        return iter(unit.chunks(chunk_size))


def counted(frame: pa.Table, folder: str, seconds: float = 0.0) -> pa.Table:
    """Twice x, for every key that may have one."""
    place = Path(folder)
    keys = frame.column("k").to_pylist()
    log = os.open(place / "calls", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(log, "".join(f"{k}\n" for k in keys).encode())
    os.close(log)
    time.sleep(seconds)
    for order, act in (("kill", _die), ("raise", _fail)):
        told = place / order
        if told.exists() and (hit := set(keys) & {int(k) for k in told.read_text().split()}):
            act(told, hit)
    none = {int(k) for k in (place / "none").read_text().split()} if (place / "none").exists() else set()
    kept = frame.filter(pa.array([k not in none for k in keys], pa.bool_()))
    return pa.table({"k": kept["k"], "y": pa.array(np.asarray(kept["x"]) * 2)})


def _die(told: Path, _: set[int]) -> None:
    told.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


def _fail(_: Path, hit: set[int]) -> None:
    raise ValueError(f"told to fail at {min(hit)}")


@dataclass(frozen=True)
class World:
    """A store, a function and what it was called with."""

    folder: Path
    version: str = "1"
    seconds: float = 0.0
    target_seconds: float = 10.0
    chunk_size: int = 10
    on_error: str = "retry"
    outputs: tuple[OutputShape, ...] = (OutputShape("out", ("k",), T, None),)
    failed: pa.Table | None = None
    function: Any = counted
    runner: TaskRunner = field(default_factory=lambda: TaskRunner(Session()))

    @property
    def objects(self) -> DatasetObjects:
        return DatasetObjects(LocalStore(self.folder / "lake"), "datasets/d")

    @property
    def store(self) -> ChunkStore:
        return ChunkStore(self.objects, self.version)

    def work(self) -> UnitWork:
        kwargs: dict[str, Any] = {"folder": str(self.folder), "seconds": self.seconds}
        return UnitWork(
            store=self.store,
            shape=None,  # type: ignore[arg-type]
            inputs=(),
            outputs=self.outputs,
            function=StepFunction(self.function, kwargs, version="1", inputs=1, outputs=len(self.outputs)),
            on_error=parse_on_error(self.on_error),
            chunk_size=self.chunk_size,
            attempted=Attempted(self.objects, self.failed),  # type: ignore[arg-type]
            checked=None,
            now_ms=NOW,
            target_seconds=self.target_seconds,
        )

    def compute(
        self, *units: Keys, found: Sequence[StoredChunk] | None = None, progress: Any = None
    ) -> rounds.WaveResults:
        there = self.store.found(self.outputs) if found is None else found
        return rounds.compute(self.work(), units, there, self.runner, progress or SilentProgress())

    # What the function was called with

    def tell(self, order: str, *keys: int) -> None:
        (self.folder / order).write_text(" ".join(map(str, keys)))

    def behave(self) -> None:
        for order in ("kill", "raise", "none"):
            (self.folder / order).unlink(missing_ok=True)

    def calls(self) -> Counter[int]:
        log = self.folder / "calls"
        return Counter(int(line) for line in log.read_text().split()) if log.exists() else Counter()

    def forget(self) -> None:
        (self.folder / "calls").unlink(missing_ok=True)

    # What is stored

    def files(self) -> list[Path]:
        return sorted(p for p in (self.folder / "lake").rglob("*") if p.is_file() and "info" in p.parts)


@dataclass(frozen=True)
class Attempted:
    """Meta of which only the failed keys matter."""

    objects: DatasetObjects
    table: pa.Table | None

    def failed(self) -> pa.Table:
        return TransformMeta.load(self.objects, None).failed() if self.table is None else self.table


def rows_of(stored: Sequence[StoredChunk], output: int = 0, value: str = "y") -> dict[int, Any]:
    """All rows of an output by key; a key that has two is an error."""
    found: dict[int, Any] = {}
    for s in stored:
        if (file := s.outputs[output]) is not None:
            table = FileBucket((file,), 0, BUCKETS).load().table
            for k, v in zip(table["k"].to_pylist(), table[value].to_pylist(), strict=True):
                assert k not in found
                found[k] = v
    return found


def processed_of(stored: Sequence[StoredChunk], among: range) -> list[int]:
    """Which of these keys were processed, repeats included."""
    every = Hashes.joined([part.read() for s in stored for part in s.processed])
    by_hash = dict(zip(_pairs(hashes(list(among))), among, strict=True))
    return sorted(by_hash[pair] for pair in _pairs(every))


def _pairs(of: Hashes) -> list[tuple[int, int]]:
    return list(zip(of.high.tolist(), of.low.tolist(), strict=True))
