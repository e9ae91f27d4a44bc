"""Cross joins: a change on one side meets all of the other side, and what a deleted one had met has to go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from floodmark.engine.rounds import Runner
from floodmark.ledger.keys import hashing
from floodmark.transform.changed.alive import Keys, Parts, live_parts, output_keys
from floodmark.transform.changed.changes import ChangedKeys
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.changed.pending import Source
from floodmark.transform.changed.shape import Shape


def product(shape: Shape, sides: Sequence[Keys]) -> Keys:
    """All keys that these parts make; the last side changes fastest."""
    counts = [len(side) for side in sides]
    total = int(np.prod(counts, dtype=np.int64))
    columns = {}
    after = total
    at_all = np.arange(total)
    for number, side in enumerate(sides):
        after //= max(counts[number], 1)
        at = pa.array(at_all // max(after, 1) % max(counts[number], 1))
        for name in shape.inputs[number].part:
            columns[name] = side.table.column(name).take(at)
    table = pa.table([columns[name] for name in shape.names], schema=shape.keys)
    return Keys(table, shape.hash_keys(table))


def sources(
    shape: Shape,
    pinned: Sequence[PinnedInput],
    outputs: Sequence[PinnedInput],
    changed: Sequence[ChangedKeys],
    failed: pa.Table,
    runner: Runner,
) -> list[Source]:
    """Changed parts with all of the other sides, and keys that have results, or failed, and lost a part."""
    if not any(len(mine) for mine in changed):
        return []
    alive = [live_parts(given, shape, number, runner) for number, given in enumerate(pinned)]
    found = []
    for number, mine in enumerate(changed):
        if len(mine) == 0:
            continue
        there = mine.hashes.among(alive[number].hashes)
        living, gone = mine.take(np.flatnonzero(there)), mine.take(np.flatnonzero(~there))
        sides = [*alive]
        sides[number] = Keys(living.keys, living.hashes)
        found.append(_source(shape, number, living, product(shape, sides)))
        # What has met a row that was purged since is not met again, but its results are there.
        is_purged = any(other.purged_before for n, other in enumerate(pinned) if n != number)
        lost = mine if is_purged else gone
        if len(lost):
            found.append(_source(shape, number, lost, _left_over(shape, lost, outputs, failed, runner)))
    return found


def _left_over(
    shape: Shape, gone: ChangedKeys, outputs: Sequence[PinnedInput], failed: pa.Table, runner: Runner
) -> Keys:
    """The keys with a part that is gone of which something is left: results, or a failure."""
    parts = Parts(gone.keys, gone.hashes)
    found = [output_keys(output, shape, parts, runner) for output in outputs]
    if failed.num_rows:
        tried = failed.filter(pa.array(hashing.hash_rows(failed, parts.names).among(gone.hashes)))
        found.append(Keys(tried, shape.hash_keys(tried)))
    return Keys.joined(found, shape.keys)


def _source(shape: Shape, number: int, changed: ChangedKeys, keys: Keys) -> Source:
    at = shape.hash_part(number, keys.table).positions_in(changed.hashes)
    return Source(keys.table, keys.hashes, number, changed.first[at], changed.last[at])
