"""The command line as a user has it: the installed command in a process of its own, on a terminal or in a pipe."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waiting import PATIENCE

COMMAND = str(Path(sys.executable).with_name("floodmark"))
_MARK = "FLOODMARK_TEST_MARK"


@dataclass(frozen=True)
class Said:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(**more: str) -> dict[str, str]:
    """What a shell of a user has: nothing that names a lake, or forces colours."""
    leave_out = ("FLOODMARK_LAKE", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM")
    return {**{name: value for name, value in os.environ.items() if name not in leave_out}, **more}


def in_pipe(folder: Path, *arguments: str, before: Callable[[], None] | None = None) -> Said:
    """`floodmark … | cat`."""
    found = subprocess.run(
        [COMMAND, *arguments],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=before,
        check=False,
    )
    return Said(found.returncode, found.stdout, found.stderr)


@dataclass
class Terminal:
    """A terminal in which one command runs: what is typed, and all that is sent to it."""

    process: subprocess.Popen[bytes]
    mark: str
    _descriptor: int
    received: str = ""
    _bytes: bytearray = field(default_factory=bytearray)

    def type(self, text: str) -> None:
        # At Ctrl-C a terminal throws away what it was sent and nobody has read: a person's has shown it by then.
        while select.select([self._descriptor], [], [], 0.02)[0] and self._read():
            pass
        os.write(self._descriptor, text.encode())

    def until(self, is_there: Callable[[str], Any]) -> None:
        """Read on until what was received so far is enough."""
        end = time.monotonic() + PATIENCE
        while not is_there(self.received):
            assert self._read(), f"the command ended before:\n{self.screen()}"
            assert time.monotonic() < end, f"it does not come:\n{self.screen()}"

    def end(self) -> int:
        """Read on until the command ends; its exit code."""
        end = time.monotonic() + PATIENCE
        while self._read():
            assert time.monotonic() < end, f"it does not end:\n{self.screen()}"
        return self.process.wait(PATIENCE)

    def screen(self) -> list[str]:
        """The lines that a very wide terminal would show now."""
        return screen(self.received)

    def left_over(self) -> list[str]:
        """The processes that the command has started and that still run."""
        return [line for pid, line in _marked(self.mark) if pid != self.process.pid]

    def _read(self) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], 1.0)
        if not ready:
            return True
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # how Linux says that the other side has ended
            return False
        self._bytes += data
        self.received = self._bytes.decode(errors="ignore")
        return bool(data)


@contextlib.contextmanager
def on_terminal(folder: Path, *arguments: str, columns: int = 100) -> Iterator[Terminal]:
    """Run a command as the foreground job of a terminal of its own; what is left of it ends with the block."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [COMMAND, *arguments],
        cwd=folder,
        env=environment(TERM="xterm-256color", **{_MARK: mark}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C goes to it
    )
    os.close(theirs)
    terminal = Terminal(process, mark, ours)
    try:
        yield terminal
    finally:
        os.close(ours)
        process.kill()
        process.wait(PATIENCE)
        for pid, _ in _marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


def screen(received: str) -> list[str]:
    """What is on a terminal that was sent this: the lines, without colours and without blanks at their ends."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for one in re.finditer(r"\x1b\[([0-9;?]*)([A-Za-z])|\r|\n|[^\x1b\r\n]", received):
        text, count, what = one[0], one[1], one[2]
        if text == "\r":
            column = 0
        elif text == "\n":
            row += 1
        elif what == "A":
            row = max(0, row - int(count or 1))
        elif what == "K":
            lines[row] = [] if count == "2" else lines[row][:column]
        elif what is None:
            line = lines[row]
            line += " " * (column + 1 - len(line))
            line[column] = text
            column += 1
        lines += [[] for _ in range(row + 1 - len(lines))]
    shown = ["".join(line).rstrip() for line in lines]
    while shown and not shown[-1]:
        shown.pop()
    return shown


def objects(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything below a folder: names, sizes and times."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def wait_for(path: Path, process: subprocess.Popen[Any] | None = None) -> None:
    """Until a file is there."""
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert process is None or process.poll() is None, "the command has ended"
        assert time.monotonic() < end, f"{path} does not come"
        time.sleep(0.02)


def _marked(mark: str) -> Sequence[tuple[int, str]]:
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append((int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
        except OSError:  # it has ended, or is somebody else's
            continue
    return found
