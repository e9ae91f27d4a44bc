"""Build the documentation into ./site: the guide, the examples, and the reference generated from the code.

Sphinx reads a staging folder, build/docs, so generated pages are never mixed with written ones. A broken link, a page
in no menu, and any warning are errors.
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
    """A part of the menu: its title, and its pages in order."""

    title: str
    pages: tuple[str, ...]


MENU = (
    Section("Begin", ("start", "examples/index", "coming-from/index")),
    Section(
        "The ideas",
        ("ledger", "keyed", "transforms", "columns", "views", "timeline", "pipelines", "provenance"),
    ),
    Section("Use it", ("never-silent", "threats", "spark", "operations", "benchmarks", "reference/index")),
    Section("Look inside", ("format", "names", "origins", "design/index", "contributing", "changelog")),
)
FOLDERS = ("examples", "coming-from", "reference", "design")


def sources() -> dict[Path, Path]:
    """The written (not generated) pages, and their paths in the site."""
    pages = {page: page.relative_to(DOCS) for page in sorted(DOCS.rglob("*.md"))}
    pages |= {page: Path("examples", f"{page.parent.name}.md") for page in sorted(ROOT.glob("examples/*/README.md"))}
    return pages | {ROOT / "CONTRIBUTING.md": Path("contributing.md"), ROOT / "CHANGELOG.md": Path("changelog.md")}


class Stage:
    """The folder that Sphinx reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = sources()

    def fill(self) -> None:
        """Create the folder with all pages. An old one is deleted first."""
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
        """The path of a link's target in the site. A file that is not a page is copied to the stage."""
        target = (page.parent / link).resolve()
        if target.is_dir():
            target /= "README.md"
        if target in self.sources:
            return self.sources[target]
        if not target.is_file():
            raise SystemExit(f"{page.relative_to(ROOT)}: the link {link!r} has no target")
        inside = target.is_relative_to(DOCS)  # such as a picture
        place = target.relative_to(DOCS) if inside else Path("files", target.relative_to(ROOT))
        self._copy(target, place)
        return place

    def _within(self, folder: str) -> Iterator[str]:
        """The pages of a folder. The reference has a fixed order, with the command line last; others are sorted."""
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
        """The text of a page with its links changed to paths in the site."""

        def moved(match: re.Match[str]) -> str:
            return match[1] + os.path.relpath(self.place_of(page, match[2]), self.sources[page].parent)

        return _LINK.sub(moved, page.read_text("utf-8"))


def _menu(section: Section) -> str:
    caption = f":caption: {section.title}\n" if section.title else ""
    lines = "\n".join(section.pages)
    return f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n{caption}\n{lines}\n```\n"


_REFERENCE = """# Reference

Generated from the code of this version. Names that are not listed here are not public.

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

Programs and pipelines that you can run and change. Each is a folder in `examples/`; its page is its README.
"""
_DESIGN = """# Design notes

Important decisions, with dates: the problem, the decision, the measurements, and the costs. They are for developers of
Floodmark.
"""


def make(stage: Path, site: Path) -> int:
    """Run Sphinx on the stage; returns its exit code."""
    options = ["-b", "html", "-q", "--fail-on-warning", "--keep-going", "-d", str(stage.with_name("doctrees"))]
    return subprocess.run([sys.executable, "-m", "sphinx", *options, str(stage), str(site)], check=False).returncode


def main() -> int:
    """Build the site and print its path."""
    parser = argparse.ArgumentParser(description="Build the documentation.")
    parser.add_argument("--stage", type=Path, default=ROOT / "build" / "docs", help="folder that Sphinx reads")
    parser.add_argument("--site", type=Path, default=ROOT / "site", help="folder of the finished pages")
    arguments = parser.parse_args()
    Stage(arguments.stage).fill()
    shutil.rmtree(arguments.site, ignore_errors=True)
    code = make(arguments.stage, arguments.site)
    if code == 0:
        print(f"Built {arguments.site / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
