"""Rules for rows and keys whose function fails: call again, skip, or end the run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from floodmark.errors import BadOption

ErrorPolicy: TypeAlias = Literal["retry", "skip", "fail_fast"]
FailureState: TypeAlias = Literal["retry", "skipped", "exhausted"]
POLICIES: tuple[ErrorPolicy, ...] = get_args(ErrorPolicy)

LONGEST_BACKOFF_MS = 24 * 60 * 60 * 1000
"""The longest back-off, in milliseconds."""


def is_due(due_ms: int, now_ms: int) -> bool:
    """Whether it is time for the next attempt. A time beyond the longest back-off was set by a wrong clock."""
    return not now_ms < due_ms <= now_ms + LONGEST_BACKOFF_MS


_HINT = (
    'Give "retry", "skip" or "fail_fast", OnError.retry(attempts=5, backoff=60.0), '
    "or handlers: [Retry(TimeoutError), Skip(ValueError)]."
)


@dataclass(frozen=True, init=False)
class Retry:
    """Call again after one of these errors: ``attempts`` calls in total, with a pause that doubles each time."""

    errors: tuple[type[Exception], ...]
    attempts: int
    delay: float

    def __init__(self, *errors: type[Exception], attempts: int = 3, delay: float = 0.0) -> None:
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            raise BadOption(f"Retry takes a whole number of at least 1 attempts, not {attempts!r}")
        if not isinstance(delay, int | float) or not math.isfinite(delay) or delay < 0:
            raise BadOption(f"Retry takes a delay of at least 0 seconds, not {delay!r}")
        object.__setattr__(self, "errors", _check_errors("Retry", errors))
        object.__setattr__(self, "attempts", attempts)
        object.__setattr__(self, "delay", float(delay))

    def pause(self, failures: int) -> float:
        """The seconds to wait after this many failures."""
        return math.ldexp(self.delay, failures - 1)


@dataclass(frozen=True, init=False)
class Skip:
    """Leave a row null after one of these errors, and keep the error for `column_errors`."""

    errors: tuple[type[Exception], ...]

    def __init__(self, *errors: type[Exception]) -> None:
        object.__setattr__(self, "errors", _check_errors("Skip", errors))


Handler: TypeAlias = Retry | Skip


def retry_for(handlers: tuple[Handler, ...], error: BaseException) -> Retry | None:
    """The first Retry that names this error."""
    for handler in handlers:
        if isinstance(handler, Retry) and isinstance(error, handler.errors):
            return handler
    return None


def is_skipped(handlers: tuple[Handler, ...], error: BaseException) -> bool:
    """Whether a row that still fails with this error is left null."""
    return any(isinstance(handler, Skip) and isinstance(error, handler.errors) for handler in handlers)


def _check_errors(name: str, errors: tuple[object, ...]) -> tuple[type[Exception], ...]:
    if not errors:
        raise BadOption(f"{name}() names no errors", hint=f"Name them, {name}(ValueError), or all: {name}(Exception).")
    good: list[type[Exception]] = []
    for error in errors:
        if not isinstance(error, type) or not issubclass(error, BaseException):
            raise BadOption(f"{name} takes classes of errors, not {error!r}")
        if not issubclass(error, Exception) or issubclass(error, MemoryError):
            raise BadOption(
                f"{name} cannot take {error.__name__}, which must end the task",
                hint="Leave it out: a task that runs out of memory is repeated with half the rows.",
            )
        good.append(error)
    return tuple(good)


@dataclass(frozen=True)
class OnError:
    """The rule for keys whose function fails. Create it with `retry`, `skip` or `fail_fast`.

    An attempt is a run in which the key failed. Repeated calls by a `Retry` within a run count as one attempt.
    """

    policy: ErrorPolicy = "retry"
    attempts: int | None = None
    """The failed runs after which a key is only processed on request; None means no limit."""
    backoff: float = 0.0
    """The seconds to wait after the first failure. They double after each further failure, up to one day."""
    handlers: tuple[Handler, ...] = ()

    @classmethod
    def retry(cls, attempts: int | None = None, backoff: float = 0.0) -> OnError:
        """Include failed keys in every run until they succeed, with an optional limit and optional pauses."""
        if attempts is not None and (not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1):
            raise BadOption(f"attempts must be a whole number of at least 1, or None for no limit, not {attempts!r}")
        is_number = isinstance(backoff, int | float) and not isinstance(backoff, bool)
        if not is_number or not math.isfinite(backoff) or backoff < 0:
            raise BadOption(f"backoff must be a number of seconds of at least 0, not {backoff!r}")
        return cls("retry", attempts, float(backoff))

    @classmethod
    def skip(cls) -> OnError:
        """Leave out failed keys until their rows change or a run requests them."""
        return cls("skip")

    @classmethod
    def fail_fast(cls) -> OnError:
        """End the run at the first key that fails. Earlier commits stay."""
        return cls("fail_fast")

    def after(self, attempts: int, now_ms: int, error: BaseException | None = None) -> tuple[FailureState, int | None]:
        """The state of a key after this many failed runs and this error, and when it is due (None: now or never)."""
        if self.policy == "skip" or (error is not None and is_skipped(self.handlers, error)):
            return "skipped", None
        if self.attempts is not None and attempts >= self.attempts:
            return "exhausted", None
        if not self.backoff:
            return "retry", None
        doublings = min(max(attempts, 1) - 1, 64)  # the longest back-off is reached earlier
        return "retry", now_ms + int(min(math.ldexp(self.backoff * 1000, doublings), LONGEST_BACKOFF_MS))

    def ends_run(self, error: BaseException) -> bool:
        """Whether a key that failed with this error ends the run."""
        return self.policy == "fail_fast" and not is_skipped(self.handlers, error)

    def again(self, error: BaseException) -> Retry | None:
        """The rule for calling the function again within the run, if there is one."""
        return retry_for(self.handlers, error)


def parse_max_failed(given: object, owner: str) -> float | None:
    """Parse `max_failed=`: the share of newly tried keys or rows that may fail; None means all but one."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if given is not None and not (is_number and 0 <= float(given) <= 1):  # type: ignore[arg-type]
        raise BadOption(
            f"max_failed={given!r} of {owner} is not a share", hint="give a number from 0 to 1: max_failed=0.05"
        )
    return None if given is None else float(given)  # type: ignore[arg-type]


