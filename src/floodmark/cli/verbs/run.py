"""`floodmark run`: bring everything that a pipeline declares up to date."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, interrupts, keys, steps, words
from floodmark.cli.call import Call, verb
from floodmark.cli.errors import NoKey, OtherStep, Stopped
from floodmark.cli.exits import FAILED

if TYPE_CHECKING:
    from floodmark.cli.outcomes import Seen
    from floodmark.lake import Lake
    from floodmark.pipeline.graph import Graph, Node
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.pipeline.running import Ran
    from floodmark.pipeline.work import Asked
    from floodmark.transform.batch_transform import BatchTransform

_COUNT = click.IntRange(min=1)
_EACH = "--commit-every"


@verb("run")
@click.argument("names", metavar="[STEP]...", nargs=-1)
@click.option(
    "--label", "labels", metavar="NAME=VALUE", multiple=True, callback=steps.labels, help="Only what has this label."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done; call nothing and write nothing.")
@click.option("--watch", is_flag=True, help="Go on as sources and inputs move, until Ctrl-C.")
@click.option(
    "--every", metavar="SECONDS", type=click.FloatRange(min=0.05), default=10.0, help="How often --watch looks."
)
@click.option("--watch-seconds", metavar="N", type=click.FloatRange(min=0), help="End --watch after so long.")
@click.option(
    "--workers", metavar="N", type=_COUNT, help="Run at most so many steps at a time. Default: as floodmark.toml says."
)
@click.option(
    "--where", metavar="SQL", help="Only keys (of transforms) or rows (of columns) for which this condition holds."
)
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
@click.option("--full", is_flag=True, help="Compute everything once more, though nothing has moved.")
@click.option("--strict", is_flag=True, help="Exit with 1 when keys or rows failed.")
@steps.pipeline_option
def run(
    call: Call,
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
    """Bring everything up to date that the pipeline declares.

    \b
    floodmark run
    floodmark run --dry-run
    floodmark run people features --strict
    floodmark run features --filter country=NO --max-records 1000
    floodmark run --watch

    Sources, steps, columns and views run in the order of what they read, those that do not need each other at the same
    time, each only as far as its inputs moved. With names, exactly these run; a column is called DATASET.COLUMN. What
    is wrong with the pipeline is said before anything runs.

    What fails does not stop what does not need it; what needs it is skipped, and the exit code is 1. A key whose call
    fails is noted, the others are committed, and the exit code is 0; with --strict it is 1. What --where, --filter and
    --max-records leave out, a later run processes.

    With --full everything is read and computed once more, as after `floodmark reset`: every key, row, query and column;
    of an external table, what is gone from it is retracted. Readers see no change until then, and only what comes out
    different is written. What was cut short, a run without --full finishes.

    After Ctrl-C, a crash or an error the same command goes on from what was computed. A lake has one run at a time.
    With --watch, --json prints one document per step that did something, each in a line, and the exit code is about
    the last time that each step did something.
    """
    given = {"--max-records": max_records, "--filter": filters, "--commit-every": commit_every, "--where": where}
    texts = _texts(filters)
    if full and (
        other := [option for option, value in {**given, "--watch": watch}.items() if value and option != _EACH]
    ):
        raise click.UsageError(f"--full means everything, and once: leave out {other[0]}.")
    pipeline = steps.load_pipeline(file)
    chosen = steps.nodes(pipeline, names, labels)
    if not chosen:
        call.note("the pipeline has no such steps" if labels or names else "the pipeline has no steps")
    else:
        _check_options(pipeline, chosen, [option for option, value in given.items() if value])
    lake = call.lake()
    from floodmark.pipeline.work import Asked

    typed = (lambda step, lake: _typed(texts, step, lake)) if texts else None
    asked = Asked(typed, max_records, commit_every, full, where)
    if dry_run:
        _dry_run(call, pipeline, lake, chosen, asked)
    elif chosen and watch:
        bad = _watch(call, pipeline, lake, chosen, asked, workers, every, watch_seconds)
        if bad.failed or (strict and bad.with_failures):
            click.get_current_context().exit(FAILED)
    elif chosen or call.as_json:
        ran = _run(call, pipeline, lake, chosen, asked, workers)
        if not ran.ok or (strict and any(one.failed_records for one in ran.outcomes)):
            click.get_current_context().exit(FAILED)


def _run(call: Call, pipeline: Pipeline, lake: Lake, chosen: Sequence[Node], asked: Asked, workers: int | None) -> Ran:
    """One run over the graph, and its summary."""
    from floodmark.cli import outcomes
    from floodmark.pipeline.running import Ran

    if not chosen:
        document.emit(lake=lake.store.url, runs=[])
        return Ran((), 0.0)
    with ExitStack() as shown:
        seen = _seen(call, pipeline, shown, {node.name for node in chosen})
        ran = _perform(pipeline, lake, chosen, asked, workers, seen)
    if len(ran.outcomes) == 1 and (error := ran.outcomes[0].error) is not None and ran.outcomes[0].state == "failed":
        outcomes.note_traceback(call, error)
        raise error
    if call.as_json:
        document.emit(lake=lake.store.url, runs=[outcomes.fields(one) for one in ran.outcomes])
        return ran
    outcomes.show(call, lake, pipeline, ran.outcomes)
    if len(ran.outcomes) > 1:
        call.note(outcomes.summary(ran))
    return ran


def _perform(
    pipeline: Pipeline, lake: Lake, chosen: Sequence[Node], asked: Asked, workers: int | None, seen: Seen
) -> Ran:
    from floodmark.cli import outcomes
    from floodmark.pipeline import running

    names = [node.name for node in chosen]
    try:
        with redirect_stdout(sys.stderr):  # what functions print is not in our answer
            return running.run(pipeline, lake, names, workers=_workers(workers), asked=asked, watcher=seen)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or interrupts.pressed():
            raise Stopped(f"interrupted: {outcomes.kept(pipeline, chosen, seen.outcomes)}") from error
        raise


def _workers(given: int | None) -> int:
    """How many steps run at a time: as the command says, or floodmark.toml, or as the machine has cores."""
    from floodmark.pipeline.project import project_of
    from floodmark.pipeline.running import default_workers

    return given or project_of(Path.cwd()).defaults.workers or default_workers()


def _seen(call: Call, pipeline: Pipeline, shown: ExitStack, names: set[str]) -> Seen:
    """What is told how a run goes on: a display on a terminal, lines elsewhere, nothing with --json."""
    from floodmark.cli.display import Lines, Live
    from floodmark.cli.outcomes import Seen
    from floodmark.pipeline.running import Silent

    if call.as_json:
        return Seen(Silent())
    if not sys.stderr.isatty() or len(names) == 1:
        return Seen(Silent() if len(names) == 1 else Lines(sys.stderr))
    return Seen(shown.enter_context(Live(sys.stderr, pipeline.graph().only(names))))


def _watch(
    call: Call,
    pipeline: Pipeline,
    lake: Lake,
    chosen: Sequence[Node],
    asked: Asked,
    workers: int | None,
    every: float,
    seconds: float | None,
) -> _Bad:
    """Run, and again whenever something moved; each run is said like a single one, if it did anything."""
    from floodmark.cli import outcomes
    from floodmark.cli.display import Lines
    from floodmark.pipeline.running import Silent
    from floodmark.pipeline.watching import watch

    bad = _Bad()

    def show(ran: Ran) -> None:
        bad.learn(ran)
        news = [one for one in ran.outcomes if one.state not in ("nothing", "waiting")]
        if call.as_json:
            for one in news:
                click.echo(document.dumps(outcomes.fields(one)), file=out)
        else:
            outcomes.show(call, lake, pipeline, news, file=out)

    out = sys.stdout
    call.note(f"watching every {every:g} s; Ctrl-C ends it")
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
                asked=asked,
                workers=_workers(workers),
                # Lines on a terminal, too: a display would stand still most of the time, between what is said.
                watcher=Silent() if call.as_json or len(names) == 1 else Lines(sys.stderr),
            )
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or interrupts.pressed():
            raise Stopped("interrupted: the same command goes on") from error
        raise
    return bad


class _Bad:
    """Which steps are not well, by name: a watch goes on for months, and outcomes hold on to a lot."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self.with_failures: set[str] = set()

    def learn(self, ran: Ran) -> None:
        """Have the outcomes of a run replace what was known of its steps."""
        for one in ran.outcomes:
            name = one.node.name
            self.failed.discard(name)
            if one.state in ("failed", "skipped"):
                self.failed.add(name)
            if one.failed_records:
                self.with_failures.add(name)
            elif one.state == "done":  # who does nothing leaves failed keys as they were
                self.with_failures.discard(name)


