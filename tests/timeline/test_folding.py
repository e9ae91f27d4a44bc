"""Folding a timeline: what it leaves alone, what it rewrites, and that readers before it are not disturbed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import BadRange, UnknownDataset
from floodmark.timeline import fold, piece_files, verify, writer
from floodmark.timeline import root as roots
from floodmark.timeline.commit import RootChange, publish
from floodmark.timeline.manifest import TimelineObjects
from floodmark.timeline.pieces import PieceOrigin
from floodmark.timeline.root import LastUpdate
from floodmark.timeline.writer import WriterState
from timeline.layouts import assert_folded, assert_sound
from timeline.oracle import assert_right
from timeline.timeline_worlds import BEGIN, DAY, NAME, World, world
from waiting import PATIENCE

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
    assert [p.how for p in after].count(PieceOrigin.FOLDED) == 1
    assert (done.files, done.rows) == (1, 104)
    _check(made)


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert "rebuilding the timeline" in caplog.text
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


def test_fold_before_the_first_write_does_nothing(tmp_path: Path) -> None:
    made = world(tmp_path)
    assert made.dataset.fold() == fold.EMPTY_REPORT
    assert made.dataset.fold("2026-11-01") == fold.EMPTY_REPORT


def test_partition_that_is_not_there_is_refused_and_those_near_are_named(tmp_path: Path) -> None:
    made = world(tmp_path, mode="lazy")
    for day in (0, 2, 5):
        _write(made, range(10), day=day)
    with pytest.raises(BadRange, match="no partition 2026-11-02") as caught:
        made.dataset.fold("2026-11-02")
    assert caught.value.near == ("2026-11-01", "2026-11-03")
    with pytest.raises(BadRange, match="the nearest: 2026-11-06"):
        made.dataset.fold("2030-01-01")
    with pytest.raises(BadRange, match="the nearest: 2026-11-01"):
        made.dataset.fold("1999-01-01")


def test_fold_of_a_partition_reads_its_own_files_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, late_merge="always")
    for day in range(4):
        _write(made, range(0, 100, 2), day=day)
        _write(made, range(1, 100, 30), day=day)
    hashed: list[str] = []
    real = piece_files.is_intact
    monkeypatch.setattr(verify, "is_intact", lambda objects, own: hashed.append(own.name) or real(objects, own))
    made.dataset.fold("2026-11-02")
    named = [{p.file for p in partition.pieces} for partition in made.dataset.timeline_pieces().partitions]
    assert set(hashed) == {file for file in named[1] if file.startswith("info/timeline")}
    hashed.clear()
    made.dataset.fold()
    assert len(set(hashed)) == 4


def test_manifests_are_gone_through_once_and_not_for_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(tmp_path, unit="hour")
    _write(made, *(range(hour * 3600, hour * 3600 + 5) for hour in range(40)))
    walks = []
    real = roots.partitions_at
    monkeypatch.setattr(roots, "partitions_at", lambda *args: walks.append(args) or real(*args))
    made.dataset.fold()
    assert len(walks) < 10


def test_fold_after_a_purge_that_was_cut_short_completes_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = world(tmp_path)
    for i in range(4):
        _write(made, range(i * 20, 100 + i * 20))
    made.dataset.parts.rows.purge(200)
    made.reopen()
    with caplog.at_level(logging.WARNING):
        made.dataset.fold()
    assert not caplog.records
    assert made.dataset.timeline_root().purged_before == 200
    assert made.dataset.verify().ok
    _check(made)


def test_wrong_numbers_of_dead_rows_are_put_right(tmp_path: Path) -> None:
    made = world(tmp_path, kind="upsert")
    made.dataset.write(made.table([BEGIN + SECOND * i for i in range(50)], range(50)))
    objects = TimelineObjects(made.dataset.snapshot().objects)
    root = roots.load(objects)
    [day] = roots.partitions(objects, root)
    wrong = replace(day, settled=(replace(day.settled[0], dead=1), *day.settled[1:]))
    change = RootChange(root.applied, root.block, root.settings_digest, (wrong,), LastUpdate(), root.next_run)
    assert publish(objects, root, change) is not None
    assert made.dataset.timeline_stats().partitions[0].dead_rows == 1
    assert made.dataset.fold("2026-11-01").rows == 0
    assert made.dataset.timeline_stats().partitions[0].dead_rows == 0
    _check(made)


class Meanwhile:
    """Lets somebody else do something while a fold has its files written, the first time that it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
        self._act, self._real = act, WriterState.write_partitions
        self.waited = False
        self._threads: list[threading.Thread] = []
        meanwhile = self

        def carry_out(state: WriterState, *args: Any) -> Any:
            done = meanwhile._real(state, *args)
            if args[1] == PieceOrigin.FOLDED and not meanwhile._threads:
                meanwhile._run()
            return done

        monkeypatch.setattr(WriterState, "write_partitions", carry_out)

    def _run(self) -> None:
        thread = threading.Thread(target=self._act)
        self._threads.append(thread)
        thread.start()
        thread.join(PATIENCE)  # only a fold that makes writers wait lets this pass
        self.waited = thread.is_alive()

    def join(self) -> None:
        [thread] = self._threads
        thread.join()


