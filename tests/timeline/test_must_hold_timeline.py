"""Every sentence of the issue about the timeline, as a test."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner

import floodmark as fm
from faults.timeline_runs import MINUTE, lake_on
from floodmark.cli.app import floodmark
from floodmark.dataset import Dataset
from floodmark.engine.run import run_on_spark
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import CountingStore, MemoryStore
from floodmark.timeline.merge import FileTask
from floodmark.timeline.pieces import PieceOrigin
from limits import set_limit
from timeline.layouts import assert_folded, assert_sound
from timeline.oracle import assert_right, difference, expected, found
from timeline.timeline_worlds import BEGIN, UNITS, Trouble, column_of
from waiting import PATIENCE

NAME = "ticks"
ROW_GROUP = 100
DAY_MINUTES = 1440


def rows(minutes: list[float], first: int = 0, tag: str = "") -> pa.Table:
    """A row for each minute after midnight of November 1st, numbered from `first` on."""
    return pa.table(
        {
            "id": pa.array(range(first, first + len(minutes)), pa.int64()),
            "at": column_of([BEGIN + int(m * MINUTE) for m in minutes], "us utc"),
            "tag": pa.array([tag] * len(minutes)),
            "noise": pa.array([_noise(first + n) for n in range(len(minutes))]),
        }
    )


def _noise(number: int) -> str:
    """Text that does not get smaller by compression, the same for the same row."""
    return hashlib.sha256(b"%d" % number).hexdigest()


def made(lake: fm.Lake, **options: Any) -> Dataset:
    given = {"event_time": "at", "partition_by": "day", "row_group_size": ROW_GROUP, **options}
    return lake.create(NAME, **given)


def a_day(first: int = 0, count: int = DAY_MINUTES) -> pa.Table:
    """One row a minute, in order."""
    return rows([float(n) for n in range(count)], first)


def keyed(lake: fm.Lake, **options: Any) -> Dataset:
    return made(lake, key=["id"], merge="upsert", **options)


def files(dataset: Dataset, folder: str = "info/timeline/files") -> dict[str, int]:
    objects = dataset.snapshot().objects
    return {info.key: info.size for info in objects.store.list(f"{objects.folder}/{folder}")}


def settled(dataset: Dataset) -> list[Any]:
    return [piece for partition in dataset.timeline_pieces().partitions for piece in partition.settled]


def waiting(dataset: Dataset) -> int:
    return sum(run.rows for p in dataset.timeline_pieces().partitions for run in p.waiting)


@pytest.fixture
def lake() -> fm.Lake:
    return fm.Lake(MemoryStore())


# What a user gets


@pytest.mark.parametrize("unit", UNITS)
def test_dataset_is_partitioned_by_hour_day_week_month_or_year(unit, lake):
    dataset = made(lake, partition_by=unit)
    dataset.write(rows([0, 30, 90, 60 * 30, 60 * 24 * 8, 60 * 24 * 40, 60 * 24 * 400]))
    labels = [p.label for p in dataset.timeline_stats().partitions]
    first = {"hour": "2026-11-01T00", "day": "2026-11-01", "week": "2026-W44", "month": "2026-11", "year": "2026"}
    assert labels[0] == first[unit]
    assert len(labels) == {"hour": 6, "day": 5, "week": 5, "month": 3, "year": 2}[unit]
    assert_right(dataset)


def test_rows_are_written_in_any_order_and_late_rows_are_welcome(lake):
    dataset = made(lake)
    dataset.write(rows([5, 3, 4]))
    dataset.write(rows([1, 9], 3))
    dataset.write(rows([0, 4], 5))
    assert found(dataset)["id"].to_pylist() == [5, 3, 1, 2, 6, 0, 4]
    assert_right(dataset)


@pytest.mark.spark
def test_timeline_is_a_spark_frame_in_event_time_order(session, tmp_path):
    lake = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=session))
    dataset = made(lake)
    dataset.write(a_day())
    dataset.write(rows([n * 13 + 0.5 for n in range(300)], 5000))
    frame = dataset.timeline("2026-11-01", "2026-11-03")
    right = expected(dataset, "2026-11-01", "2026-11-03")
    assert frame.columns == right.schema.names[1:]
    assert [row["id"] for row in frame.collect()] == right["id"].to_pylist()


@pytest.mark.slow
def test_only_pieces_that_can_match_are_read():
    store = CountingStore(MemoryStore())
    dataset = made(fm.Lake(store))
    for day in range(4):
        dataset.write(rows([DAY_MINUTES * day + float(n) for n in range(DAY_MINUTES)], day * 2000))

    def bytes_read(*ends: str) -> int:
        fresh = fm.Lake(store)[NAME]
        assert_right(fresh, *([ends] if ends else []))
        fresh = fm.Lake(store)[NAME]
        before = store.counts
        found(fresh, *ends)
        return (store.counts - before).bytes_read

    whole, hour = bytes_read(), bytes_read("2026-11-02T10Z", "2026-11-02T11Z")
    assert hour < whole / 4


def test_batches_go_to_duckdb_polars_and_pandas(lake):
    dataset = made(lake)
    dataset.write(rows([5, 3, 4]))
    dataset.write(rows([1, 9], 3))
    right = [3, 1, 2, 0, 4]
    batches = dataset.timeline_batches()
    assert isinstance(batches, pa.RecordBatchReader)
    assert [row[0] for row in duckdb.from_arrow(batches).project("id").fetchall()] == right
    assert pl.from_arrow(dataset.timeline_batches().read_all())["id"].to_list() == right
    assert pd.DataFrame(dataset.timeline_batches().read_pandas())["id"].tolist() == right


@pytest.mark.process
def test_batches_need_no_jvm(tmp_path):
    code = f"""
