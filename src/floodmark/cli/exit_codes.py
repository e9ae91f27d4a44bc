"""Exit codes, errors of the command line, and Ctrl-C. Every command ends here."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from floodmark.cli import output
from floodmark.cli.output import escape_lines
from floodmark.errors import FloodmarkError

FAILED = 1
PROBLEMS = 3
INTERRUPTED = 130
PIPE_CLOSED = 141  # as if killed by SIGPIPE, so that a pipe never turns "problems found" into success

_SILENCE = logging.NullHandler()


class _WarningPrinter(logging.Handler):
    """Prints warnings of the library to stderr. They may quote texts of the lake, so nothing in them may act there."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(escape_lines(self.format(record)), err=True)


_PRINT_WARNINGS = _WarningPrinter(logging.WARNING)

ErrorPrinter = Callable[[str, str, str], None]
"""Prints an error: its message, its hint, and its type."""


class OrderedGroup(click.Group):
    """A group that lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """In the order in which a new user needs them."""
        return list(self.commands)


class RootGroup(OrderedGroup):
    """The root group: it turns the errors of commands into a message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError as error:
            raise OutputClosed from error

    def main(  # type: ignore[override]  # always exits the process, like click in standalone mode
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        **extra: Any,
    ) -> None:
        arguments = list(sys.argv[1:] if args is None else args)
        # Not read by click: an invalid command line must still be reported as JSON.
        report = _report_json if "--json" in arguments else _report_text
        if report is _report_json:
            # Warnings of the library would go to stderr, which stays empty with --json.
            logging.getLogger("floodmark").addHandler(_SILENCE)
            logging.getLogger("floodmark").removeHandler(_PRINT_WARNINGS)
        else:
            logging.getLogger("floodmark").addHandler(_PRINT_WARNINGS)
        with watch_interrupts():
            try:
                try:
                    code = super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
                except (click.Abort, KeyboardInterrupt) as error:
                    code = _interrupted(report, error)
                except OutputClosed:
                    raise
                except Exception as error:
                    code = _interrupted(report, error) if interrupt_pressed() else _failed(error, report)
                sys.stdout.flush()
            except (OutputClosed, BrokenPipeError):
                # The interpreter flushes stdout again at exit, which must not raise.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                code = PIPE_CLOSED
        sys.exit(code or 0)


def _interrupted(report: ErrorPrinter, error: BaseException) -> int:
    report(error.message if isinstance(error, Stopped) else "interrupted", "", "Interrupted")
    return INTERRUPTED


def _failed(error: Exception, report: ErrorPrinter) -> int:
    match error:
        case FloodmarkError():
            report(error.message, error.hint, type(error).__name__)
            return FAILED
        case click.NoSuchCommand():
            report(error.format_message(), f"`{_path(error)} --help` lists the commands", "UsageError")
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
            report(_os_error_text(error), "", type(error).__name__)
            return FAILED
        case _ if report is _report_json:
            report(f"{error}", "this is a bug of Floodmark: please report it", type(error).__name__)
            return FAILED
        case _:
            raise error  # a bug of Floodmark: show the traceback


def _report_text(message: str, hint: str, _: str) -> None:
    click.echo(f"error: {escape_lines(message)}", err=True)
    if hint:
        click.echo(f"  {escape_lines(hint)}", err=True)


def _report_json(message: str, hint: str, kind: str) -> None:
    output.emit(error={"type": kind, "message": message, "hint": hint})


def _usage(error: click.UsageError) -> str:
    return "" if error.ctx is None else f"`{error.ctx.command_path} --help` shows how"


def _path(error: click.UsageError) -> str:
    return "floodmark" if error.ctx is None else error.ctx.command_path


def _os_error_text(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


class CommandError(FloodmarkError):
    """The command cannot be executed with these arguments."""


class NoLake(CommandError):
    """There is no lake at this address."""

    lake: str


class BadToml(CommandError):
    """A floodmark.toml is unreadable or has an invalid entry."""

    path: str


class NotConfirmed(click.ClickException):
    """The command needs --yes."""

    exit_code = 2


class Stopped(click.Abort):
    """Ctrl-C during work that can be resumed. The message has the command that resumes it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class OutputClosed(Exception):
    """The reader of the output pipe closed it."""


T = TypeVar("T")


class _InterruptWatch:
    """Whether Ctrl-C was pressed. Signals belong to the process, so there is one instance."""

    def __init__(self) -> None:
        self.reader: int | None = None
        self.seen = False

    def look(self) -> bool:
        if self.reader is not None and not self.seen:
            try:
                self.seen = signal.SIGINT in os.read(self.reader, 4096)
            except BlockingIOError:
                return False
        return self.seen


_interrupt_watch = _InterruptWatch()


@contextmanager
def watch_interrupts() -> Iterator[None]:
    """Record every Ctrl-C from now on, also those that a library swallows."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    logging.getLogger().addFilter(_is_relevant_log)
    _interrupt_watch.reader, _interrupt_watch.seen = reader, False
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        logging.getLogger().removeFilter(_is_relevant_log)
        _interrupt_watch.reader, _interrupt_watch.seen = None, False
        os.close(reader)
        os.close(writer)


def interrupt_pressed() -> bool:
    """Whether Ctrl-C was pressed since the command began."""
    return _interrupt_watch.look()


def run_interruptibly(work: Callable[[], T]) -> T:
    """Run work in a daemon thread, so that Ctrl-C ends the command even if the work ignores it, as DuckDB may."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result()


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed: a library may have swallowed it."""
    if interrupt_pressed():
        raise KeyboardInterrupt


def _is_relevant_log(record: logging.LogRecord) -> bool:
    """Drop log records of Py4J after Ctrl-C: they are tracebacks of connections that the interrupt closed."""
    return not ("py4j" in record.pathname and interrupt_pressed())
