"""A dataset: what users write to and read from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from floodmark.chain.events import DatasetKind, SourceState
from floodmark.chain.hashes import Multihash
from floodmark.chain.ids import DatasetId
from floodmark.ledger import log as logs
from floodmark.ledger import snapshot as snapshots
from floodmark.ledger.attributes import PURGE_SOURCE
from floodmark.ledger.beside import Beside, check_apart, joined
from floodmark.ledger.commit import Commit, describe_commit, to_datetime, to_nanos
from floodmark.ledger.current import current
from floodmark.ledger.errors import BadIndex, ReservedSource, UnknownDataset, UnreadableSlice
from floodmark.ledger.fold import Fold, fold, fold_if_due
from floodmark.ledger.fold_plan import Rule
from floodmark.ledger.incoming import Format, Frame, recognise
from floodmark.ledger.index import Cache
from floodmark.ledger.keys import index as key_index
from floodmark.ledger.keys.index import KeyIndex
from floodmark.ledger.keys.records import I64
from floodmark.ledger.layout import Layout, fields_from
from floodmark.ledger.merge.lookup import (
    LocatedRows,
    frame_table,
    given_keys,
    held_keys,
    history_filter,
    located_rows,
    with_keys,
)
from floodmark.ledger.merge.retract import check_can_retract, deletion
from floodmark.ledger.merge.retract import chunk as chunk_batch
from floodmark.ledger.merge.write import Merge
from floodmark.ledger.metadata import advanced_watermark, commit_events, evolved
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.purge import Purge, purge
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.scan import Scan, Where, checked_columns
from floodmark.ledger.selection import NOBODY, AsOf, Selection, interval, moment, present
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.spark_read import ordered_frame, spark_frame
from floodmark.ledger.strategy import Strategy, strategy_of
from floodmark.ledger.verify import Verification, verify
from floodmark.ledger.write import Append, Write
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.retry import read_steadily

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

_SOURCE_KIND = "floodmark.dev/state"
_log = logging.getLogger(__name__)

T = TypeVar("T")


class Dataset:
    """An append-only sequence of records numbered 0, 1, 2, …, and with a key the current rows that they come to.

    Made by `Lake.create` or found by `lake["name"]`. Every call looks at the present head; what a dataset object
    remembers only saves reading it again.
    """

    def __init__(self, name: str, objects: DatasetObjects, runtime: Runtime) -> None:
        self._name = name
        self._objects = objects
        self._runtime = runtime
        self._cache: Cache = {}
        self._latest: Snapshot | None = None
        self._key_cache: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Dataset({self._name!r}, {self._objects.store.url!r})"

    # What it is

    @property
    def name(self) -> str:
        """The name under which the dataset was opened."""
        return self._name

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
        head = self._objects.read_head()
        if head is None:
            raise self._gone()
        if self._latest is None or head != self._latest.head:
            try:
                self._latest = snapshots.load_at(self._objects, head, self._cache)
                self._latest.index.forget_replaced()
            except ObjectNotFound as error:
                if self._objects.read_head() is None:
                    raise self._gone() from error
                raise
        return self._latest

    def _gone(self) -> UnknownDataset:
        return UnknownDataset(f"dataset {self._name!r} is gone", hint="it was dropped", name=self._name)

    # Writing

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
        way = Merge if self.strategy.is_keyed else Append
        return self._write(partial(way, self._name, self._runtime, incoming, source_state))

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
        snapshot = self.snapshot()
        check_can_retract(snapshot, self._name, "store_chunk", ("upsert",))
        chunk = frame_table(data)
        noted = self._noted_time(now)
        build = partial(chunk_batch, chunk, held_keys(processed_idx), self._name)
        return self._write(
            partial(Merge, self._name, self._runtime, Frame(chunk), _source_state(source, state)),
            now=noted,
            rebuild=build,
        )

    def delete(self, keys: Any) -> Commit:
        """Retract the current rows with these keys; keys that are not there are counted as `unknown`.

        A frame or dicts with the key columns, or with some of them to match several rows; with a key of one column also
        its values alone.
        """
        snapshot = self.snapshot()
        check_can_retract(snapshot, self._name, "delete", ("upsert", "snapshot", "changelog"))
        snapshot.require_layout(self._name)
        nothing = Frame(pa.table({}))
        build = partial(deletion, held_keys(keys), self._name)
        return self._write(partial(Merge, self._name, self._runtime, nothing, None), kind="upsert", rebuild=build)

    def _write(self, way: Callable[..., Write], **options: Any) -> Commit:
        progress = self._runtime.progress()
        progress.start(f"writing {self._name}", None)
        if self.strategy.is_keyed:
            options["cache"] = self._key_cache
        try:
            written = way(progress, **options).run(self.snapshot())
        finally:
            progress.finish()
        self._latest = written.snapshot
        fold_if_due(self._name, written.snapshot, self._key_cache, self._runtime)
        return written.commit

    def _noted_time(self, now: datetime | None) -> str | None:
        """The time a user gave, as it is noted; one in the past is said to be so."""
        if now is None:
            return None
        if not isinstance(now, datetime):
            raise TypeError(f"now={now!r} is no time: give a datetime")
        late = (self._runtime.clock() - to_nanos(now)) / 1e9
        if late >= 1:
            _log.warning("store_chunk called with now=%s which is %.0fs in the past.", now.isoformat(), late)
        return to_datetime(to_nanos(now)).isoformat()

    def advance_watermark(self, to: datetime | date | str) -> Commit | None:
        """Say that the data is complete up to a time; None when the watermark is there already."""
        build = partial(advanced_watermark, self._name, moment(self._name, to))
        planned, self._latest = commit_events(self._name, self.snapshot, build, self._runtime)
        return describe_commit(planned, None) if planned else None

    def evolve(self, added: pa.Schema | Mapping[str, Any]) -> pa.Schema:
        """Add optional columns, as a schema or as names and types; older records read as null there.

        A whole new schema is taken too: it may add and reorder columns, and nothing else.
        """
        build = partial(evolved, self._name, fields_from(added))
        _, self._latest = commit_events(self._name, self.snapshot, build, self._runtime)
        return self._latest.require_layout(self._name).data

    def purge(self, before: int | str | date | datetime) -> Purge:
        """Remove old slices for good: those whose records all lie before an offset or an event time.

        The chain and the offsets stay. Only whole slices go, so some older records may remain.
        """
        done, self._latest = purge(self._name, before, self.snapshot, self._runtime)
        return done

    # Reading

    def read(self, *, as_of: AsOf = None, system: bool = False, columns: Sequence[str] | None = None) -> DataFrame:
        """The data columns, or those named, as a Spark frame; `system=True` adds offset, op and system_time.

        `as_of` an offset, a block's hash or a time reads the past.
        """
        scan = self._current_scan(as_of, columns)
        if system:
            scan = replace(scan, columns=tuple(dict.fromkeys([*scan.layout.vocab.reserved, *scan.columns])))
        frame: DataFrame = spark_frame(scan, self._runtime.session.get())
        return frame

    def changes(self, since: int | None = None, until: int | None = None) -> DataFrame:
        """The records with offsets after `since`, up to and with `until`, in offset order, with system columns."""
        frame: DataFrame = ordered_frame(self._changes(since, until), self._runtime.session.get())
        return frame

    def changes_arrow(self, since: int | None = None, until: int | None = None) -> pa.Table:
        """The same as `changes` as an Arrow table, without a JVM."""
        return self._changes(since, until).to_table()

    def to_arrow(self, *, as_of: AsOf = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The data as an Arrow table in offset order, without a JVM."""
        return self._current_scan(as_of, columns).to_table()

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
        return self._current_scan(as_of, columns).to_reader(where)

    def scan(self, *, as_of: AsOf = None) -> Scan:
        """All columns, system columns included, for those who push filters and columns down themselves."""
        scan = self._current_scan(as_of, None)
        return replace(scan, columns=(*scan.layout.vocab.reserved, *scan.data_names))

    def count(self) -> int:
        """How many rows there are: current ones of a dataset with a key, else records; reads no data."""
        snapshot = self.snapshot()
        if not strategy_of(snapshot.state).is_keyed:
            return snapshot.records
        return self._ask_keys(lambda now, index: now.records - index.dead_from(now.purged_before))

    def fold(self) -> Fold:
        """Copy the living rows of small or half-dead slices into large files, from which reading is quick.

        The ledger stays as it is; the copies are derived, and reading without them gives the same rows. It happens by
        itself when many records are dead (`Runtime.fold_at`) or slices are many and small.
        """
        snapshot = self.snapshot()
        return fold(self._name, snapshot, self._dead(snapshot, snapshot.next_offset), self._runtime, Rule())

    def _current_scan(self, as_of: AsOf, columns: Sequence[str] | None) -> Scan:
        """The current rows, with the columns beside them."""
        snapshot = self.snapshot()
        selection = self._current(snapshot, as_of)
        layout = self._layout(snapshot)
        beside = self._beside(snapshot)
        if beside is not None:
            check_apart(layout.read_schema, beside, self._name)
        wanted = checked_columns(layout, columns, self._name, beside)
        return Scan(self._objects, layout, selection, wanted, beside)

    def _beside(self, snapshot: Snapshot) -> Beside | None:  # noqa: ARG002  for those who have such columns
        """The columns that lie beside the records as of now; the ledger itself has none."""
        return None

    def _current(self, snapshot: Snapshot, as_of: AsOf) -> Selection:
        start, end = present(snapshot, self._name, as_of)
        return current(snapshot, start, end, self._dead(snapshot, end))

    def _dead(self, snapshot: Snapshot, end: int) -> I64:
        """The offsets before `end` that are not current as of it, sorted."""
        if not strategy_of(snapshot.state).is_keyed:
            return NOBODY
        return self._ask_keys(lambda _, index: index.dead(end))  # a newer index knows the past as well

    def _dead_within(self, snapshot: Snapshot, ranges: Sequence[tuple[int, int]]) -> I64:
        """Those of the dead as of a snapshot whose offsets lie in ranges [low, high), ascending and apart; sorted."""
        if not ranges or not strategy_of(snapshot.state).is_keyed:
            return NOBODY
        return self._ask_keys(lambda _, index: index.dead_within(ranges, snapshot.next_offset))

    def _changes(self, since: int | None, until: int | None) -> Scan:
        snapshot = self.snapshot()
        return self._scan(snapshot, interval(snapshot, self._name, since, until), self._columns(snapshot))

    def _layout(self, snapshot: Snapshot) -> Layout:
        """The columns, which have to be there before anything can be read."""
        return snapshot.require_layout(self._name)

    def _columns(self, snapshot: Snapshot) -> list[str]:
        layout = self._layout(snapshot)
        return [*layout.vocab.reserved, *layout.shown.names]

    def _scan(self, snapshot: Snapshot, selection: Selection, columns: Sequence[str] | None) -> Scan:
        layout = self._layout(snapshot)
        return Scan(self._objects, layout, selection, checked_columns(layout, columns, self._name))

    # By key

    def get(self, keys: Any) -> pa.Table:
        """The current rows with these keys, without a JVM; those that are not there are left out.

        A frame or dicts with the key columns, or with some of them to match several rows; with a key of one column also
        its values alone.
        """
        snapshot = self.snapshot()
        self._layout(snapshot)
        wanted = given_keys(keys, snapshot, self._name)
        return self._ask_keys(lambda snapshot, index: self._found(located_rows(snapshot, wanted, index), snapshot))

    def _found(self, rows: LocatedRows, snapshot: Snapshot) -> pa.Table:
        beside = self._beside(snapshot)
        shown = rows.table.select(self._layout(snapshot).shown.names)
        if beside is None:
            return shown
        check_apart(rows.table.schema, beside, self._name)
        return joined(shown, beside.open(beside.schema.names).take(rows.offsets), beside.schema)

    def history(self, keys: Any) -> pa.Table:
        """Every record with these keys in offset order: what became of a row, when, and by which operation."""
        snapshot = self.snapshot()
        shown = self._columns(snapshot)
        wanted = given_keys(keys, snapshot, self._name)
        since = snapshot.purged_before - 1 if snapshot.purged_before else None
        columns = list(dict.fromkeys([*shown, *wanted.column_names]))  # part of the key may be hidden
        scan = self._scan(snapshot, interval(snapshot, self._name, since, None), columns)
        records = scan.to_reader(history_filter(wanted)).read_all()
        return with_keys(records, wanted).sort_by(scan.layout.vocab.offset).select(shown)

    def _ask_keys(self, ask: Callable[[Snapshot, KeyIndex], T]) -> T:
        """Ask the key index at the present head, or at the next when writers have replaced its files meanwhile."""
        try:
            return read_steadily(
                self.snapshot,
                lambda snapshot: ask(snapshot, key_index.load(snapshot, self._key_cache)),
                lambda snapshot: self._objects.read_head() != snapshot.head,
                replaced=(BadIndex, UnreadableSlice),
            )
        except (BadIndex, UnreadableSlice):
            snapshot = self.snapshot()
            return key_index.mended(snapshot, self._key_cache, lambda index: ask(snapshot, index))

    @property
    def strategy(self) -> Strategy:
        """What a batch becomes here: the merge strategy and its columns."""
        return strategy_of(self.snapshot().state)

    # Looking closer

    def log(self) -> Iterator[logs.LogEntry]:
        """The blocks, newest first, each with a sentence about what it did."""
        return logs.log(self._objects, self.snapshot().head)

    def verify(self) -> Verification:
        """Check every block against the rules and every file against its hashes."""
        return verify(self._name, self._objects, self._runtime, self._runtime.progress())


def _source_state(source: str | None, state: str | None) -> SourceState | None:
    if (source is None) != (state is None):
        raise TypeError("source= and state= go together: which source, and how far it was read")
    if source is None or state is None:
        return None
    if source == PURGE_SOURCE:
        raise ReservedSource(f"the source name {source!r} is how purges are recorded", hint="use another name")
    return SourceState(source_name=source, kind=_SOURCE_KIND, value=str(state))
