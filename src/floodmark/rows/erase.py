"""Erase keys: write the slices again without the values of their records, and remove all other files that have them.

The chain, the offsets and all other records stay. A block records the hashes of the keys and, for each slice, the file
that is gone, the file that replaced it, and the records without values. No reader sees these records any more: they are
dead, and readers of all records skip them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.chain.events import AddData, DatasetKind, SetDataSchema
from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.chain.walk import walk_back
from floodmark.engine.session import Runtime
from floodmark.errors import CommitConflict, ObjectNotFound, StorageError, UnreadableSlice
from floodmark.ledger.append import next_system_time
from floodmark.ledger.block_attributes import (
    ErasedSlice,
    Erasure,
    erase_attributes,
    erase_state,
    erasure_of,
    erasure_schema,
)
from floodmark.ledger.commit import empty_event, plan_blocks, publish
from floodmark.ledger.create import refuse_derivative
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import select
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.ledger.types import blank_value
from floodmark.ledger.verify import VerifyProblem
from floodmark.rows import key_index_loader, row_hash
from floodmark.rows.classify import APPEND
from floodmark.rows.fold import drop_files_with, list_files_with
from floodmark.rows.key_index_files import RunCache
from floodmark.rows.lookup import filter_by_keys, history_filter, parse_keys, require_key
from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.storage.parquet import ROW_GROUP_ROWS, SliceFile, write_records
from floodmark.storage.pointer import MAX_RACES, attempt_numbers
from floodmark.storage.scratch import explain_write_errors, staging_area

_log = logging.getLogger(__name__)
_AGAIN = "erase the key again to delete it"
_HALVES = (slice(0, 16), slice(16, 32))


@dataclass(frozen=True)
class EraseReport:
    """The result of an erasure."""

    keys: int
    """How many keys had records."""
    records: int
    """How many records lost their values."""
    current: int
    """How many of the records were current rows."""
    slices: int
    """How many slices were written again."""
    derived: Mapping[str, int] = field(default_factory=dict)
    """By the name of each dataset that is computed from it, how many of its records lost their values."""


@dataclass(frozen=True)
class _Plan:
    """The records to erase, and the hashes of their keys."""

    report: EraseReport
    offsets: I64
    keys: tuple[str, ...]


@dataclass(frozen=True)
class _RewrittenSlice:
    file: SliceFile
    note: ErasedSlice


def erase(
    name: str, keys: Any, load: Callable[[], Snapshot], runtime: Runtime, cache: RunCache
) -> tuple[EraseReport, Snapshot]:
    """Commit the erasure of every record with one of these keys, then delete the files that had them."""
    return _erase(name, lambda snapshot: _plan(name, snapshot, keys, cache), load, runtime, cache)


def erase_records(
    name: str, offsets: I64, load: Callable[[], Snapshot], runtime: Runtime, cache: RunCache
) -> tuple[EraseReport, Snapshot]:
    """The same for the records at some sorted offsets, all of them dead. Also for a derived dataset."""
    return _erase(name, lambda snapshot: _plan_records(snapshot, name, offsets, cache), load, runtime, cache)


def _erase(
    name: str,
    make_plan: Callable[[Snapshot], _Plan],
    load: Callable[[], Snapshot],
    runtime: Runtime,
    cache: RunCache,
) -> tuple[EraseReport, Snapshot]:
    snapshot = load()
    with snapshot.objects.turn(), staging_area(snapshot.objects.store) as folder:
        for _ in attempt_numbers(MAX_RACES):
            snapshot = load()
            try:
                plan = make_plan(snapshot)
                rewrites = [_rewritten(snapshot, name, *part, folder) for part in _by_slice(snapshot, plan.offsets)]
            except (ObjectNotFound, UnreadableSlice):
                if not snapshot.has_moved:
                    raise
                continue  # a purge removed slices meanwhile
            after = _commit(snapshot, plan, rewrites, runtime)
            if after is not None:
                remove_erased(after, cache)
                return plan.report, after
    raise CommitConflict(
        f"nothing was erased from {name!r}: the commit lost {MAX_RACES} races against other writers", hint="try again"
    )


def plan_erase(name: str, snapshot: Snapshot, keys: Any, cache: RunCache) -> EraseReport:
    """What `erase` would do."""
    return _plan(name, snapshot, keys, cache).report


def records_of_keys(name: str, snapshot: Snapshot, keys: Any) -> pa.Table:
    """All records with one of these keys, with all columns."""
    layout, key_table = snapshot.require_layout(name), parse_keys(keys, snapshot, name)
    selection = select(snapshot, snapshot.purged_before, snapshot.next_offset)
    scan = Scan(snapshot.objects, layout, selection, tuple(layout.read_schema.names))
    return filter_by_keys(scan.to_reader(history_filter(key_table)).read_all(), key_table)


def _plan(name: str, snapshot: Snapshot, keys: Any, cache: RunCache) -> _Plan:
    refuse_derivative(
        snapshot,
        name,
        "its records come from its inputs",
        "erase the key in its inputs: its records go with theirs",
    )
    require_key(snapshot, name)
    return _plan_found(snapshot, records_of_keys(name, snapshot, keys), cache)


def _plan_records(snapshot: Snapshot, name: str, offsets: I64, cache: RunCache) -> _Plan:
    layout = snapshot.require_layout(name)
    offset, key = layout.vocab.offset, strategy_of(snapshot.state).key
    selection = select(snapshot, snapshot.purged_before, snapshot.next_offset)
    records = Scan(snapshot.objects, layout, selection, (offset, *key)).to_table()
    return _plan_found(snapshot, records.filter(pa.array(np.isin(records.column(offset).to_numpy(), offsets))), cache)


def _plan_found(snapshot: Snapshot, found: pa.Table, cache: RunCache) -> _Plan:
    strategy, layout = strategy_of(snapshot.state), snapshot.layout
    assert layout is not None
    offsets: I64 = np.sort(found.column(layout.vocab.offset).to_numpy())
    hashes = row_hash.hash_rows(found, strategy.key).distinct()
    texts = tuple(f"{high:016x}{low:016x}" for high, low in zip(hashes.high.tolist(), hashes.low.tolist(), strict=True))
    dead = key_index_loader.with_repair(snapshot, cache, lambda index: index.dead())
    current = len(offsets) - int(np.isin(offsets, dead, assume_unique=True).sum())
    slices = len(_by_slice(snapshot, offsets))
    return _Plan(EraseReport(len(texts), len(offsets), current, slices), offsets, tuple(sorted(texts)))


def _by_slice(snapshot: Snapshot, offsets: I64) -> list[tuple[dict[str, Any], I64]]:
    """The slices that have these records, with all records in them that have no values then."""
    everything = np.union1d(offsets, snapshot.erased)
    starts, ends = (snapshot.slices.column(name).to_numpy() for name in ("start", "end"))
    affected = np.unique(np.searchsorted(ends, offsets, side="right"))
    found = []
    for number in affected.tolist():
        mine = everything[slice(*np.searchsorted(everything, [starts[number], ends[number]]))]
        found.append((snapshot.slices.slice(number, 1).to_pylist()[0], mine))
    return found


def _rewritten(snapshot: Snapshot, name: str, row: dict[str, Any], erased: I64, folder: Path) -> _RewrittenSlice:
    """Write a slice again without the values of some records. It must be intact before."""
    objects, layout = snapshot.objects, snapshot.require_layout(name)
    before = Multihash(SHA3_256, row["physical"])
    data = objects.store.get(objects.data_key(before))
    if Multihash.sha3_256(data) != before:
        raise UnreadableSlice(
            f"records of {name!r} cannot be erased: the file of records {row['start']} to {row['end'] - 1} was changed",
            hint="nothing was erased: call verify(), and restore the file from a copy",
        )
    file = pq.ParquetFile(pa.BufferReader(data))
    table = file.read()
    at = erased - row["start"]
    mask = np.zeros(table.num_rows, np.bool_)
    mask[at] = True
    vocab = layout.vocab
    system = table.select(list(vocab.reserved))
    place = system.schema.get_field_index(vocab.op)
    ops = np.where(mask, APPEND, system.column(vocab.op).to_numpy()).astype(np.int32)
    system = system.set_column(place, system.schema.field(place), pa.array(ops))
    values = _without_values(table.drop_columns(list(vocab.reserved)), mask, vocab.event_time)
    path = folder / f"slice-{uuid.uuid4().hex}"
    groups = max((file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)), default=0)
    with explain_write_errors("a slice with erased records", folder):
        new_slice = write_records(path, system, values, vocab, {}, groups or ROW_GROUP_ROWS)
    note = ErasedSlice(
        start=row["start"],
        before=before.text,
        after=new_slice.physical_hash.text,
        logical=new_slice.logical_hash.text,
        size_before=row["size"],
        size=new_slice.size,
        erased=tuple(erased.tolist()),
    )
    return _RewrittenSlice(new_slice, note)


def _without_values(data: pa.Table, mask: Mask, event_time: str) -> pa.Table:
    """The data columns with nulls, or zeros in required columns, where the mask is set.

    The time of the record before stays in the event time, so that records in event-time order remain in this order.
    """
    everything = np.arange(len(mask))
    columns = []
    for each, column in zip(data.schema, data.columns, strict=True):
        if each.name == event_time and not mask.all():
            kept = np.flatnonzero(~mask)
            nearest = kept[np.maximum(np.searchsorted(kept, everything, side="right") - 1, 0)]
            columns.append(column.take(pa.array(np.where(mask, nearest, everything))))
        elif each.nullable:
            columns.append(column.take(pa.array(everything, mask=mask)))
        else:
            blank = pa.chunked_array([*column.chunks, pa.array([blank_value(each.type)], each.type)])
            columns.append(blank.take(pa.array(np.where(mask, len(mask), everything))))
    return pa.Table.from_arrays(columns, schema=data.schema.remove_metadata())


def _commit(snapshot: Snapshot, plan: _Plan, rewrites: Sequence[_RewrittenSlice], runtime: Runtime) -> Snapshot | None:
    """Commit the erasure; None if another writer moved the head first."""
    if not rewrites:
        snapshot.objects.head.make_durable()  # the commit that made this erasure unnecessary must survive a crash
        return snapshot
    erasure = Erasure(plan.keys, tuple(one.note for one in rewrites))
    event: AddData | SetDataSchema
    if snapshot.state.dataset_kind is DatasetKind.DERIVATIVE:
        assert snapshot.state.schema is not None
        event = SetDataSchema(schema=erasure_schema(snapshot.state.schema, erasure))
    else:
        empty = empty_event(snapshot.state)
        event = replace(empty, new_source_state=erase_state(erasure), extra=erase_attributes(erasure))
    planned, state = plan_blocks(snapshot.state, [event], next_system_time(snapshot, runtime))
    if not publish(snapshot.objects, snapshot.head, [one.file for one in rewrites], planned):
        return None
    return snapshot.after(planned, state)


def remove_erased(snapshot: Snapshot, cache: RunCache) -> None:
    """Delete all files that have erased records, also those that an earlier erasure could not delete.

    These are replaced slices and their copies, folded files and the key index, which is built again.
    """
    if not snapshot.erasures:
        return
    objects = snapshot.objects
    try:
        for key in list_replaced_files(snapshot):
            objects.store.delete(key)
        drop_files_with(objects, snapshot.erased)
        key_index_loader.rebuild(snapshot, cache)
    except StorageError as error:
        _log.warning("files with erased records could not be deleted (%s); erase the key again to delete them", error)


def list_replaced_files(snapshot: Snapshot) -> list[str]:
    """The object keys of slices that erasures replaced, and of their copies. They must not exist any more."""
    objects = snapshot.objects
    digests = sorted(set(snapshot.erased_records.column("before").to_pylist()))
    return [key for one in digests for key in _file_keys(objects, Multihash(SHA3_256, one))]


def _file_keys(objects: DatasetObjects, physical: Multihash) -> tuple[str, str]:
    return objects.data_key(physical), objects.rows_key(physical.text)


# Verify


def erasure_problems(snapshot: Snapshot) -> Iterator[VerifyProblem]:
    """Files that have erased records, and records that have an erased key though they are older than its erasure."""
    if not snapshot.erasures:
        return
    objects = snapshot.objects
    copies = {key for key in list_replaced_files(snapshot) if objects.store.stat(key) is not None}
    for key in sorted(copies | set(list_files_with(objects, snapshot.erased))):
        yield VerifyProblem("erasure", key, f"the file has erased records; {_AGAIN}")
    strategy, layout = strategy_of(snapshot.state), snapshot.layout
    if layout is None or not strategy.is_keyed:
        return
    for end, keys in _erased_keys(snapshot):
        scan = Scan(objects, layout, select(snapshot, snapshot.purged_before, end), strategy.key)
        left = sum(
            int(row_hash.hash_rows(pa.Table.from_batches([batch]), strategy.key).among(keys).sum())
            for batch in (scan.batches() if scan.selection.files else ())
        )
        if left:
            message = f"{left} records before record {end} still have a key whose erasure the chain records; {_AGAIN}"
            yield VerifyProblem("erasure", objects.data_key(Multihash(SHA3_256, bytes(32))), message)


def _erased_keys(snapshot: Snapshot) -> Iterator[tuple[int, Hashes]]:
    """For each erasure, the end of the records that it covered, and the hashes of the erased keys."""
    for _, _, block in walk_back(snapshot.objects.get_block, snapshot.head):
        event = block.event
        if isinstance(event, AddData) and (erasure := erasure_of(event)) is not None:
            end = 0 if event.prev_offset is None else event.prev_offset + 1
            high, low = (np.array([int(text[at], 16) for text in erasure.keys], np.uint64) for at in _HALVES)
            yield end, Hashes(high, low)
