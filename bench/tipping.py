"""The function of the backfill benchmarks: a few Arrow kernels over two columns of a trip."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

import floodmark as fm

SCHEMA = pa.schema([pa.field("tip", pa.float64())])


@fm.udf(returns="float64")
def tip(distance: pa.Array, fare: pa.Array) -> pa.Array:
    """A share of the fare, larger for a long trip, rounded to cents."""
    share = pc.if_else(pc.greater(distance, 5.0), 0.15, 0.1)
    return pc.round(pc.multiply(fare, share), 2)


def tips(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same as the body of `mapInArrow`."""
    for batch in batches:
        yield tip_of(batch)


def tip_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same for one batch."""
    return pa.RecordBatch.from_arrays([tip(batch.column("distance"), batch.column("fare"))], schema=SCHEMA)
