"""Bringing a timeline up to date: what is read and written for it, step by step, and in spite of others."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import LostRace, UnknownDataset, UnreadablePiece
from floodmark.ledger.ledger import Ledger
from floodmark.storage.memory import CountingStore, MemoryStore
from floodmark.timeline import arrangement, merge, update, writer
from floodmark.timeline import commit as changing
from floodmark.timeline.manifest import TimelineObjects, repair_hint
from floodmark.timeline.pieces import Partition, PieceOrigin
from floodmark.timeline.settings import Settings
from limits import set_limit
from timeline.layouts import assert_sound
from timeline.models import NOBODY
from timeline.oracle import assert_right
from timeline.timeline_worlds import BEGIN, DAY, NAME, World, column_of, world

SECOND = 1_000_000


def _seconds(*ranges: range) -> list[int]:
    return [BEGIN + SECOND * second for each in ranges for second in each]


def _write(made: World, *ranges: range) -> None:
    made.dataset.write(made.table(_seconds(*ranges)))


def _only(made: World) -> Partition:
    (partition,) = made.dataset.timeline_pieces().partitions
    return partition


def _check(made: World) -> None:
    assert_sound(made.dataset)
    assert_right(made.dataset)


def test_rows_in_order_are_pointed_at_where_the_ledger_has_them(tmp_path: Path) -> None:
    made = world(tmp_path)
    _write(made, range(120))
    _write(made, range(120, 150))
    assert {p.how for p in _only(made).pieces} == {PieceOrigin.SLICE}
    last = made.dataset.timeline_root().last
    assert last is not None
    assert (last.rows, last.late_rows, last.merged_rows) == (30, 0, 0)
    _check(made)


def test_update_with_nothing_new_reads_the_root_and_writes_nothing() -> None:
    store = CountingStore(MemoryStore())
    lake = fm.Lake(store)
    ticks = lake.create("ticks", event_time="at", partition_by="day", row_group_size=50)
    ticks.write(pa.table({"at": column_of(_seconds(range(200)), "us utc")}))
    before, read = store.counts, len(store.keys_read)
    assert ticks.update_timeline() is None
    asked = store.counts - before
    assert (asked.puts, asked.swaps, asked.deletes, asked.lists) == (0, 0, 0, 0)
    keys = store.keys_read[read:]
    assert [key for key in keys if "/info/timeline/" in key] == [key for key in keys if key.endswith("/timeline/root")]
    assert len(keys) <= 3  # and the head


def test_manifests_that_are_known_are_not_read_again_unless_somebody_else_changed_them() -> None:
    store = CountingStore(MemoryStore())
    ticks = fm.Lake(store).create("ticks", event_time="at", partition_by="day", timeline="lazy")
    objects, settings = TimelineObjects(ticks.snapshot().objects), Settings("day", mode="lazy")
    updating = writer.TimelineWriter("ticks", objects, settings, fm.Runtime(), ticks.snapshot, lambda *_: NOBODY)

    def manifests_read(by: writer.TimelineWriter) -> int:
        ticks.write(pa.table({"at": column_of(_seconds(range(5)), "us utc")}))
        read = len(store.keys_read)
        assert update.update(by) is not None
        return sum("/manifests/" in key for key in store.keys_read[read:])

    assert [manifests_read(updating) for _ in range(3)] == [0, 0, 0]
    assert manifests_read(replace(updating, kept=writer.RootCache())) == 1
    assert manifests_read(updating) == 1
    assert_right(ticks)


@pytest.mark.slow
def test_late_rows_wait_until_merging_pays_and_are_read_in_their_place(tmp_path: Path) -> None:
    made = world(tmp_path, row_group_size=1000)
    _write(made, range(0, 8000, 2))
    _write(made, range(1, 2000, 40))
    assert _only(made).waiting
    _check(made)
    for shift in range(3, 39, 4):
        _write(made, range(shift, 2000, 40))
        _check(made)
    assert any(p.how == PieceOrigin.MERGED for p in _only(made).settled)


def test_narrow_late_rows_cut_a_row_group_by_reference(tmp_path: Path) -> None:
    made = world(tmp_path, row_group_size=1000)
    _write(made, range(0, 2000))
    made.dataset.write(made.table([BEGIN + 500 * SECOND + i for i in range(1, 60)]))
    before, middle, after, untouched = _only(made).settled
    assert [p.how for p in (before, middle, after, untouched)] == [
        PieceOrigin.SLICE,
        PieceOrigin.MERGED,
        PieceOrigin.SLICE,
        PieceOrigin.SLICE,
    ]
    assert before.file == after.file == untouched.file
    assert middle.rows < 100
    _check(made)


def test_always_rewrites_just_the_row_groups_that_late_rows_belong_to(tmp_path: Path) -> None:
    made = world(tmp_path, late_merge="always", row_group_size=100)
    _write(made, range(0, 2000, 2))
    before = _only(made).settled
    _write(made, range(201, 211, 2), range(1001, 1003, 2))
    after = _only(made).settled
    assert [i for i, p in enumerate(before) if p not in after] == [1, 5]
    assert not _only(made).waiting
    _check(made)


def test_long_backlog_is_worked_off_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, mode="lazy")
    for i in range(6):
        _write(made, range(i * 100, i * 100 + 100))
    set_limit(monkeypatch, "intake.step_rows", 200)
    last = made.dataset.update_timeline()
    root = made.dataset.timeline_root()
    assert (root.version, root.applied) == (3, 600)
    assert last is not None
    assert last.rows == 600
    _check(made)


def test_killed_rows_are_counted_and_left_out_by_the_next_merge(tmp_path: Path) -> None:
    made = world(tmp_path, kind="upsert", row_group_size=50)
    times = _seconds(range(200))
    made.dataset.write(made.table(times, range(200)))
    made.dataset.write(made.table([t + DAY for t in times[:5]], range(5)))
    first = made.dataset.timeline_pieces().partitions[0]
    assert sum(p.dead for p in first.settled) == 5
    _check(made)
    made.dataset.write(made.table([t + DAY for t in times[5:60]], range(5, 60)))
    first = made.dataset.timeline_pieces().partitions[0]
    assert sum(p.rows for p in first.settled) < 200
    _check(made)


def test_partition_whose_rows_all_moved_away_is_gone(tmp_path: Path) -> None:
    made = world(tmp_path, kind="upsert", row_group_size=50)
    times = _seconds(range(20))
    made.dataset.write(made.table(times, range(20)))
    made.dataset.write(made.table([t + DAY for t in times], range(20)))
    assert [p.start for p in made.dataset.timeline_pieces().partitions] == [BEGIN + DAY]
    _check(made)


def test_update_that_loses_the_race_begins_again_from_the_new_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(tmp_path, mode="lazy")
    _write(made, range(100))
    other = World.__new__(World)
    other.__dict__.update(made.__dict__)
    other.reopen()
    real, raced = changing.publish, []

    def publish(*args: Any) -> Any:
        if not raced:
            raced.append(True)
            with monkeypatch.context() as patch:
                patch.setattr(writer, "publish", real)
                patch.setattr(type(other.store._inner), "turn", _no_turn)
                assert other.dataset.update_timeline() is not None
        return real(*args)

    monkeypatch.setattr(writer, "publish", publish)
    assert made.dataset.update_timeline() is None  # the other one has done it
    assert made.dataset.timeline_root().version == 1
    _check(made)


def _no_turn(store: Any, key: str) -> Any:
    return nullcontext()


def test_update_whose_swap_is_refused_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, mode="lazy")
    _write(made, range(100))
    real, answers = changing.publish, [None, None]
    monkeypatch.setattr(writer, "publish", lambda *args: answers.pop() if answers else real(*args))
    assert made.dataset.update_timeline() is not None
    assert made.dataset.timeline_root().applied == 100
    _check(made)


def test_update_during_which_records_were_purged_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, mode="lazy")
    _write(made, range(100))
    real, refused = changing.publish, []

    def publish(*args: Any) -> Any:
        if not refused:
            refused.append(True)
            raise LostRace("purged", purged_before=1)
        return real(*args)

    monkeypatch.setattr(writer, "publish", publish)
    assert made.dataset.update_timeline() is not None
    _check(made)


def test_purged_records_do_not_survive_a_merge(tmp_path: Path) -> None:
    made = world(tmp_path, late_merge="always", row_group_size=200)
    _write(made, range(0, 100, 2))
    _write(made, range(1, 100, 10))
    made.dataset.parts.rows.purge(50)  # as if the purge had crashed before it came to the timeline
    _write(made, range(3, 100, 10))
    assert min(p.offset_min for p in _only(made).pieces) == 50
    _check(made)


def test_update_after_a_purge_that_was_cut_short_takes_in_what_is_new_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = world(tmp_path, late_merge="always")
    for i in range(4):
        _write(made, range(i * 100, i * 100 + 100))
    _write(made, range(40, 160, 30))
    made.dataset.parts.rows.purge(100)
    with caplog.at_level(logging.WARNING):
        _write(made, range(50, 51))  # belongs to a row group that is gone
    root = made.dataset.timeline_root()
    assert root.last is not None
    assert (root.last.rows, root.purged_before) == (1, 100)
    assert not caplog.records
    assert made.dataset.verify().ok  # no file of the timeline has a copy either
    _check(made)


def test_update_after_everything_was_purged_leaves_no_piece(tmp_path: Path) -> None:
    made = world(tmp_path)
    _write(made, range(100))
    made.dataset.parts.rows.purge(100)
    done = made.dataset.update_timeline()
    assert done is not None
    assert (done.kind, made.dataset.timeline_root().pieces) == ("purge", 0)
    assert made.dataset.update_timeline() is None
    _write(made, range(7))
    _check(made)


def test_slices_that_are_purged_while_they_are_merged_are_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(tmp_path, late_merge="always")
    _write(made, range(0, 200, 2))
    _write(made, range(200, 300))
    real = merge.merge_all

    def purge_first(*args: Any) -> Any:
        monkeypatch.setattr(writer, "merge_all", real)
        made.dataset.parts.rows.purge(100)
        return real(*args)

    monkeypatch.setattr(writer, "merge_all", purge_first)
    with caplog.at_level(logging.WARNING):
        _write(made, range(41, 51, 2))
    root = made.dataset.timeline_root()
    assert root.last is not None
    assert (root.applied, root.last.rows) == (205, 5)
    assert not caplog.records
    _check(made)


def test_slice_that_cannot_be_read_does_not_make_a_timeline_begin_anew(tmp_path: Path) -> None:
    made = world(tmp_path, late_merge="always", mode="lazy")
    _write(made, range(0, 200, 2))
    made.dataset.update_timeline()
    root = made.dataset.timeline_root()
    victim = tmp_path / made.dataset.snapshot().objects.folder / _only(made).settled[0].file
    victim.unlink()
    made.reopen()
    _write(made, range(1, 100, 10))
    with pytest.raises(UnreadablePiece) as caught:
        made.dataset.update_timeline()
    assert caught.value.hint == repair_hint(caught.value.file)
    assert "verify()" in caught.value.hint
    assert made.dataset.timeline_root() == root


def test_dataset_dropped_during_an_update_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(tmp_path, mode="lazy")
    _write(made, range(100, 200))
    _write(made, range(0, 300, 3))
    real = update._change

    def and_then_drop(*args: Any) -> Any:
        change = real(*args)
        made.lake.drop(NAME)
        return change

    monkeypatch.setattr(update, "_change", and_then_drop)
    folder = made.dataset.snapshot().objects.folder
    with pytest.raises(UnknownDataset):
        made.dataset.update_timeline()
    assert list(made.store.list(folder)) == []


def test_write_stays_written_when_a_fault_keeps_its_timeline_from_following(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(tmp_path)
    _write(made, range(100))

    def stumble(*_: Any) -> Any:
        raise ValueError("row groups must not overlap")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(arrangement, "arrange_auto", stumble)
        _write(made, range(50, 150))
    [record] = caplog.records
    assert "ValueError: row groups must not overlap" in record.getMessage()
    assert record.exc_info is not None
    assert made.dataset.count() == 200
    _check(made)


def test_write_stays_written_when_the_store_fails_right_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(tmp_path)
    _write(made, range(100))
    real = Ledger.write

    def and_then_fail(*args: Any, **options: Any) -> Any:
        commit = real(*args, **options)
        made.store.strike(0, 10**6, where="")
        return commit

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(Ledger, "write", and_then_fail)
        _write(made, range(50, 150))
    assert "its timeline is behind (the network is down)" in caplog.text
    made.store.calm()
    assert made.dataset.count() == 200


def test_write_stays_written_when_its_timeline_cannot_follow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = world(tmp_path)
    _write(made, range(100))
    made.store.strike(0, 10**6)
    with caplog.at_level(logging.WARNING):
        _write(made, range(50, 150))
    assert f"{NAME} was written, but its timeline is behind" in caplog.text
    made.store.calm()
    assert made.dataset.timeline_root().applied == 100
    _check(made)
    _write(made, range(150, 160))
    assert made.dataset.timeline_root().applied == 210
    _check(made)


def test_timeline_with_a_lost_manifest_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = world(tmp_path)
    _write(made, range(100))
    for path in tmp_path.rglob("info/timeline/manifests/*"):
        path.unlink()
    made.reopen()
    with caplog.at_level(logging.WARNING):
        _write(made, range(30, 60))
    assert "rebuilding the timeline" in caplog.text
    assert made.dataset.timeline_root().applied == 130
    _check(made)


def test_bytes_of_files_manifests_and_roots_are_counted(tmp_path: Path) -> None:
    made = world(tmp_path, late_merge="always")
    _write(made, range(0, 400, 2))
    _write(made, range(1, 400, 40))
    root = made.dataset.timeline_root()
    files = {p for kind in ("files", "manifests") for p in tmp_path.rglob(f"info/timeline/{kind}/*")}
    assert root.last is not None
    assert root.bytes_written >= sum(p.stat().st_size for p in files)
    assert root.last.bytes_written < root.bytes_written
