"""Plan units of work: ranges of records, or lists of keys, for which it chooses how their rows are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.derive.changed_keys import cut_selection, find_changed_keys, find_changes
from floodmark.derive.inputs import InputSnapshot, KnownKeys
from floodmark.derive.key_shape import KeyShape
from floodmark.derive.row_search import choose_search, estimate_rows_per_key
from floodmark.engine.rounds import TaskRunner
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.rows.classify import RETRACT
from floodmark.rows.key_entries import NO_ROW
from floodmark.rows.live_rows import without_dead_files
from floodmark.storage.arrays import I64, Mask, stable_order
from floodmark.storage.scratch import SortedFile
from floodmark.transforms.join_keys import find_parts
from floodmark.transforms.key_rows import sort_rows_by_bucket
from floodmark.transforms.live_keys import KeySet, read_output_keys
from floodmark.transforms.work_units import KEYS_PART, KeysUnit, RangeUnit, ScratchDir

UNIT_ROWS = 1 << 17
UNIT_BYTES = 64 << 20


def plan_map_units(
    input_snapshot: InputSnapshot,
    shape: KeyShape,
    since: int,
    runner: TaskRunner,
    known: KnownKeys | None = None,
    unit_rows: int = UNIT_ROWS,
    skipped: I64 = NO_OFFSETS,
) -> list[RangeUnit | KeysUnit]:
    """The current rows after `since` of a step's only input as ranges of records, then keys that are gone since then.

    Only the keys of retractions are read. Retractions that were seen when their key was processed are left out by
    `known`; `read_chunks` does the same for rows. The rows at the offsets `skipped` are left out.
    """
    if input_snapshot.layout is None or input_snapshot.end <= since + 1:
        return []
    gone = _gone_since(input_snapshot, shape, since, runner, known)
    return [*_ranges(input_snapshot, since, unit_rows, skipped), *plan_inline_units(gone)]


def find_unchanged_rows(
    input_snapshot: InputSnapshot, shape: KeyShape, since: int, runner: TaskRunner, known: KnownKeys | None = None
) -> I64:
    """The offsets of current rows after `since` that differ from the processed ones only in columns not read."""
    if shape.inputs[0].compared is None:
        return NO_OFFSETS
    offsets: I64 = np.sort(find_changes(input_snapshot, shape, 0, since, runner, known, since).unchanged.last)
    return offsets


def plan_stale_map_units(
    input_snapshot: InputSnapshot,
    shape: KeyShape,
    outputs: Sequence[InputSnapshot],
    runner: TaskRunner,
    unit_rows: int = UNIT_ROWS,
) -> list[RangeUnit | KeysUnit]:
    """All current rows of a step's only input as ranges of records, then keys that only outputs have."""
    return [*_ranges(input_snapshot, -1, unit_rows), *plan_vanished_units(shape, [input_snapshot], outputs, runner)]


def _ranges(input_snapshot: InputSnapshot, since: int, unit_rows: int, skipped: I64 = NO_OFFSETS) -> list[RangeUnit]:
    if input_snapshot.layout is None:
        return []
    live = input_snapshot.live_rows_since(since + 1)
    if len(skipped):
        live = replace(live, dead=np.union1d(live.dead, skipped))
    live = without_dead_files(live)
    rows = max(1, min(unit_rows, int(UNIT_BYTES / max(input_snapshot.row_bytes, 1.0))))
    # Carried rows come first, as they were written first: beyond a purge, a position includes all of them.
    starts = {one.start for one in input_snapshot.snapshot.carried}
    groups = [tuple(f for f in live.files if (f.start in starts) is is_carried) for is_carried in (True, False)]
    parts = [replace(live, files=files) for files in groups if files]
    return [RangeUnit(part, part.start, part.end) for some in parts for part in cut_selection(some, rows)]


def _gone_since(
    input_snapshot: InputSnapshot, shape: KeyShape, since: int, runner: TaskRunner, known: KnownKeys | None
) -> pa.Table:
    """The keys that were retracted after `since` and have no current row."""
    start = max(since + 1, input_snapshot.purged_before)
    low, high = np.searchsorted(input_snapshot.dead, [start, input_snapshot.end])
    if input_snapshot.layout is None or low == high:
        return shape.keys.empty_table()  # every retraction leaves dead records
    is_retraction = pc.field(input_snapshot.layout.vocab.op) == RETRACT
    retracted = find_changed_keys(input_snapshot, shape, 0, since, runner, known, is_retraction).keys
    return retracted.filter(pa.array(~_has_row(input_snapshot, shape, retracted)))


