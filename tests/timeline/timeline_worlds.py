"""Datasets with a timeline and small row groups, and rows for them: what tests of the timeline start from."""

from __future__ import annotations

import copy
import random
import shutil
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pyarrow as pa

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.dataset import Dataset
from floodmark.errors import StorageError, SwapUnknown
from floodmark.storage.local import LocalStore
from timeline.oracle import EPOCH, MICROSECOND, micros

NAME = "ticks"
HOUR = 3_600_000_000
DAY = 24 * HOUR
UNITS = {"hour": HOUR, "day": DAY, "week": 7 * DAY, "month": 30 * DAY, "year": 365 * DAY}  # about
TIMES = {
    "us utc": pa.timestamp("us", "UTC"),
    "us": pa.timestamp("us"),
    "us berlin": pa.timestamp("us", "Europe/Berlin"),
    "ns": pa.timestamp("ns"),
    "ms": pa.timestamp("ms"),
    "s": pa.timestamp("s", "UTC"),
    "date32": pa.date32(),
    "date64": pa.date64(),
}
ROW_GROUP = 50
BEGIN = micros(datetime(2026, 11, 1, tzinfo=UTC))
BEFORE_1970 = micros(datetime(1969, 12, 31, tzinfo=UTC))


@dataclass(frozen=True)
class Shape:
    """What a dataset with a timeline is declared with, and when its time begins."""

    unit: str = "day"
    time: str = "us utc"
    kind: str = "append"
    late_merge: str = "auto"
    mode: str = "eager"
    row_group_size: int = ROW_GROUP
    begin: int = BEGIN

    def __str__(self) -> str:
        early = "" if self.begin >= 0 else "-early"
        return f"{self.unit}-{self.time}-{self.kind}-{self.late_merge}-{self.mode}{early}".replace(" ", "_")

    @property
    def key(self) -> list[str] | None:
        return None if self.kind == "append" else ["id"]

    @property
    def partition(self) -> int:
        """About how long a partition is, in microseconds."""
        return UNITS[self.unit]

    @property
    def extent(self) -> int:
        """How long all of its time is: a few partitions."""
        return 3 * self.partition


