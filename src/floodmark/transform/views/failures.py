"""Rows of a source that the functions of a view failed for: where they are kept, and asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.chain.hashes import Multihash
from floodmark.compute.stored import row_errors
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import Snapshot, load_at
from floodmark.storage.arrays import I64
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.retry import read_steadily
from floodmark.transform.errors import BadMeta
from floodmark.transform.views.note import note_of

SCHEMA = pa.schema([pa.field("column", pa.string(), nullable=False), *row_errors.SCHEMA])
NONE = pa.Table.from_batches([], SCHEMA)


@dataclass(frozen=True)
class Failures:
    """The errors of all rows that have one: the column of the view, the offset in its source, and what was raised."""

    table: pa.Table = field(default_factory=lambda: NONE)

    @property
    def name(self) -> str | None:
        """What its file is called, None when it needs none."""
        return Multihash.sha3_256(self._bytes).text if self.table.num_rows else None

    @property
    def _bytes(self) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_table(self.table.combine_chunks())
        return bytes(sink.getvalue().to_pybytes())

    @property
    def offsets(self) -> I64:
        """The rows that have an error, sorted, each once."""
        return np.unique(self.table.column("offset").to_numpy())

    def offsets_of(self, column: str) -> I64:
        """The rows that have an error in one column."""
        mine = self.table.filter(pc.equal(self.table.column("column"), column))
        offsets: I64 = mine.column("offset").to_numpy()
        return offsets

    def put(self, objects: DatasetObjects) -> None:
        """Store them durably, if there are any."""
        if self.name is not None:
            objects.store.put_if_absent(objects.checkpoint_key(Multihash.parse(self.name)), self._bytes)

    def discard(self, before: str | None, objects: DatasetObjects) -> None:
        """Delete the file that these replace; to be called after the commit."""
        if before is not None and before != self.name:
            objects.store.delete(objects.checkpoint_key(Multihash.parse(before)))

    def without(self, offsets: I64) -> Failures:
        """Those of all other rows."""
        return Failures(self.table.filter(pa.array(~np.isin(self.table.column("offset").to_numpy(), offsets))))

    def joined(self, others: Mapping[str, pa.Table]) -> Failures:
        """With those of more rows, by the column of the view; in the order of the source."""
        together = pa.concat_tables([self.table, *[_of_column(column, table) for column, table in others.items()]])
        return Failures(together.sort_by([("offset", "ascending"), ("column", "ascending")]))


def _of_column(column: str, errors: pa.Table) -> pa.Table:
    names = pa.repeat(pa.scalar(column), errors.num_rows)
    return pa.Table.from_arrays([names, *errors.cast(row_errors.SCHEMA).columns], schema=SCHEMA)


def load(view: str, name: str | None, objects: DatasetObjects) -> Failures:
    """The failures in the file of this name; `BadMeta` when it is gone or damaged."""
    if name is None:
        return Failures()
    digest = Multihash.parse(name)
    try:
        data = objects.store.get(objects.checkpoint_key(digest))
    except ObjectNotFound as error:
        raise _bad(view, name, "is gone") from error
    if Multihash.sha3_256(data) != digest:
        raise _bad(view, name, "was changed or damaged")
    return Failures(pa.ipc.open_stream(data).read_all())


def errors_of(view: str, snapshot: Snapshot) -> pa.Table:
    """The errors of the rows that a view has without a value."""
    objects = snapshot.objects

    def errors(now: Snapshot) -> pa.Table:
        note = note_of(view, now)
        return NONE if note is None else load(view, note.errors, objects).table

    return read_steadily(  # a refresh replaces the list
        lambda: load_at(objects, objects.read_head() or snapshot.head, {}),
        errors,
        lambda now: objects.read_head() not in (None, now.head),
        replaced=(BadMeta,),
    )


def _bad(view: str, name: str, problem: str) -> BadMeta:
    return BadMeta(
        f"the list of errors of view {view!r} {problem}",
        hint=f"put it back from a copy of the dataset, or drop {view!r} and declare it again",
        file=name,
        dataset=view,
    )
