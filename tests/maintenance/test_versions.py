"""Packages that are missing or of the wrong version are bad, and the remedy is a command."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError

import pytest

from docs.pages import ROOT
from floodmark.maintenance.checks import NEEDED, PYTHON, check_packages, check_python, version_numbers


def test_the_versions_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = dict(re.fullmatch(r"([a-z]+)(.*)", text).groups() for text in project["dependencies"])
    wanted = {name: f">={oldest}" + (f",<{before}" if before else "") for name, (oldest, before) in NEEDED.items()}
    assert wanted == {name: declared[name] for name in NEEDED}
    assert project["requires-python"] == ">=" + ".".join(map(str, PYTHON))


def test_those_of_this_machine_fit():
    assert {finding.state for finding in check_packages()} == {"ok"}
    assert check_python().state == "ok"


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.2", "ok"), ("2.2.0", "ok"), ("2.10.1", "ok"), ("2.1.9", "bad"), ("3", "bad"), ("3.0.0rc1", "bad")],
)
def test_pandas_is_taken_between_two_versions(version: str, state: str):
    (finding,) = [one for one in check_packages({**NEEDED_OK, "pandas": version}.__getitem__) if one.what == "pandas"]
    assert finding.state == state
    assert finding.remedy == ("" if state == "ok" else "pip install 'pandas>=2.2,<3'")


NEEDED_OK = {name: oldest for name, (oldest, _) in NEEDED.items()}


def test_a_package_that_is_missing_is_said():
    def installed(name: str) -> str:
        if name == "pyarrow":
            raise PackageNotFoundError(name)
        return NEEDED_OK[name]

    assert [(one.what, one.detail) for one in check_packages(installed) if one.state == "bad"] == [
        ("pyarrow", "is not installed")
    ]


def test_an_old_python_is_bad():
    assert check_python((3, 10, 4)).state == "bad"
    assert check_python((3, 11, 0)).state == "ok"


def test_zeros_at_the_end_of_a_version_say_nothing():
    assert version_numbers("2.0.0") == version_numbers("2") < version_numbers("2.0.1") < version_numbers("10")
