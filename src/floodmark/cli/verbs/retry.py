"""`floodmark retry`: try keys again whose call failed."""

from __future__ import annotations

import click

from floodmark.cli import document, ran, steps
from floodmark.cli.call import Call, verb
from floodmark.cli.exits import FAILED


@verb("retry")
@click.argument("name", metavar="[STEP]", required=False)
@click.option("--strict", is_flag=True, help="Exit with 1 when keys failed again.")
@steps.pipeline_option
def retry(call: Call, name: str | None, strict: bool, file: str | None) -> None:
    """Try all keys of a step again whose call failed.

    \b
    floodmark retry features
    floodmark retry

    Those too that were skipped, that have used up their attempts, or that are not due yet. Without a STEP, the keys of
    all steps, each after what it reads. What else has changed is left to `floodmark run`.
    """
    pipeline = steps.load_pipeline(file)
    chosen = steps.keyed_steps(pipeline) if name is None else [steps.keyed_step(pipeline[name], "retry")]
    lake = call.lake()
    reports = []
    for step in chosen:
        if name is None and not all(read in lake for read in step.input_names):
            continue  # it cannot have failed yet
        with ran.running(call, step):
            report = step.retry(lake)
        ran.show(call, lake, step, report)
        reports.append(report)
    if call.as_json:
        described = [ran.fields(report) for report in reports]
        document.emit(lake=lake.store.url, **({"runs": described} if name is None else {"run": described[0]}))
    elif not reports:
        call.note("there is no step that has run by keys")
    if strict and any(report.failed for report in reports):
        click.get_current_context().exit(FAILED)
