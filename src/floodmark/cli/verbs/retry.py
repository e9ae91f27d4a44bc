"""`floodmark retry`: try keys again whose call failed."""

from __future__ import annotations

import click

from floodmark.cli import document, ran, steps
from floodmark.cli.call import Call, verb
from floodmark.cli.exits import FAILED


@verb("retry")
@click.argument("name", metavar="STEP")
@click.option("--strict", is_flag=True, help="Exit with 1 when keys failed again.")
@steps.pipeline_option
def retry(call: Call, name: str, strict: bool, file: str | None) -> None:
    """Try all keys of a step again whose call failed.

    \b
    floodmark retry features

    Those too that were skipped, that have used up their attempts, or that are not due yet. What else has changed is
    left to `floodmark run`.
    """
    step = steps.keyed_step(steps.load_pipeline(file)[name], "retry")
    lake = call.lake()
    with ran.running(call, step):
        report = step.retry(lake)
    ran.show(call, lake, step, report)
    if call.as_json:
        document.emit(lake=lake.store.url, run=ran.fields(report))
    if strict and report.failed:
        click.get_current_context().exit(FAILED)
