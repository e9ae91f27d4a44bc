"""Which checkpoints serve a fragment: those of the same computation, whatever filter they were made under.

A value is a value: what one `where` had computed is not computed again for another. A checkpoint that cannot be trusted
is left out, so that its rows count as missing; who is about to compute them also deletes it. What is whole and merely
not what is looked for, such as values of another type, is left alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.checkpoints.batches import ERROR, ERROR_TYPE, ROWADDR
from floodmark.compute.checkpoints.keys import DATA, RANGE, ParsedKey, Prefix, parse_key
from floodmark.compute.checkpoints.store import CheckpointStore
from floodmark.compute.errors import BadCheckpoint
from floodmark.compute.stored.manifest import Segment
from floodmark.storage.arrays import I64
from floodmark.storage.errors import ObjectNotFound

_DATA_FIELDS = {
    "file": pa.string(),
    "src_data_files": pa.string(),
    "output_field_ids": pa.string(),
    "segment": pa.string(),
    "done": pa.binary(),
    "errors": pa.binary(),
}
_ERROR_NAMES = [field.name for field in ERROR_TYPE]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RangeCheckpoint:
    """A stored batch that covers the addresses [start, end) and holds values of `rows`, or errors of the `failed`."""

    key: str
    start: int
    end: int
    rows: BitMap
    failed: BitMap = field(default_factory=BitMap)


@dataclass(frozen=True)
class DataCheckpoint:
    """A finished file of the addresses [start, end) that may not be committed yet; `done` are the rows computed in it.

    `segment` is the file as a manifest would name it, in JSON; `errors` are the rows that were skipped, if any.
    """

    key: str
    start: int
    end: int
    file: str
    sources: str
    segment: str
    field_ids: tuple[int, ...]
    done: BitMap
    errors: pa.Table | None

    def error_column(self, offsets: I64) -> pa.Array | None:
        """The errors of some records, null where there is none; None when there are none at all."""
        if self.errors is None or not self.errors.num_rows:
            return None
        at = self.errors.column("offset").to_numpy()
        order = np.argsort(at, kind="stable")
        places = np.minimum(np.searchsorted(at, offsets, sorter=order), len(at) - 1)
        parts = [self.errors.column(name).combine_chunks() for name in _ERROR_NAMES]
        details = pa.StructArray.from_arrays(parts, fields=list(ERROR_TYPE))
        return details.take(pa.array(order[places], mask=at[order[places]] != offsets))


def data_batch(
    *, file: str, sources: str, field_ids: Sequence[int], segment: str, done: BitMap, errors: pa.Table | None
) -> pa.RecordBatch:
    """What a data checkpoint holds."""
    skipped = None if errors is None or not errors.num_rows else _to_ipc(errors)
    row = [file, sources, json.dumps(sorted(field_ids)), segment, addresses.pack(done), skipped]
    arrays = [pa.array([value], kind) for value, kind in zip(row, _DATA_FIELDS.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(_DATA_FIELDS.items())))


@dataclass(frozen=True)
class Looking:
    """Finds checkpoints and changes nothing: for plans.

    With the dataset's id, finished fragments of the oldest format are found, too.
    """

    store: CheckpointStore
    dataset_id: str | None = None

    def ranges(
        self, prefix: Prefix, fragment: int, column: pa.Field, within: tuple[int, int] | None = None
    ) -> list[RangeCheckpoint]:
        """The range checkpoints of a fragment that are whole and right, by their start.

        `within` leaves out, unread, those that have nothing in these addresses. Larger ones of older formats are among
        them as one range each, under keys that only tell that they are there.
        """
        found, keys = [], []
        if self._has_older:
            from floodmark.compute.checkpoints import legacy

            found = self._older(prefix, fragment, column)
            keys = legacy.range_keys(self.store, prefix, fragment)
        keys += self.store.list_any_where(prefix.text, fragment)
        return sorted([*found, *self.among(keys, column, within)], key=_place)

    @cached_property
    def _has_older(self) -> bool:
        """Whether any checkpoint of an older format is there: one listing, and nothing else looks for them."""
        return any(not name.startswith("fmt-") for name in self.store.group_names())

    def among(
        self, keys: Iterable[str], column: pa.Field, within: tuple[int, int] | None = None
    ) -> list[RangeCheckpoint]:
        """Those of some keys of a fragment that are range checkpoints, whole and right, by their start."""
        found = []
        for key in keys:
            parsed = parse_key(key)
            if parsed is None or parsed.kind != RANGE or not _overlap(parsed, within):
                continue
            batch = self._trusted(key)
            if batch is None or not _is_of(batch, column):
                continue
            rows = _rows_of(batch, parsed)
            if isinstance(rows, str):
                self._discard(key, rows)
            else:
                found.append(RangeCheckpoint(key, parsed.start, parsed.end, rows, _failed(batch)))
        return sorted(found, key=_place)

    def data(self, prefix: Prefix, fragment: int) -> list[DataCheckpoint]:
        """The data checkpoints of a fragment that are whole and right, by their start; their files may be gone."""
        found = []
        for key in self.store.list_any_where(prefix.text, fragment):
            parsed = parse_key(key)
            if parsed is None or parsed.kind != DATA:
                continue
            batch = self._trusted(key)
            if batch is None:
                continue
            try:
                found.append(_data_of(batch, parsed, key))
            except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
                self._discard(key, f"it does not describe a file ({error})")
        return sorted(found, key=lambda checkpoint: (checkpoint.start, checkpoint.end, checkpoint.key))

    def _older(self, prefix: Prefix, fragment: int, column: pa.Field) -> list[RangeCheckpoint]:
        """What older formats have that would first have to be made into ranges."""
        from floodmark.compute.checkpoints import legacy

        found = legacy.find(self.store, prefix, fragment, column, self.dataset_id)
        return [RangeCheckpoint(one.key, *one.bounds, addresses.from_array(one.rows)) for one in found]

    def _trusted(self, key: str) -> pa.RecordBatch | None:
        try:
            return self.store.get(key)
        except ObjectNotFound:
            return None  # collected between the listing and now
        except BadCheckpoint as error:
            self._discard(key, error.problem)
            return None

    def _discard(self, key: str, problem: str) -> None:
        _log.warning("The checkpoint %r cannot be used and its rows will be computed again: %s.", key, problem)


@dataclass(frozen=True)
class Mending(Looking):
    """Finds checkpoints for someone who will use them: bad ones are deleted, older formats made into today's."""

    def _older(self, prefix: Prefix, fragment: int, column: pa.Field) -> list[RangeCheckpoint]:
        from floodmark.compute.checkpoints import legacy

        legacy.adopt(self.store, prefix, fragment, column, self.dataset_id)
        return []  # they are ordinary ones now

    def _discard(self, key: str, problem: str) -> None:
        _log.warning("The checkpoint %r is deleted and its rows will be computed again: %s.", key, problem)
        self.store.delete(key)