import sys, floodmark as fm, pyarrow as pa
from datetime import datetime
lake = fm.Lake({str(tmp_path / "lake")!r})
d = lake.create("t", event_time="at", partition_by="day")
d.write(pa.table({{"at": [datetime(2026, 11, 1, 2), datetime(2026, 11, 1, 1)]}}))
d.write(pa.table({{"at": [datetime(2026, 11, 1, 0)]}}))
d.fold()
assert [at.hour for at in d.timeline_batches().read_all()["at"].to_pylist()] == [0, 1, 2]
assert "pyspark" not in sys.modules, "pyspark was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


def test_stats_say_rows_pieces_row_groups_dead_bytes_and_amplification(lake):
    dataset = keyed(lake)
    dataset.write(a_day(count=500))
    dataset.write(rows([0.5 + 9 * n for n in range(50)], tag="moved"))
    stats = dataset.timeline_stats()
    (day,) = stats.partitions
    assert day.label == "2026-11-01"
    assert day.rows >= 500
    assert day.row_groups >= 5
    assert day.pieces >= day.row_groups > 0
    assert day.dead_bytes > 0
    assert day.amplification is not None
    assert day.amplification > 0
    assert (stats.applied, stats.behind) == (dataset.last_offset + 1, 0)


def test_fold_takes_a_partition_or_all(lake):
    dataset = made(lake)
    dataset.write(rows([n * 7.5 for n in range(380)]))
    for number in range(5):
        dataset.write(rows([n * 31.5 + number for n in range(90)], 1000 * (number + 1)))
    untouched = [p for p in dataset.timeline_pieces().partitions if p.start != BEGIN]
    assert waiting(dataset)
    dataset.fold("2026-11-01")
    assert_folded(dataset, "2026-11-01")
    assert [p for p in dataset.timeline_pieces().partitions if p.start != BEGIN] == untouched
    dataset.fold()
    assert_folded(dataset)
    assert_right(dataset)


def test_range_takes_text_dates_and_times_and_is_half_open(lake):
    dataset = made(lake)
    dataset.write(rows([0, 1439.99, 1440, 2879, 2880]))
    for start, end in [
        ("2026-11-01", "2026-11-02"),
        (date(2026, 11, 1), date(2026, 11, 2)),
        (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC)),
    ]:
        assert found(dataset, start, end)["id"].to_pylist() == [0, 1]
    with pytest.raises(fm.FloodmarkError):
        dataset.timeline_batches("2026-11-02", "2026-11-01")


def test_command_line_shows_rows_and_pieces_and_folds(tmp_path):
    dataset = made(fm.Lake(tmp_path / "lake"))
    dataset.write(a_day(count=300))
    dataset.write(rows([0.5, 70.5]))
    for arguments in (["timeline", NAME], ["timeline", NAME, "--pieces"], ["fold", NAME]):
        done = CliRunner().invoke(floodmark, [*arguments, "--lake", str(tmp_path / "lake")])
        assert done.exit_code == 0, done.output
        assert done.stdout.strip()


# Pieces and manifests


