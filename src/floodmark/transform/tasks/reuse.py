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
from floodmark.ledger.keys.entries import stable_order, starts_of_groups
from floodmark.ledger.keys.records import I64, Hashes
from floodmark.ledger.keys.search import BEFORE, bound
from floodmark.ledger.objects import DatasetObjects
from floodmark.transform.meta.failed import failed_column, failed_hashes
from floodmark.transform.tasks.checkpoints import ChunkStore
from floodmark.transform.tasks.stored import Entries, Stored

_ODD_HIGH, _ODD_LOW = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)

Mask = npt.NDArray[np.bool_]


def identity(hashes: Hashes, signature: Hashes) -> Hashes:
    """One hash for a key and what its result depends on."""
    return Hashes(hashes.high + signature.high * _ODD_HIGH, hashes.low ^ (signature.low * _ODD_LOW))


def gone_identity(hashes: Hashes) -> Hashes:
    """The same of keys that depend on nothing."""
    nothing = np.zeros(len(hashes), np.uint64)
    return identity(hashes, Hashes(nothing, nothing))


@dataclass(frozen=True)
class Places:
    """Hashes in ascending order, each once, and where each was before."""

    sorted: Hashes
    at: I64

    @staticmethod
    def of(hashes: Hashes) -> Places:
        order = stable_order([hashes.high, hashes.low])
        high, low = hashes.high[order], hashes.low[order]
        first = np.flatnonzero(starts_of_groups([high, low]))
        return Places(Hashes(high[first], low[first]), order[first])

    def find(self, hashes: Hashes) -> I64:
        """The place of each among the sorted ones; -1 where it is not there."""
        return find(self.sorted, hashes)


def find(among: Hashes, wanted: Hashes) -> I64:
    """Where each hash stands among sorted ones; -1 where it does not."""
    if not len(among):
        return np.full(len(wanted), -1, np.int64)
    at, _ = bound([among.high, among.low], [wanted.high, wanted.low], BEFORE)
    inside = np.minimum(at, len(among) - 1)
    there = (at < len(among)) & among.take(inside).same(wanted)
    result: I64 = np.where(there, inside, -1)
    return result


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
        places = Places.of(identity(entries.hashes, entries.signature))
        which = np.repeat(np.arange(len(parts), dtype=np.uint32), [len(part) for part in parts])
        columns = [places.sorted.high, places.sorted.low, which[places.at]]
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
        return Known(Hashes(high, low), checkpoint)

    def shares(self, used: BitMap) -> list[tuple[Stored, Hashes]]:
        """Each checkpoint with the identities of its results that are used."""
        known = self.open()
        at = addresses.to_array(used)
        which = known.checkpoint[at]
        order = np.argsort(which, kind="stable")
        ends = np.searchsorted(which[order], np.arange(len(self.checkpoints) + 1))
        parts = [known.sorted.take(at[order[start:end]]) for start, end in itertools.pairwise(ends)]
        return list(zip(self.checkpoints, parts, strict=True))

    def delete(self) -> None:
        self.objects.store.delete(self.key)


@dataclass(frozen=True)
class Known:
    """The opened index: results by identity."""

    sorted: Hashes
    checkpoint: npt.NDArray[np.uint32]

    def find(self, wanted: Hashes) -> I64:
        """The place of each result; -1 where there is none."""
        return find(self.sorted, wanted)


def _succeeded(entries: Entries) -> Entries:
    return entries.take(np.flatnonzero(entries.attempts == 0))


@dataclass(frozen=True)
class Tried:
    """How often keys have failed so far."""

    sorted: Hashes
    attempts: I64

    @staticmethod
    def of(failed: pa.Table) -> Tried:
        places = Places.of(failed_hashes(failed))
        return Tried(places.sorted, failed_column(failed, "attempts").to_numpy().astype(np.int64)[places.at])

    def before(self, hashes: Hashes) -> I64:
        """The number of failed attempts of each key."""
        if not len(self.sorted):
            return np.zeros(len(hashes), np.int64)
        at = find(self.sorted, hashes)
        return np.where(at < 0, 0, self.attempts[at])
