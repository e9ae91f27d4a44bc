"""A small lake that comes out the same, byte for byte, each time, and what must be true of it after a crash."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import floodmark as fm
from faults.crash_states import CrashState
from faults.recording import HastyFileSystem, Recording, RecordingFileSystem
from floodmark.chain.events import AddData
from floodmark.chain.ids import Multihash
from floodmark.chain.walk import read_block
from floodmark.dataset import Dataset
from floodmark.ledger import parts, slice_index
from floodmark.storage.local import LocalStore

NAME = "trips"
START = datetime(2026, 3, 1, tzinfo=UTC)
_SECOND = 10**9


def runtime(hour: int = 0) -> fm.Runtime:
    """Time passes by one second a look, and chance repeats itself."""
    ticks = itertools.count(int(START.timestamp()) + 3600 * hour)
    dice = itertools.count()
    return fm.Runtime(
        clock=lambda: next(ticks) * _SECOND,
        random_bytes=lambda size: hashlib.shake_256(b"%d-%d" % (hour, next(dice))).digest(size),
        sleep=lambda seconds: None,
    )


def open_lake(root: Path, fs: Any, hour: int = 0) -> fm.Lake:
    return fm.Lake(LocalStore(root, fs), runtime=runtime(hour))


def rows(*numbers: int, columns: Iterable[str] = ()) -> pa.Table:
    """One row per number: the number, a time so many minutes after the start, nulls in other columns."""
    times = [START + timedelta(minutes=n) for n in numbers]
    table = pa.table({"n": pa.array(numbers, pa.int64()), "at": pa.array(times, pa.timestamp("us", "UTC"))})
    for name in columns:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(numbers), pa.string()))
    return table


# What is done to the lake


def create(lake: fm.Lake) -> None:
    lake.create(NAME, event_time="at")


def write(lake: fm.Lake) -> None:
    lake[NAME].write(rows(1, 2))


def write_again(lake: fm.Lake) -> None:
    dataset = lake[NAME]
    dataset.write(rows(3, columns=dataset.snapshot().require_layout(NAME).data.names))


def write_slices(lake: fm.Lake) -> None:
    with mock.patch.object(parts, "PART_BYTES", 40):
        assert lake[NAME].write(rows(4, 5, 6, 7)).slices > 1


def write_state(lake: fm.Lake) -> None:
    with mock.patch.object(parts, "PART_BYTES", 40):
        lake[NAME].write(rows(8, 9, 10), source="kafka", state="batch-1")


def advance(lake: fm.Lake) -> None:
    assert lake[NAME].advance_watermark(START + timedelta(days=1)) is not None


def evolve(lake: fm.Lake) -> None:
    lake[NAME].evolve({"note": "string"})


def purge(lake: fm.Lake) -> None:
    assert lake[NAME].purge(before=4).slices > 0


def forget_index(lake: fm.Lake) -> None:
    for info in list(lake[NAME].snapshot().objects.index_segments()):
        lake.store.delete(info.key)


def catch_up(lake: fm.Lake) -> None:
    lake[NAME].count()


def drop(lake: fm.Lake) -> None:
    lake.drop(NAME)


Step = Callable[[fm.Lake], None]


@dataclass(frozen=True)
class Scenario:
    """Steps whose file-system calls are recorded, after others that happened long ago."""

    name: str
    steps: tuple[Step, ...]
    before: tuple[Step, ...] = ()
    fan_out: int = 3  # segments of the index are merged this early, to see it happen

    def __str__(self) -> str:
        return self.name

    def prepare(self, root: Path) -> None:
        self._do(self.before, open_lake(root / "lake", HastyFileSystem()), lambda _: None)

    def run(self, root: Path, fs: Any, done: Callable[[str], None]) -> None:
        """Do the steps, one lake object for all, and call `done` with the name of each that is acknowledged."""
        self._do(self.steps, open_lake(root / "lake", fs, hour=1), done)

    def recorded(self, root: Path, alter: Callable[[Any], Any] = lambda fs: fs) -> Recording:
        """The recording of the steps, done in a new folder through a file system that `alter` may change."""
        root.mkdir()
        self.prepare(root)
        recorder = RecordingFileSystem(root)
        with suppress(fm.FloodmarkError):  # what fails is not acknowledged
            self.run(root, alter(recorder), recorder.mark)
        return recorder.recording

    def views(self, root: Path) -> list[View | None]:
        """What a reader sees before the first step and after each."""
        self.prepare(root)
        lake = open_lake(root / "lake", HastyFileSystem(), hour=1)
        seen = [view(lake)]
        self._do(self.steps, lake, lambda _: seen.append(view(lake)))
        return seen

    def _do(self, steps: tuple[Step, ...], lake: fm.Lake, done: Callable[[str], None]) -> None:
        with ExitStack() as patched:
            patched.enter_context(mock.patch.object(slice_index, "FAN_OUT", self.fan_out))
            for step in steps:
                step(lake)
                done(step.__name__)


SCENARIOS = [
    Scenario("create", (create,)),
    Scenario("first-write", (write,), (create,)),
    Scenario("write", (write_again,), (create, write)),
    Scenario("write-slices", (write_slices,), (create, write)),
    Scenario("write-state", (write_state,), (create, write)),
    Scenario("advance", (advance,), (create, write)),
    Scenario("evolve", (evolve,), (create, write)),
    Scenario("purge", (purge,), (create, write, write_again, write_slices)),
    Scenario("catch-up", (forget_index, catch_up), (create, write, write_slices)),
    Scenario("merge", (write_again,), (create, write, advance)),
    Scenario("drop", (drop,), (create,)),
    Scenario("life", (create, write, write_state, advance)),
]


# What a reader sees


@dataclass(frozen=True)
class View:
    """Everything that a reader can see of the dataset."""

    head: Multihash
    records: tuple[tuple[Any, ...], ...]
    columns: tuple[str, ...]
    last_offset: int | None
    watermark: datetime | None
    purged_before: int


def view(lake: fm.Lake) -> View | None:
    """The dataset as readers see it, None when there is none."""
    if NAME not in lake:
        return None
    dataset = lake[NAME]
    snapshot = dataset.snapshot()
    columns, records = [], []
    if snapshot.layout is not None:
        table = dataset.scan().to_table()
        columns, records = table.column_names, list(zip(*table.to_pydict().values(), strict=True))
    assert dataset.count() == len(records)
    return View(
        head=snapshot.head,
        records=tuple(records),
        columns=tuple(columns),
        last_offset=dataset.last_offset,
        watermark=dataset.watermark,
        purged_before=snapshot.purged_before,
    )


class Checker:
    """Opens the lakes that crashes of one scenario leave, each different one once."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._folder = folder
        self._views = scenario.views(folder / "undisturbed")
        self._known: dict[str, tuple[View | None, str | None]] = {}

    def problem(self, state: CrashState) -> str | None:
        """What is wrong with the lake when it is opened after a crash, None when nothing is.

        Readers must see what they saw after the last step that was acknowledged, or after the one under way.
        """
        if state.digest not in self._known:
            self._known[state.digest] = self._look(state)
        found, problem = self._known[state.digest]
        done = len(state.acknowledged)
        if problem is None and found not in self._views[done : done + 2]:
            problem = f"neither the state before nor the one after: {found}"
        return problem and f"{problem}\n{state.story}\nacknowledged: {state.acknowledged}"

    def first_problem(self, states: Iterable[CrashState]) -> str | None:
        found = (self.problem(state) for state in states)
        return next((problem for problem in found if problem), None)

    def _look(self, state: CrashState) -> tuple[View | None, str | None]:
        root = state.materialise(self._folder / state.digest[:16])
        try:
            lake = open_lake(root / "lake", HastyFileSystem(), hour=2)
            found = view(lake)
            return found, damage(lake) or problem_of_next_write(lake, found)
        except Exception:
            return None, traceback.format_exc()
        finally:
            shutil.rmtree(root)


