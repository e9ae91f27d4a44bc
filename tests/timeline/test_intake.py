"""Intake: slices in order are pointed at where they lie, others are sorted once, and nothing comes in twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import UnreadablePiece
from floodmark.storage.memory import MemoryStore
from floodmark.timeline import intake, piece_files
from floodmark.timeline import settings as partitions
from floodmark.timeline.intake import shared_groups, take_next_slices
from floodmark.timeline.manifest import TimelineObjects
from floodmark.timeline.piece_files import PieceFiles
from floodmark.timeline.pieces import PieceOrigin, time_points_of
from floodmark.timeline.settings import Settings
from limits import set_limit

DAY = datetime(2026, 11, 1, tzinfo=UTC)
BY_HOUR = Settings("hour", row_group_size=8)
NOBODY = np.empty(0, np.int64)


@pytest.fixture
def lake():
    return fm.Lake(MemoryStore(), runtime=fm.Runtime(fold_at=None))


def at(*minutes):
    return pa.array([DAY + timedelta(minutes=m) for m in minutes], pa.timestamp("us", "UTC"))


def keyed(*minutes):
    """Events whose key has nothing to do with their time, in the order of the keys."""
    rows = events(*minutes)
    return rows.append_column("id", pa.array(range(rows.num_rows), pa.int64()))


def events(*minutes):
    return pa.table({"at": at(*minutes), "v": [f"m{m}" for m in minutes]})


def take(dataset, settings=BY_HOUR, applied=0, dead=NOBODY):
    snapshot = dataset.snapshot()
    return take_next_slices(
        "ticks", snapshot, snapshot.layout, settings, applied, lambda ranges: _within(dead, ranges), fm.Runtime(), 3
    )


def _within(dead, ranges):
    return np.array([offset for offset in dead.tolist() if any(lo <= offset < hi for lo, hi in ranges)], np.int64)


def rows_in(dataset, pieces):
    """The rows of some pieces: minutes, and values."""
    snapshot = dataset.snapshot()
    files = PieceFiles(TimelineObjects(snapshot.objects), snapshot.layout)
    tables = [files.read(p, snapshot.layout.slice_schema.names) for p in pieces]
    for piece, rows in zip(pieces, tables, strict=True):
        times, offsets = time_points_of(rows, snapshot.layout)
        assert [(times[0], offsets[0]), (times[-1], offsets[-1])] == [piece.first, piece.last]
        assert (piece.offset_min, piece.offset_max) == (offsets.min(), offsets.max())
    return [row for table in tables for row in table.to_pylist()]


def check(dataset, found, settings, dead=()):
    """All living records are there once; the pieces of a slice are apart, in order, and each of one partition."""
    seen = []
    for start, stretches in found.partitions.items():
        for pieces in stretches:
            assert all(one.last < following.first for one, following in pairwise(pieces))
            for row in (rows := rows_in(dataset, pieces)):
                time = int(row["at"].timestamp() * 10**6)
                assert partitions.partition_starts(np.array([time]), settings.partition_by)[0] == start
            assert [(r["at"], r["offset"]) for r in rows] == sorted((r["at"], r["offset"]) for r in rows)
            assert all(p.rows <= settings.row_group_size * 3 // 2 for p in pieces)
            seen += rows
    expected = [r for r in dataset.changes_arrow().to_pylist() if r["offset"] not in dead]
    living = sorted((r for r in seen if r["offset"] not in dead), key=lambda r: r["offset"])
    assert [{k: r[k] for k in expected[0]} for r in living] == expected
    return seen


def test_slices_in_order_are_pointed_at_by_row_group_and_partition(lake):
    dataset = lake.create("ticks", event_time="at")
    dataset.write(events(0, 10, 10, 59, 60, 70, 130))
    found = take(dataset)
    assert [[p.rows for p in pieces] for stretches in found.partitions.values() for pieces in stretches] == [
        [4],
        [2],
        [1],
    ]
    every = [p for stretches in found.partitions.values() for pieces in stretches for p in pieces]
    assert {p.how for p in every} == {PieceOrigin.SLICE}
    assert {p.since for p in every} == {3}
    assert {p.file for p in every} == {dataset_file(dataset)}
    assert found.bytes_written == 0
    check(dataset, found, BY_HOUR)


def dataset_file(dataset):
    (info,) = dataset.snapshot().objects.store.list(f"{dataset.snapshot().objects.folder}/data")
    return info.key.removeprefix(f"{dataset.snapshot().objects.folder}/")


def test_a_large_row_group_is_cut_by_reference(lake):
    dataset = lake.create("ticks", event_time="at")
    dataset.write(events(*range(40)))
    (stretches,) = take(dataset).partitions.values()
    (pieces,) = stretches
    assert [p.rows for p in pieces] == [10, 10, 10, 10]
    assert sum(p.size for p in pieces) <= dataset.snapshot().size


def test_slices_out_of_order_are_sorted_into_one_file_each(lake):
    rng = np.random.default_rng(5)
    dataset = lake.create("keyed", event_time="at", merge="upsert", key=["id", "at"])
    for n in range(3):
        dataset.write(keyed(*rng.integers(400 * n, 400 * n + 400, 60).tolist()))
    found = take(dataset)
    every = [p for stretches in found.partitions.values() for pieces in stretches for p in pieces]
    assert {p.how for p in every} == {PieceOrigin.SORTED}
    assert len({p.file for p in every}) == 3
    stored = {i.key: i.size for i in TimelineObjects(dataset.snapshot().objects).files()}
    assert found.bytes_written == sum(stored.values()) > 0
    check(dataset, found, BY_HOUR)


def test_arrivals_count_records_and_share_out_bytes(lake):
    dataset = lake.create("ticks", event_time="at", merge="upsert", key=["id", "at"])
    dataset.write(keyed(0, 10, 70))
    dataset.write(keyed(71, 1))
    found = take(dataset)
    assert [a.rows for _, a in sorted(found.arrivals.items())] == [3, 2]
    assert found.rows == 5
    assert found.bytes_in == dataset.snapshot().size
    assert 0 <= found.bytes_in - sum(a.bytes_in for a in found.arrivals.values()) <= 4
    assert 0 < sum(a.bytes_written for a in found.arrivals.values()) <= found.bytes_written


@pytest.mark.parametrize("unit", ["hour", "day", "week", "month", "year"])
def test_every_living_record_of_a_keyed_dataset_comes_in_once(lake, unit):
    dataset = lake.create("ticks", event_time="at", merge="upsert", key=["id"])
    rng = np.random.default_rng(11)
    for n in range(4):
        ids = rng.permutation(50)[:30]
        minutes = rng.integers(-200_000, 200_000, 30).tolist()
        dataset.write(pa.table({"id": ids, "at": at(*minutes), "v": [f"{n}-{i}" for i in ids]}))
    dead = dataset.parts.rows.dead(dataset.snapshot())
    settings = Settings(unit, row_group_size=8)
    found = take(dataset, settings, dead=dead)
    seen = check(dataset, found, settings, dead=set(dead.tolist()))
    assert not {r["offset"] for r in seen} & set(dead.tolist())  # all of these slices had to be sorted
    assert found.killed_times.tolist() == []  # who was taken out came in at the same time


def test_corrections_of_older_records_say_when_those_happened(lake):
    dataset = lake.create("ticks", event_time="at", merge="upsert", key=["id"])
    dataset.write(pa.table({"id": [1, 2, 3], "at": at(30, 20, 10), "v": ["a", "b", "c"]}))
    applied = dataset.snapshot().next_offset
    dataset.write(pa.table({"id": [1, 2], "at": at(300, 20), "v": ["A", "B"]}))
    dead = dataset.parts.rows.dead(dataset.snapshot())
    found = take(dataset, applied=applied, dead=dead)
    minutes = (found.killed_times - int(DAY.timestamp()) * 10**6) // 60_000_000
    assert minutes.tolist() == [20, 30]


def test_a_referenced_piece_knows_its_dead_and_is_left_out_when_it_has_no_others(lake):
    dataset = lake.create("ticks", event_time="at", merge="upsert", key=["id"])
    dataset.write(pa.table({"id": list(range(6)), "at": at(0, 1, 2, 3, 70, 71), "v": ["x"] * 6}))
    dead = np.array([1, 4, 5])
    found = take(dataset, dead=dead)
    ((pieces,),) = found.partitions.values()
    assert [(p.rows, p.dead) for p in pieces] == [(4, 1)]
    assert [a.rows for _, a in sorted(found.arrivals.items())] == [4, 2]


def test_intake_goes_on_from_what_is_applied_slice_by_slice(lake, monkeypatch):
    set_limit(monkeypatch, "intake.step_rows", 5)
    dataset = lake.create("ticks", event_time="at")
    for n in (3, 2, 4, 7, 1):
        dataset.write(events(*range(n)))
    ends, applied = [], 0
    while (found := take(dataset, applied=applied)) is not None:
        slices = dataset.snapshot().slices
        number = slices.column("end").to_pylist().index(found.end)
        assert found.block == slices.column("block")[number].as_py().hex()
        assert found.rows == found.end - applied
        ends.append(applied := found.end)
    assert ends == [5, 9, 16, 17]


def test_a_step_takes_in_so_many_bytes_or_one_slice(lake, monkeypatch):
    dataset = lake.create("ticks", event_time="at")
    for _ in range(4):
        dataset.write(events(*range(5)))
    sizes = dataset.snapshot().slices.column("size").to_pylist()  # they may differ by some bytes
    three = sum(sizes[:3])
    for limit, end in ((1, 5), (sizes[0], 5), (three - 1, 10), (three, 15), (3 * three, 20)):
        set_limit(monkeypatch, "intake.step_bytes", limit)
        assert take(dataset).end == end


def test_a_large_slice_is_sorted_part_by_part_so_that_memory_does_not_have_all_of_it(lake, monkeypatch):
    set_limit(monkeypatch, "intake.sort_bytes", 1)
    read, held = PieceFiles.read, []

    def counted(files, piece, columns):
        table = read(files, piece, columns)
        if len(columns) > 2:
            held.append(table.num_rows)
        return table

    dataset = lake.create(
        "ticks",
        event_time="at",
        merge="upsert",
        key=["id", "at"],
        partition_by="day",
        row_group_size=10,
        timeline="lazy",
    )
    rng = np.random.default_rng(3)
    dataset.write(keyed(*rng.integers(0, 1000, 60).tolist()))
    copies = []
    real = piece_files.write_groups
    monkeypatch.setattr(PieceFiles, "read", counted)
    monkeypatch.setattr(intake, "write_groups", lambda *args: copies.append(len(held)) or real(*args))
    found = take(dataset, Settings("day", row_group_size=10))
    assert copies == [1, 2, 3, 4, 5, 6]  # one row group is read, and written before the next one is
    assert [sum(p.rows for p in pieces) for (stretches) in found.partitions.values() for pieces in stretches] == [
        10
    ] * 6
    assert found.bytes_written == sum(i.size for i in TimelineObjects(dataset.snapshot().objects).files())
    monkeypatch.undo()
    check(dataset, found, Settings("day", row_group_size=10))


def test_a_column_that_came_later_is_null_in_sorted_copies_of_older_slices(lake):
    dataset = lake.create("ticks", event_time="at", merge="upsert", key=["id", "at"])
    dataset.write(keyed(5, 3))
    dataset.evolve({"more": pa.int64()})
    dataset.write(keyed(9, 8).append_column("more", pa.array([1, 2])))
    (stretches,) = take(dataset).partitions.values()
    assert [[r["more"] for r in rows_in(dataset, pieces)] for pieces in stretches] == [[None, None], [2, 1]]


def test_purged_slices_do_not_come_in(lake):
    dataset = lake.create("ticks", event_time="at")
    dataset.write(events(0, 1))
    dataset.write(events(5, 4))
    dataset.purge(before=2)
    found = take(dataset)
    assert (found.rows, found.end) == (2, 4)


def test_a_slice_that_is_gone_is_named(lake):
    dataset = lake.create("ticks", event_time="at")
    dataset.write(events(0, 1))
    file = dataset_file(dataset)
    objects = dataset.snapshot().objects
    objects.store.delete(f"{objects.folder}/{file}")
    with pytest.raises(UnreadablePiece, match=file):
        take(dataset)


def test_a_slice_with_other_records_than_the_chain_says_is_refused(lake):
    dataset, other = (lake.create(name, event_time="at") for name in ("ticks", "others"))
    dataset.write(events(0, 1))
    other.write(events(0, 1, 2))
    store, folders = lake.store, [d.snapshot().objects.folder for d in (dataset, other)]
    file = dataset_file(dataset)
    store.delete(f"{folders[0]}/{file}")
    store.put_if_absent(f"{folders[0]}/{file}", store.get(f"{folders[1]}/{dataset_file(other)}"))
    with pytest.raises(UnreadablePiece, match="has 3 records, not 2"):
        take(dataset)


def groups_of(*sizes, most=12):
    """How many rows of which partitions, given by their sizes, each row group has."""
    bounds = np.cumsum([0, *sizes]).tolist()
    found: dict[int, list[int]] = {}
    for s in shared_groups(bounds, np.arange(bounds[-1]), most):
        assert s.group_lo == sum(found.setdefault(s.row_group, []))
        found[s.row_group].append(s.hi - s.lo)
    return [found[n] for n in range(len(found))]


def test_small_partitions_share_row_groups_and_large_ones_have_their_own():
    assert groups_of(2, 2, 2) == [[2, 2, 2]]
    assert groups_of(2, 2, 2, 2, 2, 2, 1, 2) == [[2, 2, 2, 2, 2, 2], [1, 2]]
    assert groups_of(2, 3, 1, 1, 9, 2) == [[2], [3], [1, 1], [9], [2]]
    assert groups_of(1, 40, 1, 1) == [[1], [14], [13], [13], [1, 1]]
