"""A timeline as a Spark frame: each task reads the next spans, so the frame is in event-time order."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from floodmark.engine.frames import make_empty_frame, make_frame
from floodmark.ledger.spark_read import BATCH_ROWS, LEAST_BYTES, TASK_BYTES, TASKS
from floodmark.ledger.spark_types import spark_ready, spark_schema
from floodmark.timeline.order.places import time_column
from floodmark.timeline.order.ranges import Range
from floodmark.timeline.order.spans import Span, groups
from floodmark.timeline.reading.read import Reading

AGAIN = 4
"""Pieces that lie over many tasks' spans are read by each of them; so often at most, else Spark sorts the rows."""


def spark_frame(reading: Reading, spark: Any) -> Any:
    """The rows of a reading as a Spark frame, in its order."""
    if not reading.spans:
        return make_empty_frame(spark, spark_schema(reading.schema))
    grouped = _groups(reading.spans)
    if _bytes_read(grouped) > AGAIN * _bytes_read([reading.spans]):
        return _sorted_frame(reading, spark)
    return _frame(reading, grouped, spark)


def _groups(spans: Sequence[Span]) -> list[list[Span]]:
    most = min(TASK_BYTES, max(LEAST_BYTES, sum(span.size for span in spans) // TASKS))
    return groups(spans, most)


def _bytes_read(grouped: Sequence[Sequence[Span]]) -> int:
    """How many bytes tasks read that have these spans: each reads all of every piece that it needs some of."""
    return sum(sum(piece.size for piece in {p for span in group for p in span.pieces}) for group in grouped)


def _sorted_frame(reading: Reading, spark: Any) -> Any:
    """The same when much of it is in no order at all: every piece is read once, and Spark sorts the rows.

    Since the order does not matter, the ledger's slices serve as well: then no file of the timeline can be damaged.
    """
    layout = reading.files.layout
    order = (time_column(layout), layout.vocab.offset)
    lo, hi = reading.spans[0].lo, reading.spans[-1].hi
    source = reading if reading.instead is None else reading.alone(reading.instead, Range(lo, hi))
    pieces = dict.fromkeys(piece for span in source.spans for piece in span.pieces)
    alone = [Span(lo, hi, None, (piece,), piece.rows, piece.size) for piece in pieces]
    wanted = replace(source, columns=tuple(dict.fromkeys([*reading.columns, *order])))
    frame = _frame(wanted, _groups(alone), spark)
    columns = [frame[_quoted(name)] for name in reading.columns]
    return frame.sort(*[frame[_quoted(name)] for name in order]).select(*columns)


def _frame(reading: Reading, grouped: Sequence[Sequence[Span]], spark: Any) -> Any:
    """A frame of one task for each group of spans. What all tasks share, the dead above all, is sent to them once.

    The spans are rows of the frame that drives them, each in a partition of its own, so a task is sent only its own.
    """
    described = [_packed(group) for group in grouped]
    numbers = pa.array(range(len(described)), pa.int32())
    frame = make_frame(spark, pa.table({"task": numbers, "spans": pa.array(described, pa.binary())}))
    apart = frame.repartitionById(len(described), "task")
    return apart.mapInArrow(partial(_read_parts, replace(reading, spans=())), spark_schema(reading.schema))


def _read_parts(shared: Reading, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    ready = spark_ready(shared.schema)
    for batch in batches:
        for described in batch.column(1).to_pylist():
            for records in replace(shared, spans=_unpacked(described)).batches():
                fitting = records.cast(ready)
                for first in range(0, fitting.num_rows, BATCH_ROWS):
                    yield fitting.slice(first, BATCH_ROWS)


def _packed(spans: Sequence[Span]) -> bytes:
    return zlib.compress(pickle.dumps(tuple(spans)))


def _unpacked(described: bytes) -> tuple[Span, ...]:
    found: tuple[Span, ...] = pickle.loads(zlib.decompress(described))  # noqa: S301  our own bytes, sent by the driver
    return found


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
