"""Join keys: an input that is looked up through the rows of another, by columns that are no keys of the outputs.

A subscription has two users, and the output has one row per subscription. The users of a key are found by its current
subscriptions, and the keys of a changed user by the subscriptions that have it. Such pairs are *links*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodmark.derive.changed_keys import ChangedKeys, HashGroups, merge_first, unique_keys
from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.key_shape import KeyShape, cast_exactly, cast_with_mask, constant_part
from floodmark.derive.row_search import choose_search
from floodmark.engine.rounds import TaskRunner
from floodmark.rows import row_hash
from floodmark.rows.key_entries import NO_ROW
from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.transforms.live_keys import KeyParts, KeySet, read_columns


@dataclass(frozen=True)
class PartsOfKeys:
    """The parts that keys have in an input, as pairs of a key and a part. Usually each key has one."""

    keys: I64  # the position of the key
    table: pa.Table  # the part
    hashes: Hashes  # of the part
    count: int  # of all keys

    def of_any(self, found: Mask) -> Mask:
        """The keys of which at least one part is found."""
        result: Mask = np.zeros(self.count, np.bool_)
        result[self.keys[found]] = True
        return result


def find_parts(
    shape: KeyShape, inputs: Sequence[InputSnapshot], number: int, keys: pa.Table, runner: TaskRunner
) -> PartsOfKeys:
    """The parts of these distinct keys in an input."""
    given, count = shape.inputs[number], keys.num_rows
    if not given.through:
        table = keys.select(list(given.part)) if given.part else constant_part(count)
        return PartsOfKeys(np.arange(count, dtype=np.int64), table, shape.hash_part(number, keys), count)
    source = given.through[0]
    hashes = shape.hash_part(source, keys)
    mine = keys.select(list(shape.inputs[source].part)) if shape.inputs[source].part else constant_part(count)
    links = _read_links(shape, inputs, number, KeyParts.of(*unique_keys(mine, hashes)), runner)
    of_key, of_link = _match_hashes(hashes, shape.hash_part(source, links))
    table = links.select(list(given.part)).take(pa.array(of_link))
    return PartsOfKeys(of_key, table, shape.hash_part(number, table), count)


def keys_through_links(
    shape: KeyShape,
    inputs: Sequence[InputSnapshot],
    number: int,
    changed: ChangedKeys,
    position: int,
    runner: TaskRunner,
) -> ChangedKeys:
    """The keys of the side that an input is looked up through, for changed parts of the input."""
    source = shape.inputs[number].through[0]
    links = _read_links(shape, inputs, number, KeyParts(changed.keys, changed.hashes), runner)
    at = shape.hash_part(number, links).positions_in(changed.hashes)
    part = shape.inputs[source].part
    keys = links.select(list(part)) if part else constant_part(links.num_rows)
    hashes = shape.hash_part(source, links)
    groups = HashGroups.of(hashes)
    first = merge_first(groups, changed.first[at], position)
    return ChangedKeys(
        keys.take(pa.array(groups.first)), hashes.take(groups.first), first, groups.greatest(changed.last[at])
    )


def _match_hashes(left: Hashes, right: Hashes) -> tuple[I64, I64]:
    """All pairs of positions with equal hashes, in the order of the left ones."""
    groups = HashGroups.of(right)
    return match_numbers(left.positions_in(right.take(groups.first)), groups.number)


def match_numbers(left: I64, right: I64) -> tuple[I64, I64]:
    """All pairs of positions with equal numbers, in the order of the left ones."""
    order = np.argsort(right, kind="stable")
    low, high = (np.searchsorted(right[order], left, side=side) for side in ("left", "right"))
    of_left = np.repeat(np.arange(len(left)), high - low)
    first = np.cumsum(high - low) - (high - low)
    return of_left, order[np.arange(len(of_left)) - first[of_left] + low[of_left]]


def _read_links(
    shape: KeyShape, inputs: Sequence[InputSnapshot], number: int, key_parts: KeyParts | None, runner: TaskRunner
) -> pa.Table:
    """The links of an input, each once: those with the wanted keys of the side, or the wanted parts of the input."""
    schema = shape.link_schema(number)
    found = []
    for source in shape.inputs[number].through:
        columns = shape.link_columns(number, source)
        own = dict(zip(schema.names, columns, strict=True))
        rows = None if key_parts is None else _by_index(shape, inputs[source], source, own, key_parts)
        if rows is None:
            found.append(read_columns(inputs[source], schema, columns, key_parts, runner))
            continue
        given = shape.inputs[source].name
        values = [cast_exactly(rows.column(own[f.name]), f, given) for f in schema]
        links = pa.table(values, schema=schema)
        found.append(KeySet(*unique_keys(links, row_hash.hash_rows(links, schema.names))))
    return KeySet.joined(found, schema).table


def _by_index(
    shape: KeyShape, given: InputSnapshot, source: int, own: dict[str, str], key_parts: KeyParts
) -> pa.Table | None:
    """The current rows of a source with these parts, by its key index; None if a scan is better."""
    of_source = shape.inputs[source]
    by = [own[name] for name in key_parts.names]
    index = given.index
    if given.layout is None or index is None or not of_source.key:
        return None
    is_key = set(by) == set(of_source.key)
    if not is_key and set(by) != set(of_source.lookup):
        return None
    if choose_search("key" if is_key else "prefix", len(key_parts.hashes), 1.0, given.live_rows) == "scan":
        return None
    layout = given.layout.data
    columns, fits = cast_with_mask([key_parts.table.column(n) for n in key_parts.names], [layout.field(c) for c in by])
    values = pa.table(columns, names=by).filter(pa.array(fits))
    with given.raise_if_input_moved():
        if is_key:
            prefix = row_hash.hash_rows(values, of_source.lookup) if of_source.lookup != of_source.key else None
            found = index.find(row_hash.hash_rows(values, by), prefix)
            offsets, rows = found.offset, found.row
        else:
            _, entries = index.find_prefix(row_hash.hash_rows(values, by))
            offsets, rows = entries.offset, entries.row
        exists = np.flatnonzero((offsets != NO_ROW) & (offsets >= given.purged_before))
        exists = exists[np.argsort(offsets[exists])]
        return given.task_input.rows.verified(offsets[exists], rows.take(exists))