def column_of(times: Iterable[int], kind: str) -> pa.Array:
    """Microseconds since the epoch as a column of one of the types that an event time can have."""
    exact, wanted = list(times), TIMES[kind]
    if pa.types.is_date(wanted):
        return pa.array([t // DAY for t in exact], pa.date32()).cast(wanted)
    step = {"s": 1_000_000, "ms": 1_000}.get(wanted.unit, 1)
    return pa.array([t // step * step for t in exact], pa.timestamp("us", wanted.tz)).cast(wanted)


def moment(time: int) -> datetime:
    """Microseconds since the epoch as a user would give them."""
    return EPOCH + MICROSECOND * time


class Trouble:
    """A store in which calls fail when told to; which, and after how many others."""

    CALLS = ("get", "stat", "open", "put_if_absent", "put_file", "put_derived", "put_derived_file", "compare_and_swap")

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.calm()

    def __reduce__(self) -> tuple[Any, ...]:
        return Trouble, (self._inner,)

    def calm(self) -> None:
        """Nothing fails any more."""
        self.calls = 0
        self._from, self._until, self._where, self._done = -1, -1, "", False

    def strike(self, nth: int, times: int, where: str = "/info/timeline/", done: bool = False) -> None:
        """From the nth call on keys with `where` in them so many fail; a swap that is `done` only says it failed."""
        self.calls = 0
        self._from, self._until, self._where, self._done = nth, nth + times, where, done

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if name not in Trouble.CALLS:
            return real

        def call(key: str, *args: Any) -> Any:
            if not self._fails(key):
                return real(key, *args)
            if name == "compare_and_swap":
                if self._done:
                    real(key, *args)
                raise SwapUnknown("the network is down", hint="check the network", key=key, url="")
            raise StorageError("the network is down", hint="check the network")

        return call

    def _fails(self, key: str) -> bool:
        if self._from < 0 or self._where not in key:
            return False
        with self._lock:
            self.calls += 1
            return self._from < self.calls <= self._until


@dataclass
class World:
    """A dataset with a timeline in a folder, and chance to do things to it."""

    shape: Shape
    folder: Path
    chance: random.Random
    columns: tuple[str, ...] = ()  # that were added
    used: int = 0  # ids so far
    current: dict[int, int] = field(default_factory=dict)  # the event times of keyed rows, as they were given

    def __post_init__(self) -> None:
        self.reopen()
        shape = self.shape
        merge = None if shape.kind == "append" else shape.kind
        self.lake.create(
            NAME,
            event_time="at",
            key=shape.key,
            merge=merge,
            partition_by=shape.unit,
            row_group_size=shape.row_group_size,
            late_merge=shape.late_merge,
            timeline=shape.mode,
        )

    def reopen(self, later: int = 0) -> None:
        """A new lake object that knows nothing but the folder, so many seconds later."""
        clock = lambda: time.time_ns() + later * 10**9  # noqa: E731
        self.store = Trouble(LocalStore(self.folder, HastyFileSystem()))
        self.lake = fm.Lake(self.store, runtime=fm.Runtime(clock=clock, sleep=lambda _: None))
        self._dataset: Dataset | None = None

    def copied(self, folder: Path) -> World:
        """The same world in another folder."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        other = copy.copy(self)
        other.folder, other.chance, other.current = folder, copy.deepcopy(self.chance), dict(self.current)
        other.reopen()
        return other

    @property
    def dataset(self) -> Dataset:
        if self._dataset is None:
            self._dataset = self.lake[NAME]
        return self._dataset

    # Rows

    def table(self, times: Sequence[int], ids: Sequence[int] | None = None) -> pa.Table:
        """A row per time, with new ids unless they are given, and nulls wherever there may be some."""
        if ids is None:
            ids = range(self.used, self.used + len(times))
            self.used += len(times)
        chance = self.chance
        columns = {
            "id": pa.array(ids, pa.int64()),
            "at": column_of(times, self.shape.time),
            "v": pa.array([None if chance.random() < 0.2 else chance.randrange(100) / 4 for _ in times], pa.float64()),
            "s": pa.array([chance.choice([None, "", "a", "b" * 9]) for _ in times], pa.string()),
        }
        for name in self.columns:
            columns[name] = pa.array([chance.choice([None, "x", name]) for _ in times], pa.string())
        return pa.table(columns)

    def times(self, low: int, high: int, count: int) -> list[int]:
        """Times in [low, high), in any order; with probability one half few different ones."""
        if self.chance.random() < 0.5:
            some = [self.chance.randrange(low, high) for _ in range(max(1, count // 8))]
            return [self.chance.choice(some) for _ in range(count)]
        return [self.chance.randrange(low, high) for _ in range(count)]

    def write(self, table: pa.Table) -> fm.Commit:
        """Write, and know what is current by it."""
        commit = self.dataset.write(table)
        self.note(table)
        return commit

    def note(self, table: pa.Table) -> None:
        if self.shape.kind != "append":
            self.current.update(zip(table["id"].to_pylist(), map(micros, table["at"].to_pylist()), strict=True))

    # Ranges to look at

    def range(self) -> tuple[Any, Any]:
        """Some stretch of time, as users give them: with an open end, empty, or of a few partitions."""
        begin, extent, chance = self.shape.begin, self.shape.extent, self.chance
        ends = sorted(begin + chance.randrange(-extent // 8, extent + extent // 8) for _ in range(2))
        low, high = map(moment, ends)
        choices = [(low, high), (low, None), (None, high), (low.date(), None), (low, low), (low.isoformat(), high)]
        return chance.choice(choices)


def world(folder: Path, seed: int = 0, **shape: Any) -> World:
    """A world of the usual shape but for what is given."""
    return World(replace(Shape(), **shape), folder, random.Random(seed))


_templates = TemporaryDirectory()


def template_folder() -> Path:
    """A folder that stays until the run ends: for a world that tests copy."""
    return Path(mkdtemp(dir=_templates.name))
