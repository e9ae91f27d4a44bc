"""Fold: copies the living rows of small or half-dead slices into large files that reads use. Derived and disposable.

The ledger stays as it is. A folded file can be deleted at any time; its slices are read instead.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.engine import run, run_here
from floodmark.errors import FloodmarkError
from floodmark.ledger.current import living, without_lifeless
from floodmark.ledger.fold_check import damaged
from floodmark.ledger.fold_manifest import (
    FoldedFile,
    FoldedFiles,
    FoldManifest,
    encode,
    first_offset,
    mended_manifest,
    read_manifest,
)
from floodmark.ledger.fold_plan import Rule, Window, plan
from floodmark.ledger.keys import index as key_index
from floodmark.ledger.keys.key_index import KeyIndex
from floodmark.ledger.keys.rows import drop_lifeless
from floodmark.ledger.layout import Layout
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import NOBODY, Selection
from floodmark.ledger.snapshot import Snapshot, load_at
from floodmark.ledger.strategy import strategy_of
from floodmark.storage import sweep
from floodmark.storage.arrays import I64
from floodmark.storage.errors import StorageError
from floodmark.storage.scratch import explained, staging_area
from floodmark.storage.slices import ROW_GROUP_ROWS, write_rows
from floodmark.storage.sweep import GRACE_NANOS

SPARK_BYTES = 2 << 30
"""Above this much data the files are rewritten by Spark's tasks."""

SMALL_SLICES = 1000
"""So many small slices are folded after a write."""

WORTH_ROWS = 1000
"""Fewer dead records than these cost a reader less than folding them costs a writer."""

_THREADS = 2
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fold:
    """What a fold did: how many slices and older folded files it read, what it wrote, and the dead it left out."""

    read: int
    files: int
    rows: int
    bytes: int
    dead: int


@dataclass(frozen=True)
class FoldTask:
    """One window to be rewritten, wherever that happens."""

    objects: DatasetObjects
    layout: Layout
    selection: Selection
    slices: int
    at: int
    block: str
    folder: Path


@dataclass(frozen=True)
class _Work:
    """What there is to fold: files, and which of them become one."""

    before: FoldManifest
    selection: Selection
    windows: list[Window]

    @property
    def keys(self) -> set[str]:
        """The files that are read for it."""
        return {f.key for w in self.windows for f in self.selection.files[w.first : w.last]}


def fold(name: str, snapshot: Snapshot, dead: I64, runtime: Runtime, rule: Rule) -> Fold:
    """Rewrite what the rule says is worth it, as of a snapshot whose dead records are given.

    All folded files are checked against their hashes first; what a damaged one held is folded anew from the slices.
    """
    manifest = mended_manifest(snapshot.objects).starting_at(snapshot.purged_before)
    lost = damaged(snapshot.objects, manifest.files)
    return _carry_out(name, snapshot, runtime, _work(snapshot, dead, rule, manifest.without(lost)), lost)


def _fold_some(name: str, snapshot: Snapshot, dead: I64, runtime: Runtime, rule: Rule) -> Fold:
    """The same, but only the folded files that it reads are checked."""
    manifest = mended_manifest(snapshot.objects).starting_at(snapshot.purged_before)
    lost: list[FoldedFile] = []
    while True:
        work = _work(snapshot, dead, rule, manifest.without(lost))
        read = [f for f in manifest.files if f.key(snapshot.objects) in work.keys]
        if not (found := damaged(snapshot.objects, read)):
            return _carry_out(name, snapshot, runtime, work, lost)
        lost += found


def _work(snapshot: Snapshot, dead: I64, rule: Rule, manifest: FoldManifest) -> _Work:
    selection = living(snapshot, snapshot.purged_before, snapshot.next_offset, dead, manifest)
    return _Work(manifest, selection, plan(selection.files, selection.dead_rows.tolist(), rule))


def _carry_out(name: str, snapshot: Snapshot, runtime: Runtime, work: _Work, lost: list[FoldedFile]) -> Fold:
    """Write the files; `lost` ones leave the manifest and the store."""
    objects, layout = snapshot.objects, snapshot.require_layout(name)
    before, selection, windows = work.before, work.selection, work.windows
    with staging_area(objects.store) as folder:
        tasks = [_task(snapshot, layout, selection, window, folder) for window in windows]
        written = _run(name, tasks, runtime)
    now = runtime.clock()
    after = before.with_files(written, now).retired_since(now - GRACE_NANOS)
    if written or lost or after != before:
        objects.store.put_derived(objects.fold_manifest_key, encode(after))
    for key in {f.key(objects) for f in lost} - after.keys(objects):
        objects.store.delete(key)
    _sweep(objects, now)
    drop_lifeless(objects, snapshot.slices, selection.dead)
    if (purged := _purged_meanwhile(snapshot)) > 0:
        drop_purged(objects, purged)
    return Fold(
        read=sum(w.last - w.first for w in windows),
        files=sum(f.rows > 0 for f in written),
        rows=sum(f.rows for f in written),
        bytes=sum(f.size for f in written),
        dead=sum(int(selection.dead_rows[w.first : w.last].sum()) for w in windows),
    )


