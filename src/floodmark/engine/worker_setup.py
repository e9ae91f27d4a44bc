"""What a worker process gets before its tasks: the function, and the driver's folder, environment and import path."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class WorkerEnvironment:
    """Folder, environment and import path: a worker outlives many runs, and each must find those of its driver."""

    folder: str
    environ: Mapping[str, str]
    path: tuple[str, ...]

    @classmethod
    def of_this_process(cls) -> Self:
        """Those of this process."""
        folder = os.getcwd()  # noqa: PTH109  text, as the import path has it
        # An empty entry means the folder one is in, also after it has changed; a worker must not guess.
        path = tuple(entry or folder for entry in sys.path if isinstance(entry, str))
        return cls(folder, dict(os.environ), path)

    def apply(self, before: WorkerEnvironment | None) -> None:
        """Make them those of this process; what did not change since ``before`` stays as functions left it."""
        if before is None or self.folder != before.folder:
            os.chdir(self.folder)
        if before is None or self.path != before.path:
            sys.path[:] = self.path
        known = os.environ if before is None else before.environ
        for name in known.keys() - self.environ.keys():
            os.environ.pop(name, None)
        for name, value in self.environ.items():
            if known.get(name) != value:
                os.environ[name] = value


@dataclass(frozen=True)
class RunOrders:
    """Goes to a worker before the first task of a run."""

    function: bytes
    surroundings: WorkerEnvironment
