"""The shape of a step: its transform keys, the part of them that each input has, and casts to the key types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import BadStep
from floodmark.rows import row_hash
from floodmark.storage.arrays import Hashes, Mask

PlanKind = Literal["map", "keyed", "cross"]


@dataclass(frozen=True)
class OutputKeys:
    """An output before the run: its key, declared or existing, and its columns if it has any."""

    name: str
    key: tuple[str, ...] | None = None
    columns: pa.Schema | None = None
    is_declared: bool = True  # whether a user chose the key; such a key may lack transform keys
    is_fixed: bool = False  # whether no columns can be added to the key, because a user made the dataset


@dataclass(frozen=True)
class InputShape:
    """The transform keys that an input has, and the columns of it that the function gets.

    Rows are usually found by transform keys. If an input is looked up by other columns of its sources (`through`), they
    are join keys: `keys` has them, too, and the sources have them in `joins`.
    """

    name: str
    dataset_id: str
    keys: Mapping[str, str]  # transform key → column, in the order of the transform keys
    key: tuple[str, ...]
    lookup: tuple[str, ...]
    columns: pa.Schema  # those handed to the function, in this order
    required: bool
    is_full: bool  # whether it has all transform keys
    compared: tuple[str, ...] | None = None  # the columns that the step declares to read; None: all
    side: int | None = 0  # the number of the side whose keys its rows make exist; None: its rows are only looked up
    joins: Mapping[str, str] = field(default_factory=dict)  # join key → column
    through: tuple[int, ...] = ()  # the numbers of the sources whose rows have the join keys to look it up by

    @property
    def part(self) -> tuple[str, ...]:
        """The transform keys (and join keys) that the input has; none if every key gets all of its rows."""
        return tuple(self.keys)

    @property
    def own(self) -> tuple[str, ...]:
        """The input's columns that are transform keys."""
        return tuple(self.keys.values())

    @property
    def search_method(self) -> Literal["key", "prefix", "scan"]:
        """How rows are found by their part of the transform keys: by the key index, or by a scan of all rows."""
        mine = set(self.own)
        if not self.key or not mine:
            return "scan"
        if mine == set(self.key):
            return "key"
        return "prefix" if mine == set(self.lookup) else "scan"


_CONSTANT = pa.schema([pa.field("", pa.int8())])  # no column of a dataset has the name ""


def constant_part(count: int) -> pa.Table:
    """The part of each row of an input without transform keys: they all have the same."""
    return pa.Table.from_arrays([pa.array(np.zeros(count, np.int8))], schema=_CONSTANT)


