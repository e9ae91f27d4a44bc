"""Erase a key from a dataset and from everything that is computed from it.

Rows of steps and views are found by the columns that match them to rows of their inputs, as `why` does. The datasets
farthest from the erased one come first, so an interrupted erasure can be repeated: the records that lead to others are
there until these are erased. Where columns do not tell which rows are affected, nothing is erased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from floodmark.chain.events import DatasetKind
from floodmark.chain.ids import DatasetId
from floodmark.columns.catalog import ColumnObjects
from floodmark.columns.erase import drop_checkpoints_of
from floodmark.errors import DatasetInUse, ReadOnlyDataset
from floodmark.ledger.names import require_entry
from floodmark.ledger.readers import erase_order, find_holders
from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import NO_OFFSETS, select
from floodmark.ledger.strategy import strategy_of
from floodmark.provenance.origin import ColumnPairs, list_column_pairs, list_linked_inputs
from floodmark.provenance.transactions import OpenedDataset, OpenedDatasets
from floodmark.rows import key_index_loader, row_hash
from floodmark.rows.erase import EraseReport, records_of_keys
from floodmark.storage.arrays import I64, Hashes
from floodmark.transforms.failed_keys import is_stale
from floodmark.transforms.meta import TransformMeta

if TYPE_CHECKING:
    from floodmark.dataset import Dataset
    from floodmark.derive.inputs import LakeLike


@dataclass(frozen=True)
class _Target:
    """A dataset and the records to erase from it, with all columns, dead ones only if it is derived."""

    given: OpenedDataset
    records: pa.Table

    @property
    def offsets(self) -> I64:
        offsets: I64 = np.sort(self.records.column(self.given.layout.vocab.offset).to_numpy())
        return offsets


def erase(lake: LakeLike, name: str, keys: Any) -> EraseReport:
    """Erase every record of some keys, and all records that were computed from them."""
    store, dataset = lake.store, lake[name]
    order = erase_order(store, require_entry(store, name))
    current = dataset.plan_erase(keys).current
    targets = _plan(lake, name, keys, order)
    if len(targets) > 1:
        if current:
            _retract(dataset, keys)
        targets = _plan(lake, name, keys, order, is_retracted=True)
    derived = {}
    for target in targets[:-1]:
        given = target.given
        done = given.dataset.parts.rows.erase_records(target.offsets)
        _clean(given.dataset, targets)
        if done.records:
            derived[given.name] = done.records
    report: EraseReport = dataset.parts.rows.erase(keys)
    _clean(dataset, targets)
    return replace(report, derived=derived)


def _retract(dataset: Dataset, keys: Any) -> None:
    """Retract the current rows, so that everything that is computed from them removes its rows."""
    try:
        dataset.delete(keys)
    except ReadOnlyDataset as error:
        raise DatasetInUse(
            f"the key was not erased from {dataset.name!r}: datasets are computed from it, and {error.message}",
            hint=f"drop everything that is computed from {dataset.name!r}, erase the key, then run its pipeline again",
            dataset=dataset.name,
            readers=[],
        ) from error


def _clean(dataset: Dataset, targets: Sequence[_Target]) -> None:
    """Remove the values of erased records from computed columns, the timeline, stored results and checkpoints."""
    parts = dataset.parts
    snapshot = dataset.snapshot()
    parts.columns.drop_erased(snapshot)
    parts.timeline.drop_erased()
    objects = snapshot.objects
    for info in list(objects.store.list(f"{objects.folder}/info/transform/chunks")):  # of stopped runs
        objects.store.delete(info.key)
    TransformMeta.load(objects, snapshot.state.checkpoint).drop_retired()
    for target in targets:
        drop_checkpoints_of(ColumnObjects(objects), target.given.id, target.offsets)


def _plan(lake: LakeLike, name: str, keys: Any, order: Sequence[str], is_retracted: bool = False) -> list[_Target]:
    """What to erase, each dataset before its inputs. `DatasetInUse` if it is not known, or not processed yet."""
    opened = OpenedDatasets(lake)
    root = opened.named(name)
    targets = {order[-1]: _Target(root, records_of_keys(name, root.snapshot, keys))}
    for one in reversed(order):  # inputs first
        for other in opened.all():  # outputs of steps that are not derived datasets, which name no inputs
            if other.snapshot.state.dataset_kind is DatasetKind.ROOT and list_column_pairs(
                other, targets[one].given.id
            ):
                raise _unknown(name, other.name, "its chain does not tell how far it has read it")
        for reader in find_holders(lake.store, require_entry(lake.store, one)):
            source = targets[one]
            if reader not in order:
                raise _unknown(name, reader, "it has the old rows of a view")
            given = opened.named(reader)
            found = _matching(source, given, name, is_retracted)
            known = targets.get(reader)
            together = found if known is None else pa.concat_tables([known.records, found])
            targets[reader] = _Target(given, _once(together, given))
    return [targets[one] for one in order]


def _once(records: pa.Table, given: OpenedDataset) -> pa.Table:
    _, first = np.unique(records.column(given.layout.vocab.offset).to_numpy(), return_index=True)
    return records.take(pa.array(first))


def _matching(source: _Target, given: OpenedDataset, name: str, is_retracted: bool) -> pa.Table:
    """The dead records of a derived dataset that have the values of some records of its input."""
    if given.snapshot.layout is None:
        return pa.table({})
    layout = given.layout
    pairs = _pairs(source, given, name)
    if is_retracted:
        _check_processed(source, given, name)
    selection = select(given.snapshot, given.snapshot.purged_before, given.snapshot.next_offset)
    scan = Scan(given.snapshot.objects, layout, selection, tuple(layout.read_schema.names))
    wanted = [_values(source, some, layout.read_schema) for some in pairs]
    dead = NO_OFFSETS
    if strategy_of(given.snapshot.state).is_keyed:
        dead = key_index_loader.with_repair(given.snapshot, {}, lambda index: index.dead())
    found = [scan.schema.empty_table()]
    for batch in scan.batches() if scan.selection.files else ():
        records = pa.Table.from_batches([batch]).cast(scan.schema)
        has_values = np.zeros(records.num_rows, np.bool_)
        for names, hashes in wanted:
            has_values |= row_hash.hash_rows(records, names).among(hashes)
        is_dead = np.isin(records.column(layout.vocab.offset).to_numpy(), dead)
        found.append(records.filter(pa.array(has_values & is_dead)))
    return pa.concat_tables(found)


def _values(source: _Target, pairs: ColumnPairs, schema: pa.Schema) -> tuple[list[str], Hashes]:
    """The columns of a derived dataset that match it to its input, and the hashes of the erased records' values."""
    names = [name for name, _ in pairs]
    values = source.records.select([column for _, column in pairs]).rename_columns(names)
    values = values.cast(pa.schema([schema.field(name).with_nullable(True) for name in names]))
    return names, row_hash.hash_rows(values, names)


