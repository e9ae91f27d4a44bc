"""Fold: copy the live rows of small slices, and of slices with many dead records, into large files for faster reads.

The ledger does not change. A folded file can be deleted at any time; then its slices are read instead.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.engine.run import run_in_threads, run_on_spark
from floodmark.engine.session import Runtime
from floodmark.errors import FloodmarkError, StorageError
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.scan import Scan
from floodmark.ledger.schema import Layout
from floodmark.ledger.selection import NO_OFFSETS, DataFile, Selection
from floodmark.ledger.snapshot import Snapshot, load_snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.rows import key_index_files, key_index_loader
from floodmark.rows.key_index import KeyIndex
from floodmark.rows.live_rows import (
    FoldedFile,
    FoldGarbage,
    FoldManifest,
    damaged_files,
    encode_manifest,
    first_offset,
    read_manifest,
    repair_manifest,
    select_live,
    without_dead_files,
)
from floodmark.rows.row_copies import remove_dead_copies
from floodmark.storage import sweep
from floodmark.storage.arrays import I64
from floodmark.storage.parquet import ROW_GROUP_ROWS, has_records, write_rows
from floodmark.storage.scratch import explain_write_errors, staging_area
from floodmark.storage.sweep import GRACE_NANOS

SPARK_BYTES = 2 << 30
"""With more data than this, Spark's tasks write the files."""

SMALL_SLICES = 1000
"""After a write, small slices are folded if there are this many."""

WORTH_ROWS = 1000
"""With fewer dead records than this, a fold costs more than it saves readers."""

_THREADS = 2
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoldReport:
    """The result of a fold."""

    read: int
    """How many slices and older folded files were read."""
    files: int
    """How many files were written."""
    rows: int
    """How many rows were written."""
    bytes: int
    """The size of the written files."""
    dead: int
    """How many dead records were left out."""


@dataclass(frozen=True)
class FoldTask:
    """One window to rewrite, in any process."""

    objects: DatasetObjects
    layout: Layout
    selection: Selection
    slices: int
    at: int
    block: str
    folder: Path


@dataclass(frozen=True)
class _Work:
    """The plan of a fold: the files, and which of them are joined."""

    before: FoldManifest
    selection: Selection
    windows: list[FoldWindow]

    @property
    def keys(self) -> set[str]:
        """The files that the fold reads."""
        return {f.key for w in self.windows for f in self.selection.files[w.first : w.last]}


def fold(name: str, snapshot: Snapshot, dead: I64, runtime: Runtime, rule: FoldRule) -> FoldReport:
    """Rewrite the files that the rule selects, as of a snapshot whose dead records are given.

    All folded files are first checked against their hashes. Damaged ones are written again from the slices.
    """
    manifest = repair_manifest(snapshot.objects).starting_at(snapshot.purged_before)
    lost = damaged_files(snapshot.objects, manifest.files)
    return _carry_out(name, snapshot, runtime, _work(snapshot, dead, rule, manifest.without(lost)), lost)


def _fold_some(name: str, snapshot: Snapshot, dead: I64, runtime: Runtime, rule: FoldRule) -> FoldReport:
    """The same, but check only the folded files that are read."""
    manifest = repair_manifest(snapshot.objects).starting_at(snapshot.purged_before)
    lost: list[FoldedFile] = []
    while True:
        work = _work(snapshot, dead, rule, manifest.without(lost))
        read = [f for f in manifest.files if f.key(snapshot.objects) in work.keys]
        if not (bad := damaged_files(snapshot.objects, read)):
            return _carry_out(name, snapshot, runtime, work, lost)
        lost += bad


def _work(snapshot: Snapshot, dead: I64, rule: FoldRule, manifest: FoldManifest) -> _Work:
    selection = select_live(snapshot, snapshot.purged_before, snapshot.next_offset, dead, manifest)
    return _Work(manifest, selection, plan_windows(selection.files, selection.dead_rows.tolist(), rule))


def _carry_out(name: str, snapshot: Snapshot, runtime: Runtime, work: _Work, lost: list[FoldedFile]) -> FoldReport:
    """Write the files. Remove the `lost` ones from the manifest and the store."""
    objects, layout = snapshot.objects, snapshot.require_layout(name)
    before, selection, windows = work.before, work.selection, work.windows
    with staging_area(objects.store) as folder:
        tasks = [_task(snapshot, layout, selection, window, folder) for window in windows]
        written = _run(name, tasks, runtime)
    now = runtime.clock()
    after = before.with_files(written, now).retired_since(now - GRACE_NANOS)
    if written or lost or after != before:
        objects.store.put_derived(objects.fold_manifest_key, encode_manifest(after))
    for key in {f.key(objects) for f in lost} - after.keys(objects):
        objects.store.delete(key)
    _sweep(objects, now)
    remove_dead_copies(objects, snapshot.slices, selection.dead)
    if (purged := _purged_before_now(snapshot)) > 0:
        drop_purged(objects, purged)
    return FoldReport(
        read=sum(w.last - w.first for w in windows),
        files=sum(f.rows > 0 for f in written),
        rows=sum(f.rows for f in written),
        bytes=sum(f.size for f in written),
        dead=sum(int(selection.dead_rows[w.first : w.last].sum()) for w in windows),
    )