@dataclass(frozen=True)
class KeyShape:
    """The transform keys and the inputs of a step in one plan."""

    keys: pa.Schema
    inputs: tuple[InputShape, ...]
    kind: PlanKind
    joins: pa.Schema = field(default_factory=lambda: pa.schema([]))  # the join keys

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.keys.names)

    @property
    def ids(self) -> tuple[str, ...]:
        """The inputs' dataset ids."""
        return tuple(given.dataset_id for given in self.inputs)

    @cached_property
    def sides(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the sources: the inputs that make keys exist. Those of one side have the same transform keys.

        A key exists if each side has a row of it in at least one input. With several sides, the keys are a cross join.
        """
        found: dict[int, list[int]] = {}
        for number, given in enumerate(self.inputs):
            if given.side is not None:
                found.setdefault(given.side, []).append(number)
        return tuple(tuple(numbers) for _, numbers in sorted(found.items()))

    def side_of(self, number: int) -> int | None:
        """The side whose transform keys include those of an input; None if it has none and is no source."""
        given = self.inputs[number]
        if given.side is not None or not given.part:
            return given.side
        if given.through:
            return self.inputs[given.through[0]].side
        part = set(given.part)
        return next(at for at, side in enumerate(self.sides) if part <= set(self.inputs[side[0]].part))

    def part_schema(self, number: int) -> pa.Schema:
        """The transform keys that an input has. If it has none, all its rows have one part, which is a constant."""
        part = self.inputs[number].part
        return pa.schema([self._field(name) for name in part]) if part else _CONSTANT

    def link_schema(self, number: int) -> pa.Schema:
        """The transform keys of the sources that an input is looked up through, then its own other keys."""
        given = self.inputs[number]
        names = dict.fromkeys([*self.inputs[given.through[0]].part, *given.part])
        return pa.schema([self._field(name) for name in names])

    def link_columns(self, number: int, source: int) -> list[str]:
        """The columns of a source for `link_schema`."""
        known = {**self.inputs[source].keys, **self.inputs[source].joins}
        return [known[name] for name in self.link_schema(number).names]

    def _field(self, name: str) -> pa.Field:
        return self.keys.field(name) if name in self.keys.names else self.joins.field(name)

    def part_of(self, number: int, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        """The transform keys in rows of an input, with the names and types of the transform keys."""
        given = self.inputs[number]
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        schema = self.part_schema(number)
        if not given.part:
            return constant_part(table.num_rows)
        columns = [
            cast_exactly(table.column(column), schema.field(name), given.name) for name, column in given.keys.items()
        ]
        return pa.table(columns, schema=schema)

    def hash_keys(self, keys: pa.Table) -> Hashes:
        """The hash of each transform key."""
        return row_hash.hash_rows(keys, self.names)

    def hash_part(self, number: int, keys: pa.Table) -> Hashes:
        """The hash of an input's part of each key; `keys` has the join keys, too, if the input is looked up by them."""
        if not self.inputs[number].part:
            return row_hash.hash_rows(constant_part(1), [""]).take(np.zeros(keys.num_rows, np.int64))
        return row_hash.hash_rows(keys, self.inputs[number].part)

    def hash_file_order(self, number: int, keys: pa.Table) -> Hashes:
        """The hashes that order rows in a file: of the input's part if many keys share a part, as in a cross join."""
        given = self.inputs[number]
        if self.kind != "cross" and given.part:
            return self.hash_keys(keys)
        return self.hash_part(given.through[0] if given.through else number, keys)

    def own_hashes(self, number: int, keys: pa.Table, layout: pa.Schema) -> tuple[Hashes, Hashes | None, Mask]:
        """Hash keys as the input's key index does: the whole key, the declared prefix, and a mask of possible keys.

        No row of the input has a key that does not fit the input's type.
        """
        given = self.inputs[number]
        columns, fits = cast_with_mask([keys.column(name) for name in given.part], [layout.field(c) for c in given.own])
        table = pa.table(columns, names=list(given.own))
        whole = row_hash.hash_rows(table, given.own)
        has_prefix = given.search_method == "key" and given.lookup != given.key
        return whole, row_hash.hash_rows(table, given.lookup) if has_prefix else None, fits


def find_sides(parts: Sequence[Collection[str]]) -> list[int | None]:
    """The side of each input, by the transform keys that each has: a source has those that no other has more of."""
    numbers: dict[frozenset[str], int] = {}
    sides: list[int | None] = []
    for mine in map(frozenset, parts):
        is_source = bool(mine) and not any(mine < set(other) for other in parts)
        sides.append(numbers.setdefault(mine, len(numbers)) if is_source else None)
    return sides


def common_type(name: str, known: Sequence[tuple[str, pa.DataType]]) -> pa.DataType:
    """The type that holds the values of all these columns; refused if one value would have two representations."""
    owner, common = known[0]
    for other, data_type in known[1:]:
        if common.equals(data_type):
            continue
        unified = _unify(common, data_type)
        if unified is None:
            raise BadStep(
                f"the transform key {name!r} is {common} in {owner!r} and {data_type} in {other!r}",
                hint="give the key one kind of values in all inputs: cast it where one of them is written",
            )
        common = unified
    return common


def _unify(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    is_kin = [pa.types.is_integer, pa.types.is_floating, _is_text, pa.types.is_timestamp, pa.types.is_decimal]
    if not any(kin(one) and kin(other) for kin in is_kin):
        return None
    try:
        fields = [pa.schema([pa.field("key", t)]) for t in (one, other)]
        unified = pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    return unified


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def cast_exactly(column: Any, field: pa.Field, owner: str) -> Any:
    """Cast values to the key's type; `BadStep` if one of them does not fit."""
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadStep(
            f"values of {owner!r} for the transform key {field.name!r} do not fit its type {field.type}: {error}",
            hint="cast the column where it is written: a key has the output's type, or one that fits all inputs",
        ) from error


def cast_with_mask(columns: Sequence[Any], fields: Sequence[pa.Field]) -> tuple[list[Any], Mask]:
    """Cast values to other types, and return a mask of the rows where no value has changed."""
    fits: Mask = np.ones(len(columns[0]) if columns else 0, np.bool_)
    cast = []
    for column, target in zip(columns, fields, strict=True):
        if column.type.equals(target.type):
            cast.append(column)
            continue
        converted = _cast_or_null(column, target.type)
        back = converted.cast(column.type, safe=False)
        same = pc.or_(pc.is_null(column), pc.fill_null(pc.equal(back, column), False))  # null stays null
        if pa.types.is_floating(column.type):
            same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(back), pc.is_nan(column)), False))
        fits &= np.asarray(same.to_numpy(zero_copy_only=False) if isinstance(same, pa.Array) else same.to_numpy())
        cast.append(converted)
    return cast, fits


def _cast_or_null(column: Any, data_type: pa.DataType) -> Any:
    """Cast values to another type. Bytes that do not have the fixed length of the type become null."""
    if pa.types.is_fixed_size_binary(data_type):
        fits = pc.equal(pc.binary_length(column), data_type.byte_width)
        column = pc.if_else(fits, column, pa.scalar(None, column.type))
    return column.cast(data_type, safe=False)
