"""What must hold for the pieces of a timeline, looked at in the files themselves."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.timeline import settings as units
from floodmark.timeline.pieces import Partition, Piece
from timeline.oracle import alive, all_records, micros

Places = list[tuple[int, int]]


class Files:
    """The row groups of a dataset's files, straight from these; what a content says is worked out once."""

    def __init__(self, dataset: Dataset) -> None:
        self._objects, self._event_time = dataset.snapshot().objects, dataset.event_time
        self._groups: dict[str, list[Places]] = {}

    def places(self, piece: Piece) -> Places:
        """The (event time, offset) of each row of a piece."""
        if piece.file not in self._groups:
            self._groups[piece.file] = self._read(piece.file)
        group = self._groups[piece.file][piece.row_group]
        assert len(group) == piece.group_rows, f"{piece} counts the rows of its row group wrong"
        return group[piece.row_lo : piece.row_hi]

    def _read(self, name: str) -> list[Places]:
        return _row_groups(self._objects.store.get(f"{self._objects.folder}/{name}"), self._event_time)


@lru_cache(1000)
def _row_groups(content: bytes, event_time: str) -> list[Places]:
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        groups = [file.read_row_group(n, ["offset", event_time]) for n in range(file.metadata.num_row_groups)]
    return [_places(group["offset"], group[event_time]) for group in groups]


def _places(offsets: pa.ChunkedArray, times: pa.ChunkedArray) -> Places:
    return list(zip(map(micros, times.to_pylist()), offsets.to_pylist(), strict=True))


def problems(dataset: Dataset, records: pa.Table | None = None) -> list[str]:
    """What is wrong with the layout of a timeline, in sentences. `records` are all of them, if they are at hand."""
    seen = dataset.timeline_pieces()
    found: list[str] = []
    offsets: Counter[int] = Counter()
    files = Files(dataset)
    purged = dataset.snapshot().purged_before
    for partition in seen.partitions:
        found += _order_problems(partition, seen.settings)
        for piece in partition.pieces:
            if piece.offset_max < purged and seen.root.purged_before < purged:
                continue  # the purge was cut short: its slices may be gone, and the next change drops the piece
            try:
                places = files.places(piece)
            except (fm.FloodmarkError, OSError, pa.ArrowException) as error:
                found.append(f"{piece} cannot be read: {error}")
                continue
            offsets.update(offset for _, offset in places)
            found += _piece_problems(piece, places, partition, seen.settings.partition_by)
    records = all_records(dataset) if records is None else records
    found += _record_problems(dataset, records, offsets, seen.root.applied)
    starts = [p.start for p in seen.partitions]
    if starts != sorted(set(starts)):
        found.append(f"partitions are not in order: {starts}")
    return found


def _order_problems(partition: Partition, settings: Any) -> list[str]:
    found = []
    lists = [partition.settled, *(run.pieces for run in partition.waiting)]
    for pieces in lists:
        for one, next_one in pairwise(pieces):
            if one.last >= next_one.first:
                found.append(f"pieces overlap: {one} and {next_one}")
    if any(not pieces for pieces in lists[1:]):
        found.append(f"a run without pieces waits in {partition.start}")
    if settings.late_merge == "always" and partition.waiting:
        found.append(f"rows wait in {partition.start}, though late_merge='always'")
    ids = [run.id for run in partition.waiting]
    if len(set(ids)) < len(ids):
        found.append(f"two runs of one id: {ids}")
    most = 1.5 * settings.row_group_size
    found += [f"more than 1.5 row groups of rows: {p}" for p in partition.pieces if p.group_rows > most]
    return found


