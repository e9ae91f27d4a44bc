"""`Lake`: a folder or bucket of datasets, and the entry point to Floodmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.chain.events import SetTransform
from floodmark.chain.ids import DatasetId, Multihash
from floodmark.dataset import Dataset
from floodmark.engine.session import Runtime, Session
from floodmark.engine.spark_launch import explain_dead_jvm
from floodmark.errors import BadName, CommitConflict, DatasetExists, DatasetInUse, StorageError, UnknownDataset
from floodmark.ledger import names
from floodmark.ledger.create import create, create_derived, dataset_objects, remove
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.readers import drop_order, find_readers
from floodmark.ledger.schema import declare_vocab, vocabulary
from floodmark.ledger.sql import query_duckdb, query_spark
from floodmark.ledger.strategy import Strategy, declare
from floodmark.storage.opening import open_store
from floodmark.storage.pointer import MAX_RACES, attempt_numbers
from floodmark.storage.store import Store
from floodmark.timeline import settings as timeline_settings
from floodmark.timeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from floodmark.backup.create import BackupReport
    from floodmark.backup.restore import RestorePlan
    from floodmark.functions.udf import Udf
    from floodmark.provenance.tree import ForwardProvenance, Provenance
    from floodmark.rows.erase import EraseReport
    from floodmark.view import View
    from floodmark.views.definition import RefreshPolicy


class Lake:
    """A folder, or a bucket and prefix such as s3://bucket/prefix, that holds datasets.

    `spark` is the Spark session to use. Without it, the active session is used, or one is started when needed.
    """

    def __init__(
        self, location: str | Path | Store, *, spark: SparkSession | None = None, runtime: Runtime | None = None
    ) -> None:
        self._store: Store = _store_at(location)
        self._runtime = runtime if runtime is not None else Runtime(session=Session(spark))

    def __repr__(self) -> str:
        return f"Lake({self._store.url!r})"

    @property
    def store(self) -> Store:
        """The store that holds the objects of this lake."""
        return self._store

    @property
    def runtime(self) -> Runtime:
        """The clock, the Spark session and the settings that the datasets of this lake use."""
        return self._runtime

    def create(
        self,
        name: str,
        *,
        event_time: str | None = None,
        schema: pa.Schema | Mapping[str, Any] | StructType | str | None = None,
        key: Sequence[str] | str | None = None,
        merge: str | None = None,
        compare: Sequence[str] | str | None = None,
        lookup: Sequence[str] | str | None = None,
        partition_by: str | None = None,
        row_group_size: int | None = None,
        late_merge: str | None = None,
        timeline: str | None = None,
        vocab: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> Dataset:
        """Create a dataset. Its columns are `schema`, or the columns of the first write.

        `event_time` names the column with the time of the event. `key` names the columns that identify a row. `merge`
        decides how a batch is merged: append (no key), ledger, snapshot, changelog or upsert (the default with a key).
        `compare` names the columns that a snapshot compares. `lookup` is a prefix of the key by which rows are looked
        up.
        With `partition_by` (hour, day, week, month or year) the dataset keeps a timeline: its rows in event-time order,
        in row groups of about `row_group_size` rows (100,000). Late rows are merged in when that pays off
        (`late_merge="auto"`) or at once ("always"). The timeline is updated by each write (`timeline="eager"`) or on
        demand ("lazy").
        `vocab` renames system columns, so that the data can have a column with such a name: {"offset": "_offset"}.

        With `exist_ok` an existing dataset with this name is opened instead.
        """
        strategy = declare(merge, key, compare, lookup)
        declared = strategy if key is not None or merge is not None else None
        settings = timeline_settings.declare(partition_by, row_group_size, late_merge, timeline, event_time)
        if exist_ok and name in self:
            return self._open_existing(name, event_time, declared, settings, vocab)
        try:
            objects = create(
                self._store,
                self._runtime,
                name,
                event_time=event_time,
                schema=schema,
                strategy=strategy,
                notes={} if settings is None else timeline_settings.settings_note(settings),
                vocab=vocab,
            )
        except DatasetExists:
            if exist_ok:
                return self._open_existing(name, event_time, declared, settings, vocab)
            raise
        return Dataset.open(Ledger(name, objects, self._runtime))

    def create_derived(
        self,
        name: str,
        *,
        key: Sequence[str] | str,
        lookup: Sequence[str] | str | None = None,
        event_time: str | None = None,
        schema: pa.Schema | Mapping[str, Any] | StructType | str | None = None,
        transform: SetTransform | None = None,
        vocab: Mapping[str, str] | None = None,
    ) -> Dataset:
        """Create a dataset that only a step writes.

        `lookup` is a prefix of the key (the transform keys) by which the rows of one result are looked up; the default
        is the whole key. Its columns are `schema`, or the columns of the first result.
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
            vocab=vocab,
        )
        return Dataset.open(Ledger(name, objects, self._runtime))

    def view(
        self,
        name: str,
        *,
        source: str | Dataset | None = None,
        select: Mapping[str, str | Udf | tuple[Udf, Sequence[str]]] | None = None,
        where: str | None = None,
        sql: str | None = None,
        refresh: RefreshPolicy | None = None,
        description: str | None = None,
    ) -> View:
        """Declare a query whose result is stored as a dataset and updated by `refresh`; or open an existing view.

        The query is either `sql`, a Spark SELECT over datasets of this lake, or a `source` dataset with the columns to
        `select` (default: all) and a `where` condition for its rows. A column is SQL text, a udf, or (udf, [columns
        that it takes]). Declaring analyses the query, which starts Spark, unless the view already has this definition.
        Nothing is computed before `refresh`. Another definition for an existing view is a new version of it. With only
        a name, the existing view is opened. `refresh="incremental"` refuses a query that cannot be maintained in parts.
        `description` is shown with the view.
        """
        from floodmark import view as view_module  # imported here: lakes without views load faster

        query = {"source": source, "select": select, "where": where, "sql": sql}
        if all(given is None for given in (*query.values(), refresh, description)):
            return view_module.open_view(self, name)
        return view_module.declare_view(self, name, **query, refresh=refresh, description=description)

    def views(self) -> list[View]:
        """All views in alphabetical order."""
        from floodmark import view as view_module

        return view_module.list_views(self)

    def why(self, name: str, record: int | Mapping[str, Any], *, rows: int = 10) -> Provenance:
        """Trace a record back to its sources, through the input rows that it was computed from.

        `record` is an offset, or the key of a current row such as {"id": 7}. Inputs are read as they were when the
        record was computed. At most `rows` rows of each input are traced further; the others are counted.
        """
        from floodmark.provenance.why import why

        return why(self, name, record, rows)

    def why_forward(self, name: str, record: int | Mapping[str, Any]) -> ForwardProvenance:
        """The records of derived datasets that were computed from a record, directly or indirectly."""
        from floodmark.provenance.forward import forward

        return forward(self, name, record)

    def _open_existing(
        self,
        name: str,
        event_time: str | None,
        declared: Strategy | None,
        settings: Settings | None,
        vocab: Mapping[str, str] | None,
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
        if settings is not None and (kept := timeline_settings.read_settings(dataset.snapshot().state)) != settings:
            raise DatasetExists(
                f"dataset {name!r} exists with {'no timeline' if kept is None else kept}, not {settings}",
                hint="leave out partition_by= and the other timeline options to open it, or choose another name",
                name=name,
            )
        if vocab is not None and (wanted := vocabulary(declare_vocab(vocab)).reserved) != dataset.system_columns:
            raise DatasetExists(
                f"dataset {name!r} exists with the system columns {', '.join(dataset.system_columns)}, "
                f"not {', '.join(wanted)}",
                hint="leave out vocab= to open it, or choose another name",
                name=name,
            )
        return dataset

    def __getitem__(self, name: str) -> Dataset:
        entry = names.require_entry(self._store, name)
        return self._opened(entry)

    def _opened(self, entry: names.NameEntry) -> Dataset:
        return Dataset.open(Ledger(entry.name, dataset_objects(self._store, entry.id), self._runtime))

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

    def readers(self, name: str) -> tuple[str, ...]:
        """The names of the datasets that are computed from a dataset: outputs of steps that read it, and views."""
        return find_readers(self._store, names.require_entry(self._store, name))

    def erase(self, name: str, keys: Any) -> EraseReport:
        """Remove every version of some keys from every file of a dataset and of everything computed from it.

        `keys` is as in `Dataset.delete`. Current rows are first retracted; then the steps and views that read the
        dataset must process that: `DatasetInUse` says what to run before erasing again. It also names what to drop
        first if its columns do not tell which of its rows were computed from the erased ones. The chains record what
        was replaced and the hashes of the keys; `verify` checks it.
        """
        from floodmark.provenance.erase import erase

        return erase(self, name, keys)

    def drop_order(self, name: str) -> tuple[str, ...]:
        """What `drop` with `cascade` would remove, in this order: a dataset comes after everything computed from it."""
        return tuple(drop_order(self._store, names.require_entry(self._store, name)))

    def drop(self, name: str, *, cascade: bool = False, head: Multihash | None = None) -> tuple[str, ...]:
        """Permanently remove a dataset: first its name, then all its objects. Returns the names of what was dropped.

        `DatasetInUse` if other datasets are computed from it. With `cascade`, these are dropped first, and everything
        that is computed from them. With `head`, remove it only if this is still its newest block; otherwise raise
        `CommitConflict`.
        """
        order = self.drop_order(name)
        *readers, last = order
        if readers and not cascade:
            direct = self.readers(name)
            raise DatasetInUse(
                f"dataset {last!r} was not dropped: {', '.join(direct)} {'is' if len(direct) == 1 else 'are'} computed "
                f"from it",
                hint=f"drop everything that is computed from it, too: lake.drop({last!r}, cascade=True), or "
                f"`floodmark drop {last} --cascade`",
                dataset=last,
                readers=readers,
            )
        for one in readers:
            with suppress(UnknownDataset):  # another process dropped it
                self._drop_alone(one)
        self._drop_alone(name, head)
        return order

    def _drop_alone(self, name: str, head: Multihash | None = None) -> None:
        """Drop a dataset, whether others read it or not."""
        for _ in attempt_numbers(MAX_RACES):
            entry = names.require_entry(self._store, name)
            objects = dataset_objects(self._store, entry.id)
            with objects.turn():  # a concurrent commit would leave objects behind
                if head is not None and objects.read_head() != head:
                    break
                list(self._store.list(objects.folder))  # an error, such as a link, must come before anything is gone
                if names.swap(self._store, entry, None):
                    known = {i for other in names.entries(self._store) for i in (other.id, other.pending)}
                    for dataset_id in (entry.id, entry.pending):
                        if dataset_id is not None and dataset_id not in known:  # an interrupted rename leaves two names
                            self._remove_objects(name, dataset_id)
                    return
        raise CommitConflict(f"dataset {name!r} has a newer head and was not dropped", hint="check its log first")

    def _remove_objects(self, name: str, dataset_id: DatasetId) -> None:
        try:
            remove(dataset_objects(self._store, dataset_id))
        except StorageError as error:
            raise StorageError(
                f"dataset {name!r} was dropped, but some of its objects are left: {error.message}",
                hint=f"remove them with `floodmark gc {dataset_id}`, in a week at the earliest",
            ) from error

    def rename(self, old: str, new: str) -> Dataset:
        """Rename a dataset. No data moves, and objects that have it open keep working."""
        if not names.rename(self._store, old, new):
            entry = names.require_entry(self._store, new)
            if dataset_objects(self._store, entry.id).read_head() is None:  # dropped during the rename
                names.swap(self._store, entry, None)
        return self[new]

    def backup(self, destination: str | Path | Store, *names: str, replace: bool = False) -> BackupReport:
        """Back up the lake into a folder or bucket; or the named datasets, with everything they are computed from.

        Other processes may write meanwhile: the backup is the lake as of one moment. Into an earlier backup, only new
        objects are copied. A backup that was stopped is continued. Without `replace`, blocks that only the destination
        has are not replaced: `NewerData`.
        """
        from floodmark.backup.create import create_backup  # imported here: few processes need it

        return create_backup(self._store, _store_at(destination), names, self._runtime, replace_newer=replace)

    def restore(self, backup: str | Path | Store, *names: str, replace: bool = False) -> RestorePlan:
        """Restore a backup, or the named datasets of it; returns what was done.

        `NewerData` if this would remove records or columns that only the lake has; with `replace` they go. Datasets
        that are not in the backup stay. A restore that was stopped left each dataset old or new; call it again.
        """
        from floodmark.backup.restore import restore_backup

        return restore_backup(self._store, _store_at(backup), names, replace_newer=replace)

    def plan_restore(self, backup: str | Path | Store, *names: str) -> RestorePlan:
        """What `restore` would do."""
        from floodmark.backup.restore import plan_restore

        return plan_restore(self._store, _store_at(backup), names)

    def sql(self, query: str) -> pa.Table:
        """Run a SQL query over the datasets with DuckDB, without a JVM."""
        return query_duckdb(self, query)

    def sql_spark(self, query: str) -> DataFrame:
        """Run a SQL query over the datasets with Spark."""
        with explain_dead_jvm():
            frame: DataFrame = query_spark(self, query, self._runtime.session.get())
        return frame


def _store_at(location: str | Path | Store) -> Store:
    return open_store(location) if isinstance(location, str | Path) else location
