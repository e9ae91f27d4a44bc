"""The entry point: a lake is a folder or bucket of datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.chain.events import SetTransform
from floodmark.chain.hashes import Multihash
from floodmark.dataset import Dataset
from floodmark.engine import Session
from floodmark.ledger import names
from floodmark.ledger.create import create, create_derived, dataset_objects, remove
from floodmark.ledger.errors import BadName, CommitConflict, DatasetExists
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.query import query_duckdb, query_spark
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.strategy import Strategy, declare
from floodmark.storage.opening import open_store
from floodmark.storage.retry import MAX_RACES, races
from floodmark.storage.store import Store
from floodmark.timeline import settings as timelines
from floodmark.timeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from floodmark.compute.functions.udf import Udf
    from floodmark.provenance.tree import Forward, Provenance
    from floodmark.view import View


class Lake:
    """A folder, or a bucket and prefix such as s3://bucket/prefix, that holds datasets.

    `spark` is a session of yours to work with; without it the active one is used, or one is started when needed.
    """

    def __init__(
        self, location: str | Path | Store, *, spark: SparkSession | None = None, runtime: Runtime | None = None
    ) -> None:
        self._store: Store = open_store(location) if isinstance(location, str | Path) else location
        self._runtime = runtime if runtime is not None else Runtime(session=Session(spark))

    def __repr__(self) -> str:
        return f"Lake({self._store.url!r})"

    @property
    def store(self) -> Store:
        """Where the objects of this lake are."""
        return self._store

    @property
    def runtime(self) -> Runtime:
        """The clock, the session and what else the datasets of this lake work with."""
        return self._runtime

    def create(
        self,
        name: str,
        *,
        event_time: str | None = None,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        key: Sequence[str] | str | None = None,
        merge: str | None = None,
        compare: Sequence[str] | str | None = None,
        lookup: Sequence[str] | str | None = None,
        partition_by: str | None = None,
        row_group_size: int | None = None,
        late_merge: str | None = None,
        timeline: str | None = None,
        exist_ok: bool = False,
    ) -> Dataset:
        """Make a new dataset. Its columns are `schema`, or those of the first write.

        `event_time` names the column that says when an event happened. `key` names the columns that identify a row and
        `merge` says what a batch becomes: append (no key), ledger, snapshot, changelog or upsert (the default with a
        key). `compare` are the columns whose change counts in a snapshot; `lookup` is a prefix of the key by which rows
        are found together.

        With `partition_by` (hour, day, week, month or year) it keeps a timeline, its rows in the order of their event
        times: in row groups of about `row_group_size` rows (100,000), with late rows merged in when that pays
        (`late_merge="auto"`) or at once ("always"), by each write (`timeline="eager"`) or on demand ("lazy").

        With `exist_ok` an existing dataset of this name is opened instead.
        """
        strategy = declare(merge, key, compare, lookup)
        declared = strategy if key is not None or merge is not None else None
        settings = timelines.declare(partition_by, row_group_size, late_merge, timeline, event_time)
        if exist_ok and name in self:
            return self._existing(name, event_time, declared, settings)
        try:
            objects = create(
                self._store,
                self._runtime,
                name,
                event_time=event_time,
                schema=schema,
                strategy=strategy,
                notes={} if settings is None else timelines.note(settings),
            )
        except DatasetExists:
            if exist_ok:
                return self._existing(name, event_time, declared, settings)
            raise
        return Dataset(Ledger(name, objects, self._runtime))

    def create_derived(
        self,
        name: str,
        *,
        key: Sequence[str] | str,
        lookup: Sequence[str] | str | None = None,
        event_time: str | None = None,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        transform: SetTransform | None = None,
    ) -> Dataset:
        """Make a dataset that a step computes from others: nothing else writes to it.

        Rows of one result are found together by `lookup`, a prefix of the key (the transform keys); without it by the
        whole key. Its columns are `schema`, or those of the first result.
        """
        strategy = declare("upsert", key, None, lookup)
        objects = create_derived(
            self._store,
            self._runtime,
            name,
            event_time=event_time,
            schema=schema,
            strategy=strategy,
            transform=transform,
        )
        return Dataset(Ledger(name, objects, self._runtime))

    def view(
        self,
        name: str,
        *,
        source: str | Dataset | None = None,
        select: Mapping[str, str | Udf | tuple[Udf, Sequence[str]]] | None = None,
        where: str | None = None,
        sql: str | None = None,
    ) -> View:
        """Declare a query whose result is kept as a dataset, and brought up to date by `refresh`; or open one.

        Either `sql`, a SELECT of Spark's over datasets of this lake, or a `source` with the columns to `select` (all
        without it) and the rows to keep, those `where` holds. A column is SQL text, a udf, or (udf, [columns that it
        takes]). The query is analysed, which starts Spark, unless this very definition is there already; nothing is
        computed before `refresh`. Another definition for a view that is there is a new version of it. With the name
        alone, the view of that name is opened.
        """
        from floodmark import view  # late: whoever has no views need not wait for them

        if all(given is None for given in (source, select, where, sql)):
            return view.opened(self, name)
        return view.declared(self, name, source=source, select=select, where=where, sql=sql)

    def views(self) -> list[View]:
        """All views in alphabetical order."""
        from floodmark import view

        return view.all_of(self)

    def why(self, name: str, record: int | Mapping[str, Any], *, rows: int = 10) -> Provenance:
        """Where a record came from: the input rows that it was made of as they were then, down to the sources.

        `record` is an offset, or the key of a current row, {"id": 7}. At most so many `rows` of each input are followed
        further; the others are counted.
        """
        from floodmark.provenance.why import why

        return why(self, name, record, rows)

    def why_forward(self, name: str, record: int | Mapping[str, Any]) -> Forward:
        """What came of a record: the records of derived datasets that were made of it, and so on."""
        from floodmark.provenance.forward import forward

        return forward(self, name, record)

    def _existing(
        self, name: str, event_time: str | None, declared: Strategy | None, settings: Settings | None
    ) -> Dataset:
        dataset = self[name]
        if declared is not None and dataset.strategy != declared:
            raise DatasetExists(
                f"dataset {name!r} exists with {dataset.strategy}, not {declared}",
                hint="leave out key= and merge= to open it, or choose another name",
                name=name,
            )
        if event_time is not None and dataset.event_time != event_time:
            raise DatasetExists(
                f"dataset {name!r} exists with the event time {dataset.event_time!r}, not {event_time!r}",
                hint="leave out event_time to open it, or choose another name",
                name=name,
            )
        if settings is not None and (kept := timelines.of(dataset.snapshot().state)) != settings:
            raise DatasetExists(
                f"dataset {name!r} exists with {'no timeline' if kept is None else kept}, not {settings}",
                hint="leave out partition_by= and what goes with it to open it, or choose another name",
                name=name,
            )
        return dataset

    def __getitem__(self, name: str) -> Dataset:
        entry = names.find(self._store, name)
        return self._opened(entry)

    def _opened(self, entry: names.Entry) -> Dataset:
        return Dataset(Ledger(entry.name, dataset_objects(self._store, entry.id), self._runtime))

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and names.exists(self._store, name)
        except BadName:
            return False

    def __iter__(self) -> Iterator[Dataset]:
        for entry in names.entries(self._store):
            yield self._opened(entry)

    def datasets(self) -> list[Dataset]:
        """All datasets in alphabetical order."""
        return list(self)

    def drop(self, name: str, *, head: Multihash | None = None) -> None:
        """Remove a dataset for good: its name first, then everything it holds.

        With `head`, only if that still is its newest block; else `CommitConflict`.
        """
        for _ in races(MAX_RACES):
            entry = names.find(self._store, name)
            objects = dataset_objects(self._store, entry.id)
            with objects.turn():  # a commit at the same time would leave objects behind
                if head is not None and objects.read_head() != head:
                    break
                if names.swap(self._store, entry, None):
                    known = {one for other in names.entries(self._store) for one in (other.id, other.pending)}
                    for dataset_id in (entry.id, entry.pending):
                        if dataset_id is not None and dataset_id not in known:  # a rename cut short leaves two names
                            remove(dataset_objects(self._store, dataset_id))
                    return
        raise CommitConflict(f"dataset {name!r} has moved on and was not dropped", hint="look at its log first")

    def rename(self, old: str, new: str) -> Dataset:
        """Give a dataset another name; no data moves, and who has it open keeps on working."""
        if not names.rename(self._store, old, new):
            entry = names.find(self._store, new)
            if dataset_objects(self._store, entry.id).read_head() is None:  # dropped under the old name meanwhile
                names.swap(self._store, entry, None)
        return self[new]

    def sql(self, query: str) -> pa.Table:
        """The answer to an SQL query over the datasets, by DuckDB, without a JVM."""
        return query_duckdb(self, query)

    def sql_spark(self, query: str) -> DataFrame:
        """The same as a Spark frame."""
        frame: DataFrame = query_spark(self, query, self._runtime.session.get())
        return frame
