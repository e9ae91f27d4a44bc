"""`floodmark status`: how far steps are behind their inputs, what failed, and what datasets there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, steps, words
from floodmark.cli.call import Call, verb
from floodmark.cli.exits import FAILED
from floodmark.cli.tables import Column, Row, print_table
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.cli.verbs.list import Listed
    from floodmark.lake import Lake
    from floodmark.pipeline.graph import Node
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.transform.report import StepStatus

_COLUMNS = [
    Column("step"),
    Column("behind", is_number=True),
    Column("keys", is_number=True),
    Column("failed", is_number=True),
    Column("skipped", is_number=True),
    Column("exhausted", is_number=True),
    Column("last run"),
    Column("state"),
]
_INPUTS = [Column("input"), Column("position", is_number=True), Column("head", is_number=True)]
_INPUTS += [Column("behind", is_number=True)]
_DATASETS = [Column("dataset"), Column("offset", is_number=True), Column("records", is_number=True)]
_DATASETS += [Column("size", is_number=True), Column("watermark"), Column("last write")]


@verb("status")
@click.argument("names", metavar="[STEP]...", nargs=-1)
@click.option(
    "--label", "labels", metavar="NAME=VALUE", multiple=True, callback=steps.labels, help="Only what has this label."
)
@steps.pipeline_option
def status(call: Call, names: tuple[str, ...], labels: dict[str, str], file: str | None) -> None:
    """Show how far everything is: steps and datasets.

    \b
    floodmark status
    floodmark status features
    floodmark status --label stage=images --json | jq '.steps[] | {step, behind}'

    Behind are records of all inputs that a step or view has not processed, or rows that a column lacks. Failed keys are
    tried again by the next run; skipped ones, and those whose attempts are exhausted, wait for a change or for
    `floodmark retry`. Without a STEP and labels, all datasets of the lake come after it. Reads no data.

    What cannot be read is named on stderr (with --json it has an `error`), and the exit code is 1.
    """
    from floodmark.pipeline.standing import standing

    pipeline = steps.load_pipeline(file)
    nodes = steps.nodes(pipeline, names, labels)
    if not names:  # as a run goes through them
        place = {name: number for number, name in enumerate(pipeline.graph().order)}
        nodes.sort(key=lambda node: place[node.name])
    lake = call.lake()
    now = datetime.now(UTC)
    found = [_looked_at(partial(standing, pipeline, node, lake), node) for node in nodes]
    found = [replace(one, new_files=_new_files(pipeline, one.node, lake)) for one in found]
    datasets, damaged = _datasets(lake) if not names and not labels else ([], {})
    if call.as_json:
        described = [one.fields for one in found]
        listed = [] if names or labels else [vars(one) for one in datasets]
        document.emit(lake=lake.store.url, steps=described, **({} if names or labels else {"datasets": listed}))
    else:
        rows = [_row_of(one, now) for one in found if one.error is None]
        if rows:
            print_table(_COLUMNS, rows)
        elif not any(one.error for one in found):
            call.note("the pipeline has no such steps" if labels else "the pipeline has no steps")
        if len(names) == 1 and found and (known := found[0].status) is not None and known.inputs:
            click.echo("")
            cells = [[i.name, _offset(i.position), _offset(i.head), f"{i.behind:,}"] for i in known.inputs]
            print_table(_INPUTS, cells)
        if datasets:
            click.echo("")
            print_table(_DATASETS, [_dataset_row(one, now) for one in datasets])
    broken = {f"step {one.node.name}": one.error for one in found if one.error is not None} | damaged
    for name, why in broken.items():
        call.note(f"error: {name}: {why.message}\n  {why.hint}")
    if broken:
        click.get_current_context().exit(FAILED)


@dataclass(frozen=True)
class _Looked:
    """A node and where it stands, or what it waits for, or why that cannot be told."""

    node: Node
    status: StepStatus | None = None
    waits: str | None = None
    error: FloodmarkError | None = None
    new_files: int | None = None
    """Of a source of files: how many have not been looked at as they are now."""

    @property
    def fields(self) -> dict[str, Any]:
        """The same for JSON."""
        known: dict[str, Any] = {"step": self.node.name, "kind": self.node.what, "labels": dict(self.node.labels)}
        if self.error is not None:
            return {**known, "error": {"type": type(self.error).__name__, "message": self.error.message}}
        if self.status is None:
            return {**known, "waits": self.waits}
        known |= {} if self.new_files is None else {"new_files": self.new_files}
        return {**known, **asdict(self.status), "behind": self.status.behind, "state": self.state}

    @property
    def state(self) -> str:
        """Where it stands, in words."""
        if self.new_files:
            return f"a source: {words.many(self.new_files, 'new file')}"
        return f"waits: {self.waits}" if self.status is None else _state(self.status)


def _new_files(pipeline: Pipeline, node: Node, lake: Lake) -> int | None:
    step: Any = pipeline[node.name] if node.kind == "source" else None
    try:
        return int(step.unseen(lake)) if hasattr(step, "unseen") else None
    except FloodmarkError:  # its only file is gone: a run says so
        return None


def _looked_at(look: Callable[[], StepStatus], node: Node) -> _Looked:
    from floodmark.ledger.errors import UnknownDataset

    try:
        return _Looked(node, look())
    except UnknownDataset as error:
        return _Looked(node, waits=error.message)
    except FloodmarkError as error:
        return _Looked(node, error=error)


def _datasets(lake: Lake) -> tuple[list[Listed], dict[str, FloodmarkError]]:
    """All datasets, and those that cannot be read."""
    from floodmark.cli.verbs.list import Listed

    found: list[Listed] = []
    damaged: dict[str, FloodmarkError] = {}
    for dataset in lake:
        try:
            found.append(Listed.of(dataset))
        except FloodmarkError as error:
            damaged[dataset.name] = error
    return found, damaged


def _dataset_row(one: Listed, now: datetime) -> Row:
    offset = "-" if one.last_offset is None else f"{one.last_offset:,}"
    written = "never" if one.last_write is None else words.ago(one.last_write, now)
    watermark = "-" if one.watermark is None else words.clock(one.watermark)
    return [one.name, offset, f"{one.records:,}", words.size(one.size), watermark, written]


def _row_of(one: _Looked, now: datetime) -> Row:
    if one.status is None:
        return [one.node.name, *["-"] * 5, "never", one.state]
    return [*_row(one.status, now), one.state]


def _row(one: StepStatus, now: datetime) -> list[str]:
    counts = [f"{n:,}" for n in (one.keys, one.failed, one.skipped, one.exhausted)]
    is_new = bool(one.inputs) and (one.behind > 0 or not one.keys)  # a column knows no runs, only what they did
    ran = words.ago(one.last_run.started, now) if one.last_run is not None else "never" if is_new else "-"
    return [one.step, f"{one.behind:,}" if one.inputs else "-", *counts, ran]


def _state(one: StepStatus) -> str:
    if one.stale is not None:
        return f"everything is to be processed: {one.stale}"
    if not one.inputs:
        return "a source"
    return "behind" if one.behind else "up to date"


def _offset(position: int) -> str:
    return "-" if position < 0 else str(position)
