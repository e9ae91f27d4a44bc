"""Starts Spark's JVM with our settings, and cleans up after a JVM that died. Uses most internals of PySpark."""

from __future__ import annotations

import contextlib
import enum
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from floodmark.errors import EngineError
from floodmark.storage.scratch import TemporaryFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_environment_lock = threading.RLock()
_END_SECONDS = 2.0
"""A killed JVM may take a moment to end."""
_CONNECT_PARALLELISM = 16
"""For Spark Connect, which does not report how many tasks a cluster runs at once. A larger number does no harm."""


def load_pyspark() -> None:
    """Import all of PySpark before a part of it, because its modules import each other in a circle.

    Otherwise two threads that import different modules would see each other's modules incomplete.
    """
    import pyspark  # noqa: F401


def spark_home() -> Path:
    """The folder of the Spark installation that PySpark uses."""
    load_pyspark()
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def start(settings: Mapping[str, str], environment: Mapping[str, str]) -> SparkSession:
    """Start a Spark session. The environment variables are set only during the start."""
    load_pyspark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _set_variables(environment):
        return builder.getOrCreate()


def is_connect(spark: SparkSession) -> bool:
    """Whether a session uses a Spark Connect server, and so has no JVM."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def local_cores(spark: SparkSession) -> int | None:
    """How many cores of this machine a session uses; None if it uses other machines."""
    if is_connect(spark):
        return None
    master = spark.sparkContext.master or ""
    is_here = master == "local" or master.startswith("local[")
    return spark.sparkContext.defaultParallelism if is_here else None


def parallelism(spark: SparkSession) -> int:
    """How many tasks a session runs at once."""
    return _CONNECT_PARALLELISM if is_connect(spark) else spark.sparkContext.defaultParallelism


def is_alive(spark: SparkSession) -> bool:
    """Whether a session can still run jobs."""
    if is_connect(spark):
        return not cast("Any", spark).is_stopped
    context = spark.sparkContext
    if context._jsc is None:  # a stopped context
        return False
    try:
        return not context._jsc.sc().isStopped()
    except Exception:
        # Py4J raises many kinds of errors if the JVM does not answer.
        return False


def active() -> SparkSession | None:
    """The running session of this process, also if other code started it; None if there is none."""
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
        # The thread may have no active session although the process has a context. A builder without options returns
        # the default session and changes nothing.
        return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    except Exception:
        return None  # the JVM has ended: see is_alive


def text_of(error: BaseException) -> str:
    """The text of an error. PySpark gets the text of its exceptions from the JVM, which may have ended."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def jvm_process() -> subprocess.Popen[bytes] | None:
    """The JVM process that PySpark started from this process, if any."""
    from pyspark import SparkContext

    return cast("subprocess.Popen[bytes] | None", getattr(SparkContext._gateway, "proc", None))


