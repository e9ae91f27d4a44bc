"""Convert a function's result to the column's values, and check their number, type and nulls."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from floodmark.errors import BadResult

_SHOWN = 3  # bad rows that an error names
_Offsets = NDArray[np.int64]


class _Unfit(Exception):
    """The values cannot be converted to the column's type; the message has the reason."""


@dataclass(frozen=True)
class ResultColumn:
    """The requirements for the values that a function returns."""

    column: str
    type: pa.DataType
    nullable: bool

    def from_arrow(self, result: object, offsets: _Offsets) -> pa.Array:
        """The column's values from the result of an array function for these rows."""
        values = self._array(result, offsets)
        if len(values) != len(offsets):
            raise self._refused(f"returned {len(values)} values for {len(offsets)} rows", offsets)
        if values.type.equals(self.type):
            return self._checked(values, offsets)
        try:
            cast = _cast(values, self.type)
        except (pa.ArrowException, _Unfit) as error:
            bad = _bad_rows(lambda start, end: _cast(values.slice(start, end - start), self.type), len(values))
            raise self._wrong_type(f"returned {values.type}, not {self.type}: {error}", offsets, bad) from error
        return self._checked(cast, offsets)

    def from_python(self, results: Sequence[Any], offsets: _Offsets) -> pa.Array:
        """The column's values from Python values, one per row."""
        try:
            values = _from_python(results, self.type)
        except (pa.ArrowException, _Unfit, ValueError, TypeError, OverflowError) as error:
            bad = _bad_rows(lambda start, end: _from_python(results[start:end], self.type), len(results))
            shown = repr(results[bad[0]])[:80] if bad else "values"
            raise self._wrong_type(f"returned {shown}, which is not {self.type}: {error}", offsets, bad) from error
        return self._checked(values, offsets)

    def _array(self, result: object, offsets: _Offsets) -> pa.Array:
        if isinstance(result, pa.Array):
            return result
        try:
            if isinstance(result, pa.ChunkedArray):
                return _one_array(result)
            if isinstance(result, np.ndarray) or hasattr(result, "__arrow_c_array__"):
                return _one_array(pa.array(result))
            if hasattr(result, "__arrow_c_stream__"):
                return _one_array(pa.chunked_array(result))
        except (pa.ArrowException, ValueError, TypeError, _Unfit) as error:
            raise self._refused(f"returned {_describe(result)} that is not an array: {error}", offsets) from error
        raise self._refused(f"returned {_describe(result)}, not an array", offsets, hint="Return a pyarrow.Array.")

    def _checked(self, values: pa.Array, offsets: _Offsets) -> pa.Array:
        if self.nullable or not values.null_count:
            return values
        nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        raise self._refused(
            f"returned {len(nulls)} nulls, but has nullable=False",
            offsets,
            at=nulls[:_SHOWN],
            hint="Return a value for every row, or allow nulls.",
        )

    def _wrong_type(self, what: str, offsets: _Offsets, bad: Sequence[int]) -> BadResult:
        return self._refused(what, offsets, at=bad, hint=f"Return {self.type} from the function, or change returns=.")

    def _refused(
        self, what: str, offsets: _Offsets, *, at: Sequence[int] | NDArray[Any] = (), hint: str = ""
    ) -> BadResult:
        start, end = int(offsets[0]), int(offsets[-1]) + 1
        first = tuple(int(offsets[row]) for row in at)
        where = f" (first at {', '.join(map(str, first))})" if first else ""
        return BadResult(
            f"the function of column {self.column!r} {what}, for offsets [{start}, {end}){where}",
            hint=hint,
            column=self.column,
            start=start,
            end=end,
            offsets=first,
        )


def _describe(result: object) -> str:
    name = type(result).__qualname__
    return "nothing" if result is None else f"a value of type {name}"


def _one_array(values: Any) -> pa.Array:
    if not isinstance(values, pa.ChunkedArray):
        return values
    try:
        return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks or [pa.nulls(0)])
    except pa.ArrowInvalid as error:
        raise _Unfit(f"they do not fit into one array ({error}); set a lower max_checkpoint_size") from error


