"""Runs the code blocks of a Markdown page: Python in one namespace, SQL, and commands whose output must be as shown.

A Python block that begins with the name of a file, `# vision.py`, is that file; what comes after it can import it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from floodmark import Lake
from floodmark.cli.app import floodmark
from waiting import PATIENCE

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
    """Run a page's Python, console and SQL blocks in their order, in the present folder; SQL asks `./lake`."""
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
        elif block.language == "sql":
            Lake("lake").sql(block.text)


def run_page_without_a_jvm(page: Path) -> None:
    """Run a page in a process of its own, in the present folder, and see that it starts no JVM."""
    program = f"""
import sys
from pathlib import Path
from docs.pages import run_page
run_page(Path({str(page)!r}))
pyspark = sys.modules.get("pyspark")
assert pyspark is None or pyspark.SparkContext._gateway is None, "a JVM was started"
"""
    folders = [str(Path.cwd()), str(ROOT / "tests"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]


def run_commands(block: Block, page: Path) -> None:
    """Run the `$ floodmark …` and `$ cd …` lines of a block; `…` in the output shown stands for anything."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        program, *arguments = shlex.split(command, comments=True)
        if program == "cd":
            os.chdir(*arguments)
            continue
        assert program == "floodmark", f"{page.name}:{block.line}: only floodmark and cd can be run here"
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
