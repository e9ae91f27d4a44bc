"""The pictures of the guide are what tools/pictures.py draws, each is shown, and nothing leaves its sheet."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

import pictures
from docs.pages import ROOT
from drawing import WIDTH

FOLDER = ROOT / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"


def test_all_pictures_are_drawn_by_the_program():
    assert {file.stem for file in FOLDER.glob("*.svg")} >= set(pictures.PICTURES)
    unknown = {file.stem for file in FOLDER.glob("*.svg")} - set(pictures.PICTURES)
    assert {name for name in unknown if not name.startswith("bench")} == set()


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_picture_is_what_the_program_draws(name: str):
    drawn = pictures.PICTURES[name]().svg()
    assert (FOLDER / f"{name}.svg").read_text("utf-8") == drawn, "run: .venv/bin/python tools/pictures.py"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_picture_is_shown_on_a_page_with_words_for_those_who_do_not_see_it(name: str):
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    alts = [words for page in pages for words in re.findall(rf"!\[(.*?)\]\(\S*{name}\.svg\)", page.read_text("utf-8"))]
    assert alts
    assert min(map(len, alts)) > 30


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_nothing_leaves_the_sheet(name: str):
    root = ElementTree.fromstring(pictures.PICTURES[name]().svg())
    height = float(root.attrib["height"])
    for rect in root.iter(f"{SVG}rect"):
        x, y, wide, high = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + wide <= WIDTH
        assert y + high <= height
    for text in root.iter(f"{SVG}text"):
        # A little more than DejaVu Sans takes, the widest of the fonts that are named: no machine clips the words.
        wide = len(text.text or "") * 7.1
        x, at = float(text.attrib["x"]), text.attrib["text-anchor"]
        start = {"start": x, "middle": x - wide / 2, "end": x - wide}[at]
        assert start >= 0, text.text
        assert start + wide <= WIDTH - 4, text.text
        assert 12 < float(text.attrib["y"]) < height - 6


def test_every_colour_has_one_for_dark_pages():
    style = pictures.PICTURES["overview"]().svg().partition("<style>")[2].partition("</style>")[0]
    light, _, dark = style.partition("@media (prefers-color-scheme:dark)")
    names = set(re.findall(r"\.([\w-]+)\{[^}]*(?:fill|stroke):#", light))
    assert len(names) > 10
    assert names == set(re.findall(r"\.([\w-]+)\{[^}]*(?:fill|stroke):#", dark))
