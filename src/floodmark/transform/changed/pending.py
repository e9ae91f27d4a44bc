"""Pending keys: each once, with the first and the last record in each input that make it pending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.transform.changed.alive import Keys
from floodmark.transform.changed.changes import Groups
from floodmark.transform.changed.shape import Shape
from floodmark.transform.lakes import NEVER

NOT_PENDING = int(np.iinfo(np.int64).max)
"""Stands for the offset of a record that there is not."""


@dataclass(frozen=True)
class Source:
    """Keys that one input makes pending."""

    keys: pa.Table
    hashes: Hashes
    number: int
    first: I64
    last: I64


@dataclass(frozen=True)
class Pending:
    """Keys, each once. `first` and `last` have a row for each key and a column for each input."""

    keys: pa.Table
    hashes: Hashes
    first: I64  # NOT_PENDING where the input has no part in it
    last: I64
    position: I64  # how far behind the position of an input its first record is; NOT_PENDING for keys without any
    is_failed: Mask  # whether the key is due because it failed
    tried: I64  # when it failed last, in milliseconds; 0 for all others
    why: pa.Array

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, at: I64) -> Pending:
        return Pending(
            self.keys.take(pa.array(at)),
            self.hashes.take(at),
            self.first[at],
            self.last[at],
            self.position[at],
            self.is_failed[at],
            self.tried[at],
            self.why.take(pa.array(at)),
        )

    @property
    def is_new(self) -> Mask:
        """Which keys were never processed."""
        new: Mask = pc.equal(self.why, "new").to_numpy(zero_copy_only=False)
        return new

    @property
    def is_only_failed(self) -> Mask:
        """Which keys nothing but their failure makes pending."""
        only: Mask = self.is_failed & (self.position == NOT_PENDING)
        return only

    @staticmethod
    def of(shape: Shape, sources: Sequence[Source], failed: Keys, tried: I64, positions: Sequence[int]) -> Pending:
        """Keys from several inputs, and those that are due because they failed: when they were tried last."""
        tables = [shape.keys.empty_table(), *(s.keys for s in sources), failed.table]
        hashes = Hashes.joined([*(s.hashes for s in sources), failed.hashes])
        number = _filled([(len(s.hashes), s.number) for s in sources], len(failed), -1)
        nothing = np.full(len(failed), NOT_PENDING, np.int64)
        all_first = np.concatenate([*(s.first for s in sources), nothing])
        all_last = np.concatenate([*(s.last for s in sources), nothing])
        groups = Groups.of(hashes)
        first = np.full((len(groups), len(shape.inputs)), NOT_PENDING, np.int64)
        last = first.copy()
        for n in range(len(shape.inputs)):
            mine = number == n
            first[:, n] = groups.least(np.where(mine, all_first, NOT_PENDING))
            greatest = groups.greatest(np.where(mine, all_last, -1))
            last[:, n] = np.where(greatest < 0, NOT_PENDING, greatest)
        is_failed = groups.greatest((number == -1).astype(np.int64)) > 0
        moments = groups.greatest(np.concatenate([np.zeros(len(hashes) - len(failed), np.int64), tried]))
        keys = pa.concat_tables(tables).take(pa.array(groups.first))
        why = _words(np.where((first != NOT_PENDING).any(axis=1), 0, 2))
        position = _distance(first, positions)
        return Pending(keys, hashes.take(groups.first), first, last, position, is_failed, moments, why)

    @staticmethod
    def all_of(shape: Shape, keys: Keys, why: str) -> Pending:
        """Keys that no record makes pending."""
        count = len(keys)
        none = np.full((count, len(shape.inputs)), NOT_PENDING, np.int64)
        reason = pa.array([why] * count, pa.string()) if count < 1 else pa.repeat(pa.scalar(why), count)
        nowhere, never = np.full(count, NOT_PENDING, np.int64), np.zeros(count, np.int64)
        return Pending(keys.table, keys.hashes, none, none, nowhere, np.zeros(count, np.bool_), never, reason)

    def not_processed(self, done: I64, positions: Sequence[int]) -> Pending:
        """Those with a record that the run which processed the key did not know, and the failed ones."""
        is_new = (done == NEVER).any(axis=1)
        pending = (self.first != NOT_PENDING) & (self.last > done)
        # A new key has old records too, where it shares a part with others: they count only when nothing is newer.
        beyond = pending & (self.last > np.array(positions, np.int64))
        pending = np.where(beyond.any(axis=1)[:, None], beyond, pending)
        # Records up to `done` are settled: the first that is not comes after.
        first = np.where(pending, np.maximum(self.first, done + 1), NOT_PENDING)
        last = np.where(pending, self.last, NOT_PENDING)
        changed = pending.any(axis=1)
        why = _words(np.where(changed, np.where(is_new, 0, 1), 2))
        kept = np.flatnonzero(changed | self.is_failed)
        position = _distance(first, positions)
        found = Pending(self.keys, self.hashes, first, last, position, self.is_failed, self.tried, why)
        return found if len(kept) == len(self) else found.take(kept)


def _distance(first: I64, positions: Sequence[int]) -> I64:
    """How far behind its input's position the first pending record is, in the input where that is least."""
    since = np.array(positions, np.int64)
    far = np.where(first == NOT_PENDING, NOT_PENDING, first - since)
    result: I64 = far.min(axis=1) if far.shape[1] else np.full(len(first), NOT_PENDING)
    return result


def _words(which: I64) -> pa.Array:
    return pa.array(["new", "changed", "failed"]).take(pa.array(which))


def _filled(counts: Sequence[tuple[int, int]], rest: int, of_rest: int) -> I64:
    values = [np.full(count, value, np.int64) for count, value in counts]
    return np.concatenate([*values, np.full(rest, of_rest, np.int64)])
