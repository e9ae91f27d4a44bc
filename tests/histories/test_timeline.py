"""Rounds of writes, corrections, folds and failures in any order: after each the timeline is the sorted ledger."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import floodmark as fm
from floodmark.timeline import settings as units
from histories.time_oracle import assert_right
from profiles import IN_FULL, sample, seeds
from timeline.layouts import assert_folded, assert_sound, purge_problems
from timeline.timeline_worlds import BEFORE_1970, BEGIN, TIMES, UNITS, Shape, World, moment

# What can happen in a round


def narrow_cluster(world: World) -> None:
    """Rows within a hundredth of a partition, anywhere."""
    shape = world.shape
    low = shape.begin + world.chance.randrange(shape.extent)
    world.write(world.table(world.times(low, low + max(1, shape.partition // 100), world.chance.randint(1, 60))))


def full_partition(world: World) -> None:
    """Rows all over one partition: the full day."""
    low = world.shape.begin + world.chance.randrange(3) * world.shape.partition
    world.write(world.table(world.times(low, low + world.shape.partition, world.chance.randint(20, 250))))


def half_partition(world: World) -> None:
    """The first or the second half of one."""
    half = world.shape.partition // 2
    low = world.shape.begin + world.chance.randrange(6) * half
    world.write(world.table(world.times(low, low + half, world.chance.randint(10, 120))))


def random_range(world: World) -> None:
    """Rows between any two times, over several partitions as like as not."""
    shape = world.shape
    low, high = sorted(shape.begin + world.chance.randrange(shape.extent) for _ in range(2))
    world.write(world.table(world.times(low, high + 1, world.chance.randint(1, 150))))


def in_order(world: World) -> None:
    """Rows in their order, beyond most of what is there."""
    shape = world.shape
    low = shape.begin + shape.extent - shape.partition // 4 + world.used * (shape.partition // 4000)
    high = low + shape.partition // 100 + 1
    world.write(world.table(sorted(world.times(low, high, world.chance.randint(1, 130)))))


def one_row(world: World) -> None:
    low = world.shape.begin
    world.write(world.table([low + world.chance.randrange(world.shape.extent)]))


def one_moment(world: World) -> None:
    """More rows of one time than a row group has."""
    at = world.shape.begin + world.chance.randrange(4) * (world.shape.partition // 3)
    world.write(world.table([at] * world.chance.choice([1, 30, 130])))


def added_column(world: World) -> None:
    name = f"c{len(world.columns)}"
    if len(world.columns) < 3 and world.dataset.schema is not None:
        world.dataset.evolve({name: "string"})
        world.columns = (*world.columns, name)
    random_range(world)


def correction(world: World) -> None:
    """Rows that are there get other values, and half of them another event time."""
    ids = _some(world)
    shape, chance = world.shape, world.chance
    times = [world.current[i] if chance.random() < 0.5 else shape.begin + chance.randrange(shape.extent) for i in ids]
    world.write(world.table(times, ids))


def same_rows_again(world: World) -> None:
    """Nothing changes, and nothing is written."""
    rows = world.dataset.to_arrow() if world.dataset.schema is not None else None
    if rows is not None and rows.num_rows:
        before = world.dataset.timeline_root() if world.shape.mode == "eager" else None
        head = world.dataset.last_offset
        world.dataset.write(rows.slice(0, 20))
        assert world.dataset.last_offset == head
        if before is not None and before.applied == (head or 0) + 1:
            assert world.dataset.timeline_root() == before


def retraction(world: World) -> None:
    if ids := _some(world):
        world.dataset.delete(ids)
        for i in ids:
            del world.current[i]


def purge(world: World) -> None:
    last = world.dataset.last_offset
    if last:
        world.dataset.purge(before=world.chance.randint(0, last // 2))
        there = set(world.dataset.to_arrow(columns=["id"])["id"].to_pylist())
        world.current = {i: t for i, t in world.current.items() if i in there}
        assert purge_problems(world.dataset) == []


def collect(world: World) -> None:
    """Eight days later what nothing needs is removed, and nothing else."""
    world.reopen(later=8 * 86_400)
    world.dataset.collect_garbage()
    objects = world.dataset.snapshot().objects
    used = {p.file for each in world.dataset.timeline_pieces().partitions for p in each.pieces}
    files = objects.store.list(f"{objects.folder}/info/timeline/files")
    assert {info.key.removeprefix(f"{objects.folder}/") for info in files} <= used, "garbage is left"
    world.reopen()


def fold(world: World) -> None:
    if world.dataset.schema is not None:
        world.dataset.fold()
        assert_folded(world.dataset)


def fold_partition(world: World) -> None:
    there = world.dataset.timeline_stats().partitions
    if there:
        label = world.chance.choice(there).label
        world.dataset.fold(label)
        assert_folded(world.dataset, label)


def update(world: World) -> None:
    if world.dataset.schema is not None:
        world.dataset.update_timeline()
        assert world.dataset.timeline_root().applied == world.dataset.snapshot().next_offset
        assert world.dataset.update_timeline() is None, "what is up to date was brought up to date again"


def reopen(world: World) -> None:
    world.reopen()


def failing_write(world: World) -> None:
    """The timeline's files cannot be read or written for a while: the write stands, and warns."""
    with _trouble(world, "/info/timeline/"):
        world.chance.choice(WRITES)(world)


