"""The report of a step in one line, for `run` and `retry`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import exit_codes, output
from floodmark.cli.command import Invocation
from floodmark.cli.exit_codes import Stopped

if TYPE_CHECKING:
    from floodmark.lake import Lake
    from floodmark.transforms.step import RunReport, Step


@contextmanager
def step_running(call: Invocation, step: Step) -> Iterator[None]:
    """Run a step in this context: its prints go to stderr, and so does the traceback of a failed call.

    Ctrl-C raises Stopped with what is kept.
    """
    from floodmark.errors import KeyFailed

    try:
        with redirect_stdout(sys.stderr):
            yield
    except KeyFailed as error:
        call.note(error.traceback.rstrip())
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or exit_codes.interrupt_pressed():
            raise Stopped(f"interrupted: {describe_kept_results(step)}") from error
        raise


def describe_kept_results(step: Step) -> str:
    """What an interrupted run of a step keeps, as the end of a sentence."""
    from floodmark.transforms.batch_transform import BatchTransform

    if isinstance(step, BatchTransform):
        return f"results of step {step.name} are stored about every ten seconds; run the same command again to continue"
    return f"step {step.name} commits only complete results, so nothing of this run is kept; run the same command again"


def report_fields(report: RunReport) -> dict[str, Any]:
    """A report for JSON."""
    return {**asdict(report), "nothing": report.nothing}


def print_report(call: Invocation, lake: Lake, step: Step, report: RunReport) -> None:
    """Print what a run did, and the command that shows failed keys."""
    if call.as_json:
        return
    click.echo(f"{step.name}: {format_report(step, report)}")
    output.print_notes(report.notes)
    if report.failed:
        call.note(format_failure_advice(step, lake, report.failed))


def format_report(step: Step, report: RunReport) -> str:
    """What a run did, in one line."""
    from floodmark.transforms.batch_transform import BatchTransform

    if isinstance(step, BatchTransform):
        if report.nothing and not report.keys:
            return "nothing to do"
        parts = [
            f"{report.keys - report.failed:,} of {output.format_count(report.keys, 'key')} succeeded"
            if report.failed
            else f"{output.format_count(report.keys, 'key')} processed"
        ]
        parts += [f"{report.reused:,} of them reused"] if report.reused else []
        parts += [f"{report.failed - report.skipped:,} failed"] if report.failed > report.skipped else []
        parts += [f"{report.skipped:,} skipped"] if report.skipped else []
        parts += [f"{report.unchanged:,} unchanged in the columns read"] if report.unchanged else []
    elif step.input_names:
        if report.nothing:
            return "nothing to do"
        parts = [f"computed from {', '.join(step.input_names)}"]
        if not report.called:
            parts = [f"{output.format_count(report.unchanged, 'key')} unchanged in the columns read, not called"]
    elif not report.called and not report.keys:
        return "nothing to do"
    else:
        parts = [f"{output.format_count(report.keys, 'row')} read"]
    counts = {"new": report.new, "changed": report.changed, "retracted": report.retracted}
    if not step.input_names and not isinstance(step, BatchTransform):  # else other rows are not those of a batch
        counts |= {"unchanged": report.unchanged, "replaced within the batch": report.duplicates}
    rows = [f"{count:,} {what}" for what, count in counts.items() if count]
    return f"{', '.join(parts)}; rows: {', '.join(rows) or 'nothing changed'} ({_duration_text(report)})"


def _duration_text(report: RunReport) -> str:
    commits = f"{output.format_count(report.commits, 'commit')}, " if report.commits > 1 else ""
    return f"{commits}{report.seconds:.1f} s"


def format_failure_advice(step: Any, lake: Lake, failed: int) -> str:
    """How many keys failed, and what to do about them."""
    status = step.status(lake)
    waiting = status.skipped + status.exhausted
    if not waiting:
        then = "the next run retries"
    elif not status.failed:
        then = f"`floodmark retry {step.name}` retries"
    else:
        then = f"the next run retries {status.failed:,}, `floodmark retry {step.name}` retries all"
    if not status.showing_older:
        rows = "has no rows in the output" if failed == 1 else "have no rows in the output"
    elif status.showing_older < status.failed + waiting:
        rows = f"{'shows' if failed == 1 else 'show'} older results, or none"
    else:
        rows = "shows older results" if failed == 1 else "show older results"
    return f"{output.format_count(failed, 'key')} failed and {rows}: `floodmark errors {step.name}` shows why, {then}"
