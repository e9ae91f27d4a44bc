"""From errors to exit codes: the one place where a command ends."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from floodmark.cli import document, interrupts
from floodmark.cli.errors import OutputClosed, Stopped
from floodmark.errors import FloodmarkError

FAILED = 1
PROBLEMS = 3
INTERRUPTED = 130
CLOSED = 141  # as if killed by SIGPIPE, so that a pipe never turns "problems found" into success

_SILENCE = logging.NullHandler()

Report = Callable[[str, str, str], None]
"""Says what went wrong: the message, what to do about it, and the kind of error."""


class InOrder(click.Group):
    """A group that shows its commands as they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """In the order in which one meets them, not by the alphabet."""
        return list(self.commands)


class Verbs(InOrder):
    """A group whose verbs raise errors; here they become a message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError as error:
            raise OutputClosed from error

    def main(  # type: ignore[override]  # always ends the process, as click's own does when it stands alone
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        **extra: Any,
    ) -> None:
        arguments = list(sys.argv[1:] if args is None else args)
        # Read by hand: a command that cannot be parsed must still answer in the form that was asked for.
        report = _report_json if "--json" in arguments else _report_text
        if report is _report_json:
            # What the library warns of would end up on stderr; with --json nothing does.
            logging.getLogger("floodmark").addHandler(_SILENCE)
        with interrupts.watching():
            try:
                try:
                    code = super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
                except (click.Abort, KeyboardInterrupt) as error:
                    code = _interrupted(report, error)
                except OutputClosed:
                    raise
                except Exception as error:
                    code = _interrupted(report, error) if interrupts.pressed() else _failed(error, report)
                sys.stdout.flush()
            except (OutputClosed, BrokenPipeError):
                # The interpreter flushes stdout once more when it ends; that must not complain.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                code = CLOSED
        sys.exit(code or 0)


def _interrupted(report: Report, error: BaseException) -> int:
    report(error.message if isinstance(error, Stopped) else "interrupted", "", "Interrupted")
    return INTERRUPTED


def _failed(error: Exception, report: Report) -> int:
    match error:
        case FloodmarkError():
            report(error.message, error.hint, type(error).__name__)
            return FAILED
        case click.NoSuchCommand():
            report(error.format_message(), f"`{_path(error)} --help` lists the verbs", "UsageError")
            return error.exit_code
        case click.UsageError() if report is _report_text:
            error.show()
            return error.exit_code
        case click.UsageError():
            report(error.format_message(), _usage(error), "UsageError")
            return error.exit_code
        case click.ClickException():
            report(error.message, "", type(error).__name__)
            return error.exit_code
        case OSError():
            report(_described(error), "", type(error).__name__)
            return FAILED
        case _ if report is _report_json:
            report(f"{error}", "this is a defect of Floodmark: please report it", type(error).__name__)
            return FAILED
        case _:
            raise error  # a defect of ours: its traceback is what helps


def _report_text(message: str, hint: str, _: str) -> None:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"  {hint}", err=True)


def _report_json(message: str, hint: str, kind: str) -> None:
    document.emit(error={"type": kind, "message": message, "hint": hint})


def _usage(error: click.UsageError) -> str:
    return "" if error.ctx is None else f"`{error.ctx.command_path} --help` shows how"


def _path(error: click.UsageError) -> str:
    return "floodmark" if error.ctx is None else error.ctx.command_path


def _described(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
