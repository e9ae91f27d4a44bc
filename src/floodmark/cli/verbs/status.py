"""`floodmark status`: how far steps are behind their inputs, and what failed."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, steps, words
from floodmark.cli.call import Call, verb
from floodmark.cli.exits import FAILED
from floodmark.cli.tables import Column, Row, print_table
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
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


@verb("status")
@click.argument("names", metavar="[STEP]...", nargs=-1)
@click.option(
    "--label", "labels", metavar="NAME=VALUE", multiple=True, callback=steps.labels, help="Only steps with this label."
)
@steps.pipeline_option
def status(call: Call, names: tuple[str, ...], labels: dict[str, str], file: str | None) -> None:
    """Show how far steps are behind, and what failed.

    \b
    floodmark status
    floodmark status features
    floodmark status --label stage=images --json | jq '.steps[] | {step, behind}'

    Behind are records of all inputs that the step has not processed. Failed keys are tried again by the next run;
    skipped ones, and those whose attempts are exhausted, wait for a change or for `floodmark retry`. Reads no data.

    A step whose state cannot be read is named on stderr (with --json it has an `error`), and the exit code is 1.
    """
    from floodmark.ledger.errors import UnknownDataset

    found = steps.chosen(steps.load_pipeline(file).labelled(labels), names)
    lake = call.lake()
    known: list[StepStatus] = []
    rows: list[Row] = []
    described: list[dict[str, Any]] = []
    broken: dict[str, FloodmarkError] = {}
    now = datetime.now(UTC)
    for step in found:
        fields: dict[str, Any] = {"step": step.name, "kind": type(step).__name__, "labels": dict(step.labels)}
        try:
            one: StepStatus = step.status(lake)
        except UnknownDataset as error:
            rows.append([step.name, *["-"] * 5, "never", f"waits: {error.message}"])
            described.append({**fields, "waits": error.message})
            continue
        except FloodmarkError as error:
            broken[step.name] = error
            described.append({**fields, "error": {"type": type(error).__name__, "message": error.message}})
            continue
        known.append(one)
        rows.append(_row(one, now))
        described.append({**fields, **asdict(one), "behind": one.behind, "state": _state(one)})
    if call.as_json:
        document.emit(lake=lake.store.url, steps=described)
    elif rows:
        print_table(_COLUMNS, rows)
        if len(names) == 1 and known and known[0].inputs:
            click.echo("")
            print_table(
                _INPUTS, [[i.name, _offset(i.position), _offset(i.head), f"{i.behind:,}"] for i in known[0].inputs]
            )
    elif not broken:
        call.note("the pipeline has no such steps" if labels else "the pipeline has no steps")
    for name, why in broken.items():
        call.note(f"error: step {name}: {why.message}\n  {why.hint}")
    if broken:
        click.get_current_context().exit(FAILED)


def _row(one: StepStatus, now: datetime) -> Row:
    counts = [f"{n:,}" for n in (one.keys, one.failed, one.skipped, one.exhausted)]
    ran = "-" if not one.inputs else "never" if one.last_run is None else words.ago(one.last_run.started, now)
    return [one.step, f"{one.behind:,}" if one.inputs else "-", *counts, ran, _state(one)]


def _state(one: StepStatus) -> str:
    if one.stale is not None:
        return f"everything is to be processed: {one.stale}"
    if not one.inputs:
        return "a source"
    return "behind" if one.behind else "up to date"


def _offset(position: int) -> str:
    return "-" if position < 0 else str(position)
