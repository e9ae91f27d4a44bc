"""Results that are stored already, found by key and by what they depend on, however work was cut when they were made.

A result is *known* when its key's hash and its signature (which rows of which inputs it was computed from) are those of
a checkpoint. A key that has changed since has another signature, so nothing stale is ever found.
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

from floodmark.compute import addresses
from floodmark.ledger.merge.buckets import BUCKETS, FileBucket, SortedFile
from floodmark.ledger.merge.results import result_batch
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.arrays import I64, Hashes, HashIndex, Mask
from floodmark.transform.functions.returned import OutputShape
from floodmark.transform.meta.failed import failed_column, failed_hashes
from floodmark.transform.tasks.checkpoints import ChunkStore
from floodmark.transform.tasks.columns import in_layout
from floodmark.transform.tasks.stored import Entries, Fresh, Rows, Stored, strategy_of

_ODD_HIGH, _ODD_LOW = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def identity(hashes: Hashes, signature: Hashes) -> Hashes:
    """One hash for a key and what its result depends on."""
    return Hashes(hashes.high + signature.high * _ODD_HIGH, hashes.low ^ (signature.low * _ODD_LOW))


def gone_identity(hashes: Hashes) -> Hashes:
    """The same of keys that depend on nothing."""
    nothing = np.zeros(len(hashes), np.uint64)
    return identity(hashes, Hashes(nothing, nothing))


@dataclass(frozen=True)
class FoundIndex:
    """All results that an earlier run has left, in one file that tasks map."""

    objects: DatasetObjects
    key: str
    checkpoints: tuple[Stored, ...]

    @staticmethod
    def make(store: ChunkStore, found: Sequence[Stored]) -> FoundIndex:
        """Write the index of these checkpoints; where two have the same result, the first one's counts.

        Failures are left out: their cause may be gone since, and whoever asked to stop at one wants to hear of it.
        """
        parts = [_succeeded(store.entries(stored)) for stored in found]
        entries = Entries.joined(parts)
        index = HashIndex.of(identity(entries.hashes, entries.signature))
        which = np.repeat(np.arange(len(parts), dtype=np.uint32), [len(part) for part in parts])
        columns = [index.sorted.high, index.sorted.low, which[index.places]]
        batch = pa.RecordBatch.from_arrays([pa.array(c) for c in columns], ["high", "low", "checkpoint"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        key = store.index_key(uuid.uuid4().hex)
        store.objects.store.put_derived(key, sink.getvalue())
        return FoundIndex(store.objects, key, tuple(found))

    def open(self) -> Known:
        path = self.objects.store.local_path(self.key)
        source = pa.memory_map(str(path)) if path is not None else pa.py_buffer(self.objects.store.get(self.key))
        batch = pa.ipc.open_file(source).get_batch(0)
        high, low, checkpoint = (column.to_numpy() for column in batch.columns)
        return Known(HashIndex(Hashes(high, low)), checkpoint)

    def shares(self, used: BitMap) -> list[tuple[Stored, Hashes]]:
        """Each checkpoint with the identities of its results that are used."""
        known = self.open()
        at = addresses.to_array(used)
        which = known.checkpoint[at]
        order = np.argsort(which, kind="stable")
        ends = np.searchsorted(which[order], np.arange(len(self.checkpoints) + 1))
        parts = [known.index.sorted.take(at[order[start:end]]) for start, end in itertools.pairwise(ends)]
        return list(zip(self.checkpoints, parts, strict=True))

    def delete(self) -> None:
        self.objects.store.delete(self.key)


@dataclass(frozen=True)
class Known:
    """The opened index: results by identity."""

    index: HashIndex
    checkpoint: npt.NDArray[np.uint32]

    def find(self, wanted: Hashes) -> I64:
        """The place of each result; -1 where there is none."""
        return self.index.find(wanted)


def _succeeded(entries: Entries) -> Entries:
    return entries.take(np.flatnonzero(entries.attempts == 0))


@dataclass(frozen=True)
class Tried:
    """How often keys have failed so far."""

    index: HashIndex
    attempts: I64

    @staticmethod
    def of(failed: pa.Table) -> Tried:
        attempts = failed_column(failed, "attempts").to_numpy().astype(np.int64)
        return Tried(HashIndex.of(failed_hashes(failed)), attempts)

    def before(self, hashes: Hashes) -> I64:
        """The number of failed attempts of each key."""
        if not len(self.attempts):
            return np.zeros(len(hashes), np.int64)
        at = self.index.find(hashes)
        return np.where(at < 0, 0, self.attempts[at])


# Splitting what was found: it holds what is used now and nothing else, and all has the same columns


def divided(
    store: ChunkStore, outputs: Sequence[OutputShape], share: tuple[Stored, Hashes]
) -> tuple[list[Stored], list[Stored]]:
    """A found checkpoint as what is used of it and what is not; it is cut in two where there is some of both.

    `share` has the identities of the results that are used. Keys that were gone are in neither: they may have come back
    since, and every run finds out by itself.
    """
    stored, used = share
    if not len(used):
        return [], [stored]
    if len(used) == stored.keys:
        return [conformed(store, stored.without_gone(), outputs)], []
    entries = store.entries(stored)
    mine = identity(entries.hashes, entries.signature).among(used)
    parts = [_rewritten(store, stored, outputs, entries, chosen, Hashes.joined([])) for chosen in (mine, ~mine)]
    store.discard([stored])  # after both: a crash in between leaves results twice, never not at all
    return [parts[0]], [parts[1]]


def conformed(store: ChunkStore, stored: Stored, outputs: Sequence[OutputShape]) -> Stored:
    """A checkpoint whose rows have the columns of the outputs."""
    pairs = zip(stored.outputs, stored.layouts, outputs, strict=True)
    if all(file is None or layout == shape.layout for file, layout, shape in pairs):
        return stored
    entries = store.entries(stored)
    gone = Hashes.joined([]) if stored.gone is None else stored.gone.read()
    again = _rewritten(store, stored, outputs, entries, np.ones(len(entries), np.bool_), gone)
    store.discard([stored])
    return again


def _rewritten(
    store: ChunkStore, stored: Stored, outputs: Sequence[OutputShape], entries: Entries, chosen: Mask, gone: Hashes
) -> Stored:
    """A new checkpoint with the chosen keys of another one."""
    keys = HashIndex.of(entries.hashes.take(chosen))
    failed = stored.failed_table()
    if failed is not None:
        failed = failed.filter(pa.array(keys.has(failed_hashes(failed))))
    pairs = zip(stored.outputs, outputs, strict=True)
    rows = tuple(None if file is None else _rows_of(file, keys, shape) for file, shape in pairs)
    return store.put(stored.task, outputs, Fresh(rows, entries.take(chosen), gone, failed))


def _rows_of(file: SortedFile, keys: HashIndex, shape: OutputShape) -> Rows:
    """The rows of some keys, with the columns of the output; a row's key is hashed anew, for its type may differ."""
    batch = FileBucket((file,), 0, BUCKETS).load()
    table = batch.table.filter(pa.array(keys.has(batch.place)))
    assert shape.layout is not None  # there are rows
    fitting = result_batch(in_layout(table, shape.layout, shape.name), shape.layout, strategy_of(shape))
    return Rows(fitting.table, fitting.key, fitting.place)
