"""Spark sessions that start when first needed, frames that do not change the active session, and `Runtime`."""

from __future__ import annotations

import enum
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from floodmark.engine import spark_launch
from floodmark.engine.java import find_java, spark_java_home
from floodmark.engine.progress import Progress, SilentProgress
from floodmark.engine.spark_launch import Machine, Profile, launch_environment, session_settings
from floodmark.engine.startup_archive import Archive
from floodmark.errors import EngineError
from floodmark.storage.file_cache import user_cache

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class ArchiveUse(enum.Enum):
    """How a session uses the start-up archive of ``floodmark.engine.startup_archive``."""

    BUILD = "build"
    """Use it. If it is missing, build it while this session runs."""
    USE = "use"
    """Use it if it exists."""
    IGNORE = "ignore"
    """Start without it."""


class Session:
    """A Spark session that starts on first use.

    ``spark`` is a session of the caller. Without it, the active session of this process is used. The settings of these
    sessions are never changed. If there is none, a session starts with ``settings``, which may contain any Spark
    setting, such as ``spark.master`` for a cluster.
    """

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        profile: Profile = Profile.FULL,
        archive: ArchiveUse = ArchiveUse.BUILD,
    ) -> None:
        self._user_session = spark
        self._settings = {name: str(value) for name, value in (settings or {}).items()}
        self._profile = profile
        self._archive = archive
        self._own_session: SparkSession | None = None
        self._lock = threading.RLock()

    @property
    def started(self) -> bool:
        """Whether a session that this object started is running."""
        return self._own_session is not None and spark_launch.is_alive(self._own_session)

    def get(self) -> SparkSession:
        """The Spark session; starts one if there is none."""
        with self._lock:
            if self._user_session is not None:
                if not spark_launch.is_alive(self._user_session):
                    raise EngineError(
                        "The Spark session passed to Floodmark has been stopped.",
                        hint="Pass a running session, or none: then Floodmark starts one.",
                    )
                return self._user_session
            if self._own_session is not None:
                if spark_launch.is_alive(self._own_session):
                    return self._own_session
                self._own_session = None
                spark_launch.forget_dead_jvm()
            if (active := spark_launch.active()) is not None:
                return active
            self._own_session = self._start()
            return self._own_session

    @property
    def is_local(self) -> bool:
        """Whether tasks run, or would run, on this machine. Does not start a session to find out."""
        if (
            self._user_session is not None
            or self.started
            or ("pyspark" in sys.modules and spark_launch.active() is not None)
        ):
            return self.local_cores() is not None
        if "spark.remote" in self._settings or "SPARK_REMOTE" in os.environ:
            return False
        return self._settings.get("spark.master", "local").startswith("local")

    def local_cores(self) -> int | None:
        """How many cores of this machine the session uses; None if it uses others. Starts a session if needed."""
        return spark_launch.local_cores(self.get())

    def parallelism(self) -> int:
        """How many tasks the session runs at once. Starts a session if needed."""
        return spark_launch.parallelism(self.get())

    def stop(self) -> None:
        """Stop the session if this object started it. The next ``get`` starts a new one."""
        with self._lock:
            if self._own_session is None:
                return
            if spark_launch.is_alive(self._own_session):
                self._own_session.stop()
            self._own_session = None

    def _start(self) -> SparkSession:
        spark_launch.forget_dead_jvm()
        if "spark.remote" in self._settings or "SPARK_REMOTE" in os.environ:
            # A Spark Connect server has its own JVM and settings.
            return spark_launch.start(self._settings, {})
        java = find_java()
        home, cache = spark_launch.spark_home(), user_cache()
        archive = Archive.of(java, home, cache)
        use = self._archive is not ArchiveUse.IGNORE
        machine = Machine.this()
        settings = session_settings(machine, self._profile, self._settings, archive=archive.ready() if use else None)
        environment = launch_environment(machine, settings, os.environ, home, spark_java_home(java, cache))
        spark = spark_launch.start(settings, environment)
        if self._archive is ArchiveUse.BUILD and archive.worth_building(time.time()):
            from floodmark.engine import startup_archive

            startup_archive.build_in_background(archive)
        return spark

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


# Local frames


def make_frame(spark: SparkSession, data: Any, schema: Any = None) -> DataFrame:
    """Like `spark.createDataFrame(data, schema)`, but does not change the active session."""
    with _keep_active_session(spark):
        return spark.createDataFrame(data, schema)


def make_empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """A frame without rows. `createDataFrame([], schema)` is ten times slower, because it creates an RDD."""
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect
        return make_frame(spark, [], schema)
    from pyspark.sql.classic.dataframe import DataFrame

    session: Any = spark._jsparkSession
    no_rows = spark.sparkContext._jvm.java.util.ArrayList()  # type: ignore[union-attr]
    return DataFrame(session.createDataFrame(no_rows, session.parseDataType(schema.json())), spark)


@contextmanager
def _keep_active_session(spark: SparkSession) -> Iterator[None]:
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect has no active session in a JVM
        yield
        return
    classic: Any = type(spark)
    sessions = classic._get_j_spark_session_class(spark._jvm)
    python_active, jvm_active = classic._activeSession, sessions.getActiveSession()
    try:
        yield
    finally:
        classic._activeSession = python_active
        if jvm_active.isDefined():
            sessions.setActiveSession(jvm_active.get())
        else:
            sessions.clearActiveSession()


@dataclass(frozen=True)
class Runtime:
    """Session, clock, randomness and progress of a lake. Passed in, so that tests can replace each of them."""

    session: Session = field(default_factory=Session)
    clock: Callable[[], int] = time.time_ns
    random_bytes: Callable[[int], bytes] = os.urandom
    sleep: Callable[[float], None] = time.sleep
    progress: Callable[[], Progress] = SilentProgress
    checkpoint_seconds: float = 10.0  # the target duration of one checkpoint of a backfill
    fold_at: float | None = 0.10  # after a write, fold if this part of the records is dead; None: only fold() does