def _dry_run(call: Call, pipeline: Pipeline, lake: Lake, chosen: Sequence[Node], asked: Asked) -> None:
    from floodmark.cli import dry_run

    names = [node.name for node in chosen]
    graph = _checked(pipeline, lake, names)
    planned = dry_run.plan_all(graph) if asked.full else dry_run.plan(pipeline, graph, lake) if names else []
    if call.as_json:
        document.emit(lake=lake.store.url, plans=[one.fields for one in planned])
        return
    for one in planned:
        click.echo(f"{one.node.name}: {one.said}")
    busy = sum(one.does is not False for one in planned)
    call.note(f"{words.many(len(planned), 'step')}, {busy} with something to do; nothing was run")


def _checked(pipeline: Pipeline, lake: Lake, names: Sequence[str]) -> Graph:
    from floodmark.pipeline.checks import checked_graph
    from floodmark.pipeline.running import chosen

    return chosen(pipeline, checked_graph(pipeline, lake, names), names)


def _check_options(pipeline: Pipeline, chosen: Sequence[Node], given: Sequence[str]) -> None:
    """Refuse, before anything runs, what would mean nothing to a node."""
    from floodmark.transform.batch_transform import BatchTransform

    for node in chosen:
        step = pipeline[node.name] if node.kind in ("source", "step") else None
        other = [option for option in given if node.kind != "column" or option != "--where"]
        if other and not isinstance(step, BatchTransform):
            raise _means_nothing(node, other[0], "it takes or makes everything at once: name the steps that it is for")


def _means_nothing(node: Node, option: str, why: str) -> OtherStep:
    return OtherStep(f"{option} means nothing to step {node.name!r} ({node.what})", hint=why, step=node.name)


def _texts(arguments: Sequence[str]) -> dict[str, list[str]]:
    """The values of --filter by key, as they were typed."""
    found: dict[str, list[str]] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--filter {argument!r} is no KEY=VALUE, such as id=7.")
        found.setdefault(key, []).append(text)
    return found


def _typed(filters: Mapping[str, list[str]], step: BatchTransform, lake: Any) -> Mapping[str, list[Any]] | None:
    """The filters as the types of the transform keys."""
    from floodmark.transform.pinned import pin_step

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
