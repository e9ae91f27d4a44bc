"""What came of a record: the records of derived datasets that were made while it was current, with its values.

It is `why` read the other way round: exactly those records name it among their inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from floodmark.ledger.keys import hashing
from floodmark.ledger.keys.records import NOT_THERE
from floodmark.ledger.merge.lookup import history_filter
from floodmark.ledger.selection import NOBODY
from floodmark.provenance.asked import Asked, block_of, offset_of, records_at
from floodmark.provenance.opened import Datasets, Opened, Transaction
from floodmark.provenance.origin import Link, Origin, Pairs, ways_of
from floodmark.provenance.tree import Derived, Forward, Whole
from floodmark.provenance.why import Looking, computed_of, maker_of
from floodmark.storage.arrays import I64
from floodmark.transform.changed.casting import cast_where_it_fits
from floodmark.transform.lakes import LakeLike


def forward(lake: LakeLike, name: str, asked: Asked) -> Forward:
    """What came of a record of a dataset."""
    following = _Following(Looking(Datasets(lake)))
    given = following.datasets.named(name)
    offset = offset_of(given, asked)
    [record] = records_at(given, [offset])
    direct = following.of(given, offset)
    block = block_of(given.transaction_at(offset))
    doubts = tuple(dict.fromkeys(doubt for found in direct for doubt in found.doubts))
    derived, wholes = following.derived(direct), following.wholes(given, offset)
    waiting, computed = following.waiting(given, offset), computed_of(given, record)
    return Forward(record, block, derived, wholes, waiting, computed, doubts)


@dataclass(frozen=True)
class _Found:
    """Records of a derived dataset that one transaction brought and a record had a part in."""

    output: Opened
    transaction: Transaction
    origin: Origin
    offsets: I64

    @property
    def doubts(self) -> tuple[str, ...]:
        return self.origin.doubts


@dataclass(frozen=True)
class _Following:
    looking: Looking
    _derived: dict[tuple[str, int], tuple[Derived, ...]] = field(default_factory=dict, repr=False)

    @property
    def datasets(self) -> Datasets:
        return self.looking.datasets

    def waiting(self, given: Opened, offset: int) -> tuple[str, ...]:
        """The derived datasets that are made of this one and have not read this record yet."""
        return tuple(output.name for output in self.datasets.all() if _is_behind(output, given, offset))

    def of(self, given: Opened, offset: int) -> list[_Found]:
        """The records that were made of this one, in the order of the datasets' names and of their offsets."""
        until = _ended_by(given, offset)
        found: list[_Found] = []
        for output in self.datasets.all():
            for by in sorted(way for way in ways_of(output, given.id) if way):
                found += self._made_by(output, given, offset, until, by)
        return found

    def _made_by(self, output: Opened, given: Opened, offset: int, until: int, by: Pairs) -> Iterator[_Found]:
        """Those of one dataset, as far as rows went together by these columns."""
        left = _records_of(output, given, offset, by)
        while len(left):
            transaction = output.transaction_at(int(left[0]))
            count = int(np.searchsorted(left, transaction.end))
            origin = self.looking.origin(output, transaction)
            mine = [link for link in origin.links if link.dataset_id == given.id and link.by == by]
            if any(offset <= link.position < until for link in mine):
                yield _Found(output, transaction, origin, left[:count])
            left = left[count:]

    def wholes(self, given: Opened, offset: int) -> tuple[Whole, ...]:
        """The datasets that are made of all rows of this one."""
        until = _ended_by(given, offset)
        found = []
        for output in self.datasets.all():
            if None in ways_of(output, given.id) and (all_of := list(self._refreshes(output, given))):
                there = sum(offset <= link.position < until for _, link in all_of)
                found.append(Whole(output.name, given.name, maker_of(all_of[-1][0]), there))
        return tuple(found)

    def derived(self, found: list[_Found]) -> tuple[Derived, ...]:
        """The same as a tree: with what came of these."""
        return tuple(self._tree(one, record.offset) for one in found for record in records_at(one.output, one.offsets))

    def _tree(self, found: _Found, offset: int) -> Derived:
        [record] = records_at(found.output, [offset])
        at = (found.output.id, offset)
        if at not in self._derived:
            self._derived[at] = self.derived(self.of(found.output, offset))
        return Derived(
            record,
            block_of(found.transaction),
            maker_of(found.origin),
            _ended_by(found.output, offset) == _NEVER,
            self._derived[at],
        )

    def _refreshes(self, output: Opened, given: Opened) -> Iterator[tuple[Origin, Link]]:
        """All transactions of a derived dataset that took all rows of this one."""
        for transaction in output.transactions():
            origin = self.looking.origin(output, transaction)
            for link in origin.links:
                if link.dataset_id == given.id and link.by is None:
                    yield origin, link


_NEVER = 1 << 62


def _is_behind(output: Opened, given: Opened, offset: int) -> bool:
    positions = [p.offset for p in output.snapshot.state.next_inputs if str(p.dataset_id) == given.id]
    return any(position is None or position < offset for position in positions)


def _ended_by(given: Opened, offset: int) -> int:
    """The record as of which this one is not current any more; its own offset when it never was."""
    index = given.as_of(given.snapshot.next_offset - 1).newest_index
    if index is None:
        return _NEVER
    ended = int(index.ended_by(np.array([offset], np.int64))[0])
    return _NEVER if ended == NOT_THERE else ended


def _records_of(output: Opened, given: Opened, offset: int, by: Pairs) -> I64:
    """All records of a derived dataset that have the values of an input record in these columns."""
    if output.snapshot.layout is None or not {name for name, _ in by} <= set(output.layout.data.names):
        return NOBODY
    own = given.records(np.array([offset], np.int64))
    if not {column for _, column in by} <= set(own.column_names):
        return NOBODY  # they go by name where nobody noted more, and there is no such name
    names = [name for name, _ in by]
    wanted, fits = cast_where_it_fits(
        [own.column(column) for _, column in by], [output.layout.data.field(name) for name in names]
    )
    keys = pa.table(wanted, names=names).filter(pa.array(fits))
    if not keys.num_rows:
        return NOBODY
    pinned = output.as_of(output.snapshot.next_offset - 1)
    column = output.layout.vocab.offset
    scan = pinned.for_tasks.scan(pinned.records(0), [column, *names])
    table = scan.to_reader(history_filter(keys)).read_all()
    there = hashing.hash_rows(table, names).among(hashing.hash_rows(keys, names))
    offsets: I64 = np.sort(table.column(column).to_numpy()[there])
    return offsets
