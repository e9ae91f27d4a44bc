"""Odd files, by a random source, and the values that they hold: CSV, JSON and Parquet as users deliver them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from misuse.accounts import NotAccounted, Value, plain_value, table_rows
from misuse.odd_data import ODD_NAMES, Plan, odd_table

CELLS: Sequence[Sequence[str]] = [
    ["1", "2", "3", "4", "-1", "0"],
    ["1", "2.5", "9.90", "-0.0", "1e3", "0.1", "3"],
    ["007", "7", "01234", "0", "00"],
    ["12345678901234567890", "12345678901234567891", "9223372036854775807", "1"],
    ["0.1", "0.12345678901234567890123", "1", "1e400", "5e-324"],
    ["2026-11-19", "2026-02-28", "1969-12-31", "9999-12-31"],
    ["2026-11-19T08:00:00", "2026-11-19 08:00:00.5", "2026-11-19"],
    ["2026-11-19T08:00:00Z", "2026-11-19T08:00:00+09:00"],
    ["true", "false", "True", "FALSE"],
    ["a", "b", "NA", "null", "nan", "x y", " 7", "é", 'say "hi"', "a,b", "two\nlines", "tab\there", "inf", "-"],
    ["08:30", "08:30:15", "23:59:59.000001"],
    ["1", "true", "2026-11-19", "", "a", "0x10", "1_000", "+1", "1,000", "١", "1.", ".5", "NaN", "-inf"],
]


@dataclass(frozen=True)
class OddFile:
    """A file, its rows as they are written, and whether every reader must refuse it."""

    path: Path
    rows: list[dict[str, Any]]
    is_broken: bool
    text: str


class Text(str):
    """Text of a file, whose type the dataset decides."""


def read_as(given: Any, t: Any) -> Value:
    """A value of a file in a column of this type. It fails if the type does not hold the value."""
    if given is None:
        return None
    if isinstance(given, Text):
        return _text_as(str(given), t)
    if isinstance(given, Decimal) and pa.types.is_floating(t):
        return _float_of(str(given), t)
    if pa.types.is_floating(t) and isinstance(given, int) and not isinstance(given, bool):
        return _float_of(str(given), t)
    return plain_value(given)


def _text_as(text: str, t: Any) -> Value:
    types = pa.types
    if types.is_string(t):
        return ("text", text)
    trimmed = text.strip(" \t")
    try:
        if types.is_boolean(t):
            return ("bool", {"true": True, "false": False, "1": True, "0": False}[trimmed.lower()])
        if types.is_date(t):
            return plain_value(date.fromisoformat(trimmed))
        if types.is_timestamp(t):
            moment = datetime.fromisoformat(trimmed)
            if (moment.tzinfo is None) != (t.tz is None):
                raise NotAccounted(f"{text!r} was read as {t}")
            return plain_value(moment)
        if types.is_time(t):
            return plain_value(time.fromisoformat(trimmed))
        if types.is_floating(t):
            return _float_of(trimmed, t)
        if types.is_integer(t) or types.is_decimal(t):
            digits = trimmed.lstrip("-")
            if digits.startswith("0") and digits.partition(".")[0] not in ("", "0"):
                raise NotAccounted(f"the code {text!r} was read as {t}")
            return ("number", Fraction(Decimal(trimmed)))
    except (ValueError, KeyError, InvalidOperation, OverflowError) as error:
        raise NotAccounted(f"{text!r} was read as {t}") from error
    return ("text", text)


def _float_of(text: str, t: Any) -> Value:
    number = (np.float32 if t.bit_width == 32 else np.float64)(text)
    if not np.isfinite(number):
        if text.lower().lstrip("-") not in ("nan", "inf", "infinity"):
            raise NotAccounted(f"{text!r} was read as {number}")
    elif Decimal(str(number)) != Decimal(text):
        raise NotAccounted(f"{text!r} was read as {number}")
    return plain_value(number)


def odd_names(random: Random, key: Sequence[str]) -> list[str]:
    """The columns of the files of one dataset."""
    names = [*key, *random.sample(["v", "px", "zip", "at", "x"], random.randrange(1, 4))]
    if random.random() < 0.1:
        names.append(random.choice([name for name in ODD_NAMES if "\x00" not in name]))
    return names


FORMATS = ("csv", "csv", "csv", "json", "json", "parquet")


def odd_file(
    random: Random, folder: Path, stem: str, form: str, names: Sequence[str], kinds: Sequence[int], plan: Plan
) -> OddFile:
    """A file, most of the time of this format."""
    names = list(names)
    if random.random() < 0.12:
        match random.randrange(4):
            case 0 if len(names) > 1:
                names.pop(random.randrange(len(names)))
            case 1:
                names.append(random.choice(["more", "op", "ID", "offset", "V"]))
            case 2:
                names[random.randrange(len(names))] = random.choice(["V", "Id", "renamed"])
            case _:
                random.shuffle(names)
    form = form if random.random() < 0.95 else random.choice(FORMATS)
    make = {"csv": _odd_csv, "json": _odd_json, "parquet": _odd_parquet}[form]
    return make(random, folder, stem, names, kinds, plan)


def _cells(random: Random, kind: int) -> str:
    pool = CELLS[kind] if random.random() < 0.93 else random.choice(CELLS)
    return random.choice(pool)


def _odd_csv(random: Random, folder: Path, stem: str, names: list[str], kinds: Sequence[int], _: Plan) -> OddFile:
    suffix = random.choice([".csv", ".csv", ".csv", ".tsv", ".csv.gz", ".CSV"])
    separator = "\t" if suffix == ".tsv" else ","
    newline = random.choice(["\n", "\n", "\n", "\r\n", "\r"])
    rows, lines = [], [separator.join(_quoted(name, separator, False) for name in names)]
    broken = len(set(names)) < len(names)
    for _row in range(random.choice([0, 1, 2, 3, 3, 5, 9])):
        cells: list[str | None] = []
        for at, name in enumerate(names):
            is_key = name in ("id", "shop")
            missing = len(names) > 1 and random.random() < (0.02 if is_key else 0.1)
            cells.append(None if missing else _cells(random, kinds[at % len(kinds)]))
        rows.append({name: None if cell is None else Text(cell) for name, cell in zip(names, cells, strict=True)})
        written = ["" if c is None else _quoted(c, separator, random.random() < 0.1 or c == "") for c in cells]
        if random.random() < 0.01:
            broken = True
            written = [*written, "1"] if random.random() < 0.5 or len(written) == 1 else written[:-1]
        lines.append(separator.join(written))
        if random.random() < 0.02:
            lines.append("")
    if random.random() < 0.03:
        lines, broken = [*lines, f'"{names[0]}'], True
    broken = broken or any(row.get("") is not None for row in rows)  # a column without a name may only be empty
    text = newline.join(lines) + (newline if random.random() < 0.8 else "")
    data = text.encode()
    match random.randrange(25):
        case 0:
            data = b"\xef\xbb\xbf" + data
        case 1 if rows:
            data, broken = data + b"\xe9" * max(1, len(names)), True
        case 2:
            data, rows, broken = b"", [], True
    path = folder / f"{stem}{suffix}"
    path.write_bytes(gzip.compress(data, mtime=0) if suffix.endswith(".gz") else data)
    return OddFile(path, rows, broken and bool(data), repr(data))


def _quoted(cell: str, separator: str, always: bool) -> str:
    if always or any(c in cell for c in (separator, '"', "\n", "\r")):
        return '"' + cell.replace('"', '""') + '"'
    return cell


JSON_VALUES: Sequence[Sequence[Any]] = [
    [1, 2, 3, -1],
    [1, 2.5, 0.1, 3],
    ["a", "b", "007", "", "é"],
    ["2026-11-19T08:00:00", "2026-11-20 09:30:00", "2026-11-19"],
    ["2026-11-19T08:00:00Z", "2026-11-19T08:00:00+09:00"],
    ["2026-11-19", "2026-11-20"],
    [True, False],
    [2**63 - 1, 1, 2**53 + 1],
    [2**70, 1],
    [0.5, 2**53 + 1],
    [[1], [2, 3], []],
    [{"a": 1}, {"a": 2}],
]


def _odd_json(random: Random, folder: Path, stem: str, names: list[str], kinds: Sequence[int], _: Plan) -> OddFile:
    rows: list[dict[str, Any]] = []
    lines, broken = [], len(set(names)) < len(names)
    for _number in range(random.choice([0, 1, 2, 3, 5])):
        row: dict[str, Any] = {}
        for at, name in enumerate(names):
            pool = JSON_VALUES[kinds[at % len(kinds)] % len(JSON_VALUES)]
            value = random.choice(pool if random.random() < 0.96 else random.choice(JSON_VALUES))
            row[name] = None if random.random() < 0.05 and name not in ("id", "shop") else value
        line = json.dumps({name: value for name, value in row.items() if value is not None or random.random() < 0.5})
        if random.random() < 0.01:
            repeated = f', "{names[0]}": 7, "{names[0]}": 7}}'
            line, broken = line[:-1] + random.choice([repeated, ""]), True
        rows.append({name: _of_json(value) for name, value in row.items()})
        lines.append(line)
        if random.random() < 0.03:
            lines.append("")
    text = "\n".join(lines) + ("\n" if random.random() < 0.8 else "")
    if random.random() < 0.02:
        text, broken = f"[{text}]", True
    path = folder / f"{stem}{random.choice(['.json', '.jsonl', '.ndjson'])}"
    path.write_text(text, "utf-8")
    return OddFile(path, rows, broken and bool(rows), repr(text))


def _of_json(value: Any) -> Any:
    if isinstance(value, str):
        return Text(value)
    return Decimal(repr(value)) if isinstance(value, float) else value


def _odd_parquet(
    random: Random, folder: Path, stem: str, names: list[str], kinds: Sequence[int], plan: Plan
) -> OddFile:
    path = folder / f"{stem}.parquet"
    table = odd_table(random, plan)
    try:
        pq.write_table(table, path)
        table = pq.read_table(path)
    except (pa.ArrowException, ValueError):
        table = pa.table({"id": [1]})
        pq.write_table(table, path)
    broken = random.random() < 0.05
    if broken:
        path.write_bytes(path.read_bytes()[: -random.randrange(1, 9)])
    twice = len(set(table.column_names)) < table.num_columns
    rows = [] if twice else [{name: _Known(value) for name, value in row.items()} for row in table_rows(table)]
    return OddFile(path, rows, broken or twice, f"parquet {table.schema.to_string()!r} {[*rows]}")


@dataclass(frozen=True)
class _Known:
    """A value that is in the form of the oracle already."""

    value: Value


def value_in(given: Any, t: Any) -> Value:
    """A value of any file in a column of the dataset."""
    return given.value if isinstance(given, _Known) else read_as(given, t)


def is_missing(given: Any) -> bool:
    """Whether a value of any file is missing."""
    return given is None or (isinstance(given, _Known) and given.value is None)
