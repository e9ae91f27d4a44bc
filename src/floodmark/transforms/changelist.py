"""The changelist: which keys a run has to process, in which order, and why.

Version 1 reads every record of every input, version 2 only records beyond the positions. Both drop keys whose newest
record was already seen when they were processed, and new keys that no input has any more. So both have the same keys.
Keys that the step's own filters do not keep are never in a changelist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.derive.changed_keys import ChangedKeys, find_changed_keys, find_changes, refuse_purged_input
from floodmark.derive.inputs import InputSnapshot, KnownKeys
from floodmark.derive.key_shape import KeyShape
from floodmark.engine.rounds import TaskRunner
from floodmark.storage.arrays import I64, Hashes, integer_order, stable_order
from floodmark.transforms import existing_keys
from floodmark.transforms.existing_keys import drop_missing_keys, filter_positions, find_existing_keys
from floodmark.transforms.failed_keys import failed_column, failed_keys
from floodmark.transforms.join_keys import keys_through_links
from floodmark.transforms.live_keys import (
    NOT_PENDING,
    KeyParts,
    KeySet,
    PendingKeys,
    PendingSource,
    read_keys_with_parts,
    read_output_keys,
)
from floodmark.transforms.row_filters import PendingRows
from floodmark.transforms.run_scope import Filters, parse_filters, parse_order

ChangelistVersion = Literal[1, 2]


@dataclass(frozen=True)
class Changelist:
    """The keys to process, in order."""

    shape: KeyShape
    pending: PendingKeys
    left_out: tuple[int | None, ...]  # per input the first pending record of keys that filters and limits left out
    found: int  # how many keys there were before filters and limits
    unchanged: tuple[int, ...] = ()  # per input the keys with new records that differ only in columns that are not read

    def __len__(self) -> int:
        return len(self.pending)

    @property
    def keys(self) -> pa.Table:
        return self.pending.keys

    @property
    def hashes(self) -> Hashes:
        return self.pending.hashes

    def first_pending(self, start: int = 0) -> tuple[int | None, ...]:
        """Per input the first pending record of the keys from number `start` on, and of the keys that were left out."""
        return tuple(
            _least(outside, _smallest(self.pending.first[start:, number]))
            for number, outside in enumerate(self.left_out)
        )

    @cached_property
    def table(self) -> pa.Table:
        """The keys, then high, low, position, first_0, last_0, … and why. Keys may have these names, too."""
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
    """Which of the pending keys a run processes: a filter, an order and a limit. Later runs process the others."""

    filters: Filters = None
    order_by: Sequence[str] | str | None = None
    max_records: int | None = None
    declared: Filters = None  # the step's own filters: no run processes keys that they do not keep
    turn: int = 0  # increases from run to run: see `apply_limit`


EVERYTHING = Choice()


def build_changelist(
    shape: KeyShape,
    inputs: Sequence[InputSnapshot],
    outputs: Sequence[InputSnapshot],
    known: KnownKeys,
    now_ms: int,
    runner: TaskRunner,
    *,
    version: ChangelistVersion = 2,
    choice: Choice = EVERYTHING,
    lost: KeySet | None = None,
) -> Changelist:
    """The keys that changed since the positions, failed keys that are due, and keys that `lost` records had changed."""
    positions = _positions(shape, inputs, known)
    checked = known if known.keys and (version == 1 or known.is_ahead(shape.ids)) else None
    since = positions if version == 2 else [-1] * len(inputs)
    found = [find_changes(p, shape, n, since[n], runner, checked, positions[n]) for n, p in enumerate(inputs)]
    changed = [
        keys_through_links(shape, inputs, n, one.changed, positions[n], runner)
        if shape.inputs[n].through
        else one.changed
        for n, one in enumerate(found)
    ]
    sources = _sources(shape, inputs, outputs, changed, _failed(shape, known.failed()).table, runner)
    due = known.due(now_ms)
    pending = _keep_declared(
        shape, PendingKeys.of(shape, sources, _failed(shape, due), _last_attempts(due), positions), choice
    )
    # Also before any key was processed: a run that found no keys moves positions, and version 1 reads older records.
    pending = pending.not_processed(known.processed_up_to(pending.hashes, shape.ids), positions)
    if lost is not None:
        again = _keep_declared(shape, PendingKeys.all_of(shape, lost, "restored"), choice)
        pending = pending.joined(again.take(np.flatnonzero(~again.hashes.among(pending.hashes))))
    existing = drop_missing_keys(shape, inputs, outputs, pending, runner)
    kept = None
    if choice.filters is not None:
        done = known.processed_up_to(existing.hashes, shape.ids)
        kept = PendingRows(shape, inputs, existing, done, positions, runner).kept(choice.filters)
    chosen = _choose(shape, existing, choice, kept)
    unchanged = tuple(_count_unchanged(shape, n, one.unchanged, pending, choice) for n, one in enumerate(found))
    return replace(chosen, unchanged=unchanged)


def build_stale_changelist(
    shape: KeyShape,
    inputs: Sequence[InputSnapshot],
    outputs: Sequence[InputSnapshot],
    runner: TaskRunner,
    *,
    choice: Choice = EVERYTHING,
) -> Changelist:
    """All keys that the inputs have now, and all keys that only outputs have: their results must be removed.

    Keys that the step's own filters leave out are not included, because the function must not be called with them.
    """
    present = find_existing_keys(shape, inputs, runner)
    keys = [present, *(read_output_keys(output, shape, None, runner) for output in outputs)]
    pending = PendingKeys.all_of(shape, KeySet.joined(keys, shape.keys), "stale")
    declared = _keep_declared(shape, pending, choice)
    return _choose(shape, declared, choice, filter_positions(declared.keys, parse_filters(choice.filters, shape.keys)))


def build_requested_changelist(
    shape: KeyShape,
    inputs: Sequence[InputSnapshot],
    outputs: Sequence[InputSnapshot],
    parts: Mapping[int, pa.Table],
    runner: TaskRunner,
    *,
    declared: Filters = None,
) -> Changelist:
    """The keys with these parts, from inputs and outputs, processed or not. `parts` has a table per input number."""
    found = []
    for of_input, part in parts.items():
        number = of_input
        if len(part) == 0:
            continue
        if shape.inputs[number].is_full:
            keys = part.select(list(shape.names))
            found.append(KeySet(keys, shape.hash_keys(keys)))
            continue
        hashes = shape.hash_part(number, part)
        if shape.inputs[number].through:
            nowhere = np.zeros(len(hashes), np.int64)
            asked_parts = ChangedKeys(part, hashes, nowhere, nowhere)
            linked = keys_through_links(shape, inputs, number, asked_parts, -1, runner)
            number, part, hashes = shape.inputs[number].through[0], linked.keys, linked.hashes
        asked = KeyParts.of(part, hashes)
        found += [read_output_keys(output, shape, asked, runner) for output in outputs]
        if shape.kind == "cross":
            sides = existing_keys.live_sides(shape, inputs, runner)
            found.append(existing_keys.product(shape, existing_keys.keep_parts(shape, sides, number, hashes)))
        else:
            found += [read_keys_with_parts(inputs[n], shape, n, asked, runner) for n in shape.sides[0]]
    choice = Choice(declared=declared)
    pending = PendingKeys.all_of(shape, KeySet.joined(found, shape.keys), "asked")
    return _choose(shape, _keep_declared(shape, pending, choice), choice)


def find_known_keys(
    shape: KeyShape,
    inputs: Sequence[InputSnapshot],
    outputs: Sequence[InputSnapshot],
    failed: pa.Table,
    runner: TaskRunner,
) -> KeySet:
    """All keys that the inputs have now, that outputs have rows of, and that failed."""
    present = find_existing_keys(shape, inputs, runner)
    having_rows = [read_output_keys(output, shape, None, runner) for output in outputs]
    return KeySet.joined([present, *having_rows, _failed(shape, failed)], shape.keys)


def find_named_keys(
    shape: KeyShape,
    inputs: Sequence[InputSnapshot],
    outputs: Sequence[InputSnapshot],
    failed: pa.Table,
    runner: TaskRunner,
) -> KeySet:
    """All keys that records of the inputs, rows of the outputs and failures name."""
    changed = [find_changed_keys(given, shape, number, -1, runner) for number, given in enumerate(inputs)]
    failures = _failed(shape, failed)
    sources = _sources(shape, inputs, outputs, changed, failures.table, runner)
    results = [read_output_keys(output, shape, None, runner) for output in outputs]
    return KeySet.joined([failures, *results, *(KeySet(one.keys, one.hashes) for one in sources)], shape.keys)


def build_failed_changelist(shape: KeyShape, failed: pa.Table) -> Changelist:
    """All failed keys, whether their inputs changed or not."""
    return _choose(shape, PendingKeys.all_of(shape, _failed(shape, failed), "failed"), EVERYTHING)


def _failed(shape: KeyShape, failed: pa.Table) -> KeySet:
    """The keys of a table of failed keys. Before the first commit it has no rows, and no key columns."""
    if failed.num_rows == 0:
        return KeySet.joined([], shape.keys)
    keys = failed_keys(failed).cast(shape.keys)
    return KeySet(keys, shape.hash_keys(keys))


def _last_attempts(failed: pa.Table) -> I64:
    """The time of each key's last failure, in milliseconds."""
    if failed.num_rows == 0:
        return np.empty(0, np.int64)
    tried: I64 = failed_column(failed, "last").cast(pa.int64()).fill_null(0).to_numpy()
    return tried


