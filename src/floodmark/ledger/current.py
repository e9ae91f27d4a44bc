"""Current rows: all records up to an offset without the dead, read from folded files where there are any."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from floodmark.ledger.fold_choice import usable
from floodmark.ledger.fold_manifest import FoldManifest, read_manifest
from floodmark.ledger.selection import Selection, select
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64


def current(snapshot: Snapshot, start: int, end: int, dead: I64) -> Selection:
    """What is left of the records with offsets in [start, end) without those that are dead as of `end`."""
    if len(dead) == 0 and snapshot.slices.num_rows < 2:
        return select(snapshot, start, end)  # nothing to gain, so nobody looks for folded files
    return without_lifeless(living(snapshot, start, end, dead, read_manifest(snapshot.objects)))


def living(snapshot: Snapshot, start: int, end: int, dead: I64, manifest: FoldManifest) -> Selection:
    """The same, with files that hold nothing but dead records."""
    folded = [f.in_store(snapshot.objects) for f in usable(manifest, snapshot, start, end)]
    low, high = np.searchsorted(dead, [start, end])
    chosen = replace(select(snapshot, start, end, folded), dead=dead[low:high])
    return replace(chosen, unfolded=partial(_unfolded, snapshot, chosen)) if folded else chosen


def _unfolded(snapshot: Snapshot, chosen: Selection) -> Selection:
    """The same records from slices alone."""
    return without_lifeless(replace(select(snapshot, chosen.start, chosen.end), dead=chosen.dead))


def without_lifeless(selection: Selection) -> Selection:
    """The same selection without the files that hold no living record."""
    dead = selection.dead_rows.tolist()
    return replace(selection, files=tuple(f for f, d in zip(selection.files, dead, strict=True) if d < f.rows))
