"""What to do with rows whose function raised: call it again, or leave them null and note why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from floodmark.compute.errors import BadHandler


@dataclass(frozen=True, init=False)
class Retry:
    """Call again after one of these errors: ``attempts`` calls in all, with a pause that doubles each time."""

    errors: tuple[type[Exception], ...]
    attempts: int
    delay: float

    def __init__(self, *errors: type[Exception], attempts: int = 3, delay: float = 0.0) -> None:
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            raise BadHandler(f"Retry takes a whole number of attempts from 1 on, not {attempts!r}")
        if not isinstance(delay, int | float) or not math.isfinite(delay) or delay < 0:
            raise BadHandler(f"Retry takes a delay in seconds from 0 on, not {delay!r}")
        object.__setattr__(self, "errors", _checked("Retry", errors))
        object.__setattr__(self, "attempts", attempts)
        object.__setattr__(self, "delay", float(delay))

    def pause(self, failures: int) -> float:
        """The seconds to wait after so many failures."""
        return math.ldexp(self.delay, failures - 1)


@dataclass(frozen=True, init=False)
class Skip:
    """Leave a row null after one of these errors, and keep the error for `column_errors`."""

    errors: tuple[type[Exception], ...]

    def __init__(self, *errors: type[Exception]) -> None:
        object.__setattr__(self, "errors", _checked("Skip", errors))


Handler: TypeAlias = Retry | Skip


def retry_for(handlers: tuple[Handler, ...], error: BaseException) -> Retry | None:
    """The first Retry that means this error."""
    for handler in handlers:
        if isinstance(handler, Retry) and isinstance(error, handler.errors):
            return handler
    return None


def is_skipped(handlers: tuple[Handler, ...], error: BaseException) -> bool:
    """Whether a row that still fails with this error is left null."""
    return any(isinstance(handler, Skip) and isinstance(error, handler.errors) for handler in handlers)


def _checked(name: str, errors: tuple[object, ...]) -> tuple[type[Exception], ...]:
    if not errors:
        raise BadHandler(f"{name}() names no errors", hint=f"Name them, {name}(ValueError), or all: {name}(Exception).")
    good: list[type[Exception]] = []
    for error in errors:
        if not isinstance(error, type) or not issubclass(error, BaseException):
            raise BadHandler(f"{name} takes classes of errors, not {error!r}")
        if not issubclass(error, Exception) or issubclass(error, MemoryError):
            raise BadHandler(
                f"{name} cannot take {error.__name__}, which must end the task",
                hint="A task that runs out of memory is tried again with half the rows.",
            )
        good.append(error)
    return tuple(good)
