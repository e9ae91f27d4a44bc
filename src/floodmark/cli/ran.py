"""What a run has done, in a line: for `run` and `retry`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import interrupts, words
from floodmark.cli.call import Call
from floodmark.cli.errors import Stopped

if TYPE_CHECKING:
    from floodmark.lake import Lake
    from floodmark.transform.report import RunReport
    from floodmark.transform.step import Step


@contextmanager
def running(call: Call, step: Step) -> Iterator[None]:
    """While a step runs: what its function prints is not in our answer, its traceback is shown when it may not fail.

    Ctrl-C says what is kept.
    """
    from floodmark.transform.errors import KeyFailed

    try:
        with redirect_stdout(sys.stderr):
            yield
    except KeyFailed as error:
        call.note(error.traceback.rstrip())  # the function is the user's: its traceback is what helps
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or interrupts.pressed():
            raise Stopped(f"interrupted: {kept(step)}") from error
        raise


def kept(step: Step) -> str:
    """What an interrupted run of a step leaves, as the end of a sentence."""
    from floodmark.transform.batch_transform import BatchTransform

    if isinstance(step, BatchTransform):
        return f"results of step {step.name} are stored about every ten seconds; the same command goes on from there"
    return f"step {step.name} works as a whole, so nothing of this run is kept; the same command does it again"


def fields(report: RunReport) -> dict[str, Any]:
    """A report for JSON."""
    return {**asdict(report), "nothing": report.nothing}


def show(call: Call, lake: Lake, step: Step, report: RunReport) -> None:
    """Say what a run has done, and where to look if keys failed."""
    if call.as_json:
        return
    click.echo(f"{step.name}: {said(step, report)}")
    if report.failed:
        call.note(after_failures(step, lake, report.failed))


def said(step: Step, report: RunReport) -> str:
    """What a run came to, as people say it."""
    from floodmark.transform.batch_transform import BatchTransform

    if isinstance(step, BatchTransform):
        if report.nothing and not report.keys:
            return "nothing to do"
        parts = [f"{words.many(report.keys, 'key')} processed"]
        parts += [f"{report.reused:,} of them found computed"] if report.reused else []
        parts += [f"{report.failed:,} failed"] if report.failed else []
    elif step.input_names:
        if report.nothing:
            return "nothing to do"
        parts = [f"computed from {', '.join(step.input_names)}"]
    elif not report.called and not report.keys:
        return "nothing to do"
    else:
        parts = [f"{words.many(report.keys, 'row')} read"]
    counts = {"new": report.new, "changed": report.changed, "retracted": report.retracted}
    rows = [f"{count:,} {what}" for what, count in counts.items() if count]
    return f"{', '.join(parts)}; rows: {', '.join(rows) or 'nothing changed'} ({_time(report)})"


def _time(report: RunReport) -> str:
    commits = f"{words.many(report.commits, 'commit')}, " if report.commits > 1 else ""
    return f"{commits}{report.seconds:.1f} s"


def after_failures(step: Any, lake: Lake, failed: int) -> str:
    """What to do about keys that failed."""
    status = step.status(lake)
    waiting = status.skipped + status.exhausted
    if not waiting:
        then = "the next run tries again"
    elif not status.failed:
        then = f"`floodmark retry {step.name}` tries again"
    else:
        then = f"the next run tries {status.failed:,} again, `floodmark retry {step.name}` all of them"
    return (
        f"{words.many(failed, 'key')} failed and {'has' if failed == 1 else 'have'} no rows in the output:"
        f" `floodmark errors {step.name}` says why, {then}"
    )
