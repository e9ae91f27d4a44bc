"""Values in text files: parse them exactly, and find the types in which every value keeps its value.

A column has a type only if each of its values, read in that type, is still the same value: 9.90 is the decimal 9.9, but
12345678901234567890 is not a float. Numbers with leading zeros or a plus sign are text, because codes are written so.
Spaces around a number do not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]

_DIGITS = 38
"""The most digits of a decimal."""

_SPACES = " \t"
_WORDS = ("true", "false")  # not an Arrow array: the first array imports pandas, if it is installed
_NO_NUMBERS = ("nan", "inf", "-inf", "infinity", "-infinity")
_DECIMAL = re.compile(r"-?([0-9]*)\.?([0-9]*)")
_CLOCK = r"^[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?$"
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The years 1 to 9999 in days since 1970: Python has no others."""

_PER_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6}


class DoesNotFit(ValueError):
    """Some value is not one of the type, or not the same value in it."""


def parse(text: pa.Array, target: pa.DataType) -> pa.Array:
    """Text as values of a type. Raises `DoesNotFit` unless each value keeps its value."""
    reader = _reader(target)
    if reader is None:
        raise DoesNotFit(f"text cannot be read as {target}")
    try:
        return reader(text, target)
    except pa.ArrowInvalid as error:
        raise DoesNotFit(str(error)) from error


def can_parse(target: pa.DataType) -> bool:
    """Whether `parse` knows the type. Arrow reads values of other types."""
    return _reader(target) is not None


def first_misfit(text: pa.Array, target: pa.DataType) -> int:
    """The position of the first value that does not fit; there must be one."""
    low, high = 0, len(text)  # the values before `low` fit, those before `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(text.slice(low, middle - low), target):
            low = middle
        else:
            high = middle
    return low


def _fits(text: pa.Array, target: pa.DataType) -> bool:
    try:
        parse(text, target)
    except DoesNotFit:
        return False
    return True


Reader = Callable[[Any, Any], Any]


def _reader(target: Any) -> Reader | None:
    types = pa.types
    if types.is_string(target):
        return lambda text, _: text
    if types.is_integer(target) or types.is_decimal(target):
        return _exact_numbers
    if types.is_floating(target):
        return _floats
    if types.is_boolean(target):
        return lambda text, _: pc.cast(_trimmed(text), pa.bool_())
    if types.is_date(target) or types.is_timestamp(target):
        return _times
    return _clock if types.is_time(target) else None


# Numbers


def _exact_numbers(text: Any, target: pa.DataType) -> Any:
    return pc.cast(_numbers(text), target)


def _floats(text: Any, target: Any) -> Any:
    numbers = _numbers(text)
    values = pc.cast(numbers, target)
    exact, smallest = (15, 2.3e-308) if target.bit_width == 64 else (6, 1.2e-38)
    lengths = _lengths(numbers)
    plain = values.fill_null(1.0).to_numpy(zero_copy_only=False)
    sizes = np.abs(plain)
    # Up to 15 digits a float of 64 bits keeps every number that is neither tiny nor too large.
    with np.errstate(invalid="ignore"):
        is_safe = (lengths <= exact) & (sizes > smallest) & np.isfinite(plain)
    doubtful = np.flatnonzero(~is_safe & _valid(numbers))
    if len(doubtful):
        _check_floats(numbers.take(pa.array(doubtful)), values.take(pa.array(doubtful)))
    return values


def _check_floats(text: Any, values: Any) -> None:
    written = pc.cast(values, pa.string())
    other = pc.fill_null(pc.not_equal(text, written), True)
    pairs = pa.table({"text": text.filter(other), "value": written.filter(other)})
    for pair in pairs.group_by(["text", "value"]).aggregate([]).to_pylist():
        if not _is_same_number(pair["text"], pair["value"]):
            raise DoesNotFit(f"{pair['text']} is {pair['value']} as a float")


def _is_same_number(text: str, value: str) -> bool:
    if text.lower() in _NO_NUMBERS:
        return True
    number = Decimal(value)
    return number.is_finite() and Decimal(text) == number


def _numbers(text: Any) -> Any:
    """The text without spaces around it, after a check that no value has leading zeros, a plus sign or a prefix."""
    text = _trimmed(text)
    first, second = _byte_at(text, 0), _byte_at(text, 1)
    third = _byte_at(text, 2)
    is_negative = first == ord("-")
    head, follow = np.where(is_negative, second, first), np.where(is_negative, third, second)
    goes_on = (follow != 0) & (follow != ord(".")) & (follow != ord("e")) & (follow != ord("E"))
    wrong = ((head == ord("0")) & goes_on) | (first == ord("+"))
    if wrong.any():
        raise DoesNotFit("numbers with leading zeros or a plus sign are text")
    return text


# Dates and times


def _times(text: Any, target: Any) -> Any:
    values = pc.cast(_trimmed(text), target)
    per_day, width = (1, pa.int32()) if pa.types.is_date(values.type) else (_PER_DAY[values.type.unit], pa.int64())
    ends = pc.min_max(values.view(width)).as_py()
    low, high = _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day
    if ends["min"] is not None and not low <= ends["min"] <= ends["max"] < high:
        raise DoesNotFit("only the years 1 to 9999 are dates")
    return values


