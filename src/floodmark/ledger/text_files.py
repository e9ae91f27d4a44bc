"""CSV and JSON files: their columns, with types in which every value keeps its value, and their rows."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from floodmark.errors import FloodmarkError, UnreadableFile
from floodmark.ledger.casting import check_columns, check_unique_names
from floodmark.ledger.data_input import FileData, Format, HiveValues
from floodmark.ledger.parts import unreadable_file
from floodmark.ledger.schema import Layout
from floodmark.ledger.text_values import DoesNotFit, can_parse, first_misfit, guess_types, parse

_BLOCK = 16 << 20


def guess_columns(data: FileData, key: Sequence[str] = ()) -> pa.Schema:
    """The columns of text files that are written together, with types that fit all of their values."""
    if data.format == "json":
        guesses = (_guess_json(path, key) for path in data.paths)
        return next((schema for schema in guesses if len(schema)), pa.schema([]))
    names = next((names for path in data.paths if (names := _csv_names(path))), [])
    guessed = guess_types(names, key, partial(_csv_blocks, data.paths))
    if data.peers is None or not len(guessed):
        return guessed
    return guess_types(names, key, lambda: chain(_csv_blocks(data.paths), _readable_blocks(data.peers)))


def _readable_blocks(peers: FileData | None) -> Iterator[pa.RecordBatch]:
    for path in () if peers is None else peers.paths:
        with suppress(FloodmarkError):  # the write of this file will raise it
            yield from _csv_blocks([path])


def read_text(path: Path, format: Format, layout: Layout) -> Iterator[pa.RecordBatch]:  # noqa: A002 -- the user's word
    """The rows of a text file with the types of the dataset. A value that does not fit is refused with its line."""
    if format == "csv":
        yield from _read(path, "csv", lambda stream: _csv(stream, path, layout))
        return
    try:
        yield from _read(path, "json", lambda stream: _json_rows(stream, path, layout.data))
    except UnreadableFile as error:
        if "unexpected field" in error.message:
            check_columns(_guess_json(path, ()), layout, str(path))  # raises an error that names the field
        raise
    _check_json_numbers(path, layout.data)


def _read(path: Path, format: Format, rows: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:  # noqa: A002
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            yield from rows(stream)
    except (OSError, ValueError, pa.ArrowKeyError, pa.ArrowNotImplementedError) as error:
        if format == "json" and "changed from object to array" in str(error):
            error = ValueError("it contains a JSON array; write one object per line")
        if _MIXED.search(str(error)):
            hint = "write all values of this column alike, for example all in quotes (nothing was written)"
            raise UnreadableFile(f"{path} cannot be read as JSON: {error}", hint=hint, path=str(path)) from error
        raise unreadable_file(str(path), error, format.upper()) from error


_MIXED = re.compile(r"Column\(.*\) changed from \w+ to \w+")
"""Arrow's message about a column with numbers and text. No schema helps: Arrow does not read one as the other."""


def _refused(where: str, path: Path, column: str, value: object, data_type: pa.DataType) -> UnreadableFile:
    return UnreadableFile(
        f"{where}: the value {value!r} of column {column!r} does not fit {data_type}",
        hint="correct the value (nothing of this file was written), or create a dataset in which the column is text: "
        f"schema={{{column!r}: 'string', …}}",
        path=str(path),
    )


# Values in folder names


def guess_hive_types(data: FileData, key: Sequence[str]) -> pa.Schema:
    """The columns that the folder names of the first file hold, with types that fit the values of all files."""
    names = [name for name, _ in data.hive[0]]
    hive = [*data.hive, *(() if data.peers is None else data.peers.hive)]
    found = {name: [dict(values).get(name) for values in hive] for name in names}
    rows = [pa.RecordBatch.from_pydict({name: pa.array(values, pa.string()) for name, values in found.items()})]
    guessed = guess_types(names, key, lambda: rows)
    return pa.schema([(f.name, pa.string() if pa.types.is_null(f.type) else f.type) for f in guessed])


