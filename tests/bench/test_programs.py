"""Every benchmark belongs to the whole, and every bar to a figure of one."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from summary.bars import BARS, bars_of
from summary.programs import FOLDER, PROGRAMS

BENCH = FOLDER
ROOT = FOLDER.parent


def tree_of(name: str) -> ast.Module:
    return ast.parse((BENCH / f"{name}.py").read_text())


def strings(tree: ast.Module) -> list[re.Pattern[str]]:
    """The texts that a program has, those with holes as patterns."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [re.escape(str(p.value)) if isinstance(p, ast.Constant) else r"[a-z0-9_]+" for p in node.values]
            if any(isinstance(p, ast.Constant) for p in node.values):
                found.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(re.escape(node.value))
    return [re.compile(text) for text in found]


def flags(tree: ast.Module) -> set[str]:
    """The sizes that a program can be told: the names that it gives to `measured`."""
    (call,) = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "measured"]
    return {keyword.arg for keyword in call.keywords if keyword.arg}


def test_every_program_of_the_folder_is_run_once():
    listed = runpy.run_path(str(ROOT / "tools" / "benchmarks.py"))["programs"]()
    names = Counter(program.name for program in PROGRAMS)
    assert set(names) == set(listed) - {"all", "compare"}
    assert set(names.values()) == {1}
    assert "all" in listed


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_sizes_are_flags_of_the_program(program):
    assert program.quick.keys() | program.full.keys() <= flags(tree_of(program.name))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_full_sizes_are_what_the_bars_are_for(program):
    for bar in bars_of(program.name).values():
        assert bar.asks(program.full), bar


def test_every_bar_is_for_a_figure_that_its_program_gives():
    texts = {program.name: strings(tree_of(program.name)) for program in PROGRAMS}
    unknown = [b for b in BARS if not any(text.fullmatch(b.figure) for text in texts[b.bench])]
    assert unknown == []


def test_no_bar_is_there_twice():
    assert max(Counter((bar.bench, bar.figure) for bar in BARS).values()) == 1


def test_every_issue_and_every_program_has_bars():
    assert {bar.issue for bar in BARS} == {2, 3, 4, 5, 6, 7, 8, 19, 21, 22}
    assert {bar.bench for bar in BARS} == {program.name for program in PROGRAMS}


def test_the_programs_hold_no_bars_of_their_own():
    for program in PROGRAMS:
        calls = [n for n in ast.walk(tree_of(program.name)) if isinstance(n, ast.Call)]
        figures = [call for call in calls if getattr(call.func, "id", "") == "Figure"]
        assert figures, program.name
        assert all(len(call.args) <= 4 and not call.keywords for call in figures), program.name


def test_the_help_of_all_starts_nothing(tmp_path: Path):
    asked = [sys.executable, str(BENCH / "all.py"), "--help"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "--full" in found.stdout
    assert list(tmp_path.iterdir()) == []
