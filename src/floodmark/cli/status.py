"""`floodmark status` and `floodmark graph`: the state of steps and datasets, and a picture of the pipeline."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import output, targets
from floodmark.cli.command import Invocation, verb
from floodmark.cli.exit_codes import FAILED, NoLake
from floodmark.cli.output import TableColumn, TableRow, format_offset, print_table
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.cli.datasets import DatasetSummary
    from floodmark.lake import Lake
    from floodmark.pipeline.graph import Graph, PipelineNode
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.transforms.step import StepStatus


_COLUMNS = [
    TableColumn("step"),
    TableColumn("behind", is_number=True),
    TableColumn("keys", is_number=True),
    TableColumn("failed", is_number=True),
    TableColumn("skipped", is_number=True),
    TableColumn("exhausted", is_number=True),
    TableColumn("last run"),
    TableColumn("state"),
]
_INPUTS = [TableColumn("input"), TableColumn("position", is_number=True), TableColumn("head", is_number=True)]
_INPUTS += [TableColumn("behind", is_number=True)]
_DATASETS = [TableColumn("dataset"), TableColumn("offset", is_number=True), TableColumn("records", is_number=True)]
_DATASETS += [TableColumn("size", is_number=True), TableColumn("watermark"), TableColumn("last write")]
_DATASETS += [TableColumn("last change")]


@verb("status")
@click.argument("names", metavar="[STEP]...", nargs=-1)
@targets.label_option
@targets.pipeline_option
def status(call: Invocation, names: tuple[str, ...], labels: dict[str, str], file: str | None) -> None:
    """Show the state of steps and datasets.

    \b
    floodmark status
    floodmark status features
    floodmark status --label stage=images --json | jq '.steps[] | {step, behind}'

    `behind` counts records of all inputs that a step or view has not processed, or rows that a column lacks. The next
    run retries failed keys; skipped and exhausted keys wait for a change of their rows or for `floodmark retry`. Failed
    keys keep the rows of their last success: the state says how many show older results.
    Without a STEP and labels, the datasets of the lake follow, with what their last write changed, and notes on what is
    not in the pipeline any more, but still in the lake. Reads no values of rows.

    A step or dataset that cannot be read is an error on stderr (with --json an `error`), and the exit code is 1.
    """
    from floodmark.cli.datasets import summarise
    from floodmark.pipeline.nodes import node_status

    pipeline = targets.load_pipeline(file)
    nodes = targets.select_nodes(pipeline, names, labels)
    if not names:  # in the order of a run
        place = {name: number for number, name in enumerate(pipeline.graph().order)}
        nodes.sort(key=lambda node: place[node.name])
    lake = call.lake()
    now = datetime.now(UTC)
    found = [_read_state(partial(node_status, pipeline, node, lake), node) for node in nodes]
    found = [replace(one, new_files=_new_files(pipeline, one.node, lake)) for one in found]
    datasets, damaged = ([], {}) if names or labels else summarise(lake)
    datasets = [_with_last_result(one, lake) for one in datasets]
    removed = pipeline.removed(lake) if not names and not labels else ()
    if call.as_json:
        described = [one.fields for one in found]
        listed = [] if names or labels else [vars(one) for one in datasets]
        whole = {} if names or labels else {"datasets": listed, "removed": [asdict(one) for one in removed]}
        output.emit(lake=lake.store.url, steps=described, **whole)
    else:
        rows = [_node_row(one, now) for one in found if one.error is None]
        if rows:
            print_table(_COLUMNS, rows)
        elif not any(one.error for one in found):
            call.note("the pipeline has no such steps" if labels else "the pipeline has no steps")
        if len(names) == 1 and found and (known := found[0].status) is not None and known.inputs:
            click.echo("")
            cells = [[i.name, format_offset(i.position), format_offset(i.head), f"{i.behind:,}"] for i in known.inputs]
            print_table(_INPUTS, cells)
        if datasets:
            click.echo("")
            print_table(_DATASETS, [_dataset_row(one, now) for one in datasets])
        for one in removed:
            call.note(str(one))
    broken = {f"step {one.node.name}": one.error for one in found if one.error is not None} | damaged
    for name, why in broken.items():
        call.note(f"error: {name}: {why.message}\n  {why.hint}")
    if broken:
        click.get_current_context().exit(FAILED)


@dataclass(frozen=True)
class _NodeState:
    """A node with its status, or what it waits for, or the error of reading it."""

    node: PipelineNode
    status: StepStatus | None = None
    waits: str | None = None
    error: FloodmarkError | None = None
    new_files: int | None = None
    """For a source of files: how many are new or changed."""

    @property
    def fields(self) -> dict[str, Any]:
        """The values for JSON."""
        known: dict[str, Any] = {"step": self.node.name, "kind": self.node.what, "labels": dict(self.node.labels)}
        if self.error is not None:
            return {**known, "error": {"type": type(self.error).__name__, "message": self.error.message}}
        if self.status is None:
            return {**known, "waits": self.waits}
        known |= {} if self.new_files is None else {"new_files": self.new_files}
        return {**known, **asdict(self.status), "behind": self.status.behind, "state": self.state}

    @property
    def state(self) -> str:
        """The state as text."""
        if self.new_files:
            return f"a source: {output.format_count(self.new_files, 'new file')}"
        return f"waits: {self.waits}" if self.status is None else _state_text(self.status)


def _new_files(pipeline: Pipeline, node: PipelineNode, lake: Lake) -> int | None:
    step: Any = pipeline[node.name] if node.kind == "source" else None
    try:
        return int(step.unseen(lake)) if hasattr(step, "unseen") else None
    except FloodmarkError:  # its file is gone, which a run reports
        return None


def _read_state(look: Callable[[], StepStatus], node: PipelineNode) -> _NodeState:
    from floodmark.errors import UnknownDataset

    try:
        return _NodeState(node, look())
    except UnknownDataset as error:
        return _NodeState(node, waits=error.message)
    except FloodmarkError as error:
        return _NodeState(node, error=error)


def _with_last_result(one: DatasetSummary, lake: Lake) -> DatasetSummary:
    """The dataset with what its newest results changed, which its block does not say."""
    from floodmark.chain.ids import DatasetId, Multihash
    from floodmark.ledger.create import dataset_objects
    from floodmark.ledger.log import last_result

    if one.kind != "derivative" or one.last_change:
        return one
    objects = dataset_objects(lake.store, DatasetId.parse(one.id))
    return replace(one, last_change=last_result(objects, Multihash.parse(one.head)))


def _dataset_row(one: DatasetSummary, now: datetime) -> TableRow:
    offset = "-" if one.last_offset is None else f"{one.last_offset:,}"
    written = "never" if one.last_write is None else output.format_age(one.last_write, now)
    watermark = "-" if one.watermark is None else output.format_time(one.watermark)
    return [one.name, offset, f"{one.records:,}", output.format_bytes(one.size), watermark, written, one.last_change]


def _node_row(one: _NodeState, now: datetime) -> TableRow:
    if one.status is None:
        return [one.node.name, *["-"] * 5, "never", one.state]
    return [*_status_cells(one.status, now), one.state]


def _status_cells(one: StepStatus, now: datetime) -> list[str]:
    counts = [f"{n:,}" for n in (one.keys, one.failed, one.skipped, one.exhausted)]
    is_new = bool(one.inputs) and (one.behind > 0 or not one.keys)  # a column has no record of its runs
    ran = output.format_age(one.last_run.started, now) if one.last_run is not None else "never" if is_new else "-"
    return [one.step, f"{one.behind:,}" if one.inputs else "-", *counts, ran]


def _state_text(one: StepStatus) -> str:
    if one.stale is None and not one.inputs:
        return "a source"
    parts = ["last run failed"] if one.last_run is not None and one.last_run.problem else []
    if one.stale is not None:
        parts.append(f"must process everything: {one.stale}")
    elif one.behind:
        parts.append("behind")
    failed = one.failed + one.exhausted
    if failed and (one.stale is None or parts[0] == "last run failed"):  # else they are failures of another version
        older = one.showing_older
        rows = "" if not older else ", showing older results" if older == failed else f", {older:,} show older results"
        parts.append(f"{max(0, one.keys - failed - one.skipped):,} of {one.keys:,} succeeded, {failed:,} failed{rows}")
    return ", ".join(parts) or "up to date"


@verb("graph")
@click.option(
    "--svg",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Draw the graph to this SVG file; - is stdout.",
)
@targets.pipeline_option
def graph(call: Invocation, svg: str | None, file: str | None) -> None:
    """Draw the pipeline: what each step reads.

    \b
    floodmark graph
    floodmark graph --svg pipeline.svg
    floodmark graph --json | jq '.levels'

    If there is a lake, each step has a note with its state, such as `5 behind`. Reads no data.
    """
    from floodmark.pipeline import picture

    if svg == "-" and call.as_json:
        raise click.UsageError("--svg - and --json both write to stdout: name a file for the SVG.")
    pipeline = targets.load_pipeline(file)
    try:
        lake = call.lake()
    except NoLake:
        lake = None  # the graph needs no lake
    found = _checked_graph(pipeline, lake)
    notes = {} if lake is None else _notes(pipeline, found, lake)
    if svg == "-":
        click.echo(picture.draw_svg(found, notes))
        return
    if svg is not None:
        Path(svg).write_text(picture.draw_svg(found, notes), "utf-8")
    if call.as_json:
        output.emit(nodes=_node_fields(found, notes), levels=[list(level) for level in found.levels], svg=svg)
        return
    if svg is not None:
        click.echo(f"drawn to {svg}")
        return
    for line in picture.draw_text(found, notes, picture.line_style_for(sys.stdout.encoding)):
        click.echo(line)
    if not found.nodes:
        call.note("the pipeline has no steps")


def _checked_graph(pipeline: Pipeline, lake: Lake | None) -> Graph:
    if lake is None:
        return pipeline.graph()
    from floodmark.pipeline.checks import build_checked_graph

    return build_checked_graph(pipeline, lake)


def _notes(pipeline: Pipeline, graph: Graph, lake: Lake) -> dict[str, str]:
    """A short note on the state of each node; none if its state cannot be read."""
    from floodmark.errors import FloodmarkError
    from floodmark.pipeline.nodes import node_status

    found = {}
    for name, node in graph.nodes.items():
        try:
            status = node_status(pipeline, node, lake)
        except FloodmarkError:  # `status` reports the error
            continue
        if not status.inputs:
            continue
        failed = status.failed + status.exhausted
        parts = [f"{status.behind:,} behind"] if status.behind else []
        parts += [f"{failed:,} failed"] if failed else []
        parts += ["must process everything"] if status.stale is not None else []
        found[name] = ", ".join(parts) or "up to date"
    return found


def _node_fields(graph: Graph, notes: dict[str, str]) -> list[dict[str, object]]:
    return [
        {
            "name": name,
            "kind": node.kind,
            "what": node.what,
            "reads": list(node.reads),
            "writes": list(node.writes),
            "needs": list(graph.needs[name]),
            "labels": dict(node.labels),
            "file": None if node.place is None else node.place.file,
            "line": None if node.place is None else node.place.line,
            "note": notes.get(name),
        }
        for name, node in graph.nodes.items()
    ]