def _from_python(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    if _rounds_silently(data_type) and not _are_integers(values, data_type):
        if pa.types.is_date(data_type) and any(isinstance(value, dt.datetime) for value in values):
            raise _Unfit("a cast would lose the time of day")
        return _cast(_one_array(pa.array(values)), data_type)
    return _one_array(pa.array(values, data_type))


def _are_integers(values: Sequence[Any], data_type: pa.DataType) -> bool:
    """Whether all values are integers, so nothing is rounded. pyarrow cannot infer a type beyond 64 bits."""
    return pa.types.is_integer(data_type) and all(isinstance(v, int | np.integer) or v is None for v in values)


def _rounds_silently(data_type: pa.DataType) -> bool:
    """Whether pyarrow truncates Python values of this type silently: 1.5 becomes 1, a datetime becomes a date."""
    return any(pa.types.is_integer(leaf) or pa.types.is_temporal(leaf) for leaf in _leaves(data_type))


def _leaves(data_type: pa.DataType) -> Iterator[pa.DataType]:
    if not data_type.num_fields:
        yield data_type
    for i in range(data_type.num_fields):
        yield from _leaves(data_type.field(i).type)


def _cast(values: pa.Array, data_type: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    elif pa.types.is_run_end_encoded(values.type):
        values = pc.run_end_decode(values)
    _check_same_family(values.type, data_type)
    cast = values.cast(data_type, safe=True)
    _check_rounding(values, cast)
    return cast


def _check_same_family(given: pa.DataType, target: pa.DataType) -> None:
    """Refuse casts that change the meaning, which Arrow allows: numbers to texts, times to numbers."""
    if pa.types.is_null(given):
        return
    if _family(given) not in _accepted_families(target):
        raise _Unfit("the types are not compatible")
    if pa.types.is_struct(given):
        for i in range(given.num_fields):
            member = given.field(i)
            at = target.get_field_index(member.name)
            if at < 0:
                raise _Unfit(f"the column has no member {member.name!r}")
            _check_same_family(member.type, target.field(at).type)
    elif given.num_fields:
        for i in range(given.num_fields):
            _check_same_family(given.field(i).type, target.field(i).type)


def _family(t: pa.DataType) -> str:
    for name, belongs in _FAMILIES.items():
        if belongs(t):
            return name
    return str(t)


def _accepted_families(target: pa.DataType) -> tuple[str, ...]:
    family = _family(target)
    return {"float": ("float", "integer"), "integer": ("integer", "float"), "decimal": ("decimal", "integer")}.get(
        family, (family,)
    )


_FAMILIES: dict[str, Callable[[pa.DataType], bool]] = {
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "text": lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t),
    "bytes": lambda t: (
        pa.types.is_binary(t)
        or pa.types.is_large_binary(t)
        or pa.types.is_binary_view(t)
        or pa.types.is_fixed_size_binary(t)
    ),
    "list": lambda t: pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t),
    "struct": pa.types.is_struct,
    "timestamp": pa.types.is_timestamp,
    "date": pa.types.is_date,
    "time": pa.types.is_time,
    "duration": pa.types.is_duration,
}


def _check_rounding(given: pa.Array, cast: pa.Array) -> None:
    """Refuse a cast to a shorter float that loses digits. Arrow's safe cast does not check this."""
    if pa.types.is_floating(given.type) and pa.types.is_floating(cast.type):
        if given.type.bit_width > cast.type.bit_width:
            same = pc.equal(cast.cast(given.type), given)
            both_nan = pc.is_nan(given)
            if not pc.all(pc.or_(same, both_nan), min_count=0).as_py():
                raise _Unfit("a cast would lose digits")
    elif pa.types.is_struct(given.type):
        for i in range(given.type.num_fields):
            member = given.type.field(i).name
            _check_rounding(pc.struct_field(given, member), pc.struct_field(cast, member))
    elif given.type.num_fields == 1 and cast.type.num_fields == 1:
        _check_rounding(given.flatten(), cast.flatten())


def _bad_rows(convert: Callable[[int, int], object], rows: int) -> list[int]:
    """The first few rows that do not convert, found by bisection."""

    def converts(start: int, end: int) -> bool:
        try:
            convert(start, end)
        except (pa.ArrowException, _Unfit, ValueError, TypeError, OverflowError):
            return False
        return True

    def search(start: int, end: int) -> Iterator[int]:
        if start == end or converts(start, end):
            return
        if end - start == 1:
            yield start
            return
        middle = (start + end) // 2
        yield from search(start, middle)
        yield from search(middle, end)

    return list(itertools.islice(search(0, rows), _SHOWN))
