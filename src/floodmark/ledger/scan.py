"""Scanning: the records of a selection as Arrow data, without a JVM."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.ledger.beside import (
    Beside,
    Located,
    WholeColumns,
    counted,
    is_dense,
    joined,
    no_columns,
    side_by_side,
)
from floodmark.ledger.errors import BadQuery, UnreadableSlice
from floodmark.ledger.expressions import check_fits, fields_of, fits
from floodmark.ledger.layout import Layout
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.selection import Selection
from floodmark.storage.arrays import I64
from floodmark.storage.arrow_files import arrow_filesystem

if TYPE_CHECKING:
    import pyarrow.dataset as pa_ds

Where = Any
"""SQL text, an Arrow expression, or None."""

_INSTEAD = "a folded file is damaged (%s): its slices are read, and fold() makes it anew"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scan:
    """Some columns of a selection, in offset order: those of the records, and those that lie beside them."""

    objects: DatasetObjects
    layout: Layout
    selection: Selection
    columns: tuple[str, ...]
    beside: Beside | None = None

    @property
    def schema(self) -> pa.Schema:
        full = self.full_schema
        return pa.schema([full.field(name) for name in self.columns])

    @property
    def full_schema(self) -> pa.Schema:
        """All columns that can be asked for."""
        return pa.schema([*self.layout.read_schema, *self._beside_schema])

    @property
    def data_names(self) -> tuple[str, ...]:
        """All columns but those of the system and those that are hidden."""
        return (*self.layout.shown.names, *self._beside_schema.names)

    @property
    def _beside_schema(self) -> pa.Schema:
        return pa.schema([]) if self.beside is None else self.beside.schema

    def needs_beside(self, where: pc.Expression | None = None) -> bool:
        """Whether a column that is asked for, or looked at by the filter, does not lie in the records' own files."""
        if self.beside is None:
            return False
        known = set(self.beside.schema.names)
        return not known.isdisjoint(self.columns) or (where is not None and not fits(where, self.layout.read_schema))

    def dataset(self) -> pa_ds.Dataset:
        """The records' own files as one Arrow dataset, into which scanners and DuckDB push columns and filters.

        It may hold records outside of the selection: `filter` leaves them out.
        """
        import pyarrow.dataset as pa_ds  # late: it imports pandas, which a command that reads no data can do without
        import pyarrow.fs as pa_fs

        keys = [f.key for f in self.selection.files]
        paths = [self.objects.store.local_path(key) for key in keys]
        filesystem: Any
        sources: list[str]
        if all(path is not None for path in paths):
            filesystem, sources = pa_fs.LocalFileSystem(), [str(path) for path in paths]
        else:
            filesystem, sources = arrow_filesystem(self.objects.store), keys
        # Folded files have checksums in their pages; slices have none, which costs nothing.
        file_format = pa_ds.ParquetFileFormat(
            default_fragment_scan_options=pa_ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        )
        fragments = [file_format.make_fragment(source, filesystem) for source in sources]
        return pa_ds.FileSystemDataset(fragments, self.layout.read_schema, file_format, filesystem)

    def filter(self) -> pc.Expression | None:
        """What keeps the records of the selection, None when every record of its files belongs to it."""
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
        """The files, and what keeps the records between start and end: nothing where whole row groups do."""
        import pyarrow.dataset as pa_ds

        dataset, bounds = self.dataset(), self._bounds()
        if bounds is None or len(self.selection.files) > 1 or self.selection.files[0].absent:
            return dataset, bounds
        [fragment], [file] = dataset.get_fragments(), self.selection.files
        part = fragment.subset(bounds, schema=self.layout.read_schema)
        wanted = min(self.selection.end, file.end) - max(self.selection.start, file.start)
        if sum(group.num_rows for group in part.row_groups) > wanted:
            return dataset, bounds
        return pa_ds.FileSystemDataset([part], dataset.schema, dataset.format, dataset.filesystem), None

    def scanner(self, where: pc.Expression | None = None) -> pa_ds.Scanner:
        """Arrow's own scanner over the records, with a filter of the caller's."""
        if not self.needs_beside(where):
            return self.records_scanner(where)
        import pyarrow.dataset as pa_ds

        return pa_ds.Scanner.from_batches(self.batches(where), schema=self.schema)

    def records_scanner(self, where: pc.Expression | None) -> pa_ds.Scanner:
        """The same when no column beside the records is needed."""
        mine = self.filter()
        both = mine if where is None else where if mine is None else mine & where
        return self.dataset().scanner(columns=list(self.columns), filter=both)

    def batches(self, where: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """The records batch by batch in offset order, those that an Arrow expression keeps."""
        if self.needs_beside(where):
            yield from self._wide_batches(where)
        else:
            yield from self._records(where)

    def _records(self, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """The same when no column beside the records is needed."""
        dataset, bounds = self._bounded()
        both = bounds if where is None else where if bounds is None else bounds & where
        if not self.selection.has_dead:
            yield from dataset.scanner(columns=list(self.columns), filter=both).to_batches()
            return
        # Arrow would hash the offsets of every record to look it up among the dead; both are in order, so we need not.
        read = list(dict.fromkeys([*self.columns, self.layout.vocab.offset]))
        for batch in dataset.scanner(columns=read, filter=both).to_batches():
            kept = alive(batch.column(self.layout.vocab.offset).to_numpy(), self.selection.dead)
            living = batch if kept is None else batch.filter(pa.array(kept))
            yield living.select(list(self.columns))

    def _wide_batches(self, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """The records with columns beside them. Only a filter that fits the records is left to the reader of files."""
        import pyarrow.dataset as pa_ds

        assert self.beside is not None
        early = where is None or fits(where, self.layout.read_schema)
        looked_at = [] if early or where is None else fields_of(where, self.full_schema)
        own, others = self._apart([*self.columns, *looked_at])
        located = self._located(own, where if early else None)
        beside = pa.schema([self.beside.schema.field(name) for name in others])
        for table in side_by_side(located, self.beside.open(others), beside):
            if early:
                yield from table.select(list(self.columns)).to_batches()
            else:
                # Filters may name columns by number. A scanner keeps the order of rows, Table.filter may not.
                ordered = table.select([n for n in self.full_schema.names if n in table.column_names])
                found = pa_ds.InMemoryDataset(ordered).scanner(columns=list(self.columns), filter=where)
                yield from found.to_batches()

    def _apart(self, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns of the records among these, each once, and those beside them."""
        beside = set(self._beside_schema.names)
        once = dict.fromkeys(names)
        return tuple(n for n in once if n not in beside), tuple(n for n in once if n in beside)

    def _located(self, columns: tuple[str, ...], where: pc.Expression | None) -> Iterator[Located]:
        """Columns of the records with the offset of each, which are not read where counting gives them."""
        start, end = self.selection.start, self.selection.end
        if where is None and is_dense(self.selection):
            own = replace(self, columns=columns, beside=None)
            return counted(start, own._records(None) if columns else no_columns(end - start))
        offset = self.layout.vocab.offset
        own = replace(self, columns=tuple(dict.fromkeys([*columns, offset])), beside=None)
        return (Located(batch.column(offset).to_numpy(), batch) for batch in own._records(where))

    def _wide_table(self) -> pa.Table:
        """All records with columns beside them; where counting gives their offsets, everything is read at once."""
        assert self.beside is not None
        own, others = self._apart(self.columns)
        if not is_dense(self.selection):
            return pa.Table.from_batches(self.batches(), self.schema)
        reading = WholeColumns(self.beside, others, range(self.selection.start, self.selection.end))
        records = replace(self, columns=own, beside=None)._records_table() if own else pa.table({})
        beside = pa.schema([self.beside.schema.field(name) for name in others])
        return joined(records, reading.result(), beside).select(list(self.columns))

    def _records_table(self) -> pa.Table:
        if self.selection.has_dead:
            return pa.Table.from_batches(self._records(None))
        return self.dataset().scanner(columns=list(self.columns), filter=self._bounds()).to_table()

    def to_table(self) -> pa.Table:
        if self.selection.is_empty:
            return self.schema.empty_table()
        try:
            with self.readable():
                table = self._wide_table() if self.needs_beside() else self._records_table()
        except UnreadableSlice as error:
            if (instead := self._unfolded()) is None:
                raise
            _log.warning(_INSTEAD, error.message)
            return instead.to_table()
        # A cast forgets how many rows a table without columns has.
        return table if table.schema.equals(self.schema) else table.cast(self.schema)

    def _unfolded(self) -> Scan | None:
        """The same records from slices alone; None when folded files have no part in these."""
        return None if self.selection.unfolded is None else replace(self, selection=self.selection.unfolded())

    def to_reader(self, where: Where) -> pa.RecordBatchReader:
        """The records as a stream of batches, those that `where` (SQL or an Arrow expression) keeps."""
        if isinstance(where, str):
            return self._sql_reader(where)
        try:
            if where is not None:
                check_fits(where, self.full_schema)  # wrong now, not when the stream is read
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
            raise BadQuery(
                f"the filter {where} does not work: {error}", hint="give SQL text or a pyarrow.compute expression"
            ) from error
        if self.selection.is_empty:
            return pa.RecordBatchReader.from_batches(self.schema, [])
        return self._guarded(self.batches(where), lambda scan: scan.batches(where))

    def _sql_reader(self, where: str) -> pa.RecordBatchReader:
        try:
            batches = self._sql_batches(where)
        except (BadQuery, UnreadableSlice) as error:
            # DuckDB has one kind of error for a wrong filter and for a damaged file; slices tell which it is.
            if (instead := self._unfolded()) is None:
                raise
            reader = instead._sql_reader(where)
            _log.warning(_INSTEAD, error.message)
            return reader
        return self._guarded(batches, lambda scan: scan._sql_batches(where))

    def _sql_batches(self, where: str) -> Iterable[pa.RecordBatch]:
        import duckdb

        from floodmark.ledger.duckdb_table import raise_failure

        connection = duckdb.connect()
        records = self.filtered()
        try:
            connection.execute("set timezone = 'UTC'")  # not the machine's: an answer depends on the data alone
            connection.register("records", records)
            connection.extract_statements(f"select 1 where {where}")  # brackets that close ours are refused so
            names = ", ".join(_quoted(name) for name in self.columns)
            reader = connection.sql(f"select {names} from records where ({where}\n)").to_arrow_reader()
        except duckdb.Error as error:
            raise_failure(records, error)
            raise BadQuery(
                f"the filter {where!r} does not work: {error}", hint="it is the WHERE part of SQL"
            ) from error
        return _answers(reader, records)

    def filtered(self) -> pa_ds.Dataset:
        """The records of the selection and no others, for DuckDB, which filters and joins them as it likes."""
        if self.beside is not None:
            from floodmark.ledger.duckdb_table import ScanTable

            return ScanTable(self)
        mine = self.filter()
        return self.dataset() if mine is None else self.dataset().filter(mine)

    def _guarded(
        self, batches: Iterable[pa.RecordBatch], again: Callable[[Scan], Iterable[pa.RecordBatch]]
    ) -> pa.RecordBatchReader:
        """The same stream, with the dataset's own types and errors; `again` opens it on another scan."""
        return pa.RecordBatchReader.from_batches(self.schema, self._stream(batches, again))

    def _stream(
        self, batches: Iterable[pa.RecordBatch], again: Callable[[Scan], Iterable[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        rows = 0
        try:
            with self.readable():
                for batch in batches:
                    rows += batch.num_rows
                    yield batch if batch.schema.equals(self.schema) else batch.cast(self.schema)
            return
        except UnreadableSlice as error:
            if (instead := self._unfolded()) is None:
                raise
            if rows:
                raise UnreadableSlice(
                    f"a folded copy of the rows is damaged, found after {rows} of them were read: {error.message}",
                    hint="fold() makes it anew from the slices; then read again",
                ) from error
            _log.warning(_INSTEAD, error.message)
        yield from instead._stream(again(instead), again)

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Turn what Arrow says of a missing or damaged file into what the user can do about it."""
        try:
            yield
        except pa.ArrowCancelled:
            raise
        except (pa.ArrowException, OSError) as error:
            raise UnreadableSlice(
                f"records {self.selection.start} to {self.selection.end - 1} cannot all be read: {error}",
                hint="a file of the dataset is missing or damaged: verify says which",
            ) from error


def alive(offsets: I64, dead: I64) -> npt.NDArray[np.bool_] | None:
    """Which of these offsets are not among the dead, None when all are; both are sorted."""
    if len(offsets) == 0:
        return None
    low, high = np.searchsorted(dead, [offsets[0], offsets[-1] + 1])
    if low == high:
        return None
    near = dead[low:high]
    at = np.searchsorted(offsets, near)
    kept = np.ones(len(offsets), np.bool_)
    kept[at[offsets[at] == near]] = False  # a folded file has left out some of the dead already
    return kept


def _answers(reader: pa.RecordBatchReader, records: pa_ds.Dataset) -> Iterator[pa.RecordBatch]:
    """What DuckDB answers, with our own errors.

    Nothing of DuckDB's is kept here but the stream, which ends its connection: Arrow leaves alone whatever Python
    object a stream still has when the process ends, and DuckDB complains of its own.
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
    layout: Layout, columns: Sequence[str] | None, name: str, beside: Beside | None = None
) -> tuple[str, ...]:
    """The columns to read: all but hidden ones and those of the system, or those asked for."""
    others = [] if beside is None else beside.schema.names
    if columns is None:
        return (*layout.shown.names, *others)
    known = [*layout.read_schema.names, *others]
    unknown = [c for c in columns if c not in known]
    if unknown:
        shown = [c for c in known if c not in layout.hidden]
        raise BadQuery(
            f"dataset {name!r} has no column {unknown[0]!r}", hint=f"it has {', '.join(shown)}", column=unknown[0]
        )
    return tuple(columns)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
