"""What other systems got wrong: each of these recomputed too much, too little, or lost what was there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from columns.counting import Plan, Waiting
from columns.worlds import FRAGMENT_ROWS, HUNDREDFOLD, TENFOLD, Crash, World, checkpoint_path
from floodmark.derive.checkpoint_key import parse_key
from floodmark.errors import FunctionFailed, UnreadableColumn
from limits import set_limit
from waiting import wait_until

SMALL = {"checkpoint_size": 2, "min_checkpoint_size": 2, "max_checkpoint_size": 2}
"""Checkpoints of exactly two rows."""


def tenfold_of(ids: Any) -> dict[int, int | None]:
    return {i: i * 10 for i in ids}


def next_one(a: int | None) -> int | None:
    return None if a is None else a + 1


# Rows


def test_row_updated_in_place_is_the_only_one_computed_again(world: World):
    world.write(range(20))
    world.add()
    world.backfill()
    world.write([7], [700])
    done = world.backfill()
    assert (done.computed, done.done) == (1, 19)
    assert world.values() == {**tenfold_of(range(20)), 7: 7000}
    [offset] = world.calls.offsets()
    assert world.dataset.to_batches(where=pc.field("offset") == offset).read_all()["id"].to_pylist() == [7]


def test_row_updated_back_to_an_old_value_is_computed_for_its_new_record(world: World):
    world.write(range(3))
    world.add()
    world.backfill()
    world.write([1], [5])
    world.write([1], [1])
    assert world.values() == {0: 0, 1: None, 2: 20}
    assert world.backfill().computed == 1
    assert world.values() == {0: 0, 1: 10, 2: 20}


def test_added_rows_are_the_only_ones_computed(world: World):
    world.write(range(10))
    world.add()
    world.backfill()
    world.write(range(10, 13))
    assert world.backfill().computed == 3
    assert world.values() == tenfold_of(range(13))


# Versions


def test_version_bump_computes_everything_once_and_then_reuses_again(world: World):
    world.write(range(20))
    world.add()
    world.backfill()
    world.alter(HUNDREDFOLD)
    assert world.values() == tenfold_of(range(20)), "old values are shown until they are replaced"
    assert world.backfill().computed == 20
    assert set(world.calls.count().values()) == {1}
    assert world.values() == {i: i * 100 for i in range(20)}
    assert world.backfill().computed == 0
    world.write([20])
    assert world.backfill().computed == 1


def test_version_that_comes_back_is_not_computed_again(world: World):
    world.write(range(20))
    world.add()
    world.backfill()
    world.alter(HUNDREDFOLD)
    world.backfill()
    world.alter(TENFOLD)
    done = world.backfill()
    assert (done.called, done.reused) == (0, 20)
    assert world.values() == tenfold_of(range(20))


def test_crash_in_the_middle_of_a_version_bump_keeps_old_values_and_resumes(world: World):
    world.write(range(24))
    world.add()
    world.backfill()
    world.alter(HUNDREDFOLD)
    world.calls.raise_at(12)
    world.calls.forget()
    with pytest.raises(FunctionFailed) as failed:
        world.backfill_only(commit_granularity=1, task_size=2, **SMALL)
    assert failed.value.offsets == (12,)
    world.calls.behave()
    seen = {i: (100 if i < FRAGMENT_ROWS else 10) * i for i in range(24)}
    assert world.values() == seen, "fragments are replaced one by one, each whole"
    before = world.calls.count()
    done = world.backfill()
    lost = before.keys() & world.calls.count().keys()
    # The other worker was in the middle of any other task of the fragment, or of none.
    assert len(lost - {12, 13}) <= 2, "at most one checkpoint for each of two workers"
    assert 24 - len(before.keys() - lost) == done.computed
    assert world.values() == {i: i * 100 for i in range(24)}


# The source and its files


@pytest.mark.slow
def test_fold_of_the_source_computes_nothing(world: World):
    for i in range(20):
        world.write([i])
    world.add()
    world.backfill()
    world.dataset.delete([3, 4, 5])
    assert world.dataset.fold().files > 0
    assert world.backfill().called == 0
    assert world.values() == tenfold_of(set(range(20)) - {3, 4, 5})


def test_added_base_column_computes_nothing(world: World):
    world.write(range(5))
    world.add()
    world.backfill()
    world.dataset.evolve({"note": "string"})
    assert world.backfill().called == 0
    assert world.values() == tenfold_of(range(5))


# Columns that come and go


def test_column_dropped_and_added_again_with_the_same_function_calls_nothing(world: World):
    world.write(range(20))
    world.add()
    world.backfill()
    world.dataset.drop_column("a")
    assert "a" not in world.dataset.to_arrow().column_names
    world.add()
    assert set(world.values().values()) == {None}
    done = world.backfill()
    assert (done.called, done.reused) == (0, 20)
    assert world.values() == tenfold_of(range(20))
    assert world.dataset.verify().problems == ()


def test_column_added_again_with_another_function_gets_none_of_the_old_values(world: World):
    world.write(range(20))
    world.add()
    world.backfill()
    world.dataset.drop_column("a")
    world.add(HUNDREDFOLD)
    assert world.backfill().computed == 20
    assert world.values() == {i: i * 100 for i in range(20)}


# What is stored and not committed


@pytest.mark.parametrize("sizes", [{}, SMALL, {"task_size": 3}], ids=["one file", "checkpoints", "small tasks"])
def test_fragments_that_are_computed_but_not_committed_call_nothing(sizes, world: World):
    world.write(range(20))
    world.add()
    with world.lake.store.crash_at(world.objects.catalog_key), pytest.raises(Crash):
        world.backfill_only(**sizes)
    assert world.calls.count().total() == 20
    assert set(world.values().values()) == {None}, "nothing is visible before its commit"
    done = world.backfill()
    assert (done.called, done.reused) == (0, 20)
    assert world.values() == tenfold_of(range(20))


HARM: dict[str, Callable[[bytes, bytes], bytes]] = {
    "truncated": lambda data, _: data[: len(data) // 2],
    "empty": lambda data, _: b"",
    "foreign": lambda _, other: other,
    "changed": lambda data, _: data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
    "garbage": lambda data, _: b"PAR1" * 100,
}


@pytest.mark.parametrize("how", HARM)
def test_bad_checkpoint_costs_its_own_range_only(how, world: World, caplog):
    world.write(range(20))
    world.add()
    with world.lake.store.crash_at("/files/"), pytest.raises(Crash):
        world.backfill_only(**SMALL)
    ranges = [key for key in world.checkpoint_keys() if key.endswith("_frag-1_range-2-4")]
    store, checkpoints = world.objects.store, world.objects.checkpoints
    [path] = [checkpoint_path(checkpoints, key) for key in ranges]
    other = checkpoint_path(
        checkpoints, next(key for key in world.checkpoint_keys() if key.endswith("_frag-0_range-2-4"))
    )
    store.put_derived(path, HARM[how](store.get(path), store.get(other)))
    done = world.backfill(**SMALL)
    assert sorted(world.calls.offsets()) == [10, 11]
    assert (done.computed, done.reused) == (2, 18)
    assert world.values() == tenfold_of(range(20))
    assert "frag-1_range-2-4" in caplog.text, "who looks for the reason finds it in the log"


# Deletes


def test_rows_deleted_before_a_backfill_are_not_computed(world: World):
    world.write(range(20))
    world.dataset.delete([0, 7, 8, 9, 19])
    world.add()
    left = set(range(20)) - {0, 7, 8, 9, 19}
    assert world.backfill(**SMALL).computed == 15
    assert set(world.calls.offsets()) == left, "records of deletions have offsets, too, and are no rows"
    assert world.values() == tenfold_of(left)


def test_rows_deleted_and_updated_during_a_backfill_change_nothing_for_the_others(world: World):
    world.write(range(20))
    world.add()
    world.calls.wait_at(10)
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(world.backfill, **SMALL)
        world.calls.await_rows(9)
        world.dataset.delete([3, 10])
        world.write([4, 40], [400, 40])
        world.calls.go_on()
        done = running.result()
    assert done.computed == 20, "it works on the rows that there were when it began"
    left = set(range(20)) - {3, 10}
    assert world.values() == {**tenfold_of(left), 4: None, 40: None}
    assert world.backfill().computed == 2
    assert world.values() == {**tenfold_of(left), 4: 4000, 40: 400}


def test_rows_deleted_between_backfills_cost_nothing_and_do_not_shift_others(world: World):
    world.write(range(20))
    world.add()
    world.backfill()
    world.dataset.delete([0, 1, 2, 12])
    assert world.backfill().called == 0
    world.write([0, 20])
    assert world.backfill().computed == 2
    assert world.values() == tenfold_of({*range(3, 12), *range(13, 20), 0, 20})
    assert world.dataset.verify().problems == ()


def test_rows_deleted_between_a_crash_and_its_resumption_are_left_out(world: World):
    world.write(range(20))
    world.add()
    with world.lake.store.crash_at("/files/"), pytest.raises(Crash):
        world.backfill_only(**SMALL)
    world.dataset.delete([3, 10, 11])
    done = world.backfill(**SMALL)
    assert (done.called, done.reused) == (0, 17)
    assert world.values() == tenfold_of(set(range(20)) - {3, 10, 11})


def test_deleted_rows_are_not_shown_when_only_a_computed_column_is_asked_for(world: World):
    world.write(range(6))
    world.add()
    world.backfill()
    world.dataset.delete(list(range(6)))
    assert world.lake.sql("select count(a) as n from d").to_pylist() == [{"n": 0}]
    assert world.dataset.to_batches(["a"]).read_all().num_rows == 0
    assert world.backfill().called == 0


# Filters


def test_fragment_that_a_filter_leaves_out_wholly_is_not_touched(world: World):
    world.write(range(24))
    world.add()
    done = world.backfill(where="v < 8 or v >= 16")
    assert (done.computed, done.commits) == (16, 1)
    assert world.values() == {i: None if 8 <= i < 16 else i * 10 for i in range(24)}
    assert world.backfill(where="v > 1000").called == 0
    assert world.backfill().computed == 8
    assert world.values() == tenfold_of(range(24))


def test_filtered_backfill_keeps_old_values_elsewhere(world: World):
    world.write(range(20))
    world.add()
    world.backfill()
    world.alter(HUNDREDFOLD)
    assert world.backfill(where="v % 2 = 0").computed == 10
    assert world.values() == {i: i * 100 if i % 2 == 0 else i * 10 for i in range(20)}
    done = world.backfill()
    assert (done.computed, done.done) == (10, 10)
    assert world.values() == {i: i * 100 for i in range(20)}


def test_filter_on_the_column_itself_sees_what_is_there_when_the_backfill_begins(world: World):
    world.write(range(10))
    world.add()
    world.backfill(where="v < 5")
    assert world.backfill(where="a is null").computed == 5
    assert world.backfill(where="a is null").called == 0
    assert world.values() == tenfold_of(range(10))


# Stragglers and others at the same time


@pytest.mark.process
def test_straggler_does_not_hold_up_what_is_stored_and_is_all_that_is_left(world: World):
    world.write(range(40))
    world.add()
    world.calls.wait_at(0)
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(world.backfill_only, task_size=2, **SMALL)
        wait_until(lambda: set(world.calls.offsets()) == set(range(40)))
        wait_until(lambda: len(_stored(world)) == 38)
        assert not running.done()
        world.calls.raise_at(0)  # the straggler fails after all others are done
        world.calls.go_on()
        with pytest.raises(FunctionFailed):
            running.result()
    world.calls.behave()
    done = world.backfill()
    assert sorted(world.calls.offsets()) == [0, 1]
    assert (done.computed, done.reused) == (2, 38)
    assert world.values() == tenfold_of(range(40))


def _stored(world: World) -> set[int]:
    """The offsets that lie in range checkpoints."""
    found: set[int] = set()
    for key in world.checkpoint_keys():
        parsed = parse_key(key)
        if parsed is not None and parsed.kind == "range":
            base = parsed.fragment * FRAGMENT_ROWS
            found |= set(range(base + parsed.start, base + parsed.end))
    return found


def waiting_backfill(world: World, progress: Waiting) -> fm.BackfillReport:
    lake = fm.Lake(world.lake.store, runtime=fm.Runtime(progress=lambda: progress))
    return lake["d"].backfill("a", udf=world.functions["a"], task_size=3)


def test_two_backfills_at_once_compute_every_row_once(world: World, monkeypatch):
    set_limit(monkeypatch, "turns.silence", 0.05)
    progress = Waiting()
    world.write(range(40))
    world.add()
    world.calls.wait_at(20)
    with ThreadPoolExecutor(2) as both:
        one = both.submit(world.backfill_only, task_size=3, **SMALL)
        wait_until(lambda: 20 in world.calls.offsets())
        other = both.submit(waiting_backfill, world, progress)
        wait_until(lambda: progress.waits or world.calls.repeated or other.done())
        world.calls.go_on()
        done = [one.result().computed, other.result().computed]
    assert world.calls.count() == dict.fromkeys(range(40), 1)
    assert done == [40, 0]
    assert world.values() == tenfold_of(range(40))


OTHER = """
import sys
from pathlib import Path
import floodmark as fm
from columns.worlds import TENFOLD
from columns.counting import Calls

