"""Errors about rows that do not fit an output, in the words of somebody who declares a step and never calls write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from floodmark.ledger.errors import BadData, DuplicateKeys, TypeMismatch, UnsupportedType


@contextmanager
def explained_for(output: str) -> Iterator[None]:
    """The same kinds of errors, which say whose rows they are about and what to declare."""
    try:
        yield
    except BadData as error:
        facts = {"output": output, **error.facts}
        message = error.message if repr(output) in error.message else f"output {output!r}: {error.message}"
        raise type(error)(message, hint=_hint(error, output), **facts) from error


def _hint(error: BadData, output: str) -> str:
    if isinstance(error, DuplicateKeys):
        return f"nothing was written: keep one row for each key; what tells rows apart: OutputSpec({output!r}, key=[…])"
    if isinstance(error, UnsupportedType):
        return error.hint.replace("give schema=", f"say what it holds: OutputSpec({output!r}, schema=…)")
    if isinstance(error, TypeMismatch):
        return f"{error.hint}; or say what it is to hold: OutputSpec({output!r}, schema=…), after dropping the output"
    return error.hint
