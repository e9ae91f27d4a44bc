"""The changed keys of a refresh, and the input rows that have them.

T is the set of a view's grouping, join or key columns. A record changes its values of T, whether it adds, corrects
or retracts a row. Corrections and retractions repeat the old values, so a row that moves from one group to another
changes both groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from floodmark.derive.changed_keys import ChangedKeys, find_changed_keys, unique_keys
from floodmark.derive.key_shape import InputShape, KeyShape
from floodmark.derive.positions import NO_POSITION
from floodmark.derive.row_search import RowSearchResult, SearchLimitExceeded, SearchLimits, find_rows, read_rows
from floodmark.engine.rounds import LOCAL_READ_ROWS, TaskRunner
from floodmark.engine.session import Session
from floodmark.ledger.scan import Scan
from floodmark.ledger.schema import quote_name
from floodmark.ledger.selection import Selection
from floodmark.ledger.side_columns import append_columns
from floodmark.ledger.spark_read import spark_frame, table_frame
from floodmark.storage.arrays import I64, Hashes
from floodmark.views.analysis import Analysis
from floodmark.views.sources import ViewInputSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class InputCounts:
    """The number of new records of one input and of the values of T in them."""

    source: str
    records: int
    keys: int


@dataclass(frozen=True)
class ViewChanges:
    """The distinct values of T to recompute."""

    keys: pa.Table  # with the names and types of the view
    hashes: Hashes
    sources: tuple[InputCounts, ...]
    since: Mapping[str, int]  # by dataset id: the position after which records are new

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def records(self) -> int:
        """The number of new records in all inputs."""
        return sum(by.records for by in self.sources)


def find_changes(
    sources: Sequence[ViewInputSnapshot], analysis: Analysis, positions: Mapping[str, int], runner: TaskRunner
) -> ViewChanges:
    """The values of T of all records after the positions (by dataset id). An input without a position is new."""
    shape = view_key_shape(sources, analysis)
    since = {s.dataset_id: positions.get(s.dataset_id, NO_POSITION) for s in sources}
    changed = [_changed(source, shape, n, since[source.dataset_id], runner) for n, source in enumerate(sources)]
    keys, hashes = changed[0].keys, changed[0].hashes
    if len(changed) > 1:
        together = pa.concat_tables([c.keys for c in changed])
        keys, hashes = unique_keys(together, Hashes.joined([c.hashes for c in changed]))
    counts = [
        InputCounts(source.name, source.given.unread(since[source.dataset_id]), len(c))
        for source, c in zip(sources, changed, strict=True)
    ]
    return ViewChanges(keys, hashes, tuple(counts), since)


def read_keys_at(source: ViewInputSnapshot, analysis: Analysis, offsets: I64) -> pa.Table:
    """The values of T of the current rows at these sorted offsets."""
    shape = view_key_shape([source], analysis)
    selection = source.given.current_rows()
    return shape.part_of(0, read_rows(source.given, offsets, shape.inputs[0].own, selection).rows)


def view_key_shape(sources: Sequence[ViewInputSnapshot], analysis: Analysis) -> KeyShape:
    """The columns of T in each input, under the input's names. Every input has all of T."""
    known = pa.schema([*analysis.columns, *analysis.hidden])
    keys = pa.schema([pa.field(name, known.field(name).type) for name in analysis.t])
    return KeyShape(keys, tuple(_input(source, keys) for source in sources), "keyed")


def _input(source: ViewInputSnapshot, keys: pa.Schema) -> InputShape:
    own, strategy = dict(source.use.keys), source.given.strategy
    columns = pa.schema([]) if source.given.layout is None else source.given.layout.data
    return InputShape(
        name=source.name,
        dataset_id=source.dataset_id,
        keys={name: own[name] for name in keys.names},
        key=strategy.key,
        lookup=strategy.lookup,
        columns=columns,
        required=False,
        is_full=True,
    )


