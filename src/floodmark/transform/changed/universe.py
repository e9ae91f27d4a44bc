"""Which keys have to exist: those that have rows in the inputs now and pass the step's own filters.

A key that was never processed and is not among them needs nothing, whatever records it has left: it has no results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.engine.rounds import Runner
from floodmark.ledger.keys.records import NOT_THERE
from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.transform.changed.alive import Keys, Parts, live_parts_among
from floodmark.transform.changed.changes import distinct
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.changed.pending import NOT_PENDING, Pending
from floodmark.transform.changed.shape import Shape


def needed(
    shape: Shape,
    pinned: Sequence[PinnedInput],
    outputs: Sequence[PinnedInput],
    pending: Pending,
    runner: Runner,
) -> Pending:
    """Pending keys without those new ones that no input has any more and of which no output has a row.

    A run that was killed between two outputs may have left rows of keys that nobody knows.
    """
    if shape.kind == "cross":
        return pending  # made of parts that are there, and of keys that outputs have
    new = np.flatnonzero(pending.is_new)
    there = _is_there(shape, pinned, pending.take(new), runner)
    gone = new[~there]
    if len(gone) == 0:
        return pending
    kept = np.ones(len(pending), np.bool_)
    kept[gone] = have_rows(outputs, pending.hashes.take(gone))
    return pending if kept.all() else pending.take(np.flatnonzero(kept))


def _is_there(shape: Shape, pinned: Sequence[PinnedInput], pending: Pending, runner: Runner) -> Mask:
    """Which of the pending keys are in the universe. Mostly their last records tell; the others are looked for."""
    seen = [_ends_alive(given, pending.last[:, number]) for number, given in enumerate(pinned)]
    there = np.zeros(len(pending), np.bool_)
    for number, given in enumerate(shape.inputs):
        # What a part makes pending are keys that a full input has now.
        there |= seen[number] if given.is_full else pending.last[:, number] != NOT_PENDING
    for number, given in enumerate(shape.inputs):
        if given.is_full:
            there |= _looked_for(shape, pinned, number, pending.keys, there, seen[number], runner)
    for number, given in enumerate(shape.inputs):
        if given.required:
            there &= _looked_for(shape, pinned, number, pending.keys, ~there, seen[number], runner)
    return there


def with_required(shape: Shape, pinned: Sequence[PinnedInput], keys: Keys, runner: Runner) -> Keys:
    """Those of the keys that have a row in every input that is required."""
    for number, given in enumerate(shape.inputs):
        if given.required:
            at = np.flatnonzero(has_part(shape, pinned[number], number, keys.table, runner))
            keys = keys if len(at) == len(keys) else Keys(keys.table.take(pa.array(at)), keys.hashes.take(at))
    return keys


def _looked_for(
    shape: Shape,
    pinned: Sequence[PinnedInput],
    number: int,
    keys: pa.Table,
    decided: Mask,
    seen: Mask,
    runner: Runner,
) -> Mask:
    """Which keys an input has, as far as that is open: where it is decided otherwise, what was seen."""
    found = seen.copy()
    left = np.flatnonzero(~decided & ~seen)
    if len(left):
        found[left] = has_part(shape, pinned[number], number, keys.take(pa.array(left)), runner)
    return found


def _ends_alive(pinned: PinnedInput, last: I64) -> Mask:
    """Whether the last record is a current row: then the key is there. If not, another one may be."""
    there: Mask = last != NOT_PENDING
    at = np.flatnonzero(there)
    if len(at) and len(pinned.dead):
        place = np.minimum(np.searchsorted(pinned.dead, last[at]), len(pinned.dead) - 1)
        there[at] = pinned.dead[place] != last[at]
    return there


def has_part(shape: Shape, pinned: PinnedInput, number: int, keys: pa.Table, runner: Runner) -> Mask:
    """Which keys have current rows in an input."""
    given = shape.inputs[number]
    if pinned.layout is None or keys.num_rows == 0:
        return np.zeros(keys.num_rows, np.bool_)
    if given.found_by == "scan" or pinned.index is None:
        parts = keys.select(list(given.part))
        hashes = shape.hash_part(number, parts)
        alive = live_parts_among(pinned, shape, number, Parts(*distinct(parts, hashes)), runner)
        return hashes.among(alive.hashes)
    whole, prefix, fits = shape.own_hashes(number, keys, pinned.layout.data)
    found = np.zeros(keys.num_rows, np.bool_)
    with pinned.steady():
        if given.found_by == "key":
            offset = pinned.index.find(whole, prefix).offset
            found[:] = (offset != NOT_THERE) & (offset >= pinned.purged_before)
        else:
            which, entries = pinned.index.find_prefix(whole)
            found[which[entries.offset >= pinned.purged_before]] = True
    result: Mask = found & fits
    return result


def have_rows(outputs: Sequence[PinnedInput], hashes: Hashes) -> Mask:
    """Of which transform keys some output has rows."""
    found = np.zeros(len(hashes), np.bool_)
    for output in outputs:
        if output.layout is None or output.index is None:
            continue
        with output.steady():
            if output.strategy.lookup == output.strategy.key:
                found |= output.index.find(hashes).offset != NOT_THERE
            else:
                found[output.index.find_prefix(hashes)[0]] = True
    return found


def within(keys: pa.Table, wanted: pc.Expression | None) -> I64 | None:
    """The positions of the keys that an expression keeps; None for all of them."""
    if wanted is None:
        return None
    # No column of a dataset is called "". Filtering may change the order of rows, so they are numbered.
    marked = keys.append_column("", pa.array(np.arange(keys.num_rows)))
    kept: I64 = np.sort(marked.filter(wanted).column(keys.num_columns).to_numpy())
    return None if len(kept) == keys.num_rows else kept
