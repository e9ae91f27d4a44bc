"""An error that a user's function raised, as text that can be kept and sent."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from types import TracebackType

from floodmark.engine import WorkerDied

_LONGEST_MESSAGE = 4_000
_LONGEST_TRACE = 16_000


@dataclass(frozen=True)
class RowError:
    """One row that failed and was skipped."""

    at: int
    """The row of the batch that was given."""
    offset: int
    type: str
    message: str
    traceback: str
    attempts: int


def type_of(error: BaseException) -> str:
    """The error's class: bare if it is one of Python's own or the death of a worker, else with its module."""
    cls = type(error)
    is_plain = cls.__module__ in ("builtins", "__main__") or cls is WorkerDied
    return cls.__qualname__ if is_plain else f"{cls.__module__}.{cls.__qualname__}"


def message_of(error: BaseException) -> str:
    """The error's message; a long one is cut."""
    try:
        text = str(error)
    except Exception as failure:  # a user's __str__ may fail, too
        text = f"(its message cannot be shown: {type(failure).__name__})"
    return _storable(text, _LONGEST_MESSAGE)


def trace_of(error: BaseException, *inside: str) -> str:
    """Where it was raised, without the frames of the files `inside`, which called the function."""
    tb: TracebackType | None = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename in inside:
        tb = tb.tb_next
    return _storable("".join(traceback.TracebackException(type(error), error, tb).format()), _LONGEST_TRACE)


def _storable(text: str, longest: int) -> str:
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} … {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate has no place in a column of texts
