"""Look up stored results by key and signature, even if work was divided differently when they were computed.

The signature is a hash of the input rows that a result was computed from. A key that changed since has another
signature, so no stale result is found.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from floodmark.derive.commit import result_batch
from floodmark.functions.step_result import OutputShape
from floodmark.ledger.objects import DatasetObjects
from floodmark.rows.buckets import BUCKETS, FileBucket
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64, Hashes, HashIndex, Mask
from floodmark.storage.scratch import SortedFile
from floodmark.transforms.chunk_results import (
    ChunkEntries,
    NewResults,
    ResultRows,
    StoredChunk,
    cast_to_layout,
    output_strategy,
)
from floodmark.transforms.failed_keys import failed_column, failed_hashes
from floodmark.transforms.stored_results import ChunkStore

_ODD_HIGH, _ODD_LOW = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def identity(hashes: Hashes, signature: Hashes) -> Hashes:
    """One hash for a key and its signature."""
    return Hashes(hashes.high + signature.high * _ODD_HIGH, hashes.low ^ (signature.low * _ODD_LOW))


def gone_identity(hashes: Hashes) -> Hashes:
    """The identity of gone keys: they have no rows, so their signature is 0."""
    nothing = np.zeros(len(hashes), np.uint64)
    return identity(hashes, Hashes(nothing, nothing))


@dataclass(frozen=True)
class ResultIndex:
    """An index of all results that earlier runs left, in one file that tasks memory-map."""

    objects: DatasetObjects
    key: str
    checkpoints: tuple[StoredChunk, ...]

    @staticmethod
    def make(store: ChunkStore, found: Sequence[StoredChunk]) -> ResultIndex:
        """Write the index of these stored results; of two equal ones, the first counts.

        Failures are left out: their cause may be fixed, and with `fail_fast` a failure must be raised again.
        """
        parts = [_successful(store.entries(stored)) for stored in found]
        entries = ChunkEntries.joined(parts)
        index = HashIndex.of(identity(entries.hashes, entries.signature))
        which = np.repeat(np.arange(len(parts), dtype=np.uint32), [len(part) for part in parts])
        columns = [index.sorted.high, index.sorted.low, which[index.places]]
        batch = pa.RecordBatch.from_arrays([pa.array(c) for c in columns], ["high", "low", "checkpoint"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        key = store.index_key(uuid.uuid4().hex)
        store.objects.store.put_derived(key, sink.getvalue())
        return ResultIndex(store.objects, key, tuple(found))

    def open(self) -> OpenResultIndex:
        path = self.objects.store.local_path(self.key)
        source = pa.memory_map(str(path)) if path is not None else pa.py_buffer(self.objects.store.get(self.key))
        batch = pa.ipc.open_file(source).get_batch(0)
        high, low, checkpoint = (column.to_numpy() for column in batch.columns)
        return OpenResultIndex(HashIndex(Hashes(high, low)), checkpoint)

    def shares(self, used: BitMap) -> list[tuple[StoredChunk, Hashes]]:
        """Each stored chunk with the identities of its used results."""
        known = self.open()
        at = row_sets.to_array(used)
        which = known.checkpoint[at]
        order = np.argsort(which, kind="stable")
        ends = np.searchsorted(which[order], np.arange(len(self.checkpoints) + 1))
        parts = [known.index.sorted.take(at[order[start:end]]) for start, end in itertools.pairwise(ends)]
        return list(zip(self.checkpoints, parts, strict=True))

    def delete(self) -> None:
        self.objects.store.delete(self.key)


@dataclass(frozen=True)
class OpenResultIndex:
    """The opened index: results by identity."""

    index: HashIndex
    checkpoint: npt.NDArray[np.uint32]  # the number of each result's stored chunk

    def find(self, identities: Hashes) -> I64:
        """The position of each result in the index; -1 if it is not stored."""
        return self.index.find(identities)


def _successful(entries: ChunkEntries) -> ChunkEntries:
    return entries.take(np.flatnonzero(entries.attempts == 0))


@dataclass(frozen=True)
class FailedAttempts:
    """How often each failed key has failed so far."""

    index: HashIndex
    attempts: I64

    @staticmethod
    def of(failed: pa.Table) -> FailedAttempts:
        attempts = failed_column(failed, "attempts").to_numpy().astype(np.int64)
        return FailedAttempts(HashIndex.of(failed_hashes(failed)), attempts)

    def before(self, hashes: Hashes) -> I64:
        """The number of failed attempts of each key."""
        if not len(self.attempts):
            return np.zeros(len(hashes), np.int64)
        at = self.index.find(hashes)
        return np.where(at < 0, 0, self.attempts[at])


# Splitting stored results, so that a commit has exactly the used ones, in the columns of the outputs


def divide_chunk(
    store: ChunkStore, outputs: Sequence[OutputShape], share: tuple[StoredChunk, Hashes]
) -> tuple[list[StoredChunk], list[StoredChunk]]:
    """Divide a stored chunk into its used and its unused results; it is rewritten if it has both.

    `share` has the identities of the used results. Gone keys are in neither part: they may have rows again, so every
    run checks them itself.
    """
    stored, used = share
    if not len(used):
        return [], [stored]
    if len(used) == stored.keys:
        return [conform_chunk(store, stored.without_gone(), outputs)], []
    entries = store.entries(stored)
    mine = identity(entries.hashes, entries.signature).among(used)
    parts = [_rewrite(store, stored, outputs, entries, chosen, Hashes.joined([])) for chosen in (mine, ~mine)]
    store.discard([stored])  # after both parts are stored: a crash in between duplicates results, but loses none
    return [parts[0]], [parts[1]]


def conform_chunk(store: ChunkStore, stored: StoredChunk, outputs: Sequence[OutputShape]) -> StoredChunk:
    """The stored chunk with the columns of the outputs; it is rewritten if it has others."""
    pairs = zip(stored.outputs, stored.layouts, outputs, strict=True)
    if all(file is None or layout == shape.layout for file, layout, shape in pairs):
        return stored
    entries = store.entries(stored)
    gone = Hashes.joined([]) if stored.gone is None else stored.gone.read()
    rewritten = _rewrite(store, stored, outputs, entries, np.ones(len(entries), np.bool_), gone)
    store.discard([stored])
    return rewritten


def _rewrite(
    store: ChunkStore,
    stored: StoredChunk,
    outputs: Sequence[OutputShape],
    entries: ChunkEntries,
    chosen: Mask,
    gone: Hashes,
) -> StoredChunk:
    """A new stored chunk with the chosen keys of another one."""
    keys = HashIndex.of(entries.hashes.take(chosen))
    failed = stored.failed_table()
    if failed is not None:
        failed = failed.filter(pa.array(keys.has(failed_hashes(failed))))
    pairs = zip(stored.outputs, outputs, strict=True)
    rows = tuple(None if file is None else _rows_of(file, keys, shape) for file, shape in pairs)
    return store.put(stored.task, outputs, NewResults(rows, entries.take(chosen), gone, failed))


def _rows_of(file: SortedFile, keys: HashIndex, shape: OutputShape) -> ResultRows:
    """The rows of some keys in the columns of the output. Keys are hashed again, because their types may differ."""
    batch = FileBucket((file,), 0, BUCKETS).load()
    table = batch.table.filter(pa.array(keys.has(batch.place)))
    assert shape.layout is not None  # there are rows
    fitting = result_batch(cast_to_layout(table, shape.layout, shape.name), shape.layout, output_strategy(shape))
    return ResultRows(fitting.table, fitting.key, fitting.place)
