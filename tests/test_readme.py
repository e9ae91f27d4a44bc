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


def test_the_map_of_the_code_is_complete_and_true():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text[text.index("## The map") : text.index("## How data flows")]
    named = re.findall(r"`([a-z0-9_]+\.py)`", table)
    source = ROOT / "src" / "floodmark"
    modules = [path for path in source.rglob("*.py") if path.name not in ("__init__.py", "__main__.py")]
    mapped = [path for path in modules if "cli" not in path.parts]
    assert sorted({path.name for path in mapped} - {"errors.py", "lake.py"} - set(named)) == []
    assert sorted(set(named) - {path.name for path in modules}) == []
    assert [
        package.parent.name for package in source.glob("*/__init__.py") if f"**{package.parent.name}/**" not in table
    ] == []
