"""Odd data, by a random source: columns, values, frames and keys as users get them wrong, and usual ones among them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from misuse.accounts import Row, pandas_rows, plain_value, table_rows

WHOLE = ["id", "n", "shop"]
PLAIN = ["v", "px", "name", "at", "day", "flag", "w", "x"]
ODD_NAMES = [
    *("", " ", "op", "Op", "offset", "OFFSET", "system_time", "event_time", "ID", "Id", "V", "a b", "a.b", "é", "`q`"),
    *('"q"', "x" * 300, "_offset", "__index_level_0__", "from", "select", "a\nb", "\x00", "1", "key", "_op", "dt=1"),
]
TEXTS = [
    "a",
    "b",
    "",
    " ",
    "7",
    "007",
    "7.0",
    "NA",
    "null",
    "nan",
    "True",
    "2026-11-19",
    "é",
    "\x00",
    "a\nb",
    "x" * 500,
]
WORLD_EVENT = int(datetime(2026, 11, 19, tzinfo=UTC).timestamp())
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
I64 = (1 << 63) - 1

INTEGERS = [pa.int64(), pa.int64(), pa.int32(), pa.int8(), pa.int16(), pa.uint8(), pa.uint32(), pa.uint64()]
NUMBERS = [*INTEGERS, pa.float64(), pa.float64(), pa.float32(), pa.decimal128(38, 0), pa.decimal128(9, 2)]
STRINGS = [pa.string(), pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.string_view()]
MOMENTS = [pa.timestamp(unit, zone) for unit in UNITS for zone in ("UTC", "Asia/Tokyo")]
CLOCKS = [pa.timestamp(unit) for unit in UNITS]
DAYS = [pa.date32(), pa.date64()]
ODD_TYPES = [
    *(pa.bool_(), pa.binary(), pa.large_binary(), pa.binary(2), pa.null(), pa.float16(), pa.duration("us")),
    *(pa.time32("s"), pa.time64("us"), pa.time64("ns"), pa.list_(pa.int64()), pa.list_(pa.float32(), 2)),
    *(pa.struct([("a", pa.int64()), ("b", pa.string())]), pa.map_(pa.string(), pa.int64()), pa.decimal256(50, 3)),
    *(pa.list_(pa.struct([("a", pa.int64())])), pa.large_list(pa.string()), pa.struct([])),
]
FAMILIES: Sequence[Sequence[pa.DataType]] = [INTEGERS, NUMBERS, STRINGS, MOMENTS, CLOCKS, DAYS, [pa.bool_()], ODD_TYPES]
ALL_TYPES = [one for family in FAMILIES for one in family]


@dataclass(frozen=True)
class Given:
    """Data as a user gives it, its rows in the form of the oracle (None: it must be refused), and how to repeat it."""

    data: Any
    rows: list[Row] | None
    text: str


# Values


def odd_integer(random: Random, t: Any) -> int:
    signed = pa.types.is_signed_integer(t)
    high = (1 << (t.bit_width - (1 if signed else 0))) - 1
    if random.random() < 0.9:
        return random.randrange(6)
    odd = [high, high - 1, 1 << 24, (1 << 53) + 1, 127, *([-1, -high - 1] if signed else [])]
    return random.choice([number for number in odd if number <= high])


def odd_float(random: Random) -> float:
    if random.random() < 0.6:
        return float(random.randrange(5))
    return random.choice([0.5, 0.1, -0.0, float("nan"), float("inf"), -float("inf"), 1e308, 5e-324, 2.0**53, 1e20, 3.3])


def odd_tick(random: Random, per_second: int) -> int:
    """A time, in ticks since 1970."""
    if random.random() < 0.95:
        return (WORLD_EVENT + random.randrange(5) * 3600) * per_second + random.choice([0, 0, 1])
    return random.choice([0, -1, I64, -I64 - 1, -62_135_596_800 * per_second, 253_402_300_799 * per_second + 1, 1])


def odd_array(random: Random, t: Any, rows: int, nulls: float) -> pa.Array:
    """Values of an Arrow type."""
    missing = [random.random() < nulls for _ in range(rows)]
    return _array(random, t, missing)


def _array(random: Random, t: Any, missing: list[bool]) -> pa.Array:
    types, rows = pa.types, len(missing)
    mask = np.array(missing, dtype=bool)
    if types.is_null(t):
        return pa.nulls(rows)
    if types.is_dictionary(t):
        return _array(random, t.value_type, missing).dictionary_encode().cast(t)
    if types.is_timestamp(t) or types.is_time(t) or types.is_date(t) or types.is_duration(t):
        return _times(random, t, mask)
    if types.is_struct(t):
        members = [_array(random, f.type, [random.random() < 0.2 for _ in missing]) for f in t]
        return (
            pa.StructArray.from_arrays(members, fields=list(t), mask=pa.array(mask))
            if members
            else pa.array([{}] * rows, t)
        )
    value: Callable[[], Any] = {
        types.is_boolean(t): lambda: random.random() < 0.5,
        types.is_integer(t): lambda: odd_integer(random, t),
        types.is_decimal(t): lambda: Decimal(random.randrange(500)).scaleb(-t.scale),
        types.is_floating(t): lambda: odd_float(random),
        _is_text(t): lambda: random.choice(TEXTS),
        _is_bytes(t): lambda: random.choice([b"", b"ab", b"\x00\xff"]),
        types.is_fixed_size_binary(t): lambda: random.choice([b"ab", b"\x00\xff"]),
    }.get(True, lambda: None)
    if types.is_list(t) or types.is_large_list(t) or types.is_fixed_size_list(t) or types.is_map(t):
        return _nested(random, t, missing)
    values = [None if gone else value() for gone in missing]
    if types.is_floating(t) and t.bit_width < 64:
        with np.errstate(over="ignore"):
            return pa.array(np.array([0.0 if v is None else v for v in values]).astype(t.to_pandas_dtype()), mask=mask)
    return pa.array(values, t)


def _times(random: Random, t: Any, mask: np.ndarray[Any, Any]) -> pa.Array:
    if pa.types.is_date32(t):
        days = [odd_tick(random, 1) // 86_400 for _ in mask]
        clipped = np.clip(np.array(days, dtype=np.float64), -(1 << 31), (1 << 31) - 1).astype(np.int32)
        return pa.array(clipped, mask=mask).view(t)
    if pa.types.is_date64(t):
        days = [odd_tick(random, 1) // 86_400 % 4_000_000 * 86_400_000 + random.choice([0, 0, 0, 1]) for _ in mask]
        return pa.array(np.array(days, dtype=np.int64), mask=mask).view(t)
    per_second = UNITS[t.unit]
    if pa.types.is_time(t):
        ticks = [random.choice([0, 1, 3600, 86_399]) * per_second for _ in mask]
        return pa.array(np.array(ticks, dtype=np.int32 if pa.types.is_time32(t) else np.int64), mask=mask).view(t)
    ticks = [min(max(odd_tick(random, per_second), -I64 - 1), I64) for _ in mask]
    return (
        pa.array(np.array(ticks, dtype=np.int64), mask=mask).view(pa.timestamp(t.unit) if _is_moment(t) else t).cast(t)
    )


def _is_moment(t: Any) -> bool:
    return pa.types.is_timestamp(t)


def _nested(random: Random, t: Any, missing: list[bool]) -> pa.Array:
    if pa.types.is_map(t):
        return pa.array([None if gone else [("a", 1)] for gone in missing], t)
    size = t.list_size if pa.types.is_fixed_size_list(t) else None
    parts = [
        None if gone else _array(random, t.value_type, [False] * (size or random.randrange(3))) for gone in missing
    ]
    return pa.array([None if part is None else part.to_pylist() for part in parts], t)


def _is_text(t: Any) -> bool:
    return pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t)


def _is_bytes(t: Any) -> bool:
    return pa.types.is_binary(t) or pa.types.is_large_binary(t)


# Columns


@dataclass(frozen=True)
class Plan:
    """The columns of a dataset's usual batches: names and types."""

    names: tuple[str, ...]
    families: tuple[int, ...]
    types: tuple[pa.DataType, ...]