def problem_of_next_write(lake: fm.Lake, before: View | None) -> str | None:
    if before is None:
        create(lake)
        before = view(lake)
        assert before is not None
    data = rows(99, columns=before.columns[3:])
    commit = lake[NAME].write(data, source="after", state="crash")
    after = view(lake)
    assert after is not None
    if after.records[:-1] != before.records or 99 not in after.records[-1] or commit.rows != 1:
        return f"the next write turned {before} into {after}"
    if lake[NAME].write(data, source="after", state="crash") != commit or view(lake) != after:
        return "the next write is not idempotent"
    return damage(lake)


def damage(lake: fm.Lake) -> str | None:
    """What verify says of every dataset, and what breaks the order of publishing, if anything."""
    for dataset in lake:
        found = dataset.verify()
        if not found.ok:
            return f"verify: {found.problems}"
        if problem := _unpublished(dataset):
            return problem
    return None


def _unpublished(dataset: Dataset) -> str | None:
    """A block that lies there before its data, which the format forbids, whether the head has got to it or not."""
    snapshot = dataset.snapshot()
    objects = snapshot.objects
    present = {info.key for info in objects.store.list(objects.folder)}
    for key in [key for key in present if key.startswith(f"{objects.folder}/blocks/")]:
        name = Multihash.parse(key.rsplit("/", 1)[-1])
        event = read_block(name, objects.store.get(key)).event
        if not isinstance(event, AddData) or event.new_data is None:
            continue
        purged = event.new_data.offset_interval.end < snapshot.purged_before
        if not purged and objects.data_key(event.new_data.physical_hash) not in present:
            return f"block {name.short} lies there without its data"
    return None
