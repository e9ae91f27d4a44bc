"""A scan as a table of DuckDB's: it asks for columns and rows, once for every time that a query reads the table."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_ds

from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.ledger.scan import Scan


class ScanTable(pa_ds.InMemoryDataset):  # type: ignore[misc]
    """What DuckDB takes for an Arrow dataset: of those it knows only the schema and `scanner`.

    DuckDB tells its callers no more of an error than the text, so the first one is kept here: without its traceback,
    whose frames hold the connection that holds this table, a circle that Python cannot see.
    """

    def __init__(self, scan: Scan) -> None:
        super().__init__(scan.full_schema.empty_table())
        self._scan = scan
        self._failures: list[FloodmarkError] = []

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> Any:  # noqa: A002
        names = self.schema.names if columns is None else columns
        scan = replace(self._scan, columns=tuple(names))
        if scan.needs_beside(filter):
            return _Stream(self, scan, filter)
        return scan.records_scanner(filter)

    def remember(self, error: FloodmarkError) -> None:
        """Keep an error for whoever asks DuckDB."""
        self._failures.append(copy(error))

    def raise_failure(self, cause: Exception) -> None:
        """Raise the first error that was kept, if there is one, and forget it."""
        if self._failures:
            kept, self._failures = self._failures[:1], []
            raise kept.pop() from cause


@dataclass(frozen=True)
class _Stream:
    """The part of a scanner that DuckDB uses.

    Arrow's own Scanner.from_batches would hold one of Arrow's few reading threads for every table of the query, each of
    which waits for files to be read by these threads.
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


def raise_failure(table: pa_ds.Dataset, cause: Exception) -> None:
    """Raise what went wrong in a table of ours, where DuckDB says no more than that something did."""
    if isinstance(table, ScanTable):
        table.raise_failure(cause)
