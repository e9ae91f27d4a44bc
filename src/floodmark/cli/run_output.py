"""Progress and outcome of a run over the graph: bars, lines and JSON."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TextIO

import click

from floodmark.cli import output, step_output
from floodmark.cli.command import Invocation
from floodmark.engine.progress import LineProgress, Progress, summary
from floodmark.errors import FloodmarkError
from floodmark.pipeline.graph import Graph, PipelineNode
from floodmark.pipeline.run import NodeOutcome

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from floodmark.columns.backfill import BackfillReport
    from floodmark.engine.progress import Progress
    from floodmark.lake import Lake
    from floodmark.pipeline.graph import PipelineNode
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.pipeline.run import NodeOutcome, PipelineReport, RunObserver


class OutcomeRecorder:
    """Passes events to a display and records the outcomes, which the message after Ctrl-C needs."""

    def __init__(self, shown: RunObserver) -> None:
        self._shown = shown
        self.outcomes: list[NodeOutcome] = []

    def begins(self, node: PipelineNode) -> None:
        self._shown.begins(node)

    def ended(self, outcome: NodeOutcome) -> None:
        self.outcomes.append(outcome)
        self._shown.ended(outcome)

    def progress(self, node: PipelineNode) -> Callable[[], Progress] | None:
        return self._shown.progress(node)


def outcome_fields(outcome: NodeOutcome) -> dict[str, Any]:
    """The outcome of one node and its report, for JSON."""
    known: dict[str, Any] = {"step": outcome.node.name, "kind": outcome.node.kind, "state": outcome.state}
    known |= {"why": outcome.why} if outcome.why else {}
    if (error := outcome.error) is not None:
        message, hint = (error.message, error.hint) if isinstance(error, FloodmarkError) else (str(error), "")
        known["error"] = {"type": type(error).__name__, "message": message, "hint": hint}
    report: Any = None if outcome.done is None else outcome.done.report
    if report is None:
        return {**known, "seconds": outcome.seconds}
    nothing = {"nothing": report.nothing} if hasattr(report, "nothing") else {}
    return {**asdict(report), **nothing, **known, "seconds": outcome.seconds}


def outcome_notes(outcome: NodeOutcome) -> Sequence[str]:
    """What the run of a node reports besides its counts, in sentences."""
    report: Any = None if outcome.done is None else outcome.done.report
    return getattr(report, "notes", ())


def print_outcomes(
    call: Invocation, lake: Lake, pipeline: Pipeline, outcomes: Sequence[NodeOutcome], file: TextIO | None = None
) -> None:
    """Print a line per node; errors go to stderr."""
    for one in outcomes:
        if one.state == "failed":
            assert one.error is not None
            print_traceback(call, one.error)
            hint = one.error.hint if isinstance(one.error, FloodmarkError) else ""
            call.note(f"error: {one.node.name}: {one.why}" + (f"\n  {hint}" if hint else ""))
            continue
        click.echo(f"{one.node.name}: {_outcome_text(pipeline, one)}", file=file)
        output.print_notes(outcome_notes(one), file=file)
        if one.failed_records:
            _note_failures(call, lake, pipeline, one)


def run_summary(ran_all: PipelineReport) -> str:
    """One line that counts the outcomes."""
    counts = {
        "done": len(ran_all.of("done")),
        "with nothing to do": len(ran_all.of("nothing")),
        "waiting": len(ran_all.of("waiting")),
        "failed": len(ran_all.of("failed")),
        "skipped": len(ran_all.of("skipped")),
    }
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    return f"{output.format_count(len(ran_all.outcomes), 'step')}: {', '.join(parts)} ({ran_all.seconds:.1f} s)"


def describe_kept_results(pipeline: Pipeline, chosen: Sequence[PipelineNode], done: Sequence[NodeOutcome]) -> str:
    """What an interrupted run keeps, as the end of a sentence."""
    if len(chosen) == 1 and chosen[0].name in pipeline:
        return step_output.describe_kept_results(pipeline[chosen[0].name])
    finished = [one.node.name for one in done if one.state in ("done", "nothing")]
    said = f"{', '.join(finished)} {'is' if len(finished) == 1 else 'are'} done; " if finished else ""
    return f"{said}run the same command again to continue from the stored results"


def print_traceback(call: Invocation, error: Exception) -> None:
    """Print the traceback of a user's function, or of a bug of Floodmark."""
    from floodmark.errors import FunctionFailed, KeyFailed

    if isinstance(error, KeyFailed | FunctionFailed):
        call.note(error.traceback.rstrip())
    elif not isinstance(error, FloodmarkError | OSError):
        call.note("".join(traceback.format_exception(error)).rstrip())


def _outcome_text(pipeline: Pipeline, one: NodeOutcome) -> str:
    if one.state == "skipped":
        return f"skipped, because {one.why}"
    if one.state == "waiting":
        return f"waits: {one.why}"
    report: Any = None if one.done is None else one.done.report
    if one.node.kind != "column":  # includes the time to declare a view and to start Spark
        report = replace(report, seconds=one.seconds)
    if one.node.kind == "view":
        from floodmark.cli.views import format_report

        return format_report(report)
    if one.node.kind == "column":
        return _backfill_text(report, one.seconds)
    return step_output.format_report(pipeline[one.node.name], report)


