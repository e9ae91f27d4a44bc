"""A scan as a DuckDB table. DuckDB opens a new stream of columns and rows each time that a query reads the table."""

from __future__ import annotations

import re
import tempfile
import uuid
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_ds

from floodmark.errors import DAMAGED_HINT, FloodmarkError, UnreadableSlice

if TYPE_CHECKING:
    from floodmark.ledger.scan import Scan


_WITHOUT_EXTRAS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # otherwise an unknown table name means a local variable of Python
}


def connect() -> Any:
    """A DuckDB database for one query over records that are registered.

    The query reaches no files, network, extensions or settings; a large one may use an own folder for temporary files.
    The time zone is UTC, so that the result does not depend on the machine.
    """
    import duckdb

    folder = f"{tempfile.gettempdir()}/floodmark-duckdb-{uuid.uuid4().hex}"  # DuckDB creates and removes it
    connection = duckdb.connect(config={**_WITHOUT_EXTRAS, "temp_directory": folder})
    quoted = folder.replace("'", "''")
    connection.execute(f"set allowed_directories = ['{quoted}']; set timezone = 'UTC'")
    connection.execute("set enable_external_access = false; set lock_configuration = true")
    return connection


class ScanTable(pa_ds.InMemoryDataset):  # type: ignore[misc]
    """A scan that DuckDB reads like an Arrow dataset: it uses only the schema and `scanner`.

    DuckDB passes on only the text of an error, so the first error is kept here. It is kept without its traceback: the
    frames refer to the connection, which refers to this table, and Python cannot collect that cycle.
    """

    def __init__(self, scan: Scan) -> None:
        super().__init__(scan.full_schema.empty_table())
        self._scan = scan
        self._failures: list[FloodmarkError] = []

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> Any:  # noqa: A002
        names = self.schema.names if columns is None else columns
        scan = replace(self._scan, columns=tuple(names))
        if scan.needs_side_columns(filter):
            return _Stream(self, scan, filter)
        return scan.records_scanner(filter)

    def remember(self, error: FloodmarkError) -> None:
        """Keep an error for the code that runs the DuckDB query."""
        self._failures.append(copy(error))

    def raise_failure(self, cause: Exception) -> None:
        """Raise the first error that was kept, if any, and forget it."""
        if self._failures:
            first, self._failures = self._failures[:1], []
            raise first.pop() from cause


@dataclass(frozen=True)
class _Stream:
    """The part of a scanner that DuckDB uses.

    Arrow's Scanner.from_batches would block one of Arrow's few I/O threads per table of the query, while each table
    waits for the same threads to read its files.
    """

    table: ScanTable
    scan: Scan
    where: pc.Expression | None

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.scan.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            with self.scan.readable():
                yield from self.scan.batches(self.where)
        except FloodmarkError as error:
            self.table.remember(error)
            raise


_STREAM_FAILURE = re.compile(r"reading the stream registered as '[^']*' failed: (.*)", re.DOTALL)


def stream_failure(error: Exception) -> str | None:
    """Why DuckDB could not read a file; None for other errors. It raises the same class for values that do not fit."""
    found = _STREAM_FAILURE.search(str(error))
    return None if found is None else found[1].partition("\n")[0]


def raise_unreadable(records: str, error: Exception) -> None:
    """Raise an error for files that DuckDB could not read."""
    if (reason := stream_failure(error)) is not None:
        raise UnreadableSlice(f"some of {records} cannot be read: {reason}", hint=DAMAGED_HINT) from error


def raise_failure(table: pa_ds.Dataset, cause: Exception) -> None:
    """Raise the error of a table of ours; DuckDB's own error only has its text."""
    if isinstance(table, ScanTable):
        table.raise_failure(cause)
