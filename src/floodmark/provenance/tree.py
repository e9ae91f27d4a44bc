"""Where a record came from, as a tree: the record, who made it, and the input rows it was made of, each the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Record:
    """A record of a dataset. `op` says what it did: +A a new row, -R a row that is gone, -C and +C one that changed."""

    dataset: str
    dataset_id: str
    offset: int
    op: str
    system_time: datetime
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Block:
    """The last block of the transaction that brought a record, and the records [start, end) of that transaction."""

    hash: str
    sequence_number: int
    start: int
    end: int


@dataclass(frozen=True)
class Maker:
    """Who made a record: a write from outside, a step, a view."""

    kind: str
    """write, step (BatchTransform), datatable (DatatableTransform), view, or unknown."""
    name: str | None = None
    version: str | None = None
    way: str = ""
    """Of a step map, keyed or cross; of a view rows, groups, join or whole."""
    run: str | None = None
    source: str | None = None
    """Of a write: the source that it named, and how far that was read with it."""
    state: str | None = None
    file: str | None = None
    """Of a write from a file: its name when it was taken in, if that is still known."""


@dataclass(frozen=True)
class Computed:
    """A computed column of a record: its value, the function, and the columns of the same record that it took."""

    column: str
    value: Any
    function: str
    version: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Input:
    """The rows of one input that a record was made of, as they were up to and with the record `position`.

    `by` are the columns and values by which they belong to it, none where all rows of the input do. `rows` counts them
    all; `records` are the first of them, and `gone` those that were retracted since the row that this record ends.
    """

    dataset: str
    dataset_id: str
    position: int
    by: Mapping[str, Any] | None
    rows: int
    records: tuple[Provenance, ...] = ()
    gone: tuple[Provenance, ...] = ()
    missing: str | None = None
    """Why some of them may not be named here; None: these are all."""


@dataclass(frozen=True)
class Provenance:
    """Where a record came from."""

    record: Record
    block: Block
    maker: Maker
    inputs: tuple[Input, ...] = ()
    computed: tuple[Computed, ...] = ()
    ends: int | None = None
    """Of a retraction: the offset of the record whose row it takes back."""
    failed: bool = False
    """Of a retraction: whether it is there because the function failed for its key."""
    doubts: tuple[str, ...] = ()
    """What is not known for sure."""

    @property
    def is_complete(self) -> bool:
        """Whether everything down to the sources is known, rows that are only counted included."""
        return not self.doubts and all(
            given.missing is None and all(one.is_complete for one in (*given.records, *given.gone))
            for given in self.inputs
        )

    def offsets(self) -> dict[str, set[int]]:
        """The records of all datasets in the tree, but for this one, by dataset."""
        found: dict[str, set[int]] = {}
        for one in self.walk():
            if one is not self:
                found.setdefault(one.record.dataset, set()).add(one.record.offset)
        return found

    def walk(self) -> Iterator[Provenance]:
        """All of the tree, from the top."""
        yield self
        for given in self.inputs:
            for one in (*given.records, *given.gone):
                yield from one.walk()

    def to_json(self) -> dict[str, Any]:
        """The tree as plain dicts and lists; values are as Python has them."""
        record, block = self.record, self.block
        return {
            "dataset": record.dataset,
            "offset": record.offset,
            "op": record.op,
            "system_time": record.system_time,
            "values": dict(record.values),
            "block": {"hash": block.hash, "sequence_number": block.sequence_number},
            "transaction": {"start": block.start, "end": block.end},
            "made_by": vars(self.maker),
            "ends": self.ends,
            "failed": self.failed,
            "computed": [vars(one) for one in self.computed],
            "inputs": [
                {
                    "dataset": given.dataset,
                    "position": given.position,
                    "by": None if given.by is None else dict(given.by),
                    "rows": given.rows,
                    "records": [one.to_json() for one in given.records],
                    "gone": [one.to_json() for one in given.gone],
                    "missing": given.missing,
                }
                for given in self.inputs
            ],
            "doubts": list(self.doubts),
        }


@dataclass(frozen=True)
class Derived:
    """A record of a derived dataset that an input record has a part in, and what came of that one."""

    record: Record
    block: Block
    maker: Maker
    is_current: bool
    derived: tuple[Derived, ...] = ()

    def to_json(self) -> dict[str, Any]:
        record, block = self.record, self.block
        return {
            "dataset": record.dataset,
            "offset": record.offset,
            "op": record.op,
            "system_time": record.system_time,
            "values": dict(record.values),
            "block": {"hash": block.hash, "sequence_number": block.sequence_number},
            "made_by": vars(self.maker),
            "is_current": self.is_current,
            "derived": [one.to_json() for one in self.derived],
        }


@dataclass(frozen=True)
class Whole:
    """A dataset that is made of all rows of another: every row that it has had since an input record is made of it."""

    dataset: str
    of: str
    maker: Maker
    transactions: int
    """In so many of its transactions that record was current."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "maker": vars(self.maker)}


@dataclass(frozen=True)
class Forward:
    """What came of a record."""

    record: Record
    block: Block
    derived: tuple[Derived, ...] = ()
    wholes: tuple[Whole, ...] = ()
    waiting: tuple[str, ...] = ()
    """Datasets that are made of this one and have not read it so far."""
    computed: tuple[Computed, ...] = ()
    """The computed columns beside it."""
    doubts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        record, block = self.record, self.block
        return {
            "dataset": record.dataset,
            "offset": record.offset,
            "op": record.op,
            "system_time": record.system_time,
            "values": dict(record.values),
            "block": {"hash": block.hash, "sequence_number": block.sequence_number},
            "derived": [one.to_json() for one in self.derived],
            "wholes": [one.to_json() for one in self.wholes],
            "waiting": list(self.waiting),
            "computed": [vars(one) for one in self.computed],
            "doubts": list(self.doubts),
        }