def _piece_problems(piece: Piece, places: list[tuple[int, int]], partition: Partition, unit: Any) -> list[str]:
    found = []
    if not places:
        return [f"a piece without rows: {piece}"]
    if places != sorted(places):
        found.append(f"rows are not in order: {piece}")
    if (tuple(piece.first), tuple(piece.last)) != (places[0], places[-1]):
        found.append(f"{piece} says it goes from {piece.first} to {piece.last}, not {places[0]} to {places[-1]}")
    bounds = min(o for _, o in places), max(o for _, o in places)
    if not (piece.offset_min <= bounds[0] and bounds[1] <= piece.offset_max):
        found.append(f"{piece} has offsets {bounds}")
    end = units.partition_end(partition.start, unit)
    if not (partition.start <= piece.first.time and piece.last.time < end):
        found.append(f"{piece} is not within its partition, {partition.start} to {end}")
    if piece.dead < 0:
        found.append(f"fewer than no dead rows: {piece}")
    return found


def _record_problems(dataset: Dataset, records: pa.Table, offsets: Counter[int], applied: int) -> list[str]:
    found = []
    snapshot = dataset.snapshot()
    if applied > snapshot.next_offset:
        found.append(f"{applied} records are in the timeline, but there are {snapshot.next_offset}")
    if twice := [offset for offset, count in offsets.items() if count > 1]:
        found.append(f"offsets that are there twice: {sorted(twice)[:10]}")
    if early := [offset for offset in offsets if offset >= applied]:
        found.append(f"offsets that are not applied yet: {sorted(early)[:10]}")
    numbers = records["offset"].to_pylist()
    living = {numbers[position] for position in alive(dataset, records) if numbers[position] < applied}
    if missing := living - offsets.keys():
        found.append(f"living records that no piece holds: {sorted(missing)[:10]}")
    return found


def fold_problems(dataset: Dataset, partition: str | None = None) -> list[str]:
    """What is wrong with a timeline that has just been folded, or with one partition of it."""
    seen = dataset.timeline_pieces()
    rgs = seen.settings.row_group_size
    records = all_records(dataset)
    numbers = records["offset"].to_pylist()
    living = {numbers[position] for position in alive(dataset, records)}
    found, files = [], Files(dataset)
    for each in seen.partitions:
        label = units.partition_label(each.start, seen.settings.partition_by)
        if partition is not None and label != partition:
            continue
        if each.waiting:
            found.append(f"{label}: {len(each.waiting)} runs still wait")
        small = [p.rows for p in each.settled if 4 * p.rows < rgs]
        if len(small) > 1:
            found.append(f"{label}: {len(small)} small row groups: {small}")
        if any(p.rows > 1.5 * rgs for p in each.settled):
            found.append(f"{label}: row groups of {[p.rows for p in each.settled]} rows")
        dead = [o for p in each.settled for _, o in files.places(p) if o not in living]
        if dead or any(p.dead for p in each.settled):
            found.append(f"{label}: dead rows {dead[:10]} remain, counted as {[p.dead for p in each.settled]}")
    return found


def purge_problems(dataset: Dataset) -> list[str]:
    """Copies of purged records that still lie somewhere in the timeline's files, whether a piece shows them or not."""
    return [f"{key} holds the purged offsets {old[:5]}" for key, old in purged_copies(dataset).items()]


def purged_copies(dataset: Dataset) -> dict[str, list[int]]:
    """The same as keys of files and the purged offsets in each; all rows are looked at, no footer is believed."""
    objects, purged = dataset.snapshot().objects, dataset.snapshot().purged_before
    if not purged:
        return {}
    found = {}
    for info in objects.store.list(f"{objects.folder}/info/timeline/files"):
        if old := [offset for offset in _offsets(objects.store.get(info.key)) if offset < purged]:
            found[info.key] = old
    return found


@lru_cache(1000)
def _offsets(content: bytes) -> list[int]:
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        return file.read(["offset"])["offset"].to_pylist()


def assert_sound(dataset: Dataset) -> None:
    assert problems(dataset) == []


def assert_folded(dataset: Dataset, partition: str | None = None) -> None:
    assert fold_problems(dataset, partition) == []