def forget_dead_jvm() -> None:
    """If the JVM has ended, reset PySpark so that it starts a new one next time."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process = jvm_process()
    if process is None or (process.poll() is None and _jvm_answers()):
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)  # a killed process may take a moment to end
    gateway: Any = SparkContext._gateway
    with contextlib.suppress(Exception):  # it closes sockets whose other end is closed
        gateway.shutdown()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def _jvm_answers() -> bool:
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    try:
        return jvm is not None and jvm.java.lang.System.nanoTime() is not None
    except Exception:
        return False  # see is_alive


@contextlib.contextmanager
def explain_dead_jvm() -> Iterator[None]:
    """Raise `EngineError` instead of the errors of Py4J that mean that the JVM of this process has ended."""
    try:
        yield
    except Exception as error:
        if not _is_of_dead_jvm(error):
            raise
        raise EngineError(
            "The JVM of Spark has ended, so this call was not finished.",
            hint="Call it again: that starts a new JVM. If it ends again, the machine may be out of memory: look into "
            "the log of the system, or set spark.driver.memory.",
        ) from error


def _is_of_dead_jvm(error: Exception) -> bool:
    module, name = type(error).__module__, type(error).__name__
    is_lost = isinstance(error, ConnectionError | EOFError) or (
        module.startswith("py4j") and name in ("Py4JError", "Py4JNetworkError")
    )
    if not is_lost or "pyspark" not in sys.modules or (process := jvm_process()) is None:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    return process.poll() is not None


def end_jvm(timeout: float) -> int | None:
    """Let the JVM of this process end normally; returns its exit code, or None if there is no JVM."""
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
    """Kill the JVM of this process."""
    process = jvm_process()
    if process is not None:
        process.kill()
        process.wait()
        forget_dead_jvm()


@contextlib.contextmanager
def _set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    with _environment_lock:
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


# Settings

_GIB = 1 << 30
_MIB = 1 << 20
# The path of a Unix domain socket has at most 107 bytes. Spark adds a name of 42 bytes to the folder.
_LONGEST_SOCKET_FOLDER = 60
_LOGGING = Path(__file__).with_name("log4j2.properties")


class Profile(enum.Enum):
    """The purpose of a session."""

    SHORT = "short"
    """Commands and tests that end within seconds: starts fastest, but is two to three times slower on large work."""
    FULL = "full"
    """Everything else."""


@dataclass(frozen=True)
class Machine:
    """The facts about this machine that the settings depend on."""

    cores: int
    memory: int
    tmpdir: str
    private_dir: str  # a temporary folder that only this user can read
    python: str

    @classmethod
    def this(cls) -> Machine:
        """This machine, within the limits of its container."""
        return cls(_cores(), _memory(), tempfile.gettempdir(), str(_private_folder()), sys.executable)


def is_local(settings: Mapping[str, str]) -> bool:
    """Whether these settings describe a session in a JVM on this machine."""
    return "spark.remote" not in settings and settings.get("spark.master", "local").startswith("local")


def driver_memory(total: int) -> str:
    """The heap of the JVM: a quarter of the memory, at most 8 GiB, and at least what Spark needs to start.

    Python processes compute the columns, so they need the rest of the memory.
    """
    return f"{max(512, min(total // 4, 8 * _GIB) // _MIB)}m"


def java_options(machine: Machine, profile: Profile, archive: Path | None) -> tuple[str, ...]:
    """The flags for the JVM."""
    options = [
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        f"-Djava.io.tmpdir={machine.tmpdir}",  # Java ignores TMPDIR
        f"-Dderby.system.home={machine.tmpdir}",  # else Derby writes derby.log to the current folder
        # Java ignores an archive that does not match. Suppress its message on stdout.
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
        "-Xlog:cds*=off:stderr",
        "-XX:-UsePerfData",  # else Java writes statistics to /tmp and ignores TMPDIR
    ]
    if archive is not None:
        options.append(f"-XX:SharedArchiveFile={archive}")
    if profile is Profile.SHORT:
        options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return tuple(options)


def session_settings(
    machine: Machine,
    profile: Profile,
    overrides: Mapping[str, str],
    archive: Path | None,
) -> dict[str, str]:
    """All settings for a new session. Settings of the user override ours; JVM flags are joined."""
    if "spark.remote" in overrides:
        return dict(overrides)
    settings = {
        "spark.app.name": "floodmark",
        "spark.master": f"local[{machine.cores},3]",
        "spark.driver.memory": driver_memory(machine.memory),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 is slow to write and to read
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (Path(machine.tmpdir) / f"floodmark-warehouse-{os.getuid()}").as_uri(),
    }
    if is_local({**settings, **overrides}):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": machine.private_dir,  # Spark lets every user read its files
            "spark.sql.shuffle.partitions": str(max(2 * machine.cores, 4)),
        }
        sockets = [
            folder
            for folder in (machine.private_dir, machine.tmpdir)
            if len(os.fsencode(folder)) <= _LONGEST_SOCKET_FOLDER
        ]
        if sockets:
            settings["spark.python.unix.domain.socket.enabled"] = "true"
            settings["spark.python.unix.domain.socket.dir"] = sockets[0]
    settings |= overrides
    flags = [_quoted(option) for option in java_options(machine, profile, archive)]
    if user_flags := overrides.get("spark.driver.extraJavaOptions"):
        flags.append(user_flags)
    settings["spark.driver.extraJavaOptions"] = " ".join(flags)
    return settings


def launch_environment(
    machine: Machine,
    settings: Mapping[str, str],
    environ: Mapping[str, str],
    spark_home: Path,
    java_home: Path | None,
) -> dict[str, str]:
    """The environment variables to add while Spark starts."""
    variables = {
        # Without it, Spark starts a Python process to find its folder.
        "SPARK_HOME": str(spark_home),
        # For the small JVM in which spark-submit computes the command line of the real one.
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
    }
    if java_home is not None:
        variables["JAVA_HOME"] = str(java_home)
    if is_local(settings):
        # The workers need the packages of this process.
        variables["PYSPARK_PYTHON"] = machine.python
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    else:
        # On a cluster the interpreter may have another path, so a variable of the user wins.
        variables["PYSPARK_PYTHON"] = environ.get("PYSPARK_PYTHON", machine.python)
    return variables


_private: tuple[int, TemporaryFolder] | None = None


def _private_folder() -> Path:
    """The folder for the temporary files of Spark. It ends with this process, because its JVM may outlive sessions."""
    global _private
    with _environment_lock:
        if _private is None or _private[0] != os.getpid() or not _private[1].path.is_dir():
            _private = os.getpid(), TemporaryFolder()
        return _private[1].path


def _quoted(option: str) -> str:
    return f'"{option}"' if " " in option else option


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _memory() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(limit).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total
