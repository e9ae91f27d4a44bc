"""Folding a timeline: what it leaves alone, what it rewrites, and that readers before it are not disturbed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from floodmark.timeline.pieces import How
from timeline.layouts import assert_folded, assert_sound
from timeline.oracle import assert_right
from timeline.timeline_worlds import BEGIN, DAY, World, world

SECOND = 1_000_000


def _write(made: World, *ranges: range, day: int = 0) -> None:
    times = [BEGIN + day * DAY + SECOND * second for each in ranges for second in each]
    made.dataset.write(made.table(times))


def _check(made: World, partition: str | None = None) -> None:
    assert_sound(made.dataset)
    assert_right(made.dataset)
    assert_folded(made.dataset, partition)


def test_nothing_waits_after_a_fold_and_row_groups_without_late_rows_stay(tmp_path: Path) -> None:
    made = world(tmp_path, row_group_size=100)
    _write(made, range(0, 1000))
    before = made.dataset.timeline_pieces().partitions[0].settled
    _write(made, range(110, 190, 20))
    done = made.dataset.fold("2026-11-01")
    after = made.dataset.timeline_pieces().partitions[0].settled
    assert set(before) - set(after) == {before[1]}
    assert [p.how for p in after].count(How.FOLDED) == 1
    assert (done.files, done.rows) == (1, 104)
    _check(made)


def test_second_fold_writes_nothing(tmp_path: Path) -> None:
    made = world(tmp_path)
    for i in range(30):
        _write(made, range(i * 7, i * 7 + 10))
    assert made.dataset.fold("2026-11-01").rows > 0
    version = made.dataset.timeline_root().version
    assert made.dataset.fold("2026-11-01").rows == 0
    assert made.dataset.timeline_root().version == version
    _check(made)


def test_only_the_partition_that_is_named_is_folded(tmp_path: Path) -> None:
    made = world(tmp_path)
    for day in (0, 1):
        _write(made, range(0, 200, 2), day=day)
        _write(made, range(1, 200, 70), day=day)
    made.dataset.fold("2026-11-02")
    first, second = made.dataset.timeline_pieces().partitions
    assert first.waiting
    assert not second.waiting
    _check(made, "2026-11-02")


def test_fold_of_small_pieces_leaves_at_most_one_that_is_small(tmp_path: Path) -> None:
    made = world(tmp_path)
    for i in range(25):
        _write(made, range(i * 10, i * 10 + 5))
    made.dataset.fold()
    assert [p.rows for p in made.dataset.timeline_pieces().partitions[0].settled] == [
        60,
        60,
        5,
    ]  # the last one may grow
    _check(made)


def test_dead_rows_are_gone_after_a_fold(tmp_path: Path) -> None:
    made = world(tmp_path, kind="upsert", row_group_size=400)
    times = [BEGIN + SECOND * second for second in range(300)]
    made.dataset.write(made.table(times, range(300)))
    made.dataset.write(made.table([t + 7 for t in times[::75]], range(0, 300, 75)))
    done = made.dataset.fold("2026-11-01")
    assert done.dead == 8  # four rows, and the four records that say what they were
    _check(made)


def test_rows_that_moved_to_another_day_are_gone_from_their_old_one_after_a_fold(tmp_path: Path) -> None:
    made = world(tmp_path, kind="upsert", row_group_size=100)
    times = [BEGIN + SECOND * second for second in range(300)]
    made.dataset.write(made.table(times, range(300)))
    made.dataset.write(made.table([t + DAY for t in times[:3]], range(3)))
    made.dataset.fold()
    assert made.dataset.timeline_pieces().partitions[0].rows == 297
    _check(made)


def test_fold_brings_a_lazy_timeline_up_to_date_first(tmp_path: Path) -> None:
    made = world(tmp_path, mode="lazy")
    _write(made, range(0, 200, 2))
    _write(made, range(1, 200, 2))
    made.dataset.fold()
    assert made.dataset.timeline_root().applied == 200
    _check(made)


def test_reader_that_began_before_a_fold_reads_on(tmp_path: Path) -> None:
    made = world(tmp_path)
    _write(made, range(0, 400, 2))
    _write(made, range(1, 400, 30))
    with made.dataset.timeline_batches() as reader:
        made.dataset.fold()
        rows = reader.read_all().num_rows
    assert rows == 214


def test_damaged_file_makes_a_fold_begin_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = world(tmp_path, late_merge="always")
    _write(made, range(0, 200, 2))
    _write(made, range(1, 200, 30))
    victim = next(tmp_path.rglob("info/timeline/files/*"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.chmod(0o644)
    victim.write_bytes(data)
    made.reopen()
    with caplog.at_level(logging.WARNING):
        made.dataset.fold()
    assert "is made anew" in caplog.text
    assert made.dataset.verify().ok
    _check(made)


def test_replaced_files_stay_for_the_grace_period_and_then_go(tmp_path: Path) -> None:
    made = world(tmp_path, late_merge="always")
    _write(made, range(0, 200, 2))
    for i in range(3):
        _write(made, range(1 + 2 * i, 50, 20))
    made.dataset.fold()
    files = set(tmp_path.rglob("info/timeline/files/*"))
    assert len(files) > 1
    made.reopen(later=8 * 86_400)
    made.dataset.fold()
    left = set(tmp_path.rglob("info/timeline/files/*"))
    assert len(left) < len(files)
    _check(made)


def test_dataset_without_rows_folds_to_nothing(tmp_path: Path) -> None:
    made = world(tmp_path)
    assert made.dataset.fold("2026-11-01").rows == 0
