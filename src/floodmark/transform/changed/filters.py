"""Filters and orders over transform keys, as a user gives them, and filters by the values of wanted keys."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.ledger.expressions import check_fits
from floodmark.transform.errors import BadFilter

Filters = Any
"""An Arrow expression, {"key": value or values}, a list of such mappings (any of which may fit), or None."""

FEW_VALUES = 1 << 16
"""Up to this many values, the reader of files filters by them itself."""

_MANY_ROWS = 8 * FEW_VALUES


def parse_filters(given: Filters, keys: pa.Schema) -> pc.Expression | None:
    """The filter as an Arrow expression over the transform keys; None when there is none."""
    if given is None:
        return None
    if isinstance(given, pc.Expression):
        wanted = given
    elif isinstance(given, Mapping):
        wanted = _all_of(given, keys)
    elif isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(g, Mapping) for g in given):
        wanted = reduce(lambda a, b: a | b, [_all_of(g, keys) for g in given], pc.scalar(False))
    else:
        raise BadFilter(
            f"filters={given!r} is no filter",
            hint='give {"key": value or list of values}, a list of such dicts, or a pyarrow.compute expression',
        )
    try:
        check_fits(wanted, keys)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise BadFilter(
            f"the filter {given!r} does not work: {error}", hint=f"the transform keys are {', '.join(keys.names)}"
        ) from error
    return wanted


def canonical(given: Filters) -> Any:
    """The same filter as JSON can have it: the same for all ways to write it down that are easily told to be one."""
    if isinstance(given, pc.Expression):
        text = str(given)  # long lists of values are cut short in it
        return text if "..." not in text else hashlib.sha3_256(pickle.dumps(given)).hexdigest()
    if isinstance(given, Mapping):
        return [sorted([str(name), sorted({_text(v) for v in _values(value)})] for name, value in given.items())]
    if isinstance(given, Sequence) and all(isinstance(one, Mapping) for one in given):
        return sorted(part for one in given for part in canonical(one))
    return repr(given)  # refused as soon as it is used


def _values(given: Any) -> list[Any]:
    """The values that a filter of one key may have."""
    is_many = isinstance(given, Sequence | set | frozenset | pa.Array) and not isinstance(given, str | bytes)
    return given.to_pylist() if isinstance(given, pa.Array) else list(given) if is_many else [given]


def _text(value: Any) -> str:
    return repr(value.item()) if isinstance(value, np.number | np.bool_ | np.str_) else repr(value)


def _all_of(given: Mapping[str, Any], keys: pa.Schema) -> pc.Expression:
    parts = [_among(name, value, keys) for name, value in given.items()]
    return reduce(lambda a, b: a & b, parts, pc.scalar(True))


def _among(name: str, value: Any, keys: pa.Schema) -> pc.Expression:
    if name not in keys.names:
        raise BadFilter(
            f"the filter names {name!r}, which is no transform key", hint=f"they are {', '.join(keys.names)}"
        )
    try:
        wanted = pa.array(_values(value), keys.field(name).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise BadFilter(
            f"the filter of {name!r} has values that do not fit {keys.field(name).type}: {error}",
            hint="give values of the key's type",
        ) from error
    field = pc.field(name)
    among = field.isin(wanted.drop_null())
    return among | field.is_null() if wanted.null_count else among


def parse_order(given: Sequence[str] | str | None, keys: pa.Schema) -> list[tuple[str, str]]:
    """What to sort by: transform keys, a minus before one turns it around."""
    names = [] if given is None else [given] if isinstance(given, str) else list(given)
    order = []
    for name in names:
        column = name.removeprefix("-") if isinstance(name, str) else name
        if column not in keys.names:
            raise BadFilter(
                f"order_by names {column!r}, which is no transform key", hint=f"they are {', '.join(keys.names)}"
            )
        order.append((column, "descending" if name.startswith("-") else "ascending"))
    return order


def values_filter(values: pa.Table, schema: pa.Schema) -> pc.Expression | None:
    """A filter that lets the reader of files leave out most rows without these values; it may keep others.

    `values` has the columns under the names of the files, whose types `schema` says. None where it would not pay.
    """
    kept: pc.Expression | None = None
    if values.num_rows > _MANY_ROWS:
        return None
    for name in values.column_names:
        data_type = schema.field(name).type
        # Among floats 0.0 and -0.0 are one key, and NaN is one too, which Arrow does not know.
        if pa.types.is_floating(data_type) or not values.column(name).type.equals(data_type):
            continue
        distinct = values.column(name).unique()
        if len(distinct) > FEW_VALUES:
            continue
        field = pc.field(name)
        mine = field.isin(distinct.drop_null())
        mine = mine | field.is_null() if distinct.null_count else mine
        kept = mine if kept is None else kept & mine
    return kept