def failing_store(world: World) -> None:
    """Anything may fail: a write that is refused is not there, one that is done is."""
    with _trouble(world, ""), suppress(fm.FloodmarkError):
        world.chance.choice(WRITES)(world)
    world.reopen()
    if world.shape.kind != "append" and world.dataset.schema is not None:
        rows = world.dataset.to_arrow(columns=["id", "at"])
        world.current = {}
        world.note(rows)


def failing_fold(world: World) -> None:
    if world.dataset.schema is not None:
        with _trouble(world, "/info/timeline/"), suppress(fm.FloodmarkError):
            world.dataset.fold()


def failing_update(world: World) -> None:
    if world.dataset.schema is not None:
        with _trouble(world, "/info/timeline/"), suppress(fm.FloodmarkError):
            world.dataset.update_timeline()


def lost_root(world: World) -> None:
    """The root is gone or not what was written: all is read from the ledger until the next update."""
    objects = world.dataset.snapshot().objects
    key = f"{objects.folder}/info/timeline/root"
    if objects.store.stat(key) is not None:
        damaged = bytearray(objects.store.get(key))
        objects.store.delete(key)
        if world.chance.random() < 0.5:
            damaged[world.chance.randrange(len(damaged))] ^= 1 << world.chance.randrange(8)
            objects.store.put_derived(key, bytes(damaged))


WRITES: list[Callable[[World], None]] = [
    narrow_cluster,
    narrow_cluster,
    full_partition,
    half_partition,
    random_range,
    in_order,
    one_row,
    one_moment,
]
KEYED = [correction, correction, same_rows_again, retraction]
OTHERS = [added_column, fold, fold_partition, update, reopen, purge, lost_root, collect]
FAILURES = [failing_write, failing_store, failing_fold, failing_update]


def _any_write(world: World) -> Callable[[World], None]:
    return world.chance.choice([*WRITES, *(KEYED if world.shape.kind == "upsert" else [])])


def _some(world: World) -> list[int]:
    return world.chance.sample(sorted(world.current), min(len(world.current), world.chance.randint(1, 60)))


@contextmanager
def _trouble(world: World, where: str) -> Iterator[None]:
    chance = world.chance
    world.store.strike(chance.randrange(14), chance.choice([1, 1, 1000]), where, done=chance.random() < 0.5)
    try:
        yield
    finally:
        world.store.calm()


# Rounds


