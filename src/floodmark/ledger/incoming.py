"""Incoming data: which of the things a user can hand to `write` this is."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from floodmark.ledger.errors import NoFiles, UnsupportedData

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


@dataclass(frozen=True)
class Frame:
    """Rows in this process's memory."""

    table: pa.Table


@dataclass(frozen=True)
class Batches:
    """Rows that come as a stream of record batches, maybe more than fit into memory."""

    reader: pa.RecordBatchReader


@dataclass(frozen=True)
class SparkFrame:
    """Rows that Spark has yet to compute."""

    frame: Any


@dataclass(frozen=True)
class Files:
    """Files of one format."""

    paths: tuple[Path, ...]
    format: Format


Incoming = Frame | Batches | SparkFrame | Files


def recognise(data: Any, read: Format | None = None) -> Incoming:
    """Tell frames, streams and paths apart; no library is imported that the caller has not imported already."""
    if isinstance(data, str | Path):
        return _files([data], read)
    if isinstance(data, Sequence) and data and all(isinstance(item, str | Path) for item in data):
        return _files(data, read)
    if isinstance(data, pa.Table):
        return Frame(data)
    if isinstance(data, pa.RecordBatch):
        return Frame(pa.Table.from_batches([data]))
    if isinstance(data, pa.RecordBatchReader):
        return Batches(data)
    library = type(data).__module__.partition(".")[0]
    if library == "pyspark" and hasattr(data, "schema"):
        return SparkFrame(data)
    if library == "pandas" and hasattr(data, "columns") and not isinstance(data, type):
        return Frame(_from_pandas(data))
    if library == "polars":
        frame = data.collect() if hasattr(data, "collect") else data
        if hasattr(frame, "to_arrow") and hasattr(frame, "columns"):
            return Frame(_from_polars(frame))
    if hasattr(data, "__arrow_c_stream__"):
        with suppress(pa.ArrowInvalid):  # a single column also streams, but it is no frame
            return Batches(pa.RecordBatchReader.from_stream(data))
    raise UnsupportedData(
        f"cannot write a {type(data).__module__}.{type(data).__qualname__}",
        hint="give a Spark, pandas, Polars or Arrow frame, or the path or glob of Parquet, CSV or JSON files",
    )


_HANDOVER = (pa.ArrowException, OverflowError, UnicodeError, TypeError)


def _from_polars(frame: Any) -> pa.Table:
    objects = [name for name, dtype in frame.schema.items() if str(dtype) == "Object"]
    if objects:
        raise UnsupportedData(
            f"the Polars column {objects[0]!r} holds Python objects", hint="cast it to a type of Polars' own first"
        )
    try:
        return frame.to_arrow()
    except _HANDOVER as error:
        raise UnsupportedData(f"Polars could not hand its columns over: {error}", hint="cast the column") from error


def _from_pandas(frame: Any) -> pa.Table:
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()  # a named index is data
    names = [str(c) for c in frame.columns]
    if len(set(names)) == len(names):
        try:
            return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        except _HANDOVER as error:
            raise UnsupportedData(
                f"pandas could not hand its columns over: {error}",
                hint="a column of mixed Python objects has no one type: convert it, e.g. with .astype(str)",
            ) from error
    nothing = [pa.nulls(len(frame)) for _ in names]
    return pa.Table.from_arrays(nothing, names)  # the names are refused later, with a better message


def _files(given: Iterable[str | Path], read: Format | None) -> Files:
    if read not in (None, *get_args(Format)):
        raise UnsupportedData(f"cannot read files as {read!r}", hint="say 'parquet', 'csv' or 'json'")
    paths: list[Path] = []
    for item in given:
        found = _expand(item)
        if not found:
            raise NoFiles(
                f"no data files at {str(item)!r}",
                hint="check the path; a glob needs quotes in a shell, and a folder needs .parquet, .csv or .json files",
                path=str(item),
            )
        paths += found
    return Files(tuple(paths), read or _format_of(paths))


def _expand(item: str | Path) -> list[Path]:
    path = Path(item)
    if path.is_dir():
        inside = [p for p in path.rglob("*") if p.is_file() and _suffix(p) in _SUFFIXES]
        found = sorted(p for p in inside if not any(s.startswith((".", "_")) for s in p.relative_to(path).parts))
        _refuse_partitions(path, found)
        return found
    if path.exists():
        return [path]
    return sorted(Path(p) for p in glob.glob(str(item), recursive=True) if Path(p).is_file())  # noqa: PTH207 -- absolute globs


def _refuse_partitions(folder: Path, found: list[Path]) -> None:
    """Values that are only in folder names would be lost."""
    for path in found:
        partitions = [part for part in path.relative_to(folder).parts[:-1] if "=" in part]
        if partitions:
            raise UnsupportedData(
                f"{str(folder)!r} keeps column values in folder names ({partitions[0]}), which would be lost",
                hint="read it with Spark and write the frame: dataset.write(spark.read.parquet(path))",
            )


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
            raise UnsupportedData(
                f"cannot tell the format of {str(path)!r} from its name",
                hint="say which it is: read='parquet', 'csv' or 'json' (--read on the command line)",
            )
        formats.setdefault(_SUFFIXES[suffix], path)
    if len(formats) > 1:
        raise UnsupportedData(
            f"these files have different formats: {', '.join(str(p) for p in formats.values())}",
            hint="write each format on its own",
        )
    return next(iter(formats))
