"""Where the nodes of a pipeline stand: how far each is behind, what failed, and when it last did something.

Told from heads, positions and manifests: no data is read, and no Spark started.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from floodmark.ledger.commit import to_datetime
from floodmark.pipeline.declared import Column, View
from floodmark.pipeline.graph import Node
from floodmark.transform.report import InputStatus, LastRun, StepStatus

if TYPE_CHECKING:
    from floodmark.compute.stored.catalog import Column as CatalogColumn
    from floodmark.compute.stored.objects import ColumnObjects
    from floodmark.pipeline.pipeline import Pipeline


def standing(pipeline: Pipeline, node: Node, lake: Any) -> StepStatus:
    """Where a node stands; `UnknownDataset` while something that it reads is not there."""
    if (column := pipeline.columns.get(node.name)) is not None:
        return _column(column, lake)
    if (view := pipeline.views.get(node.name)) is not None:
        return _view(view, lake)
    step: Any = pipeline[node.name]
    found: StepStatus = step.status(lake)
    if found.inputs or found.last_run is not None:
        return found
    return _with_last_write(found, node, lake)


def _with_last_write(found: StepStatus, node: Node, lake: Any) -> StepStatus:
    """A source leaves no note of its runs, only data."""
    written = [lake[name].snapshot() for name in node.writes if name in lake]
    times = [one.head_block.system_time for one in written if one.state.last_offset is not None]
    if not times:
        return found
    last = LastRun("", to_datetime(max(times)), 0, 0, 0.0)
    return StepStatus(found.step, (), found.keys, 0, 0, 0, "", None, last)


def _column(column: Column, lake: Any) -> StepStatus:
    from floodmark.compute.stored.objects import ColumnObjects
    from floodmark.pipeline.work import is_computed

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
    """Whether rows were skipped since the function failed for them; some of them may be gone."""
    from floodmark.compute.stored import manifest as manifests

    return any(fragment.errors is not None for fragment in manifests.load(objects, present).fragments)


def _last_computed(objects: ColumnObjects, present: CatalogColumn) -> LastRun | None:
    """A column leaves no note of its runs, only values: when the newest became visible, or were given up."""
    if present.manifest is None:
        return None
    stored = objects.store.stat(objects.manifest_key(present.manifest))
    return None if stored is None else LastRun("", datetime.fromtimestamp(stored.modified, UTC), 0, 0, 0.0)


def _view(view: View, lake: Any) -> StepStatus:
    from floodmark.transform.views.pinned import PinnedView, pin_view

    if view.name not in lake:
        inputs = tuple(InputStatus(name, -1, end - 1, end) for name, end in _ends(view, lake))
        return StepStatus(view.name, inputs, 0, 0, 0, 0, view.definition.version, None, None)
    pinned = pin_view(lake, view.name)
    is_same = pinned.stored.definition == view.definition
    stale = None if is_same else "its definition changed"
    note = pinned.note
    last = None
    if note is not None:
        started = datetime.fromtimestamp(note.process_ts / 1000, UTC)
        last = LastRun(note.run, started, note.keys, 0, note.seconds)
    rows = lake.view(view.name).count() if note is not None else 0
    inputs = ()
    if isinstance(pinned, PinnedView):
        stale = stale or (pinned.stale if note is not None else None)
        inputs = tuple(
            InputStatus(s.given.name, at, s.head, max(0, s.head - max(at, s.given.purged_before - 1)))
            for s in pinned.sources
            for at in (pinned.positions[s.given.dataset_id],)
        )
    else:
        stale = stale or "the columns of its sources changed"
    failed = 0 if note is None or note.errors is None else lake.view(view.name).errors().num_rows
    return StepStatus(view.name, inputs, rows, 0, failed, 0, view.definition.version, stale, last)


def _ends(view: View, lake: Any) -> list[tuple[str, int]]:
    return [(name, lake[name].snapshot().next_offset) for name in view.reads]