udf = TENFOLD.udf(Calls(Path(sys.argv[2])))
print(fm.Lake(sys.argv[1])["d"].backfill("a", udf=udf, task_size=3).computed)
"""


@pytest.mark.process
def test_two_processes_that_backfill_at_once_compute_every_row_once(world: World, monkeypatch):
    set_limit(monkeypatch, "turns.silence", 0.05)
    progress = Waiting()
    world.write(range(40))
    world.add()
    world.calls.wait_at(20)
    command = [sys.executable, "-c", OTHER, str(world.lake.store.url), str(world.calls.folder)]
    with (
        ThreadPoolExecutor(1) as beside,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as other,
    ):
        world.calls.await_rows(1)
        running = beside.submit(waiting_backfill, world, progress)
        wait_until(lambda: progress.waits or world.calls.repeated or running.done())
        world.calls.go_on()
        said, _ = other.communicate()
        done = running.result()
    assert world.calls.count() == dict.fromkeys(range(40), 1)
    assert (int(said), done.computed) == (40, 0)
    assert world.values() == tenfold_of(range(40))


def test_alteration_during_a_backfill_wins(world: World):
    world.write(range(10))
    world.add()
    world.calls.wait_at(5)
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(world.backfill_only)
        world.calls.await_rows(6)
        world.alter(HUNDREDFOLD)
        world.calls.go_on()
        with pytest.raises(fm.FloodmarkError, match="another function"):
            running.result()
    assert set(world.values().values()) == {None}
    assert world.backfill().computed == 10
    assert world.values() == {i: i * 100 for i in range(10)}


# Counting


@pytest.mark.parametrize("kind", ["scalar", "array", "batch"])
def test_counters_are_the_calls_that_a_counting_function_saw(kind, world: World):
    def odd_ones_fail(v: int | None) -> int | None:
        if v is not None and v % 5 == 3:
            raise ValueError(f"{v} cannot be")
        return v

    world.write(range(20))
    on_error = [fm.Retry(ValueError, attempts=3), fm.Skip(ValueError)]
    odd = Plan("odd", "1", ("v",), odd_ones_fail)
    world.add(odd, kind=kind, on_error=on_error)
    done = world.backfill(task_size=7, checkpoint_size=4)
    assert (done.computed, done.failed) == (16, 4)
    assert world.calls.count().total() == done.called >= 20 + 4 * 2
    errors = world.dataset.column_errors("a")
    assert errors["offset"].to_pylist() == [3, 8, 13, 18]
    assert set(errors["attempts"].to_pylist()) == {3}
    assert world.backfill().called == 0, "skipped rows are done"
    world.calls.mend()
    again = world.backfill(retry_errors=True)
    assert (again.computed, sorted(world.calls.offsets())) == (4, [3, 8, 13, 18])
    assert world.values() == {i: -i if i % 5 == 3 else i for i in range(20)}
    assert world.dataset.column_errors("a").num_rows == 0
    world.dataset.drop_column("a")
    world.add(odd, kind=kind, on_error=on_error)
    assert world.backfill().called == 0
    assert world.values() == {i: -i if i % 5 == 3 else i for i in range(20)}, "values win over errors before them"
    assert world.dataset.column_errors("a").num_rows == 0


@pytest.mark.process
@pytest.mark.parametrize("sizes", [{"task_size": 5}, SMALL], ids=["tasks", "checkpoints"])
def test_worker_that_dies_is_replaced_and_counted_honestly(sizes, world: World):
    """Each row is counted once, also those that the dead one had stored and its successor found."""
    world.write(range(20))
    world.add()
    world.calls.kill_at(5)
    done = world.backfill_only(**sizes)
    assert (done.computed, done.reused, done.done) == (20, 0, 0)
    assert set(world.calls.count()) == set(range(20))
    if sizes is SMALL:
        assert {i for i, times in world.calls.count().items() if times > 1} <= {4, 5}, "what was stored is not repeated"
    assert world.values() == tenfold_of(range(20))


def test_column_and_its_dependent_dropped_and_added_again_call_nothing(world: World):
    world.write(range(20))
    b = Plan("next", "1", ("a",), next_one)
    for _ in range(2):
        world.add()
        world.add(b, "b")
        called = world.backfill("a").called, world.backfill("b").called
        assert world.values("b") == {i: i * 10 + 1 for i in range(20)}
        world.dataset.drop_column("b")
        world.dataset.drop_column("a")
    assert called == (0, 0)


def test_dependent_added_again_after_its_input_changed_gets_none_of_its_old_values(world: World):
    world.write(range(20))
    b = Plan("next", "1", ("a",), next_one)
    world.add()
    world.add(b, "b")
    world.backfill("a")
    world.backfill("b")
    world.alter(HUNDREDFOLD)
    world.backfill("a")
    world.dataset.drop_column("b")
    world.dataset.drop_column("a")
    world.add(HUNDREDFOLD)
    world.add(b, "b")
    world.backfill("a")
    world.backfill("b")
    assert world.values("b") == {i: i * 100 + 1 for i in range(20)}


def test_errors_of_skipped_rows_stay_when_other_rows_of_their_fragment_are_computed(world: World):
    def fails_at_three(v: int) -> int:
        if v == 3:
            raise ValueError("three")
        return v

    world.write(range(5))
    world.add(Plan("fails", "1", ("v",), fails_at_three), on_error=fm.Skip(ValueError))
    for ids in ((), [5], [6], range(7, 20)):
        if ids:
            world.write(list(ids))
        world.backfill()
        assert world.dataset.column_errors("a")["offset"].to_pylist() == [3]
    world.dataset.delete([3])
    assert world.dataset.column_errors("a").num_rows == 0


# Columns of columns


def test_change_of_a_column_makes_only_what_depends_on_changed_rows_stale(world: World):
    def capped(v: int | None) -> int | None:
        return None if v is None else min(v, 15) * 10

    world.write(range(20))
    world.add()
    world.add(Plan("next", "1", ("a",), next_one), "b")
    assert world.backfill("b").called == 0, "what it is made from is not there yet"
    assert world.dataset.plan_backfill("b").waiting == 20
    world.backfill("a")
    world.backfill("b")
    world.alter(Plan("fold", "3", ("v",), capped))
    assert world.values("b") == {i: i * 10 + 1 for i in range(20)}
    world.backfill("a")
    assert world.values("b") == {i: i * 10 + 1 if i <= 15 else None for i in range(20)}
    assert world.backfill("b").computed == 4
    assert set(world.calls.offsets()) == {16, 17, 18, 19}
    assert world.values("b") == {i: min(i, 15) * 10 + 1 for i in range(20)}


def test_dependent_of_a_column_that_was_lost_with_old_values_is_made_anew(world: World):
    """The new function's values differ from those that the dependent was made from, though the old ones are gone."""

    world.write(range(8))
    world.add()
    world.add(Plan("next", "1", ("a",), next_one), "b")
    world.backfill("a")
    [file] = list(world.objects.files())
    world.backfill("b")
    world.alter(HUNDREDFOLD)
    world.objects.store.delete(file.key)
    world.backfill("a")
    world.backfill("b")
    assert world.values("a") == {i: i * 100 for i in range(8)}
    assert world.values("b") == {i: i * 100 + 1 for i in range(8)}


