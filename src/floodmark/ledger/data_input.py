"""Incoming data: what `write` accepts (frames, streams, files), recognised by its type."""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Any, Literal, get_args
from urllib.parse import unquote

import pyarrow as pa

from floodmark.errors import BadColumnName, BadData, UnreadableFile
from floodmark.ledger.python_values import check_numpy_times, check_same_kind
from floodmark.ledger.schema import find_repeated
from floodmark.ledger.types import widen_decimals

Format = Literal["parquet", "csv", "json"]

_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
_SHOWN = 3
_log = logging.getLogger(__name__)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True)
class TableData:
    """Rows in this process's memory."""

    table: pa.Table


@dataclass(frozen=True)
class StreamData:
    """Rows in a stream of record batches, possibly larger than memory."""

    reader: pa.RecordBatchReader


@dataclass(frozen=True)
class SparkData:
    """Rows of a Spark frame, not computed yet."""

    frame: Any


HiveValues = tuple[tuple[str, str | None], ...]
"""Names and values of columns that the names of a file's folders hold, as in dt=2026-11-19/hour=8."""


@dataclass(frozen=True)
class FileData:
    """Rows in files of one format, with the values in the folder names of each file.

    The values of `peers` count too when the types of a new dataset are chosen: they are to be written after these.
    """

    paths: tuple[Path, ...]
    format: Format
    hive: tuple[HiveValues, ...]
    peers: FileData | None = None


Incoming = TableData | StreamData | SparkData | FileData


def recognise(data: Any, read: Format | None = None) -> Incoming:
    """Recognise a frame, a stream or paths, without importing a library that the caller has not imported."""
    found = _recognise(data, read)
    if isinstance(found, TableData) and found.table.num_rows == 0:  # the types of no values are often guessed
        names = found.table.column_names
        return TableData(pa.Table.from_arrays([pa.nulls(0) for _ in names], names))
    return found


def _recognise(data: Any, read: Format | None) -> Incoming:
    if isinstance(data, FileData):
        return data
    if isinstance(data, str | Path):
        return _files([data], read)
    if isinstance(data, Sequence) and data and all(isinstance(item, str | Path) for item in data):
        return _files(data, read)
    if isinstance(data, pa.Table):
        return TableData(data)
    if isinstance(data, pa.RecordBatch):
        return TableData(pa.Table.from_batches([data]))
    if isinstance(data, pa.RecordBatchReader):
        return StreamData(data)
    library = type(data).__module__.partition(".")[0]
    if library == "pyspark" and hasattr(data, "schema"):
        return SparkData(data)
    if library == "pandas" and hasattr(data, "columns") and not isinstance(data, type):
        return TableData(_from_pandas(data))
    if library == "polars":
        frame = data.collect() if hasattr(data, "collect") else data
        if hasattr(frame, "to_arrow") and hasattr(frame, "columns"):
            return TableData(_from_polars(frame))
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, type):
        with suppress(pa.ArrowInvalid):  # a single column also has this method, but it is not a frame
            return StreamData(pa.RecordBatchReader.from_stream(data))
    raise BadData(
        f"cannot write a {type(data).__module__}.{type(data).__qualname__}",
        hint="give a Spark, pandas, Polars or Arrow frame, or the path or glob of Parquet, CSV or JSON files",
    )


_CONVERSION_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError)


def _from_polars(frame: Any) -> pa.Table:
    objects = [name for name, dtype in frame.schema.items() if str(dtype) == "Object"]
    if objects:
        raise BadData(
            f"the Polars column {objects[0]!r} contains Python objects", hint="cast it to a Polars type first"
        )
    try:
        return frame.to_arrow()
    except _CONVERSION_ERRORS as error:
        raise BadData(f"Polars cannot convert the frame to Arrow: {error}", hint="cast the column") from error


def _from_pandas(frame: Any) -> pa.Table:
    index = [str(name) for name in frame.index.names if name is not None]  # a named index is data
    names = [*index, *(str(c) for c in frame.columns)]
    if twice := find_repeated(names):
        raise BadColumnName(
            f"the data has {len(twice)} columns named {twice[0]!r}",
            hint="keep one: frame.loc[:, ~frame.columns.duplicated()], or rename them",
            column=twice[0],
        )
    try:
        frame = frame.reset_index() if index else frame
        for i, dtype in enumerate(frame.dtypes):
            if dtype.kind == "O":
                check_numpy_times(frame.iloc[:, i].tolist())
        table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        for i, (_, column) in enumerate(frame.items()):
            if column.dtype.kind == "O":
                check_same_kind(column.tolist(), table.field(i).type)
                table = table.set_column(i, table.field(i).name, widen_decimals(table.column(i)))
        return table
    except _CONVERSION_ERRORS as error:
        raise BadData(
            f"pandas cannot convert the frame to Arrow: {error}",
            hint="convert columns of mixed Python objects to one type, for example with .astype(str)",
        ) from error


