"""Why a record is as it is: the input rows that it was made of, as they were then, and so on down to the sources.

Nothing is guessed. Inputs are read as of the records that the run had pinned which made the record, by the columns that
its step or view goes by; where something was purged, dropped or never noted, the answer says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from floodmark.chain.events import AddData, SourceState
from floodmark.compute.stored.read import computed_columns
from floodmark.derive.positions import NOTHING
from floodmark.ledger.keys import hashing
from floodmark.ledger.merge.lookup import history_filter, with_keys
from floodmark.ledger.strategy import strategy_of
from floodmark.provenance.asked import Asked, block_of, offset_of, records_at
from floodmark.provenance.inputs import gone_between, rows_of
from floodmark.provenance.opened import Datasets, Opened, Transaction
from floodmark.provenance.origin import Link, Origin, origin_of
from floodmark.provenance.tree import Computed, Input, Maker, Provenance, Record
from floodmark.storage.arrays import I64
from floodmark.storage.errors import ObjectNotFound
from floodmark.transform.lakes import LakeLike
from floodmark.transform.made import unpacked

ROWS = 10
"""So many rows of an input are followed further; the others are counted."""

_TAKES_BACK = ("-R", "-C")
_CONTENT = "sha256:"


def why(lake: LakeLike, name: str, asked: Asked, rows: int = ROWS) -> Provenance:
    """Where a record of a dataset came from, at most so many rows of each input."""
    looking = Looking(Datasets(lake), rows)
    given = looking.datasets.named(name)
    return looking.at(given, offset_of(given, asked))


@dataclass(frozen=True)
class Looking:
    """Answers about one moment of a lake; what was found once is not looked for again."""

    datasets: Datasets
    rows: int = ROWS
    _known: dict[tuple[str, int], Provenance] = field(default_factory=dict, repr=False)
    _origins: dict[tuple[str, int], Origin] = field(default_factory=dict, repr=False)

    def at(self, given: Opened, offset: int) -> Provenance:
        """Where the record at an offset came from."""
        return self.at_all(given, np.array([offset], np.int64))[0]

    def at_all(self, given: Opened, offsets: I64) -> tuple[Provenance, ...]:
        """The same for several, whose offsets are sorted."""
        if missing := [o for o in offsets.tolist() if (given.id, o) not in self._known]:
            for record in records_at(given, missing):
                self._known[given.id, record.offset] = self._explained(given, record)
        return tuple(self._known[given.id, o] for o in offsets.tolist())

    def origin(self, given: Opened, transaction: Transaction) -> Origin:
        """What a transaction of a derived dataset was made of."""
        at = (given.id, transaction.sequence_number)
        if at not in self._origins:
            self._origins[at] = origin_of(given, transaction)
        return self._origins[at]

    def _explained(self, given: Opened, record: Record) -> Provenance:
        transaction = given.transaction_at(record.offset)
        block, computed = block_of(transaction), computed_of(given, record)
        if isinstance(transaction.event, AddData):
            return Provenance(record, block, _writer(given, transaction), computed=computed)
        origin = self.origin(given, transaction)
        ends = _ended(given, record) if record.op in _TAKES_BACK else None
        inputs = tuple(self._input(given, record, link, ends) for link in origin.links)
        failed = ends is not None and self._failed(given, record, origin)
        return Provenance(record, block, maker_of(origin), inputs, computed, ends, failed, origin.doubts)

    def _failed(self, given: Opened, record: Record, origin: Origin) -> bool:
        """Whether a row was taken back because the function failed for its key."""
        names = list(strategy_of(given.snapshot.state).lookup)
        own = given.records(np.array([record.offset], np.int64)).select(names)
        return bool(hashing.hash_rows(own, names).among(unpacked(origin.failed))[0])

    def _input(self, output: Opened, record: Record, link: Link, ends: int | None) -> Input:
        given = self.datasets.of_id(link.dataset_id, link.alias)
        values = key_values(output, np.array([record.offset], np.int64), link)
        by = None if link.by is None else {column: values.column(name)[0].as_py() for name, column in link.by}
        if given is None:
            gone = f"dataset {link.alias or link.dataset_id} was dropped: its rows cannot be told any more"
            return Input(link.alias, link.dataset_id, link.position, by, 0, missing=gone)
        found = rows_of(given, link, values)
        shown = self.at_all(given, found.offsets[: self.rows])
        gone_rows: tuple[Provenance, ...] = ()
        if ends is not None:
            before = _position(self.origin(output, output.transaction_at(ends)), link)
            retracted = gone_between(given, link, values, max(before, given.snapshot.purged_before - 1))
            gone_rows = self.at_all(given, retracted[: self.rows])
        return Input(given.name, given.id, link.position, by, found.rows, shown, gone_rows, found.missing)


def computed_of(given: Opened, record: Record) -> tuple[Computed, ...]:
    """The computed columns of a record."""
    catalog = given.dataset.catalog
    beside = computed_columns(given.snapshot.objects, catalog)
    if beside is None or record.op in _TAKES_BACK:
        return ()
    names = [column.name for column in catalog.columns]
    values = beside.open(names).take(np.array([record.offset], np.int64))
    return tuple(
        Computed(c.name, value[0].as_py(), c.function.name, c.function.version, c.inputs)
        for c, value in zip(catalog.columns, values, strict=True)
    )


def maker_of(origin: Origin) -> Maker:
    """Who made a transaction, as users see it."""
    return Maker(origin.kind, origin.name, origin.version, origin.way, origin.run)


def _position(origin: Origin, link: Link) -> int:
    """How far an earlier transaction had read an input."""
    return next((other.position for other in origin.links if other.dataset_id == link.dataset_id), NOTHING)


def key_values(output: Opened, offsets: I64, link: Link) -> pa.Table:
    """What records of an output have in the columns by which their inputs' rows belong to them."""
    if not link.by:
        return pa.table({})
    return output.records(offsets).select([name for name, _ in link.by])


def _writer(given: Opened, transaction: Transaction) -> Maker:
    state = given.brought(transaction)
    if state is None:
        return Maker("write")
    return Maker("write", source=state.source_name, state=state.value, file=_file(given, state))


def _file(given: Opened, state: SourceState) -> str | None:
    """The file that was taken in, by the hash of its content; what notes the names may be lost."""
    _, is_hash, digest = state.value.partition(_CONTENT)
    objects = given.snapshot.objects
    if not is_hash:
        return None
    try:
        said = json.loads(objects.store.get(f"{objects.folder}/info/sources/{state.source_name}.json"))
        return next((name for name, seen in said["files"].items() if seen["sha256"] == digest), None)
    except (ObjectNotFound, ValueError, KeyError, TypeError, AttributeError):
        return None


def _ended(given: Opened, record: Record) -> int | None:
    """The record whose row a retraction takes back: the newest of its key before it; None when that is purged."""
    key = strategy_of(given.snapshot.state).key
    own = given.records(np.array([record.offset], np.int64)).select(list(key))
    pinned = given.as_of(record.offset - 1)
    offset = given.layout.vocab.offset
    scan = pinned.for_tasks.scan(pinned.records(0), [offset, *key])
    offsets = with_keys(scan.to_reader(history_filter(own)).read_all(), own).column(offset).to_numpy()
    return int(offsets.max()) if len(offsets) else None
