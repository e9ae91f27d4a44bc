"""Where the demo plays: shows each command before it runs it, times it, and stops when something is off."""

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
    """Something did not turn out as the demo says it does."""


@dataclass(frozen=True)
class Shown:
    """What a command answered, its notes and errors included, and how long it took."""

    answer: str
    said: str
    seconds: float


@dataclass(frozen=True)
class Stage:
    """A folder to run commands in, and the lake they work on."""

    folder: Path
    lake: str

    def title(self, number: int, of: int, text: str) -> None:
        print(f"\n{f'── {number}/{of} {text} ':─<{WIDTH}}")

    def tell(self, text: str) -> None:
        print(fill(" ".join(text.split()), WIDTH))

    def run(self, command: str, *, expect: int = 0) -> Shown:
        """Show a command, run it, show what it says; any other exit code than the expected one ends the demo."""
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
        """Run a command to its end: its exit code, its output and its errors."""
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
        """Say something about what was just seen, if it is so."""
        if not holds:
            raise Off(f"this should hold and does not: {claim}")
        print(f"✓ {fill(claim, WIDTH - 2, subsequent_indent='  ')}")

    def _environment(self) -> dict[str, str]:
        """The caller's, with the tools of this interpreter's environment first and the lake named once for all."""
        tools = str(Path(sys.executable).parent)
        return os.environ | {"FLOODMARK_LAKE": self.lake, "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"}