def _files(given: Iterable[str | Path], read: Format | None) -> FileData:
    if read not in (None, *get_args(Format)):
        raise BadData(f"cannot read files as {read!r}", hint="give 'parquet', 'csv' or 'json'")
    paths: list[Path] = []
    hive: list[HiveValues] = []
    seen: set[Path] = set()
    for item in given:
        files = _expand(item)
        if not files:
            raise UnreadableFile(
                f"no data files at {str(item)!r}",
                hint="check the path; a glob needs quotes in a shell, and a folder needs .parquet, .csv or .json files",
                path=str(item),
            )
        if twice := [path for path in files if path.absolute() in seen]:
            raise BadData(f"{twice[0]} is given twice", hint="name each file once: its rows would be written twice")
        seen |= {path.absolute() for path in files}
        paths += files
        hive += [hive_values(path, fixed_folder(item)) for path in files]
    return FileData(tuple(paths), read or _format_of(paths), tuple(hive))


def file_data(path: Path, base: Path, read: Format | None) -> FileData:
    """One file that a pattern with this fixed folder has found."""
    return FileData((path,), read or _format_of([path]), (hive_values(path, base),))


def with_null_columns(data: FileData, names: Sequence[str]) -> FileData:
    """The same files, with null in those of these columns that a file lacks."""
    hive = [(*values, *((name, None) for name in names if name not in dict(values))) for values in data.hive]
    return replace(data, hive=tuple(hive))


_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_HIVE = re.compile(r"([^=._][^=]*)=(.*)", re.DOTALL)


def fixed_folder(pattern: str | Path) -> Path:
    """The folder in front of the first part of a path that is a glob or a file."""
    path = Path(pattern)
    if path.is_dir():
        return path
    fixed = [*takewhile(lambda part: not glob.has_magic(part), path.parts[:-1])]
    return Path(*fixed)


def hive_values(path: Path, base: Path) -> HiveValues:
    """The columns in folder names below `base`, and in the folders directly above it that hold columns too."""
    above = [*takewhile(_HIVE.fullmatch, reversed(base.parts))]
    below = path.relative_to(base).parts[:-1]
    found = [m for part in [*reversed(above), *below] if (m := _HIVE.fullmatch(part)) is not None]
    names = [unquote(m[1]) for m in found]
    for at, name in enumerate(names):
        if name in names[:at]:
            hint = "rename one of the folders: they give each row one value of a column"
            raise UnreadableFile(f"two folders of {path} are called {name}=…", hint=hint, path=str(path))
    return tuple((name, None if m[2] == _NO_VALUE else unquote(m[2])) for name, m in zip(names, found, strict=True))


def is_address(path: str | Path) -> bool:
    """Whether a path is an address such as s3://bucket/*.csv. Files are read from this machine only."""
    text = str(path)
    has_host = "://" in text or isinstance(path, PurePath)  # a Path has lost the second slash
    return has_host and _ADDRESS.match(text) is not None


READ_ADDRESS_HINT = "copy the files to this machine, or read them with Spark and write the frame"


def _expand(item: str | Path) -> list[Path]:
    if is_address(item):
        raise UnreadableFile(
            f"{str(item)!r} is an address, and files are read from folders of this machine only",
            hint=READ_ADDRESS_HINT,
            path=str(item),
        )
    if item == "":  # such as an unset variable of a shell
        raise UnreadableFile("an empty text is no path", hint="name a file, a glob, or the folder '.'", path=str(item))
    try:
        return _found_files(item)
    except (OSError, ValueError) as error:  # a name that no file can have, or a folder that cannot be read
        raise UnreadableFile(
            f"the files at {str(item)[:200]!r} cannot be found: {error}", hint="check the path", path=str(item)
        ) from error


def _found_files(item: str | Path) -> list[Path]:
    path = Path(item)
    if path.is_dir():
        every = sorted(p for p in path.rglob("*") if p.is_file())
        inside = [p for p in every if not any(s.startswith((".", "_")) for s in p.relative_to(path).parts)]
        if others := [str(p.relative_to(path)) for p in inside if _suffix(p) not in _SUFFIXES]:
            shown = ", ".join(others[:_SHOWN]) + (f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else "")
            _log.warning("%s: not read, because the names show no format: %s", path, shown)
        return [p for p in inside if _suffix(p) in _SUFFIXES]
    if path.exists():
        return [path]
    return sorted(Path(p) for p in glob.glob(str(item), recursive=True) if Path(p).is_file())  # noqa: PTH207 -- absolute globs


def _suffix(path: Path) -> str:
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _format_of(paths: list[Path]) -> Format:
    formats: dict[Format, Path] = {}
    for path in paths:
        suffix = _suffix(path)
        if suffix not in _SUFFIXES:
            raise BadData(
                f"the name of {str(path)!r} does not show its format",
                hint="give the format: read='parquet', 'csv' or 'json' (--read on the command line)",
            )
        formats.setdefault(_SUFFIXES[suffix], path)
    if len(formats) > 1:
        raise BadData(
            f"these files have different formats: {', '.join(str(p) for p in formats.values())}",
            hint="write the files of each format in a separate call",
        )
    return next(iter(formats))