def _task(snapshot: Snapshot, layout: Layout, selection: Selection, window: Window, folder: Path) -> FoldTask:
    chosen = selection.part(window.first, window.last)
    starts = snapshot.slices.column("start").to_numpy()
    low, high = np.searchsorted(starts, [chosen.start, chosen.end])
    block = snapshot.slices.column("block")[-1].as_py().hex()
    alive = without_lifeless(chosen)
    return FoldTask(snapshot.objects, layout, alive, int(high - low), snapshot.next_offset, block, folder)


def _run(name: str, tasks: list[FoldTask], runtime: Runtime) -> list[FoldedFile]:
    if not tasks:
        return []
    size = sum(f.size for task in tasks for f in task.selection.files)
    runner: Any = partial(run, session=runtime.session) if size > SPARK_BYTES else partial(run_here, threads=_THREADS)
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
    """Write the living rows of one window as one file and put it into the store."""
    scan = Scan(task.objects, task.layout, task.selection, tuple(task.layout.read_schema.names))
    folder = task.folder if task.objects.is_local else task.objects.store.staging()
    path = folder / f"fold-{uuid.uuid4().hex}"
    try:
        with explained("a folded file", folder):
            made = write_rows(path, _row_groups(scan), scan.schema, task.layout.vocab)
        if made.rows:
            # It may take the place of a damaged one: the same rows have the same bytes, and so the same name.
            task.objects.store.put_derived_file(task.objects.fold_key(task.selection.start, made.physical_hash), path)
    finally:
        path.unlink(missing_ok=True)
    return FoldedFile(
        start=task.selection.start,
        end=task.selection.end,
        rows=made.rows,
        size=made.size if made.rows else 0,
        slices=task.slices,
        digest=made.physical_hash.digest.hex(),
        tail=made.tail,
        tail_checksum=made.tail_checksum,
        at=task.at,
        block=task.block,
    )


def _row_groups(scan: Scan) -> Iterator[pa.Table]:
    """The rows of a scan in tables of a row group each; small slices come as small batches."""
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
    with scan.readable():  # around reading only: that a file cannot be written is another story
        yield from scan.batches()


def _sweep(objects: DatasetObjects, now: int) -> None:
    try:
        sweep.collect(FoldedFiles(objects), (now - GRACE_NANOS) / 10**9)
    except StorageError as error:
        _log.warning("old folded files of %s stay (%s); the next fold removes them", objects.folder, error)


def drop_purged(objects: DatasetObjects, purged_before: int) -> None:
    """Delete the folded files that hold purged records, named by a manifest or not: a purge is meant to remove data."""
    before = read_manifest(objects)
    after = before.starting_at(purged_before)
    if after != before:
        objects.store.put_derived(objects.fold_manifest_key, encode(after))
    for info in list(objects.fold_files()):
        start = first_offset(info.key)
        if start is not None and start < purged_before:
            objects.store.delete(info.key)


def _purged_meanwhile(snapshot: Snapshot) -> int:
    head = snapshot.objects.read_head()
    if head is None or head == snapshot.head:
        return snapshot.purged_before
    return load_at(snapshot.objects, head, {}).purged_before


def fold_if_due(name: str, snapshot: Snapshot, cache: key_index.Cache, runtime: Runtime) -> None:
    """Fold after a write when many records are dead or slices are many and small; the write stands whatever happens.

    `cache` is where the dataset keeps the files of its key index.
    """
    fold_at = runtime.fold_at
    if fold_at is None:
        return

    def look(index: KeyIndex | None) -> None:
        if _is_due(snapshot, 0 if index is None else index.dead_from(snapshot.purged_before), fold_at):
            # Files with fewer dead can wait: half the threshold has to gather again before the next fold.
            rule = Rule(dead_part=fold_at / 2)
            _fold_some(name, snapshot, NOBODY if index is None else index.dead(), runtime, rule)

    try:
        if strategy_of(snapshot.state).is_keyed:
            key_index.mended(snapshot, cache, look)
        else:
            look(None)
    except (FloodmarkError, OSError, pa.ArrowException) as error:
        _log.warning("%s was written, but not folded (%s); reading it is slower until it is", name, error)


def _is_due(snapshot: Snapshot, dead: int, fold_at: float) -> bool:
    slices = snapshot.index.newest.totals.slices
    records = snapshot.records
    if slices < SMALL_SLICES and not _many(dead, records, fold_at):
        return False  # nothing is read for it: so it is after most writes
    manifest = read_manifest(snapshot.objects).starting_at(snapshot.purged_before)
    if _many(dead - manifest.absent, records - manifest.absent, fold_at):
        return True
    return slices - manifest.slices >= SMALL_SLICES and _small_slices(snapshot, manifest) >= SMALL_SLICES


def _many(dead: int, records: int, fold_at: float) -> bool:
    return dead >= max(WORTH_ROWS, fold_at * records)


def _small_slices(snapshot: Snapshot, manifest: FoldManifest) -> int:
    files = living(snapshot, snapshot.purged_before, snapshot.next_offset, NOBODY, manifest).files
    folded = {f.start for f in manifest.files}
    return sum(Rule().is_small(f.rows, f.size) for f in files if f.start not in folded)