def _backfill_text(done: BackfillReport, seconds: float) -> str:
    if not done.commits:
        return "nothing to do"
    parts = [f"{output.format_count(done.computed, 'row')} computed"]
    parts += [f"{done.reused:,} reused"] if done.reused else []
    parts += [f"{done.carried:,} carried over"] if done.carried else []
    parts += [f"{done.failed:,} failed"] if done.failed else []
    parts += [f"{done.waiting:,} wait for another column"] if done.waiting else []
    return f"{', '.join(parts)} ({seconds:.1f} s)"


def _note_failures(call: Invocation, lake: Lake, pipeline: Pipeline, one: NodeOutcome) -> None:
    if one.node.kind == "view":
        call.note(f"rows that failed have null: `floodmark view {one.node.name} --errors` shows why")
    elif one.node.kind == "column":
        column = pipeline.columns[one.node.name]
        call.note(f"rows that failed have null: `floodmark columns {column.owner} --errors {column.name}` shows why")
    else:
        call.note(step_output.format_failure_advice(pipeline[one.node.name], lake, one.failed_records))


_STYLES = {"done": "green", "nothing": "dim", "waiting": "yellow", "failed": "red", "skipped": "yellow"}
_WORDS = {"nothing": "nothing to do", "waiting": "waits", "failed": "failed", "skipped": "skipped"}


class LineDisplay:
    """Display for pipes and logs: long work prints its progress, after the name of its step."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begins(self, node: PipelineNode) -> None:
        """Print nothing."""

    def ended(self, outcome: NodeOutcome) -> None:
        """Print nothing: `show` prints all outcomes at the end."""

    def progress(self, node: PipelineNode) -> Callable[[], Progress] | None:
        """Print a line every few seconds."""
        return lambda: _NamedProgress(node.name, LineProgress(self._stream))


class _NamedProgress:
    """Progress whose label starts with the name of the step."""

    def __init__(self, name: str, inner: Progress) -> None:
        self._name, self._inner = name, inner

    def start(self, label: str, total: int | None) -> None:
        self._inner.start(label if self._name in label else f"{self._name}: {label}", total)

    def advance(self, units: int) -> None:
        self._inner.advance(units)

    def fail(self, units: int) -> None:
        self._inner.fail(units)

    def finish(self) -> None:
        self._inner.finish()


class BarDisplay:
    """A bar per step: what it waits for, its progress, its outcome."""

    def __init__(self, stream: TextIO, graph: Graph) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[said]}"))
        self._bars: Bars = Bars(*columns, console=Console(file=stream), transient=True)
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        for name in graph.order:
            after = ", ".join(graph.after[name])
            said = f"[dim]after {after}" if after else "[dim]waits for its turn"
            self._tasks[name] = self._bars.add_task(name, total=1, said=said)  # an empty bar

    def __enter__(self) -> BarDisplay:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begins(self, node: PipelineNode) -> None:
        """Show that the step runs."""
        with self._lock:
            self._bars.tasks[self._tasks[node.name]].total = None  # the amount of work is not known yet
        self._show(node, "runs")

    def ended(self, outcome: NodeOutcome) -> None:
        """Fill the bar, and show the outcome."""
        words = _WORDS.get(outcome.state, f"{outcome.rows:,} rows in {outcome.seconds:.1f} s")
        why = f": {outcome.why.splitlines()[0]}" if outcome.why else ""
        failed = f", {outcome.failed_records:,} failed" if outcome.failed_records else ""
        self._show(outcome.node, f"[{_STYLES[outcome.state]}]{words}{failed}{_escaped(why)}", total=1, completed=1)

    def progress(self, node: PipelineNode) -> Callable[[], Progress] | None:
        """Progress in the bar of the step."""
        return lambda: _BarProgress(lambda said, **counts: self._show(node, said, **counts))

    def _show(self, node: PipelineNode, said: str, **counts: Any) -> None:
        with self._lock:
            self._bars.update(self._tasks[node.name], said=said, **counts)


class _BarProgress:
    """Progress of one part of a step, in the bar of the step."""

    def __init__(self, show: Callable[..., None]) -> None:
        self._show = show
        self._label, self._done, self._failed, self._began = "", 0, 0, 0.0
        self._total: int | None = None

    def start(self, label: str, total: int | None) -> None:
        self._label, self._total, self._began = label, total, time.monotonic()
        self._done = self._failed = 0
        self._show(_escaped(label), total=total, completed=0)

    def advance(self, units: int) -> None:
        self._done += units
        text = summary(self._done, self._total, time.monotonic() - self._began, self._failed)
        self._show(_escaped(f"{self._label}: {text}"), total=self._total, completed=self._done)

    def fail(self, units: int) -> None:
        self._failed += units
        self.advance(0)

    def finish(self) -> None:
        """Do nothing: the next part, or the outcome, replaces this text."""


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
