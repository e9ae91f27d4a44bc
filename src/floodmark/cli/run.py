"""`floodmark run`: bring the nodes of a pipeline up to date."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import arguments, exit_codes, output, targets
from floodmark.cli.command import Invocation, verb
from floodmark.cli.exit_codes import FAILED, CommandError, Stopped

if TYPE_CHECKING:
    from floodmark.cli.run_output import OutcomeRecorder
    from floodmark.lake import Lake
    from floodmark.pipeline.graph import Graph, PipelineNode
    from floodmark.pipeline.nodes import PipelineOptions
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.pipeline.run import PipelineReport
    from floodmark.transforms.batch_transform import BatchTransform


_COUNT = click.IntRange(min=1)
_COMMIT_EVERY = "--commit-every"


@verb("run")
@click.argument("names", metavar="[STEP]...", nargs=-1)
@targets.label_option
@click.option("--dry-run", is_flag=True, help="Show what a run would do; call no function and write nothing.")
@click.option("--watch", is_flag=True, help="Run again when sources or inputs change, until Ctrl-C.")
@click.option("--every", metavar="SECONDS", type=click.FloatRange(min=0.05), default=10.0, help="Interval of --watch.")
@click.option("--watch-seconds", metavar="N", type=click.FloatRange(min=0), help="End --watch after N seconds.")
@click.option(
    "--workers",
    metavar="N",
    type=_COUNT,
    help="Run at most N steps at a time. Default: `workers` of floodmark.toml.",
)
@click.option("--where", metavar="SQL", help="Only keys (of transforms) or rows (of columns) that meet this condition.")
@click.option("--max-records", metavar="N", type=_COUNT, help="Process at most N keys, the earliest changes first.")
@click.option(
    "--filter",
    "filters",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Only keys with this value, or with a row that has it. The same COLUMN again: any of its values. Several "
    "COLUMNs: all must match.",
)
@click.option("--commit-every", metavar="N", type=_COUNT, help="Commit after N keys. Default: the setting of the step.")
@click.option("--full", is_flag=True, help="Compute everything again, even if nothing changed.")
@click.option("--strict", is_flag=True, help="Exit with 1 if keys or rows failed.")
@targets.pipeline_option
def run(
    call: Invocation,
    names: tuple[str, ...],
    labels: dict[str, str],
    dry_run: bool,
    watch: bool,
    every: float,
    watch_seconds: float | None,
    workers: int | None,
    where: str | None,
    max_records: int | None,
    filters: tuple[str, ...],
    commit_every: int | None,
    full: bool,
    strict: bool,
    file: str | None,
) -> None:
    """Bring everything in the pipeline up to date.

    \b
    floodmark run
    floodmark run --dry-run
    floodmark run people features --strict
    floodmark run features --filter country=NO --max-records 1000
    floodmark run --watch

    Sources, steps, columns and views run after their inputs, and each processes only what changed. Those that do not
    depend on each other run at the same time. With names, only these run; a column is named DATASET.COLUMN. The
    pipeline is checked before anything runs.

    If a step fails, steps that depend on it are skipped, the others run, and the exit code is 1. If single keys fail,
    the other keys are committed and the exit code is 0, or 1 with --strict. A later run processes what --where,
    --filter and --max-records exclude.

    With --full everything is read and computed again, as after `floodmark reset`. Rows that are gone from an external
    table are retracted. Readers see the old rows until the commit, and only rows that differ are written. If a full
    run is interrupted, a run without --full completes it.

    What was removed from the pipeline stays in the lake, and is not updated; a run without names mentions it.

    After Ctrl-C, a crash or an error, run the same command again: it continues from the stored results. A lake has one
    run at a time. With --watch, --json prints one line of JSON per step that did something, and the exit code depends
    on the newest of these outcomes of each step.
    """
    given = {"--max-records": max_records, "--filter": filters, "--commit-every": commit_every, "--where": where}
    texts = _filter_texts(filters)
    if full and (
        other := [option for option, value in {**given, "--watch": watch}.items() if value and option != _COMMIT_EVERY]
    ):
        raise click.UsageError(f"--full computes everything once: leave out {other[0]}.")
    pipeline = targets.load_pipeline(file)
    chosen = targets.select_nodes(pipeline, names, labels)
    if not chosen:
        call.note("the pipeline has no such steps" if labels or names else "the pipeline has no steps")
    else:
        _check_options(pipeline, chosen, [option for option, value in given.items() if value])
    lake = call.lake()
    from floodmark.pipeline.nodes import PipelineOptions

    typed = (lambda step, lake: _parse_filters(texts, step, lake)) if texts else None
    options = PipelineOptions(typed, max_records, commit_every, full, where)
    if dry_run:
        _dry_run(call, pipeline, lake, chosen, options)
    elif chosen and watch:
        failed_steps = _watch(call, pipeline, lake, chosen, options, workers, every, watch_seconds)
        if failed_steps.failed or (strict and failed_steps.with_failed_records):
            click.get_current_context().exit(FAILED)
    elif chosen or call.as_json:
        ran = _run(call, pipeline, lake, chosen, options, workers)
        if not ran.ok or (strict and any(one.failed_records for one in ran.outcomes)):
            click.get_current_context().exit(FAILED)


def _run(
    call: Invocation,
    pipeline: Pipeline,
    lake: Lake,
    chosen: Sequence[PipelineNode],
    options: PipelineOptions,
    workers: int | None,
) -> PipelineReport:
    """Run the nodes once, and print the outcomes."""
    from floodmark.cli import run_output
    from floodmark.pipeline.run import PipelineReport

    if not chosen:
        output.emit(lake=lake.store.url, runs=[], removed=[asdict(one) for one in pipeline.removed(lake)])
        return PipelineReport((), 0.0)
    with ExitStack() as shown:
        seen = _recorder(call, pipeline, shown, {node.name for node in chosen})
        ran = _run_nodes(pipeline, lake, chosen, options, workers, seen)
    if len(ran.outcomes) == 1 and (error := ran.outcomes[0].error) is not None and ran.outcomes[0].state == "failed":
        run_output.print_traceback(call, error)
        raise error
    if call.as_json:
        runs = [run_output.outcome_fields(one) for one in ran.outcomes]
        output.emit(lake=lake.store.url, runs=runs, removed=[asdict(one) for one in ran.removed])
        return ran
    run_output.print_outcomes(call, lake, pipeline, ran.outcomes)
    for one in ran.removed if len(chosen) == len(pipeline.nodes) else ():
        call.note(str(one))
    if len(ran.outcomes) > 1:
        call.note(run_output.run_summary(ran))
    return ran


def _run_nodes(
    pipeline: Pipeline,
    lake: Lake,
    chosen: Sequence[PipelineNode],
    options: PipelineOptions,
    workers: int | None,
    seen: OutcomeRecorder,
) -> PipelineReport:
    from floodmark.cli import run_output
    from floodmark.pipeline import run as run_module

    names = [node.name for node in chosen]
    try:
        with redirect_stdout(sys.stderr):  # stdout is for the answer only
            return run_module.run(pipeline, lake, names, workers=_workers(workers), options=options, watcher=seen)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or exit_codes.interrupt_pressed():
            raise Stopped(
                f"interrupted: {run_output.describe_kept_results(pipeline, chosen, seen.outcomes)}"
            ) from error
        raise


def _workers(given: int | None) -> int:
    """How many steps run at a time: --workers, else floodmark.toml, else the number of cores."""
    from floodmark.pipeline.project import load_settings
    from floodmark.pipeline.run import default_workers

    return given or load_settings(Path.cwd()).defaults.workers or default_workers()


def _recorder(call: Invocation, pipeline: Pipeline, shown: ExitStack, names: set[str]) -> OutcomeRecorder:
    """The display of a run: bars on a terminal, lines elsewhere, nothing with --json."""
    from floodmark.cli.run_output import BarDisplay, LineDisplay, OutcomeRecorder
    from floodmark.pipeline.run import SilentObserver

    if call.as_json:
        return OutcomeRecorder(SilentObserver())
    if not sys.stderr.isatty() or len(names) == 1:
        return OutcomeRecorder(SilentObserver() if len(names) == 1 else LineDisplay(sys.stderr))
    return OutcomeRecorder(shown.enter_context(BarDisplay(sys.stderr, pipeline.graph().only(names))))


def _watch(
    call: Invocation,
    pipeline: Pipeline,
    lake: Lake,
    chosen: Sequence[PipelineNode],
    options: PipelineOptions,
    workers: int | None,
    every: float,
    seconds: float | None,
) -> _FailedSteps:
    """Run whenever something changed, and print each run that did something."""
    from floodmark.cli import run_output
    from floodmark.cli.run_output import LineDisplay
    from floodmark.pipeline.run import SilentObserver, watch

    failed_steps = _FailedSteps()

    def show(ran: PipelineReport) -> None:
        failed_steps.update(ran)
        news = [one for one in ran.outcomes if one.state not in ("nothing", "waiting") or run_output.outcome_notes(one)]
        if call.as_json:
            for one in news:
                click.echo(output.dumps(run_output.outcome_fields(one)), file=out)
        else:
            run_output.print_outcomes(call, lake, pipeline, news, file=out)

    out = sys.stdout
    call.note(f"watching every {every:g} s; press Ctrl-C to end")
    try:
        with redirect_stdout(sys.stderr):
            names = [node.name for node in chosen]
            watch(
                pipeline,
                lake,
                names,
                show,
                every=every,
                seconds=seconds,
                options=options,
                workers=_workers(workers),
                # Lines on a terminal too: bars would be idle most of the time.
                watcher=SilentObserver() if call.as_json or len(names) == 1 else LineDisplay(sys.stderr),
            )
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or exit_codes.interrupt_pressed():
            raise Stopped("interrupted: run the same command again to continue") from error
        raise
    return failed_steps


class _FailedSteps:
    """Names of steps that failed. Outcomes are not kept, because a watch may run for months."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self.with_failed_records: set[str] = set()

    def update(self, ran: PipelineReport) -> None:
        """Replace the state of each step by its outcome in this run."""
        for one in ran.outcomes:
            name = one.node.name
            self.failed.discard(name)
            if one.state in ("failed", "skipped"):
                self.failed.add(name)
            if one.failed_records:
                self.with_failed_records.add(name)
            elif one.state == "done":  # a step with nothing to do keeps its failed keys
                self.with_failed_records.discard(name)