def is_by_offset(source: ViewInputSnapshot) -> bool:
    """Whether T is the offset of the input, so that each record is its own permanent row."""
    layout = source.given.layout
    return layout is not None and [column for _, column in source.use.keys] == [layout.vocab.offset]


def _records(source: ViewInputSnapshot, since: int) -> range:
    return range(max(since + 1, source.purged_before), max(source.given.end, since + 1, source.purged_before))


def _changed(source: ViewInputSnapshot, shape: KeyShape, number: int, since: int, runner: TaskRunner) -> ChangedKeys:
    if not is_by_offset(source):
        return find_changed_keys(source.given, shape, number, since, runner)
    new = _records(source, since)
    offsets = np.arange(new.start, new.stop)
    keys = pa.table([pa.array(offsets)], schema=shape.keys)
    return ChangedKeys(keys, shape.hash_keys(keys), offsets, offsets)


# Rows of changed keys

LOCAL_ROWS = 1 << 20
LOCAL_BYTES = 256 << 20
"""Up to this many rows and bytes of an input are sent from the driver to Spark, which reads larger inputs itself."""

LOCAL_WHOLE_ROWS = 1 << 16
"""An input with up to this many rows is sent to Spark as a whole, which is faster than a Spark job that reads it."""

_COMPUTED_BYTES = 1 << 10
"""The assumed size of a computed value whose type has no fixed width."""

_BROADCAST_KEYS = 1 << 18


@dataclass(frozen=True)
class LocalRows:
    """Rows in the memory of this process."""

    table: pa.Table


@dataclass(frozen=True)
class SparkRows:
    """Rows that Spark reads."""

    frame: DataFrame


@dataclass(frozen=True)
class _QueryColumns:
    """The columns of an input that the query reads, and injected columns that repeat some of them."""

    source: ViewInputSnapshot
    shown: tuple[str, ...]
    injected: tuple[tuple[str, str], ...]

    @staticmethod
    def of(source: ViewInputSnapshot, analysis: Analysis) -> _QueryColumns:
        return _QueryColumns(source, source.columns, tuple(analysis.inject.get(source.alias, ())))

    @property
    def read(self) -> tuple[str, ...]:
        """The columns of the input to read."""
        return tuple(dict.fromkeys([*self.shown, *(column for _, column in self.injected)]))

    def scan(self, selection: Selection, *more: str) -> Scan:
        given = self.source.given
        assert given.layout is not None
        columns = tuple(dict.fromkeys([*self.read, *more]))
        return Scan(given.snapshot.objects, given.layout, selection, columns, self.source.beside)

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns that are stored in side files, not in the slices."""
        known = () if self.source.beside is None else self.source.beside.schema.names
        return tuple(name for name in self.read if name in known)

    @property
    def own(self) -> tuple[str, ...]:
        """The columns that are stored in the slices."""
        return tuple(name for name in self.read if name not in self.beside)

    @property
    def row_bytes(self) -> float:
        """The estimated bytes per row. Where a type has no fixed width, the average size of a record counts."""
        given, beside = self.source.given, set(self.beside)
        schema = self.scan(given.records(given.end)).schema
        widths = {f.name: _width(f.type) for f in schema}
        own = [widths[name] for name in self.own]
        known = sum(w for w in own if w is not None)
        computed = sum(_COMPUTED_BYTES if (w := widths[name]) is None else w for name in beside)
        return (known if None not in own else max(known, given.row_bytes)) + computed

    def most(self, rows: int) -> int:
        """The smaller of `rows` and the number of rows that fit into LOCAL_BYTES."""
        return min(rows, int(LOCAL_BYTES / max(self.row_bytes, 1.0)))

    def from_located(self, found: RowSearchResult) -> pa.Table:
        """The rows with all columns, from rows that have only the slices' columns."""
        beside, names = self.source.beside, self.beside
        if beside is None or not names:
            return self.of_table(found.rows)
        values = beside.open(names).take(found.offsets)
        return self.of_table(
            append_columns(found.rows, values, pa.schema([beside.schema.field(name) for name in names]))
        )

    def of_table(self, table: pa.Table) -> pa.Table:
        columns = [table.column(name) for name in (*self.shown, *(column for _, column in self.injected))]
        return pa.Table.from_arrays(columns, names=[*self.shown, *(name for name, _ in self.injected)])

    def of_frame(self, frame: Any) -> Any:
        named = [frame[quote_name(column)].alias(name) for name, column in self.injected]
        return frame.select(*[frame[quote_name(name)] for name in self.shown], *named)