def _pairs(source: _Target, given: OpenedDataset, name: str) -> list[ColumnPairs]:
    """The columns that match rows of a dataset to rows of its input."""
    pairs = list_column_pairs(given, source.given.id)
    if not pairs or None in pairs or any(list_linked_inputs(given, source.given.id)):
        raise _unknown(name, given.name, "its columns do not tell which rows were computed from which")
    known = [some for some in pairs if some is not None]
    columns = {column for some in known for _, column in some}
    if source.given.snapshot.purged_before and not columns <= set(strategy_of(source.given.snapshot.state).key):
        raise _unknown(name, given.name, f"history of {source.given.name!r} that leads to its rows was purged")
    shown = set(given.layout.read_schema.names)
    if not all(own in shown for some in known for own, _ in some):
        raise _unknown(name, given.name, "it does not have the columns by which its rows were computed any more")
    return known


def _check_processed(source: _Target, given: OpenedDataset, name: str) -> None:
    """Refuse while the derived dataset may have current rows that were computed from the erased records."""
    if len(source.offsets) == 0:
        return
    state, dataset_id = given.snapshot.state, DatasetId.parse(source.given.id)
    read = [one.offset for one in state.next_inputs if one.dataset_id == dataset_id]
    if any(offset is None or offset < source.offsets[-1] for offset in read):
        raise DatasetInUse(
            f"the rows of the key in {name!r} are retracted, but not erased yet: {given.name!r} has not processed that",
            hint="run the pipeline (`floodmark run`), or refresh the view, then erase the key again",
            dataset=name,
            readers=[given.name],
        )
    failed = TransformMeta.load(given.snapshot.objects, state.checkpoint).failed()
    if is_stale(failed).any():
        raise DatasetInUse(
            f"the rows of the key in {name!r} are not erased yet: failed keys of {given.name!r} keep older rows",
            hint="correct the function or the rows and retry them (`floodmark retry`), or drop the dataset "
            f"(`floodmark drop {given.name} --cascade --yes`); then erase the key again",
            dataset=name,
            readers=[given.name],
        )


def _unknown(name: str, reader: str, why: str) -> DatasetInUse:
    return DatasetInUse(
        f"the key was not erased from {name!r}: {reader} is computed from it, and {why}",
        hint=f"drop it (`floodmark drop {reader} --cascade --yes`), erase the key, then run its pipeline again",
        dataset=name,
        readers=[reader],
    )