def _dry_run(
    call: Invocation, pipeline: Pipeline, lake: Lake, chosen: Sequence[PipelineNode], options: PipelineOptions
) -> None:
    from floodmark.cli import plan

    names = [node.name for node in chosen]
    graph = _checked_graph(pipeline, lake, names)
    planned = plan.plan_all(graph) if options.full else plan.dry_run(pipeline, graph, lake) if names else []
    if call.as_json:
        output.emit(lake=lake.store.url, plans=[one.fields for one in planned])
        return
    for one in planned:
        click.echo(f"{one.node.name}: {one.said}")
    busy = sum(one.has_work is not False for one in planned)
    call.note(f"{output.format_count(len(planned), 'step')}, {busy} with work to do; nothing was run")


def _checked_graph(pipeline: Pipeline, lake: Lake, names: Sequence[str]) -> Graph:
    from floodmark.pipeline.checks import build_checked_graph
    from floodmark.pipeline.run import select_nodes

    return select_nodes(pipeline, build_checked_graph(pipeline, lake, names), names)


def _check_options(pipeline: Pipeline, chosen: Sequence[PipelineNode], given: Sequence[str]) -> None:
    """Refuse options that do not apply to a node, before anything runs."""
    from floodmark.transforms.batch_transform import BatchTransform

    for node in chosen:
        step = pipeline[node.name] if node.kind in ("source", "step") else None
        other = [option for option in given if node.kind != "column" or option != "--where"]
        if other and not isinstance(step, BatchTransform):
            raise _inapplicable(node, other[0], f"it processes everything: name only steps that {other[0]} applies to")


def _inapplicable(node: PipelineNode, option: str, why: str) -> CommandError:
    return CommandError(f"{option} does not apply to step {node.name!r} ({node.what})", hint=why, step=node.name)


def _filter_texts(filters: Sequence[str]) -> dict[str, list[str]]:
    """The values of --filter by key, as text."""
    found: dict[str, list[str]] = {}
    for argument in filters:
        key, equals, text = argument.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--filter {argument!r} is not COLUMN=VALUE, such as id=7.")
        found.setdefault(key, []).append(text)
    return found


def _parse_filters(filters: Mapping[str, list[str]], step: BatchTransform, lake: Any) -> Mapping[str, list[Any]] | None:
    """The filters, parsed as the types of the columns."""
    from floodmark.transforms.row_filters import filter_field
    from floodmark.transforms.snapshot import snapshot_step

    snapshot = snapshot_step(step, lake)
    if (shape := snapshot.shape) is None:
        return filters  # no input has columns yet, so no key can match
    return {
        name: arguments.parse_values(texts, filter_field(shape, snapshot.inputs, name))
        for name, texts in filters.items()
    }