def _task(snapshot: Snapshot, layout: Layout, selection: Selection, window: FoldWindow, folder: Path) -> FoldTask:
    chosen = selection.part(window.first, window.last)
    starts = snapshot.slices.column("start").to_numpy()
    low, high = np.searchsorted(starts, [chosen.start, chosen.end])
    block = snapshot.slices.column("block")[-1].as_py().hex()
    live = without_dead_files(chosen)
    return FoldTask(snapshot.objects, layout, live, int(high - low), snapshot.next_offset, block, folder)


def _run(name: str, tasks: list[FoldTask], runtime: Runtime) -> list[FoldedFile]:
    if not tasks:
        return []
    size = sum(f.size for task in tasks for f in task.selection.files)
    runner: Any = (
        partial(run_on_spark, session=runtime.session)
        if size > SPARK_BYTES
        else partial(run_in_threads, threads=_THREADS)
    )
    progress = runtime.progress()
    progress.start(f"folding {name}", sum(map(_rows, tasks)))
    try:
        written: list[FoldedFile] = runner(tasks, fold_window, progress=progress, weight=_rows)
    finally:
        progress.finish()
    return written


def _rows(task: FoldTask) -> int:
    return task.selection.end - task.selection.start


def fold_window(task: FoldTask) -> FoldedFile:
    """Write the live rows of one window as one file, and put it into the store."""
    scan = Scan(task.objects, task.layout, task.selection, tuple(task.layout.read_schema.names))
    folder = task.folder if task.objects.is_local else task.objects.store.staging()
    path = folder / f"fold-{uuid.uuid4().hex}"
    try:
        with explain_write_errors("a folded file", folder):
            file = write_rows(path, _row_groups(scan), scan.schema, task.layout.vocab)
        if file.rows:
            # This may replace a damaged file: the same rows give the same bytes, and so the same name.
            task.objects.store.put_derived_file(task.objects.fold_key(task.selection.start, file.physical_hash), path)
    finally:
        path.unlink(missing_ok=True)
    return FoldedFile(
        start=task.selection.start,
        end=task.selection.end,
        rows=file.rows,
        size=file.size if file.rows else 0,
        slices=task.slices,
        digest=file.physical_hash.digest.hex(),
        tail=file.tail,
        tail_checksum=file.tail_checksum,
        at=task.at,
        block=task.block,
    )


