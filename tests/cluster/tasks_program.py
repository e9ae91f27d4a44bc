"""Run tasks whose workers do not have this file: run by test_cluster.py as a driver of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from floodmark.engine.run import run_on_spark
from floodmark.engine.session import ArchiveUse, Session
from floodmark.engine.spark_launch import Profile
from floodmark.errors import FloodmarkError


class Refused(FloodmarkError):
    number: int


@dataclass(frozen=True)
class Numbered:
    number: int
    meeting: Path


def where(task: Numbered) -> tuple[int, str]:
    """The folder a task runs in, which on a standalone cluster is its worker's; both tasks run at the same time."""
    (task.meeting / str(task.number)).touch()
    while len(list(task.meeting.iterdir())) < 2:
        time.sleep(0.02)
    return task.number, str(Path.cwd())


def refuse(task: Numbered) -> None:
    """Raise an error that only this file defines."""
    raise Refused("refused", number=task.number)


def main(settings: dict[str, str], meeting: Path) -> None:
    """Print what the tasks saw, as JSON."""
    with Session(settings=settings, profile=Profile.SHORT, archive=ArchiveUse.USE) as session:
        seen = run_on_spark([Numbered(n, meeting) for n in range(2)], where, session=session)
        try:
            run_on_spark([Numbered(5, meeting)], refuse, session=session)
        except Refused as error:
            refused = error.number
        print(json.dumps({"seen": seen, "refused": refused, "pid": os.getpid()}))


if __name__ == "__main__":
    # Imported under a name that no worker could import, as a pipeline file is.
    spec = importlib.util.spec_from_file_location("pipeline_of_a_user", __file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pipeline_of_a_user"] = module
    spec.loader.exec_module(module)
    module.main(json.loads(sys.argv[1]), Path(sys.argv[2]))
