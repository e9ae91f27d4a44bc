"""Python values and Arrow arrays: what Arrow converts silently is refused, and what Python lacks is text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa


def check_same_kind(values: Sequence[Any], converted: pa.DataType) -> None:
    """Raise Arrow's type error if an array of this type does not have the same values as these Python objects.

    Arrow takes numbers among times for microseconds, cuts the time off a datetime among dates, treats times without a
    zone as UTC among times with one, and truth values among floats as numbers. Missing values are of every kind.
    """
    t: Any = converted
    if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t):
        check_same_kind(list(chain.from_iterable(item for item in values if _has_items(item))), t.value_type)
        return
    if pa.types.is_struct(t):
        found = [item for item in values if isinstance(item, Mapping)]
        for member in t:
            check_same_kind([item.get(member.name) for item in found], member.type)
        return
    kinds = _kinds_of(t)
    if kinds is None:
        return
    wanted, refused = kinds
    present = {type(item) for item in values}
    doubtful = tuple(kind for kind in present if not issubclass(kind, wanted) or issubclass(kind, refused))
    if doubtful and (other := next(_present(values, doubtful), None)) is not None:
        raise pa.ArrowTypeError(f"{other!r} ({type(other).__name__}) is among values of type {t}")
    if pa.types.is_timestamp(t):
        _check_times(_present(values, (datetime,)), t)


def check_numpy_times(values: Sequence[Any]) -> None:
    """Raise Arrow's type error for times of NumPy among other values. Check this first: Arrow may crash at them."""
    kinds = {type(item) for item in values if item is not None}
    if any(issubclass(kind, np.datetime64 | np.timedelta64) for kind in kinds):
        other = next((kind for kind in kinds if not issubclass(kind, np.datetime64 | np.timedelta64)), None)
        if len(kinds) > 1:
            name = "NumPy times of two kinds" if other is None else f"values of type {other.__name__}"
            raise pa.ArrowTypeError(f"{name} are among times of NumPy")


def _kinds_of(t: Any) -> tuple[tuple[type, ...], tuple[type, ...]] | None:
    """The Python types that have values of an Arrow type, and those among their subclasses that have not."""
    types = pa.types
    if types.is_timestamp(t):
        return (datetime, np.datetime64), ()
    if types.is_date(t):
        return (date, np.datetime64), (datetime,)
    if types.is_time(t):
        return (time,), ()
    if types.is_duration(t):
        return (timedelta, np.timedelta64), ()
    if types.is_integer(t) or types.is_floating(t) or types.is_decimal(t):
        return (object,), (bool, np.bool_)
    if types.is_binary(t) or types.is_large_binary(t) or types.is_fixed_size_binary(t):
        return (object,), (str,)
    return None


def _has_items(item: Any) -> bool:
    return isinstance(item, Iterable) and not isinstance(item, str | bytes)


def _present(values: Iterable[Any], kinds: tuple[type, ...]) -> Iterator[Any]:
    """The values of these types that are not missing: None, NaN and the like."""
    for item in values:
        # pandas' NaT and NaN are not equal to themselves; whether its NA is equal to anything is not known.
        if isinstance(item, kinds) and item is not None and type(item).__name__ != "NAType" and item == item:
            yield item


def _check_times(times: Iterable[Any], t: pa.TimestampType) -> None:
    """Refuse times with and without a zone together, and nanoseconds that the type does not have."""
    has_zone = None
    for moment in times:
        if has_zone is None:
            has_zone = moment.tzinfo is not None
        if has_zone != (moment.tzinfo is not None):
            raise pa.ArrowTypeError("some times have a time zone, and others have none")
        if t.unit != "ns" and getattr(moment, "nanosecond", 0):
            raise pa.ArrowTypeError(f"{moment.isoformat()} has more digits than {t} holds")


def python_list(column: Any) -> list[Any]:
    """The values of an Arrow column. Times that Python does not have, such as those after the year 9999, are text."""
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        values = [_python_value(scalar) for scalar in column]
    return values


def _python_value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return str(scalar.cast(pa.string()))
