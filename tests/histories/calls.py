"""What functions were called with, and orders they obey. Both are in files, since functions may run in workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from floodmark.engine import rounds
from floodmark.engine.run import run_in_threads

"""Seconds: only so that a test that hangs fails."""


@dataclass(frozen=True)
class CallLog:
    """The calls of the functions of one world, and orders that they obey."""

    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "calls"

    def lines(self) -> list[str]:
        """A line per call since the last `forget`."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def forget(self) -> None:
        self.log.unlink(missing_ok=True)

    def add(self, text: str) -> None:
        """Write down calls, one per line, in one step."""
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def order(self, name: str, text: str = "") -> None:
        """Give an order; a function that reads meanwhile sees the old text or the new one."""
        beside = self.folder / f"{name}.new"
        beside.write_text(text)
        beside.replace(self.folder / name)

    def ordered(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_text()
        except FileNotFoundError:
            return None

    def cancel(self, *names: str) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)


@contextmanager
def in_this_process() -> Iterator[None]:
    """Tasks run one after the other in this process: quick, and file systems that cannot travel need not."""

    def here(tasks: Sequence[Any], function: Callable[[Any], Any], **_: Any) -> list[Any]:
        return run_in_threads(tasks, function, threads=1, retries=0)

    with mock.patch.object(rounds, "run_in_processes", here), mock.patch.object(rounds, "run_in_threads", here):
        yield
