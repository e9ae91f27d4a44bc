"""constraints.txt pins everything that gets installed, at the version that is installed."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = {
    canonicalize_name(match[1]): match[2]
    for match in re.finditer(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
}


def needed(requirement: Requirement, found: dict[str, str]) -> dict[str, str]:
    """The installed packages that a requirement leads to, itself included, and their versions."""
    name = canonicalize_name(requirement.name)
    key = f"{name}[{','.join(sorted(requirement.extras))}]"
    if key in found:
        return found
    found[key] = version(name)
    for text in distribution(name).requires or []:
        inner = Requirement(text)
        extras = requirement.extras or {""}
        if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
            needed(inner, found)
    return found


def test_every_line_is_an_exact_pin():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(PINS)


def test_everything_that_is_needed_is_installed_at_its_pin():
    project = PROJECT["project"]
    found: dict[str, str] = {}
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        needed(Requirement(text), found)
    installed = {key.partition("[")[0]: number for key, number in found.items()}
    assert "pyspark" in installed
    assert "py4j" in installed
    assert {name: PINS.get(name) for name in installed} == installed


def test_the_build_backend_is_pinned():
    assert PROJECT["build-system"]["requires"] == [f"hatchling=={PINS['hatchling']}"]
    # What building it in place needs, what it needs itself, and what builds PySpark, which comes as source.
    assert {"editables", "trove-classifiers", "pathspec", "pluggy", "packaging", "setuptools", "wheel"} <= set(PINS)


def test_a_package_that_is_not_there_is_not_overlooked():
    with pytest.raises(PackageNotFoundError):
        needed(Requirement("no-such-package-as-this"), {})
