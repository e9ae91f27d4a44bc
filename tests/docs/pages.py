"""Runs the code blocks of a Markdown page: Python in one namespace, and commands whose output must be as shown.

A Python block that begins with the name of a file, `# vision.py`, is that file; what comes after it can import it.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from floodmark.cli.app import floodmark

ROOT = Path(__file__).parent.parent.parent
_FILE = re.compile(r"# (?P<module>\w+)\.py\n")
_FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the line it starts at."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [Block(m["language"], m["text"], text.count("\n", 0, m.start()) + 1) for m in _FENCE.finditer(text)]


def run_page(page: Path) -> None:
    """Run a page's Python and console blocks in their order, in the present folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python" and (file := _FILE.match(block.text)):
            Path(f"{file['module']}.py").write_text(block.text, "utf-8")
            sys.modules.pop(file["module"], None)  # another page may have had a module of this name
        elif block.language == "python":
            # Empty lines first, so that an error's line number is that of the page. In a file, since a function's
            # version is told from its source.
            source = Path(f"{page.name}-{block.line}.py").absolute()
            source.write_text("\n" * block.line + block.text, "utf-8")
            exec(compile(source.read_text("utf-8"), str(source), "exec"), names)  # noqa: S102
        elif block.language == "console":
            run_commands(block, page)


def run_commands(block: Block, page: Path) -> None:
    """Run the `$ floodmark …` lines of a block; `…` in the output shown stands for anything."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        program, *arguments = shlex.split(command, comments=True)
        assert program == "floodmark", f"{page.name}:{block.line}: only floodmark commands can be run here"
        result = CliRunner().invoke(floodmark, arguments)
        assert result.exit_code == 0, f"{page.name}:{block.line}: `{command}` failed: {result.output}"
        assert fits(shown, result.stdout), f"{page.name}: `{command}` printed\n{result.stdout}\nnot\n{shown}"


def fits(shown: str, printed: str) -> bool:
    """Whether an output is what a page shows; spaces at the ends of lines do not count."""
    wanted, got = shown.rstrip().splitlines(), printed.rstrip().splitlines()
    return len(wanted) == len(got) and all(
        re.fullmatch(".*".join(map(re.escape, want.rstrip().split("…"))), line.rstrip())
        for want, line in zip(wanted, got, strict=True)
    )