def read_changed_rows(
    source: ViewInputSnapshot, analysis: Analysis, touched: ViewChanges, session: Session
) -> LocalRows | SparkRows:
    """The current rows of an input that have one of the changed values of T."""
    columns = _QueryColumns.of(source, analysis)
    given = source.given
    if given.layout is None:
        return LocalRows(pa.table({}))
    if analysis.kind == "rows":
        return _since(columns, touched.since[source.dataset_id], session)
    try:
        # On a cluster, Spark scans many rows faster than this machine does.
        limits = SearchLimits(columns.most(LOCAL_ROWS), None if session.is_local else LOCAL_READ_ROWS)
        found = find_rows(given, view_key_shape([source], analysis), 0, touched.keys, columns.own, limits)
    except SearchLimitExceeded:
        return SparkRows(_semi_joined(columns, touched, session))
    return LocalRows(columns.from_located(found))


def read_rows_at(source: ViewInputSnapshot, analysis: Analysis, offsets: I64) -> pa.Table:
    """The current rows at these sorted offsets, with the same columns."""
    columns = _QueryColumns.of(source, analysis)
    return columns.from_located(read_rows(source.given, offsets, columns.own, source.given.current_rows()))


def read_all_rows(source: ViewInputSnapshot, analysis: Analysis, session: Session) -> LocalRows | SparkRows:
    """All current rows of an input."""
    columns = _QueryColumns.of(source, analysis)
    given = source.given
    scan = columns.scan(given.current_rows())
    if given.live_rows > columns.most(LOCAL_WHOLE_ROWS):
        return SparkRows(columns.of_frame(spark_frame(scan, session.get())))
    with given.raise_if_input_moved():
        return LocalRows(columns.of_table(scan.to_table()))


def _since(columns: _QueryColumns, position: int, session: Session) -> LocalRows | SparkRows:
    """The current rows among the records after a position. Changed keys without such a row were deleted."""
    living = columns.source.given.live_rows_since(position + 1)
    scan = columns.scan(living)
    if living.end - living.start - len(living.dead) > columns.most(LOCAL_ROWS):
        return SparkRows(columns.of_frame(spark_frame(scan, session.get())))
    with columns.source.given.raise_if_input_moved():
        return LocalRows(columns.of_table(scan.to_table()))


def _semi_joined(columns: _QueryColumns, touched: ViewChanges, session: Session) -> Any:
    """The rows that have one of the keys, by a Spark semi join; null equals null."""
    from pyspark.sql import functions as F  # noqa: N812

    own = dict(columns.source.use.keys)
    selection = columns.source.given.current_rows()
    frame = spark_frame(columns.scan(selection, *own.values()), session.get())
    names = [f"floodmark_t_{n}" for n in range(touched.keys.num_columns)]
    keys = table_frame(touched.keys.rename_columns(names), session.get())
    if len(touched) <= _BROADCAST_KEYS:
        keys = F.broadcast(keys)
    same = [
        frame[quote_name(own[key])].eqNullSafe(keys[name])
        for key, name in zip(touched.keys.column_names, names, strict=True)
    ]
    return columns.of_frame(frame.join(keys, reduce(lambda a, b: a & b, same), "left_semi"))


def _width(data_type: pa.DataType) -> float | None:
    try:
        return float(data_type.bit_width / 8)
    except ValueError:  # raised by Arrow for a type without a fixed width
        return None
