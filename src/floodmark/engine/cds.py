"""Makes the start-up archive with which a Spark session starts in about half the time.

``python -m floodmark.engine.cds`` (``make install`` does it) runs a few small Spark jobs and lets Java keep the
classes that they load. Where that was never done, a session that lasts more than a few seconds has it made beside
it, at the lowest priority; when the session's process ends first, so does the builder, and nothing is left.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from floodmark.engine import launch
from floodmark.engine.archive import Archive
from floodmark.engine.errors import EngineError
from floodmark.engine.java import Java, find_java, spark_java_home
from floodmark.engine.settings import Machine, Profile, launch_environment, session_settings
from floodmark.storage.file_cache import replace_file, user_cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE = 300.0
"""Seconds that Java may take to write the archive at its end."""
_DELAY = 5.0
"""Seconds a session must last before an archive is made beside it: a short command must not feel it."""


class ArchiveNotMade(EngineError):
    """There is no start-up archive; sessions work without, and start more slowly."""


def build(archive: Archive, java: Java, cache: Path) -> Path:
    """Make the archive, unless it is there; safe to call from several processes at once."""
    archive.folder.mkdir(parents=True, exist_ok=True)
    with _only_builder(archive):
        if (whole := archive.ready()) is not None:
            return whole
        for leftover in archive.folder.glob(f"{archive.key}*.tmp"):
            leftover.unlink(missing_ok=True)
        temporary = archive.folder / f"{archive.key}.{os.getpid()}.tmp"
        try:
            base = _make_base(archive, java)
            _train(temporary, base, java, cache)
            _publish(temporary, archive.path)
            archive.seal()
        except Exception as error:
            reason = launch.text_of(error)
            launch.kill_jvm()
            temporary.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                replace_file(archive.failure, f"{reason}\n".encode())
            raise ArchiveNotMade(f"Making the start-up archive failed: {reason}") from error
        archive.remove_others()
        return archive.path


def build_beside(archive: Archive) -> None:
    """Have the archive made by a process that lives no longer than this one, if this one lives long enough."""
    timer = threading.Timer(_DELAY, _start_builder, [archive])
    timer.daemon = True
    timer.start()


def _start_builder(archive: Archive) -> None:
    if not archive.worth_building(time.time()):
        return
    command = [sys.executable, "-m", "floodmark.engine.cds", "--beside"]
    try:
        # A process group of its own keeps Ctrl-C away from it. Not a session of its own: Linux shares the
        # processor out by session before it looks at priorities. Its stdin closes when this process ends.
        builder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
    except (OSError, RuntimeError):
        return  # no process to be had, or this one is about to end
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
    """Wait for the process that we work for to end; then end our JVM and ourselves at once."""
    sys.stdin.buffer.read()
    for unfinished in archive.folder.glob(f"{archive.key}.{os.getpid()}.tmp"):
        unfinished.unlink(missing_ok=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)


@contextlib.contextmanager
def _only_builder(archive: Archive) -> Iterator[None]:
    with (archive.folder / f"{archive.key}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ArchiveNotMade("Another process is making the start-up archive.") from error
        yield


def _make_base(archive: Archive, java: Java) -> Path | None:
    """An archive of Java's own classes, for a Java that has none; ours is built on top of it."""
    home = java.executable.resolve().parent.parent
    if (home / "lib" / "server" / "classes.jsa").exists():
        return None
    temporary = archive.folder / f"{archive.key}-base.{os.getpid()}.tmp"
    answer = subprocess.run(
        [str(java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={temporary}"],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    if answer.returncode != 0 or not temporary.exists():
        raise ArchiveNotMade(f"Java could not archive its own classes: {answer.stderr.strip()[-500:]}")
    _publish(temporary, archive.base)
    return archive.base


def _train(target: Path, base: Path | None, java: Java, cache: Path) -> None:
    """Run Spark for a moment in a JVM that writes the classes it has loaded to ``target`` when it ends."""
    machine = Machine.this()
    flags = ["-XX:TieredStopAtLevel=1", f"-XX:ArchiveClassesAtExit={target}"]
    overrides = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": " ".join(f'"{flag}"' for flag in flags),
    }
    settings = session_settings(machine, Profile.FULL, overrides, archive=base)
    home = spark_java_home(java, cache)
    environment = launch_environment(machine, settings, os.environ, launch.spark_home(), home)
    with _said_aside() as said:
        spark = launch.start(settings, environment)
        _use_what_sessions_use(spark)
        spark.stop()
        code = launch.end_jvm(_PATIENCE)
        if code != 0 or not target.exists():
            raise ArchiveNotMade(f"Java ended with {code} and wrote no start-up archive. {_end_of(said)}".rstrip())


@contextlib.contextmanager
def _said_aside() -> Iterator[IO[bytes]]:
    """A file for what Spark's processes write to standard error: workers that are ended by its end complain there."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said:
        own = os.dup(2)
        try:
            os.dup2(said.fileno(), 2)
            yield said
        finally:
            sys.stderr.flush()
            os.dup2(own, 2)
            os.close(own)


def _end_of(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read().decode(errors="replace").strip()[-500:]


def _use_what_sessions_use(spark: SparkSession) -> None:
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
    with temporary.open("rb") as whole:
        os.fsync(whole.fileno())
    temporary.replace(final)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the archive and say where it is."""
    parser = argparse.ArgumentParser(prog="python -m floodmark.engine.cds", description=__doc__)
    parser.add_argument("--beside", action="store_true", help="work at the lowest priority and end when stdin closes")
    options = parser.parse_args(arguments)
    java = find_java()
    cache = user_cache()
    archive = Archive.of(java, launch.spark_home(), cache)
    if options.beside:
        os.nice(19)
        threading.Thread(target=_end_with_stdin, args=[archive], daemon=True).start()
    elif (whole := archive.ready()) is not None:
        print(f"start-up archive is there: {whole}")
        return 0
    try:
        path = build(archive, java, cache)
    except (ArchiveNotMade, OSError) as error:
        print(f"no start-up archive (Spark sessions work without it): {error}", file=sys.stderr)
        return 1
    print(f"start-up archive made: {path} ({path.stat().st_size >> 20} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
