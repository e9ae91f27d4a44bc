"""CSV and JSON files: their columns guessed from the first one, their rows staged as Parquet parts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from floodmark.ledger.conform import check_columns, check_named_once
from floodmark.ledger.incoming import Format
from floodmark.ledger.layout import Layout
from floodmark.ledger.parts import PART_BYTES, ParquetPart, parquet_parts, unreadable
from floodmark.ledger.types import optional_columns
from floodmark.storage.scratch import explained

_BLOCK = 16 << 20


@dataclass(frozen=True)
class TextFile:
    """One CSV or JSON file to be staged."""

    path: Path
    format: Format
    layout: Layout
    folder: Path


def guess_schema(path: Path, format: Format) -> pa.Schema:  # noqa: A002 -- the user's word for it
    """The columns of a text file, by the values of its first block."""
    for batch in _batches(path, format, None):
        guessed = [pa.field(f.name, _roomy(f.type, f.name, path, format)) for f in batch.schema]
        return pa.schema(guessed)
    return pa.schema([])


def _roomy(data_type: pa.DataType, column: str, path: Path, format: Format) -> pa.DataType:  # noqa: A002
    """The guessed type, with room for finer times in later files; bytes are text in an encoding that is not ours."""
    if pa.types.is_binary(data_type):
        error = ValueError(f"column {column!r} is not UTF-8 text")
        raise unreadable(str(path), error, format.upper())
    return pa.timestamp("us", data_type.tz) if pa.types.is_timestamp(data_type) else data_type


def stage_text(file: TextFile) -> list[ParquetPart]:
    """Parse one file into Parquet parts without system columns."""
    paths = [str(p) for p in write_parquet(_batches(file.path, file.format, file.layout), file.folder)]
    return list(parquet_parts(paths, origin=str(file.path)))


def write_parquet(batches: Iterator[pa.RecordBatch], folder: Path) -> Iterator[Path]:
    """Staged Parquet files of bounded size, quick to write and to read again."""
    writer: Any = None
    size = 0
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if writer is None:
                path = folder / f"stage-{uuid.uuid4().hex}"
                columns = optional_columns(batch.schema)
                with explained("staged rows", folder):
                    writer = pq.ParquetWriter(path, columns, compression="none", use_dictionary=False)
                size = 0
                yield path
            rows = batch.cast(columns)
            with explained("staged rows", folder):
                writer.write_batch(rows)
            size += batch.nbytes
            if size >= PART_BYTES:
                with explained("staged rows", folder):
                    writer.close()
                writer = None
    finally:
        if writer is not None:
            with explained("staged rows", folder):
                writer.close()


def _batches(path: Path, format: Format, layout: Layout | None) -> Iterator[pa.RecordBatch]:  # noqa: A002
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            yield from _csv(stream, path, layout) if format == "csv" else _json(stream, layout)
    except (OSError, pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        if format == "csv" and "Empty CSV" in str(error) and _is_header(path):
            return
        if format == "json" and layout is not None and "unexpected field" in str(error):
            check_columns(guess_schema(path, format), layout, str(path))  # which names the field
        if format == "json" and "changed from object to array" in str(error):
            error = ValueError("it holds a JSON array; write one object per line")
        raise unreadable(str(path), error, format.upper()) from error


def _csv(stream: Any, path: Path, layout: Layout | None) -> Iterator[pa.RecordBatch]:
    types = None if layout is None else {f.name: f.type for f in layout.data}
    separator = "\t" if ".tsv" in [s.lower() for s in path.suffixes] else ","
    reader = pa_csv.open_csv(
        stream,
        read_options=pa_csv.ReadOptions(block_size=_BLOCK, use_threads=False),
        parse_options=pa_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=types,
            null_values=[""],  # "NA" and "null" may be values; only what is empty and not quoted is missing
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    check_named_once(reader.schema, str(path))  # staged as they are, they could not be read again
    yield from reader


def _is_header(path: Path) -> bool:
    """Whether a CSV file is one line that does not end, in which pyarrow sees no header."""
    with pa.input_stream(str(path), compression="detect") as stream:
        line = stream.read(_BLOCK)
        return bool(line.strip()) and b"\n" not in line and b"\r" not in line and not stream.read(1)


def _json(stream: Any, layout: Layout | None) -> Iterator[pa.RecordBatch]:
    """One object per line. A field that is absent is null; one that the dataset lacks is refused."""
    if layout is None:
        parse = pa_json.ParseOptions()
    else:
        # Nulls where none may be are found later, with a better message than the parser's.
        columns = pa.schema([field.with_nullable(True) for field in layout.data])
        parse = pa_json.ParseOptions(explicit_schema=columns, unexpected_field_behavior="error")
    yield from pa_json.open_json(stream, read_options=pa_json.ReadOptions(block_size=_BLOCK), parse_options=parse)
