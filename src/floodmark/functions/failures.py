"""Failures of a user's function: the error as text, errors of rows, and the table of failed keys."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from floodmark.engine.attempts import WorkerDied

_LONGEST_MESSAGE = 4_000
_LONGEST_TRACE = 16_000


@dataclass(frozen=True)
class RowError:
    """A row that failed and was skipped."""

    at: int
    """The position of the row in the batch."""
    offset: int
    type: str
    message: str
    traceback: str
    attempts: int


def error_type_name(error: BaseException) -> str:
    """The name of the error's class, with its module unless it is a built-in or `WorkerDied`."""
    cls = type(error)
    is_plain = cls.__module__ in ("builtins", "__main__") or cls is WorkerDied
    return cls.__qualname__ if is_plain else f"{cls.__module__}.{cls.__qualname__}"


def error_text(error: BaseException) -> str:
    """The error's message. A long message is shortened."""
    try:
        text = str(error)
    except Exception as failure:  # a user's __str__ may fail
        text = f"(its message cannot be shown: {type(failure).__name__})"
    return _storable(text, _LONGEST_MESSAGE)


def format_traceback(error: BaseException, *inside: str) -> str:
    """The error's traceback without the outer frames in the files `inside`, which called the function."""
    tb: TracebackType | None = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename in inside:
        tb = tb.tb_next
    return _storable("".join(traceback.TracebackException(type(error), error, tb).format()), _LONGEST_TRACE)


def _storable(text: str, longest: int) -> str:
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} … {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()  # a string column cannot store a lone surrogate


# The table of failed keys: a row for each key whose last call raised

TIMESTAMP = pa.timestamp("ms", "UTC")
FAILURE_FIELDS = pa.schema(
    [
        pa.field("high", pa.uint64(), nullable=False),
        pa.field("low", pa.uint64(), nullable=False),
        pa.field("type", pa.string()),
        pa.field("message", pa.string()),
        pa.field("traceback", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("since", TIMESTAMP),
        pa.field("last", TIMESTAMP),
        pa.field("state", pa.string()),
        pa.field("due", TIMESTAMP),
        pa.field("stale", pa.bool_()),
    ]
)
"""The columns of a failure, which follow the columns of its key. A null `due` means immediately.

`stale` keys keep the rows of their last success. Skipped keys have no rows.
"""


def failed_keys_schema(keys: pa.Schema) -> pa.Schema:
    """The columns of a table of failed keys: the key columns, then the facts of the failure."""
    return pa.schema([*bare_schema(keys), *FAILURE_FIELDS])


def empty_failed_keys(keys: pa.Schema) -> pa.Table:
    """An empty table of failed keys."""
    return failed_keys_schema(keys).empty_table()


def bare_schema(fields: Iterable[pa.Field]) -> pa.Schema:
    """A schema with names and types only, because hashes depend on nothing else."""
    return pa.schema([pa.field(field.name, field.type) for field in fields])
