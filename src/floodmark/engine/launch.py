"""Starting Spark's JVM, and clearing up after one that died: the only module that knows PySpark's insides."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_environment = threading.RLock()
_CONNECT_PARALLELISM = 16
"""Spark Connect does not say how many tasks a cluster runs at once; more than it can run does no harm."""


def load_pyspark() -> None:
    """Import all of PySpark before a part of it: its parts import each other in a circle.

    Of two threads that enter it at two places, each would see the other's modules half made.
    """
    import pyspark  # noqa: F401


def spark_home() -> Path:
    """The folder of the Spark that PySpark would start."""
    load_pyspark()
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def start(settings: Mapping[str, str], environment: Mapping[str, str]) -> SparkSession:
    """A new Spark session; the environment variables are held only while it starts."""
    load_pyspark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _holding(environment):
        return builder.getOrCreate()


def is_connect(spark: SparkSession) -> bool:
    """Whether a session talks to a Spark Connect server, so that there is no JVM to talk to."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def local_cores(spark: SparkSession) -> int | None:
    """How many cores of this machine a session works with, None when it works on others."""
    if is_connect(spark):
        return None
    master = spark.sparkContext.master or ""
    is_here = master == "local" or master.startswith("local[")
    return spark.sparkContext.defaultParallelism if is_here else None


def parallelism(spark: SparkSession) -> int:
    """How many tasks a session runs at once."""
    return _CONNECT_PARALLELISM if is_connect(spark) else spark.sparkContext.defaultParallelism


def is_alive(spark: SparkSession) -> bool:
    """Whether a session can still run something."""
    if is_connect(spark):
        return not cast("Any", spark).is_stopped
    context = spark.sparkContext
    if context._jsc is None:  # how PySpark marks a context that was stopped
        return False
    try:
        return not context._jsc.sc().isStopped()
    except Exception:
        # Py4J has a dozen ways to say that nobody answers; all of them mean the same here.
        return False


def active() -> SparkSession | None:
    """The session that this process already has, whoever started it; None when there is none that lives."""
    load_pyspark()
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    if is_remote():
        connected = SparkSession.getActiveSession()
        return connected if connected is not None and is_alive(connected) else None
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return None
    try:
        if context._jsc.sc().isStopped():
            return None
        # A thread may have no session of its own while the process has a context. A builder without options
        # hands out the default session and changes nothing.
        return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    except Exception:
        return None  # the JVM is gone: see is_alive


def text_of(error: BaseException) -> str:
    """What an error says. PySpark asks the JVM for the text of its exceptions, and the JVM may be gone."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def jvm_process() -> subprocess.Popen[bytes] | None:
    """The JVM that PySpark started in this process, if it did."""
    from pyspark import SparkContext

    return cast("subprocess.Popen[bytes] | None", getattr(SparkContext._gateway, "proc", None))


def forget_dead_jvm() -> None:
    """Make PySpark start a new JVM next time, when the one it has is gone."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process = jvm_process()
    if process is None or (process.poll() is None and _answers()):
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)  # one that was killed may take a moment to be gone
    gateway: Any = SparkContext._gateway
    with contextlib.suppress(Exception):  # closing sockets whose other end is gone
        gateway.shutdown()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def _answers() -> bool:
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    try:
        return jvm is not None and jvm.java.lang.System.nanoTime() is not None
    except Exception:
        return False  # see is_alive


def end_jvm(timeout: float) -> int | None:
    """Let the JVM of this process end by itself; its exit code, or None when there is no JVM."""
    from pyspark import SparkContext

    process = jvm_process()
    if process is None:
        return None
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    if process.stdin is not None:
        process.stdin.close()  # Spark's gateway ends with its stdin
    code = process.wait(timeout)
    forget_dead_jvm()
    return code


def kill_jvm() -> None:
    """End the JVM of this process at once, whatever it is doing."""
    process = jvm_process()
    if process is not None:
        process.kill()
        process.wait()
        forget_dead_jvm()


@contextlib.contextmanager
def _holding(variables: Mapping[str, str]) -> Iterator[None]:
    with _environment:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
