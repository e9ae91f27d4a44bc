"""Java and Spark: whether they are found, and whether a small session starts and computes something in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from floodmark.doctor.finding import Finding
from floodmark.engine.errors import JavaNotFound
from floodmark.engine.java import OLDEST, Java, find_java

SECONDS = 120.0
"""A session that is not ready by then is taken for one that never will be."""

_PROGRAM = """
import json, sys
from floodmark.engine import ArchiveUse, Profile, Session
with Session(settings=json.loads(sys.argv[1]), profile=Profile.SHORT, archive=ArchiveUse.USE) as session:
    spark = session.get()
    assert spark.range(7).count() == 7
    print("VERSION", spark.version)
"""
_LINES = 3


def check_java(find: Callable[[], Java] = find_java, environ: Mapping[str, str] = os.environ) -> Finding:
    """The Java that Spark would be started with."""
    try:
        java = find()
    except JavaNotFound as error:
        return Finding("java", "bad", error.message, error.hint)
    detail = f"{java.version} from {java.source} ({java.executable})"
    home = environ.get("JAVA_HOME")
    if home and java.source != "JAVA_HOME":
        detail += f"; JAVA_HOME={home} is passed over: there is no Java {OLDEST} or newer in it"
        return Finding("java", "warn", detail, "set JAVA_HOME to that of the Java that is used, or unset it")
    return Finding("java", "ok", detail)


def check_session(
    settings: Mapping[str, str], seconds: float = SECONDS, command: Sequence[str] | None = None
) -> Finding:
    """Start a session with these settings in a process of its own, and count seven rows with it."""
    remedy = "see what Spark says with `python -c 'import floodmark.engine as e; e.Session().get()'`, or --no-spark"
    started = time.monotonic()
    arguments = command or [sys.executable, "-c", _PROGRAM, json.dumps(dict(settings))]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return Finding("spark session", "bad", f"does not start within {seconds:,.0f} seconds", remedy)
        except BaseException:
            _end(process)
            raise
    took = time.monotonic() - started
    versions = [line.split()[1] for line in out.splitlines() if line.startswith("VERSION ")]
    if process.returncode != 0 or not versions:
        said = " | ".join(err.strip().splitlines()[-_LINES:]) or f"exit code {process.returncode}"
        return Finding("spark session", "bad", f"does not start: {said}", remedy)
    return Finding("spark session", "ok", f"Spark {versions[0]} started and counted in {took:.1f} s")


def _end(process: subprocess.Popen[str]) -> None:
    """End what was started and has not been waited for, its Java too: they are a group of their own."""
    os.killpg(process.pid, signal.SIGKILL)
