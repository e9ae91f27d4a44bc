"""What running a node means: a step runs, a column is added and backfilled, a view is declared and refreshed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floodmark.pipeline.declared import Column, View
from floodmark.transform.report import RunReport
from floodmark.transform.step import Step

if TYPE_CHECKING:
    from floodmark.compute.backfill import Backfill
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.transform.batch_transform import BatchTransform
    from floodmark.transform.views.report import Refreshed


@dataclass(frozen=True)
class Asked:
    """What a run was asked for besides the declarations; options that mean nothing to a node are refused before."""

    filters: Callable[[BatchTransform, Any], Any] | None = None
    max_records: int | None = None
    commit_every: int | None = None
    full: bool = False
    where: str | None = None


EVERYTHING = Asked()


@dataclass(frozen=True)
class Done:
    """What running a node came to: rows that were written or computed, and records that failed.

    `waits` says what it needs before it can do anything, if so. `report` has the rest, and differs by kind.
    """

    nothing: bool
    rows: int = 0
    failed: int = 0
    report: RunReport | Refreshed | Backfill | None = None
    waits: str | None = None


def perform(pipeline: Pipeline, name: str, lake: Any, asked: Asked = EVERYTHING) -> Done:
    """Bring a node up to date."""
    if (column := pipeline.columns.get(name)) is not None:
        return _backfilled(column, lake, asked)
    if (view := pipeline.views.get(name)) is not None:
        return _refreshed(view, lake)
    return _ran(pipeline[name], lake, asked)


def _ran(step: Any, lake: Any, asked: Asked) -> Done:
    from floodmark.transform.batch_transform import BatchTransform

    report: RunReport
    if isinstance(step, BatchTransform):
        filters = None if asked.filters is None else asked.filters(step, lake)
        if asked.where is not None:
            filters = _chosen(step, lake, asked.where)
        report = step.run(lake, filters=filters, max_records=asked.max_records, commit_every=asked.commit_every)
        nothing = report.nothing and not report.keys
    else:
        report = step.run(lake, full=True) if asked.full and _reads_on(step) else step.run(lake)
        nothing = report.nothing
    waits = step.missing() if nothing and hasattr(step, "missing") else None
    return Done(nothing, report.new + report.changed + report.retracted, report.failed, report, waits)


def _reads_on(step: Step) -> bool:
    """Whether it goes on reading its source from where it was, so that it has to be told to read all of it."""
    from floodmark.pipeline.ingest_files import IngestFiles
    from floodmark.transform.external.update import UpdateExternalTable

    return isinstance(step, UpdateExternalTable | IngestFiles)


def forget(pipeline: Pipeline, name: str, lake: Any) -> None:
    """Have a node compute everything when it is run next; what it has made stays as it is until then."""
    if (column := pipeline.columns.get(name)) is not None:
        if column.owner in lake and lake[column.owner].catalog.find(column.name) is not None:
            lake[column.owner].reset_column(column.name)
    elif name in pipeline.views:
        if name in lake:
            lake.view(name).reset()
    else:
        step: Any = pipeline[name]
        if not _reads_on(step) and hasattr(step, "reset") and all(read in lake for read in step.input_names):
            step.reset(lake)


def _chosen(step: BatchTransform, lake: Any, where: str) -> Any:
    """The pending keys that an SQL condition keeps, as a filter."""
    import duckdb

    from floodmark.pipeline.errors import BadDeclaration
    from floodmark.transform.pinned import pin_step

    if (shape := pin_step(step, lake).shape) is None:
        return None
    pending = step.changelist(lake).select(shape.keys.names)
    with duckdb.connect() as connection:
        connection.register("pending", pending)
        try:
            kept = connection.sql(f"select distinct * from pending where ({where})").to_arrow_table()
        except duckdb.Error as error:
            raise BadDeclaration(
                f"--where does not work on step {step.name!r}: {error}",
                hint=f"it is a condition on the transform keys: {', '.join(shape.keys.names)}",
            ) from error
    if len(kept.column_names) == 1:
        return {kept.column_names[0]: kept.column(0).combine_chunks().cast(shape.keys.field(0).type)}
    return kept.to_pylist()


def _backfilled(column: Column, lake: Any, asked: Asked) -> Done:
    from floodmark.compute.backfill import Backfill
    from floodmark.compute.errors import ColumnExists

    dataset = lake[column.owner]
    if dataset.schema is None:
        return Done(True, waits=f"dataset {column.owner!r} has no records yet")
    if not column.retry_errors and is_computed(column, dataset):
        return Done(True, report=Backfill(column.name))
    try:
        dataset.add_column(column.name, column.udf, column.inputs, exist_ok=True)
    except ColumnExists:
        dataset.alter_column(column.name, column.udf, column.inputs)
    where = column.where if asked.where is None else asked.where
    options = {"checkpoint_size": column.checkpoint_size, "task_size": column.task_size}
    done = dataset.backfill(column.name, where, udf=column.udf, retry_errors=column.retry_errors, **options)
    return Done(done.commits == 0, done.computed + done.reused, done.failed, done)


def is_computed(column: Column, dataset: Any) -> bool:
    """Whether all rows have the value of this very function, as far as manifests tell: reads no data."""
    from floodmark.compute.stored import catalog as catalogs
    from floodmark.compute.stored.objects import ColumnObjects
    from floodmark.transform.changed.inputs import pin_dataset
    from floodmark.transform.views.reading.extent import Computed, extent

    given = pin_dataset(dataset)
    objects = ColumnObjects(given.snapshot.objects)
    catalog = catalogs.load(objects)
    present = catalog.find(column.name)
    if present is None or present.inputs != column.taken:
        return False
    if (present.function.name, present.function.version) != (column.udf.name, column.udf.version):
        return False
    return extent(given, Computed.of(objects, catalog, given.dataset_id, (present,))) == given.end


def _refreshed(view: View, lake: Any) -> Done:
    for name in view.reads:
        if lake[name].schema is None:
            return Done(True, waits=f"dataset {name!r} has no records yet")
    done = view.open(lake).refresh(udfs=_functions(view))
    return Done(done.nothing, done.new + done.changed + done.retracted, done.failed, done)


def _functions(view: View) -> list[Any]:
    from floodmark.compute.functions.udf import Udf

    chosen = [what[0] if isinstance(what, tuple) else what for what in (view.select or {}).values()]
    return [one for one in chosen if isinstance(one, Udf)]
