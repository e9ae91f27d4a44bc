"""The changelist: which keys have to be processed, in which order, and why.

Version 1 looks at every record of every input, version 2 only at those beyond the positions. Both then drop keys whose
newest record the run that processed them has seen, and keys that were never processed and are in no input any more, so
both come to the same keys. What the step's own filters leave out does not exist for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa

from floodmark.engine.rounds import Runner
from floodmark.ledger.keys import hashing
from floodmark.storage.arrays import I64, Hashes
from floodmark.transform.changed import cross
from floodmark.transform.changed.alive import Keys, Parts, keys_with, live_parts, output_keys
from floodmark.transform.changed.changes import ChangedKeys, changed_keys, check_purge
from floodmark.transform.changed.filters import Filters, parse_filters, parse_order
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.changed.ordering import in_order, limited
from floodmark.transform.changed.pending import NOT_PENDING, Pending, Source
from floodmark.transform.changed.shape import Shape
from floodmark.transform.changed.universe import needed, with_required, within
from floodmark.transform.lakes import KnownKeys
from floodmark.transform.meta.failed import failed_column, failed_keys

Version = Literal[1, 2]


@dataclass(frozen=True)
class Changelist:
    """Keys to be processed, in order. `left_out`: per input the first pending record of keys that were not chosen."""

    shape: Shape
    pending: Pending
    left_out: tuple[int | None, ...]
    found: int  # how many keys there were before filters and limits

    def __len__(self) -> int:
        return len(self.pending)

    @property
    def keys(self) -> pa.Table:
        return self.pending.keys

    @property
    def hashes(self) -> Hashes:
        return self.pending.hashes

    def first_pending(self, start: int = 0) -> tuple[int | None, ...]:
        """Per input the first pending record of the keys from number `start` on and of those that were left out."""
        return tuple(
            _least(outside, _smallest(self.pending.first[start:, number]))
            for number, outside in enumerate(self.left_out)
        )

    @cached_property
    def table(self) -> pa.Table:
        """The keys, then high, low, position, first_0, last_0, … and why: known by their place, keys have any names."""
        p = self.pending
        columns = [*p.keys.columns, pa.array(p.hashes.high), pa.array(p.hashes.low), _nullable(p.position)]
        names = ["high", "low", "position"]
        for number in range(len(self.shape.inputs)):
            columns += [_nullable(p.first[:, number]), _nullable(p.last[:, number])]
            names += [f"first_{number}", f"last_{number}"]
        fields = [pa.field(n, c.type) for n, c in zip([*self.shape.names, *names], columns, strict=False)]
        return pa.Table.from_arrays([*columns, p.why], schema=pa.schema([*fields, pa.field("why", pa.string())]))


@dataclass(frozen=True)
class Choice:
    """What a run wants of the keys that are pending: those that a filter keeps, in an order, at most so many.

    Keys that the step's own filters (`declared`) do not keep are not left to later runs: there are none.
    """

    filters: Filters = None
    order_by: Sequence[str] | str | None = None
    max_records: int | None = None
    declared: Filters = None
    turn: int = 0  # a number that counts up from run to run, for those who have to take turns


EVERYTHING = Choice()


def changelist(
    shape: Shape,
    pinned: Sequence[PinnedInput],
    outputs: Sequence[PinnedInput],
    known: KnownKeys,
    now_ms: int,
    runner: Runner,
    *,
    version: Version = 2,
    choice: Choice = EVERYTHING,
) -> Changelist:
    """What changed since the positions, and failed keys that are due."""
    positions = _positions(shape, pinned, known)
    is_known = known.keys > 0
    checked = known if is_known and (version == 1 or known.is_ahead(shape.ids)) else None
    since = positions if version == 2 else [-1] * len(pinned)
    changed = [
        changed_keys(p, shape, n, since[n], runner, checked, position=positions[n]) for n, p in enumerate(pinned)
    ]
    sources = _sources(shape, pinned, outputs, changed, _failed(shape, known.failed()).table, runner)
    due = known.due(now_ms)
    pending = _declared(shape, Pending.of(shape, sources, _failed(shape, due), _tried(due), positions), choice)
    if is_known:
        pending = pending.not_processed(known.processed_up_to(pending.hashes, shape.ids), positions)
    return _chosen(shape, needed(shape, pinned, outputs, pending, runner), choice)


def stale_keys(
    shape: Shape,
    pinned: Sequence[PinnedInput],
    outputs: Sequence[PinnedInput],
    runner: Runner,
    *,
    choice: Choice = EVERYTHING,
) -> Changelist:
    """Everything: all keys that the inputs have now, and those whose results have to go.

    Results of keys that the step's own filters leave out are not among them: those keys must not be called.
    """
    if shape.kind == "cross":
        there = cross.product(shape, [live_parts(p, shape, n, runner) for n, p in enumerate(pinned)])
    else:
        full = [live_parts(p, shape, n, runner) for n, p in enumerate(pinned) if shape.inputs[n].is_full]
        there = with_required(shape, pinned, Keys.joined(full, shape.keys), runner)
    found = [there, *(output_keys(output, shape, None, runner) for output in outputs)]
    pending = Pending.all_of(shape, Keys.joined(found, shape.keys), "stale")
    return _chosen(shape, _declared(shape, pending, choice), choice)


def asked_keys(
    shape: Shape,
    pinned: Sequence[PinnedInput],
    outputs: Sequence[PinnedInput],
    parts: Mapping[int, pa.Table],
    runner: Runner,
    *,
    declared: Filters = None,
) -> Changelist:
    """The keys that a user names by what inputs have of them, processed or not; those with results are among them."""
    found = []
    for number, part in parts.items():
        names = shape.inputs[number].part
        if shape.inputs[number].is_full:
            keys = part.select(list(shape.names))
            found.append(Keys(keys, shape.hash_keys(keys)))
            continue
        asked = Parts(part.select(list(names)), hashing.hash_rows(part, names))
        found += [output_keys(output, shape, asked, runner) for output in outputs]
        if shape.kind == "cross":
            sides = [live_parts(p, shape, n, runner) for n, p in enumerate(pinned)]
            mine = np.flatnonzero(sides[number].hashes.among(asked.hashes))
            sides[number] = Keys(sides[number].table.take(pa.array(mine)), sides[number].hashes.take(mine))
            found.append(cross.product(shape, sides))
        else:
            full = [n for n, given in enumerate(shape.inputs) if given.is_full]
            found += [keys_with(pinned[n], shape, n, asked, runner) for n in full]
    choice = Choice(declared=declared)
    pending = Pending.all_of(shape, Keys.joined(found, shape.keys), "asked")
    return _chosen(shape, _declared(shape, pending, choice), choice)


def failed_only(shape: Shape, failed: pa.Table) -> Changelist:
    """Keys that failed before, whatever became of their inputs."""
    return _chosen(shape, Pending.all_of(shape, _failed(shape, failed), "failed"), EVERYTHING)


def _failed(shape: Shape, failed: pa.Table) -> Keys:
    """Failed keys; before the first commit nobody knows what keys look like, and none failed."""
    if failed.num_rows == 0:
        return Keys.joined([], shape.keys)
    keys = failed_keys(failed).cast(shape.keys)
    return Keys(keys, shape.hash_keys(keys))


def _tried(failed: pa.Table) -> I64:
    """When keys failed last, in milliseconds."""
    if failed.num_rows == 0:
        return np.empty(0, np.int64)
    tried: I64 = failed_column(failed, "last").cast(pa.int64()).fill_null(0).to_numpy()
    return tried


def _positions(shape: Shape, pinned: Sequence[PinnedInput], known: KnownKeys) -> list[int]:
    for given in pinned:
        check_purge(given, known)
    return [known.positions.get(name, -1) for name in shape.ids]


def _declared(shape: Shape, pending: Pending, choice: Choice) -> Pending:
    """The keys that exist for the step."""
    kept = within(pending.keys, parse_filters(choice.declared, shape.keys))
    return pending if kept is None else pending.take(kept)


def _sources(
    shape: Shape,
    pinned: Sequence[PinnedInput],
    outputs: Sequence[PinnedInput],
    changed: Sequence[ChangedKeys],
    failed: pa.Table,
    runner: Runner,
) -> list[Source]:
    """Changed keys, and the keys that have a changed part."""
    if shape.kind == "cross":
        return cross.sources(shape, pinned, outputs, changed, failed, runner)
    sources = []
    full = [number for number, given in enumerate(shape.inputs) if given.is_full]
    for number, (given, mine) in enumerate(zip(shape.inputs, changed, strict=True)):
        if given.is_full:
            sources.append(Source(mine.keys, mine.hashes, number, mine.first, mine.last))
            continue
        # A key that no full input has any more was changed there, too: so the present ones are enough. But a purge
        # leaves no record, and what was computed from purged rows may be seen in outputs only.
        parts = Parts(mine.keys, mine.hashes)
        present = [keys_with(pinned[n], shape, n, parts, runner) for n in full]
        if any(pinned[n].purged_before for n in full):
            present += [output_keys(output, shape, parts, runner) for output in outputs]
        found = Keys.joined(present, shape.keys)
        at = shape.hash_part(number, found.table).positions_in(mine.hashes)
        sources.append(Source(found.table, found.hashes, number, mine.first[at], mine.last[at]))
    return sources


def _chosen(shape: Shape, pending: Pending, choice: Choice) -> Changelist:
    """The keys that are wanted, in order, and what has to wait."""
    order = in_order(shape, pending, parse_order(choice.order_by, shape.keys))
    at = within(pending.keys, parse_filters(choice.filters, shape.keys))
    if at is not None:
        kept = np.zeros(len(pending), np.bool_)
        kept[at] = True
        order = order[kept[order]]
    if choice.max_records is not None:
        order = limited(pending, order, choice.max_records, choice.turn)
    outside = np.ones(len(pending), np.bool_)
    outside[order] = False
    left_out = tuple(_smallest(pending.first[outside, number]) for number in range(len(shape.inputs)))
    return Changelist(shape, pending.take(order), left_out, len(pending))


def _smallest(first: I64) -> int | None:
    there = first[first != NOT_PENDING]
    return int(there.min()) if len(there) else None


def _least(one: int | None, other: int | None) -> int | None:
    there = [value for value in (one, other) if value is not None]
    return min(there) if there else None


def _nullable(values: I64) -> pa.Array:
    return pa.array(values, mask=values == NOT_PENDING)


SMALL_META = 10_000


def advice(processed: int, changed: int, total: int) -> str | None:
    """When reading only what lies beyond the positions does not pay; None when it does."""
    if total and changed >= total:
        return "everything is processed in this run: looking only beyond the positions saves nothing"
    if processed < SMALL_META:
        return f"only {processed:,} keys were processed so far: looking at all of them costs next to nothing"
    if total and changed > total // 2:
        return f"{changed:,} of {total:,} keys changed: looking only beyond the positions saves little"
    return None
