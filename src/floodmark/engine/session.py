"""The Spark session: the caller's own when there is one, else one of ours that starts when first needed."""

from __future__ import annotations

import enum
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from floodmark.engine import launch
from floodmark.engine.archive import Archive
from floodmark.engine.errors import SessionLost
from floodmark.engine.java import find_java, spark_java_home
from floodmark.engine.settings import Machine, Profile, launch_environment, session_settings
from floodmark.storage.file_cache import user_cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ArchiveUse(enum.Enum):
    """What a session does with the start-up archive of ``floodmark.engine.cds``."""

    BUILD = "build"
    """Use it; when it is missing, have it made beside this session."""
    USE = "use"
    """Use it when it is there."""
    IGNORE = "ignore"
    """Start without."""


class Session:
    """A Spark session that starts when it is first asked for.

    ``spark`` is a session of the caller's; without it, one that is already active in this process is used. The
    settings of either are never changed. Otherwise one is started with ``settings``, which may name any Spark
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
        self._given = spark
        self._settings = {name: str(value) for name, value in (settings or {}).items()}
        self._profile = profile
        self._archive = archive
        self._ours: SparkSession | None = None
        self._lock = threading.RLock()

    @property
    def started(self) -> bool:
        """Whether a session of ours is running."""
        return self._ours is not None and launch.is_alive(self._ours)

    def get(self) -> SparkSession:
        """The session to work with; starts one when there is none."""
        with self._lock:
            if self._given is not None:
                if not launch.is_alive(self._given):
                    raise SessionLost(
                        "The Spark session that Floodmark was given has been stopped.",
                        hint="Give it a running one, or none and Floodmark starts its own.",
                    )
                return self._given
            if self._ours is not None:
                if launch.is_alive(self._ours):
                    return self._ours
                self._ours = None
                launch.forget_dead_jvm()
            if (active := launch.active()) is not None:
                return active
            self._ours = self._start()
            return self._ours

    @property
    def is_local(self) -> bool:
        """Whether its tasks run, or would run, on this machine; starts nothing to find out."""
        if self._given is not None or self.started or ("pyspark" in sys.modules and launch.active() is not None):
            return self.local_cores() is not None
        if "spark.remote" in self._settings or "SPARK_REMOTE" in os.environ:
            return False
        return self._settings.get("spark.master", "local").startswith("local")

    def local_cores(self) -> int | None:
        """How many cores of this machine the session works with, None when it works on others. Starts one if needed."""
        return launch.local_cores(self.get())

    def parallelism(self) -> int:
        """How many tasks the session runs at once. Starts one if needed."""
        return launch.parallelism(self.get())

    def stop(self) -> None:
        """Stop the session if it is ours; the next ``get`` starts a new one."""
        with self._lock:
            if self._ours is None:
                return
            if launch.is_alive(self._ours):
                self._ours.stop()
            self._ours = None

    def _start(self) -> SparkSession:
        launch.forget_dead_jvm()
        if "spark.remote" in self._settings or "SPARK_REMOTE" in os.environ:
            # A Spark Connect server: the JVM and its settings are its own affair.
            return launch.start(self._settings, {})
        java = find_java()
        home, cache = launch.spark_home(), user_cache()
        archive = Archive.of(java, home, cache)
        use = self._archive is not ArchiveUse.IGNORE
        machine = Machine.this()
        settings = session_settings(machine, self._profile, self._settings, archive=archive.ready() if use else None)
        environment = launch_environment(machine, settings, os.environ, home, spark_java_home(java, cache))
        spark = launch.start(settings, environment)
        if self._archive is ArchiveUse.BUILD and archive.worth_building(time.time()):
            from floodmark.engine import cds

            cds.build_beside(archive)
        return spark

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
