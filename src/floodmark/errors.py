"""The root of every error that Floodmark raises on purpose, and those of users' functions of any kind."""

from __future__ import annotations

from typing import Any, Self


class FloodmarkError(Exception):
    """What happened, where, and what to do about it.

    ``message`` is a sentence, ``hint`` says what to do next, and every keyword becomes an attribute, so that
    callers need not parse text. Errors travel between Spark's processes, so they survive pickling.
    """

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.facts)

    @classmethod
    def _of(cls, message: str, hint: str, facts: dict[str, Any]) -> Self:
        error = cls.__new__(cls)
        FloodmarkError.__init__(error, message, hint=hint, **facts)
        return error


def _rebuild(cls: type[FloodmarkError], message: str, hint: str, facts: dict[str, Any]) -> FloodmarkError:
    return cls._of(message, hint, facts)


class LostRace(FloodmarkError):
    """Others changed the state first and nothing was committed: plan again from the present state."""


class Unreadable(FloodmarkError):
    """Something that was pinned cannot be read: others replaced it, or it is damaged."""


# Users' functions, of columns and of steps


class BadHandler(FloodmarkError, TypeError):
    """An entry of on_error names no errors, or errors that must never be swallowed."""


class BadHandling(FloodmarkError):
    """`on_error` says something that has no meaning."""


class BadFunctionResult(FloodmarkError):
    """No call of the function may return this: calling it again, or with fewer rows, does not help."""