def _clock(text: Any, target: pa.DataType) -> Any:
    text = _trimmed(text)
    if not pc.all(pc.match_substring_regex(text, _CLOCK), min_count=0).as_py():
        raise DoesNotFit("a time is written as 08:30 or 08:30:15.5")
    moments = pc.cast(pc.binary_join_element_wise("1970-01-01T", text, ""), pa.timestamp("us"))
    return pc.cast(pc.cast(moments, pa.time64("us")), target)


# Bytes


def _trimmed(text: Any) -> Any:
    lengths = _lengths(text)
    last = _byte_at(text, lengths - 1)
    first = _byte_at(text, 0)
    has_space = np.isin(first, [ord(c) for c in _SPACES]) | np.isin(last, [ord(c) for c in _SPACES])
    return pc.utf8_trim(text, _SPACES) if has_space.any() else text


def _bounds(text: Any) -> npt.NDArray[np.int64]:
    raw = np.frombuffer(text.buffers()[1], "<i4", len(text) + 1, text.offset * 4) if len(text) else np.zeros(1, "<i4")
    return raw.astype(np.int64)


def _lengths(text: Any) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = np.diff(_bounds(text))
    return np.where(_valid(text), lengths, 0)


def _valid(text: Any) -> Mask:
    result: Mask = text.is_valid().to_numpy(zero_copy_only=False)
    return result


def _byte_at(text: Any, at: Any) -> npt.NDArray[np.uint8]:
    """The byte at this position of each value; 0 where there is none."""
    lengths, data = _lengths(text), text.buffers()[2] if len(text) else None
    result = np.zeros(len(text), np.uint8)
    if data is not None:
        inside = (np.asarray(at) < lengths) & (np.asarray(at) >= 0)
        result[inside] = np.frombuffer(data, np.uint8)[(_bounds(text)[:-1] + at)[inside]]
    return result


# Types of columns


@dataclass
class ColumnGuess:
    """The first of the possible types that fits all values of a column so far.

    `add` gets the column block by block. When a block does not fit, the next types are tried; the blocks before it
    must then be added again (`is_checked` is False).
    """

    is_key: bool
    tried: int = 0
    is_checked: bool = True
    blocks: int = 0
    rows: int = 0
    values: int = 0
    scale: int = 0
    digits: int = 0

    @property
    def type(self) -> pa.DataType:
        """The type; null if there are no values."""
        return pa.null() if self.values == 0 else self._type

    @property
    def _type(self) -> pa.DataType:
        return pa.decimal128(_DIGITS, self.scale) if _TYPES[self.tried] is None else _TYPES[self.tried]

    def add(self, text: pa.Array) -> None:
        """Check one block of the column."""
        count = len(text) - text.null_count
        self.rows += len(text)
        self.values += count
        self.blocks += 1
        while count and not self._takes(text):
            self.tried += 1
            self.is_checked = self.is_checked and self.blocks == 1
            self.scale = self.digits = 0

    def begin_again(self) -> None:
        """All blocks will be added once more."""
        self.is_checked, self.blocks, self.rows, self.values = True, 0, 0, 0

    def _takes(self, text: pa.Array) -> bool:
        target = _TYPES[self.tried]
        if target is None:
            return self._takes_decimals(text)
        if pa.types.is_decimal(target) and not _all_match(text, r"^\s*-?[0-9]+\s*$"):
            return False
        if pa.types.is_boolean(target) and not pc.all(pc.is_in(_lower(text), pa.array(_WORDS))).as_py():
            return False
        if pa.types.is_floating(target) and (
            self.is_key or pc.all(pc.is_in(_lower(text), pa.array(_NO_NUMBERS))).as_py()
        ):
            return False
        return _fits(text.drop_null(), target)

    def _takes_decimals(self, text: pa.Array) -> bool:
        try:
            numbers = _numbers(text.drop_null())
        except DoesNotFit:
            return False
        for number in pc.unique(numbers).to_pylist():
            found = _DECIMAL.fullmatch(number)
            if found is None or not (found[1] or found[2]):
                return False
            self.digits = max(self.digits, len(found[1]))
            self.scale = max(self.scale, len(found[2]))
        return self.digits + self.scale <= _DIGITS


_TYPES: Sequence[Any] = (
    pa.int64(),
    pa.decimal128(_DIGITS, 0),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.time64("us"),
    pa.float64(),
    None,  # a decimal whose scale depends on the values
    pa.string(),
)
"""The types that are tried, in this order."""


def guess_types(names: Iterable[str], key: Sequence[str], read: Callable[[], Iterable[pa.RecordBatch]]) -> pa.Schema:
    """The types of columns of text; no columns if there are no rows. `read` returns all text, again at each call."""
    guesses = {name: ColumnGuess(name in key) for name in names}
    waiting = set(guesses)
    while waiting:
        for name in waiting:
            guesses[name].begin_again()
        for batch in read():
            for name in waiting.intersection(batch.schema.names):
                guesses[name].add(batch.column(name))
        waiting = {name for name in waiting if not guesses[name].is_checked}
    return pa.schema([(name, guess.type) for name, guess in guesses.items()] if _has_rows(guesses.values()) else [])


def _has_rows(guesses: Iterable[ColumnGuess]) -> bool:
    return any(guess.rows for guess in guesses)


def _lower(text: Any) -> Any:
    return pc.utf8_lower(_trimmed(text.drop_null()))


def _all_match(text: Any, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(text.drop_null(), pattern), min_count=0).as_py())
