"""Spark: the session, running tasks, progress, retries. Knows nothing of datasets.

Importing this package imports neither Spark nor pyarrow, and nothing starts a JVM until a session is asked for.
"""

from __future__ import annotations

from floodmark.engine.attempts import Cancel, WorkerDied
from floodmark.engine.errors import Cancelled, EngineError, JavaNotFound, SessionLost, TaskFailed, WorkersNotStarted
from floodmark.engine.here import run_here
from floodmark.engine.java import Java, find_java
from floodmark.engine.processes import run_in_processes
from floodmark.engine.progress import LineProgress, Progress, SilentProgress, TerminalProgress, progress_for
from floodmark.engine.run import run
from floodmark.engine.session import ArchiveUse, Session
from floodmark.engine.settings import Profile
from floodmark.engine.shipping import NotShippable
from floodmark.engine.task import Raised

__all__ = [
    "ArchiveUse",
    "Cancel",
    "Cancelled",
    "EngineError",
    "Java",
    "JavaNotFound",
    "LineProgress",
    "NotShippable",
    "Profile",
    "Progress",
    "Raised",
    "Session",
    "SessionLost",
    "SilentProgress",
    "TaskFailed",
    "TerminalProgress",
    "WorkerDied",
    "WorkersNotStarted",
    "find_java",
    "progress_for",
    "run",
    "run_here",
    "run_in_processes",
]
