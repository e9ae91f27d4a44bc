"""A timeline as a Spark frame: each task reads the next spans, so the frame is in event-time order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from floodmark.ledger.spark_read import BATCH_ROWS, LEAST_BYTES, TASK_BYTES, TASKS
from floodmark.ledger.spark_types import spark_ready, spark_schema
from floodmark.timeline.places import time_column
from floodmark.timeline.read import Reading
from floodmark.timeline.spans import Span, groups

AGAIN = 4
"""Pieces that lie over many tasks' spans are read by each of them; so often at most, else Spark sorts the rows."""


def spark_frame(reading: Reading, spark: Any) -> Any:
    """The rows of a reading as a Spark frame, in its order."""
    if not reading.spans:
        return spark.createDataFrame([], spark_schema(reading.schema))
    grouped = _groups(reading.spans)
    if _bytes_read(grouped) > AGAIN * _bytes_read([reading.spans]):
        return _sorted_frame(reading, spark)
    return _frame([reading.part(group) for group in grouped], spark)


def _groups(spans: Sequence[Span]) -> list[list[Span]]:
    most = min(TASK_BYTES, max(LEAST_BYTES, sum(span.size for span in spans) // TASKS))
    return groups(spans, most)


def _bytes_read(grouped: Sequence[Sequence[Span]]) -> int:
    """How many bytes tasks read that have these spans: each reads all of every piece that it needs some of."""
    return sum(sum(piece.size for piece in {p for span in group for p in span.pieces}) for group in grouped)


def _sorted_frame(reading: Reading, spark: Any) -> Any:
    """The same when much of it is in no order at all: every piece is read once, and Spark sorts the rows."""
    layout = reading.files.layout
    order = (time_column(layout), layout.vocab.offset)
    lo, hi = reading.spans[0].lo, reading.spans[-1].hi
    pieces = dict.fromkeys(piece for span in reading.spans for piece in span.pieces)
    alone = [Span(lo, hi, None, (piece,)) for piece in pieces]
    wanted = replace(reading, spans=(), columns=tuple(dict.fromkeys([*reading.columns, *order])))
    frame = _frame([wanted.part(group) for group in _groups(alone)], spark)
    columns = [frame[_quoted(name)] for name in reading.columns]
    return frame.sort(*[frame[_quoted(name)] for name in order]).select(*columns)


def _frame(parts: list[Reading], spark: Any) -> Any:
    frame = spark.range(0, len(parts), 1, len(parts))
    return frame.mapInArrow(partial(_read_parts, parts), spark_schema(parts[0].schema))


def _read_parts(parts: list[Reading], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for i in batch.column(0).to_pylist():
            ready = spark_ready(parts[i].schema)
            for records in parts[i].batches():
                fitting = records.cast(ready)
                for first in range(0, fitting.num_rows, BATCH_ROWS):
                    yield fitting.slice(first, BATCH_ROWS)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
