"""A backfill that processes run, to be killed."""

from __future__ import annotations

from pathlib import Path

import floodmark as fm
from columns.counting import Calls
from columns.worlds import HUNDREDFOLD, TENFOLD
from faults.mortal import NEVER, MortalFileSystem
from floodmark.storage.local import LocalStore

CHECKPOINT = 2
SIZES = {"checkpoint_size": CHECKPOINT, "min_checkpoint_size": CHECKPOINT, "commit_granularity": 1, "task_size": 4}
PLANS = {"1": TENFOLD, "2": HUNDREDFOLD}


def fill(root: str, calls: Path, version: str, nth: int = NEVER) -> None:
    """Fill the column in a process with workers of its own; it is killed before its nth change of the disk."""
    lake = fm.Lake(LocalStore(root, MortalFileSystem(nth)))
    lake["d"].backfill("a", udf=PLANS[version].udf(Calls(calls)), **SIZES)
