"""`Dataset`: a ledger, its rows, its computed columns and its timeline behind one interface.

The backfill code is imported by the calls that need it, so that a command that only reads datasets does not load it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from floodmark.chain.events import DatasetKind, SourceState
from floodmark.chain.ids import DatasetId, Multihash
from floodmark.columns.catalog import Catalog, ColumnDefinition
from floodmark.columns.columns import ColumnStatus, ComputedColumns
from floodmark.columns.snapshot import load_column_values
from floodmark.errors import BadData, BadStep, DatasetInUse, UnknownColumns
from floodmark.ledger.block_attributes import ERASE_SOURCE, PURGE_SOURCE
from floodmark.ledger.commit import Commit, to_datetime
from floodmark.ledger.data_input import Format, recognise
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.log import LogEntry
from floodmark.ledger.names import require_entry
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.position import Position, position_at
from floodmark.ledger.readers import find_holders
from floodmark.ledger.scan import Scan, Where
from floodmark.ledger.schema import fields_from, vocabulary
from floodmark.ledger.selection import AsOf
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.spark_read import ordered_frame, spark_frame
from floodmark.ledger.strategy import Strategy, strategy_of
from floodmark.ledger.verify import VerifyProblem, VerifyReport
from floodmark.rows.erase import EraseReport
from floodmark.rows.fold import FoldReport
from floodmark.rows.purge import PurgeReport
from floodmark.rows.rows import Rows, SideColumnsLoader
from floodmark.timeline import read as ordered_by_time
from floodmark.timeline.fold import EMPTY_REPORT, add_reports
from floodmark.timeline.root import LastUpdate, Root
from floodmark.timeline.sections import Moment
from floodmark.timeline.timeline import Timeline, TimelinePieces, TimelineStats

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from floodmark.columns.backfill import BackfillReport
    from floodmark.columns.checkpoint_store import CheckpointStore
    from floodmark.columns.garbage import ColumnGarbage
    from floodmark.columns.survey import BackfillPlan
    from floodmark.functions.udf import Udf

_SOURCE_KIND = "floodmark.dev/state"


@dataclass(frozen=True)
class DatasetParts:
    """The four parts of a dataset: columns and timeline use ledger and rows, but not each other."""

    ledger: Ledger
    rows: Rows
    columns: ComputedColumns
    timeline: Timeline

    @classmethod
    def of(cls, ledger: Ledger, side_columns: SideColumnsLoader = load_column_values) -> DatasetParts:
        """The parts of the dataset that has this ledger."""
        rows = Rows(ledger, side_columns)
        return cls(ledger, rows, ComputedColumns(ledger, rows), Timeline(ledger, rows))

    def follow(self, snapshot: Snapshot) -> None:
        """Update the timeline after a write that did not go through these parts and left this snapshot."""
        self.ledger.latest = snapshot
        self.timeline.follow()


class Dataset:
    """An append-only sequence of records numbered 0, 1, 2, …, with its current rows and the data derived from it.

    `Lake.create` creates one and `lake["name"]` opens one. Every call reads the current head; what the object caches
    only avoids repeated reads.
    """

    parts: DatasetParts

    def __init__(self, *_: object, **__: object) -> None:
        kind = type(self).__name__
        raise BadStep(
            f"floodmark.{kind} is not a declaration: only a lake returns it",
            hint=f"declare floodmark.{kind}Spec(…) in a pipeline, or open an existing one: Lake('lake')['name']",
        )

    @classmethod
    def open(cls, ledger: Ledger) -> Self:
        """The dataset with this ledger."""
        dataset = object.__new__(cls)
        dataset.parts = DatasetParts.of(ledger)
        return dataset

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.parts.ledger.objects.store.url!r})"

    # Identity and state

    @property
    def name(self) -> str:
        """The name under which the dataset was opened."""
        return self.parts.ledger.name

    @property
    def id(self) -> DatasetId:
        """The dataset's permanent id. It does not change when the dataset is renamed."""
        found = self.snapshot().state.dataset_id
        assert found is not None  # every chain starts with a Seed
        return found

    @property
    def kind(self) -> DatasetKind:
        """Root (takes data from outside) or derivative (computed from other datasets)."""
        found = self.snapshot().state.dataset_kind
        assert found is not None
        return found

    @property
    def schema(self) -> pa.Schema | None:
        """The data columns; None before the first write."""
        layout = self.snapshot().layout
        return None if layout is None else layout.shown

    @property
    def event_time(self) -> str | None:
        """The column with the event time of a record; None if the event time is the time of the write."""
        snapshot = self.snapshot()
        if snapshot.layout is not None:
            return snapshot.layout.event_time
        return snapshot.state.vocab.event_time_column if snapshot.state.vocab else None

    @property
    def system_columns(self) -> tuple[str, str, str]:
        """The names of the columns with the offset, the operation and the system time; `vocab=` can change them."""
        return vocabulary(self.snapshot().state.vocab).reserved

    @property
    def head(self) -> Multihash:
        """The hash of the newest block."""
        return self.snapshot().head

    @property
    def last_offset(self) -> int | None:
        """The offset of the newest record; None if the dataset has no records."""
        return self.snapshot().state.last_offset

    @property
    def watermark(self) -> datetime | None:
        """The event time up to which the data is declared complete."""
        watermark = self.snapshot().state.watermark
        return None if watermark is None else to_datetime(watermark)

    def snapshot(self) -> Snapshot:
        """The dataset at its current head; read again only if the head has moved."""
        return self.parts.ledger.snapshot()

    # Write

    def write(
        self, data: Any, *, source: str | None = None, state: str | None = None, read: Format | None = None
    ) -> Commit:
        """Write a frame (Spark, pandas, Polars, Arrow) or files (a path or glob of Parquet, CSV or JSON).

        The merge strategy decides what happens to the rows: without a key, each becomes a new record; with a key, only
        real changes become records. All rows become visible at once. With `source` and `state` the write is idempotent:
        the same pair again returns the first commit. `read` names the file format where the file names do not show it.
        """
        source_state = _source_state(source, state)
        incoming = recognise(data, read)
        writer = self.parts.rows.write if self.strategy.is_keyed else self.parts.ledger.append
        return self._followed(lambda: writer(incoming, source_state))

    def store_chunk(
        self,
        data: Any,
        processed_idx: Any = None,
        now: datetime | float | None = None,
        *,
        source: str | None = None,
        state: str | None = None,
    ) -> Commit:
        """Upsert a frame; current rows that `processed_idx` names and the frame lacks are retracted.

        `processed_idx` has all or some of the key columns. `now` is a time, or seconds since 1970 as `time.time()`
        gives; it is recorded on the chain and shown in the log. It does not change offsets or system times, so a `now`
        in the past loses no data.
        """
        write = self.parts.rows.store_chunk
        return self._followed(lambda: write(data, processed_idx, now, _source_state(source, state)))

    def delete(self, keys: Any) -> Commit:
        """Retract the current rows with these keys. Keys without a current row are counted as `unknown`.

        `keys` is a frame or a list of dicts with all key columns, or with some of them to match several rows. For a key
        of one column, a list of its values also works.
        """
        return self._followed(lambda: self.parts.rows.delete(keys))

    def _followed(self, write: Callable[[], Commit]) -> Commit:
        """Write, and do the work that follows a write (fold, timeline)."""
        try:
            commit = write()
        except UnknownColumns as error:
            self.parts.columns.check_not_given(error.columns)
            raise
        self.parts.rows.fold_if_due()
        self.parts.timeline.follow()
        return commit

    def advance_watermark(self, to: datetime | date | str) -> Commit | None:
        """Declare the data complete up to a time; None if the watermark already has that time.

        The time must have a time zone, unless the event time column has none. A date is midnight in UTC.
        """
        return self.parts.ledger.advance_watermark(to)

    def evolve(self, added: pa.Schema | Mapping[str, Any] | StructType | str) -> pa.Schema:
        """Add optional columns, given as a schema or as names and types. They are null in older records.

        A complete new schema is also accepted. It may add and reorder columns, and nothing else.
        """
        self.parts.columns.check_free([f.name for f in fields_from(added)])
        return self.parts.ledger.evolve(added)

    def purge(self, before: int | str | date | datetime) -> PurgeReport:
        """Permanently remove old slices: those whose records are all before an offset or an event time.

        The time must have a time zone, unless the event time column has none. A date is midnight in UTC.

        With a key, only history is removed: current rows of these slices are first written again at the end, marked as
        carried, and readers that have read them skip them. The chain and the offsets of other records stay. Only whole
        slices are removed, so some older records may remain. Values computed from the removed records are removed too.
        """
        parts = self.parts
        done = parts.rows.purge(before)
        after = parts.ledger.latest
        parts.timeline.drop_purged()
        if done.carried:
            parts.timeline.follow()
        if after is not None:
            parts.columns.drop_purged(after)
        return done

    def erase(self, keys: Any) -> EraseReport:
        """Remove every version of some keys from every file of the dataset, permanently.

        `keys` is as in `delete`. The slices with their records are written again without these records' values. The
        chain, the offsets and all other records stay. The chain records which files were replaced, and the hashes of
        the keys. `DatasetInUse` if other datasets are computed from this one: `Lake.erase` erases their records, too.
        """
        self._check_not_read("erased")
        parts = self.parts
        done = parts.rows.erase(keys)
        after = parts.ledger.latest
        assert after is not None
        parts.columns.drop_erased(after)
        parts.timeline.drop_erased()
        return done

    def plan_erase(self, keys: Any) -> EraseReport:
        """What `erase` would do. Changes nothing."""
        return self.parts.ledger.retry_if_replaced(self.parts.rows.plan_erase, keys)

    def _check_not_read(self, done: str) -> None:
        """Raise `DatasetInUse` if other datasets are computed from this one."""
        ledger = self.parts.ledger
        holders = find_holders(ledger.objects.store, require_entry(ledger.objects.store, ledger.name))
        if holders:
            raise DatasetInUse(
                f"no key of {ledger.name!r} was {done}: {', '.join(holders)} {'is' if len(holders) == 1 else 'are'} "
                "computed from it and may have its values",
                hint=f"use lake.erase({ledger.name!r}, keys) or `floodmark erase {ledger.name} COLUMN=VALUE`: "
                "these erase what was computed, too",
                dataset=ledger.name,
                readers=list(holders),
            )

    def plan_purge(self, before: int | str | date | datetime) -> PurgeReport:
        """What `purge` would remove and carry. Changes nothing."""
        return self.parts.ledger.retry_if_replaced(self.parts.rows.plan_purge, before)

    # Read

    def read(self, *, as_of: AsOf = None, system: bool = False, columns: Sequence[str] | None = None) -> DataFrame:
        """The data columns, or the given `columns`, as a Spark frame.

        `system=True` adds offset, op and system_time. `as_of` reads the past: an offset, a block hash or a time, which
        must have a time zone.
        """
        scan = self.parts.ledger.retry_if_replaced(self.parts.rows.scan, as_of, columns)
        if system:
            scan = replace(scan, columns=tuple(dict.fromkeys([*scan.layout.vocab.reserved, *scan.columns])))
        frame: DataFrame = spark_frame(scan, self._spark())
        return frame

    def position(self, offset: int | None = None) -> Position:
        """The position of a record, by default of the newest. A consumer stores it and continues after it by `since=`.

        It names the dataset, so that `changes` refuses it after the dataset was dropped and created again.
        """
        return position_at(self.snapshot(), self.name, offset)

    def changes(self, since: int | Position | None = None, until: int | Position | None = None) -> DataFrame:
        """The records after `since`, up to and including `until`, in offset order, with system columns.

        Both are offsets or positions. A `since` that is not in this dataset raises `BadPosition`.
        """
        scan = self.parts.ledger.retry_if_replaced(self.parts.ledger.changes, since, until)
        frame: DataFrame = ordered_frame(scan, self._spark())
        return frame

    def _spark(self) -> SparkSession:
        return self.parts.ledger.runtime.session.get()

    def changes_arrow(self, since: int | Position | None = None, until: int | Position | None = None) -> pa.Table:
        """Like `changes`, but as an Arrow table and without a JVM."""
        return self.parts.ledger.retry_if_replaced(self.parts.ledger.changes, since, until).to_table()

    def to_arrow(self, *, as_of: AsOf = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The data as an Arrow table in offset order, without a JVM."""
        return self.parts.ledger.retry_if_replaced(self.parts.rows.scan, as_of, columns).to_table()

    def to_pandas(self, *, as_of: AsOf = None, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The data as a pandas frame in offset order, without a JVM."""
        frame: pd.DataFrame = self.to_arrow(as_of=as_of, columns=columns).to_pandas()
        return frame

    def to_batches(
        self, columns: Sequence[str] | None = None, where: Where = None, *, as_of: AsOf = None
    ) -> pa.RecordBatchReader:
        """The data as a stream of record batches in offset order, without a JVM. DuckDB and Polars accept it.

        `columns` may include system columns; `where` is a SQL WHERE condition or an Arrow expression.
        """
        return self.parts.ledger.retry_if_replaced(self.parts.rows.scan, as_of, columns).to_reader(where)

    def scan(self, *, as_of: AsOf = None) -> Scan:
        """A scan of all columns, including system columns, for callers that push filters and columns down."""
        scan = self.parts.ledger.retry_if_replaced(self.parts.rows.scan, as_of, None)
        return replace(scan, columns=(*scan.layout.vocab.reserved, *scan.data_names))

    def count(self) -> int:
        """The number of current rows (with a key) or of records (without a key). Reads no data."""
        return self.parts.ledger.retry_if_replaced(self.parts.rows.count)

    def fold(self, partition: str | None = None) -> FoldReport:
        """Copy the live rows of small or half-dead slices into large files, which are faster to read (compaction).

        The ledger does not change. The copies are derived, and reading without them gives the same rows. A fold also
        runs automatically when many records are dead (`Runtime.fold_at`) or when there are many small slices.

        The timeline is folded too: waiting rows are merged, dead rows are left out, and small row groups are combined.
        With `partition`, such as "2026-11-01", only this partition of the timeline is folded.
        """
        parts = self.parts
        if partition is not None:
            return parts.timeline.fold(partition)
        if parts.timeline.settings() is None:
            return parts.ledger.retry_if_replaced(parts.rows.fold)
        if self.schema is None:
            return EMPTY_REPORT
        return add_reports(parts.ledger.retry_if_replaced(parts.rows.fold), parts.timeline.fold())

    # By key

    def get(self, keys: Any) -> pa.Table:
        """The current rows with these keys, without a JVM. Keys without a current row are left out.

        `keys` is a frame or a list of dicts with all key columns, or with some of them to match several rows. For a key
        of one column, a list of its values also works.
        """
        return self.parts.ledger.retry_if_replaced(self.parts.rows.get, keys)

    def history(self, keys: Any) -> pa.Table:
        """Every record with these keys in offset order: each version of a row, its time and its operation."""
        return self.parts.ledger.retry_if_replaced(self.parts.rows.history, keys)

    @property
    def strategy(self) -> Strategy:
        """The merge strategy and its columns."""
        return strategy_of(self.snapshot().state)

    # Log and verification

    def log(self) -> Iterator[LogEntry]:
        """The blocks, newest first, each with a one-sentence summary."""
        return self.parts.ledger.log()

    def verify(self, expect: str | None = None) -> VerifyReport:
        """Check every block against the rules and every file against its hashes, including derived files.

        The chain must also have the block with the hash `expect`. By default this is the newest block that this machine
        has seen, so an older `refs/head` is a problem. With `expect` the present head counts as seen from then on.
        """
        parts = self.parts
        report = parts.ledger.verify(expect)
        rows = () if report.problems else parts.rows.problems()  # checked against the ledger, which must be intact
        notes = () if report.problems else _note_problems(parts.ledger.objects, self.head)
        problems = (*report.problems, *rows, *notes, *parts.timeline.problems(), *parts.columns.problems())
        return replace(report, problems=problems)

    # Timeline

    def timeline(self, start: Moment = None, end: Moment = None, *, columns: Sequence[str] | None = None) -> DataFrame:
        """The current rows with event times in [start, end) as a Spark frame in event-time order.

        Times are text or datetimes with a time zone, or dates (midnight in UTC). A time without a zone fits only an
        event time column without one. `columns` may include system columns.
        """
        reading = self.parts.timeline.reading(start, end, columns)
        frame: DataFrame = ordered_by_time.spark_frame(reading, self._spark())
        return frame

    def timeline_batches(
        self, start: Moment = None, end: Moment = None, *, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """Like `timeline`, but a stream of record batches without a JVM. DuckDB, Polars and pandas accept it."""
        return self.parts.timeline.reading(start, end, columns).to_reader()

    def timeline_root(self) -> Root:
        """The timeline's root: how far it was updated, and what its last update did. One small read."""
        return self.parts.timeline.root()

    def timeline_pieces(self, start: Moment = None, end: Moment = None) -> TimelinePieces:
        """The partitions of a time range and the position of each of their pieces."""
        timeline = self.parts.timeline.snapshot()
        return timeline.pieces(timeline.range(start, end))

    def timeline_stats(self) -> TimelineStats:
        """Statistics per partition: rows, pieces, row groups, waiting rows, dead rows, and bytes written."""
        return self.parts.timeline.snapshot().stats()

    def update_timeline(self) -> LastUpdate | None:
        """Add the records written since the last update; None if the timeline was up to date.

        Writes do this automatically, unless the dataset was created with timeline="lazy".
        """
        return self.parts.timeline.update()

    # Computed columns

    def add_column(
        self,
        name: str,
        udf: Udf | tuple[Udf, Sequence[str]],
        inputs: Sequence[str] | None = None,
        *,
        fragment_rows: int | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Add a column that a function computes. It reads as null until `backfill` has computed it.

        `inputs` are the columns that the function takes, by default the columns that its parameters name. They may
        include computed columns. The pair (udf, inputs) also works. `fragment_rows`, the number of records per file of
        values, can be set with the dataset's first computed column only. With `exist_ok`, a column that already has
        this function stays unchanged.
        """
        self.parts.columns.add(name, udf, inputs, fragment_rows, exist_ok)

    def alter_column(
        self, name: str, udf: Udf | tuple[Udf, Sequence[str]], inputs: Sequence[str] | None = None
    ) -> None:
        """Give a column another function of the same type. Old values are shown until `backfill` replaces them."""
        self.parts.columns.alter(name, udf, inputs)

    def drop_column(self, name: str) -> None:
        """Remove a computed column. If it is added again with the same function, its values return without calls."""
        self.parts.columns.drop(name)

    def columns(self) -> list[ColumnStatus]:
        """The computed columns: the function of each, and how much of it is computed, per fragment."""
        return self.parts.columns.status()

    @property
    def catalog(self) -> Catalog:
        """The definitions of the computed columns. One small read for any dataset size."""
        return self.parts.columns.catalog

    def column(self, name: str) -> ColumnDefinition:
        """The definition of one computed column: its type, its inputs and its function."""
        return self.catalog.column(name)

    @property
    def checkpoints(self) -> CheckpointStore:
        """The store of checkpoints that backfills wrote; `list_keys()` lists them."""
        return self.parts.columns.objects.checkpoints

    def find_garbage(self) -> ColumnGarbage:
        """Checkpoints and files that are unused and at least a week old, which gc would remove."""
        from floodmark.views.functions import used_checkpoints  # imported here: reading a dataset does not need views

        found = self.parts.ledger.retry_if_replaced(self.parts.columns.find_garbage, used_checkpoints)
        return replace(found, files=(*found.files, *self.parts.timeline.find_garbage().objects))

    def collect_garbage(self) -> ColumnGarbage:
        """Remove the files that `find_garbage` finds, and return them."""
        from floodmark.views.functions import used_checkpoints

        removed = self.parts.columns.collect_garbage(used_checkpoints)
        return replace(removed, files=(*removed.files, *self.parts.timeline.collect_garbage().objects))

    def column_errors(self, name: str) -> pa.Table:
        """The rows of a column that were skipped because its function failed: offset, error, attempts, time."""
        return self.parts.columns.errors(name)

    def plan_backfill(self, name: str, where: Where = None, *, retry_errors: bool = False) -> BackfillPlan:
        """What `backfill` would do, and why: ranges and rows that are done, reusable or missing. Calls no function."""
        return self.parts.columns.plan_backfill(name, where, retry_errors=retry_errors)

    def backfill(
        self,
        name: str,
        where: Where = None,
        *,
        udf: Udf | None = None,
        checkpoint_size: int | None = None,
        min_checkpoint_size: int | None = None,
        max_checkpoint_size: int | None = None,
        task_size: int | None = None,
        commit_granularity: int = 64,
        retry_errors: bool = False,
    ) -> BackfillReport:
        """Compute the missing values of a column, or of the rows that match `where`; stored values are kept.

        Values given here override those of the udf. Checkpoints have at most `checkpoint_size` rows and take about ten
        seconds each; `min_checkpoint_size` and `max_checkpoint_size` bound their size. A task has `task_size` rows.
        `commit_granularity` is the number of fragments that become visible together. `retry_errors` also tries skipped
        rows again. `udf` is needed only where the function is neither defined nor imported. Raises `FunctionFailed`, a
        `RunFailed`, at the first row that fails and that `on_error` does not skip; its `report` counts what was
        committed before. Older values stay.
        """
        from floodmark.columns.plan import BackfillOptions

        runtime = self.parts.ledger.runtime
        options = BackfillOptions(
            where=where,
            checkpoint_size=checkpoint_size,
            min_checkpoint_size=min_checkpoint_size,
            max_checkpoint_size=max_checkpoint_size,
            task_size=task_size,
            commit_granularity=commit_granularity,
            retry_errors=retry_errors,
            target_seconds=runtime.checkpoint_seconds,
            run=runtime.random_bytes(16).hex(),
        )
        return self.parts.columns.backfill(name, udf, options)

    def reset_column(self, name: str) -> None:
        """Make the next backfill recompute every row of a column. The current values stay until then."""
        self.parts.columns.reset(name)


def _source_state(source: str | None, state: str | None) -> SourceState | None:
    if (source is None) != (state is None):
        raise TypeError("source= and state= must be given together: the name of the source, and how far it was read")
    if source is None or state is None:
        return None
    if source in (PURGE_SOURCE, ERASE_SOURCE):
        raise BadData(f"the source name {source!r} is reserved for purges and erasures", hint="use another name")
    return SourceState(source_name=source, kind=_SOURCE_KIND, value=str(state))


def _note_problems(objects: DatasetObjects, head: Multihash) -> list[VerifyProblem]:
    from floodmark.transforms.note_check import find_note_problems  # late: few processes verify

    return list(find_note_problems(objects, head))