def _positions(shape: KeyShape, inputs: Sequence[InputSnapshot], known: KnownKeys) -> list[int]:
    for given in inputs:
        refuse_purged_input(given, known)
    return [known.positions.get(name, -1) for name in shape.ids]


def _keep_declared(shape: KeyShape, pending: PendingKeys, choice: Choice) -> PendingKeys:
    """The keys that the step's own filters keep."""
    kept = filter_positions(pending.keys, parse_filters(choice.declared, shape.keys))
    return pending if kept is None else pending.take(kept)


def _count_unchanged(shape: KeyShape, number: int, unchanged: ChangedKeys, pending: PendingKeys, choice: Choice) -> int:
    """The number of these keys that are not pending for another reason; of an input with a part of them, of parts."""
    if len(unchanged) == 0 or not shape.inputs[number].is_full:
        return len(unchanged)
    keys = unchanged.keys.select(list(shape.names))
    kept = filter_positions(keys, parse_filters(choice.declared, shape.keys))
    others = ~unchanged.hashes.among(pending.hashes)
    return int(np.count_nonzero(others if kept is None else others[kept]))


def _sources(
    shape: KeyShape,
    inputs: Sequence[InputSnapshot],
    outputs: Sequence[InputSnapshot],
    changed: Sequence[ChangedKeys],
    failed: pa.Table,
    runner: TaskRunner,
) -> list[PendingSource]:
    """Changed keys, and the keys that have a changed part."""
    if shape.kind == "cross":
        return existing_keys.cross_join_sources(shape, inputs, outputs, changed, failed, runner)
    sources = []
    [full] = shape.sides
    for number, (given, mine) in enumerate(zip(shape.inputs, changed, strict=True)):
        if len(mine) == 0:
            continue
        if given.is_full or given.through:
            sources.append(PendingSource(mine.keys, mine.hashes, number, mine.first, mine.last))
            continue
        # If a full input no longer has a key, that input changed, too: so the present keys are enough. But a purge
        # leaves no record, so keys of purged rows may be in outputs only.
        parts = KeyParts.of(mine.keys, mine.hashes)
        present = [read_keys_with_parts(inputs[n], shape, n, parts, runner) for n in full]
        if any(inputs[n].purged_before for n in full):
            present += [read_output_keys(output, shape, parts, runner) for output in outputs]
        keys = KeySet.joined(present, shape.keys)
        at = shape.hash_part(number, keys.table).positions_in(mine.hashes)
        sources.append(PendingSource(keys.table, keys.hashes, number, mine.first[at], mine.last[at]))
    return sources


