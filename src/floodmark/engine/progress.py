"""Progress of long work: a bar on a terminal, lines elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TextIO

Clock = Callable[[], float]


class Progress(Protocol):
    """Counts the rows that are done. ``total`` is set before the first row."""

    def start(self, label: str, total: int | None) -> None:
        """Start to show work. A total of None is unknown."""

    def advance(self, units: int) -> None:
        """``units`` more rows are done."""

    def fail(self, units: int) -> None:
        """A function failed for ``units`` of the rows."""

    def finish(self) -> None:
        """The work has ended, with or without success. May be called twice."""


class SilentProgress:
    """Shows nothing."""

    def start(self, label: str, total: int | None) -> None:
        """Shows nothing."""

    def advance(self, units: int) -> None:
        """Shows nothing."""

    def fail(self, units: int) -> None:
        """Shows nothing."""

    def finish(self) -> None:
        """Shows nothing."""


class LineProgress:
    """Writes a line every few seconds, for logs and pipes."""

    def __init__(self, stream: TextIO, *, clock: Clock = time.monotonic, every: float = 5.0) -> None:
        self._stream = stream
        self._clock = clock
        self._every = every
        self._label = ""
        self._total: int | None = None
        self._done = self._failed = 0
        self._running = False

    def start(self, label: str, total: int | None) -> None:
        """Start. The first line comes after a few seconds."""
        self.finish()
        self._label, self._total, self._done, self._failed = label, total, 0, 0
        self._written_rows = -1  # the number of rows in the last line
        self._began = self._written = self._clock()
        self._running = True

    def advance(self, units: int) -> None:
        """Count the rows, and write a line if the last one is old enough."""
        self._done += units
        now = self._clock()
        if self._running and now - self._written >= self._every:
            self._written = now
            self._write(now)

    def fail(self, units: int) -> None:
        """Count the failed rows for the next line."""
        self._failed += units

    def finish(self) -> None:
        """Write a last line if the work took long enough for one."""
        if self._running:
            self._running = False
            now = self._clock()
            if now - self._began >= self._every and self._written_rows != self._done:
                self._write(now)

    def _write(self, now: float) -> None:
        self._written_rows = self._done
        self._stream.write(f"{self._label}: {summary(self._done, self._total, now - self._began, self._failed)}\n")
        self._stream.flush()


class TerminalProgress:
    """Draws a bar with label, finished and total rows, rows per second and remaining time."""

    def __init__(self, stream: TextIO, *, clock: Clock = time.monotonic) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._clock = clock
        self._done = self._failed = 0
        self._total: int | None = None
        self._bar: object | None = None

    def start(self, label: str, total: int | None) -> None:
        """Draw an empty bar."""
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self.finish()
        self._done, self._failed, self._total, self._began = 0, 0, total, self._clock()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[summary]}"))
        self._rich = Bar(*columns, console=self._console, transient=True, get_time=self._clock)
        self._task = self._rich.add_task(label, total=total, summary=summary(0, total, 0.0))
        self._rich.start()
        self._bar = self._rich

    def advance(self, units: int) -> None:
        """Count the rows and extend the bar."""
        self._done += units
        if self._bar is not None:
            text = summary(self._done, self._total, self._clock() - self._began, self._failed)
            self._rich.update(self._task, completed=self._done, summary=text)

    def fail(self, units: int) -> None:
        """Count the failed rows and show them."""
        self._failed += units
        self.advance(0)

    def finish(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar = None
            self._rich.stop()


def progress_for(stream: TextIO, *, clock: Clock = time.monotonic) -> Progress:
    """A bar if the stream is a terminal, else lines."""
    return TerminalProgress(stream, clock=clock) if stream.isatty() else LineProgress(stream, clock=clock)


def summary(done: int, total: int | None, seconds: float, failed: int = 0) -> str:
    """``1,200 of 6,000 rows (20 %), 400 rows/s, 3 failed, 12 s left``: the known parts, or only the time."""
    if total is None and not done:
        return duration(seconds) if seconds >= 1 else ""
    text = f"{done:,} rows" if total is None else f"{done:,} of {total:,} rows"
    if total:
        text += f" ({100 * done // total} %)"
    if done and seconds > 0:
        rate = done / seconds
        text += f", {_rounded(rate)} rows/s"
        text += f", {failed:,} failed" if failed else ""
        if total is not None and done < total:
            text += f", {duration((total - done) / rate)} left"
    return text


def duration(seconds: float) -> str:
    """``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _rounded(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def is_encodable(text: str, encoding: str | None) -> bool:
    """Whether an encoding, such as that of a terminal, has all characters of a text."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
