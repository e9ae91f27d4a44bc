"""Builds the documentation into ./site: the guide, the examples and the reference that is made from the code.

Sphinx is given a folder of its own, build/docs, so that what is generated never lies among what is written. A link
that leads nowhere, a page that is in no menu and any warning end it with an error.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import api_reference
import cli_reference

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
_LINK = re.compile(r"(\]\(|<img[^>]* src=\")(?!https?:|mailto:|#)([^)#\s\"]+)")


@dataclass(frozen=True)
class Section:
    """A part of the menu: its title, and its pages in order; a star stands for all that there are."""

    title: str
    pages: tuple[str, ...]


MENU = (
    Section("Begin", ("start", "examples/index", "coming-from/index")),
    Section(
        "The ideas",
        ("ledger", "keyed", "transforms", "columns", "views", "timeline", "pipelines", "provenance"),
    ),
    Section("Use it", ("spark", "operations", "benchmarks", "reference/index")),
    Section("Look inside", ("format", "names", "design/index", "contributing", "changelog")),
)
FOLDERS = ("examples", "coming-from", "reference", "design")


def sources() -> dict[Path, Path]:
    """Every page that somebody wrote, and where it is in the site."""
    found = {page: page.relative_to(DOCS) for page in sorted(DOCS.rglob("*.md"))}
    found |= {page: Path("examples", f"{page.parent.name}.md") for page in sorted(ROOT.glob("examples/*/README.md"))}
    return found | {ROOT / "CONTRIBUTING.md": Path("contributing.md"), ROOT / "CHANGELOG.md": Path("changelog.md")}


class Stage:
    """The folder that Sphinx reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = sources()

    def fill(self) -> None:
        """Put everything there, from nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for page, place in self.sources.items():
            self._put(place, self._with_links(page))
        for file in (DOCS / "conf.py", DOCS / "site.css"):
            self._copy(file, file.relative_to(DOCS))
        for part in api_reference.PAGES:
            self._put(Path("reference", f"{part.slug}.md"), api_reference.write_page(part))
        self._put(Path("reference/cli.md"), cli_reference.write_page())
        self._put(Path("reference/index.md"), _REFERENCE)
        self._put(Path("examples/index.md"), _EXAMPLES)
        self._put(Path("design/index.md"), _DESIGN)
        for folder in FOLDERS:
            self._add(Path(folder, "index.md"), _menu(Section("", tuple(self._within(folder)))))
        for section in MENU:
            self._add(Path("index.md"), _menu(section))

    def place_of(self, page: Path, link: str) -> Path:
        """Where the target of a link is in the site; a file that is no page is taken along."""
        target = (page.parent / link).resolve()
        if target.is_dir():
            target /= "README.md"
        if target in self.sources:
            return self.sources[target]
        if not target.is_file():
            raise SystemExit(f"{page.relative_to(ROOT)}: the link {link!r} leads nowhere")
        inside = target.is_relative_to(DOCS)  # such as a picture
        place = target.relative_to(DOCS) if inside else Path("files", target.relative_to(ROOT))
        self._copy(target, place)
        return place

    def _within(self, folder: str) -> Iterator[str]:
        """The pages of a folder; those of the reference in the order of the guide, the command line last."""
        if folder == "reference":
            yield from (page.slug for page in api_reference.PAGES)
            yield "cli"
        else:
            yield from sorted(page.stem for page in (self.folder / folder).glob("*.md") if page.stem != "index")

    def _put(self, place: Path, text: str) -> None:
        file = self.folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")

    def _add(self, place: Path, text: str) -> None:
        self._put(place, f"{(self.folder / place).read_text('utf-8')}\n{text}")

    def _copy(self, file: Path, place: Path) -> None:
        (self.folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, self.folder / place)

    def _with_links(self, page: Path) -> str:
        """A page whose links lead to the same things from where it is in the site."""

        def moved(match: re.Match[str]) -> str:
            return match[1] + os.path.relpath(self.place_of(page, match[2]), self.sources[page].parent)

        return _LINK.sub(moved, page.read_text("utf-8"))


def _menu(section: Section) -> str:
    caption = f":caption: {section.title}\n" if section.title else ""
    lines = "\n".join(section.pages)
    return f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n{caption}\n{lines}\n```\n"


_REFERENCE = """# Reference

Made from the code of this version: what is not here is not public.

| | |
|---|---|
""" + "".join(
    f"| [{title}]({slug}.md) | {first} |\n"
    for title, slug, first in [
        *((page.title, page.slug, ", ".join(f"`{name}`" for name in page.names)) for page in api_reference.PAGES),
        ("Command line", "cli", "all verbs of `floodmark`, with their options"),
    ]
)
_EXAMPLES = """# Examples

Programs and pipelines to run and to change. Each is a folder in `examples/`; its page is its README.
"""
_DESIGN = """# Design notes

Decisions that took thought: the problem, what was decided, what was measured, and what it costs. Each has its date.
They are written for whoever changes Floodmark.
"""


def make(stage: Path, site: Path) -> int:
    """Have Sphinx make the site of what lies ready; its exit code."""
    options = ["-b", "html", "-q", "--fail-on-warning", "--keep-going", "-d", str(stage.with_name("doctrees"))]
    return subprocess.run([sys.executable, "-m", "sphinx", *options, str(stage), str(site)], check=False).returncode


def main() -> int:
    """Build it, and say where it is."""
    parser = argparse.ArgumentParser(description="Builds the documentation.")
    parser.add_argument("--stage", type=Path, default=ROOT / "build" / "docs", help="what Sphinx is given")
    parser.add_argument("--site", type=Path, default=ROOT / "site", help="where the pages go")
    arguments = parser.parse_args()
    Stage(arguments.stage).fill()
    shutil.rmtree(arguments.site, ignore_errors=True)
    code = make(arguments.stage, arguments.site)
    if code == 0:
        print(f"The site is there: {arguments.site / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
