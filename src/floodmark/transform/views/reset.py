"""Resetting a view: its next refresh derives everything, whatever has moved; readers keep what there is until then."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from floodmark.compute.stored.objects import ColumnObjects
from floodmark.ledger.errors import CommitConflict
from floodmark.ledger.merge.derive import Moves, Results, derive
from floodmark.transform.lakes import LakeLike
from floodmark.transform.turns import turn
from floodmark.transform.views.note import RESET
from floodmark.transform.views.pinned import pin_view

_TRIES = 20


def reset(lake: LakeLike, name: str) -> None:
    """Forget what a view was made of, and the values of its functions."""
    problem: CommitConflict
    with turn(pin_view(lake, name).snapshot.objects, f"another refresh of {name}", lake.runtime.progress()):
        for _ in range(_TRIES):
            pinned = pin_view(lake, name)
            values = ColumnObjects(pinned.snapshot.objects).checkpoints
            # First: whoever is killed here has lost some work, and who finds the note has to find no values.
            for key in values.list_keys():
                values.delete(key)
            if pinned.note is None or pinned.note.version == RESET:
                return
            note = replace(pinned.note, version=RESET)
            moved = Moves(checkpoint=note.checkpoint, put=partial(note.put, pinned.snapshot.objects))
            progress = lake.runtime.progress()
            try:
                derive(name, lake.runtime, pinned.snapshot, Results((), ()), moved, progress, {})
                return
            except CommitConflict as error:
                problem = error
            finally:
                progress.finish()
    raise problem