def find_ranges(
    store: CheckpointStore,
    prefix: Prefix,
    fragment: int,
    column: pa.Field,
    within: tuple[int, int] | None = None,
    *,
    dataset_id: str | None = None,
) -> list[RangeCheckpoint]:
    """The range checkpoints of a fragment, for someone who will use them."""
    return Mending(store, dataset_id).ranges(prefix, fragment, column, within)


def find_data(store: CheckpointStore, prefix: Prefix, fragment: int) -> list[DataCheckpoint]:
    """The data checkpoints of a fragment, for someone who will use them."""
    return Mending(store).data(prefix, fragment)


def _place(checkpoint: RangeCheckpoint) -> tuple[int, int, str]:
    return checkpoint.start, checkpoint.end, checkpoint.key


def _overlap(parsed: ParsedKey, within: tuple[int, int] | None) -> bool:
    return within is None or (parsed.start < within[1] and within[0] < parsed.end)


def _is_of(batch: pa.RecordBatch, column: pa.Field) -> bool:
    """Whether a batch has what range checkpoints of a column have, by the names and types of its columns."""
    expected = {ROWADDR: pa.int64(), column.name: column.type, ERROR: ERROR_TYPE}
    places = {name: batch.schema.get_field_index(name) for name in expected}
    return all(at >= 0 and batch.schema.field(at).type.equals(expected[name]) for name, at in places.items())


def _rows_of(batch: pa.RecordBatch, parsed: ParsedKey) -> BitMap | str:
    """The addresses that a range checkpoint holds, or what is wrong with it."""
    if batch.column(ROWADDR).null_count:
        return "a row has no address"
    rows: I64 = batch.column(ROWADDR).to_numpy()
    if not len(rows):
        return BitMap()
    if rows[0] < parsed.start or rows[-1] >= parsed.end:
        return f"its rows {rows[0]} to {rows[-1]} are not within [{parsed.start}, {parsed.end})"
    if (np.diff(rows) <= 0).any():
        return "its rows are not in order"
    first, last = int(rows[0]), int(rows[-1])
    return addresses.span(first, last + 1) if last - first == len(rows) - 1 else addresses.from_array(rows)


def _failed(batch: pa.RecordBatch) -> BitMap:
    """The addresses of the rows that were skipped, of a batch whose rows are in order."""
    errors = batch.column(ERROR)
    if errors.null_count == len(errors):
        return BitMap()
    return addresses.from_array(batch.column(ROWADDR).to_numpy()[errors.is_valid().to_numpy(zero_copy_only=False)])


def _data_of(batch: pa.RecordBatch, parsed: ParsedKey, key: str) -> DataCheckpoint:
    if batch.num_rows != 1:
        raise ValueError(f"it has {batch.num_rows} rows")
    row = {name: batch.column(name).cast(kind)[0].as_py() for name, kind in _DATA_FIELDS.items()}
    if missing := [name for name, value in row.items() if value is None and name != "errors"]:
        raise ValueError(f"it has no {missing[0]}")
    Segment.from_json(row["segment"])  # whoever uses it need not doubt it
    done = addresses.unpack(row["done"])
    if done and (done.min() < parsed.start or done.max() >= parsed.end):
        raise ValueError(f"its rows {done.min()} to {done.max()} are not within [{parsed.start}, {parsed.end})")
    field_ids = tuple(int(number) for number in json.loads(row["output_field_ids"]))
    errors = None if row["errors"] is None else _from_ipc(row["errors"])
    names = (row["file"], row["src_data_files"], row["segment"])
    return DataCheckpoint(key, parsed.start, parsed.end, *names, field_ids, done, errors)


def _to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _from_ipc(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
