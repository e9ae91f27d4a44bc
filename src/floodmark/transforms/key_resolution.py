"""Resolve the transform keys of a step, and the shape of its inputs, from the step's declaration and the datasets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.key_shape import InputShape, KeyShape, OutputKeys, PlanKind, common_type, find_sides
from floodmark.errors import BadStep, close_matches
from floodmark.transforms.specs import InputSpec


def resolve_shape(
    input_snapshots: Sequence[InputSnapshot],
    specs: Sequence[InputSpec],
    transform_keys: Sequence[str] | None,
    outputs: Sequence[OutputKeys],
) -> KeyShape | None:
    """The shape of a step with these inputs; None if a transform key has no type yet, so that there is nothing to do.

    Before its first write, an input has no columns. The keys of the shape are the transform keys that all outputs have.
    The others, and other columns that `keys=` of an input names, are join keys: by them, an input is looked up through
    the rows of another.
    """
    declared = _key_names(input_snapshots, specs, transform_keys, outputs)
    keys = output_keys(declared, outputs)
    names = (*declared, *_join_columns(input_snapshots, specs, declared))
    try:
        parts = [_aliases(spec, given, names) for spec, given in zip(specs, input_snapshots, strict=True)]
        sides = _sides(declared, parts, input_snapshots)
    except _UnknownColumn as error:
        if any(given.shown is None for given in input_snapshots):
            return None  # an input that has no columns yet may have it
        raise error.problem from None
    through = [_through(spec, part, parts, sides, keys) for spec, part in zip(specs, parts, strict=True)]
    joined = tuple(
        name for name in names if name not in keys and any(name in parts[n] for n, m in enumerate(through) if m)
    )
    schema = _types(keys, parts, input_snapshots, outputs)
    joins = _types(joined, parts, input_snapshots, ())
    if schema is None or joins is None:
        return None
    inputs = []
    for spec, given, part, side, sources in zip(specs, input_snapshots, parts, sides, through, strict=True):
        mine = _input(spec, given, part, pa.schema([*schema, *joins]))
        own = {name: column for name, column in part.items() if sources or name in keys}
        joined_by = {name: part[name] for name in joined if name in part and side is not None}
        is_full = not sources and len(own) == len(schema)
        inputs.append(replace(mine, keys=own, side=side, joins=joined_by, through=sources, is_full=is_full))
    return KeyShape(schema, tuple(inputs), _kind(inputs), joins)


class _UnknownColumn(Exception):
    """A column that no input has, or does not have yet."""

    def __init__(self, problem: BadStep) -> None:
        self.problem = problem


def output_keys(declared: Sequence[str], outputs: Sequence[OutputKeys]) -> tuple[str, ...]:
    """The declared transform keys that the keys of all outputs have; `BadStep` if there are none.

    An output without a declared key has all transform keys. One whose key has none of them gets them as columns.
    """
    known = [output for output in outputs if output.key is not None and output.is_declared]
    known = [output for output in known if output.is_fixed or any(name in (output.key or ()) for name in declared)]
    found = tuple(name for name in declared if all(name in (output.key or ()) for output in known))
    if not found:
        keys = "; ".join(f"{output.name!r} has {', '.join(output.key or ())}" for output in known)
        raise BadStep(
            f"no transform key is in the keys of all outputs: {keys}",
            hint=f"the transform keys are {', '.join(declared)}; add at least one to the key of each output, "
            "in OutputSpec(…, key=) or lake.create",
        )
    return found


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


def _join_columns(
    inputs: Sequence[InputSnapshot], specs: Sequence[InputSpec], declared: Sequence[str]
) -> dict[str, None]:
    """The columns of inputs that `keys=` of other inputs name, although they are no transform keys."""
    found: dict[str, None] = {}
    for name in (name for spec in specs for name in (spec.keys or {}) if name not in declared):
        if any(
            name in (_known_columns(g) or ()) for s, g in zip(specs, inputs, strict=True) if name not in (s.keys or {})
        ):
            found[name] = None
    return found


def _aliases(spec: InputSpec, given: InputSnapshot, names: tuple[str, ...]) -> dict[str, str]:
    """The transform keys that an input has, each with the input's column."""
    alias = dict(spec.keys or {})
    for name in alias:
        if name not in names:
            near = close_matches(name, names)
            hint = f"did you mean {near[0]!r}?" if near else f"the transform keys are {', '.join(names)}"
            problem = f"keys= of input {spec.name!r} names {name!r}, which is no transform key and in no other input"
            raise _UnknownColumn(BadStep(problem, hint=hint))
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


