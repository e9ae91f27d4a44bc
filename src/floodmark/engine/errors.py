"""What can go wrong between asking for work and having it done."""

from __future__ import annotations

from floodmark.errors import FloodmarkError


class EngineError(FloodmarkError):
    """Work could not be run."""


class JavaNotFound(EngineError):
    """Spark needs Java 17 or newer, and there is none."""

    found: tuple[str, ...]


class SessionLost(EngineError):
    """The Spark session that was given has been stopped or has died."""


class WorkersNotStarted(EngineError):
    """A worker process of our own ended before it could take a task."""

    python: str


class TaskFailed(EngineError):
    """A task failed every time it was tried."""

    task: str
    attempts: int
    error_type: str
    trace: str


class Cancelled(EngineError):
    """The work was cancelled before it was done."""

    done: int
    total: int
