"""What a run over the graph came to: for people, and as JSON."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TextIO

import click

from floodmark.cli import ran, words
from floodmark.cli.call import Call
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.compute.backfill import Backfill
    from floodmark.engine import Progress
    from floodmark.lake import Lake
    from floodmark.pipeline.graph import Node
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.pipeline.running import Outcome, Ran, Watcher


class Seen:
    """Remembers what became of each node, for one who is interrupted, and tells a display."""

    def __init__(self, shown: Watcher) -> None:
        self._shown = shown
        self.outcomes: list[Outcome] = []

    def begins(self, node: Node) -> None:
        self._shown.begins(node)

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._shown.ended(outcome)

    def progress(self, node: Node) -> Callable[[], Progress] | None:
        return self._shown.progress(node)


def fields(outcome: Outcome) -> dict[str, Any]:
    """One node for JSON: what became of it, and what its own report says."""
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


def show(call: Call, lake: Lake, pipeline: Pipeline, outcomes: Sequence[Outcome], file: TextIO | None = None) -> None:
    """A line per node, and what went wrong on stderr."""
    for one in outcomes:
        if one.state == "failed":
            assert one.error is not None
            note_traceback(call, one.error)
            hint = one.error.hint if isinstance(one.error, FloodmarkError) else ""
            call.note(f"error: {one.node.name}: {one.why}" + (f"\n  {hint}" if hint else ""))
            continue
        click.echo(f"{one.node.name}: {_said(pipeline, one)}", file=file)
        if one.failed_records:
            _note_failures(call, lake, pipeline, one)


def summary(ran_all: Ran) -> str:
    """All of it in a line."""
    counts = {
        "done": len(ran_all.of("done")),
        "with nothing to do": len(ran_all.of("nothing")),
        "waiting": len(ran_all.of("waiting")),
        "failed": len(ran_all.of("failed")),
        "skipped": len(ran_all.of("skipped")),
    }
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    return f"{words.many(len(ran_all.outcomes), 'step')}: {', '.join(parts)} ({ran_all.seconds:.1f} s)"


def kept(pipeline: Pipeline, chosen: Sequence[Node], done: Sequence[Outcome]) -> str:
    """What an interrupted run leaves, as the end of a sentence."""
    if len(chosen) == 1 and chosen[0].name in pipeline:
        return ran.kept(pipeline[chosen[0].name])
    finished = [one.node.name for one in done if one.state in ("done", "nothing")]
    said = f"{', '.join(finished)} {'is' if len(finished) == 1 else 'are'} done; " if finished else ""
    return f"{said}the same command goes on from what is committed and stored"


def note_traceback(call: Call, error: Exception) -> None:
    """The traceback of a user's function, or of a defect of ours: it is what helps."""
    from floodmark.compute.errors import FunctionFailed
    from floodmark.transform.errors import KeyFailed

    if isinstance(error, KeyFailed | FunctionFailed):
        call.note(error.traceback.rstrip())
    elif not isinstance(error, FloodmarkError | OSError):
        call.note("".join(traceback.format_exception(error)).rstrip())


def _said(pipeline: Pipeline, one: Outcome) -> str:
    if one.state == "skipped":
        return f"skipped, because {one.why}"
    if one.state == "waiting":
        return f"waits: {one.why}"
    report: Any = None if one.done is None else one.done.report
    if one.node.kind != "column":  # from when it began: a view may have to be declared, and Spark to be started
        report = replace(report, seconds=one.seconds)
    if one.node.kind == "view":
        from floodmark.cli.verbs.refresh import said

        return said(report)
    if one.node.kind == "column":
        return _backfilled(report, one.seconds)
    return ran.said(pipeline[one.node.name], report)


def _backfilled(done: Backfill, seconds: float) -> str:
    if not done.commits:
        return "nothing to do"
    parts = [f"{words.many(done.computed, 'row')} computed"]
    parts += [f"{done.reused:,} found computed"] if done.reused else []
    parts += [f"{done.failed:,} failed"] if done.failed else []
    parts += [f"{done.waiting:,} wait for another column"] if done.waiting else []
    return f"{', '.join(parts)} ({seconds:.1f} s)"


def _note_failures(call: Call, lake: Lake, pipeline: Pipeline, one: Outcome) -> None:
    if one.node.kind == "view":
        call.note(f"rows that failed have null: `floodmark view {one.node.name} --errors` says why")
    elif one.node.kind == "column":
        column = pipeline.columns[one.node.name]
        call.note(f"rows that failed have null: `floodmark columns {column.owner} --errors {column.name}` says why")
    else:
        call.note(ran.after_failures(pipeline[one.node.name], lake, one.failed_records))