def _sides(
    names: tuple[str, ...], every: Sequence[Mapping[str, str]], inputs: Sequence[InputSnapshot]
) -> list[int | None]:
    """The side of each input: see `find_sides`.

    Refuses transform keys that no input has, and inputs that share only some of their transform keys.
    """
    parts = [[name for name in names if name in part] for part in every]
    missing = [name for name in names if not any(name in part for part in parts)]
    if missing:
        columns = "; ".join(f"{given.name!r} has {_column_names(given)}" for given in inputs)
        problem = BadStep(
            f"the transform keys {', '.join(names)} do not fit the inputs: no input has {missing[0]!r}",
            hint=f"{columns}: name its column with InputSpec(…, keys={{{missing[0]!r}: 'column'}})",
        )
        raise _UnknownColumn(problem)
    sides = find_sides(parts)
    sources = {tuple(p): given.name for given, p, side in zip(inputs, parts, sides, strict=True) if side is not None}
    for one, other in itertools.combinations(sources, 2):
        if shared := set(one) & set(other):
            name = next(name for name in names if name in shared)
            raise BadStep(
                f"the transform keys {', '.join(names)} do not fit the inputs: {sources[one]!r} and {sources[other]!r} "
                f"have {name!r}, but neither has all keys of the other",
                hint="one input must have all transform keys (a join), or any two inputs must share all of their "
                "transform keys or none (a cross join)",
            )
    return sides


def _through(
    spec: InputSpec,
    part: Mapping[str, str],
    parts: Sequence[Mapping[str, str]],
    sides: Sequence[int | None],
    keys: tuple[str, ...],
) -> tuple[int, ...]:
    """The sources through whose rows an input is looked up; none if it is a source or has only keys of outputs."""
    by = [name for name in part if name not in keys]
    is_source = any(mine is part and side is not None for mine, side in zip(parts, sides, strict=True))
    if not by or is_source:
        return ()
    fitting = [
        n
        for n, (other, side) in enumerate(zip(parts, sides, strict=True))
        if side is not None and set(part) <= set(other)
    ]
    if not fitting:
        raise BadStep(
            f"input {spec.name!r} is looked up by {', '.join(part)}, but no input with transform keys has all of them",
            hint=f"give keys= that such an input has, or OutputSpec(…, key=) with {by[0]!r}",
        )
    return tuple(fitting)


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


def _input(spec: InputSpec, given: InputSnapshot, part: Mapping[str, str], schema: pa.Schema) -> InputShape:
    if given.layout is None:
        known = {name: column for name, column in part.items() if name in schema.names}
        columns = pa.schema([pa.field(column, schema.field(name).type) for name, column in known.items()])
    else:
        # The function also gets a hidden column that is a transform key: its result must have it.
        shown, own = given.layout.shown.names, part.values()
        names = [*shown, *own] if spec.columns is None else [*own, *spec.columns]
        columns = pa.schema([_optional(given.layout.data.field(name)) for name in dict.fromkeys(names)])
    key, lookup = given.strategy.key, given.strategy.lookup
    compared = None if spec.columns is None else tuple(columns.names)
    return InputShape(spec.name, given.dataset_id, dict(part), key, lookup, columns, spec.required, False, compared)


def _optional(field: Any) -> pa.Field:
    return pa.field(field.name, field.type)


def _kind(inputs: Sequence[InputShape]) -> PlanKind:
    if len({given.side for given in inputs if given.side is not None}) > 1:
        return "cross"
    return "map" if len(inputs) == 1 and inputs[0].search_method == "key" else "keyed"
