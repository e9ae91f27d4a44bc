"""The settings of the Spark sessions that Floodmark starts, decided from the machine and what the user set."""

from __future__ import annotations

import enum
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_GIB = 1 << 30
_MIB = 1 << 20
# The path of a unix domain socket may have 107 bytes; Spark adds a name of 42 to the folder.
_LONGEST_SOCKET_FOLDER = 60
_LOGGING = Path(__file__).with_name("log4j2.properties")


class Profile(enum.Enum):
    """What a session is for."""

    SHORT = "short"
    """Commands and tests that end within seconds: starts fastest, two to three times slower on large work."""
    FULL = "full"
    """Everything else."""


@dataclass(frozen=True)
class Machine:
    """What the settings depend on."""

    cores: int
    memory: int
    tmpdir: str
    python: str

    @classmethod
    def this(cls) -> Machine:
        """The machine we are on, within the limits of its container."""
        return cls(_cores(), _memory(), tempfile.gettempdir(), sys.executable)


def is_local(settings: Mapping[str, str]) -> bool:
    """Whether these settings describe a session inside this machine's own JVM."""
    return "spark.remote" not in settings and settings.get("spark.master", "local").startswith("local")


def driver_memory(total: int) -> str:
    """The JVM's heap: a quarter of the machine, at most 8 GiB, and never so little that Spark refuses to start.

    Columns are worked on in Python processes beside the JVM, so more would only be taken from them.
    """
    return f"{max(512, min(total // 4, 8 * _GIB) // _MIB)}m"


def java_options(machine: Machine, profile: Profile, archive: Path | None) -> tuple[str, ...]:
    """The flags of the JVM that we start."""
    options = [
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        f"-Djava.io.tmpdir={machine.tmpdir}",  # Java does not look at TMPDIR
        f"-Dderby.system.home={machine.tmpdir}",  # else derby.log appears in the user's folder
        # An archive that does not fit is not used, and Java says so on stdout: nobody needs to know.
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
        "-Xlog:cds*=off:stderr",
        "-XX:-UsePerfData",  # else a file of statistics in /tmp, whatever TMPDIR says
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
    """Everything a session of ours is started with; what the user set wins, flags of the JVM are joined."""
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
            "spark.local.dir": machine.tmpdir,
            "spark.sql.shuffle.partitions": str(max(2 * machine.cores, 4)),
        }
        if len(os.fsencode(machine.tmpdir)) <= _LONGEST_SOCKET_FOLDER:
            settings["spark.python.unix.domain.socket.enabled"] = "true"
            settings["spark.python.unix.domain.socket.dir"] = machine.tmpdir
    settings |= overrides
    flags = [_quoted(option) for option in java_options(machine, profile, archive)]
    if theirs := overrides.get("spark.driver.extraJavaOptions"):
        flags.append(theirs)
    settings["spark.driver.extraJavaOptions"] = " ".join(flags)
    return settings


def launch_environment(
    machine: Machine,
    settings: Mapping[str, str],
    environ: Mapping[str, str],
    spark_home: Path,
    java_home: Path | None,
) -> dict[str, str]:
    """The environment variables to hold while Spark is started, beside those that are there."""
    wanted = {
        # Spark would start a Python only to find its own folder.
        "SPARK_HOME": str(spark_home),
        # spark-submit first starts a small JVM that computes the command line of the real one.
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
    }
    if java_home is not None:
        wanted["JAVA_HOME"] = str(java_home)
    if is_local(settings):
        # The workers must have the packages that this process has.
        wanted["PYSPARK_PYTHON"] = machine.python
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    else:
        # On a cluster the interpreter may live elsewhere: whoever set the variable knows where.
        wanted["PYSPARK_PYTHON"] = environ.get("PYSPARK_PYTHON", machine.python)
    return wanted


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
