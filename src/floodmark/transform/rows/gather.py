"""Gathering: changed keys or ranges of records become units of work, and how the rows of keys are to be found."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.engine.rounds import Runner
from floodmark.ledger.current import without_lifeless
from floodmark.ledger.keys.records import NOT_THERE
from floodmark.ledger.merge.batch import RETRACT
from floodmark.storage.arrays import Mask, stable_order
from floodmark.transform.changed.alive import Keys, output_keys
from floodmark.transform.changed.changes import changed_keys, cut
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.changed.shape import Shape
from floodmark.transform.lakes import KnownKeys
from floodmark.transform.rows.room import FiledTable, Room
from floodmark.transform.rows.semi_join import sort_out
from floodmark.transform.rows.units import KEYS_PART, KeysUnit, RangeUnit

UNIT_ROWS = 1 << 17
UNIT_BYTES = 64 << 20

ROW_BY_KEY = 8.0
"""What a row costs that is found by its key, in rows of a scan that looks at everything."""

FEW_ROWS = 1 << 10
"""Inputs of so few rows are not worth scanning when there is an index."""

_SAMPLE = 256

Way = Literal["index", "scan"]


def cheaper(found_by: str, keys: int, rows_each: float, live_rows: int) -> Way:
    """How the rows of keys are found: one by one through the key index, or by looking at all rows of the input."""
    if found_by == "scan":
        return "scan"
    if live_rows <= FEW_ROWS:
        return "index"
    return "index" if keys * max(rows_each, 1.0) * ROW_BY_KEY <= live_rows else "scan"


def map_units(
    pinned: PinnedInput,
    shape: Shape,
    since: int,
    runner: Runner,
    known: KnownKeys | None = None,
    unit_rows: int = UNIT_ROWS,
) -> list[RangeUnit | KeysUnit]:
    """The current rows after `since` of a step's only input as ranges of records, then keys that are gone since.

    No key is looked at but those of retractions. `known` leaves out retractions that were seen when their key was
    processed; for rows, `read_chunks` does that.
    """
    if pinned.layout is None or pinned.end <= since + 1:
        return []
    return [*_ranges(pinned, since, unit_rows), *held_units(_gone_since(pinned, shape, since, runner, known))]


def stale_map_units(
    pinned: PinnedInput, shape: Shape, outputs: Sequence[PinnedInput], runner: Runner, unit_rows: int = UNIT_ROWS
) -> list[RangeUnit | KeysUnit]:
    """All current rows of a step's only input as ranges of records, then keys that only outputs still have."""
    return [*_ranges(pinned, -1, unit_rows), *vanished_units(shape, [pinned], outputs, runner)]


def _ranges(pinned: PinnedInput, since: int, unit_rows: int) -> list[RangeUnit]:
    if pinned.layout is None:
        return []
    living = without_lifeless(pinned.living_since(since + 1))
    rows = max(1, min(unit_rows, int(UNIT_BYTES / max(pinned.row_bytes, 1.0))))
    return [RangeUnit(piece, piece.start, piece.end) for piece in cut(living, rows)]


def _gone_since(pinned: PinnedInput, shape: Shape, since: int, runner: Runner, known: KnownKeys | None) -> pa.Table:
    """The keys that were retracted after `since` and are not there any more."""
    start = max(since + 1, pinned.purged_before)
    low, high = np.searchsorted(pinned.dead, [start, pinned.end])
    if pinned.layout is None or low == high:
        return shape.keys.empty_table()  # who is retracted, and what says so, is dead
    is_retraction = pc.field(pinned.layout.vocab.op) == RETRACT
    retracted = changed_keys(pinned, shape, 0, since, runner, known, is_retraction).keys
    return retracted.filter(pa.array(~_is_alive(pinned, shape, retracted)))