def test_lost_file_of_a_column_that_waits_for_its_input_can_be_given_up(world: World):
    """Reading says that a backfill helps; it must, also when no row can be computed yet."""
    world.write(range(8))
    world.add()
    world.add(Plan("next", "1", ("a",), next_one), "b")
    world.backfill("a")
    before = {file.key for file in world.objects.files()}
    world.backfill("b")
    [lost] = [file.key for file in world.objects.files() if file.key not in before]
    world.alter(HUNDREDFOLD)  # now every row of b waits for a
    world.objects.store.delete(lost)
    with pytest.raises(UnreadableColumn, match="'b'") as refused:
        world.values("b")
    assert "backfill('b')" in refused.value.hint
    assert world.backfill("b").called == 0
    assert set(world.values("b").values()) == {None}
    world.backfill("a")
    world.backfill("b")
    assert world.values("b") == {i: i * 100 + 1 for i in range(8)}


def test_lost_file_of_deleted_rows_is_forgotten_by_the_next_backfill(world: World):
    world.write(range(FRAGMENT_ROWS))
    world.add()
    world.backfill()
    [lost] = [file.key for file in world.objects.files()]
    world.dataset.delete(list(range(FRAGMENT_ROWS)))
    world.write([100])
    world.objects.store.delete(lost)
    assert world.backfill().computed == 1
    assert world.values() == {100: 1000}
    assert world.dataset.verify().problems == ()


