"""Whatever results come in whatever order, a derivative holds what a dictionary of the newest results holds."""

from __future__ import annotations

import random

import pytest

import floodmark as fm
from derive.derived_worlds import Row, World, in_order, row
from floodmark.ledger import snapshot as snapshots
from floodmark.rows import key_index_loader as key_index
from floodmark.storage.memory import MemoryStore
from limits import set_limit
from profiles import sample, seeds

KEYS = [None, *range(25)]
ONE_TO_ONE, ONE_TO_MANY = ("k",), ("k", "part")


def some_results(rng: random.Random, key: tuple[str, ...], keys: list[int | None]) -> dict[int | None, list[Row]]:
    """For each key what a function might return: nothing, the same as ever, something new."""
    parts = ["a"] if key == ONE_TO_ONE else ["a", "b", "c", "d"]
    return {k: [row(k, part, rng.randrange(4)) for part in parts if rng.random() < 0.6] for k in keys}


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("key", [ONE_TO_ONE, ONE_TO_MANY])
@pytest.mark.parametrize("slice_bytes", [64 << 20, 300])
@pytest.mark.parametrize("seed", seeds(1))
def test_output_holds_the_newest_result_of_every_key_and_every_past_can_be_read(
    memory_lake, clock, tmp_path, monkeypatch, key, slice_bytes, seed
):
    set_limit(monkeypatch, "derive.slice_bytes", slice_bytes)
    rng = random.Random(seed)
    world = World(memory_lake, tmp_path / "results", key)
    naive: dict[int | None, list[Row]] = {}
    past: dict[int, list[Row]] = {0: []}  # by the offset after it
    for _ in range(8):
        chosen = rng.sample(KEYS, rng.choice([1, 5, 20]))
        results = some_results(rng, key, chosen)
        before = in_order(r for rows in naive.values() for r in rows)
        naive |= results
        expected = in_order(r for rows in naive.values() for r in rows)
        rows = [r for rows in results.values() for r in rows]
        rng.shuffle(rows)
        commit = world.derive(rows, chosen).commit
        clock.tick()
        assert world.rows() == expected
        assert world.output.count() == len(expected)
        assert (commit.new, commit.changed, commit.retracted, commit.unchanged) == counted(before, expected, chosen)
        past[commit.end] = expected
    ends = sorted(past)
    for offset in sample(range(-1, max(past)), 15):  # inside a transaction: what was before it
        assert world.rows(as_of=offset) == past[max(end for end in ends if end <= offset + 1)]
    assert world.output.verify().problems == ()


def counted(before: list[Row], after: list[Row], processed: list[int | None]) -> tuple[int, int, int, int]:
    """New, changed, retracted and unchanged rows of the processed keys."""
    old = {(r["k"], r["part"]): r for r in before if r["k"] in processed}
    new = {(r["k"], r["part"]): r for r in after if r["k"] in processed}
    both = old.keys() & new.keys()
    changed = sum(old[k] != new[k] for k in both)
    return len(new.keys() - old), changed, len(old.keys() - new), len(both) - changed


@pytest.mark.parametrize("key", [ONE_TO_ONE, ONE_TO_MANY])
def test_key_index_of_a_derivative_is_made_again_from_its_records(lake, tmp_path, key):
    world = World(lake, tmp_path / "results", key)
    world.derive([row(1, "a", 1), row(2, "a", 1)], [1, 2])
    world.derive([row(2, "a", 2)], [1, 2])
    objects = world.output.snapshot().objects
    for info in [*objects.key_files(), *objects.key_manifests()]:
        objects.store.delete(info.key)
    rebuilt = key_index.rebuild(snapshots.load_snapshot(objects, world.output.head, {}), {})
    assert rebuilt.live_count == 1
    world.cache.clear()
    assert world.derive([], [2]).commit.retracted == 1
    assert world.rows() == []


def test_results_go_into_a_bucket_as_into_a_folder(tmp_path, clock):
    lake = fm.Lake(MemoryStore(), runtime=fm.Runtime(clock=clock))
    world = World(lake, tmp_path / "results", ONE_TO_MANY)
    world.derive([row(1, "a", 1), row(1, "b", 1), row(2, "a", 5)], [1, 2], world.moved_input())
    commit = world.derive([row(1, "b", 2)], [1]).commit
    assert (commit.changed, commit.retracted) == (1, 1)
    assert world.rows() == [row(1, "b", 2), row(2, "a", 5)]
    assert list((tmp_path / "results").iterdir()) == []  # they are objects there
    assert world.output.verify().ok


def test_folded_and_asked_by_key_a_derivative_answers_like_any_dataset(lake, tmp_path):
    world = World(lake, tmp_path / "results", ONE_TO_MANY)
    world.derive([row(k, part, k) for k in range(20) for part in "ab"], range(20))
    world.derive([row(k, "b", k + 1) for k in range(10)], range(10))
    before = world.rows()
    world.output.fold()
    assert world.rows() == before
    assert in_order(world.output.get([{"k": 3}, {"k": 15}]).to_pylist()) == [r for r in before if r["k"] in (3, 15)]
    assert world.output.history([{"k": 3, "part": "a"}]).column("op").to_pylist() == [0, 1]
    assert lake.sql("SELECT count(*) AS n FROM output").to_pylist() == [{"n": 30}]
    changes = world.output.changes_arrow(since=39)
    assert changes.num_rows == 10 + 2 * 10  # ten retracted, ten changed
    assert world.output.verify().ok
