"""Limited runs: what changed comes first, what failed has a share, and neither waits for ever."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from floodmark.storage.arrays import Hashes
from floodmark.transforms.changelist import apply_limit
from floodmark.transforms.live_keys import NOT_PENDING, PendingKeys
from profiles import seeds
from transforms.worlds import MAP, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two keys that come first in every order, and fail."""
    world = make_world(MAP, tmp_path)
    world.write("a", (0, 0), (1, 1))
    world.calls.fail((0,), (1,))
    world.run()
    return world


@pytest.mark.slow
@pytest.mark.parametrize(("order_by", "most"), [(None, 1), ("id", 2), ("id", 3)])
def test_keys_that_fail_for_ever_do_not_hold_up_new_ones(order_by: str | None, most: int, world: World) -> None:
    world.write("a", *[(n, n) for n in range(10, 16)])

    for _ in range(12):
        world.run(order_by=order_by, run={"max_records": most})

    assert sorted(world.shown("w")) == list(range(10, 16))


@pytest.mark.slow
@pytest.mark.parametrize(("order_by", "most"), [(None, 1), ("id", 2), ("-id", 3), (None, 8)])
def test_keys_that_would_succeed_now_are_tried_though_there_is_always_more_to_do(
    order_by: str | None, most: int, world: World
) -> None:
    world.calls.behave()

    for number in range(12):
        world.write("a", *[(100 * number + n, n) for n in range(10, 10 + most)])
        world.run(order_by=order_by, run={"max_records": most})

    assert {0, 1} <= set(world.shown("w"))


@pytest.mark.slow
def test_each_of_many_failing_keys_has_its_turn(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", *[(n, n) for n in range(5)])
    world.calls.fail(*[(n,) for n in range(5)])
    world.run()
    tried = set()

    for number in range(5):
        world.write("a", *[(100 * number + n, n) for n in range(10, 20)])
        world.run(run={"max_records": 4})
        tried |= {key for key in world.calls.count() if key < (5,)}

    assert len(tried) == 5


def test_keys_that_only_failed_come_after_those_that_changed_in_every_order(world: World) -> None:
    world.write("a", (5, 5), (4, 4))

    assert world.changelist(order_by="id") == [(4,), (5,), (0,), (1,)]
    assert world.changelist(order_by="-id") == [(5,), (4,), (1,), (0,)]


def _pending(seed: random.Random) -> PendingKeys:
    count = seed.randrange(0, 12)
    failed = np.array([seed.random() < 0.5 for _ in range(count)], np.bool_)
    first = np.where(failed, NOT_PENDING, np.arange(count)).reshape(count, 1)
    tried = np.where(failed, np.array([seed.randrange(4) for _ in range(count)], np.int64), 0)
    halves = np.arange(count, dtype=np.uint64)
    keys = pa.table({"k": pa.array(range(count), pa.int64())})
    why = pa.array(["failed" if one else "new" for one in failed], pa.string())
    return PendingKeys(keys, Hashes(halves, halves), first, first, first[:, 0], failed, tried, why)


@pytest.mark.soak
def test_shares_of_a_limit_are_what_they_are_said_to_be() -> None:
    for number in seeds(200):
        _check_shares(random.Random(number))


def _check_shares(seed: random.Random) -> None:
    pending = _pending(seed)
    most, turn = seed.randrange(1, 14), seed.randrange(8)
    order = np.argsort(pending.is_failed, kind="stable")
    is_failed = pending.is_failed.tolist()
    changed = [k for k in order.tolist() if not is_failed[k]]
    failed = sorted((k for k in order.tolist() if is_failed[k]), key=lambda k: pending.tried[k])

    chosen = apply_limit(pending, order, most, turn).tolist()

    mine = [k for k in chosen if is_failed[k]]
    others = [k for k in chosen if not is_failed[k]]
    assert len(chosen) == min(most, len(order)), "the limit is used up"
    assert chosen == [k for k in order.tolist() if k in chosen], "in order"
    assert others == changed[: len(others)]
    assert set(mine) == set(failed[: len(mine)])
    if changed and failed and len(chosen) < len(order):
        if most > 1:
            assert mine, "they have a share"
            assert others
        if len(others) < len(changed):
            assert len(mine) <= max(1, most // 4)