def _has_row(input_snapshot: InputSnapshot, shape: KeyShape, keys: pa.Table) -> Mask:
    """Which keys have a current row in a step's only input."""
    assert input_snapshot.layout is not None
    assert input_snapshot.index is not None
    whole, prefix, fits = shape.own_hashes(0, keys, input_snapshot.layout.data)
    with input_snapshot.raise_if_input_moved():
        offset = input_snapshot.index.find(whole, prefix).offset
    has_row: Mask = fits & (offset != NO_ROW) & (offset >= input_snapshot.purged_before)
    return has_row


def plan_vanished_units(
    shape: KeyShape, inputs: Sequence[InputSnapshot], outputs: Sequence[InputSnapshot], runner: TaskRunner
) -> list[KeysUnit]:
    """The keys that outputs have but a step's only input has not: a full run retracts their rows."""
    [only] = inputs
    keys = KeySet.joined([read_output_keys(output, shape, None, runner) for output in outputs], shape.keys).table
    if only.layout is None:
        return plan_inline_units(keys)
    return plan_inline_units(keys.filter(pa.array(~_has_row(only, shape, keys))))


def plan_inline_units(keys: pa.Table) -> list[KeysUnit]:
    """Units with keys of a step's only input; each unit contains its keys."""
    bounds = range(0, keys.num_rows, KEYS_PART)
    return [KeysUnit(keys.slice(at, KEYS_PART), at, min(at + KEYS_PART, keys.num_rows), 1.0, (None,)) for at in bounds]


def plan_key_units(
    keys: pa.Table, shape: KeyShape, inputs: Sequence[InputSnapshot], runner: TaskRunner, scratch: ScratchDir
) -> list[KeysUnit]:
    """Distinct keys as units of work. Rows that an index cannot find cheaply are sorted into files first."""
    if keys.num_rows == 0:
        return []
    sides: list[tuple[SortedFile, ...] | None] = []
    rows_each = bytes_each = 0.0
    for number, given in enumerate(inputs):
        linked = find_parts(shape, inputs, number, keys, runner) if shape.inputs[number].through else None
        parts = keys if linked is None else linked.table
        each = estimate_rows_per_key(given, shape, number, parts) * parts.num_rows / keys.num_rows
        if choose_search(shape.inputs[number].search_method, keys.num_rows, each, given.live_rows) == "index":
            sides.append(None)
        else:
            mine = linked or find_parts(shape, inputs, number, keys, runner)
            files = sort_rows_by_bucket(given, shape, number, keys, mine, runner, scratch)
            sides.append(files)
            each = sum(sum(file.rows) for file in files) / keys.num_rows if shape.inputs[number].part else 0.0
        rows_each += each
        bytes_each += each * given.row_bytes
    ordered = _order(keys, shape, sides)
    largest = max(1, int(min(KEYS_PART, UNIT_ROWS / max(rows_each, 1.0), UNIT_BYTES / max(bytes_each, 1.0))))
    count = -(-keys.num_rows // largest)
    cuts = [keys.num_rows * i // count for i in range(count + 1)]
    table: pa.Table | SortedFile = ordered
    if keys.num_rows > KEYS_PART:
        parts = [min(KEYS_PART, keys.num_rows - at) for at in range(0, keys.num_rows, KEYS_PART)]
        table = scratch.put(ordered, parts)
    return [
        KeysUnit(
            table.slice(low, high - low) if isinstance(table, pa.Table) else table, low, high, rows_each, tuple(sides)
        )
        for low, high in pairwise(cuts)
    ]


def _order(keys: pa.Table, shape: KeyShape, sides: Sequence[object]) -> pa.Table:
    """Order keys so that consecutive ones need the same files, and in a cross join form rectangles."""
    if shape.kind == "cross":
        parts = [shape.hash_part(side[0], keys) for side in shape.sides]
        order = np.lexsort([half for part in reversed(parts) for half in (part.low, part.high)])
    elif any(side is not None for side in sides):
        hashes = shape.hash_keys(keys)
        order = stable_order([hashes.high, hashes.low])
    else:
        return keys
    return keys.take(pa.array(order))