def hive_row(path: Path, values: HiveValues, layout: Layout) -> pa.RecordBatch:
    """The values in the folder names of a file as one row, with the types of the dataset."""
    columns: dict[str, pa.Array] = {}
    for name, value in values:
        text = pa.array([value], pa.string())
        target = layout.data.field(name).type if name in layout.data.names else pa.string()
        if value is None:
            columns[name] = pa.nulls(1, target)
            continue
        try:
            columns[name] = parse(text, target)
        except DoesNotFit:
            raise _refused(str(path), path, name, value, target) from None
    return pa.RecordBatch.from_pydict(columns)


# CSV


def _csv_names(path: Path) -> list[str]:
    """The names of a CSV file's columns."""
    schema = next(_read(path, "csv", lambda stream: iter([_open_csv(stream, path, {}).schema])))
    for field in schema:
        if pa.types.is_binary(field.type):
            raise unreadable_file(str(path), ValueError(f"column {field.name!r} is not UTF-8 text"), "CSV")
    return list(schema.names)


def _csv_blocks(paths: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    """The blocks of files with all columns as text."""
    for path in paths:
        columns = dict.fromkeys(_csv_names(path), pa.string())
        yield from _read(path, "csv", partial(_csv_rows, path=path, columns=columns))


def _csv(stream: Any, path: Path, layout: Layout) -> Iterator[pa.RecordBatch]:
    """The rows of a CSV file. Values of the usual types are read as text first, because Arrow would change some."""
    fields = {f.name: f.type for f in layout.data}
    columns = {name: pa.string() if can_parse(data_type) else data_type for name, data_type in fields.items()}
    rows = 0
    for batch in _csv_rows(stream, path, columns):
        arrays = []
        for name in batch.schema.names:
            values, target = batch.column(name), fields.get(name)
            if target is not None and can_parse(target):
                values = _parsed(values, target, name, path, rows, _line_of)
            arrays.append(values)
        rows += batch.num_rows
        yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


LineFinder = Callable[[Path, int], int | None]


def _parsed(text: pa.Array, target: pa.DataType, column: str, path: Path, rows: int, find: LineFinder) -> pa.Array:
    try:
        return parse(text, target)
    except DoesNotFit:
        at = first_misfit(text, target)
        line = find(path, rows + at)
        place = f"row {rows + at + 1}" if line is None else f"line {line}"
        raise _refused(f"{path}, {place}", path, column, text[at].as_py(), target) from None


_END = "\n" + "\r\n\n" * 8
"""Empty lines, which a CSV file does not end with. If a quote is not closed, they are the end of the last value."""


class _WithEnd:
    """A stream followed by the end mark. Arrow also needs a line end: without one it reads a last null as text."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._left, self.closed = stream, _END.encode(), False

    def read(self, size: int) -> bytes:
        """The next bytes. The end mark is part of the last block: Arrow reads a header only with its line end."""
        data: bytes = self._stream.read(size)
        while len(data) < size and (more := self._stream.read(size - len(data))):
            data += more
        free = size - len(data)
        if not free:
            return data
        end, self._left = self._left[:free], self._left[free:]
        return data + end


def _csv_rows(stream: Any, path: Path, columns: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """The rows of a CSV file. A file that ends inside quotes is refused: its last value would be all rows after it."""
    for batch in _open_csv(stream, path, columns):
        last = batch.slice(max(0, batch.num_rows - 1))
        for name, values in zip(batch.schema.names, last.columns, strict=True):
            _check_closed(values.to_pylist() if pa.types.is_string(values.type) else (), name)
        yield batch


def _check_closed(values: Iterable[str | None], column: str) -> None:
    for value in values:
        if value is not None and value.endswith(_END):
            begin = value.removesuffix(_END)[:40]
            raise ValueError(
                f"a quote is not closed: the value {begin!r} of column {column!r} reaches to the end of it"
            )


def _open_csv(stream: Any, path: Path, columns: dict[str, pa.DataType]) -> pa_csv.CSVStreamingReader:
    reader = pa_csv.open_csv(
        pa.PythonFile(_WithEnd(stream), mode="r"),
        read_options=pa_csv.ReadOptions(block_size=_BLOCK, use_threads=False),
        parse_options=pa_csv.ParseOptions(delimiter=_separator(path), newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=columns,
            null_values=[""],  # only empty, unquoted text is null: "NA" and "null" may be values
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    _check_closed(reader.schema.names, reader.schema.names[-1])
    check_unique_names(reader.schema, str(path))  # staged files with repeated names could not be read again
    return reader


def _separator(path: Path) -> str:
    return "\t" if ".tsv" in [s.lower() for s in path.suffixes] else ","


def _line_of(path: Path, row: int) -> int | None:
    """The line at which a row ends; None if it cannot be found. Values may contain line ends, and empty lines count."""
    with suppress(csv.Error, UnicodeDecodeError), pa.input_stream(str(path), compression="detect") as stream:
        lines = csv.reader(io.TextIOWrapper(stream, encoding="utf-8", newline=""), delimiter=_separator(path))
        filled = (values for values in lines if values)
        for number, _ in enumerate(filled, -1):  # the header is no row
            if number == row:
                return lines.line_num
    return None


# JSON


def _json(stream: Any, columns: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """One object per line. A missing field is null; a field that the dataset lacks is refused."""
    if columns is None:
        parse_options = pa_json.ParseOptions()
    else:
        # Nulls in required columns are found later, with a better message than the parser's.
        nullable = pa.schema([field.with_nullable(True) for field in columns])
        parse_options = pa_json.ParseOptions(explicit_schema=nullable, unexpected_field_behavior="error")
    options = pa_json.ReadOptions(block_size=_BLOCK)
    yield from pa_json.open_json(stream, read_options=options, parse_options=parse_options)


def _json_rows(stream: Any, path: Path, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a JSON file. Times are read as text first: Arrow takes numbers for dates, and ignores time zones."""
    as_text = [f.with_type(pa.string()) if _is_time(f.type) else f for f in columns]
    rows = 0
    for batch in _json(stream, pa.schema(as_text)):
        arrays = [
            _parsed(values, f.type, f.name, path, rows, _json_line_of) if _is_time(f.type) else values
            for f, values in zip(columns, batch.select(columns.names).columns, strict=True)
        ]
        rows += batch.num_rows
        yield pa.RecordBatch.from_arrays(arrays, names=columns.names)


def _is_time(data_type: Any) -> bool:
    return pa.types.is_temporal(data_type) and can_parse(data_type)


def _json_line_of(path: Path, row: int) -> int | None:
    return next((line for n, (line, _) in enumerate(_json_lines(path)) if n == row), None)


def _guess_json(path: Path, key: Sequence[str]) -> pa.Schema:
    """The columns of a JSON file. Arrow guesses types from the first block; floats are then checked in all of it."""
    for batch in _read(path, "json", lambda stream: _json(stream, None)):
        times = [f.name for f in batch.schema if pa.types.is_timestamp(f.type)]
        found = {f.name: f for f in guess_types(times, key, partial(_json_texts, path, times))}
        guessed = pa.schema([found.get(f.name, f) for f in batch.schema])
        return _with_exact_numbers(guessed, path, key)
    return pa.schema([])


def _json_texts(path: Path, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The values of some columns as text."""
    columns = pa.schema([(name, pa.string()) for name in names])
    parse_options = pa_json.ParseOptions(explicit_schema=columns, unexpected_field_behavior="ignore")
    options = pa_json.ReadOptions(block_size=_BLOCK)
    yield from _read(path, "json", lambda stream: pa_json.open_json(stream, options, parse_options))


_MANY_DIGITS = re.compile(rb"[-+0-9.eE]{16,}")
"""Shorter numbers keep their value in a float."""

_CODE = re.compile(rb'"[-+]?0[0-9]')


def _with_exact_numbers(guessed: pa.Schema, path: Path, key: Sequence[str]) -> pa.Schema:
    """The columns with decimals in place of floats that would change a value, and in place of floats in the key."""
    doubtful = {f.name for f in guessed if pa.types.is_floating(f.type) and f.name in key}
    for _, row in _lines_with_long_numbers(path, guessed):
        doubtful |= {f.name for f in guessed if pa.types.is_floating(f.type) and not _is_exact(row.get(f.name), f.type)}
    for name in sorted(doubtful):
        found = guess_types([name], [name], partial(_json_numbers, path, name)).field(name)
        if pa.types.is_string(found.type):
            raise UnreadableFile(
                f"{path}: no number type holds all values of column {name!r} without changing them",
                hint="write them as text, or create the dataset with schema= to choose a type",
                path=str(path),
            )
        guessed = guessed.set(guessed.get_field_index(name), found)
    return guessed


def _json_numbers(path: Path, name: str) -> Iterator[pa.RecordBatch]:
    waiting: list[str | None] = []
    for _, row in _json_lines(path):
        value = row.get(name)
        waiting.append(None if value is None else format(value, "f"))
    yield pa.RecordBatch.from_pydict({name: pa.array(waiting, pa.string())})


def _check_json_numbers(path: Path, columns: pa.Schema) -> None:
    """Refuse numbers that a float column would change, and codes in a decimal column: Arrow reads "007" as 7."""
    for line, row in _lines_with_long_numbers(path, columns):
        for field in columns:
            if not _is_exact(row.get(field.name), field.type):
                raise _refused(f"{path}, line {line}", path, field.name, str(row[field.name]), field.type)

    decimals = [f for f in columns if pa.types.is_decimal(f.type)]
    for line, row in _json_lines(path) if decimals and _has_match(path, _CODE) else ():
        for field in decimals:
            if isinstance(row.get(field.name), str):
                raise _refused(f"{path}, line {line}", path, field.name, row[field.name], field.type)


def _lines_with_long_numbers(path: Path, columns: pa.Schema) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects with a number that a float may not hold; none if no column is a float."""
    if any(_has_floats(f.type) for f in columns) and _has_match(path, _MANY_DIGITS):
        yield from _json_lines(path)


def _has_match(path: Path, pattern: re.Pattern[bytes]) -> bool:
    with pa.input_stream(str(path), compression="detect") as stream:
        end = b""
        while block := stream.read(_BLOCK):
            if pattern.search(end + block):
                return True
            end = block[-16:]
    return False


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file with their lines, with exact numbers."""
    with suppress(ValueError), pa.input_stream(str(path), compression="detect") as stream:
        for number, line in enumerate(io.TextIOWrapper(stream, encoding="utf-8"), 1):
            row = json.loads(line, parse_float=Decimal, parse_int=Decimal) if line.strip() else None
            if isinstance(row, dict):
                yield number, row


def _is_exact(value: Any, data_type: Any) -> bool:
    """Whether the floats in a value of this type keep the value."""
    if isinstance(value, list) and hasattr(data_type, "value_type"):
        return all(_is_exact(item, data_type.value_type) for item in value)
    if isinstance(value, dict) and pa.types.is_struct(data_type):
        return all(_is_exact(value.get(member.name), member.type) for member in data_type)
    if not isinstance(value, Decimal) or not pa.types.is_floating(data_type):
        return True
    read = (np.float32 if data_type.bit_width == 32 else np.float64)(value)
    return bool(np.isfinite(read)) and Decimal(str(read)) == value


def _has_floats(data_type: Any) -> bool:
    if pa.types.is_struct(data_type):
        return any(_has_floats(member.type) for member in data_type)
    return _has_floats(data_type.value_type) if hasattr(data_type, "value_type") else pa.types.is_floating(data_type)
