"""A driver in a process of its own, which a test can kill: python driven.py FOLDER KEYS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from transforms.apply_world import Keys, World
from waiting import PATIENCE, wait_until


def world_at(folder: Path) -> World:
    """Calls of ten keys, each of them a checkpoint."""
    return World(folder, seconds=0.02, target_seconds=0.02)


class Driver:
    """The process that runs a world, until it has ended or is killed."""

    def __init__(self, folder: Path, keys: int) -> None:
        paths = [str(Path(__file__).parents[1]), *sys.path]
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(folder), str(keys)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def kill(self) -> None:
        """End the driver as a crash would, and wait until its workers have noticed."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        wait_until(lambda: not _runs_in_session(self._process.pid))


def _runs_in_session(leader: int) -> bool:
    """Whether a process of a session is left that has not ended."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                return True
    return False


def main(folder: str, keys: str) -> None:
    world_at(Path(folder)).compute(Keys(0, int(keys)))


if __name__ == "__main__":
    main(*sys.argv[1:])
