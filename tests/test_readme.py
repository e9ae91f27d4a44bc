"""The README tells the truth: its example runs, its commands are there, and it is short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.pages import ROOT, run_page
from floodmark.cli.app import floodmark

README = ROOT / "README.md"


@pytest.mark.spark
def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark, capsys):
    monkeypatch.chdir(tmp_path)
    run_page(README)
    assert "Bern" in capsys.readouterr().out


def test_it_is_one_screen_with_one_picture():
    lines = README.read_text("utf-8").splitlines()
    assert len(lines) <= 45
    (picture,) = re.findall(r"!\[.+?\]\((\S+)\)", README.read_text("utf-8"))
    assert (ROOT / picture).is_file()


def test_the_make_targets_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    benchmarks = [f"bench-{path.stem}" for path in (ROOT / "bench").glob("*.py")]
    named = re.findall(r"\bmake ([a-z_-]+)", README.read_text() + (ROOT / "CONTRIBUTING.md").read_text())
    assert {"demo", "test"} <= set(named) <= {*targets, *benchmarks}


def test_the_verbs_named_exist():
    (sentence,) = re.findall(r"of all commands: (.*?)\(", README.read_text(), re.DOTALL)
    named = re.findall(r"`(?:floodmark )?([a-z]+)`", sentence)
    assert len(named) > 3
    assert set(named) <= set(floodmark.commands)


def test_the_map_of_the_code_is_one_screen_and_names_every_package():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = text[text.index("## The map") : text.index("## How data flows")]
    assert len(section.splitlines()) <= 45
    source = ROOT / "src" / "floodmark"
    packages = [f"{package.parent.name}/" for package in source.glob("*/__init__.py")]
    modules = [module.name for module in source.glob("*.py") if module.name != "__init__.py"]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)
    }
    assert named == {*packages, *modules}


def test_the_places_to_start_reading_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = text[text.index("## The map") : text.index("## How data flows")]
    source = ROOT / "src" / "floodmark"
    for package, starts in re.findall(r"^\| `(\w+)/` \|.*\| (.*) \|$", section, re.MULTILINE):
        assert all((source / package / name).is_file() for name in re.findall(r"`(.+?)`", starts)), package
