"""Which checkpoints of a view are garbage: those of nothing that is in use, once they are old."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import floodmark as fm
from columns.counting import Plan
from columns.value_worlds import COLUMN, SMALL, ValueWorld, taken, tens, value_world
from columns.worlds import HUNDREDFOLD, TENFOLD
from floodmark.columns import garbage as gc
from floodmark.columns.function_values import function_prefix, used_checkpoints
from floodmark.columns.garbage import ColumnGarbage, UsedCheckpoints
from floodmark.storage.sweep import GRACE_NANOS

DAY = 86_400 * 10**9


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ValueWorld:
    """Tasks run in this process."""
    found = value_world(tmp_path)
    found.write(range(40))
    found.ask(range(40), **SMALL)
    return found


def in_use(world: ValueWorld, plan: Plan = TENFOLD) -> UsedCheckpoints:
    column_snapshot = world.column_snapshot
    inputs = plan.udf(world.calls).inputs_from(None)
    known = (COLUMN, plan.name, plan.version, inputs, world.fragment_rows)
    return used_checkpoints(
        column_snapshot,
        function_prefix(column_snapshot.catalog, column_snapshot.dataset_id, *known),
        world.fragment_rows,
    )


def garbage(world: ValueWorld, *computations: UsedCheckpoints, later: int = 30 * DAY) -> ColumnGarbage:
    view = world.lake["view"]
    known = (str(view.id), world.column_snapshot.dead[:0], time.time_ns() + later)
    return gc.find_garbage(world.kept_in, *known, used=computations)


def ranges(found: ColumnGarbage) -> list[str]:
    return sorted(info.key.rpartition("_")[2] for info in found.checkpoints)


def test_what_the_view_uses_stays_however_old_it_is(world: ValueWorld):
    assert garbage(world, in_use(world)).keys == []
    gc.remove_garbage(garbage(world, in_use(world)))
    assert world.ask(range(40)).called == 0


def test_what_nothing_uses_goes_when_it_is_old(world: ValueWorld):
    other = in_use(world, HUNDREDFOLD)
    assert garbage(world, other, later=GRACE_NANOS - DAY).keys == []
    assert len(garbage(world, other).checkpoints) == 4
    gc.remove_garbage(garbage(world, other))
    assert world.checkpoints.list_keys() == []
    assert world.ask(range(40)).computed == 40


def test_who_does_not_know_what_is_used_leaves_it_alone(world: ValueWorld):
    """As does the dataset that a view is: `lake["view"].collect_garbage()`."""
    known = (str(world.lake["view"].id), world.column_snapshot.dead[:0], time.time_ns() + 30 * DAY)
    assert gc.find_garbage(world.kept_in, *known).keys == []
    assert world.lake["view"].collect_garbage().keys == []


def test_checkpoints_of_dead_records_alone_go_when_they_are_old(world: ValueWorld):
    world.dataset.delete([*range(10, 20), 25])
    assert ranges(garbage(world, in_use(world))) == ["range-10-20"]
    assert garbage(world, in_use(world), later=0).keys == []


def test_checkpoints_of_purged_records_go_at_once(world: ValueWorld):
    world.write(range(40, 60))
    world.ask(range(60), **SMALL)
    world.dataset.delete([39])
    world.dataset.purge(40)
    found = garbage(world, in_use(world), later=0)
    assert ranges(found) == ["range-0-10", "range-10-20", "range-20-30", "range-30-40"]
    gc.remove_garbage(found)
    got = world.ask(range(40, 60))
    assert (got.called, taken(got, range(40, 60))) == (0, tens(range(40, 60)))


def test_purging_the_view_does_not_take_the_source_s_offsets_for_its_own(world: ValueWorld):
    view = world.lake["view"]
    view.write(world.dataset.to_arrow())
    view.add_column("c", fm.udf(returns="int64", version="1", inputs=["v"])(lambda v: v), fragment_rows=8)
    view.write(world.dataset.to_arrow())
    before = world.checkpoints.list_keys()
    assert view.purge(40).before == 40
    assert world.checkpoints.list_keys() == before
    assert view.verify().problems == ()
    assert view.collect_garbage().checkpoints == ()
    assert world.ask(range(40)).called == 0
