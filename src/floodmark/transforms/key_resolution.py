"""Resolve the transform keys of a step, and the shape of its inputs, from the step's declaration and the datasets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.key_shape import InputShape, KeyShape, OutputKeys, PlanKind, common_type, mark_sources
from floodmark.errors import BadStep, close_matches
from floodmark.transforms.specs import InputSpec


def resolve_shape(
    input_snapshots: Sequence[InputSnapshot],
    specs: Sequence[InputSpec],
    transform_keys: Sequence[str] | None,
    outputs: Sequence[OutputKeys],
) -> KeyShape | None:
    """The shape of a step with these inputs; None if a transform key has no type yet, so that there is nothing to do.

    Before its first write, an input has no columns.
    """
    names = _key_names(input_snapshots, specs, transform_keys, outputs)
    parts = [_aliases(spec, given, names) for spec, given in zip(specs, input_snapshots, strict=True)]
    _check_parts(names, parts, input_snapshots)
    schema = _types(names, parts, input_snapshots, outputs)
    if schema is None:
        return None
    given = zip(specs, input_snapshots, parts, mark_sources(parts), strict=True)
    inputs = tuple(_input(spec, snapshot, part, schema, m) for spec, snapshot, part, m in given)
    return KeyShape(schema, inputs, _kind(inputs))


def _key_names(
    inputs: Sequence[InputSnapshot],
    specs: Sequence[InputSpec],
    given: Sequence[str] | None,
    outputs: Sequence[OutputKeys],
) -> tuple[str, ...]:
    """The names of the transform keys: as declared, else by default."""
    if given is not None:
        names = (given,) if isinstance(given, str) else tuple(given)
        if not names or len(set(names)) < len(names) or not all(isinstance(n, str) and n for n in names):
            raise BadStep(
                f"transform_keys={list(names)} is empty or has a column twice", hint="name each transform key once"
            )
    else:
        names = _shared(inputs, specs, outputs)
    for output in outputs:
        missing = [name for name in names if output.key is not None and name not in output.key]
        if missing:
            raise BadStep(
                f"the key of output {output.name!r} lacks the transform key {missing[0]!r}",
                hint=f"its key is {', '.join(output.key or ())}; it must contain {', '.join(names)}",
            )
    return names


def _shared(
    inputs: Sequence[InputSnapshot], specs: Sequence[InputSpec], outputs: Sequence[OutputKeys]
) -> tuple[str, ...]:
    """The default transform keys: the columns that all keys share; if none, the keys of all inputs (a cross join)."""
    keys = [_own_key(spec, given) for spec, given in zip(specs, inputs, strict=True)]
    known = [*keys, *(output.key for output in outputs if output.key is not None)]
    shared = tuple(name for name in keys[0] if all(name in key for key in known))
    if shared:
        return shared
    inputs_share = [name for name in keys[0] if all(name in key for key in keys)]
    if inputs_share or len(keys) < 2:
        raise BadStep(
            f"the keys of inputs and outputs share no column: {' / '.join(', '.join(key) for key in known)}",
            hint="give transform_keys=, and OutputSpec(…, key=) that contains them; or drop an output with another "
            "key: the next run creates it again",
        )
    crossed = [name for key in keys for name in key]
    return tuple(dict.fromkeys(crossed))


def _own_key(spec: InputSpec, given: InputSnapshot) -> tuple[str, ...]:
    """An input's key, by the names of the transform keys. Hidden columns are part of it only if keys= names them."""
    alias = {column: name for name, column in (spec.keys or {}).items()}
    key = given.strategy.key
    if not key:
        raise BadStep(
            f"input {spec.name!r} is append-only, so the step's transform keys are not known",
            hint="give transform_keys=: the columns whose values identify the rows of one call",
        )
    own = tuple(alias.get(column, column) for column in key if column in alias or column in given.shown_key)
    if not own:
        columns = ", ".join(given.shown.names) if given.shown is not None else ""
        raise BadStep(
            f"view {spec.name!r} has no key in its visible columns, so the step's transform keys are not known",
            hint=f"give transform_keys=[…]: some of {columns}, whose values identify the rows of one call",
        )
    return own


