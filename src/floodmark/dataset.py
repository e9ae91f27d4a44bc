"""A dataset as users have it: a ledger, its rows, its computed columns and its timeline.

What computes columns is imported by the calls that need it: a command that only looks at datasets does not load it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.chain.events import DatasetKind, SourceState
from floodmark.chain.hashes import Multihash
from floodmark.chain.ids import DatasetId
from floodmark.compute.columns import ColumnStatus, ComputedColumns
from floodmark.compute.stored.catalog import Catalog, Column
from floodmark.compute.stored.read import columns_beside
from floodmark.ledger.attributes import PURGE_SOURCE
from floodmark.ledger.commit import Commit, to_datetime
from floodmark.ledger.errors import ReservedSource
from floodmark.ledger.fold import Fold
from floodmark.ledger.incoming import Format, recognise
from floodmark.ledger.layout import fields_from
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.log import LogEntry
from floodmark.ledger.purge import Purge
from floodmark.ledger.rows import Rows, SideColumns
from floodmark.ledger.scan import Scan, Where
from floodmark.ledger.selection import AsOf
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.spark_read import ordered_frame, spark_frame
from floodmark.ledger.strategy import Strategy, strategy_of
from floodmark.ledger.verify import Verification
from floodmark.timeline.change.fold import NOTHING, summed
from floodmark.timeline.order.ranges import Moment, parse_range
from floodmark.timeline.reading import spark_frame as ordered_by_time
from floodmark.timeline.stored.root import LastUpdate, Root
from floodmark.timeline.timeline import Timeline, TimelinePieces, TimelineStats

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from floodmark.compute.backfill import Backfill
    from floodmark.compute.checkpoints.store import CheckpointStore
    from floodmark.compute.functions.udf import Udf
    from floodmark.compute.stored.gc import Garbage
    from floodmark.compute.survey import BackfillPlan

_SOURCE_KIND = "floodmark.dev/state"


@dataclass(frozen=True)
class Parts:
    """What a dataset is composed of: columns and timeline use ledger and rows, and do not know each other."""

    ledger: Ledger
    rows: Rows
    columns: ComputedColumns
    timeline: Timeline

    @classmethod
    def of(cls, ledger: Ledger, side_columns: SideColumns = columns_beside) -> Parts:
        """The parts of the dataset that has this ledger."""
        rows = Rows(ledger, side_columns)
        return cls(ledger, rows, ComputedColumns(ledger, rows), Timeline(ledger, rows))

    def follow(self, snapshot: Snapshot) -> None:
        """Update what follows writes, after a write that did not go through these parts and left this snapshot."""
        self.ledger.latest = snapshot
        self.timeline.follow()


class Dataset:
    """An append-only sequence of records numbered 0, 1, 2, …, its current rows, and what is derived from them.

    Made by `Lake.create` or found by `lake["name"]`. Every call looks at the present head; what a dataset object
    remembers only saves reading it again.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.parts = Parts.of(ledger)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.parts.ledger.objects.store.url!r})"

    # What it is

    @property
    def name(self) -> str:
        """The name under which the dataset was opened."""
        return self.parts.ledger.name

    @property
    def id(self) -> DatasetId:
        """What stays when the name changes."""
        found = self.snapshot().state.dataset_id
        assert found is not None  # every chain starts with a Seed
        return found

    @property
    def kind(self) -> DatasetKind:
        """Whether it takes data from outside or is derived from other datasets."""
        found = self.snapshot().state.dataset_kind
        assert found is not None
        return found

    @property
    def schema(self) -> pa.Schema | None:
        """The data columns, None before the first write."""
        layout = self.snapshot().layout
        return None if layout is None else layout.shown

    @property
    def event_time(self) -> str | None:
        """The column that says when a record's event happened, None if that is when it was written."""
        snapshot = self.snapshot()
        if snapshot.layout is not None:
            return snapshot.layout.event_time
        return snapshot.state.vocab.event_time_column if snapshot.state.vocab else None

    @property
    def head(self) -> Multihash:
        """The hash of the newest block."""
        return self.snapshot().head

    @property
    def last_offset(self) -> int | None:
        """The offset of the newest record, None while there are none."""
        return self.snapshot().state.last_offset

    @property
    def watermark(self) -> datetime | None:
        """The event time up to which the data is said to be complete."""
        watermark = self.snapshot().state.watermark
        return None if watermark is None else to_datetime(watermark)

    def snapshot(self) -> Snapshot:
        """The dataset as of its present head; read again only when the head has moved."""
        return self.parts.ledger.snapshot()

    # Write

    def write(
        self, data: Any, *, source: str | None = None, state: str | None = None, read: Format | None = None
    ) -> Commit:
        """Write a frame (Spark, pandas, Polars, Arrow) or files (a path or glob of Parquet, CSV or JSON).

        What becomes of the rows, the merge strategy says: without a key each is a new record, with one only real
        changes are. All of it becomes visible at once. With `source` and `state` the write is idempotent: the same pair
        again returns the first commit. `read` names the format of files whose names do not tell.
        """
        source_state = _source_state(source, state)
        incoming = recognise(data, read)
        writer = self.parts.rows.write if self.strategy.is_keyed else self.parts.ledger.append
        return self._followed(writer(incoming, source_state))

    def store_chunk(
        self,
        data: Any,
        processed_idx: Any = None,
        now: datetime | None = None,
        *,
        source: str | None = None,
        state: str | None = None,
    ) -> Commit:
        """Upsert a frame; current rows that `processed_idx` names and the frame lacks are retracted.

        `processed_idx` has the key columns, or some of them. `now` is noted on the chain and seen in the log; it moves
        no offset and no system time, so one in the past loses nothing.
        """
        return self._followed(self.parts.rows.store_chunk(data, processed_idx, now, _source_state(source, state)))

    def delete(self, keys: Any) -> Commit:
        """Retract the current rows with these keys; keys that are not there are counted as `unknown`.

        A frame or dicts with the key columns, or with some of them to match several rows; with a key of one column also
        its values alone.
        """
        return self._followed(self.parts.rows.delete(keys))

    def _followed(self, commit: Commit) -> Commit:
        """A commit, after what follows writes was done."""
        self.parts.rows.fold_if_due()
        self.parts.timeline.follow()
        return commit

    def advance_watermark(self, to: datetime | date | str) -> Commit | None:
        """Say that the data is complete up to a time; None when the watermark is there already."""
        return self.parts.ledger.advance_watermark(to)

    def evolve(self, added: pa.Schema | Mapping[str, Any]) -> pa.Schema:
        """Add optional columns, as a schema or as names and types; older records read as null there.

        A whole new schema is taken too: it may add and reorder columns, and nothing else.
        """
        self.parts.columns.check_free([f.name for f in fields_from(added)])
        return self.parts.ledger.evolve(added)

    def purge(self, before: int | str | date | datetime) -> Purge:
        """Remove old slices for good: those whose records all lie before an offset or an event time.

        The chain and the offsets stay. Only whole slices go, so some older records may remain. What was computed from
        them goes too.
        """
        dataset_id = str(self.id)  # before: what is purged is acknowledged, whatever happens after it
        done = self.parts.rows.purge(before)
        self.parts.timeline.drop_purged()
        self.parts.columns.drop_purged(done.before, dataset_id)
        return done

    # Read

    def read(self, *, as_of: AsOf = None, system: bool = False, columns: Sequence[str] | None = None) -> DataFrame:
        """The data columns, or those named, as a Spark frame; `system=True` adds offset, op and system_time.

        `as_of` an offset, a block's hash or a time reads the past.
        """
        scan = self.parts.ledger.steadily(self.parts.rows.scan, as_of, columns)
        if system:
            scan = replace(scan, columns=tuple(dict.fromkeys([*scan.layout.vocab.reserved, *scan.columns])))
        frame: DataFrame = spark_frame(scan, self._spark())
        return frame

    def changes(self, since: int | None = None, until: int | None = None) -> DataFrame:
        """The records with offsets after `since`, up to and with `until`, in offset order, with system columns."""
        scan = self.parts.ledger.steadily(self.parts.ledger.changes, since, until)
        frame: DataFrame = ordered_frame(scan, self._spark())
        return frame

    def _spark(self) -> SparkSession:
        return self.parts.ledger.runtime.session.get()

    def changes_arrow(self, since: int | None = None, until: int | None = None) -> pa.Table:
        """The same as `changes` as an Arrow table, without a JVM."""
        return self.parts.ledger.steadily(self.parts.ledger.changes, since, until).to_table()

    def to_arrow(self, *, as_of: AsOf = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The data as an Arrow table in offset order, without a JVM."""
        return self.parts.ledger.steadily(self.parts.rows.scan, as_of, columns).to_table()

    def to_pandas(self, *, as_of: AsOf = None, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The data as a pandas frame in offset order, without a JVM."""
        frame: pd.DataFrame = self.to_arrow(as_of=as_of, columns=columns).to_pandas()
        return frame

    def to_batches(
        self, columns: Sequence[str] | None = None, where: Where = None, *, as_of: AsOf = None
    ) -> pa.RecordBatchReader:
        """The data as a stream of record batches in offset order, without a JVM: what DuckDB and Polars take.

        `columns` may name system columns too; `where` is the WHERE part of SQL or an Arrow expression.
        """
        return self.parts.ledger.steadily(self.parts.rows.scan, as_of, columns).to_reader(where)

    def scan(self, *, as_of: AsOf = None) -> Scan:
        """All columns, system columns included, for those who push filters and columns down themselves."""
        scan = self.parts.ledger.steadily(self.parts.rows.scan, as_of, None)
        return replace(scan, columns=(*scan.layout.vocab.reserved, *scan.data_names))

    def count(self) -> int:
        """How many rows there are: current ones of a dataset with a key, else records; reads no data."""
        return self.parts.ledger.steadily(self.parts.rows.count)

    def fold(self, partition: str | None = None) -> Fold:
        """Copy the living rows of small or half-dead slices into large files, from which reading is quick.

        The ledger stays as it is; the copies are derived, and reading without them gives the same rows. It happens by
        itself when many records are dead (`Runtime.fold_at`) or slices are many and small.

        The timeline is folded along: what waits is merged, what is dead left out, small row groups put together. With
        `partition`, such as "2026-11-01", only that is done, and only there.
        """
        parts = self.parts
        if partition is not None:
            return parts.timeline.fold(partition)
        if parts.timeline.settings() is None:
            return parts.ledger.steadily(parts.rows.fold)
        if self.schema is None:
            return NOTHING
        return summed(parts.ledger.steadily(parts.rows.fold), parts.timeline.fold())

    # By key

    def get(self, keys: Any) -> pa.Table:
        """The current rows with these keys, without a JVM; those that are not there are left out.

        A frame or dicts with the key columns, or with some of them to match several rows; with a key of one column also
        its values alone.
        """
        return self.parts.ledger.steadily(self.parts.rows.get, keys)

    def history(self, keys: Any) -> pa.Table:
        """Every record with these keys in offset order: what became of a row, when, and by which operation."""
        return self.parts.ledger.steadily(self.parts.rows.history, keys)

    @property
    def strategy(self) -> Strategy:
        """What a batch becomes here: the merge strategy and its columns."""
        return strategy_of(self.snapshot().state)

    # Look closer

    def log(self) -> Iterator[LogEntry]:
        """The blocks, newest first, each with a sentence about what it did."""
        return self.parts.ledger.log()

    def verify(self) -> Verification:
        """Check every block against the rules and every file against its hashes, those of derived things too."""
        parts = self.parts
        found = parts.ledger.verify()
        rows = () if found.problems else parts.rows.problems()  # what they are checked against must be whole
        problems = (*found.problems, *rows, *parts.timeline.problems(), *parts.columns.problems())
        return replace(found, problems=problems)

    # Timeline

    def timeline(self, start: Moment = None, end: Moment = None, *, columns: Sequence[str] | None = None) -> DataFrame:
        """The current rows with event times in [start, end) as a Spark frame in event-time order.

        Times are text, dates or datetimes, in UTC where they have no zone. `columns` may name system columns too.
        """
        reading = self.parts.timeline.reading(start, end, columns)
        frame: DataFrame = ordered_by_time.spark_frame(reading, self._spark())
        return frame

    def timeline_batches(
        self, start: Moment = None, end: Moment = None, *, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """The same as a stream of record batches, without a JVM: what DuckDB, Polars and pandas take."""
        return self.parts.timeline.reading(start, end, columns).to_reader()

    def timeline_root(self) -> Root:
        """How far the timeline has come, and what its last change did: one small read."""
        return self.parts.timeline.root()

    def timeline_pieces(self, start: Moment = None, end: Moment = None) -> TimelinePieces:
        """What the timeline is made of: the partitions of a range, and where each of their pieces lies."""
        return self.parts.timeline.snapshot().pieces(parse_range(start, end))

    def timeline_stats(self) -> TimelineStats:
        """Partition by partition: rows, pieces, row groups, what waits, what is dead, and what was written for it."""
        return self.parts.timeline.snapshot().stats()

    def update_timeline(self) -> LastUpdate | None:
        """Take in what was written since the last time; None when the timeline was up to date.

        Writes do this by themselves, unless the dataset was created with timeline="lazy".
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
        """Add a column that a function computes; it reads as null until `backfill` has computed it.

        `inputs` are the columns that the function takes, by default those its parameters name; computed ones may be
        among them, and (udf, inputs) in one is fine, too. `fragment_rows` can be chosen with the first column only: how
        many records one file of values has. With `exist_ok` a column that has this very function already is left as it
        is.
        """
        self.parts.columns.add(name, udf, inputs, fragment_rows, exist_ok)

    def alter_column(
        self, name: str, udf: Udf | tuple[Udf, Sequence[str]], inputs: Sequence[str] | None = None
    ) -> None:
        """Give a column another function of the same type; old values are shown until `backfill` replaces them."""
        self.parts.columns.alter(name, udf, inputs)

    def drop_column(self, name: str) -> None:
        """Remove a computed column; added again with the same function, its values come back without a call."""
        self.parts.columns.drop(name)

    def columns(self) -> list[ColumnStatus]:
        """The computed columns: what computes them, and how much of each is there, fragment by fragment."""
        return self.parts.columns.status()

    @property
    def catalog(self) -> Catalog:
        """The computed columns as they are defined: one small read, whatever the dataset's size."""
        return self.parts.columns.catalog

    def column(self, name: str) -> Column:
        """One computed column: its type, its inputs and what is known of its function."""
        return self.catalog.column(name)

    @property
    def checkpoints(self) -> CheckpointStore:
        """What backfills have stored on their way; `list_keys()` is the truth about it."""
        return self.parts.columns.objects.checkpoints

    def find_garbage(self) -> Garbage:
        """Checkpoints and files that nothing needs any more and that are a week old: what gc removes."""
        from floodmark.transform.views.defined.kept import used_by  # late: reading a dataset needs nothing of views

        found = self.parts.ledger.steadily(self.parts.columns.find_garbage, used_by)
        return replace(found, files=(*found.files, *self.parts.timeline.find_garbage().objects))

    def collect_garbage(self) -> Garbage:
        """Remove what `find_garbage` finds; says what went."""
        from floodmark.transform.views.defined.kept import used_by

        removed = self.parts.columns.collect_garbage(used_by)
        return replace(removed, files=(*removed.files, *self.parts.timeline.collect_garbage().objects))

    def column_errors(self, name: str) -> pa.Table:
        """The rows of a column that were skipped because its function failed: offset, error, attempts, time."""
        return self.parts.columns.errors(name)

    def plan_backfill(self, name: str, where: Where = None, *, retry_errors: bool = False) -> BackfillPlan:
        """What `backfill` would do: ranges and rows that are done, reusable or missing, and why. Calls nothing."""
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
    ) -> Backfill:
        """Compute what is missing of a column, or of the rows that `where` keeps; what is stored is not computed again.

        Values given here win over those of the udf. Checkpoints have at most `checkpoint_size` rows and take about ten
        seconds each; `min_checkpoint_size` and `max_checkpoint_size` bound them. A task has `task_size` rows,
        and as many fragments as `commit_granularity` says become visible together. `retry_errors` also tries
        rows again that were skipped. `udf` is needed only where the function is not defined or imported.
        """
        from floodmark.compute.options import Options

        runtime = self.parts.ledger.runtime
        options = Options(
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
        """Have the next backfill compute every row of a column once more; the values stay until it has."""
        self.parts.columns.reset(name)


def _source_state(source: str | None, state: str | None) -> SourceState | None:
    if (source is None) != (state is None):
        raise TypeError("source= and state= go together: which source, and how far it was read")
    if source is None or state is None:
        return None
    if source == PURGE_SOURCE:
        raise ReservedSource(f"the source name {source!r} is how purges are recorded", hint="use another name")
    return SourceState(source_name=source, kind=_SOURCE_KIND, value=str(state))