def odd_plan(random: Random, key: Sequence[str]) -> Plan:
    """Columns for a dataset, with those of its key first."""
    names = [*key, *random.sample(PLAIN, random.randrange(1, 4))]
    if random.random() < 0.08:
        names.append(random.choice(ODD_NAMES))
    families = [
        random.choice([0, 0, 1, 2, 2, 3, 4, 5, 6]) if random.random() < 0.9 else random.randrange(8) for _ in names
    ]
    return Plan(tuple(names), tuple(families), tuple(random.choice(FAMILIES[at]) for at in families))


def odd_table(random: Random, plan: Plan, nulls: float = 0.08) -> pa.Table:
    """A batch for these columns: most as planned, some with other types or other columns."""
    rows = random.choice([0, 1, 1, 2, 3, 3, 5, 8, 12])
    calm = random.random() < 0.7
    columns: list[tuple[str, pa.Array]] = []
    for name, family, t in zip(plan.names, plan.families, plan.types, strict=True):
        chosen = t
        if not calm and random.random() < 0.3:
            chosen = random.choice(FAMILIES[family] if random.random() < 0.7 else ALL_TYPES)
        missing = nulls if name not in WHOLE else nulls / 4
        columns.append((name, odd_array(random, chosen, rows, 0 if calm and name in WHOLE else missing)))
    if not calm:
        _disturb(random, columns, rows)
    if not columns:
        return pa.table({})
    return pa.Table.from_arrays([values for _, values in columns], names=[name for name, _ in columns])