def _aliases(spec: InputSpec, given: InputSnapshot, names: tuple[str, ...]) -> dict[str, str]:
    """The transform keys that an input has, each with the input's column."""
    alias = dict(spec.keys or {})
    for name in alias:
        if name not in names:
            near = close_matches(name, names)
            hint = f"did you mean {near[0]!r}?" if near else f"the transform keys are {', '.join(names)}"
            raise BadStep(f"keys= of input {spec.name!r} names {name!r}, which is no transform key", hint=hint)
    aliased = set(alias.values())
    columns = _known_columns(given)
    part = {}
    for name in names:
        column = alias.get(name, name)
        if name in alias or name not in aliased:  # a column that is another key by keys= is not this one
            if columns is None or column in columns:
                part[name] = column
            elif name in alias:
                raise BadStep(f"input {spec.name!r} has no column {column!r}", hint=f"it has {_column_names(given)}")
    return part


def _known_columns(given: InputSnapshot) -> Sequence[str] | None:
    """The columns of an input. Before its first write: those of its key, or None without a key (any may come).

    Hidden columns are included if they are part of the key. Columns that a view no longer has are not.
    """
    if given.shown is not None:
        return list(dict.fromkeys([*given.shown.names, *given.strategy.key]))
    return given.strategy.key or None


def _column_names(given: InputSnapshot) -> str:
    """The visible columns of an input, as text."""
    return ", ".join(given.strategy.key if given.shown is None else given.shown.names)


def _check_parts(names: tuple[str, ...], parts: Sequence[Mapping[str, str]], inputs: Sequence[InputSnapshot]) -> None:
    """Refuse transform keys that no input has, and inputs that share only some of their transform keys."""
    missing = [name for name in names if not any(name in part for part in parts)]
    if missing:
        columns = "; ".join(f"{given.name!r} has {_column_names(given)}" for given in inputs)
        raise BadStep(
            f"the transform keys {', '.join(names)} do not fit the inputs: no input has {missing[0]!r}",
            hint=f"{columns}: name its column with InputSpec(…, keys={{{missing[0]!r}: 'column'}})",
        )
    sides = {tuple(part): given.name for given, part, m in zip(inputs, parts, mark_sources(parts), strict=True) if m}
    for one, other in itertools.combinations(sides, 2):
        if shared := set(one) & set(other):
            name = next(name for name in names if name in shared)
            raise BadStep(
                f"the transform keys {', '.join(names)} do not fit the inputs: {sides[one]!r} and {sides[other]!r} "
                f"have {name!r}, but neither has all keys of the other",
                hint="one input must have all transform keys (a join), or any two inputs must share all of their "
                "transform keys or none (a cross join)",
            )


def _types(
    names: tuple[str, ...],
    parts: Sequence[Mapping[str, str]],
    inputs: Sequence[InputSnapshot],
    outputs: Sequence[OutputKeys],
) -> pa.Schema | None:
    """The keys' types: those of existing outputs, else common types of all inputs."""
    fields = []
    for name in names:
        kept = [o.columns.field(name).type for o in outputs if o.columns is not None and name in o.columns.names]
        known = [
            (given.name, given.layout.data.field(part[name]).type)
            for given, part in zip(inputs, parts, strict=True)
            if name in part and given.layout is not None
        ]
        if not known:
            return None
        for owner, data_type in known:
            if pa.types.is_nested(data_type):
                raise BadStep(
                    f"the transform key {name!r} of input {owner!r} has type {data_type}",
                    hint="use keys with plain values: numbers, text, dates or times",
                )
        together = common_type(name, known)
        fields.append(pa.field(name, kept[0] if kept else together))
    return pa.schema(fields)


def _input(
    spec: InputSpec, given: InputSnapshot, part: Mapping[str, str], schema: pa.Schema, is_source: bool
) -> InputShape:
    if given.layout is None:
        columns = pa.schema([pa.field(column, schema.field(name).type) for name, column in part.items()])
    else:
        # The function also gets a hidden column that is a transform key: its result must have it.
        shown, own = given.layout.shown.names, part.values()
        names = [*shown, *own] if spec.columns is None else [*own, *spec.columns]
        columns = pa.schema([_optional(given.layout.data.field(name)) for name in dict.fromkeys(names)])
    key, lookup = given.strategy.key, given.strategy.lookup
    is_full = len(part) == len(schema)
    compared = None if spec.columns is None else tuple(columns.names)
    return InputShape(
        spec.name, given.dataset_id, dict(part), key, lookup, columns, spec.required, is_full, compared, is_source
    )


def _optional(field: Any) -> pa.Field:
    return pa.field(field.name, field.type)


def _kind(inputs: tuple[InputShape, ...]) -> PlanKind:
    if not any(given.is_full for given in inputs):
        return "cross"
    return "map" if len(inputs) == 1 and inputs[0].search_method == "key" else "keyed"
