"""Merging segments of the key index: eight of a size become one, newest entries win, within bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from floodmark.ledger.keys import dead as dead_offsets
from floodmark.ledger.keys.entries import Entries, newest, stable_order
from floodmark.ledger.keys.files import KeyFiles
from floodmark.ledger.keys.manifest import Segment
from floodmark.ledger.keys.run import Run, write_run
from floodmark.ledger.keys.search import BEFORE

FAN_OUT = 8
SMALLEST_TIER = 4096
"""Segments of fewer entries are all of one size: rewriting them costs less than another file to search."""

CHUNK = 4 << 20
"""About so many entries are merged at a time."""


def tier(entries: int) -> int:
    """The size of a segment, in steps of `FAN_OUT`."""
    number = 0
    while entries >= SMALLEST_TIER:
        entries //= FAN_OUT
        number += 1
    return number


def due(segments: Sequence[Segment]) -> int:
    """How many of the newest segments are to be merged into one; 0 when none are."""
    mine = tier(segments[0].entries) if segments else 0
    same = 0
    while same < len(segments) and tier(segments[same].entries) <= mine:
        same += 1
    return same if same >= FAN_OUT else 0


def tiered(files: KeyFiles, segments: tuple[Segment, ...]) -> tuple[tuple[Segment, ...], set[str]]:
    """The segments, newest first, after those merges that are due, and the files that were written for it."""
    written: set[str] = set()
    while count := due(segments):
        one = merged(files, segments[:count], segments[count:])
        written.update(one.names)
        segments = (one, *segments[count:])
    return segments, written


def merged(files: KeyFiles, segments: Sequence[Segment], older: Sequence[Segment]) -> Segment:
    """Neighbouring segments, newest first, as one; `older` are those that stay below it."""
    start, end = segments[-1].start, segments[0].end
    runs, kills = [], []
    with files.workroom() as folder:
        for entries in _chunks([[files.run(file) for file in s.runs] for s in segments]):
            # A mark that a key has no row hides older entries of the key; below the oldest segment there are none.
            kept = entries if older else entries.take(entries.is_live)
            if len(kept):
                runs.append(write_run(folder, start, end, kept))
                files.put(folder, runs[-1].names)
        parts = [files.dead(file).kills() for s in segments for file in s.dead]
        for chunk in dead_offsets.merged(parts, CHUNK) if parts else ():
            kills.append(dead_offsets.write_dead(folder, start, end, chunk))
            files.put(folder, [kills[-1].name])
    return Segment(start, end, tuple(runs), tuple(kills))


def _chunks(segments: Sequence[Sequence[Run]]) -> Iterator[Entries]:
    """The newest entries of all keys, in order, about `CHUNK` at a time."""
    runs = [run for segment in segments for run in segment]
    if not runs:
        return
    bounds = _bounds(runs)
    for number in range(len(bounds[0]) - 1):
        parts = [run.slice(cuts[number], cuts[number + 1]) for run, cuts in zip(runs, bounds, strict=True)]
        if with_entries := [p for p in parts if len(p)]:  # two cuts may be one
            yield newest(with_entries)


def _bounds(runs: Sequence[Run]) -> list[list[int]]:
    """For each run the rows at which it is cut, so that the parts between two cuts are of one range of hashes."""
    if sum(map(len, runs)) <= CHUNK:
        return [[0, len(run)] for run in runs]
    fences = [np.concatenate(columns) for columns in zip(*(run.fences for run in runs), strict=True)]
    step = max(1, CHUNK // runs[0].page_rows)
    cuts = stable_order(fences)[step::step]
    queries = [column[cuts] for column in fences]
    return [[0, *run.place(queries, BEFORE).tolist(), len(run)] for run in runs]
