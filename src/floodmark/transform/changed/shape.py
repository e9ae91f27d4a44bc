"""The shape of a step: its transform keys, what each input has of them, and so which physical plan it needs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from floodmark.ledger.keys import hashing
from floodmark.storage.arrays import Hashes, Mask
from floodmark.transform.changed.casting import cast_exactly, cast_where_it_fits, common_type
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.errors import BadKeys
from floodmark.transform.specs import InputSpec

Kind = Literal["map", "keyed", "cross"]


@dataclass(frozen=True)
class OutputKeys:
    """What is known of an output before the run: its key, declared or existing, and its columns if it has any yet."""

    name: str
    key: tuple[str, ...] | None = None
    columns: pa.Schema | None = None


@dataclass(frozen=True)
class InputShape:
    """What an input has of the transform keys, and what of it the function gets."""

    name: str
    dataset_id: str
    keys: Mapping[str, str]  # transform key → column, in the order of the transform keys
    key: tuple[str, ...]
    lookup: tuple[str, ...]
    columns: pa.Schema  # those handed to the function, in this order
    required: bool
    is_full: bool

    @property
    def part(self) -> tuple[str, ...]:
        """The transform keys that it has."""
        return tuple(self.keys)

    @property
    def own(self) -> tuple[str, ...]:
        """Its columns that are transform keys."""
        return tuple(self.keys.values())

    @property
    def found_by(self) -> Literal["key", "prefix", "scan"]:
        """How its rows are found by their part of the transform keys: through the key index, or by looking at all."""
        mine = set(self.own)
        if not self.key or not mine:
            return "scan"
        if mine == set(self.key):
            return "key"
        return "prefix" if mine == set(self.lookup) else "scan"


@dataclass(frozen=True)
class Shape:
    """The transform keys and the inputs of a step as of one plan."""

    keys: pa.Schema
    inputs: tuple[InputShape, ...]
    kind: Kind

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.keys.names)

    @property
    def ids(self) -> tuple[str, ...]:
        """The inputs' dataset ids."""
        return tuple(given.dataset_id for given in self.inputs)

    def part_schema(self, number: int) -> pa.Schema:
        return pa.schema([self.keys.field(name) for name in self.inputs[number].part])

    def part_of(self, number: int, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        """What rows of an input have of the transform keys, under their names and types."""
        given = self.inputs[number]
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        schema = self.part_schema(number)
        columns = [
            cast_exactly(table.column(column), schema.field(name), given.name) for name, column in given.keys.items()
        ]
        return pa.table(columns, schema=schema)

    def hash_keys(self, keys: pa.Table) -> Hashes:
        """The hash of each transform key."""
        return hashing.hash_rows(keys, self.names)

    def hash_part(self, number: int, keys: pa.Table) -> Hashes:
        """The hash of what each key has of an input's part."""
        return hashing.hash_rows(keys, self.inputs[number].part)

    def hash_place(self, number: int, keys: pa.Table) -> Hashes:
        """What decides in which part of a file the rows of a key are: in a cross join few parts meet in many keys."""
        return self.hash_part(number, keys) if self.kind == "cross" else self.hash_keys(keys)

    def own_hashes(self, number: int, keys: pa.Table, layout: pa.Schema) -> tuple[Hashes, Hashes | None, Mask]:
        """The same keys as the input's own key index hashes them: whole key, declared prefix, and which can be there.

        A key that the input's type cannot hold is in none of its rows.
        """
        given = self.inputs[number]
        columns, fits = cast_where_it_fits(
            [keys.column(name) for name in given.part], [layout.field(c) for c in given.own]
        )
        table = pa.table(columns, names=list(given.own))
        whole = hashing.hash_rows(table, given.own)
        has_prefix = given.found_by == "key" and given.lookup != given.key
        return whole, hashing.hash_rows(table, given.lookup) if has_prefix else None, fits


def resolve_shape(
    pinned: Sequence[PinnedInput],
    specs: Sequence[InputSpec],
    transform_keys: Sequence[str] | None,
    outputs: Sequence[OutputKeys],
) -> Shape | None:
    """The shape that a declaration has now; None while no input has columns for all transform keys: nothing to do."""
    names = _declared(pinned, specs, transform_keys, outputs)
    has = [_aliases(spec, given, names) for spec, given in zip(specs, pinned, strict=True)]
    _check_parts(names, has, pinned)
    schema = _types(names, has, pinned, outputs)
    if schema is None:
        return None
    inputs = tuple(_input(s, g, k, schema) for s, g, k in zip(specs, pinned, has, strict=True))
    return Shape(schema, inputs, _kind(inputs))


def _declared(
    pinned: Sequence[PinnedInput],
    specs: Sequence[InputSpec],
    given: Sequence[str] | None,
    outputs: Sequence[OutputKeys],
) -> tuple[str, ...]:
    if given is not None:
        names = (given,) if isinstance(given, str) else tuple(given)
        if not names or len(set(names)) < len(names) or not all(isinstance(n, str) and n for n in names):
            raise BadKeys(f"transform_keys={list(names)} name a column twice or none", hint="name each column once")
    else:
        names = _shared(pinned, specs, outputs)
    for output in outputs:
        missing = [name for name in names if output.key is not None and name not in output.key]
        if missing:
            raise BadKeys(
                f"the key of output {output.name!r} lacks the transform key {missing[0]!r}",
                hint=f"its key is {', '.join(output.key or ())}: it must contain {', '.join(names)}",
            )
    return names


def _shared(
    pinned: Sequence[PinnedInput], specs: Sequence[InputSpec], outputs: Sequence[OutputKeys]
) -> tuple[str, ...]:
    """The default: what all keys share; if nothing, the inputs' keys one after the other."""
    keys = [_own_key(spec, given) for spec, given in zip(specs, pinned, strict=True)]
    known = [*keys, *(output.key for output in outputs if output.key is not None)]
    shared = tuple(name for name in keys[0] if all(name in key for key in known))
    if shared:
        return shared
    inputs_share = [name for name in keys[0] if all(name in key for key in keys)]
    if inputs_share or len(keys) < 2:
        raise BadKeys(
            f"the keys of inputs and outputs share no column: {' / '.join(', '.join(key) for key in known)}",
            hint="give transform_keys=, and key= of OutputSpec so that it contains them; or drop an output that has "
            "another key, and the next run makes it anew",
        )
    crossed = [name for key in keys for name in key]
    return tuple(dict.fromkeys(crossed))


def _own_key(spec: InputSpec, given: PinnedInput) -> tuple[str, ...]:
    """An input's key under the names of the transform keys; hidden columns are part of it only where keys= has them."""
    alias = {column: name for name, column in (spec.keys or {}).items()}
    key = given.strategy.key
    if not key:
        raise BadKeys(
            f"input {spec.name!r} is append-only, so the step's transform keys are not known",
            hint="give transform_keys=: the columns by which rows belong together",
        )
    own = tuple(alias.get(column, column) for column in key if column in alias or column in given.shown_key)
    if not own:
        columns = ", ".join(given.shown.names) if given.shown is not None else ""
        raise BadKeys(
            f"view {spec.name!r} has no key of its own columns, so the step's transform keys are not known",
            hint=f"name transform_keys=[…]: those of {columns} by which rows belong together",
        )
    return own


def _aliases(spec: InputSpec, given: PinnedInput, names: tuple[str, ...]) -> dict[str, str]:
    """Which column of an input is which transform key."""
    alias = dict(spec.keys or {})
    for name in alias:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the transform keys are {', '.join(names)}"
            raise BadKeys(f"keys= of input {spec.name!r} names {name!r}, which is no transform key", hint=hint)
    taken = set(alias.values())
    columns = _known_columns(given)
    found = {}
    for name in names:
        column = alias.get(name, name)
        if name in alias or name not in taken:  # a column that is an alias of another key is not this one
            if columns is None or column in columns:
                found[name] = column
            elif name in alias:
                raise BadKeys(f"input {spec.name!r} has no column {column!r}", hint=f"it has {_said(given)}")
    return found


def _known_columns(given: PinnedInput) -> Sequence[str] | None:
    """The columns of an input; before its first write those of its key, None when it has none (any may come).

    Hidden ones are among them where they are part of the key; what a view once had is not there any more.
    """
    if given.shown is not None:
        return list(dict.fromkeys([*given.shown.names, *given.strategy.key]))
    return given.strategy.key or None


def _said(given: PinnedInput) -> str:
    """The columns of an input as its users know them."""
    return ", ".join(given.strategy.key if given.shown is None else given.shown.names)


def _check_parts(names: tuple[str, ...], has: Sequence[Mapping[str, str]], pinned: Sequence[PinnedInput]) -> None:
    for given, part in zip(pinned, has, strict=True):
        if not part:
            raise BadKeys(
                f"input {given.name!r} has none of the transform keys {', '.join(names)}",
                hint=f"it has {_said(given)}: give InputSpec({given.name!r}, keys={{{names[0]!r}: 'column'}})",
            )
    if any(len(part) == len(names) for part in has):
        return
    counted = [name for part in has for name in part]
    twice = [name for name in names if counted.count(name) > 1]
    missing = [name for name in names if name not in counted]
    if not twice and not missing:
        return
    said = f"no input has {missing[0]!r}" if missing else f"{twice[0]!r} is in several inputs, none of which has all"
    raise BadKeys(
        f"the transform keys {', '.join(names)} do not go with the inputs: {said}",
        hint="one input must have all of them (a join), or each input some that no other has (a cross join)",
    )


def _types(
    names: tuple[str, ...],
    has: Sequence[Mapping[str, str]],
    pinned: Sequence[PinnedInput],
    outputs: Sequence[OutputKeys],
) -> pa.Schema | None:
    """The keys' types: those of the outputs that are there, else what holds the values of all inputs."""
    fields = []
    for name in names:
        kept = [o.columns.field(name).type for o in outputs if o.columns is not None and name in o.columns.names]
        known = [
            (given.name, given.layout.data.field(part[name]).type)
            for given, part in zip(pinned, has, strict=True)
            if name in part and given.layout is not None
        ]
        if not known:
            return None
        for owner, found in known:
            if pa.types.is_nested(found):
                raise BadKeys(
                    f"the transform key {name!r} of input {owner!r} has type {found}",
                    hint="a key is made of plain values: numbers, text, dates, times",
                )
        together = common_type(name, known)
        fields.append(pa.field(name, kept[0] if kept else together))
    return pa.schema(fields)


def _input(spec: InputSpec, given: PinnedInput, part: Mapping[str, str], schema: pa.Schema) -> InputShape:
    if given.layout is None:
        columns = pa.schema([pa.field(column, schema.field(name).type) for name, column in part.items()])
    else:
        # Who makes a hidden column a transform key sees it: what the function returns must have it.
        shown, own = given.layout.shown.names, part.values()
        wanted = [*shown, *own] if spec.columns is None else [*own, *spec.columns]
        columns = pa.schema([_optional(given.layout.data.field(name)) for name in dict.fromkeys(wanted)])
    key, lookup = given.strategy.key, given.strategy.lookup
    is_full = len(part) == len(schema)
    return InputShape(spec.name, given.dataset_id, dict(part), key, lookup, columns, spec.required, is_full)


def _optional(field: Any) -> pa.Field:
    return pa.field(field.name, field.type)


def _kind(inputs: tuple[InputShape, ...]) -> Kind:
    if not any(given.is_full for given in inputs):
        return "cross"
    return "map" if len(inputs) == 1 and inputs[0].found_by == "key" else "keyed"
