"""Ctrl-C, noticed even when a library swallows it or turns it into an error of its own.

DuckDB raises RuntimeError, Py4J logs tracebacks and raises what it likes, and an import that is interrupted may go on
as if nothing had happened. Python's C code writes every signal to a file descriptor, whoever handles it: we look there.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class _Watch:
    """What has been seen so far. Signals belong to the process, so there is one of these."""

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


_watch = _Watch()


@contextmanager
def watching() -> Iterator[None]:
    """Take note of Ctrl-C from here on."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python gives signals to the main thread only
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    logging.getLogger().addFilter(_is_news)
    _watch.reader, _watch.seen = reader, False
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        logging.getLogger().removeFilter(_is_news)
        _watch.reader, _watch.seen = None, False
        os.close(reader)
        os.close(writer)


def pressed() -> bool:
    """Whether Ctrl-C was pressed since the command began."""
    return _watch.look()


def wait_for(work: Callable[[], T]) -> T:
    """Do work that may not notice Ctrl-C (DuckDB's queries do only at times), ready to leave it alone."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result()


def stop_if_pressed() -> None:
    """Stop here if Ctrl-C was pressed, for what came before may have swallowed it."""
    if pressed():
        raise KeyboardInterrupt


def _is_news(record: logging.LogRecord) -> bool:
    """Py4J logs the connections that an interrupt has cut, with tracebacks: nobody needs to know."""
    return not ("py4j" in record.pathname and pressed())
