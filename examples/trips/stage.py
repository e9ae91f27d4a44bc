"""Runs the commands of the demo: prints and times each, and stops if a check fails."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill, indent

WIDTH = 100


class Off(Exception):
    """A command or a check of the demo failed."""


@dataclass(frozen=True)
class Shown:
    """The stdout of a command, its stdout with stderr, and its duration."""

    answer: str
    said: str
    seconds: float


@dataclass(frozen=True)
class Stage:
    """The folder in which commands run, and their lake."""

    folder: Path
    lake: str

    def title(self, number: int, of: int, text: str) -> None:
        print(f"\n{f'── {number}/{of} {text} ':─<{WIDTH}}")

    def tell(self, text: str) -> None:
        print(fill(" ".join(text.split()), WIDTH))

    def run(self, command: str, *, expect: int = 0) -> Shown:
        """Print a command, run it, and print its output. An unexpected exit code ends the demo."""
        print(f"\n$ {command}", flush=True)
        start = time.perf_counter()
        code, answer, errors = self.execute(command)
        seconds = time.perf_counter() - start
        said = answer + errors
        print(indent(said.rstrip(), "  "))
        took = f"[{seconds:.1f} s]" if code == 0 else f"[{seconds:.1f} s, exit code {code}]"
        print(f"{took:>{WIDTH}}")
        if code != expect:
            raise Off(f"`{command}` ended with exit code {code}, not {expect}")
        return Shown(answer, said, seconds)

    def execute(self, command: str) -> tuple[int, str, str]:
        """Run a command to its end; returns its exit code, stdout and stderr."""
        done = subprocess.run(
            shlex.split(command),
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def check(self, claim: str, holds: bool) -> None:
        """Print a claim if it holds, else end the demo."""
        if not holds:
            raise Off(f"this should hold and does not: {claim}")
        print(f"✓ {fill(claim, WIDTH - 2, subsequent_indent='  ')}")

    def _environment(self) -> dict[str, str]:
        """The caller's environment, with this interpreter's tools first on PATH, and the lake."""
        tools = str(Path(sys.executable).parent)
        return os.environ | {"FLOODMARK_LAKE": self.lake, "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"}
