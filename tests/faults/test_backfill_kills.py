"""A backfill that is killed at any moment, or runs out of disk, has lost little and shows nothing by halves."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from compute.counting import Calls, until
from compute.worlds import FRAGMENT_ROWS, HUNDREDFOLD, TENFOLD
from floodmark.storage.errors import StorageError

ROWS = 96
KILLS = 5
CHECKPOINT = 2
WORKERS = 2
SIZES = {"checkpoint_size": CHECKPOINT, "min_checkpoint_size": CHECKPOINT, "commit_granularity": 1, "task_size": 4}

# A backfill that is there to be killed: FOLDER CALLS VERSION, and what to do before.
DRIVER = """
import sys
from pathlib import Path
import floodmark as fm
from faults.test_backfill_kills import SIZES, slow

lake, calls, version = sys.argv[1:4]
{before}
fm.Lake(lake)["d"].backfill("a", udf=slow(Path(calls), version), **SIZES)
"""


def slow(folder: Path, version: str) -> fm.Udf:
    """A function that takes its time for every row."""
    calls = Calls(folder)
    factor = {"1": 10, "2": 100}[version]

    def f(offset: pa.Array, v: pa.Array) -> pa.Array:
        calls.note(offset.to_pylist())
        time.sleep(0.01 * len(v))
        return pa.array([i * factor for i in v.to_pylist()], pa.int64())

    return fm.udf(returns="int64", name="slow", version=version)(f)


class Driver:
    """A process that fills the column, with worker processes of its own."""

    def __init__(self, lake: fm.Lake, calls: Calls, version: str, before: str = "") -> None:
        command = [sys.executable, "-c", DRIVER.replace("{before}", before), lake.store.url, str(calls.folder), version]
        tests = str(Path(__file__).parents[1])
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": tests},
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill_all()

    def wait(self) -> int:
        return self._process.wait(120)

    def kill(self) -> None:
        """Kill the driver alone; its workers have to notice."""
        self._process.kill()
        self._process.wait(60)
        until(lambda: not self._left())

    def kill_all(self) -> None:
        """Kill the driver and its workers in the same moment, as the end of a machine would."""
        if self._left():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)
        until(lambda: not self._left())

    def _left(self) -> bool:
        """Whether a process of the driver's session is alive."""
        return any(_session(path) == self._process.pid for path in Path("/proc").glob("[0-9]*/stat"))


def _session(path: Path) -> int | None:
    try:
        state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(session)


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    lake = fm.Lake(tmp_path / "lake")
    dataset = lake.create("d", key=["id"], schema={"id": "int64", "v": "int64"})
    dataset.write(pa.table({"id": range(ROWS), "v": range(ROWS)}))
    dataset.add_column("a", slow(tmp_path, "1"), fragment_rows=FRAGMENT_ROWS)
    return lake


def fragments(lake: fm.Lake) -> list[list[int | None]]:
    values = lake["d"].to_arrow()["a"].to_pylist()
    return [values[at : at + FRAGMENT_ROWS] for at in range(0, ROWS, FRAGMENT_ROWS)]


def times(factor: int) -> list[list[int | None]]:
    return [[i * factor for i in range(at, at + FRAGMENT_ROWS)] for at in range(0, ROWS, FRAGMENT_ROWS)]