def test_commit_writes_only_new_files_and_manifests_of_touched_partitions(lake):
    dataset = made(lake, late_merge="always")
    for day in range(3):
        dataset.write(rows([DAY_MINUTES * day + float(n) for n in range(DAY_MINUTES)], day * 2000))
    before = {p.start: p for p in dataset.timeline_pieces().partitions}
    files_before = files(dataset)
    dataset.write(rows([DAY_MINUTES + 500.5], 9000))
    after = {p.start: p for p in dataset.timeline_pieces().partitions}
    assert [start for start in after if after[start] != before[start]] == [BEGIN + DAY_MINUTES * MINUTE]
    assert files(dataset).items() >= files_before.items()
    new = [key for key in files(dataset) if key not in files_before]
    assert len(new) == 1
    rewritten = {p.file for p in after[BEGIN + DAY_MINUTES * MINUTE].pieces if p.how is PieceOrigin.MERGED}
    assert [key.endswith(next(iter(rewritten))) for key in new] == [True]


def test_untouched_row_groups_and_slices_of_touched_ones_are_referenced_in_place(lake):
    dataset = made(lake, row_group_size=1000)
    dataset.write(rows([n / 4 for n in range(4000)]))
    before = settled(dataset)
    dataset.write(rows([300 + n / 100 for n in range(40)], 9000))
    after = settled(dataset)
    assert {p for p in before if p.first.time > BEGIN + 500 * MINUTE} <= set(after)
    cut = [p for p in after if not p.is_whole and p.file in {old.file for old in before}]
    assert len(cut) == 2, "before and after the merged middle"
    assert_right(dataset)


def test_applied_offset_is_part_of_the_root_so_a_crashed_merge_simply_runs_again(tmp_path):
    store = Trouble(LocalStore(tmp_path / "lake"))
    dataset = made(fm.Lake(store))
    dataset.write(a_day())
    applied = dataset.timeline_root().applied
    store.strike(0, 10**6, "/info/timeline/root")  # neither read nor swapped
    dataset.write(rows([100.5], 5000))
    store.calm()
    assert dataset.timeline_root().applied == applied
    assert_right(dataset)
    assert dataset.update_timeline() is not None
    assert dataset.timeline_root().applied == applied + 1
    assert_right(dataset)


def test_old_readers_keep_their_snapshot(lake):
    dataset = keyed(lake)
    dataset.write(a_day())
    right = expected(dataset)
    reader = dataset.timeline_batches(columns=right.schema.names)
    dataset.write(rows([n + 0.5 for n in range(700)], tag="moved"))
    dataset.fold()
    assert difference(reader.read_all(), right) is None


# Cheap merges


def test_data_in_order_is_not_written_a_second_time(lake):
    dataset = made(lake)
    for day in range(3):
        dataset.write(rows([DAY_MINUTES * day + float(n) for n in range(DAY_MINUTES)], day * 2000))
    assert files(dataset) == {}
    assert {p.how for p in settled(dataset)} == {PieceOrigin.SLICE}
    assert all(p.file.startswith("data/") for p in settled(dataset))
    assert_right(dataset)


def test_late_rows_in_a_small_part_of_a_large_row_group_cut_it_by_reference(lake):
    dataset = made(lake, row_group_size=1000)
    dataset.write(rows([n / 4 for n in range(1000)]))
    (whole,) = settled(dataset)
    dataset.write(rows([100 + n / 100 for n in range(40)], 9000))
    before, middle, after = settled(dataset)
    assert (before.file, after.file) == (whole.file, whole.file)
    assert middle.how is PieceOrigin.MERGED
    assert middle.rows <= 40 + 250
    assert before.rows + middle.rows + after.rows == 1040
    assert waiting(dataset) == 0


@pytest.mark.slow
def test_late_rows_spread_thin_lie_over_row_groups_until_merging_pays(lake):
    dataset = made(lake, row_group_size=400)
    dataset.write(rows([n / 4 for n in range(4000)]))
    before = settled(dataset)
    dataset.write(rows([n * 33.3 for n in range(30)], 9000))
    assert waiting(dataset) == 30
    assert settled(dataset) == before
    assert_right(dataset)
    merged = 0
    for number in range(60):
        dataset.write(rows([n * 33.3 + number / 10 for n in range(30)], 10_000 + 100 * number))
        merged += any(p.how is PieceOrigin.MERGED for p in settled(dataset))
        assert waiting(dataset) < 4000
    assert merged
    assert_right(dataset)
    assert_sound(dataset)


def test_always_merges_once_per_commit(lake):
    dataset = made(lake, late_merge="always")
    dataset.write(a_day())
    for number in range(5):
        dataset.write(rows([50.5, 350.5, 650.5, 950.5], 9000 + 10 * number))
        assert waiting(dataset) == 0
        new = [p for p in settled(dataset) if p.since == dataset.timeline_root().version]
        assert [p.how for p in new] == [PieceOrigin.MERGED] * 4
    assert_right(dataset)


# Merging


