"""Which keys exist: those with current rows in the inputs. Also the keys of cross joins.

A new key that does not exist is not processed, even if it has records: it has no results to remove.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.derive.changed_keys import ChangedKeys, unique_keys
from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.key_shape import KeyShape, constant_part
from floodmark.derive.own_records import find_own_records, is_own
from floodmark.engine.rounds import TaskRunner
from floodmark.rows.key_entries import NO_ROW
from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.transforms.join_keys import find_parts
from floodmark.transforms.live_keys import (
    NOT_PENDING,
    KeyParts,
    KeySet,
    PendingKeys,
    PendingSource,
    read_live_parts,
    read_output_keys,
    read_requested_parts,
)


def drop_missing_keys(
    shape: KeyShape,
    inputs: Sequence[InputSnapshot],
    outputs: Sequence[InputSnapshot],
    pending: PendingKeys,
    runner: TaskRunner,
) -> PendingKeys:
    """Pending keys without new keys that neither inputs nor outputs have.

    A run that was killed between two outputs may have left output rows of keys that the meta does not have.
    """
    if shape.kind == "cross" and not any(given.required for given in shape.inputs):
        return pending  # built from parts that exist, and from keys that outputs have
    new = np.flatnonzero(pending.is_new)
    gone = new[~_exists(shape, inputs, pending.take(new), runner)]
    if len(gone) == 0:
        return pending
    kept = np.ones(len(pending), np.bool_)
    kept[gone] = have_rows(outputs, pending.hashes.take(gone))
    return pending if kept.all() else pending.take(np.flatnonzero(kept))


def _exists(shape: KeyShape, inputs: Sequence[InputSnapshot], pending: PendingKeys, runner: TaskRunner) -> Mask:
    """Which of the pending keys exist. Usually the last records of a key decide; only other keys are looked up."""
    seen = [_ends_live(given, pending.last[:, number]) for number, given in enumerate(inputs)]
    # A cross join is built from parts that exist.
    exists = np.full(len(pending), shape.kind == "cross", np.bool_)
    for number, given in enumerate(shape.inputs):
        if given.side is not None and given.is_full:
            exists |= seen[number]
        elif not given.is_full:  # a changed part makes only keys pending that a source has now
            exists |= pending.last[:, number] != NOT_PENDING
    for number, given in enumerate(shape.inputs):
        if given.side is not None and shape.kind != "cross":
            exists |= _look_up(shape, inputs, number, pending.keys, exists, seen[number], runner)
    for number, given in enumerate(shape.inputs):
        if given.required:
            exists &= _look_up(shape, inputs, number, pending.keys, ~exists, seen[number], runner)
    return exists


def keep_required_keys(shape: KeyShape, inputs: Sequence[InputSnapshot], keys: KeySet, runner: TaskRunner) -> KeySet:
    """The keys that have a row in every required input."""
    for number, given in enumerate(shape.inputs):
        if given.required:
            at = np.flatnonzero(has_part(shape, inputs, number, keys.table, runner))
            keys = keys if len(at) == len(keys) else KeySet(keys.table.take(pa.array(at)), keys.hashes.take(at))
    return keys


def _look_up(
    shape: KeyShape,
    inputs: Sequence[InputSnapshot],
    number: int,
    keys: pa.Table,
    decided: Mask,
    seen: Mask,
    runner: TaskRunner,
) -> Mask:
    """Which keys an input has: `seen` where it is true or the key is decided; other keys are looked up."""
    found = seen.copy()
    left = np.flatnonzero(~decided & ~seen)
    if len(left):
        found[left] = has_part(shape, inputs, number, keys.take(pa.array(left)), runner)
    return found


def _ends_live(input_snapshot: InputSnapshot, last: I64) -> Mask:
    """Whether the last record is a current row: then the key exists. If not, another record may be current."""
    is_live: Mask = last != NOT_PENDING
    at = np.flatnonzero(is_live)
    if len(at) and len(input_snapshot.dead):
        nearest = np.minimum(np.searchsorted(input_snapshot.dead, last[at]), len(input_snapshot.dead) - 1)
        is_live[at] = input_snapshot.dead[nearest] != last[at]
    return is_live


def has_part(shape: KeyShape, inputs: Sequence[InputSnapshot], number: int, keys: pa.Table, runner: TaskRunner) -> Mask:
    """Which keys have current rows in an input."""
    if (own := shape.inputs[number].part) and not shape.inputs[number].through:
        return _parts_with_rows(shape, inputs[number], number, keys.select(list(own)), runner)
    parts = find_parts(shape, inputs, number, keys, runner)
    return parts.of_any(_parts_with_rows(shape, inputs[number], number, parts.table, runner))


def _parts_with_rows(
    shape: KeyShape, input_snapshot: InputSnapshot, number: int, keys: pa.Table, runner: TaskRunner
) -> Mask:
    """Which parts have current rows in an input."""
    given = shape.inputs[number]
    if input_snapshot.layout is None or keys.num_rows == 0:
        return np.zeros(keys.num_rows, np.bool_)
    if not given.part:
        return np.full(keys.num_rows, input_snapshot.live_rows > 0, np.bool_)
    if given.search_method == "scan" or input_snapshot.index is None:
        hashes = shape.hash_part(number, keys)
        live = read_requested_parts(input_snapshot, shape, number, KeyParts(*unique_keys(keys, hashes)), runner)
        return hashes.among(live.hashes)
    whole, prefix, fits = shape.own_hashes(number, keys, input_snapshot.layout.data)
    found = np.zeros(keys.num_rows, np.bool_)
    with input_snapshot.raise_if_input_moved():
        if given.search_method == "key":
            offset = input_snapshot.index.find(whole, prefix).offset
            found[:] = (offset != NO_ROW) & (offset >= input_snapshot.purged_before)
        else:
            which, entries = input_snapshot.index.find_prefix(whole)
            found[which[entries.offset >= input_snapshot.purged_before]] = True
    result: Mask = found & fits
    return result


def have_rows(outputs: Sequence[InputSnapshot], hashes: Hashes) -> Mask:
    """Which transform keys have rows in at least one output. Rows that users wrote to an output do not count."""
    found = np.zeros(len(hashes), np.bool_)
    for output in outputs:
        if output.layout is None or output.index is None:
            continue
        with output.raise_if_input_moved():
            if output.strategy.lookup == output.strategy.key:
                offsets = output.index.find(hashes).offset
                which = np.flatnonzero(offsets != NO_ROW)
                offsets = offsets[which]
            else:
                which, entries = output.index.find_prefix(hashes)
                offsets = entries.offset
            if output.has_own:
                which = which[is_own(offsets, find_own_records(output.snapshot))]
            found[which] = True
    return found


def filter_positions(keys: pa.Table, condition: pc.Expression | None) -> I64 | None:
    """The positions of the keys that an expression keeps; None if it keeps all."""
    if condition is None:
        return None
    # No column of a dataset has the name "". Filtering may change the order of rows, so they are numbered.
    marked = keys.append_column("", pa.array(np.arange(keys.num_rows)))
    kept: I64 = np.sort(marked.filter(condition).column(keys.num_columns).to_numpy())
    return None if len(kept) == keys.num_rows else kept


def find_existing_keys(shape: KeyShape, inputs: Sequence[InputSnapshot], runner: TaskRunner) -> KeySet:
    """All keys that the inputs have now."""
    return keep_required_keys(shape, inputs, product(shape, live_sides(shape, inputs, runner)), runner)


# Cross joins


def live_sides(shape: KeyShape, inputs: Sequence[InputSnapshot], runner: TaskRunner) -> list[KeySet]:
    """The parts of keys that each side has now, in any of its inputs."""
    return [
        KeySet.joined([_live_parts(inputs[n], shape, n, runner) for n in side], shape.part_schema(side[0]))
        for side in shape.sides
    ]


def _live_parts(given: InputSnapshot, shape: KeyShape, number: int, runner: TaskRunner) -> KeySet:
    if shape.inputs[number].part:
        return read_live_parts(given, shape, number, runner)
    table = constant_part(min(given.live_rows, 1) if given.layout is not None else 0)
    return KeySet(table, shape.hash_part(number, table))


def keep_parts(shape: KeyShape, sides: Sequence[KeySet], number: int, parts: Hashes) -> list[KeySet]:
    """The sides, without the keys whose part for an input is not among these."""
    kept, at = list(sides), shape.side_of(number)
    if at is not None:
        mine = np.flatnonzero(shape.hash_part(number, kept[at].table).among(parts))
        kept[at] = KeySet(kept[at].table.take(pa.array(mine)), kept[at].hashes.take(mine))
    return kept


def product(shape: KeyShape, sides: Sequence[KeySet]) -> KeySet:
    """The product of these parts as keys; the last side changes fastest."""
    if len(sides) == 1:
        return sides[0]
    counts = [len(side) for side in sides]
    total = int(np.prod(counts, dtype=np.int64))
    columns = {}
    after = total
    at_all = np.arange(total)
    for number, side in enumerate(sides):
        after //= max(counts[number], 1)
        at = pa.array(at_all // max(after, 1) % max(counts[number], 1))
        for name in filter(None, side.table.column_names):
            columns[name] = side.table.column(name).take(at)
    table = pa.table([columns[name] for name in shape.names], schema=shape.keys)
    return KeySet(table, shape.hash_keys(table))


def cross_join_sources(
    shape: KeyShape,
    inputs: Sequence[InputSnapshot],
    outputs: Sequence[InputSnapshot],
    changed: Sequence[ChangedKeys],
    failed: pa.Table,
    runner: TaskRunner,
) -> list[PendingSource]:
    """The keys of changed parts in a cross join: combined with all live parts of the other sides, or with results.

    A key that lost a part is pending if it has results or has failed.
    """
    if not any(len(mine) for mine in changed):
        return []
    live = live_sides(shape, inputs, runner)
    pending = []
    for number, mine in enumerate(changed):
        if len(mine) == 0:
            continue
        # If it is looked up through the rows of a source, these are parts of the source.
        by = (*shape.inputs[number].through, number)[0]
        keys = product(shape, keep_parts(shape, live, by, mine.hashes))
        pending.append(_source(shape, number, by, mine, keys))
        lost = mine.take(_gone(shape, live, number, mine))
        # A part may have results with rows of another side that were purged since: no live part leads to them.
        if any(other.purged_before for n, other in enumerate(inputs) if n != number):
            lost = mine
        if len(lost):
            pending.append(_source(shape, number, by, lost, _left_over(shape, lost, outputs, failed, runner)))
    return pending


def _left_over(
    shape: KeyShape, gone: ChangedKeys, outputs: Sequence[InputSnapshot], failed: pa.Table, runner: TaskRunner
) -> KeySet:
    """The keys with a lost part that have results or a failure."""
    parts = KeyParts.of(gone.keys, gone.hashes)
    found = [read_output_keys(output, shape, parts, runner) for output in outputs]
    if failed.num_rows:
        tried = failed if parts is None else failed.filter(pa.array(parts.among(failed)))
        found.append(KeySet(tried, shape.hash_keys(tried)))
    return KeySet.joined(found, shape.keys)


def _gone(shape: KeyShape, live: Sequence[KeySet], number: int, changed: ChangedKeys) -> I64:
    """The changed parts that a side has no more. An input that is only looked up takes no key away."""
    at = shape.inputs[number].side
    if at is None:
        return np.empty(0, np.int64)
    return np.flatnonzero(~changed.hashes.among(live[at].hashes))


def _source(shape: KeyShape, number: int, by: int, changed: ChangedKeys, keys: KeySet) -> PendingSource:
    at = shape.hash_part(by, keys.table).positions_in(changed.hashes)
    return PendingSource(keys.table, keys.hashes, number, changed.first[at], changed.last[at])
