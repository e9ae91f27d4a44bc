"""One task: which checkpoints it stores, when it writes the file itself, and when it gives the rest back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyroaring import BitMap
from tests.columns.tasks import Stopwatch, World, world

import floodmark as fm
from floodmark.columns.checkpoints import find_data, find_ranges
from floodmark.columns.task import compute_share
from floodmark.derive.checkpoint_key import parse_key


def slow(clock: Stopwatch, seconds_per_row: float, calls: list[list[int]] | None = None) -> fm.Udf:
    def twice(n: pa.Array) -> pa.Array:
        clock.now += seconds_per_row * len(n)
        if calls is not None:
            calls.append(n.to_pylist())
        return pc.multiply(n, 2)

    return fm.udf(returns="int64", version="1")(twice)


def stored(found: World) -> list[tuple[int, int, list[int]]]:
    work = found.work
    return [
        (c.start, c.end, sorted(c.rows)) for c in find_ranges(work.objects.checkpoints, work.prefix, 0, work.column)
    ]


def test_a_quick_task_writes_the_file_itself_and_no_checkpoints(tmp_path: Path) -> None:
    clock = Stopwatch()
    found = world(tmp_path, slow(clock, 0.001), 500)
    done = compute_share(found.work, found.task(), clock)
    assert (done.computed, done.called, done.checkpoints, list(done.rest)) == (500, 500, (), [])
    assert done.written is not None
    assert (done.written.segment.start, done.written.segment.end) == (0, 500)
    assert stored(found) == []
    [noted] = find_data(found.work.objects.checkpoints, found.work.prefix, 0)
    assert sorted(noted.done) == list(range(500))


def test_a_slow_task_stores_checkpoints_of_about_the_target_duration(tmp_path: Path) -> None:
    clock = Stopwatch()
    found = world(tmp_path, slow(clock, 1.0), 100)
    done = compute_share(found.work, found.task(), clock)
    assert done.written is None
    spans = [(c.offset, c.offset + c.span) for c in done.checkpoints]
    assert spans[0][0] == 0
    assert spans[-1][1] == 100
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert [end - start for start, end in spans[2:-1]] == [10] * len(spans[2:-1])
    assert [row for _, _, rows in stored(found) for row in rows] == list(range(100))


def test_a_first_slow_call_does_not_make_a_quick_function_slow(tmp_path: Path) -> None:
    clock = Stopwatch()
    first = []

    def load_then_twice(n: pa.Array) -> pa.Array:
        clock.now += 0.5 if not first else 1e-6 * len(n)
        first.append(1)
        return pc.multiply(n, 2)

    found = world(tmp_path, fm.udf(returns="int64", version="1")(load_then_twice), 2000)
    done = compute_share(found.work, found.task(), clock)
    assert done.written is not None


def test_sizes_that_are_fixed_are_kept(tmp_path: Path) -> None:
    clock = Stopwatch()
    calls: list[list[int]] = []
    found = world(tmp_path, slow(clock, 0.0, calls), 25)
    done = compute_share(found.work, found.task(minimum=10, maximum=10), clock)
    assert [c.num_rows for c in done.checkpoints] == [10, 10, 5]
    assert [len(call) for call in calls] == [10, 10, 5]


def test_what_an_earlier_attempt_has_stored_is_not_computed_again(tmp_path: Path) -> None:
    clock = Stopwatch()

    class Died(KeyboardInterrupt):
        pass

    def dies(n: pa.Array) -> pa.Array:
        if 20 in n.to_pylist():
            raise Died
        return pc.multiply(n, 2)

    found = world(tmp_path, fm.udf(returns="int64", version="1")(dies), 30)
    with pytest.raises(Died):
        compute_share(found.work, found.task(minimum=10, maximum=10), clock)
    calls: list[list[int]] = []
    again = world(tmp_path, slow(clock, 0.0, calls), 30)
    done = compute_share(again.work, found.task(minimum=10, maximum=10), clock)
    assert calls == [list(range(20, 30))]
    assert done.computed == 10
    assert sorted(c.offset for c in done.checkpoints) == [0, 10, 20]


def test_rows_that_an_earlier_attempt_of_the_same_run_stored_count_as_computed(tmp_path: Path) -> None:
    clock = Stopwatch()
    found = world(tmp_path, slow(clock, 0.0), 30)
    task = replace(found.task(minimum=10, maximum=10), direct=None)
    compute_share(found.work, task, clock)
    assert (compute_share(found.work, task, clock).computed, compute_share(found.work, task, clock).called) == (30, 30)
    others = replace(found.work, run="another")
    assert (compute_share(others, task, clock).computed, compute_share(others, task, clock).called) == (0, 0)


def test_rows_tried_again_do_not_push_others_out_of_their_checkpoint(tmp_path: Path) -> None:
    clock = Stopwatch()
    found = world(tmp_path, slow(clock, 0.0), 8)
    task = replace(found.task(minimum=8, maximum=8), direct=None)
    compute_share(found.work, task, clock)
    again = replace(task, share=replace(task.share, rows=BitMap([0, 7])), again=BitMap([0, 7]))
    assert compute_share(found.work, again, clock).called == 2
    assert stored(found) == [(0, 8, list(range(8)))]


def test_a_task_that_will_take_long_gives_back_what_it_has_not_begun(tmp_path: Path) -> None:
    clock = Stopwatch()
    found = world(tmp_path, slow(clock, 1.0), 100)
    done = compute_share(found.work, found.task(patience=2.0), clock)
    computed = [row for _, _, rows in stored(found) for row in rows]
    assert 0 < len(computed) < 20
    assert sorted([*computed, *done.rest]) == list(range(100))
    assert done.computed == len(computed)


def test_a_task_that_ends_soon_is_finished_even_when_patience_has_ended(tmp_path: Path) -> None:
    clock = Stopwatch()
    found = world(tmp_path, slow(clock, 0.05), 100)
    assert compute_share(found.work, found.task(patience=0.0), clock).written is not None


def test_a_checkpoint_that_takes_far_too_long_is_stored_as_it_is(tmp_path: Path) -> None:
    clock = Stopwatch()

    def slows_down(n: pa.Array) -> pa.Array:
        clock.now += sum(100.0 if row >= 100 else 0.1 for row in n.to_pylist())
        return pc.multiply(n, 2)

    found = world(tmp_path, fm.udf(returns="int64", version="1")(slows_down), 300)
    done = compute_share(found.work, found.task(maximum=200, start=100), clock)
    late = [c for c in done.checkpoints if c.offset >= 100]
    assert late[0].num_rows <= 25  # a quarter of the size that the speed before had asked for


def test_keys_say_what_a_checkpoint_covers(tmp_path: Path) -> None:
    clock = Stopwatch()
    found = world(tmp_path, slow(clock, 0.0), 12)
    compute_share(found.work, found.task(minimum=8, maximum=8), clock)
    parsed = [parse_key(key) for key in found.dataset.checkpoints.list_keys()]
    assert [(p.fragment, p.kind, p.start, p.end) for p in parsed if p] == [(0, "range", 0, 8), (0, "range", 8, 12)]