def _row_groups(scan: Scan) -> Iterator[pa.Table]:
    """The rows of a scan as tables of one row group each. Batches of small slices are joined."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in _read(scan) if scan.selection.files else ():
        waiting.append(batch.cast(scan.schema))
        rows += batch.num_rows
        while rows >= ROW_GROUP_ROWS:
            table = pa.Table.from_batches(waiting, scan.schema)
            yield table.slice(0, ROW_GROUP_ROWS)
            waiting = table.slice(ROW_GROUP_ROWS).to_batches()
            rows -= ROW_GROUP_ROWS
    if rows:
        yield pa.Table.from_batches(waiting, scan.schema)


def _read(scan: Scan) -> Iterator[pa.RecordBatch]:
    with scan.readable():  # around the read only: an error while writing must not count as a damaged slice
        yield from scan.batches()


def _sweep(objects: DatasetObjects, now: int) -> None:
    try:
        sweep.collect(FoldGarbage(objects), (now - GRACE_NANOS) / 10**9)
    except StorageError as error:
        _log.warning("old folded files of %s were not removed (%s); the next fold tries again", objects.folder, error)


def drop_purged(objects: DatasetObjects, purged_before: int) -> None:
    """Delete all folded files with purged records, also those that no manifest names: a purge must remove the data."""
    before = read_manifest(objects)
    after = before.starting_at(purged_before)
    if after != before:
        objects.store.put_derived(objects.fold_manifest_key, encode_manifest(after))
    for info in list(objects.fold_files()):
        start = first_offset(info.key)
        if start is not None and start < purged_before:
            objects.store.delete(info.key)


def list_files_with(objects: DatasetObjects, offsets: I64) -> list[str]:
    """The keys of all folded files that have one of these records."""
    return [info.key for info in objects.fold_files() if has_records(objects.store, info.key, offsets)]


def drop_files_with(objects: DatasetObjects, offsets: I64) -> None:
    """Delete all folded files that have one of these records, also those that no manifest names."""
    doomed = set(list_files_with(objects, offsets))
    if not doomed:
        return
    before = read_manifest(objects)
    after = FoldManifest(
        tuple(f for f in before.files if f.key(objects) not in doomed),
        tuple(r for r in before.retired if r.key(objects) not in doomed),
    )
    objects.store.put_derived(objects.fold_manifest_key, encode_manifest(after))
    for key in doomed:
        objects.store.delete(key)


def _purged_before_now(snapshot: Snapshot) -> int:
    """The offset below which records are purged at the present head: a purge may have run during the fold."""
    head = snapshot.objects.read_head()
    if head is None or head == snapshot.head:
        return snapshot.purged_before
    return load_snapshot(snapshot.objects, head, {}).purged_before


def fold_if_due(name: str, snapshot: Snapshot, cache: key_index_files.RunCache, runtime: Runtime) -> None:
    """Fold after a write if many records are dead or many slices are small. Errors are logged: the write is complete.

    `cache` has the opened files of the dataset's key index.
    """
    fold_at = runtime.fold_at
    if fold_at is None:
        return

    def fold_with(index: KeyIndex | None) -> None:
        if _is_due(snapshot, 0 if index is None else index.dead_from(snapshot.purged_before), fold_at):
            # Skip files with fewer dead records than half the threshold: the next fold comes only after as many more.
            rule = FoldRule(dead_part=fold_at / 2)
            _fold_some(name, snapshot, NO_OFFSETS if index is None else index.dead(), runtime, rule)

    try:
        if strategy_of(snapshot.state).is_keyed:
            key_index_loader.with_repair(snapshot, cache, fold_with)
        else:
            fold_with(None)
    except (FloodmarkError, OSError, pa.ArrowException) as error:
        _log.warning("%s was written but not folded (%s); reads are slower until the next fold", name, error)


def _is_due(snapshot: Snapshot, dead: int, fold_at: float) -> bool:
    slices = snapshot.index.newest.totals.slices
    records = snapshot.records
    if slices < SMALL_SLICES and not _many(dead, records, fold_at):
        return False  # the usual case after a write, decided without any read
    manifest = read_manifest(snapshot.objects).starting_at(snapshot.purged_before)
    if _many(dead - manifest.absent, records - manifest.absent, fold_at):
        return True
    return slices - manifest.slices >= SMALL_SLICES and _small_slices(snapshot, manifest) >= SMALL_SLICES


def _many(dead: int, records: int, fold_at: float) -> bool:
    return dead >= max(WORTH_ROWS, fold_at * records)


def _small_slices(snapshot: Snapshot, manifest: FoldManifest) -> int:
    files = select_live(snapshot, snapshot.purged_before, snapshot.next_offset, NO_OFFSETS, manifest).files
    folded = {f.start for f in manifest.files}
    return sum(FoldRule().is_small(f.rows, f.size) for f in files if f.start not in folded)


@dataclass(frozen=True)
class FoldRule:
    """How large folded files become, and from which share of dead records a file is rewritten."""

    target_bytes: int = 128 << 20
    target_rows: int = 1 << 22
    dead_part: float = 0.0  # zero: any dead record

    def is_small(self, rows: int, size: int) -> bool:
        """Whether a file with this many live records is faster to read when joined with adjacent files."""
        return size < self.target_bytes // 2 and rows < self.target_rows // 4


@dataclass(frozen=True)
class FoldWindow:
    """Adjacent files to join: those at positions [first, last)."""

    first: int
    last: int


def plan_windows(files: Sequence[DataFile], dead_rows: Sequence[int], rule: FoldRule) -> list[FoldWindow]:
    """The windows to rewrite, in order; `dead_rows` has the number of dead records in each file.

    A large file without dead records is not rewritten, nor is a small file between two such files.
    """
    windows: list[FoldWindow] = []
    first, rows, size, needed = 0, 0, 0, False

    def close(last: int) -> None:
        # A single file is rewritten only to remove its dead records.
        if needed or last - first > 1:
            windows.append(FoldWindow(first, last))

    for i, (file, dead) in enumerate(zip(files, dead_rows, strict=True)):
        live = file.rows - dead
        live_size = file.size * live // max(file.rows, 1)
        dirty = dead > 0 and dead >= rule.dead_part * file.rows
        joins = dirty or rule.is_small(live, live_size)
        fits = rows + live <= rule.target_rows and size + live_size <= rule.target_bytes
        if not (joins and fits):
            close(i)
            first, rows, size, needed = (i if joins else i + 1), 0, 0, False
        if joins:
            rows, size, needed = rows + live, size + live_size, needed or dirty
    close(len(files))
    return windows
