"""The filters of a run: which pending keys it processes, by the keys themselves or by other columns of the inputs.

A column that is not a transform key is a condition on rows: a key is kept if one of its rows has the value. These rows
are the current ones, and those that pending records added, replaced or removed: so a key whose row lost the value, or
was deleted, is kept, too. Both changelists keep the same keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.derive.changed_keys import find_changed_keys, unique_keys
from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.key_shape import KeyShape
from floodmark.derive.row_search import SearchLimits, choose_search, estimate_rows_per_key, find_rows
from floodmark.engine.rounds import TaskRunner
from floodmark.errors import BadStep, close_matches
from floodmark.ledger.scan import filter_fits
from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.transforms.existing_keys import filter_positions
from floodmark.transforms.join_keys import PartsOfKeys, find_parts
from floodmark.transforms.live_keys import KeyParts, PendingKeys, read_requested_parts
from floodmark.transforms.run_scope import Filters, has_value, parse_filters

_ALL = SearchLimits(1 << 62)


@dataclass(frozen=True)
class FilteredRows:
    """A condition on the rows of one input."""

    number: int
    columns: tuple[str, ...]  # that the condition reads
    condition: pc.Expression


@dataclass(frozen=True)
class PendingRows:
    """The pending keys, and where their rows are found."""

    shape: KeyShape
    inputs: Sequence[InputSnapshot]
    pending: PendingKeys
    done: I64  # per key and input the last record that was seen when the key was processed
    positions: Sequence[int]
    runner: TaskRunner

    def kept(self, filters: Filters) -> I64 | None:
        """The positions of the pending keys that the filters of a run keep; None if they keep all."""
        alternatives = self._alternatives(filters)
        if alternatives is None:
            return filter_positions(self.pending.keys, parse_filters(filters, self.shape.keys))
        kept = np.zeros(len(self.pending), np.bool_)
        for keys, columns in alternatives:
            mine = np.ones(len(self.pending), np.bool_)
            if (at := filter_positions(self.pending.keys, keys)) is not None:
                mine[np.setdiff1d(np.arange(len(mine)), at)] = False
            for rows in columns:
                mine &= reduce(np.logical_or, [self._have(some) for some in rows])
            kept |= mine
        return np.flatnonzero(kept)

    def _alternatives(self, filters: Filters) -> list[tuple[pc.Expression | None, list[list[FilteredRows]]]] | None:
        """The filters as alternatives: a condition on keys, and for each other column the rows that may have the value.

        None if they are about transform keys only.
        """
        shape = self.shape
        if isinstance(filters, pc.Expression):
            if filter_fits(filters, shape.keys):
                return None
            found = [
                FilteredRows(n, tuple(given.shown.names), filters)
                for n, given in enumerate(self.inputs)
                if given.shown is not None and filter_fits(filters, given.shown)
            ]
            return [(None, [found])] if found else None
        given = [filters] if isinstance(filters, Mapping) else filters
        if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(g, Mapping) for g in given):
            return None
        if all(name in shape.names for one in given for name in one):
            return None
        return [self._alternative(one) for one in given]

    def _alternative(self, given: Mapping[str, object]) -> tuple[pc.Expression | None, list[list[FilteredRows]]]:
        keys = {name: value for name, value in given.items() if name in self.shape.names}
        others = {name: value for name, value in given.items() if name not in self.shape.names}
        owners = {name: filter_owners(self.shape, self.inputs, name) for name in others}
        rows = {}
        for number in {n for numbers in owners.values() for n in numbers}:
            shown = self.inputs[number].shown
            assert shown is not None
            mine = [name for name in others if number in owners[name]]
            conditions = [has_value(name, others[name], shown) for name in mine]
            rows[number] = FilteredRows(number, tuple(mine), reduce(lambda a, b: a & b, conditions))
        of_keys = parse_filters(keys, self.shape.keys) if keys else None
        return of_keys, [[rows[number] for number in numbers] for numbers in owners.values()]

    def _have(self, rows: FilteredRows) -> Mask:
        """Which pending keys have such a row, now or in a pending record."""
        number, given = rows.number, self.inputs[rows.number]
        parts = find_parts(self.shape, self.inputs, number, self.pending.keys, self.runner)
        found: Mask = parts.hashes.among(self._current(rows, parts))
        records = find_changed_keys(
            given, self.shape, number, self.positions[number], self.runner, where=rows.condition
        )
        at = parts.hashes.positions_in(records.hashes)
        recorded = np.flatnonzero(at >= 0)
        found[recorded] |= records.last[at[recorded]] > self.done[parts.keys[recorded], number]
        return parts.of_any(found)

    def _current(self, rows: FilteredRows, key_parts: PartsOfKeys) -> Hashes:
        """The parts of pending keys that current rows of an input have, of those rows that the condition keeps."""
        shape, number, given = self.shape, rows.number, self.inputs[rows.number]
        if given.layout is None or len(key_parts.hashes) == 0:
            return Hashes.joined([])
        parts = KeyParts.of(*unique_keys(key_parts.table, key_parts.hashes))
        if parts is None:
            return read_requested_parts(given, shape, number, None, self.runner, rows.condition).hashes
        found_by = shape.inputs[number].search_method if given.index is not None else "scan"
        each = estimate_rows_per_key(given, shape, number, parts.table)
        if choose_search(found_by, parts.table.num_rows, each, given.live_rows) == "scan":
            return read_requested_parts(given, shape, number, parts, self.runner, rows.condition).hashes
        columns = list(dict.fromkeys([*shape.inputs[number].own, *rows.columns]))
        kept = find_rows(given, shape, number, parts.table, columns, _ALL).rows.filter(rows.condition)
        return shape.hash_part(number, shape.part_of(number, kept))


def filter_owners(shape: KeyShape, inputs: Sequence[InputSnapshot], name: str) -> list[int]:
    """The inputs with a column that a filter names; `BadStep` if there is none."""
    numbers = [n for n, given in enumerate(inputs) if given.shown is not None and name in given.shown.names]
    if numbers:
        return numbers
    known = list(dict.fromkeys([*shape.names, *_columns(inputs)]))
    near = close_matches(str(name), known)
    hint = f"did you mean {near[0]!r}?" if near else f"use a transform key ({', '.join(shape.names)}) or another column"
    raise BadStep(f"the filter names {name!r}, which is neither a transform key nor a column of an input", hint=hint)


def filter_field(shape: KeyShape, inputs: Sequence[InputSnapshot], name: str) -> pa.Field:
    """The name and type of a column that a filter names."""
    if name in shape.names:
        return shape.keys.field(name)
    shown = inputs[filter_owners(shape, inputs, name)[0]].shown
    assert shown is not None
    return shown.field(name)


def _columns(inputs: Sequence[InputSnapshot]) -> Iterator[str]:
    for given in inputs:
        yield from () if given.shown is None else given.shown.names