def explain_refusal(tried: int, failed: int, max_failed: float | None, unit: str) -> str | None:
    """Why so many failures refuse a run; None if they do not.

    `tried` counts the keys or rows that no earlier run had failed for, and `failed` those of them that failed now.
    """
    if not failed or max_failed == 1:
        return None
    if failed == tried:
        return f"the only newly tried {unit} failed" if tried == 1 else f"all {tried:,} newly tried {unit}s failed"
    if max_failed is not None and failed > max_failed * tried:
        return f"{failed:,} of {tried:,} newly tried {unit}s failed, more than max_failed={max_failed:g} allows"
    return None


def parse_on_error(given: object = "retry") -> OnError:
    """Parse `on_error=`: a word, an `OnError`, a handler, or a list of handlers with at most one word or `OnError`."""
    match given:
        case None:
            return OnError()
        case OnError():
            return given
        case str():
            return _parse_policy(given)
        case Retry() | Skip():
            return OnError(handlers=(given,))
        case Iterable():
            return _parse_list(list(given))
    raise BadOption(f"on_error cannot be {given!r}", hint=_HINT)


def _parse_policy(word: str) -> OnError:
    for policy in POLICIES:
        if word == policy:
            return OnError(policy)
    raise BadOption(f"on_error cannot be {word!r}", hint=_HINT)


def _parse_list(given: list[object]) -> OnError:
    handlers = tuple(item for item in given if isinstance(item, Retry | Skip))
    others = [item for item in given if not isinstance(item, Retry | Skip)]
    for item in others:
        if not isinstance(item, str | OnError):
            raise BadOption(f"the list on_error cannot contain {item!r}", hint=_HINT)
    if len(others) > 1:
        raise BadOption(f"on_error has two policies: {others[0]!r} and {others[1]!r}", hint=_HINT)
    if not given:
        raise BadOption("on_error is an empty list", hint=_HINT)
    base = parse_on_error(others[0]) if others else OnError()
    return OnError(base.policy, base.attempts, base.backoff, (*base.handlers, *handlers))
