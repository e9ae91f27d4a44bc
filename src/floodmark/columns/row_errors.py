"""The errors of skipped rows: offset, exception and time of each row, in one small file per fragment."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns.catalog import ColumnObjects
from floodmark.errors import ObjectNotFound, UnreadableColumn
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("type", pa.string()),
        pa.field("message", pa.string()),
        pa.field("traceback", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)
EMPTY = pa.Table.from_batches([], SCHEMA)  # `empty_table` imports pandas


def error_table(offsets: I64, errors: pa.StructArray, at: datetime | None = None) -> pa.Table:
    """The error rows for these offsets, from the `_error` column of a checkpoint. Rows without an error are omitted."""
    moment = pa.scalar(datetime.now(UTC) if at is None else at, SCHEMA.field("at").type)
    columns = [pa.array(offsets, pa.int64()), *errors.flatten(), pa.repeat(moment, len(offsets))]
    return pa.Table.from_arrays(columns, schema=SCHEMA).filter(errors.is_valid())


def error_column(errors: pa.Table, offsets: I64) -> pa.StructArray | None:
    """The errors of some records in the form of checkpoints, null for those without; None if there are none at all."""
    if not errors.num_rows:
        return None
    at = errors.column("offset").to_numpy()
    order = np.argsort(at, kind="stable")
    places = np.minimum(np.searchsorted(at, offsets, sorter=order), len(at) - 1)
    fields = [SCHEMA.field(name) for name in ("type", "message", "traceback", "attempts")]
    details = pa.StructArray.from_arrays([errors.column(f.name).combine_chunks() for f in fields], fields=fields)
    return details.take(pa.array(order[places], mask=at[order[places]] != offsets))


def epoch_datetime(seconds: float) -> datetime:
    """A time in epoch seconds as the datetime that error rows use."""
    return datetime.fromtimestamp(seconds, UTC)


def merge_errors(tables: Sequence[pa.Table]) -> pa.Table:
    """All errors in offset order, one per row. If several tables have a row, the last one is used."""
    together = pa.concat_tables([EMPTY, *tables])
    offsets = together.column("offset").to_numpy()
    _, from_end = np.unique(offsets[::-1], return_index=True)
    return together.take(pa.array(len(offsets) - 1 - from_end))


def only(errors: pa.Table, rows: BitMap, base: int) -> pa.Table:
    """The errors of these row addresses; `base` is the offset of address 0."""
    return errors.filter(pa.array(_are_in(errors, rows, base)))


def without(errors: pa.Table, rows: BitMap, base: int) -> pa.Table:
    """The errors of all rows except these."""
    return errors.filter(pa.array(~_are_in(errors, rows, base)))


def _are_in(errors: pa.Table, rows: BitMap, base: int) -> npt.NDArray[np.bool_]:
    return np.isin(errors.column("offset").to_numpy(), row_sets.to_array(rows) + base)


def put(objects: ColumnObjects, errors: pa.Table) -> str | None:
    """Store error rows durably and return their digest, None when there are no rows."""
    if errors.num_rows == 0:
        return None
    data = encode(errors)
    digest = hashlib.sha3_256(data).hexdigest()
    objects.put(objects.errors_key(digest), data)
    return digest


def load(objects: ColumnObjects, digest: str | None) -> pa.Table:
    """The error rows with this digest; `UnreadableColumn` when they are missing or damaged."""
    if digest is None:
        return EMPTY
    key = objects.errors_key(digest)
    try:
        data = objects.store.get(key)
    except ObjectNotFound as error:
        raise _bad(key, "is missing") from error
    if hashlib.sha3_256(data).hexdigest() != digest:
        raise _bad(key, "was changed or damaged")
    return decode(data)


def encode(errors: pa.Table) -> bytes:
    """Error rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(errors.cast(SCHEMA).combine_chunks())
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(data: bytes) -> pa.Table:
    """The error rows of an Arrow stream."""
    return pa.ipc.open_stream(data).read_all()


def _bad(key: str, problem: str) -> UnreadableColumn:
    return UnreadableColumn(
        f"the file {key!r} with the errors of skipped rows {problem}",
        hint="run backfill(…, retry_errors=True) to compute the skipped rows again; other values are not affected",
        key=key,
    )
