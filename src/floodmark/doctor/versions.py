"""Python and the packages that Floodmark stands on: whether their versions are ones that it works with."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata

from floodmark.doctor.finding import Finding

PYTHON = (3, 11)
NEEDED: Mapping[str, tuple[str, str | None]] = {
    "pyspark": ("4.3", "5"),
    "pyarrow": ("26", None),
    "pandas": ("2.2", "3"),
    "numpy": ("2", None),
    "duckdb": ("2", None),
}
"""From which version on, and before which; pyproject.toml says the same."""


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """The Python that runs this, which also runs what users' functions compute."""
    said = ".".join(map(str, version))
    if version[:2] < PYTHON:
        wanted = ".".join(map(str, PYTHON))
        return Finding("python", "bad", f"{said} is too old", f"use Python {wanted} or newer")
    return Finding("python", "ok", said)


def check_packages(installed: Callable[[str], str] = metadata.version) -> Iterator[Finding]:
    """The packages, as they are installed; none of them is imported for it."""
    for name, (oldest, before) in NEEDED.items():
        wanted = f"{name}>={oldest}" + (f",<{before}" if before else "")
        remedy = f"pip install '{wanted}'"
        try:
            version = installed(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, "bad", "is not installed", remedy)
            continue
        fits = parts(version) >= parts(oldest) and (before is None or parts(version) < parts(before))
        yield Finding(name, "ok", version) if fits else Finding(name, "bad", f"{version} is not {wanted}", remedy)


def parts(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, without zeros at the end: 2.0 is 2."""
    found = [int(part) for part in re.match(r"[0-9.]*", version)[0].split(".") if part]  # type: ignore[index]
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)