def play(world: World, rounds: int) -> Iterator[str]:
    """Do something by chance again and again, and compare after each time; says what was done."""
    full_partition(world)
    for number in range(rounds):
        kinds = [(_any_write(world), 6), (world.chance.choice(OTHERS), 3), (world.chance.choice(FAILURES), 1)]
        does = world.chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        yield f"round {number}: {does.__name__}"
        does(world)
        compare(world)


def compare(world: World) -> None:
    dataset = world.dataset
    assert_right(dataset, *(world.range() for _ in range(2)), *_aligned(world))
    assert dataset.timeline_batches().schema.names == dataset.schema.names
    assert_sound(dataset)
    stats = dataset.timeline_stats()
    assert stats.behind == dataset.snapshot().next_offset - stats.applied
    for each in dataset.timeline_pieces().partitions:
        most = 4 * each.rows / world.shape.row_group_size + 100
        assert len(each.settled) <= most, f"{len(each.settled)} settled pieces of {each.rows} rows"


def _aligned(world: World) -> list[tuple[object, object]]:
    """A range that begins and ends where partitions do."""
    time = world.shape.begin + world.chance.randrange(world.shape.extent)
    start = int(units.partition_starts(np.array([time], np.int64), world.shape.unit)[0])
    return [(moment(start), moment(units.partition_end(start, world.shape.unit)))]


SHAPES = [
    Shape(),
    Shape(late_merge="always"),
    Shape(kind="upsert"),
    Shape(kind="upsert", late_merge="always"),
    Shape(mode="lazy"),
    Shape(kind="upsert", mode="lazy", late_merge="always", time="ms"),
    Shape(unit="hour", time="us", kind="upsert"),
    Shape(unit="week", time="date32", begin=BEFORE_1970),
    Shape(unit="month", time="us berlin", kind="ledger", begin=BEFORE_1970),
    Shape(unit="year", time="date64", kind="upsert"),
    Shape(unit="hour", time="s", late_merge="always"),
    Shape(row_group_size=2, kind="upsert"),
    Shape(row_group_size=7, time="ns", unit="month"),
]
ROUNDS = 28 if IN_FULL else 8


def run(shape: Shape, seed: int, rounds: int, folder: Path) -> None:
    story: list[str] = []
    try:
        for line in play(World(shape, folder, random.Random(seed)), rounds):
            story.append(line)  # noqa: PERF402  what was done before it failed is told, too
    except BaseException as error:
        error.add_note(f"shape {shape}, seed {seed}; rounds so far:\n  " + "\n  ".join(story))
        raise


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("shape", sample(SHAPES, 3), ids=str)
def test_timeline_is_the_sorted_ledger_after_each_round(shape, seed, tmp_path):
    run(shape, seed, ROUNDS, tmp_path / "lake")


@pytest.mark.soak
@pytest.mark.parametrize(("unit", "time"), sample(itertools.product(UNITS, TIMES), 6))
def test_every_unit_goes_with_every_type_of_event_time(unit, time, tmp_path):
    """Before 1970, where remainders are easily got wrong, and after it."""
    shape = Shape(unit, time, begin=BEFORE_1970 - UNITS[unit])
    world = World(shape, tmp_path / "lake", random.Random(3))
    for _ in range(2):
        random_range(world)
        full_partition(world)
        compare(world)


def any_shape(chance: random.Random) -> Shape:
    return Shape(
        unit=chance.choice(list(UNITS)),
        time=chance.choice(list(TIMES)),
        kind=chance.choice(["append", "upsert", "upsert", "ledger"]),
        late_merge=chance.choice(["auto", "auto", "always"]),
        mode=chance.choice(["eager", "eager", "lazy"]),
        row_group_size=chance.choice([1, 2, 7, 16, 50, 50, 100]),
        begin=chance.choice([BEGIN, BEGIN, BEFORE_1970]),
    )


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
def test_timeline_of_any_shape_is_the_sorted_ledger(seed, tmp_path):
    run(any_shape(random.Random(seed)), seed, ROUNDS, tmp_path / "lake")
