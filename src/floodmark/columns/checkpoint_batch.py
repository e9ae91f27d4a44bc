"""Computed rows as checkpoints store them: the address, the value, and the error of a row that was skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from floodmark.functions.column_call import BatchValues
from floodmark.functions.failures import RowError
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64

Mask = npt.NDArray[np.bool_]

ROWADDR = "_rowaddr"
ERROR = "_error"
_RUN = b"floodmark.run"
_CARRIED = b"floodmark.carried"
ERROR_TYPE = pa.struct(
    [("type", pa.string()), ("message", pa.string()), ("traceback", pa.string()), ("attempts", pa.int32())]
)


def encode_checkpoint(column: pa.Field, places: Sequence[I64], computed: Sequence[BatchValues]) -> pa.RecordBatch:
    """The results of some calls of the function as one batch; `places` are the addresses of each call's rows."""
    at = np.concatenate(places)
    values = pa.concat_arrays([c.values for c in computed]) if len(computed) > 1 else computed[0].values
    schema = pa.schema([(ROWADDR, pa.int64()), (column.name, column.type), (ERROR, ERROR_TYPE)])
    return pa.RecordBatch.from_arrays([pa.array(at), values, _error_column(computed, len(at))], schema=schema)


def mark_run(batch: pa.RecordBatch, run: str) -> pa.RecordBatch:
    """A batch with the id of the backfill that stored it in its metadata."""
    return batch.replace_schema_metadata({_RUN: run})


def read_run(batch: pa.RecordBatch) -> str:
    """The id of the backfill that stored a batch, empty when it has none."""
    return str((batch.schema.metadata or {}).get(_RUN, b"").decode())


def mark_carried(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch that is marked as one of values that records took over from the records that they replaced."""
    return batch.replace_schema_metadata({**(batch.schema.metadata or {}), _CARRIED: b"1"})


def is_carried(batch: pa.RecordBatch) -> bool:
    """Whether a batch has this mark."""
    return _CARRIED in (batch.schema.metadata or {})


def _error_column(computed: Sequence[BatchValues], rows: int) -> pa.Array:
    found: list[tuple[int, RowError]] = []
    first = 0
    for batch in computed:
        found += [(first + error.at, error) for error in batch.errors]
        first += len(batch.values)
    if not found:
        return pa.nulls(rows, ERROR_TYPE)
    details = pa.array([_error_dict(error) for _, error in found], ERROR_TYPE)
    places = np.full(rows, -1, np.int64)
    places[[at for at, _ in found]] = np.arange(len(found))
    return details.take(pa.array(places, mask=places < 0))


def _error_dict(error: RowError) -> dict[str, object]:
    return {"type": error.type, "message": error.message, "traceback": error.traceback, "attempts": error.attempts}


@dataclass(frozen=True)
class OffsetValues:
    """Values of some offsets, in order, from a file, a checkpoint or memory. `errors` has those of skipped rows."""

    offsets: I64
    values: pa.Array | pa.ChunkedArray
    errors: pa.Array | None = None
    made: float = 0.0  # when it was stored (epoch seconds); set only where the newest of several sources matters

    @staticmethod
    def of(batch: pa.RecordBatch, base: int) -> OffsetValues:
        """The rows of a checkpoint. `base` is the offset of its fragment's address 0. Other columns are ignored."""
        name = next(n for n in batch.schema.names if n not in (ROWADDR, ERROR))
        errors = batch.column(ERROR) if ERROR in batch.schema.names else None
        if errors is not None and errors.null_count == len(errors):
            errors = None
        return OffsetValues(batch.column(ROWADDR).to_numpy() + base, batch.column(name), errors)

    def only(self, offsets: BitMap, base: int) -> OffsetValues:
        """Its rows that have one of these addresses, which are relative to `base`."""
        if not len(self.offsets):
            return self
        near = offsets & row_sets.span(int(self.offsets[0]) - base, int(self.offsets[-1]) - base + 1)
        if len(near) == len(self.offsets) == self.offsets[-1] - self.offsets[0] + 1:
            return self
        return self.where(np.isin(self.offsets - base, row_sets.to_array(near)))

    def where(self, kept: Mask) -> OffsetValues:
        """Its rows that a mask keeps."""
        if kept.all():
            return self
        mask = pa.array(kept)
        errors = None if self.errors is None else self.errors.filter(mask)
        return OffsetValues(self.offsets[kept], self.values.filter(mask), errors, self.made)

    def within(self, start: int, end: int) -> OffsetValues:
        """Its rows with offsets in [start, end)."""
        low, high = np.searchsorted(self.offsets, [start, end])
        errors = None if self.errors is None else self.errors.slice(low, high - low)
        return OffsetValues(self.offsets[low:high], self.values.slice(low, high - low), errors, self.made)

    @cached_property
    def failed(self) -> Mask:
        """A mask of its rows that were skipped."""
        if self.errors is None:
            return np.zeros(len(self.offsets), np.bool_)
        found: Mask = self.errors.is_valid().to_numpy(zero_copy_only=False)
        return found