def _disturb(random: Random, columns: list[tuple[str, pa.Array]], rows: int) -> None:
    """Change the columns as users do: leave one out, add one, repeat one, rename one, in another order."""
    at = random.randrange(len(columns))
    match random.randrange(12):
        case 0:
            del columns[at]
        case 1:
            columns.append((random.choice(ODD_NAMES), odd_array(random, random.choice(ALL_TYPES), rows, 0.1)))
        case 2:
            columns.append(columns[at])
        case 3:
            columns[at] = (random.choice([columns[at][0].upper(), *ODD_NAMES]), columns[at][1])
        case 4:
            columns.append(("op", pa.array([random.randrange(-1, 5) for _ in range(rows)], pa.int64())))
        case 5 | 6:
            random.shuffle(columns)


# Frames


def as_given(random: Random, table: pa.Table) -> Given:
    """The rows of an Arrow table in one of the forms that a user may have them in."""
    text = f"{table.schema.to_string(show_schema_metadata=False)!r} {_shown(table)}"
    distinct = len(set(table.column_names)) == table.num_columns
    rows = table_rows(table) if distinct else None
    match random.choice(["arrow", "arrow", "batch", "reader", "pandas", "pandas", "polars", "mixed"]):
        case "batch" if table.num_columns:
            return Given(table.combine_chunks().to_batches()[0] if table.num_rows else table, rows, f"batch {text}")
        case "reader":
            sizes = random.choice([1, 2, 100])
            return Given(
                pa.RecordBatchReader.from_batches(table.schema, table.to_batches(sizes)), rows, f"reader {text}"
            )
        case "pandas":
            return _as_pandas(table, text) or Given(table, rows, f"arrow {text}")
        case "polars" if distinct and _fits_polars(table.schema):
            return _as_polars(table, text) or Given(table, rows, f"arrow {text}")
        case "mixed":
            return mixed_frame(random, table)
    return Given(table, rows, f"arrow {text}")


def _shown(table: pa.Table) -> str:
    try:
        return str([table.column(at).to_pylist() for at in range(table.num_columns)])
    except (ValueError, OverflowError, UnicodeDecodeError):
        return str([table.column(at).to_string() for at in range(table.num_columns)])


def _as_pandas(table: pa.Table, text: str) -> Given | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frame = table.to_pandas()
            return Given(frame, pandas_rows(frame) if frame.columns.is_unique else None, f"pandas of {text}")
    except (pa.ArrowException, ValueError, OverflowError, TypeError, UnicodeDecodeError):
        return None  # pandas does not have such values


def _fits_polars(schema: pa.Schema) -> bool:
    """Whether Polars takes the columns; it panics at others."""
    return not any(pa.types.is_decimal256(f.type) or "\x00" in f.name for f in schema)


def _as_polars(table: pa.Table, text: str) -> Given | None:
    try:
        frame = pl.from_arrow(table)
    except Exception:
        return None  # Polars does not have such values
    assert isinstance(frame, pl.DataFrame)
    return Given(frame, table_rows(frame.to_arrow()), f"polars of {text}")