def _is_alive(pinned: PinnedInput, shape: Shape, keys: pa.Table) -> Mask:
    assert pinned.layout is not None
    assert pinned.index is not None
    whole, prefix, fits = shape.own_hashes(0, keys, pinned.layout.data)
    with pinned.steady():
        offset = pinned.index.find(whole, prefix).offset
    alive: Mask = fits & (offset != NOT_THERE) & (offset >= pinned.purged_before)
    return alive


def vanished_units(
    shape: Shape, pinned: Sequence[PinnedInput], outputs: Sequence[PinnedInput], runner: Runner
) -> list[KeysUnit]:
    """The keys that outputs have and a step's only input has not: what a full map run has to take back."""
    [only] = pinned
    keys = Keys.joined([output_keys(output, shape, None, runner) for output in outputs], shape.keys).table
    if only.layout is None:
        return held_units(keys)
    return held_units(keys.filter(pa.array(~_is_alive(only, shape, keys))))


def held_units(keys: pa.Table) -> list[KeysUnit]:
    """Units of keys of a step's only input that travel with them."""
    bounds = range(0, keys.num_rows, KEYS_PART)
    return [KeysUnit(keys.slice(at, KEYS_PART), at, min(at + KEYS_PART, keys.num_rows), 1.0, (None,)) for at in bounds]


def key_units(
    keys: pa.Table, shape: Shape, pinned: Sequence[PinnedInput], runner: Runner, room: Room
) -> list[KeysUnit]:
    """Keys, each once, as units of work, with the rows sorted out that no index finds cheaply."""
    if keys.num_rows == 0:
        return []
    sides: list[tuple[FiledTable, ...] | None] = []
    rows_each = bytes_each = 0.0
    for number, given in enumerate(pinned):
        each = rows_per_key(given, shape, number, keys)
        if cheaper(shape.inputs[number].found_by, keys.num_rows, each, given.live_rows) == "index":
            sides.append(None)
        else:
            files = sort_out(given, shape, number, keys, runner, room)
            sides.append(files)
            each = sum(sum(file.rows) for file in files) / keys.num_rows
        rows_each += each
        bytes_each += each * given.row_bytes
    ordered = _ordered(keys, shape, sides)
    largest = max(1, int(min(KEYS_PART, UNIT_ROWS / max(rows_each, 1.0), UNIT_BYTES / max(bytes_each, 1.0))))
    count = -(-keys.num_rows // largest)
    cuts = [keys.num_rows * i // count for i in range(count + 1)]
    held: pa.Table | FiledTable = ordered
    if keys.num_rows > KEYS_PART:
        parts = [min(KEYS_PART, keys.num_rows - at) for at in range(0, keys.num_rows, KEYS_PART)]
        held = room.put(ordered, parts)
    return [
        KeysUnit(
            held.slice(low, high - low) if isinstance(held, pa.Table) else held, low, high, rows_each, tuple(sides)
        )
        for low, high in pairwise(cuts)
    ]


def rows_per_key(given: PinnedInput, shape: Shape, number: int, keys: pa.Table) -> float:
    """About how many rows of an input a key has, from some of the keys."""
    if shape.inputs[number].found_by != "prefix" or given.layout is None or given.index is None:
        return 1.0
    sample = keys.take(pa.array(np.linspace(0, keys.num_rows - 1, min(_SAMPLE, keys.num_rows)).astype(np.int64)))
    prefixes, _, _ = shape.own_hashes(number, sample, given.layout.data)
    with given.steady():
        which, _ = given.index.find_prefix(prefixes)
    return float(len(which) / sample.num_rows)


def _ordered(keys: pa.Table, shape: Shape, sides: Sequence[object]) -> pa.Table:
    """Keys so that neighbours need the same files, and in a cross join make rectangles."""
    if shape.kind == "cross":
        parts = [shape.hash_part(number, keys) for number in range(len(shape.inputs))]
        order = np.lexsort([half for part in reversed(parts) for half in (part.low, part.high)])
    elif any(side is not None for side in sides):
        hashes = shape.hash_keys(keys)
        order = stable_order([hashes.high, hashes.low])
    else:
        return keys
    return keys.take(pa.array(order))