def _choose(shape: KeyShape, pending: PendingKeys, choice: Choice, filtered: I64 | None = None) -> Changelist:
    """The keys that the choice keeps, in order, and the first pending records of the others.

    `filtered` are the positions of the keys that the filters keep; None if they keep all.
    """
    order = sort_pending(shape, pending, parse_order(choice.order_by, shape.keys))
    if filtered is not None:
        kept = np.zeros(len(pending), np.bool_)
        kept[filtered] = True
        order = order[kept[order]]
    if choice.max_records is not None:
        order = apply_limit(pending, order, choice.max_records, choice.turn)
    outside = np.ones(len(pending), np.bool_)
    outside[order] = False
    left_out = tuple(_smallest(pending.first[outside, number]) for number in range(len(shape.inputs)))
    return Changelist(shape, pending.take(order), left_out, len(pending))


def _smallest(first: I64) -> int | None:
    offsets = first[first != NOT_PENDING]
    return int(offsets.min()) if len(offsets) else None


def _least(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return min(known) if known else None


def _nullable(values: I64) -> pa.Array:
    return pa.array(values, mask=values == NOT_PENDING)


# Order and limit

SMALL_META = 10_000


def advice(processed: int, changed: int, total: int) -> str | None:
    """Why the offset optimization does not help this run; None if it does."""
    if total and changed >= total:
        return "this run processes every key: the offset optimization saves nothing"
    if processed < SMALL_META:
        return f"only {processed:,} keys were processed so far: the offset optimization saves almost nothing"
    if total and changed > total // 2:
        return f"{changed:,} of {total:,} keys changed: the offset optimization saves little"
    return None


SHARE = 4
"""If a limit cannot take all changed and all failed keys, one of SHARE keys is a failed one."""


def apply_limit(pending: PendingKeys, order: I64, most: int, turn: int) -> I64:
    """The first `most` of the ordered keys, with a share of failed keys: those whose last attempt was the longest ago.

    With a limit of one key, one run in SHARE processes a failed key: `turn` decides which.
    """
    if len(order) <= most:
        return order
    is_failed = pending.is_only_failed[order]
    changed, failed = order[~is_failed], order[is_failed]
    share = max(1, most // SHARE) if most > 1 else int(turn % SHARE == 0)
    count = min(len(failed), max(share, most - len(changed)))
    oldest = np.sort(np.argsort(pending.tried[failed], kind="stable")[:count])
    return np.concatenate([changed[: most - count], failed[oldest]])


def sort_pending(shape: KeyShape, pending: PendingKeys, order_by: Sequence[tuple[str, str]]) -> I64:
    """The positions of the pending keys in processing order. Only failed keys, and null values, come last."""
    if not order_by:
        order = integer_order(pending.position)
        ordered = pending.position[order]
        if len(order) < 2 or (ordered[1:] != ordered[:-1]).all():
            return order  # the positions are unique
    # The table's columns are named by numbers: key columns may have any names.
    columns = [*pending.keys.columns, pa.array(pending.position)]
    table = pa.Table.from_arrays(columns, names=[str(n) for n in range(len(columns))])
    numbers = {name: str(n) for n, name in enumerate(shape.names)}
    last = str(len(shape.names))
    sort_keys = [(numbers[name], direction) for name, direction in order_by]
    sort_keys += [(key, "ascending") for key in [last, *numbers.values()] if key not in dict(sort_keys)]
    try:
        at: I64 = pc.sort_indices(table, sort_keys=sort_keys).to_numpy().astype(np.int64)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # the values have no order: order them by their hashes
        by_hash = stable_order([pending.hashes.high, pending.hashes.low])
        at = by_hash[integer_order(pending.position[by_hash])]
    return at if not order_by else at[np.argsort(pending.is_only_failed[at], kind="stable")]
