"""`floodmark run`: bring the outputs of steps up to date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, keys, ran, steps
from floodmark.cli.call import Call, verb
from floodmark.cli.errors import NoKey, OtherStep
from floodmark.cli.exits import FAILED

if TYPE_CHECKING:
    from floodmark.lake import Lake
    from floodmark.transform.batch_transform import BatchTransform
    from floodmark.transform.report import RunReport
    from floodmark.transform.step import Step

_COUNT = click.IntRange(min=1)


@verb("run")
@click.argument("names", metavar="STEP...", nargs=-1, required=True)
@click.option(
    "--max-records", metavar="N", type=_COUNT, help="Process at most so many keys, the earliest changes first."
)
@click.option(
    "--filter",
    "filters",
    metavar="KEY=VALUE",
    multiple=True,
    help="Only keys with this value. Again for the same KEY: any of the values; for others: all must fit.",
)
@click.option("--commit-every", metavar="N", type=_COUNT, help="Commit after so many keys. Default: as the step says.")
@click.option("--full", is_flag=True, help="Of an external table read everything, and retract rows that are gone.")
@click.option("--strict", is_flag=True, help="Exit with 1 when keys failed.")
@steps.pipeline_option
def run(
    call: Call,
    names: tuple[str, ...],
    max_records: int | None,
    filters: tuple[str, ...],
    commit_every: int | None,
    full: bool,
    strict: bool,
    file: str | None,
) -> None:
    """Bring the outputs of steps up to date.

    \b
    floodmark run features
    floodmark run people features --strict
    floodmark run features --filter country=NO --max-records 1000

    Steps are those of the pipeline file; several run in the order given. Only keys that changed are processed, and
    those whose call failed before. What --filter and --max-records leave out, a later run processes.

    A key whose call fails is noted, the others are committed, and the exit code is 0; with --strict it is 1. After
    Ctrl-C, a crash or an error the same command goes on from what was computed.
    """
    given = {"--max-records": max_records, "--filter": filters, "--commit-every": commit_every}
    texts = _texts(filters)
    chosen = steps.chosen(steps.load_pipeline(file), names)
    for step in chosen:
        _check_options(step, [option for option, value in given.items() if value], full)
    lake = call.lake()
    reports = []
    for step in chosen:
        with ran.running(call, step):
            report = _run(step, lake, texts, max_records, commit_every, full)
        ran.show(call, lake, step, report)
        reports.append(report)
    if call.as_json:
        document.emit(lake=lake.store.url, runs=[ran.fields(report) for report in reports])
    if strict and any(report.failed for report in reports):
        click.get_current_context().exit(FAILED)


def _check_options(step: Step, given: Sequence[str], full: bool) -> None:
    """Refuse, before anything runs, what would mean nothing to a step."""
    from floodmark.transform.batch_transform import BatchTransform

    if given and not isinstance(step, BatchTransform):
        raise _means_nothing(step, given[0], "it takes or makes everything at once")
    if full and not _is_external(step):
        raise _means_nothing(step, "--full", f"`floodmark reset {step.name}` has everything processed once more")


def _means_nothing(step: Step, option: str, why: str) -> OtherStep:
    kind = type(step).__name__
    return OtherStep(f"{option} means nothing to step {step.name!r}, a {kind}", hint=why, step=step.name)


def _is_external(step: Step) -> bool:
    from floodmark.transform.external.update import UpdateExternalTable

    return isinstance(step, UpdateExternalTable)


def _run(
    step: Any, lake: Lake, filters: Mapping[str, list[str]], max_records: int | None, every: int | None, full: bool
) -> RunReport:
    from floodmark.transform.batch_transform import BatchTransform

    report: RunReport
    if isinstance(step, BatchTransform):
        wanted = _typed(filters, step, lake)
        return step.run(lake, filters=wanted, max_records=max_records, commit_every=every)
    report = step.run(lake, full=True) if full else step.run(lake)
    return report


def _texts(arguments: Sequence[str]) -> dict[str, list[str]]:
    """The values of --filter by key, as they were typed."""
    found: dict[str, list[str]] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--filter {argument!r} is no KEY=VALUE, such as id=7.")
        found.setdefault(key, []).append(text)
    return found


def _typed(filters: Mapping[str, list[str]], step: BatchTransform, lake: Lake) -> Mapping[str, list[Any]] | None:
    """The filters as the types of the transform keys."""
    from floodmark.transform.pinned import pin_step

    if not filters:
        return None
    if (shape := pin_step(step, lake).shape) is None:
        return filters  # no input has columns yet, so there is nothing to process
    for key in filters:
        if key not in shape.keys.names:
            raise NoKey(
                f"{key!r} is no transform key of step {step.name!r}",
                hint=f"they are {', '.join(shape.keys.names)}",
                name=key,
            )
    return {key: keys.values(texts, shape.keys.field(key)) for key, texts in filters.items()}
