"""Run one node of a graph (a step, a computed column or a view), and read its status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from floodmark.ledger.commit import to_datetime
from floodmark.pipeline.declarations import ColumnSpec, ViewSpec
from floodmark.pipeline.graph import PipelineNode
from floodmark.transforms.step import InputStatus, LastRun, RunReport, Step, StepStatus

if TYPE_CHECKING:
    from floodmark.columns.backfill import BackfillReport
    from floodmark.columns.catalog import ColumnDefinition as CatalogColumn
    from floodmark.columns.catalog import ColumnObjects
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.transforms.batch_transform import BatchTransform
    from floodmark.views.plan import RefreshReport


@dataclass(frozen=True)
class PipelineOptions:
    """Options of a run besides the declarations. Options that do not fit a node are refused earlier."""

    filters: Callable[[BatchTransform, Any], Any] | None = None
    max_records: int | None = None
    commit_every: int | None = None
    full: bool = False
    where: str | None = None


DEFAULT_OPTIONS = PipelineOptions()


@dataclass(frozen=True)
class NodeResult:
    """The result of running a node: the number of rows written or computed, and of records that failed.

    `waits` is the reason why it could do nothing yet, if so. `report` has the details; its type depends on the node.
    """

    nothing: bool
    rows: int = 0
    failed: int = 0
    report: RunReport | RefreshReport | BackfillReport | None = None
    waits: str | None = None


def execute_node(pipeline: Pipeline, name: str, lake: Any, options: PipelineOptions = DEFAULT_OPTIONS) -> NodeResult:
    """Bring a node up to date."""
    if (column := pipeline.columns.get(name)) is not None:
        return _backfill_column(column, lake, options)
    if (view := pipeline.views.get(name)) is not None:
        return _refresh_view(view, lake)
    return _run_step(pipeline[name], lake, options)


def _run_step(step: Any, lake: Any, options: PipelineOptions) -> NodeResult:
    from floodmark.transforms.batch_transform import BatchTransform

    report: RunReport
    if isinstance(step, BatchTransform):
        filters = None if options.filters is None else options.filters(step, lake)
        if options.where is not None:
            filters = _filter_pending(step, lake, options.where)
        report = step.run(lake, filters=filters, max_records=options.max_records, commit_every=options.commit_every)
        nothing = report.nothing and not report.keys
    else:
        report = step.run(lake, full=True) if options.full and continues_source(step) else step.run(lake)
        nothing = report.nothing
    waits = step.missing() if nothing and hasattr(step, "missing") else None
    return NodeResult(nothing, report.new + report.changed + report.retracted, report.failed, report, waits)


def continues_source(step: Step) -> bool:
    """Whether it continues its source from the last position, so that only `full` makes it read everything."""
    from floodmark.sources.files import IngestFiles
    from floodmark.sources.update_external_table import UpdateExternalTable

    return isinstance(step, UpdateExternalTable | IngestFiles)


def reset_node(pipeline: Pipeline, name: str, lake: Any) -> None:
    """Make the next run of a node compute everything. Its present output stays until then."""
    if (column := pipeline.columns.get(name)) is not None:
        if column.owner in lake and lake[column.owner].catalog.find(column.name) is not None:
            lake[column.owner].reset_column(column.name)
    elif name in pipeline.views:
        if name in lake:
            lake.view(name).reset()
    else:
        step: Any = pipeline[name]
        if not continues_source(step) and hasattr(step, "reset") and all(read in lake for read in step.input_names):
            step.reset(lake)


def _filter_pending(step: BatchTransform, lake: Any, where: str) -> Any:
    """The pending keys that match a SQL condition, as a filter."""
    import duckdb

    from floodmark.errors import BadStep
    from floodmark.ledger.duckdb_table import connect
    from floodmark.transforms.snapshot import snapshot_step

    if (shape := snapshot_step(step, lake).shape) is None:
        return None
    pending = step.changelist(lake).select(shape.keys.names)
    with connect() as connection:
        connection.register("pending", pending)
        try:
            kept = connection.sql(f"select distinct * from pending where ({where})").to_arrow_table()
        except duckdb.Error as error:
            raise BadStep(
                f"--where is not valid for step {step.name!r}: {error}",
                hint=f"write a condition on the transform keys: {', '.join(shape.keys.names)}",
            ) from error
    if len(kept.column_names) == 1:
        return {kept.column_names[0]: kept.column(0).combine_chunks().cast(shape.keys.field(0).type)}
    return kept.to_pylist()


def _backfill_column(column: ColumnSpec, lake: Any, options: PipelineOptions) -> NodeResult:
    from floodmark.columns.backfill import BackfillReport
    from floodmark.errors import ColumnExists

    dataset = lake[column.owner]
    if dataset.schema is None:
        return NodeResult(True, waits=f"dataset {column.owner!r} has no records yet")
    if not column.retry_errors and is_computed(column, dataset):
        return NodeResult(True, report=BackfillReport(column.name))
    try:
        dataset.add_column(column.name, column.udf, column.inputs, exist_ok=True)
    except ColumnExists:
        dataset.alter_column(column.name, column.udf, column.inputs)
    where = column.where if options.where is None else options.where
    sizes = {"checkpoint_size": column.checkpoint_size, "task_size": column.task_size}
    done = dataset.backfill(column.name, where, udf=column.udf, retry_errors=column.retry_errors, **sizes)
    return NodeResult(done.commits == 0, done.computed + done.reused + done.carried, done.failed, done)


def partial_result(report: RunReport | BackfillReport) -> NodeResult:
    """What a failed node did before it failed."""
    if isinstance(report, RunReport):
        return NodeResult(False, report.new + report.changed + report.retracted, report.failed, report)
    return NodeResult(report.commits == 0, report.computed + report.reused, report.failed, report)


def is_computed(column: ColumnSpec, dataset: Any) -> bool:
    """Whether all rows have values of this exact function, according to the manifests. Reads no data."""
    from floodmark.columns import catalog as catalog_module
    from floodmark.columns.catalog import ColumnObjects
    from floodmark.columns.snapshot import ColumnCoverage, find_readable_end
    from floodmark.derive.inputs import snapshot_dataset

    given = snapshot_dataset(dataset)
    objects = ColumnObjects(given.snapshot.objects)
    catalog = catalog_module.load(objects)
    present = catalog.find(column.name)
    if present is None or present.inputs != column.taken:
        return False
    if (present.function.name, present.function.version) != (column.udf.name, column.udf.version):
        return False
    return find_readable_end(given, ColumnCoverage.of(given, catalog, (present,))) == given.end


def _refresh_view(view: ViewSpec, lake: Any) -> NodeResult:
    for name in view.reads:
        if lake[name].schema is None:
            return NodeResult(True, waits=f"dataset {name!r} has no records yet")
    done = view.open(lake).refresh(udfs=_view_udfs(view))
    return NodeResult(done.nothing, done.new + done.changed + done.retracted, done.failed, done)


def _view_udfs(view: ViewSpec) -> list[Any]:
    from floodmark.functions.udf import Udf

    chosen = [what[0] if isinstance(what, tuple) else what for what in (view.select or {}).values()]
    return [one for one in chosen if isinstance(one, Udf)]


# Status


def node_status(pipeline: Pipeline, node: PipelineNode, lake: Any) -> StepStatus:
    """The status of a node; `UnknownDataset` if one of its inputs does not exist yet."""
    if (column := pipeline.columns.get(node.name)) is not None:
        return _column_status(column, lake)
    if (view := pipeline.views.get(node.name)) is not None:
        return _view_status(view, lake)
    step: Any = pipeline[node.name]
    status: StepStatus = step.status(lake)
    if status.inputs or status.last_run is not None:
        return status
    return _add_last_write(status, node, lake)


def _add_last_write(status: StepStatus, node: PipelineNode, lake: Any) -> StepStatus:
    """Add the time of the last write, because a source keeps no note of its runs."""
    written = [lake[name].snapshot() for name in node.writes if name in lake]
    times = [one.head_block.system_time for one in written if one.state.last_offset is not None]
    if not times:
        return status
    last = LastRun("", to_datetime(max(times)), 0, 0, 0.0)
    return StepStatus(status.step, (), status.keys, 0, 0, 0, "", None, last)


def _column_status(column: ColumnSpec, lake: Any) -> StepStatus:
    from floodmark.columns.catalog import ColumnObjects

    dataset = lake[column.owner]
    snapshot = dataset.snapshot()
    head = snapshot.next_offset - 1
    known = (column.udf.version, None, None)
    present = dataset.catalog.find(column.name)
    if snapshot.layout is None or present is None:
        rows = dataset.count() if snapshot.layout is not None else 0
        return StepStatus(column.called, (InputStatus(column.owner, -1, head, rows),), 0, 0, 0, 0, *known)
    objects = ColumnObjects(snapshot.objects)
    last = _last_computed(objects, present)
    if is_computed(column, dataset) and not _has_errors(objects, present):
        inputs = (InputStatus(column.owner, head, head, 0),)
        return StepStatus(column.called, inputs, dataset.count(), 0, 0, 0, column.udf.version, None, last)
    status = next(one for one in dataset.columns() if one.name == column.name)
    is_same = (present.function.name, present.function.version) == (column.udf.name, column.udf.version)
    behind = status.rows - status.done if is_same else status.rows
    inputs = (InputStatus(column.owner, head if not behind else -1, head, behind),)
    stale = None if is_same else "its function changed"
    return StepStatus(column.called, inputs, status.done, 0, status.errors, 0, column.udf.version, stale, last)


def _has_errors(objects: ColumnObjects, present: CatalogColumn) -> bool:
    """Whether rows were skipped because the function failed; some of them may be dead or purged."""
    from floodmark.columns import manifest

    return any(fragment.errors is not None for fragment in manifest.load(objects, present).fragments)


def _last_computed(objects: ColumnObjects, present: CatalogColumn) -> LastRun | None:
    """The time of the newest values or errors, because a column keeps no note of its runs."""
    if present.manifest is None:
        return None
    stored = objects.store.stat(objects.manifest_key(present.manifest))
    return None if stored is None else LastRun("", datetime.fromtimestamp(stored.modified, UTC), 0, 0, 0.0)


def _view_status(view: ViewSpec, lake: Any) -> StepStatus:
    from floodmark.views.snapshot import ViewSnapshot, take_view_snapshot

    if view.name not in lake:
        inputs = tuple(InputStatus(name, -1, end - 1, end) for name, end in _input_ends(view, lake))
        return StepStatus(view.name, inputs, 0, 0, 0, 0, view.definition.version, None, None)
    view_snapshot = take_view_snapshot(lake, view.name)
    is_same = view_snapshot.stored.definition == view.definition
    stale = None if is_same else "its definition changed"
    note = view_snapshot.note
    last = None
    if note is not None:
        started = datetime.fromtimestamp(note.process_ts / 1000, UTC)
        last = LastRun(note.run, started, note.keys, 0, note.seconds)
    rows = lake.view(view.name).count() if note is not None else 0
    inputs = ()
    if isinstance(view_snapshot, ViewSnapshot):
        stale = stale or (view_snapshot.stale if note is not None else None)
        inputs = tuple(
            InputStatus(s.given.name, at, s.last_offset, s.given.unread(at))
            for s in view_snapshot.sources
            for at in (view_snapshot.positions[s.given.dataset_id],)
        )
    else:
        stale = stale or "the columns of its sources changed"
    failed = 0 if note is None or note.errors is None else lake.view(view.name).errors().num_rows
    return StepStatus(view.name, inputs, rows, 0, failed, 0, view.definition.version, stale, last)


def _input_ends(view: ViewSpec, lake: Any) -> list[tuple[str, int]]:
    return [(name, lake[name].snapshot().next_offset) for name in view.reads]
