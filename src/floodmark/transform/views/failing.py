"""What Spark says when it cannot answer the query of a view, as errors that say which view it was and what to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from floodmark.transform.errors import InputMoved
from floodmark.transform.views.errors import QueryFailed

_GONE = ("FILE_NOT_EXIST", "PATH_NOT_FOUND", "FileNotFound", "ObjectNotFound", "UnreadableSlice")
"""What Spark, and tasks of ours in it, say when a file is not there any more."""


@contextmanager
def failing(view: str) -> Iterator[None]:
    """`QueryFailed` when Spark cannot answer; `InputMoved` when a source was replaced while Spark read it."""
    try:
        with _quiet():
            yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):  # neither is imported to find out
            raise
        said = str(getattr(error, "java_exception", None) or error).strip()
        if any(gone in said for gone in _GONE):
            raise InputMoved(
                f"what was pinned of the sources of view {view!r} cannot be read any more: {sentence(said)}",
                hint="it was replaced by a newer state, or is damaged: refresh again; verify tells which",
                input=view,
            ) from error
        raise QueryFailed(
            f"Spark could not answer the query of view {view!r}: {sentence(said)}",
            hint="nothing was changed; correct the data or the query (try_cast, try_divide, …) and refresh again",
            view=view,
        ) from error


def sentence(said: str) -> str:
    """The first line, without Spark's codes."""
    return re.sub(r"^(\S*Exception: )?\[[A-Z_.]+\] ", "", said).partition(" SQLSTATE")[0].partition("\n")[0].strip()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep pages of JSON from stderr that PySpark writes for every query that fails; whoever asked gets the error."""
    if "pyspark" not in sys.modules:
        yield
        return
    from pyspark.logger import PySparkLogger

    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