@pytest.fixture
def busy(tmp_path: Path) -> World:
    """A partition in which something waits."""
    made = world(tmp_path, row_group_size=100)
    _write(made, range(0, 1000))
    _write(made, range(110, 890, 60))
    assert made.dataset.timeline_pieces().partitions[0].waiting
    return made


LATER = {
    "late rows": lambda: _Table(range(120, 880, 50)),
    "narrow rows": lambda: _Table([115] * 60),
    "newer rows": lambda: _Table(range(1000, 1100)),
    "another day": lambda: _Table(range(0, 50), 3),
}


@dataclass(frozen=True)
class _Table:
    seconds: Sequence[int]
    day: int = 0


@pytest.mark.parametrize("what", LATER)
def test_writers_do_not_wait_for_a_fold_and_it_folds_what_they_wrote(
    busy: World, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, given = busy.lake[NAME], LATER[what]()
    table = busy.table([BEGIN + given.day * DAY + SECOND * second for second in given.seconds])
    meanwhile = Meanwhile(monkeypatch, lambda: other.write(table))
    busy.dataset.fold()
    meanwhile.join()
    assert not meanwhile.waited
    assert busy.dataset.timeline_root().applied == 1013 + len(given.seconds)
    assert busy.dataset.timeline_stats().rows == 1013 + len(given.seconds)
    assert busy.dataset.verify().ok
    _check(busy, "2026-11-01")


def test_rows_that_only_came_to_wait_do_not_undo_a_fold(busy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    other = busy.lake[NAME]
    table = busy.table([BEGIN + SECOND * 500])
    meanwhile = Meanwhile(monkeypatch, lambda: other.write(table))
    done = busy.dataset.fold("2026-11-01")
    meanwhile.join()
    assert done.rows < 1100  # all of it once, and one row group again
    _check(busy)


def test_purge_during_a_fold_is_not_undone(busy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    other = busy.lake[NAME]
    meanwhile = Meanwhile(monkeypatch, lambda: other.purge(1000))
    busy.dataset.fold()
    meanwhile.join()
    assert not meanwhile.waited
    assert busy.dataset.timeline_stats().rows == 13
    assert busy.dataset.collect_garbage() is not None
    assert busy.dataset.verify().ok
    _check(busy)


def test_rows_that_die_during_a_fold_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, kind="upsert", row_group_size=100)
    times = [BEGIN + SECOND * second for second in range(300)]
    made.dataset.write(made.table(times, range(300)))
    made.dataset.delete([{"id": 5}])
    other = made.lake[NAME]
    meanwhile = Meanwhile(monkeypatch, lambda: other.delete([{"id": 7}, {"id": 250}]))
    with monkeypatch.context() as patch:
        patch.setattr(fold._FoldState, "next_round", lambda *_: True)
        made.dataset.fold("2026-11-01")
    meanwhile.join()
    assert [p.dead for p in made.dataset.timeline_pieces().partitions[0].settled] == [1, 0, 1]
    made.dataset.fold("2026-11-01")
    _check(made)


def test_dataset_dropped_during_a_fold_leaves_nothing_behind(busy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = busy.dataset.snapshot().objects.folder

    def publish_too_late(*args: Any) -> Any:
        busy.lake.drop(NAME)
        return publish(*args)

    monkeypatch.setattr(writer, "publish", publish_too_late)
    with pytest.raises(UnknownDataset):
        busy.dataset.fold("2026-11-01")
    assert list(busy.store.list(folder)) == []


def test_damaged_manifest_makes_a_fold_begin_anew(tmp_path: Path) -> None:
    made = world(tmp_path, late_merge="always")
    _write(made, range(0, 200, 2))
    _write(made, range(1, 200, 30))
    for victim in tmp_path.rglob("info/timeline/manifests/*"):
        victim.chmod(0o644)
        victim.write_bytes(b"torn")
    made.reopen()
    made.dataset.fold()
    assert made.dataset.verify().ok
    _check(made)
