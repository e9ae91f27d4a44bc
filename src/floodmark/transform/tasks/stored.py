"""What a checkpoint holds: rows by output, the keys that they are of, and what each result depends on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.ledger.keys.hashing import hash_rows
from floodmark.ledger.layout import Layout
from floodmark.ledger.merge.batch import Batch
from floodmark.ledger.merge.buckets import SortedFile
from floodmark.ledger.merge.results import Results, SortedHashes
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.strategy import Strategy
from floodmark.storage.arrays import Hashes
from floodmark.transform.functions.returned import OutputShape

Attempts = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Entries:
    """The keys that a checkpoint has results of, what each result depends on, and the attempt at which it failed."""

    hashes: Hashes
    signature: Hashes
    attempts: Attempts  # 0: it did not fail

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, at: Any) -> Entries:
        return Entries(self.hashes.take(at), self.signature.take(at), self.attempts[at])

    @staticmethod
    def joined(parts: Sequence[Entries]) -> Entries:
        attempts = np.concatenate([p.attempts for p in parts]) if parts else np.empty(0, np.int32)
        return Entries(Hashes.joined([p.hashes for p in parts]), Hashes.joined([p.signature for p in parts]), attempts)


@dataclass(frozen=True)
class Rows:
    """Rows of an output, cast to its columns, with the hashes of their keys and of their transform keys."""

    table: pa.Table
    key: Hashes
    transform: Hashes

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        """One after the other; there is at least one."""
        key, transform = Hashes.joined([p.key for p in parts]), Hashes.joined([p.transform for p in parts])
        return Rows(pa.concat_tables([p.table for p in parts]), key, transform)

    def batch(self, shape: OutputShape) -> Batch:
        """The same as it goes into files: only the hashes of whole rows are still to be made."""
        row = hash_rows(self.table, self.table.column_names)
        return Batch(self.table, self.key, row, None if shape.is_keyed_by_transform else self.transform, None)


@dataclass(frozen=True)
class Fresh:
    """Results that are to be stored."""

    rows: tuple[Rows | None, ...]  # by output
    entries: Entries
    gone: Hashes  # keys that were processed without a call
    failed: pa.Table | None
    undecided: tuple[pa.Schema | None, ...] = ()  # by output the columns of its rows, if not all have a type yet


@dataclass(frozen=True)
class File:
    """A stored file besides those of rows and keys."""

    path: str
    size: int


@dataclass(frozen=True)
class Stored:
    """One checkpoint. It travels between processes; what it holds stays in its files."""

    id: str
    outputs: tuple[SortedFile | None, ...]  # None: no rows
    layouts: tuple[Layout | None, ...]  # what the rows were written with
    undecided: tuple[pa.Schema | None, ...]  # or with these columns, of which not all had a type yet
    called: SortedHashes | None
    gone: SortedHashes | None
    failures: File | None
    failed: int
    objects: DatasetObjects = field(repr=False, compare=False)

    @property
    def task(self) -> str:
        """The task that made it."""
        return self.id.rpartition("-")[0]

    def without_gone(self) -> Stored:
        """The same, but for the keys that were gone."""
        return replace(self, gone=None)

    @property
    def processed(self) -> tuple[SortedHashes, ...]:
        """All its keys: with results, failed or gone."""
        return tuple(hashes for hashes in (self.called, self.gone) if hashes is not None)

    @property
    def keys(self) -> int:
        """How many keys it has results of, failed ones included."""
        return 0 if self.called is None else sum(self.called.rows)

    @property
    def gone_keys(self) -> int:
        return 0 if self.gone is None else sum(self.gone.rows)

    @property
    def size(self) -> int:
        """Bytes of rows."""
        return sum(file.size for file in self.outputs if file is not None)

    @property
    def file_sizes(self) -> dict[str, int]:
        """Its files by their names, without their folder."""
        files = [file for file in (*self.outputs, *self.processed, self.failures) if file is not None]
        return {file.path.rpartition("/")[2]: file.size for file in files}

    def failed_table(self) -> pa.Table | None:
        """The keys that failed and why; None when none did."""
        if self.failures is None:
            return None
        with pa.ipc.open_stream(self.objects.store.get(self.failures.path)) as reader:
            return reader.read_all()


def results(stored: Iterable[Stored], output: int) -> Results:
    """What these checkpoints bring to one output."""
    chosen = list(stored)
    rows = [file for s in chosen if (file := s.outputs[output]) is not None]
    return Results(rows, [hashes for s in chosen for hashes in s.processed])


def strategy_of(output: OutputShape) -> Strategy:
    """How results go into an output: rows are found by their transform keys."""
    return Strategy("upsert", output.key, None, tuple(output.keys.names))