ODD_OBJECTS: Sequence[Any] = [
    *(
        1,
        2,
        2,
        3,
        True,
        1.0,
        2.5,
        float("nan"),
        None,
        pd.NaT,
        pd.NA,
        "1",
        "a",
        "",
        b"a",
        Decimal("1.0"),
        Decimal("2.25"),
    ),
    *(2**63, 2**70, -1, date(2026, 11, 19), datetime(2026, 11, 19, 8), datetime(2026, 11, 19, 8, tzinfo=UTC)),
    *(datetime(2026, 11, 19, 8, tzinfo=timezone(timedelta(hours=9))), pd.Timestamp("2026-11-19 08:00:00.000000001")),
    *(
        datetime(1, 1, 1),
        datetime(9999, 12, 31, tzinfo=UTC),
        time(8, 30),
        timedelta(seconds=1),
        [1],
        {"a": 1},
        "\ud800",
    ),
    *(np.int8(3), np.float32(0.5), np.datetime64("2026-11-19"), np.bool_(True), (), object(), {1}, 1j),
]


def mixed_frame(random: Random, table: pa.Table) -> Given:
    """A pandas frame with Python objects in its columns, of one type or of several."""
    rows = table.num_rows
    columns: dict[Any, list[Any]] = {}
    for name in table.column_names:
        some = random.sample(ODD_OBJECTS, random.choice([1, 1, 2, 3]))
        columns[name] = [random.choice(some) for _ in range(rows)]
    if columns and random.random() < 0.1:
        columns[random.choice([1, None, ("a", "b"), 2.5])] = [1] * rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dtype = object if random.random() < 0.5 else None
        try:
            frame = pd.DataFrame({name: pd.Series(values, dtype=dtype) for name, values in columns.items()})
        except (ValueError, TypeError, OverflowError):
            frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
        if random.random() < 0.1 and rows:
            frame.index = pd.Index(range(rows), name=random.choice(["id", "k", "op"]))
        try:
            found = pandas_rows(frame) if frame.columns.is_unique else None
        except ValueError:  # the index has the name of a column
            found = None
    return Given(
        frame,
        found,
        f"pandas {[(str(name), frame[name].dtype, columns[name]) for name in columns]}, {frame.index.name}",
    )


NONSENSE: Sequence[Callable[[], Any]] = [
    *(lambda: None, lambda: 1, lambda: "no/such/file.csv", lambda: "", lambda: b"id\n1\n", lambda: {}, lambda: []),
    *(lambda: {"id": [1]}, lambda: [{"id": 1}], lambda: [[1]], lambda: (x for x in [1]), lambda: pd.DataFrame),
    *(
        lambda: pd.Series([1]),
        lambda: np.array([1]),
        lambda: pa.array([1]),
        lambda: pl.Series([1]),
        lambda: "*.nothing",
    ),
    *(
        lambda: pa.table({}),
        lambda: pd.DataFrame(),
        lambda: pl.DataFrame(),
        lambda: "s3://bucket/a.csv",
        lambda: ["a", 1],
    ),
    *(lambda: "a\x00b", lambda: "x" * 5000, lambda: pa.schema([]), lambda: object(), lambda: 3.5, lambda: {1, 2}),
]


def odd_keys(random: Random, rows: Sequence[Row], table: pa.Table | None, key: Sequence[str]) -> Given:
    """Keys for `delete` and `store_chunk`: present ones, absent ones, parts of keys, and nonsense."""
    if table is None or random.random() < 0.15:
        data = random.choice(
            [None, 1, "a", [1, 2], [None], [float("nan")], [-0.0], [True], [b"a"], {"no": 1}, [{}], [[1]]]
        )
        return Given(data, _rows_of_values(data, key), f"{data!r}")
    names = [*key] if random.random() < 0.75 else [*key][: random.randrange(1, len(key) + 1)]
    if not set(names) <= set(table.column_names) or len(set(table.column_names)) < table.num_columns:
        return Given(table, None, f"arrow {_shown(table)}")
    chosen = table.select(names)
    if random.random() < 0.5:
        return as_given(random, chosen)
    return Given(chosen, table_rows(chosen), f"arrow {_shown(chosen)}")


def _rows_of_values(data: Any, key: Sequence[str]) -> list[Row] | None:
    """Plain values as keys of one column; None for what no dataset takes as keys."""
    if len(key) != 1 or data is None or isinstance(data, dict) or data in ([{}], [[1]], [None]):
        return None
    values = data if isinstance(data, list) else [data]
    return [{key[0]: plain_value(value)} for value in values]
