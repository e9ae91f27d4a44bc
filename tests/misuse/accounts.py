"""The oracle of the misuse tests: what a dataset must hold after each write, and what the commit must have counted.

Values are compared as values, in a form of their own: exact fractions, instants in nanoseconds, text. So a cast that
changes a value is found, wherever it happens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from floodmark import Commit

Value = Any
Row = dict[str, Value]

_NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_NAT = -(1 << 63)
_EPOCH = datetime(1970, 1, 1)


class NotAccounted(AssertionError):
    """A write took rows that its commit does not account for, or that the dataset does not hold."""


# Values


def plain_value(given: Any) -> Value:
    """A Python value in the form of the oracle. Numbers are equal if they are the same number, as are two NaNs."""
    if given is None or given is pd.NaT or given is pd.NA:
        return None
    if isinstance(given, bool | np.bool_):
        return ("bool", bool(given))
    if isinstance(given, int | float | Decimal | np.integer | np.floating):
        return _number(given)
    if isinstance(given, str):
        return ("text", str(given))
    if isinstance(given, bytes):
        return ("bytes", given)
    if isinstance(given, pd.Timestamp | datetime):
        return _moment(given)
    if isinstance(given, date):
        return ("date", Fraction((given - _EPOCH.date()).days))
    if isinstance(given, time):
        whole = given.hour * 3600 + given.minute * 60 + given.second
        return ("time", (whole * 10**6 + given.microsecond) * 1000)
    if isinstance(given, timedelta):
        return ("duration", (given // timedelta(microseconds=1)) * 1000)
    if isinstance(given, Mapping):
        return ("struct", tuple(sorted((name, plain_value(value)) for name, value in given.items())))
    if isinstance(given, list | tuple | set | np.ndarray):
        return ("list", tuple(plain_value(item) for item in given))
    return ("object", repr(given))


def _number(given: Any) -> Value:
    number = given.item() if isinstance(given, np.generic) else given
    if isinstance(number, Decimal) and not number.is_finite():
        return ("nan",) if number.is_nan() else ("infinite", number > 0)
    if isinstance(number, float) and not math.isfinite(number):
        return ("nan",) if math.isnan(number) else ("infinite", number > 0)
    return ("number", Fraction(number))


def _moment(given: datetime) -> Value:
    nanos = given.nanosecond if isinstance(given, pd.Timestamp) else 0
    if isinstance(given, pd.Timestamp):
        given = given.to_pydatetime(warn=False)
    kind = "clock" if given.tzinfo is None else "instant"
    clock = given if given.tzinfo is None else given.astimezone(UTC).replace(tzinfo=None)
    return (kind, (clock - _EPOCH) // timedelta(microseconds=1) * 1000 + nanos)


def column_values(column: pa.ChunkedArray) -> list[Value]:
    """The values of an Arrow column. Times are read as numbers: Python does not have all of them."""
    t: Any = column.type
    if pa.types.is_dictionary(t):
        return column_values(column.cast(t.value_type))
    if pa.types.is_timestamp(t):
        kind = "clock" if t.tz is None else "instant"
        return [None if n is None else (kind, n * _NANOS[t.unit]) for n in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_date(t):
        per_day = 1 if pa.types.is_date32(t) else 86_400_000
        days = column.cast(pa.int32() if pa.types.is_date32(t) else pa.int64()).to_pylist()
        return [None if n is None else ("date", Fraction(n, per_day)) for n in days]
    if pa.types.is_time(t):
        numbers = column.cast(pa.int32() if pa.types.is_time32(t) else pa.int64()).to_pylist()
        return [None if n is None else ("time", n * _NANOS[t.unit]) for n in numbers]
    try:
        return [plain_value(value) for value in column.to_pylist()]
    except (UnicodeDecodeError, ValueError, OverflowError):
        return [("unreadable", at) for at in range(len(column))]


def table_rows(table: pa.Table) -> list[Row]:
    """The rows of an Arrow table."""
    columns = {name: column_values(table.column(at)) for at, name in enumerate(table.column_names)}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def pandas_rows(frame: pd.DataFrame) -> list[Row]:
    """The rows of a pandas frame, in which NaN is a missing value and a named index is data."""
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    columns = {str(name): _pandas_column(column) for name, column in frame.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _pandas_column(column: Any) -> list[Value]:
    if column.dtype.kind != "M":
        return [_pandas_value(value) for value in column.tolist()]
    # As numbers: pandas crashes at some times far away.
    kind = "clock" if isinstance(column.dtype, np.dtype) else "instant"
    return [None if n == _NAT else (kind, n * _NANOS[column.dt.unit]) for n in column.array.asi8.tolist()]


def _pandas_value(given: Any) -> Value:
    value = plain_value(given)
    return None if value == ("nan",) else value


def count_rows(rows: Sequence[Row]) -> Counter[Any]:
    """The rows without their order."""
    return Counter(tuple(sorted(row.items())) for row in rows)


# Accounts


@dataclass(frozen=True)
class Counts:
    """The counts of a commit, by the names they have there."""

    new: int = 0
    changed: int = 0
    retracted: int = 0
    unchanged: int = 0
    duplicates: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, commit: Commit) -> Counts:
        return cls(**{name: getattr(commit, name) for name in vars(cls())})


@dataclass
class Account:
    """The rows that a dataset must hold, kept by the plainest means."""

    merge: str
    key: tuple[str, ...] = ()
    compare: tuple[str, ...] | None = None
    op: str = "op"
    records: list[Row] = field(default_factory=list)
    current: dict[tuple[Value, ...], Row] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """The rows that a reader must get."""
        return list(self.current.values()) if self.key else self.records

    def key_of(self, row: Row) -> tuple[Value, ...]:
        return tuple(row[name] for name in self.key)

    def write(self, rows: Sequence[Row]) -> Counts:
        """Take the rows of a batch that was accepted."""
        if not self.key:
            self.records += rows
            return Counts(new=len(rows))
        if self.merge == "changelog":
            return self._changelog(rows)
        last = {self.key_of(row): row for row in rows}
        if self.merge in ("ledger", "snapshot") and len(last) < len(rows):
            raise NotAccounted(f"a {self.merge} took several rows with one key")
        counts = self._merged(last, len(rows) - len(last))
        if self.merge != "snapshot":
            return counts
        gone = [key for key in self.current if key not in last]
        for key in gone:
            del self.current[key]
        return Counts(counts.new, counts.changed, len(gone), counts.unchanged)

    def _merged(self, last: Mapping[tuple[Value, ...], Row], duplicates: int) -> Counts:
        new = changed = 0
        for key, row in last.items():
            old = self.current.get(key)
            if old is None:
                new += 1
            elif self.merge == "ledger" or not self._differs(old, row):
                continue
            else:
                changed += 1
            self.current[key] = row
        return Counts(new, changed, 0, len(last) - new - changed, duplicates)

    def _differs(self, old: Row, row: Row) -> bool:
        return any(old.get(name) != row.get(name) for name in (self.compare or row))

    def _changelog(self, rows: Sequence[Row]) -> Counts:
        seen = Counter[int]()
        for given in rows:
            row = dict(given)
            number = int(row.pop(self.op)[1])
            key, seen[number] = self.key_of(row), seen[number] + 1
            old = self.current.pop(key, None) if number in (1, 2) else None
            if number in (1, 2) and (old is None or any(old.get(name) != row.get(name) for name in {*old, *row})):
                raise NotAccounted(f"a changelog took op {number} of a row that is not there: {row}")
            if number in (0, 3):
                if key in self.current:
                    raise NotAccounted(f"a changelog took op {number} of a key that has a row: {row}")
                self.current[key] = row
        return Counts(new=seen[0], changed=seen[3], retracted=seen[1])

    def delete(self, keys: Sequence[Row]) -> Counts:
        """Take a deletion by keys: all columns of the key, or some of them."""
        given = {tuple(sorted(key.items())) for key in keys}
        names = list(keys[0]) if keys else list(self.key)
        gone = [key for key, row in self.current.items() if tuple(sorted((n, row[n]) for n in names)) in given]
        for key in gone:
            del self.current[key]
        whole = set(names) == set(self.key)
        return Counts(retracted=len(gone), unknown=len(given) - len(gone) if whole else 0)

    def store_chunk(self, rows: Sequence[Row], processed: Sequence[Row] | None) -> Counts:
        """Take a chunk, and the retraction of rows that were processed and are not in it."""
        last = {self.key_of(row): row for row in rows}
        gone: list[tuple[Value, ...]] = []
        if processed:
            names = list(processed[0])
            given = {tuple(key[name] for name in names) for key in processed}
            gone = [k for k, row in self.current.items() if tuple(row[n] for n in names) in given and k not in last]
        for key in gone:
            del self.current[key]
        counts = self._merged(last, len(rows) - len(last))
        return Counts(counts.new, counts.changed, len(gone), counts.unchanged, counts.duplicates)


def check_commit(commit: Commit, expected: Counts) -> None:
    """The commit counts what the account counts, and its records are as many as its counts say."""
    got = Counts.of(commit)
    if got != expected:
        raise NotAccounted(f"the commit counts {got}, and the account {expected}")
    records = got.new + 2 * got.changed + got.retracted
    if commit.rows != records:
        raise NotAccounted(f"the commit has {commit.rows} records, and its counts say {records}")


def check_rows(table: pa.Table, account: Account, where: str) -> None:
    """A read gives the rows of the account."""
    names = table.column_names
    wanted = count_rows([{name: row.get(name) for name in names} for row in account.rows()])
    got = count_rows(table_rows(table))
    if got != wanted:
        raise NotAccounted(
            f"{where}: lost {list((wanted - got).elements())[:3]}, got {list((got - wanted).elements())[:3]}"
        )
