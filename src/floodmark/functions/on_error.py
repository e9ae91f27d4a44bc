"""What happens to rows and keys whose function failed: called again, skipped, or the end of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from floodmark.errors import BadHandler, BadHandling

Policy: TypeAlias = Literal["retry", "skip", "fail_fast"]
State: TypeAlias = Literal["retry", "skipped", "exhausted"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

DAY_MS = 24 * 60 * 60 * 1000
"""The longest back-off."""

_HINT = (
    'Say "retry", "skip" or "fail_fast", OnError.retry(attempts=5, backoff=60.0), '
    "or handlers: [Retry(TimeoutError), Skip(ValueError)]."
)


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


@dataclass(frozen=True)
class OnError:
    """What happens to keys whose function fails. Made by `retry`, `skip` and `fail_fast`.

    An attempt is a run in which the key failed; how often a `Retry` called the function within it does not count.
    """

    policy: Policy = "retry"
    attempts: int | None = None
    """Failed runs after which a key is given up until somebody asks for it; None is never."""
    backoff: float = 0.0
    """Seconds to wait after the first failure; twice as long after each further one, a day at most."""
    handlers: tuple[Handler, ...] = ()

    @classmethod
    def retry(cls, attempts: int | None = None, backoff: float = 0.0) -> OnError:
        """Keys that failed are part of every run until they succeed, with a limit and pauses if asked for."""
        if attempts is not None and (not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1):
            raise BadHandling(f"attempts is a whole number from 1 on, or None for no limit, not {attempts!r}")
        is_number = isinstance(backoff, int | float) and not isinstance(backoff, bool)
        if not is_number or not math.isfinite(backoff) or backoff < 0:
            raise BadHandling(f"backoff is a number of seconds from 0 on, not {backoff!r}")
        return cls("retry", attempts, float(backoff))

    @classmethod
    def skip(cls) -> OnError:
        """Keys that failed are left alone until their rows change, or until somebody asks for them."""
        return cls("skip")

    @classmethod
    def fail_fast(cls) -> OnError:
        """The first key that fails ends the run; what was committed before stays."""
        return cls("fail_fast")

    def after(self, attempts: int, now_ms: int, error: BaseException | None = None) -> tuple[State, int | None]:
        """What a key is that has failed so often, now with this error, and when it is due (None: at once, or never)."""
        if self.policy == "skip" or (error is not None and is_skipped(self.handlers, error)):
            return "skipped", None
        if self.attempts is not None and attempts >= self.attempts:
            return "exhausted", None
        if not self.backoff:
            return "retry", None
        doublings = min(max(attempts, 1) - 1, 64)  # the cap is reached long before
        return "retry", now_ms + int(min(math.ldexp(self.backoff * 1000, doublings), DAY_MS))

    def ends_run(self, error: BaseException) -> bool:
        """Whether a key that failed with this error ends the run."""
        return self.policy == "fail_fast" and not is_skipped(self.handlers, error)

    def again(self, error: BaseException) -> Retry | None:
        """The rule by which the function is called again within the run."""
        return retry_for(self.handlers, error)


def parse_on_error(given: object = "retry") -> OnError:
    """What is meant by `on_error=`: a word, an `OnError`, a handler, or a list of handlers with at most one word."""
    match given:
        case None:
            return OnError()
        case OnError():
            return given
        case str():
            return _named(given)
        case Retry() | Skip():
            return OnError(handlers=(given,))
        case Iterable():
            return _combined(list(given))
    raise BadHandling(f"on_error cannot be {given!r}", hint=_HINT)


def _named(word: str) -> OnError:
    for policy in POLICIES:
        if word == policy:
            return OnError(policy)
    raise BadHandling(f"on_error cannot be {word!r}", hint=_HINT)


def _combined(given: list[object]) -> OnError:
    handlers = tuple(item for item in given if isinstance(item, Retry | Skip))
    others = [item for item in given if not isinstance(item, Retry | Skip)]
    for item in others:
        if not isinstance(item, str | OnError):
            raise BadHandling(f"on_error has {item!r} in its list", hint=_HINT)
    if len(others) > 1:
        raise BadHandling(f"on_error says two things at once: {others[0]!r} and {others[1]!r}", hint=_HINT)
    if not given:
        raise BadHandling("on_error is an empty list", hint=_HINT)
    base = parse_on_error(others[0]) if others else OnError()
    return OnError(base.policy, base.attempts, base.backoff, (*base.handlers, *handlers))