@pytest.mark.spark
def test_merging_runs_as_spark_tasks_touched_row_groups_in_parallel(session, tmp_path, monkeypatch):
    lake = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=session))
    dataset = made(lake, late_merge="always")
    dataset.write(a_day())
    spark = mock.Mock(wraps=run_on_spark)
    monkeypatch.setattr("floodmark.timeline.tasks.run_on_spark", spark)
    set_limit(monkeypatch, "tasks.spark_bytes", 0)  # however little it is
    dataset.write(rows([50.5, 350.5, 650.5, 950.5], 9000))
    merges = [call.args[0] for call in spark.call_args_list if isinstance(call.args[0][0], FileTask)]
    assert [len(some) for some in merges] == [4]
    assert_right(dataset)
    assert_sound(dataset)


@pytest.mark.slow
@pytest.mark.parametrize(("late_merge", "fold"), [("auto", True), ("always", False)])
def test_equal_timestamps_keep_existing_rows_first_then_arrival_order(late_merge, fold, lake):
    dataset = made(lake, late_merge=late_merge, row_group_size=10)
    right = []
    for number in range(12):
        dataset.write(rows([7.0] * (number + 3) + [3.0, 8.0], 100 * number))
        right += [100 * number + n for n in range(number + 3)]
        if fold and number % 4 == 3:
            dataset.fold()
    assert found(dataset, "2026-11-01T00:07Z", "2026-11-01T00:08Z")["id"].to_pylist() == right
    assert_right(dataset)


def test_newer_record_replaces_the_older_one_at_the_same_key(lake):
    dataset = keyed(lake)
    dataset.write(a_day(count=300))
    dataset.write(rows([float(n) for n in range(300)], tag="new"))
    assert found(dataset)["tag"].to_pylist() == ["new"] * 300
    assert_right(dataset)


def test_correction_takes_the_old_row_out_at_its_old_event_time(lake):
    dataset = keyed(lake)
    dataset.write(a_day(count=300))
    dataset.write(rows([5000.0], 7))
    assert 7 not in found(dataset, "2026-11-01", "2026-11-02")["id"].to_pylist()
    assert found(dataset, "2026-11-04", "2026-11-05")["id"].to_pylist() == [7]
    assert_right(dataset)


def test_retraction_takes_the_row_out(lake):
    dataset = keyed(lake)
    dataset.write(a_day(count=300))
    dataset.delete([7, 8])
    assert set(range(300)) - set(found(dataset)["id"].to_pylist()) == {7, 8}
    assert_right(dataset)
    dataset.fold()
    assert_right(dataset)
    assert_folded(dataset)


def test_identical_rows_of_a_keyed_dataset_write_nothing():
    store = CountingStore(MemoryStore())
    dataset = keyed(fm.Lake(store))
    dataset.write(a_day(count=300))
    before, root = store.counts.bytes_put, dataset.timeline_root()
    dataset.write(a_day(count=300))
    assert store.counts.bytes_put == before
    assert dataset.timeline_root() == root


# Fold


@pytest.mark.slow
def test_fold_happens_by_itself_before_pieces_grow_many(lake):
    dataset = made(lake, row_group_size=16)
    dataset.write(rows([float(n) for n in range(64)]))
    for number in range(100):
        dataset.write(rows([number * 0.6], 1000 + number))
        (day,) = dataset.timeline_pieces().partitions
        assert len(day.settled) <= 4 * day.rows / 16 + 64 + 8
        assert len(day.pieces) - len(day.settled) <= 64
    assert_right(dataset)


@pytest.mark.slow
def test_files_are_removed_by_gc_after_a_grace_period(tmp_path):
    dataset = made(lake_on(LocalStore(tmp_path / "lake")))
    dataset.write(a_day())
    for number in range(8):
        dataset.write(rows([n * 20.5 + number for n in range(70)], 9000 + 100 * number))
    dataset.fold()
    old = files(dataset)
    used = {f"{dataset.snapshot().objects.folder}/{p.file}" for p in settled(dataset)}
    assert set(old) - used, "nothing was replaced, so nothing can be collected"
    dataset.collect_garbage()
    assert files(dataset) == old, "too early"
    later = lake_on(LocalStore(tmp_path / "lake"), later=8 * 86_400)[NAME]
    later.collect_garbage()
    assert set(files(later)) == set(old) & used
    assert_right(later)
    assert later.verify().problems == ()


# Schema evolution


