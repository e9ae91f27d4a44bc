"""Scan the records of a selection as Arrow data, without a JVM."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import BadQuery, StorageError, UnreadableSlice
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import Layout
from floodmark.ledger.selection import Selection
from floodmark.ledger.side_columns import (
    BackgroundRead,
    OffsetBatch,
    SideColumnSet,
    append_columns,
    batches_without_columns,
    count_offsets,
    is_dense,
    with_side_columns,
)
from floodmark.ledger.unreadable import unreadable_records
from floodmark.storage.arrays import I64
from floodmark.storage.page_checksums import check_size, check_slice
from floodmark.storage.parquet import arrow_filesystem

if TYPE_CHECKING:
    import pyarrow.dataset as pa_ds


Where = Any
"""SQL text, an Arrow expression, or None."""

_FALLBACK = "a folded file is damaged (%s): reading its slices instead; call fold() to write the file again"
_REQUESTS = 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scan:
    """Some columns of a selection, in offset order: columns of the records and side columns."""

    objects: DatasetObjects
    layout: Layout
    selection: Selection
    columns: tuple[str, ...]
    side_columns: SideColumnSet | None = None

    @property
    def schema(self) -> pa.Schema:
        full = self.full_schema
        return pa.schema([full.field(name) for name in self.columns])

    @property
    def full_schema(self) -> pa.Schema:
        """All columns that can be read."""
        return pa.schema([*self.layout.read_schema, *self._side_schema])

    @property
    def data_names(self) -> tuple[str, ...]:
        """All columns except system columns and hidden columns."""
        return (*self.layout.shown.names, *self._side_schema.names)

    @property
    def _side_schema(self) -> pa.Schema:
        return pa.schema([]) if self.side_columns is None else self.side_columns.schema

    def needs_side_columns(self, where: pc.Expression | None = None) -> bool:
        """Whether the requested columns or the filter need a column that is not in the records' own files."""
        if self.side_columns is None:
            return False
        known = set(self.side_columns.schema.names)
        return not known.isdisjoint(self.columns) or (
            where is not None and not filter_fits(where, self.layout.read_schema)
        )

    def dataset(self) -> pa_ds.Dataset:
        """The records' own files as one Arrow dataset. Scanners and DuckDB push columns and filters into it.

        It may contain records outside the selection; `filter` removes them.
        """
        import pyarrow.dataset as pa_ds  # late: it imports pandas, which commands that read no data do not need
        import pyarrow.fs as pa_fs

        keys = [f.key for f in self.selection.files]
        paths = [self.objects.store.local_path(key) for key in keys]
        filesystem: Any
        sources: list[str]
        if all(path is not None for path in paths):
            self.check_local_files()
            filesystem, sources = pa_fs.LocalFileSystem(), [str(path) for path in paths]
        else:
            sizes = {f.key: f.size for f in self.selection.files}
            slices = frozenset(key for key in keys if self._is_slice(key))
            filesystem, sources = arrow_filesystem(self.objects.store, sizes, slices), keys
        file_format = pa_ds.ParquetFileFormat(
            default_fragment_scan_options=pa_ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        )
        fragments = [file_format.make_fragment(source, filesystem) for source in sources]
        return pa_ds.FileSystemDataset(fragments, self.layout.read_schema, file_format, filesystem)

    def check_local_files(self) -> None:
        """Refuse local files that are missing or have another size than when they were committed, and damaged slices.

        Everything is checked except the pages, which have checksums. Folded files were checked when they were selected.
        """
        with self.readable():
            for file in self.selection.files:
                path = self.objects.store.local_path(file.key)
                if path is not None and self._is_slice(file.key):
                    check_slice(self.objects.store, file.key, file.size)
                elif path is not None:
                    check_size(file.key, path.stat().st_size, file.size)

    def _check_objects(self) -> None:
        """The same for slices in a bucket. Each check is a request."""
        slices = [file for file in self.selection.files if self._is_slice(file.key)]
        with self.readable(), ThreadPoolExecutor(_REQUESTS) as threads:
            for done in [threads.submit(check_slice, self.objects.store, f.key, f.size) for f in slices]:
                done.result()

    def _is_slice(self, key: str) -> bool:
        return key.startswith(self.objects.data_prefix)

    def filter(self) -> pc.Expression | None:
        """The filter that keeps the records of the selection; None if all records of its files belong to it."""
        bounds = self._bounds()
        if not self.selection.has_dead:
            return bounds
        alive = ~pc.field(self.layout.vocab.offset).isin(pa.array(self.selection.dead))
        return alive if bounds is None else bounds & alive

    def _bounds(self) -> pc.Expression | None:
        if self.selection.is_whole:
            return None
        offset = pc.field(self.layout.vocab.offset)
        return (offset >= self.selection.start) & (offset < self.selection.end)

    def _bounded(self) -> tuple[pa_ds.Dataset, pc.Expression | None]:
        """The files, and the filter that keeps records between start and end; None if whole row groups match."""
        import pyarrow.dataset as pa_ds

        dataset, bounds = self.dataset(), self._bounds()
        if bounds is None or len(self.selection.files) > 1 or self.selection.files[0].absent:
            return dataset, bounds
        [fragment], [file] = dataset.get_fragments(), self.selection.files
        part = fragment.subset(bounds, schema=self.layout.read_schema)
        selected = min(self.selection.end, file.end) - max(self.selection.start, file.start)
        if sum(group.num_rows for group in part.row_groups) > selected:
            return dataset, bounds
        return pa_ds.FileSystemDataset([part], dataset.schema, dataset.format, dataset.filesystem), None

    def scanner(self, where: pc.Expression | None = None) -> pa_ds.Scanner:
        """An Arrow scanner over the records, with an optional filter."""
        if not self.needs_side_columns(where):
            return self.records_scanner(where)
        import pyarrow.dataset as pa_ds

        return pa_ds.Scanner.from_batches(self.batches(where), schema=self.schema)

    def records_scanner(self, where: pc.Expression | None) -> pa_ds.Scanner:
        """The same, for a scan that needs no side columns."""
        own = self.filter()
        both = own if where is None else where if own is None else own & where
        return self.dataset().scanner(columns=list(self.columns), filter=both)

    def batches(self, where: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """The records that match an Arrow expression, in batches, in offset order."""
        if self.needs_side_columns(where):
            yield from self._wide_batches(where)
        else:
            yield from self._records(where)

    def _records(self, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """The same, for a scan that needs no side columns."""
        dataset, bounds = self._bounded()
        both = bounds if where is None else where if bounds is None else bounds & where
        if not self.selection.has_dead:
            yield from dataset.scanner(columns=list(self.columns), filter=both).to_batches()
            return
        # Arrow would hash every offset to look it up among the dead. Both are sorted, so a search is faster.
        read = list(dict.fromkeys([*self.columns, self.layout.vocab.offset]))
        for batch in dataset.scanner(columns=read, filter=both).to_batches():
            is_live = live_mask(batch.column(self.layout.vocab.offset).to_numpy(), self.selection.dead)
            live = batch if is_live is None else batch.filter(pa.array(is_live))
            yield live.select(list(self.columns))

    def _wide_batches(self, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """The records with side columns. A filter that needs only the records' own columns is applied to the files."""
        import pyarrow.dataset as pa_ds

        assert self.side_columns is not None
        early = where is None or filter_fits(where, self.layout.read_schema)
        filtered_by = [] if early or where is None else filter_columns(where, self.full_schema)
        own, others = self._split_columns([*self.columns, *filtered_by])
        located = self._located(own, where if early else None)
        side_columns = pa.schema([self.side_columns.schema.field(name) for name in others])
        for table in with_side_columns(located, self.side_columns.open(others), side_columns):
            if early:
                yield from table.select(list(self.columns)).to_batches()
            else:
                # Filters may name columns by number. A scanner keeps the order of rows, Table.filter may not.
                own_names = set(table.column_names)
                ordered = table.select([n for n in self.full_schema.names if n in own_names])
                matching = pa_ds.InMemoryDataset(ordered).scanner(columns=list(self.columns), filter=where)
                yield from matching.to_batches()

    def _split_columns(self, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Split names into columns of the records and side columns, each name once."""
        side_columns = set(self._side_schema.names)
        once = dict.fromkeys(names)
        return tuple(n for n in once if n not in side_columns), tuple(n for n in once if n in side_columns)

    def _located(self, columns: tuple[str, ...], where: pc.Expression | None) -> Iterator[OffsetBatch]:
        """Columns of the records with the offset of each record. Offsets are counted, not read, where possible."""
        start, end = self.selection.start, self.selection.end
        if where is None and is_dense(self.selection):
            own = replace(self, columns=columns, side_columns=None)
            return count_offsets(start, own._records(None) if columns else batches_without_columns(end - start))
        offset = self.layout.vocab.offset
        own = replace(self, columns=tuple(dict.fromkeys([*columns, offset])), side_columns=None)
        return (OffsetBatch(batch.column(offset).to_numpy(), batch) for batch in own._records(where))

    def _wide_table(self) -> pa.Table:
        """All records with side columns. A dense selection is read in one step."""
        assert self.side_columns is not None
        own, others = self._split_columns(self.columns)
        if not is_dense(self.selection):
            return pa.Table.from_batches(self.batches(), self.schema)
        reading = BackgroundRead(self.side_columns, others, range(self.selection.start, self.selection.end))
        records = replace(self, columns=own, side_columns=None)._records_table() if own else pa.table({})
        side_columns = pa.schema([self.side_columns.schema.field(name) for name in others])
        return append_columns(records, reading.result(), side_columns).select(list(self.columns))

    def _records_table(self) -> pa.Table:
        if self.selection.has_dead:
            return pa.Table.from_batches(self._records(None))
        return self.dataset().scanner(columns=list(self.columns), filter=self._bounds()).to_table()

    def to_table(self) -> pa.Table:
        if self.selection.is_empty:
            return self.schema.empty_table()
        try:
            with self.readable():
                table = self._wide_table() if self.needs_side_columns() else self._records_table()
        except UnreadableSlice as error:
            if (unfolded := self._unfolded()) is None:
                raise
            _log.warning(_FALLBACK, error.message)
            return unfolded.to_table()
        # A cast of a table without columns would lose its number of rows.
        return table if table.schema.equals(self.schema) else table.cast(self.schema)

    def _unfolded(self) -> Scan | None:
        """The same records read from slices only; None if this scan reads no folded files."""
        return None if self.selection.unfolded is None else replace(self, selection=self.selection.unfolded())

    def to_reader(self, where: Where) -> pa.RecordBatchReader:
        """The records that match `where` (SQL or an Arrow expression), as a stream of batches."""
        if isinstance(where, str):
            return self._sql_reader(where)
        try:
            if where is not None:
                check_filter(where, self.full_schema)  # raise now, not when the stream is read
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
            is_zone = "timestamp without timezone" in str(error)
            zone = "give times a zone if the column has one, as datetime(…, tzinfo=UTC), else none"
            hint = zone if is_zone else "give SQL text or a pyarrow.compute expression"
            raise BadQuery(f"the filter {where} does not work: {error}", hint=hint) from error
        if self.selection.is_empty:
            return pa.RecordBatchReader.from_batches(self.schema, [])
        return self._guarded(self.batches(where), lambda scan: scan.batches(where))

    def _sql_reader(self, where: str) -> pa.RecordBatchReader:
        try:
            batches = self._sql_batches(where)
        except (BadQuery, UnreadableSlice) as error:
            # DuckDB raises the same error for a wrong filter and for a damaged file. A read of the slices shows which.
            if (unfolded := self._unfolded()) is None:
                raise
            reader = unfolded._sql_reader(where)
            _log.warning(_FALLBACK, error.message)
            return reader
        return self._guarded(batches, lambda scan: scan._sql_batches(where))

    def _sql_batches(self, where: str) -> Iterable[pa.RecordBatch]:
        import duckdb

        from floodmark.ledger.duckdb_table import connect, raise_failure, stream_failure

        connection = connect()
        records = self.filtered()
        try:
            connection.register("records", records)
            connection.extract_statements(f"select 1 where {where}")  # refuses text that closes our parenthesis
            names = ", ".join(_quoted(name) for name in self.columns)
            reader = connection.sql(f"select {names} from records where ({where}\n)").to_arrow_reader()
        except duckdb.Error as error:
            raise_failure(records, error)
            if (reason := stream_failure(error)) is not None:
                raise self.unreadable(OSError(reason)) from error
            raise BadQuery(
                f"the filter {where!r} does not work: {error}", hint="give the condition of a SQL WHERE clause"
            ) from error
        return _duckdb_batches(reader, records)

    def filtered(self) -> pa_ds.Dataset:
        """Exactly the records of the selection, as a dataset for DuckDB to filter and join."""
        if not self.objects.is_local:
            self._check_objects()  # before DuckDB reads: it can wait forever for an error of a file in Python
        if self.side_columns is not None:
            from floodmark.ledger.duckdb_table import ScanTable

            return ScanTable(self)
        own = self.filter()
        return self.dataset() if own is None else self.dataset().filter(own)

    def _guarded(
        self, batches: Iterable[pa.RecordBatch], reopen: Callable[[Scan], Iterable[pa.RecordBatch]]
    ) -> pa.RecordBatchReader:
        """The same stream, with the dataset's own types and errors; `reopen` opens it on another scan."""
        return pa.RecordBatchReader.from_batches(self.schema, self._stream(batches, reopen))

    def _stream(
        self, batches: Iterable[pa.RecordBatch], reopen: Callable[[Scan], Iterable[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        rows = 0
        try:
            with self.readable():
                for batch in batches:
                    rows += batch.num_rows
                    yield batch if batch.schema.equals(self.schema) else batch.cast(self.schema)
            return
        except UnreadableSlice as error:
            if (unfolded := self._unfolded()) is None:
                raise
            if rows:
                raise UnreadableSlice(
                    f"a folded file is damaged; {rows} rows were read before the damage was found: {error.message}",
                    hint="call fold() to write the file again from the slices, then read again",
                ) from error
            _log.warning(_FALLBACK, error.message)
        yield from unfolded._stream(reopen(unfolded), reopen)

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Turn Arrow's errors about missing or damaged files into an error with a hint."""
        try:
            yield
        except pa.ArrowCancelled:
            raise
        except (pa.ArrowException, OSError, StorageError) as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: Exception) -> UnreadableSlice:
        """The error for records that could not be read."""
        keys = [file.key for file in self.selection.files]
        return unreadable_records(self.objects, self.selection.start, self.selection.end, error, keys)


def live_mask(offsets: I64, dead: I64) -> npt.NDArray[np.bool_] | None:
    """A mask of the offsets that are not dead; None if none of them is dead. Both arrays are sorted."""
    if len(offsets) == 0:
        return None
    low, high = np.searchsorted(dead, [offsets[0], offsets[-1] + 1])
    if low == high:
        return None
    near = dead[low:high]
    at = np.searchsorted(offsets, near)
    is_live = np.ones(len(offsets), np.bool_)
    is_live[at[offsets[at] == near]] = False  # compared, because a folded file may lack some of the dead
    return is_live


def _duckdb_batches(reader: pa.RecordBatchReader, records: pa_ds.Dataset) -> Iterator[pa.RecordBatch]:
    """The batches of a DuckDB query, with our own errors.

    This generator refers only to the stream, whose end closes the connection. Arrow does not release the Python objects
    of an open stream when the process ends, and DuckDB would then report an error for its connection.
    """
    from floodmark.ledger.duckdb_table import raise_failure

    try:
        yield from reader
    except (pa.ArrowException, OSError) as error:
        raise_failure(records, error)
        raise
    finally:
        reader.close()


def checked_columns(
    layout: Layout, columns: Sequence[str] | None, name: str, side_columns: SideColumnSet | None = None
) -> tuple[str, ...]:
    """The columns to read: the requested ones, or all except system columns and hidden columns."""
    others = [] if side_columns is None else side_columns.schema.names
    if columns is None:
        return (*layout.shown.names, *others)
    known = dict.fromkeys([*layout.read_schema.names, *others])
    unknown = [c for c in columns if c not in known]
    if unknown:
        shown = [c for c in known if c not in layout.hidden]
        raise BadQuery(
            f"dataset {name!r} has no column {unknown[0]!r}",
            hint=f"choose from its columns: {', '.join(shown)}",
            column=unknown[0],
        )
    return tuple(columns)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_MISFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError)


def check_filter(where: pc.Expression, schema: pa.Schema) -> None:
    """Raise Arrow's error if a filter does not work on these columns."""
    # One row of nulls: Arrow does not compare the types for a table without rows.
    pa.table([pa.nulls(1, field.type) for field in schema], schema.names).filter(where)


def filter_fits(where: pc.Expression, schema: pa.Schema) -> bool:
    """Whether a filter works on these columns."""
    try:
        check_filter(where, schema)
    except _MISFIT:
        return False
    return True


def filter_columns(where: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns that a valid filter needs, and maybe more: Arrow shows them only in the text of the expression."""
    text = str(where)
    if "FieldPath(" in text:  # a column by number: numbers stay valid only with all columns
        return list(schema.names)
    named = [name for name in schema.names if name in text]
    return named if filter_fits(where, pa.schema([schema.field(name) for name in named])) else list(schema.names)
