"""The rows that a view's query is run over: those of the values that were touched, or all of them.

The same SQL over the rows of these values alone, of every source, gives the view's rows of these values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.engine import Session
from floodmark.engine.rounds import MANY_ROWS
from floodmark.ledger.beside import joined
from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import Selection
from floodmark.ledger.spark_read import spark_frame
from floodmark.storage.arrays import I64
from floodmark.transform.views.analysed.analysis import Analysis
from floodmark.transform.views.local_frame import local_frame
from floodmark.transform.views.reading.found import Found, Limits, TooMany, find_rows, read_rows
from floodmark.transform.views.reading.sources import PinnedSource
from floodmark.transform.views.reading.touched import Touched, shape_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SMALL_ROWS = 1 << 20
SMALL_BYTES = 256 << 20
"""So many rows of a source, and so much, are handed to Spark from here; more it reads itself."""

FEW_ROWS = 1 << 16
"""A source of so few rows is handed to Spark as a whole: that is quicker than a job that reads it."""

_COMPUTED_BYTES = 1 << 10
"""About what a value of a computed column takes whose type does not tell."""

_BROADCAST_KEYS = 1 << 18


@dataclass(frozen=True)
class Small:
    """Rows that are here."""

    table: pa.Table


@dataclass(frozen=True)
class Large:
    """Rows that Spark reads."""

    frame: DataFrame


@dataclass(frozen=True)
class _Columns:
    """What the query sees of a source: columns under their names, and injected ones that repeat some."""

    source: PinnedSource
    shown: tuple[str, ...]
    injected: tuple[tuple[str, str], ...]

    @staticmethod
    def of(source: PinnedSource, analysis: Analysis) -> _Columns:
        return _Columns(source, source.columns, tuple(analysis.inject.get(source.alias, ())))

    @property
    def read(self) -> tuple[str, ...]:
        """What has to be read."""
        return tuple(dict.fromkeys([*self.shown, *(column for _, column in self.injected)]))

    def scan(self, selection: Selection, *more: str) -> Scan:
        given = self.source.given
        assert given.layout is not None
        columns = tuple(dict.fromkeys([*self.read, *more]))
        return Scan(given.snapshot.objects, given.layout, selection, columns, self.source.beside)

    @property
    def beside(self) -> tuple[str, ...]:
        """Those that do not lie in the records' own files."""
        known = () if self.source.beside is None else self.source.beside.schema.names
        return tuple(name for name in self.read if name in known)

    @property
    def own(self) -> tuple[str, ...]:
        """Those that do."""
        return tuple(name for name in self.read if name not in self.beside)

    @property
    def row_bytes(self) -> float:
        """About how many bytes a row takes; a record counts as a whole where the type of a column does not tell."""
        given, beside = self.source.given, set(self.beside)
        schema = self.scan(given.records(given.end)).schema
        widths = {f.name: _width(f.type) for f in schema}
        own = [widths[name] for name in self.own]
        known = sum(w for w in own if w is not None)
        computed = sum(_COMPUTED_BYTES if (w := widths[name]) is None else w for name in beside)
        return (known if None not in own else max(known, given.row_bytes)) + computed

    def most(self, rows: int) -> int:
        """So many rows at most, as far as they are not too much."""
        return min(rows, int(SMALL_BYTES / max(self.row_bytes, 1.0)))

    def of_found(self, found: Found) -> pa.Table:
        """Rows of which the records' own columns are known."""
        beside, names = self.source.beside, self.beside
        if beside is None or not names:
            return self.of_table(found.rows)
        values = beside.open(names).take(found.offsets)
        return self.of_table(joined(found.rows, values, pa.schema([beside.schema.field(name) for name in names])))

    def of_table(self, table: pa.Table) -> pa.Table:
        columns = [table.column(name) for name in (*self.shown, *(column for _, column in self.injected))]
        return pa.Table.from_arrays(columns, names=[*self.shown, *(name for name, _ in self.injected)])

    def of_frame(self, frame: Any) -> Any:
        named = [frame[_quoted(column)].alias(name) for name, column in self.injected]
        return frame.select(*[frame[_quoted(name)] for name in self.shown], *named)


def rows_of(source: PinnedSource, analysis: Analysis, touched: Touched, session: Session) -> Small | Large:
    """The current rows of a source that have one of the touched values of T."""
    columns = _Columns.of(source, analysis)
    given = source.given
    if given.layout is None:
        return Small(pa.table({}))
    if analysis.kind == "rows":
        return _since(columns, touched.since[source.dataset_id], session)
    try:
        # Where Spark has other machines, they look at many rows sooner than this one.
        limits = Limits(columns.most(SMALL_ROWS), None if session.is_local else MANY_ROWS)
        found = find_rows(given, shape_of([source], analysis), 0, touched.keys, columns.own, limits)
    except TooMany:
        return Large(_semi_joined(columns, touched, session))
    return Small(columns.of_found(found))


def rows_at(source: PinnedSource, analysis: Analysis, offsets: I64) -> pa.Table:
    """The current rows at these offsets, which are sorted, with the same columns."""
    columns = _Columns.of(source, analysis)
    return columns.of_found(read_rows(source.given, offsets, columns.own, source.given.current_rows()))


def whole_of(source: PinnedSource, analysis: Analysis, session: Session) -> Small | Large:
    """All current rows of a source."""
    columns = _Columns.of(source, analysis)
    given = source.given
    scan = columns.scan(given.current_rows())
    if given.live_rows > columns.most(FEW_ROWS):
        return Large(columns.of_frame(spark_frame(scan, session.get())))
    with given.steady():
        return Small(columns.of_table(scan.to_table()))


def _since(columns: _Columns, position: int, session: Session) -> Small | Large:
    """The current rows among the records after a position: who was touched and is not there has no row any more."""
    living = columns.source.given.living_since(position + 1)
    scan = columns.scan(living)
    if living.end - living.start - len(living.dead) > columns.most(SMALL_ROWS):
        return Large(columns.of_frame(spark_frame(scan, session.get())))
    with columns.source.given.steady():
        return Small(columns.of_table(scan.to_table()))


def _semi_joined(columns: _Columns, touched: Touched, session: Session) -> Any:
    """All rows, joined by Spark with the keys; null equals null."""
    from pyspark.sql import functions as F  # noqa: N812

    own = dict(columns.source.use.keys)
    selection = columns.source.given.current_rows()
    frame = spark_frame(columns.scan(selection, *own.values()), session.get())
    names = [f"floodmark_t_{n}" for n in range(touched.keys.num_columns)]
    keys = local_frame(touched.keys.rename_columns(names), session.get())
    if len(touched) <= _BROADCAST_KEYS:
        keys = F.broadcast(keys)
    same = [
        frame[_quoted(own[key])].eqNullSafe(keys[name])
        for key, name in zip(touched.keys.column_names, names, strict=True)
    ]
    return columns.of_frame(frame.join(keys, reduce(lambda a, b: a & b, same), "left_semi"))


def _width(data_type: pa.DataType) -> float | None:
    try:
        return float(data_type.bit_width / 8)
    except ValueError:  # Arrow: of a type without a fixed width
        return None


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
