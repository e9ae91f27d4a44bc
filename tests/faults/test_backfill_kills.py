"""A backfill that is killed at any moment, or runs out of disk, has lost little and shows nothing by halves."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from columns.counting import Calls
from columns.worlds import FRAGMENT_ROWS, HUNDREDFOLD, TENFOLD
from faults.backfill_runs import CHECKPOINT, PLANS, fill
from faults.mortal import ended, killed, reaches, started
from floodmark.errors import StorageError
from profiles import IN_FULL, sample, seeds

ROWS = 48
KILLS = 2  # per seed
WORKERS = 2


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    lake = fm.Lake(tmp_path / "lake")
    dataset = lake.create("d", key=["id"], schema={"id": "int64", "v": "int64"})
    dataset.write(pa.table({"id": range(ROWS), "v": range(ROWS)}))
    dataset.add_column("a", TENFOLD.udf(Calls(tmp_path)), fragment_rows=FRAGMENT_ROWS)
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


@pytest.mark.process
@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("version", ["2", *(["1"] if IN_FULL else [])])
def test_backfill_that_is_killed_again_and_again_loses_a_checkpoint_per_worker(version, seed, lake, tmp_path):
    """Each process is killed in the middle of a call of the function."""
    chance = random.Random(seed)
    calls = Calls(tmp_path)
    old, new = NONE, times(10)
    if version == "2":
        lake["d"].backfill("a", udf=TENFOLD.udf(calls))
        lake["d"].alter_column("a", HUNDREDFOLD.udf(calls))
        calls.forget()
        old, new = new, times(100)
    for at in sorted(chance.sample(range(ROWS), KILLS)):
        calls.wait_at(at)
        with started(fill, lake.store.url, tmp_path, version) as process:
            reaches(process, lambda at=at: at in calls.offsets())
            process.kill()
            ended(process)
        calls.go_on()
        assert_whole(lake, old, new)
    stored = set(calls.offsets())
    before = len(calls.offsets())
    done = lake["d"].backfill("a", udf=PLANS[version].udf(calls))
    assert fragments(lake) == new
    assert done.called + before == len(calls.offsets())
    assert len(calls.offsets()) - ROWS <= KILLS * WORKERS * CHECKPOINT
    assert done.computed <= ROWS - len(stored) + KILLS * WORKERS * CHECKPOINT
    assert lake["d"].backfill("a", udf=PLANS[version].udf(calls)).called == 0
    assert lake["d"].verify().problems == ()


@pytest.mark.process
@pytest.mark.soak
@pytest.mark.parametrize("nth", sample(range(40), 2))
def test_driver_that_is_killed_at_any_change_calls_for_nothing_twice(nth, lake, tmp_path):
    """What its workers have stored is stored before it changes anything."""
    calls = Calls(tmp_path)
    killed(fill, lake.store.url, tmp_path, "1", nth)
    assert_whole(lake, NONE, times(10))
    first = set(calls.offsets())
    done = lake["d"].backfill("a", udf=TENFOLD.udf(calls))
    assert (done.computed, done.done + done.reused) == (ROWS - len(first), len(first))
    assert calls.count() == dict.fromkeys(range(ROWS), 1)
    assert fragments(lake) == times(10)
    assert lake["d"].verify().problems == ()


@pytest.mark.process
def test_interrupted_backfill_stops_and_the_next_one_goes_on(lake, tmp_path):
    """Ctrl-C goes to the driver."""
    calls = Calls(tmp_path)
    calls.wait_at(20)
    with started(fill, lake.store.url, tmp_path, "1") as process:
        reaches(process, lambda: 20 in calls.offsets())
        os.killpg(process.pid, signal.SIGINT)
        assert ended(process) != 0
    calls.go_on()
    called = len(set(calls.offsets()))
    assert called < ROWS
    assert_whole(lake, NONE, times(10))
    done = lake["d"].backfill("a", udf=TENFOLD.udf(calls))
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
    return pa.array([os.urandom(16384).hex() for _ in range(len(v))])


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
    assert "Free disk space" in refused.value.hint
    assert lake["d"].to_arrow()["a"].null_count == ROWS
    assert list(lake.store.staging().iterdir()) == []
    assert lake["d"].verify().problems == ()
    subprocess.run(["mount", "-o", "remount,size=32m", small_disk], check=True)
    done = dataset.backfill("a", udf=udf, **sizes)
    assert done.computed + done.reused == ROWS
    assert lake["d"].to_arrow()["a"].null_count == 0
    assert lake["d"].verify().problems == ()


@pytest.mark.soak
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
    for room in sample(range(0, 64 << 10, 4 << 10), 4):
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
    assert all("Free disk space" in hint for hint in refused)
