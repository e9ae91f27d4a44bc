"""Chunks and outputs for tests of calls: small ones, made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.functions.on_error import parse_on_error
from floodmark.functions.step_call import ChunkCallResult, call_chunk
from floodmark.functions.step_function import StepFunction
from floodmark.functions.step_result import OutputShape
from floodmark.ledger.schema import derive_layout
from floodmark.rows.row_hash import hash_rows
from floodmark.storage.parquet import Vocabulary
from floodmark.transforms.chunks import Chunk, Side

NOW = 1_700_000_000_000
IDS = pa.schema([pa.field("id", pa.int64())])


def chunk_of(rows: pa.Table | dict[str, Any], keys: Sequence[str] = ("id",)) -> Chunk:
    """A chunk of one input: its keys are those of the rows, each once, in the order in which they first come."""
    table = rows if isinstance(rows, pa.Table) else pa.table(rows)
    hashes = hash_rows(table, keys)
    first = hashes.first_positions()
    numbers = {pair: i for i, pair in enumerate(pairs(hashes.take(first)))}
    owner = np.array([numbers[pair] for pair in pairs(hashes)], np.int64)
    side = Side(table, np.arange(table.num_rows), owner, np.arange(len(first)))
    return Chunk(table.select(list(keys)).take(pa.array(first)), hashes.take(first), (side,))


def ids(count: int) -> Chunk:
    return chunk_of({"id": np.arange(count), "x": np.arange(count) * 1.5})


def pairs(hashes: Any) -> list[tuple[int, int]]:
    return list(zip(hashes.high.tolist(), hashes.low.tolist(), strict=True))


def output(
    columns: dict[str, pa.DataType] | None = None,
    *,
    key: Sequence[str] = ("id",),
    keys: pa.Schema = IDS,
    event_time: str | None = None,
    name: str = "out",
) -> OutputShape:
    layout = None
    if columns is not None:
        others = [k for k in key if k not in keys.names]
        layout = derive_layout(pa.schema(list(columns.items())), Vocabulary(), event_time, others)
    return OutputShape(name, tuple(key), keys, layout, event_time)


def call(
    function: Callable[..., Any],
    chunk: Chunk,
    *outputs: OutputShape,
    on_error: object = "retry",
    before: Sequence[int] | None = None,
    pauses: list[float] | None = None,
) -> ChunkCallResult:
    made = StepFunction(function, version="1", inputs=len(chunk.frames), outputs=len(outputs))
    attempts = np.zeros(len(chunk), np.int64) if before is None else np.array(before, np.int64)
    slept = [] if pauses is None else pauses
    return call_chunk(made, chunk, outputs, parse_on_error(on_error), attempts, NOW, slept.append)
