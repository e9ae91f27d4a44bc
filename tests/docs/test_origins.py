"""The page "Where each idea comes from" names pages, sections and tests that exist, and every seed."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from docs.pages import ROOT

PAGE = ROOT / "docs" / "origins.md"
ROW = re.compile(r"\| (?P<behaviour>[^|]+) \| (?P<seed>00\d) \| \[[^]]+\]\((?P<link>[^)]+)\) \| `(?P<test>[^`]+)` \|")
NEXT_STEPS = (
    *("Failed records", "`now` in the past", "provenance", "Corrections", "Retractions", "Purging", "Decay"),
    *("Skip lists", "added again", "Row group splitting", "Untouched row groups", "Compaction", "order in metadata"),
)


def rows() -> list[dict[str, str]]:
    return [row.groupdict() for row in map(ROW.fullmatch, PAGE.read_text("utf-8").splitlines()) if row is not None]


@cache
def names_in(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)}


@cache
def sections_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as Markdown sites form them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["behaviour"])
def test_page_and_test_of_a_behaviour_exist(row: dict[str, str]):
    page, _, section = row["link"].partition("#")
    assert (PAGE.parent / page).is_file()
    assert not section or section in sections_of(PAGE.parent / page)
    file, _, name = row["test"].partition("::")
    assert name in names_in(ROOT / "tests" / file)


def test_every_seed_has_behaviours_and_every_line_of_the_tables_is_checked():
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if "::" in line]
    assert len(lines) == len(rows()) > 40
    assert {row["seed"] for row in rows()} == {"000", "001", "002", "003", "004"}


@pytest.mark.parametrize("step", NEXT_STEPS)
def test_next_steps_of_the_seeds_are_listed(step: str):
    after = PAGE.read_text("utf-8").partition("## Next steps")[2]
    assert step in after
