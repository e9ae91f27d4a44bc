"""Stored results: a file per benchmark, the table as JSON and Markdown, and the pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from summary.picture import svg
from summary.programs import PROGRAMS
from summary.running import Record
from summary.table import document, markdown

BEGIN, END = "<!-- figures: written by bench/all.py -->", "<!-- end of figures -->"


def keep(folder: Path, record: Record) -> None:
    """Store the result of a benchmark; it replaces an older one of the same benchmark."""
    (folder / "results").mkdir(parents=True, exist_ok=True)
    text = json.dumps(record.document(), indent=1, ensure_ascii=False)
    _path(folder, record.bench).write_text(text + "\n", encoding="utf-8")


def kept(folder: Path) -> list[Record]:
    """The latest results in this folder, in the order of the benchmarks."""
    paths = [_path(folder, program.name) for program in PROGRAMS]
    return [Record.of(json.loads(path.read_text(encoding="utf-8"))) for path in paths if path.exists()]


def write_tables(folder: Path, records: Sequence[Record]) -> None:
    """Write the table as benchmarks.json and benchmarks.md, and the pictures next to it."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = draw(folder / "curves", records, "curves")
    text = json.dumps(document(records), indent=1, ensure_ascii=False)
    (folder / "benchmarks.json").write_text(text + "\n", encoding="utf-8")
    (folder / "benchmarks.md").write_text(f"# Benchmarks\n\n{markdown(records, pictures)}", encoding="utf-8")


def write_page(page: Path, records: Sequence[Record]) -> None:
    """Write the table between the two markers of a page, and the pictures into its `pictures` folder."""
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"{page}: add one line {BEGIN} and, after it, one line {END}")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    pictures = draw(page.parent / "pictures", records, "pictures")
    page.write_text(f"{before}{BEGIN}\n\n{markdown(records, pictures)}\n{END}{after}", encoding="utf-8")


def draw(folder: Path, records: Sequence[Record], reached_by: str) -> list[tuple[str, str]]:
    """Draw every curve, and delete old pictures; returns the titles and the paths for links."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("bench-*.svg"):
        old.unlink()
    pictures = []
    for record in records:
        for curve in () if record.measured is None else record.measured.curves:
            name = f"bench-{curve.key}.svg"
            (folder / name).write_text(svg(curve), encoding="utf-8")
            pictures.append((curve.title, f"{reached_by}/{name}"))
    return pictures


def _path(folder: Path, bench: str) -> Path:
    return folder / "results" / f"{bench}.json"