def test_new_column_does_not_rewrite_old_partitions_and_reads_as_null(lake):
    dataset = made(lake)
    for day in range(2):
        dataset.write(rows([DAY_MINUTES * day + float(n) for n in range(DAY_MINUTES)], day * 2000))
    dataset.write(rows([n * 20.5 for n in range(70)], 9000))
    before, old = dataset.timeline_pieces().partitions, files(dataset)
    dataset.evolve({"note": "string"})
    assert dataset.timeline_pieces().partitions == before
    assert found(dataset)["note"].null_count == 2 * DAY_MINUTES + 70
    late = rows([DAY_MINUTES + 7.5], 9900).append_column("note", pa.array(["a"]))
    dataset.write(late)
    assert dataset.timeline_pieces().partitions[0] == before[0]
    assert files(dataset).items() >= old.items()
    assert_right(dataset)


# Eager and lazy


def test_eager_timeline_is_brought_up_to_date_at_each_write(lake):
    dataset = made(lake, timeline="eager")
    for number in range(3):
        dataset.write(rows([5.0 - number], number))
        assert dataset.timeline_stats().behind == 0


def test_lazy_timeline_reads_its_tail_from_the_ledger_sorted(lake):
    dataset = made(lake, timeline="lazy")
    dataset.write(a_day(count=300))
    dataset.write(rows([100.5, 3.5, 7.5], 9000))
    assert dataset.timeline_stats().behind == 303
    assert files(dataset) == {}
    assert_right(dataset, ("2026-11-01T00:03Z", "2026-11-01T01Z"))
    update = dataset.update_timeline()
    assert update is not None
    assert update.rows == 303
    assert dataset.timeline_stats().behind == 0
    dataset.write(rows([4.5], 9100))
    assert dataset.timeline_stats().behind == 1
    assert_right(dataset)


def test_write_whose_timeline_fails_has_succeeded_and_a_warning_says_so(tmp_path, caplog):
    store = Trouble(LocalStore(tmp_path / "lake"))
    dataset = made(fm.Lake(store))
    dataset.write(a_day(count=300))
    store.strike(0, 10**6)
    commit = dataset.write(rows([3.5], 9000))
    store.calm()
    assert commit.rows == 1
    assert "its timeline is behind" in caplog.text
    assert_right(dataset)
    dataset.write(rows([4.5], 9001))
    assert dataset.timeline_stats().behind == 0
    assert_right(dataset)


# How fast, by counts


@pytest.mark.slow
def test_spread_rows_rewrite_exactly_their_row_groups():
    """late_merge="always": 10 of 100 row groups; bytes at most 1.2 times theirs."""
    dataset = made(fm.Lake(MemoryStore()), late_merge="always", row_group_size=500)
    dataset.write(rows([n / 50 for n in range(50_000)]))
    before = settled(dataset)
    assert [p.rows for p in before] == [500] * 100
    touched = [before[n] for n in range(5, 100, 10)]
    late = [(p.first.time - BEGIN) / MINUTE + k + 0.005 for p in touched for k in range(10)]
    dataset.write(rows(late, 200_000))
    after = settled(dataset)
    assert set(before) - set(after) == set(touched)
    new = [p for p in after if p not in set(before)]
    assert len(new) == 10
    last = dataset.timeline_root().last
    assert last is not None
    assert last.bytes_written <= 1.2 * sum(p.size for p in touched)
    assert_right(dataset)


@pytest.mark.slow
def test_row_groups_never_exceed_one_and_a_half_times_their_size(lake):
    dataset = made(lake, row_group_size=50)
    for number in range(30):
        dataset.write(rows([number % 7 + n / 1000 for n in range(17 * (number % 9) + 1)], 1000 * number))
        assert all(p.group_rows <= 75 for p in dataset.timeline_pieces().partitions[0].pieces)
    dataset.fold()
    assert_folded(dataset)
    assert_right(dataset)


def test_dataset_without_a_timeline_says_how_to_get_one(lake):
    dataset = lake.create(NAME, event_time="at")
    dataset.write(a_day(count=3))
    with pytest.raises(fm.FloodmarkError) as refused:
        dataset.timeline_batches()
    assert "partition_by" in refused.value.hint


def test_verify_finds_a_damaged_piece_and_reading_goes_on_from_the_ledger(tmp_path, caplog):
    dataset = made(fm.Lake(tmp_path / "lake"), late_merge="always")
    dataset.write(a_day(count=300))
    dataset.write(rows([n * 20.5 for n in range(14)], 9000))
    assert dataset.verify().problems == ()
    key = max(files(dataset))
    path = Path(dataset.snapshot().objects.store.local_path(key))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x40
    path.chmod(0o644)
    path.write_bytes(bytes(data))
    fresh = fm.Lake(tmp_path / "lake")[NAME]
    assert fresh.verify().problems != ()
    assert_right(fresh)
    assert caplog.text