NONE: list[list[int | None]] = [[None] * FRAGMENT_ROWS] * (ROWS // FRAGMENT_ROWS)


def assert_whole(lake: fm.Lake, old: list[list[int | None]], new: list[list[int | None]]) -> None:
    """Each fragment is as before or as after."""
    for found, one, other in zip(fragments(lake), old, new, strict=True):
        assert found in (one, other)
    assert lake["d"].verify().problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1", "2"], ids=["first backfill", "version bump"])
def test_backfill_that_is_killed_again_and_again_loses_a_checkpoint_per_worker(version, lake, tmp_path):
    chance = random.Random(2026)
    calls = Calls(tmp_path)
    old, new = NONE, times(10)
    if version == "2":
        lake["d"].backfill("a", udf=slow(tmp_path, "1"))
        lake["d"].alter_column("a", slow(tmp_path, "2"))
        calls.forget()
        old, new = new, times(100)
    for number in range(KILLS):
        with Driver(lake, calls, version) as driver:
            calls.await_rows(len(calls.offsets()) + 1 + chance.randrange(ROWS // KILLS))
            time.sleep(chance.uniform(0, 0.05))
            if number % 2:
                driver.kill()
            else:
                driver.kill_all()
        assert_whole(lake, old, new)
    stored = set(calls.offsets())
    killed, done = len(calls.offsets()), lake["d"].backfill("a", udf=slow(tmp_path, version))
    assert fragments(lake) == new
    assert done.called + killed == len(calls.offsets())
    assert len(stored) > ROWS // 4, "the kills came before anything was done"
    assert len(calls.offsets()) - ROWS <= KILLS * WORKERS * CHECKPOINT
    assert done.computed <= ROWS - len(stored) + WORKERS * CHECKPOINT
    assert lake["d"].backfill("a", udf=slow(tmp_path, version)).called == 0
    assert lake["d"].verify().problems == ()


DYING = "import os, signal; die = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL); "
MOMENTS = {
    "before the files are put together": "from floodmark.compute import backfill; backfill._assemble = die",
    "before the commit": "from floodmark.compute import backfill; backfill.install = die",
    "before the catalog is swapped": "from floodmark.compute.stored import install; install.catalogs.change = die",
    "after the commit": (
        "from floodmark.compute import backfill; real = backfill.install; "
        "backfill.install = lambda *a, **k: die(real(*a, **k))"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_driver_that_dies_around_its_commit_calls_for_nothing_twice(moment, lake, tmp_path):
    calls = Calls(tmp_path)
    with Driver(lake, calls, "1", DYING + MOMENTS[moment]) as driver:
        assert driver.wait() == -signal.SIGKILL
    seen = [times(10)[0], *NONE[1:]] if moment == "after the commit" else NONE
    assert fragments(lake) == seen
    first = set(calls.offsets())
    assert first == set(range(FRAGMENT_ROWS))
    done = lake["d"].backfill("a", udf=slow(tmp_path, "1"))
    assert (done.computed, done.done + done.reused) == (ROWS - FRAGMENT_ROWS, FRAGMENT_ROWS)
    assert calls.count() == dict.fromkeys(range(ROWS), 1)
    assert fragments(lake) == times(10)
    assert lake["d"].verify().problems == ()


@pytest.mark.slow
def test_interrupted_backfill_stops_and_the_next_one_goes_on(lake, tmp_path):
    """Ctrl-C goes to the driver and to its workers."""
    calls = Calls(tmp_path)
    with Driver(lake, calls, "1") as driver:
        calls.await_rows(20)
        os.killpg(driver._process.pid, signal.SIGINT)
        assert driver.wait() != 0
        until(lambda: not driver._left())
    called = len(set(calls.offsets()))
    assert called < ROWS
    assert_whole(lake, NONE, times(10))
    done = lake["d"].backfill("a", udf=slow(tmp_path, "1"))
    assert done.computed <= ROWS - called + WORKERS * CHECKPOINT
    assert fragments(lake) == times(10)


# A disk that is full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting takes rights that we lack: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def noise(v: pa.Array) -> pa.Array:
    """Values that do not get smaller by compression."""
    return pa.array([os.urandom(8192).hex() for _ in range(len(v))])


@pytest.mark.parametrize("sizes", [{}, {"checkpoint_size": 8, "min_checkpoint_size": 8}], ids=["file", "checkpoints"])
def test_disk_that_is_full_leaves_the_column_as_it_was_and_the_next_backfill_goes_on(sizes, small_disk, tmp_path):
    def f(v: pa.Array) -> pa.Array:
        return noise(v)

    lake = fm.Lake(small_disk / "lake")
    dataset = lake.create("d", key=["id"], schema={"id": "int64", "v": "int64"})
    dataset.write(pa.table({"id": range(ROWS), "v": range(ROWS)}))
    udf = fm.udf(returns="string", version="1")(f)
    dataset.add_column("a", udf, fragment_rows=64)
    with pytest.raises(StorageError, match="No space left on device") as refused:
        dataset.backfill("a", udf=udf, commit_granularity=1, **sizes)
    assert "make room" in refused.value.hint
    assert lake["d"].to_arrow()["a"].null_count == ROWS
    assert list(lake.store.staging().iterdir()) == []
    assert lake["d"].verify().problems == ()
    subprocess.run(["mount", "-o", "remount,size=32m", small_disk], check=True)
    done = dataset.backfill("a", udf=udf, **sizes)
    assert done.computed + done.reused == ROWS
    assert lake["d"].to_arrow()["a"].null_count == 0
    assert lake["d"].verify().problems == ()


def test_however_little_room_is_left_a_backfill_is_done_or_refused(small_disk, tmp_path):
    lake = fm.Lake(small_disk / "lake")
    dataset = lake.create("d", key=["id"], schema={"id": "int64", "v": "int64"})
    dataset.write(pa.table({"id": range(16), "v": range(16)}))
    calls = Calls(tmp_path)
    one, other = TENFOLD.udf(calls), HUNDREDFOLD.udf(calls)
    dataset.add_column("a", one, fragment_rows=FRAGMENT_ROWS)
    dataset.backfill("a", udf=one)
    filler, outcomes = small_disk / "filler", []
    factor = 10
    for room in range(0, 64 << 10, 4 << 10):
        udf = other if factor == 10 else one
        dataset.alter_column("a", udf)
        filler.write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - room)))
        try:
            dataset.backfill("a", udf=udf)
            factor = 1000 // factor
            outcomes.append("done")
        except fm.FloodmarkError as error:
            outcomes.append(error.hint)
        values = lake["d"].to_arrow()["a"].to_pylist()
        filler.unlink()
        assert values == [i * factor for i in range(16)]
        assert lake["d"].verify().problems == ()
        dataset.alter_column("a", one if factor == 10 else other)
    refused = [hint for hint in outcomes if hint != "done"]
    assert 0 < len(refused) < len(outcomes)
    assert all("make room" in hint for hint in refused)