def test_dependent_of_a_row_that_failed_once_is_not_reused_when_it_succeeds_later(world: World):
    def fails_at_three(v: int) -> int:
        if v == 3:
            raise ValueError("not today")
        return v * 10

    a, b = Plan("fails", "1", ("v",), fails_at_three), Plan("next", "1", ("a",), next_one)
    world.write(range(8))
    world.add(a, on_error=fm.Skip(ValueError))
    world.add(b, "b")
    world.backfill("a")
    checkpoints = world.checkpoint_keys()
    world.backfill("b")
    world.dataset.drop_column("b")
    world.dataset.drop_column("a")
    for key in checkpoints:  # collected meanwhile; those of b are younger
        world.objects.checkpoints.delete(key)
    world.calls.mend()
    world.add(a, on_error=fm.Skip(ValueError))
    world.add(b, "b")
    world.backfill("a")
    world.backfill("b")
    assert world.values("a")[3] == -3
    assert world.values("b")[3] == -2


def test_column_that_was_altered_before_its_first_backfill_does_not_lend_its_name_to_others(world: World):
    """Its values never changed, and still they are not those of the function that it was added with."""
    b = Plan("next", "1", ("a",), next_one)
    world.write(range(8))
    world.add(TENFOLD)
    world.add(b, "b")
    world.alter(HUNDREDFOLD)
    world.backfill("a")
    world.backfill("b")
    world.dataset.drop_column("b")
    world.dataset.drop_column("a")
    world.add(TENFOLD)
    world.add(b, "b")
    world.backfill("a")
    world.backfill("b")
    assert world.values("b") == {i: i * 10 + 1 for i in range(8)}


# Reading


def test_all_ways_of_reading_show_the_column(world: World):
    world.write(range(6))
    world.add()
    world.backfill()
    expected = [i * 10 for i in range(6)]
    assert world.dataset.to_arrow()["a"].to_pylist() == expected
    assert world.dataset.to_batches().read_all()["a"].to_pylist() == expected
    assert world.dataset.to_batches(["a"], "a > 20").read_all()["a"].to_pylist() == [30, 40, 50]
    assert world.lake.sql("select a from d order by id")["a"].to_pylist() == expected
    assert world.dataset.get([3])["a"].to_pylist() == [30]
    assert world.dataset.to_pandas()["a"].tolist() == expected
    assert world.dataset.to_arrow().schema.field("a").type == pa.int64()


@pytest.mark.spark
def test_spark_reads_the_column_like_any_other(world: World, spark):
    world.write(range(20))
    world.add()
    world.backfill(where="v < 15")
    world.dataset.delete([2])
    lake = fm.Lake(world.lake.store.url, spark=spark)
    rows = {row["id"]: row["a"] for row in lake["d"].read().collect()}
    assert rows == world.values() == {i: i * 10 if i < 15 else None for i in range(20) if i != 2}
