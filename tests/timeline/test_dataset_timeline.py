"""What a dataset with a timeline does by itself, and what it does when asked."""

from __future__ import annotations

import logging
from functools import cache

import pytest

import floodmark as fm
from floodmark.engine.session import Runtime
from floodmark.errors import BadRange, NoTimeline
from timeline.oracle import assert_right
from timeline.timeline_worlds import BEGIN, DAY, HOUR, NAME, World, template_folder, world

WEEK = 7 * 86_400


def written(folder, **shape) -> World:
    """A world to which all of three days was written a few times."""
    return _written(**shape).copied(folder)


@cache
def _written(count: int = 6, **shape) -> World:
    made = world(template_folder(), **shape)
    for _ in range(count):
        ids = None if made.shape.kind == "append" else made.chance.sample(range(400), 120)
        made.write(made.table(made.times(BEGIN, BEGIN + 3 * DAY, 120), ids))
    return made


def timeline_files(made: World) -> set[str]:
    folder = made.folder / made.dataset.snapshot().objects.folder / "info" / "timeline"
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_an_eager_timeline_is_up_to_date_after_each_write(tmp_path):
    made = written(tmp_path)
    assert made.dataset.timeline_stats().behind == 0
    assert made.dataset.timeline_root().applied == 720
    assert made.dataset.update_timeline() is None


def test_a_lazy_one_is_brought_up_to_date_on_demand(tmp_path):
    made = written(tmp_path, mode="lazy")
    assert made.dataset.timeline_stats().behind == 720
    done = made.dataset.update_timeline()
    assert done is not None
    assert done.rows == 720
    assert made.dataset.timeline_stats().behind == 0
    assert_right(made.dataset)


@pytest.mark.slow
def test_deletions_are_followed_too(tmp_path):
    made = written(tmp_path, kind="upsert")
    made.dataset.delete([{"id": i} for i in range(0, 400, 5)])
    assert made.dataset.timeline_stats().behind == 0
    assert_right(made.dataset)


def test_a_write_stands_when_its_timeline_cannot_follow(tmp_path, caplog):
    made = written(tmp_path)
    made.store.strike(0, 1000)
    with caplog.at_level(logging.WARNING):
        made.write(made.table([BEGIN + HOUR] * 10))
    made.store.calm()
    assert "its timeline is behind" in caplog.text
    assert made.dataset.count() == 730
    assert_right(made.dataset)
    made.write(made.table([BEGIN + 2 * HOUR] * 10))
    assert made.dataset.timeline_stats().behind == 0
    assert_right(made.dataset)


def test_a_fold_leaves_nothing_waiting_and_nothing_dead(tmp_path):
    made = written(tmp_path, kind="upsert")
    assert made.dataset.fold().rows > 0
    stats = made.dataset.timeline_stats()
    assert (sum(p.waiting_rows for p in stats.partitions), sum(p.dead_rows for p in stats.partitions)) == (0, 0)
    assert stats.rows == made.dataset.count()
    assert_right(made.dataset)


def test_a_fold_of_one_partition_leaves_the_others_and_the_ledger_alone(tmp_path):
    made = written(tmp_path, kind="upsert")
    before = {p.start: p for p in made.dataset.timeline_pieces().partitions}
    made.dataset.fold("2026-11-02")
    after = {p.start: p for p in made.dataset.timeline_pieces().partitions}
    changed = [start for start in before if before[start].pieces != after[start].pieces]
    assert changed == [BEGIN + DAY]
    assert not (made.folder / made.dataset.snapshot().objects.folder / "info" / "fold").exists()
    assert_right(made.dataset)


def test_a_partition_that_is_none_is_refused(tmp_path):
    with pytest.raises(BadRange):
        written(tmp_path, count=1).dataset.fold("someday")


def test_folding_a_partition_of_a_dataset_without_a_timeline_is_refused(tmp_path):
    plain = fm.Lake(tmp_path).create("plain", event_time="at")
    with pytest.raises(NoTimeline, match="has no timeline"):
        plain.fold("2026-11-01")
    with pytest.raises(NoTimeline, match="has no timeline"):
        plain.update_timeline()


def test_garbage_of_the_timeline_goes_when_it_is_old_enough(tmp_path):
    made = written(tmp_path, kind="upsert")
    made.dataset.fold()
    assert made.dataset.find_garbage().keys == []
    later = Runtime(clock=lambda: int((_newest(made) + WEEK + 60) * 10**9))
    dataset = fm.Lake(made.folder, runtime=later)[NAME]
    before = timeline_files(made)
    found = dataset.find_garbage()
    assert found.keys
    assert {key for key in found.keys if "/info/timeline/" in key}
    assert timeline_files(made) == before  # finding removes nothing
    assert set(dataset.collect_garbage().keys) == set(found.keys)
    assert len(timeline_files(made)) < len(before)
    assert dataset.verify().problems == ()
    assert_right(dataset)


def _newest(made: World) -> float:
    return max(path.stat().st_mtime for path in made.folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_verify_finds_a_damaged_file_of_the_timeline_and_fold_makes_it_anew(tmp_path):
    made = written(tmp_path, kind="upsert")
    assert made.dataset.verify().problems == ()
    files = made.folder / made.dataset.snapshot().objects.folder / "info" / "timeline" / "files"
    named = {p.file.rpartition("/")[2] for part in made.dataset.timeline_pieces().partitions for p in part.pieces}
    path = next(path for path in sorted(files.iterdir()) if path.name in named)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    problems = made.dataset.verify().problems
    assert any(path.name in str(problem) for problem in problems)
    made.dataset.fold()
    assert made.dataset.verify().problems == ()
    assert_right(made.dataset)


def test_a_purge_takes_the_copies_in_the_timeline_along(tmp_path):
    made = written(tmp_path, kind="upsert")
    made.dataset.purge(300)
    purged = made.dataset.snapshot().purged_before
    assert purged > 0
    assert all(p.offset_min >= purged for part in made.dataset.timeline_pieces().partitions for p in part.pieces)
    assert made.dataset.verify().problems == ()
    assert_right(made.dataset)


def test_pieces_of_a_range_are_those_of_its_partitions(tmp_path):
    made = written(tmp_path)
    assert [p.start for p in made.dataset.timeline_pieces().partitions] == [BEGIN, BEGIN + DAY, BEGIN + 2 * DAY]
    found = made.dataset.timeline_pieces("2026-11-02", "2026-11-03")
    assert [p.start for p in found.partitions] == [BEGIN + DAY]
    assert found.settings.partition_by == "day"
    assert found.root == made.dataset.timeline_root()


def test_pieces_whose_slices_were_purged_are_skipped_without_a_word(tmp_path, caplog):
    made = world(tmp_path)
    for day in range(3):
        made.write(made.table([BEGIN + day * DAY + i * HOUR // 10 for i in range(100)]))
    made.dataset.parts.rows.purge(200)  # cut short before it came to the timeline
    made.reopen()
    with caplog.at_level(logging.WARNING):
        assert made.dataset.timeline_batches().read_all().num_rows == 100
        assert_right(made.dataset)
    assert not caplog.records
