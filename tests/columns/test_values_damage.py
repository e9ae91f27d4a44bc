"""Values when things go wrong: killed processes, damaged and overlapping checkpoints, others at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import floodmark as fm
from columns.counting import Waiting
from columns.value_worlds import COLUMN, PICKY, SMALL, ValueWorld, taken, tens, value_world
from columns.worlds import TENFOLD, checkpoint_path
from faults.mortal import has_workers
from floodmark.columns.function_values import function_prefix, merge_small_checkpoints
from floodmark.derive.checkpoint_key import CheckpointPrefix, parse_key, range_key
from floodmark.errors import CheckpointCoverageError
from floodmark.storage.local import LocalStore
from limits import set_limit
from waiting import wait_until

ASKING = """
import sys
from pathlib import Path
from columns.counting import Calls
from columns.value_worlds import SMALL, ValueWorld
import floodmark as fm
lake, folder, rows = sys.argv[1:]
ValueWorld(fm.Lake(lake), Calls(Path(folder))).ask_only(range(int(rows)), **SMALL)
"""


@pytest.fixture
def world(tmp_path: Path) -> ValueWorld:
    return value_world(tmp_path)


def asking(world: ValueWorld, rows: int) -> subprocess.Popen[bytes]:
    """Another process that asks for the first rows."""
    command = [sys.executable, "-c", ASKING, str(world.lake.store.url), str(world.calls.folder), str(rows)]
    paths = [str(Path(__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.Popen(command, env=env, start_new_session=True)


# Killed


@pytest.mark.process
def test_driver_killed_midway_loses_only_what_no_checkpoint_has(world: ValueWorld):
    world.write(range(300))
    world.calls.wait_at(135)
    with asking(world, 300) as driver:
        wait_until(lambda: 135 in world.calls.offsets())
        os.killpg(driver.pid, signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL
    wait_until(lambda: not has_workers(driver.pid))  # until then they may store more
    world.calls.behave()
    stored = sum(end - start for _, start, end in world.ranges())
    assert 0 < stored < 300
    got = world.ask(range(300), **SMALL)
    assert (got.called, got.reused) == (300 - stored, stored)
    assert taken(got, range(300)) == tens(range(300))


@pytest.mark.process
def test_worker_killed_midway_costs_its_own_checkpoint_only(world: ValueWorld):
    world.write(range(100))
    world.calls.forget()
    world.calls.kill_at(57)
    got = world.ask_only(range(100), **SMALL)
    assert (got.computed, got.failed) == (100, 0)
    assert taken(got, range(100)) == tens(range(100))
    again = {offset for offset, calls in world.calls.count().items() if calls > 1}
    assert again == set(range(50, 60)), "what the dead worker had stored is not computed again"


# Damaged


HARM: dict[str, Callable[[bytes, bytes], bytes]] = {
    "truncated": lambda data, _: data[: len(data) // 2],
    "foreign": lambda _, other: other,
    "changed": lambda data, _: data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
}


def harm(world: ValueWorld, how: str, ending: str = "_frag-1_range-20-30") -> str:
    """Damage a checkpoint; its key."""
    store, keys = world.checkpoints.store, world.checkpoints.list_keys()
    [key] = [key for key in keys if key.endswith(ending)]
    path, other = (checkpoint_path(world.checkpoints, k) for k in (key, keys[0]))
    store.put_derived(path, HARM[how](store.get(path), store.get(other)))
    return key


@pytest.mark.parametrize("how", HARM)
def test_bad_checkpoint_is_deleted_and_its_rows_alone_are_computed(how: str, world: ValueWorld, caplog):
    world.write(range(200))
    world.ask(range(200), **SMALL)
    harm(world, how)
    got = world.ask(range(200), **SMALL)
    assert sorted(world.calls.offsets()) == list(range(120, 130))
    assert taken(got, range(200)) == tens(range(200))
    assert "frag-1_range-20-30" in caplog.text


def test_checkpoint_damaged_before_it_is_taken_never_becomes_nulls(world: ValueWorld):
    world.write(range(200))
    got = world.ask(range(200), **SMALL)
    key = harm(world, "changed")
    assert taken(got, range(120)) == tens(range(120)), "others are not touched by it"
    with pytest.raises(CheckpointCoverageError):
        taken(got, range(200))
    assert not world.checkpoints.has(key)
    again = world.ask(range(200), **SMALL)
    assert (again.called, taken(again, [125])) == (10, [1250])


def test_checkpoint_replaced_by_one_with_fewer_rows_never_becomes_nulls(world: ValueWorld):
    """As when two store different rows of one range at once, where nobody can wait for anybody."""
    world.write(range(20))
    got = world.ask(range(20))
    [key] = world.checkpoints.list_keys()
    world.checkpoints.put(key, world.checkpoints.get(key).slice(5))
    with pytest.raises(CheckpointCoverageError, match="5 rows of column 'b' between records 0 and 4"):
        taken(got, range(20))
    assert world.ask(range(20)).called == 5


def test_checkpoint_that_goes_while_it_is_computed_is_computed_again(world: ValueWorld):
    world.write(range(60))
    world.calls.forget()
    world.calls.wait_at(55)
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(world.ask_only, range(60), **SMALL)
        wait_until(lambda: (0, 10, 20) in world.ranges())
        [key] = [key for key in world.checkpoints.list_keys() if key.endswith("_range-10-20")]
        world.checkpoints.delete(key)
        world.calls.go_on()
        got = running.result()
    assert (got.computed, taken(got, range(60))) == (70, tens(range(60)))


# Overlapping


def test_overlapping_checkpoints_give_each_row_once(world: ValueWorld):
    world.write(range(100))
    world.ask(range(0, 60))
    store = world.checkpoints
    [whole] = store.list_keys()
    batch = store.get(whole)
    parsed = parse_key(whole)
    assert parsed is not None
    for start, end in ((0, 30), (10, 50), (20, 60)):
        store.put(range_key(parsed.prefix, 0, start, end), batch.slice(start, end - start))
    store.delete(whole)
    got = world.ask(range(100))
    assert got.called == 40
    assert taken(got, range(100)) == tens(range(100))
    assert taken(got, range(15, 55, 3)) == tens(range(15, 55, 3))


@pytest.mark.parametrize("newer", [False, True], ids=["older value", "newer value"])
@pytest.mark.parametrize("merged", [False, True], ids=["beside each other", "merged"])
def test_a_value_counts_more_than_a_newer_failure_or_an_older_value(
    newer: bool, merged: bool, world: ValueWorld, monkeypatch
):
    world.write(range(20))
    udf = PICKY.udf(world.calls, on_error=fm.Skip(ValueError))
    world.ask(range(20), udf)
    store = world.checkpoints
    [first] = store.list_keys()
    batch = store.get(first)
    failures = batch.take([7, 7, 7]).set_column(0, "_rowaddr", pa.array([7, 8, 9]))
    values = batch.slice(9, 3).set_column(1, "b", pa.array([1, 2, 3]))
    put_at(world, first, batch, 1e9)
    put_at(world, first.replace("range-0-20", "range-9-12"), values, 1e9 + 1 if newer else 1e9 - 1)
    put_at(world, first.replace("range-0-20", "range-7-10"), failures, 1e9 + 2)
    if merged:
        set_limit(monkeypatch, "merging.many", 3)
        prefix = CheckpointPrefix.parse(first.rpartition("_frag-")[0])
        assert prefix is not None
        merge_small_checkpoints(store, prefix, 0, COLUMN)
        assert world.ranges() == [(0, 0, 21)], "under a key that none of them had"
    got = world.ask(range(20), udf)
    assert (got.called, taken(got, range(6, 13))) == (0, [60, None, 80, *([1, 2, 3] if newer else [90, 100, 110]), 120])
    assert got.errors["offset"].to_pylist() == [0, 7, 14]


def put_at(world: ValueWorld, key: str, batch: pa.RecordBatch, moment: float) -> None:
    """Store a checkpoint as if that had been at a moment, in epoch seconds."""
    world.checkpoints.put(key, batch)
    os.utime(str(world.lake.store.local_path(checkpoint_path(world.checkpoints, key))), (moment, moment))


# At the same time


def test_two_at_once_compute_each_row_once(world: ValueWorld, monkeypatch):
    set_limit(monkeypatch, "turns.silence", 0.05)
    waiting = replace(world, progress=Waiting())
    world.write(range(60))
    world.calls.wait_at(35)
    with ThreadPoolExecutor(2) as both:
        one = both.submit(world.ask_only, range(60), **SMALL)
        wait_until(lambda: 35 in world.calls.offsets())
        other = both.submit(waiting.ask_only, range(60), **SMALL)
        wait_until(lambda: waiting.progress.waits or world.calls.repeated or other.done())
        world.calls.go_on()
        assert [one.result().called, other.result().called] == [60, 0]
    assert set(world.calls.count().values()) == {1}
    assert taken(other.result(), range(60)) == tens(range(60))


class WithoutTurns(LocalStore):
    def turn(self, key: str) -> nullcontext[None]:
        return nullcontext()


def test_two_at_once_without_turns_both_get_all_values(world: ValueWorld):
    """As in a bucket, where nobody can wait for anybody."""
    world.write(range(100))
    world = replace(world, lake=fm.Lake(WithoutTurns(world.calls.folder / "lake")))
    with ThreadPoolExecutor(2) as both:
        asked = [range(100), range(0, 100, 2)]
        found = list(both.map(lambda rows: taken(world.ask_only(rows, **SMALL), rows), asked))
    assert found == [tens(rows) for rows in asked]


def test_keys_say_what_was_computed_and_from_what(world: ValueWorld):
    world.write(range(5))
    world.ask(range(5))
    column_snapshot = world.column_snapshot
    udf = TENFOLD.udf(world.calls)
    known = (udf.name, udf.version, udf.inputs_from(None), world.fragment_rows)
    prefix = function_prefix(column_snapshot.catalog, column_snapshot.dataset_id, COLUMN, *known)
    assert world.checkpoints.list_keys() == [range_key(prefix.text, 0, 0, 5)]
    assert prefix.text.startswith("fmt-1_udf-fold_ver-1_col-b_where-d41d8cd98f00b204e9800998ecf8427e_uri-")
    assert len(np.unique([prefix.uri, prefix.srcfiles, prefix.where])) == 3
