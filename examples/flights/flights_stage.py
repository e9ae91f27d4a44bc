"""Runs the commands of the demo: prints and times each, and stops if a check fails."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill

from rich.console import Console
from rich.text import Text

WIDTH = 100
_PATIENCE = 300.0


class Off(Exception):
    """A command or a check of the demo failed."""


@dataclass(frozen=True)
class Shown:
    """The stdout of a command, and its duration."""

    answer: str
    seconds: float

    def number(self, pattern: str) -> int:
        """The number that a pattern such as `(…) keys processed` finds in the output; 0 if it finds none."""
        found = re.search(pattern, self.answer)
        return int(found[1].replace(",", "")) if found else 0


@dataclass(frozen=True)
class Stage:
    """The folder in which commands run, and the console that shows them."""

    folder: Path
    console: Console = field(default_factory=lambda: Console(width=WIDTH, highlight=False, soft_wrap=True))

    def title(self, number: int, of: int, text: str) -> None:
        self.console.print()
        self.console.print(Text(f"{f'━━ {number}/{of}  {text} ':━<{WIDTH}}", style="bold cyan"))

    def tell(self, text: str) -> None:
        self.console.print(Text(fill(" ".join(text.split()), WIDTH)))

    def note(self, text: str) -> None:
        """Print an action between commands."""
        self.console.print(Text(fill(f"  … {text}", WIDTH, subsequent_indent="    "), style="dim"))

    def run(
        self, command: str, *, expect: int = 0, lines: int = 14, environment: Mapping[str, str] | None = None
    ) -> Shown:
        """Print a command, run it, and print its output. An unexpected exit code ends the demo."""
        self._prompt(command)
        start = time.perf_counter()
        code, answer, said = self.execute(command, environment or {})
        seconds = time.perf_counter() - start
        note = said.strip().rpartition("\n")[2]  # the note of a command without an answer
        self._answer((answer or note) if code == 0 else answer + said, lines)
        ending = "" if code == 0 else f", exit code {code}"
        self.console.print(Text(f"{f'{seconds:.1f} s{ending}':>{WIDTH}}", style="dim"))
        if code != expect:
            raise Off(f"`{command}` ended with exit code {code}, not {expect}:\n{said.strip()}")
        return Shown(answer, seconds)

    def execute(self, command: str, environment: Mapping[str, str]) -> tuple[int, str, str]:
        """Run a command to its end; returns its exit code, stdout and stderr."""
        with self.started(command, environment) as process:
            answer, said = self._followed(process)
        return process.returncode, answer, said

    def killed(self, command: str, enough: Callable[[], bool]) -> float:
        """Start a command, and kill its process group when `enough` is true; returns the seconds until then."""
        self._prompt(command)
        start = time.perf_counter()
        with self.started(command, {}) as process:
            # On many cores the command would end before the kill.
            os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
            while not enough():
                if process.poll() is not None or time.perf_counter() - start > _PATIENCE:
                    raise Off(f"`{command}` should be killed halfway, but ended before that")
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGKILL)
        seconds = time.perf_counter() - start
        self.console.print(Text(f"  Killed ({process.wait()}) after {seconds:.1f} s", style="bold red"))
        return seconds

    def check(self, claim: str, holds: bool) -> None:
        """Print a claim if it holds, else end the demo."""
        if not holds:
            raise Off(f"this should hold and does not: {claim}")
        self.console.print(Text(f"✓ {fill(claim, WIDTH - 2, subsequent_indent='  ')}", style="green"))

    def end(self, text: str, places: Mapping[str, str]) -> None:
        """Print the summary, and where to continue."""
        self.console.print()
        self.console.print(Text(text, style="bold green"))
        for what, where in places.items():
            self.console.print(Text(f"  {what:<28}").append(where, style="bold"))

    @contextlib.contextmanager
    def started(self, command: str, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
        """Run a command in a new process group, which is killed at the end, also after Ctrl-C."""
        process = subprocess.Popen(
            shlex.split(command),
            cwd=self.folder,
            env={**_environment(), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _followed(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        """The stdout and stderr of a command; on a terminal a spinner shows the newest line of stderr."""
        assert process.stdout is not None
        assert process.stderr is not None
        said: list[str] = []
        stderr = process.stderr
        with (
            self.console.status("", spinner="dots") if self.console.is_terminal else contextlib.nullcontext() as status
        ):

            def follow() -> None:
                for line in stderr:
                    said.append(line)
                    if status is not None:
                        status.update(Text(line.strip()[: WIDTH - 4], style="dim"))

            reader = threading.Thread(target=follow, daemon=True)
            reader.start()
            answer = process.stdout.read()
            process.wait()
            reader.join()
        return answer, "".join(said)

    def _prompt(self, command: str) -> None:
        self.console.print(Text(f"$ {command}", style="bold"))

    def _answer(self, text: str, most: int) -> None:
        lines = text.rstrip().splitlines()
        for line in lines[:most]:
            self.console.print(Text(f"  {line}" if len(line) <= WIDTH - 2 else f"  {line[: WIDTH - 3]}…"))
        if len(lines) > most:
            self.console.print(Text(f"  … and {len(lines) - most} more lines", style="dim"))


def _environment() -> dict[str, str]:
    """The caller's environment without FLOODMARK_*, and with this interpreter's tools first on PATH."""
    tools = str(Path(sys.executable).parent)
    known = {name: value for name, value in os.environ.items() if not name.startswith("FLOODMARK_")}
    return known | {"PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}", "COLUMNS": str(WIDTH - 2)}
