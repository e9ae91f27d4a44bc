"""Looking keys up in the segments of a key index: newest segment first, each key until it is found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from floodmark.ledger.keys.entries import Entries, Mask, newest, order_columns, stable_order, starts_of_groups
from floodmark.ledger.keys.files import KeyFiles
from floodmark.ledger.keys.manifest import Segment
from floodmark.ledger.keys.records import I64, NOT_THERE, U64, Hashes
from floodmark.ledger.keys.run import Point, Run
from floodmark.ledger.keys.search import BEFORE, UP_TO, bound

HIGHEST = 2**64

_FEWER = 4
"""A run with so many times fewer entries than there are keys to be found is looked up among these, not they in it."""


@dataclass(frozen=True)
class Found:
    """What the index knows of each key that was asked for."""

    offset: I64  # of the current row, NOT_THERE when the key has none
    row: Hashes  # of the current row, zeros when there is none
    seen: Mask  # whether there is an entry for the key, be it only that its row was retracted


def find(files: KeyFiles, segments: Sequence[Segment], keys: Hashes, lookup: Hashes | None) -> Found:
    """The newest entry of each key."""
    count = len(keys)
    offset = np.full(count, NOT_THERE, np.int64)
    row = Hashes(np.zeros(count, np.uint64), np.zeros(count, np.uint64))
    seen = np.zeros(count, np.bool_)
    columns = order_columns(keys, lookup)
    missing = np.argsort(columns[0], kind="stable")  # neighbours in the files are looked up one after the other
    for segment in segments:
        if len(missing) == 0:
            break
        queries = [column[missing] for column in columns]
        for run, routed in _routed(files, segment, queries):
            which = _near(run, queries, routed)
            if len(which) == 0:
                continue
            at, there = run.find([q[which] for q in queries])
            entries = run.rows(at[there])
            hits = missing[which[there]]
            offset[hits], seen[hits] = entries.offset, True
            row.high[hits], row.low[hits] = entries.row.high, entries.row.low
        missing = missing[~seen[missing]]
    return Found(offset, row, seen)


def find_prefix(files: KeyFiles, segments: Sequence[Segment], prefixes: Hashes) -> tuple[I64, list[Entries]]:
    """Every entry of each prefix, newest segment first: the positions of the prefixes, and their entries."""
    order = stable_order([prefixes.high, prefixes.low])
    queries = [prefixes.high[order], prefixes.low[order]]
    which: list[I64] = []
    found: list[Entries] = []
    for segment in segments:
        for file in segment.runs:
            near = np.flatnonzero(_not_before(queries, file.first[:2]) & ~_after(queries, file.last[:2]))
            if len(near) == 0:
                continue
            run = files.run(file)
            mine = [q[near] for q in queries]
            first, end = run.place(mine, BEFORE), run.place(mine, UP_TO)
            rows, asked = _spread(first, end)
            which.append(order[near[asked]])
            found.append(run.rows(rows))
    return np.concatenate([np.empty(0, np.int64), *which]), found


def between(files: KeyFiles, segments: Sequence[Segment], low: int, high: int) -> list[Entries]:
    """Every entry whose first order column is in [low, high), newest segment first."""
    found = []
    for segment in segments:
        for file in segment.runs:
            if file.last[0] < low or file.first[0] >= high:
                continue
            run = files.run(file)
            bounds = [b for b in (low, high) if b < HIGHEST]
            places = run.place([np.array(bounds, np.uint64)], BEFORE).tolist() if bounds else []
            first = places[0] if bounds else len(run)
            end = places[1] if len(bounds) == 2 else len(run)
            found.append(run.slice(first, end))
    return [entries for entries in found if len(entries)]


def live(parts: list[Entries]) -> Entries:
    """The newest entry of each key, those without a row left out; there is at least one part."""
    entries = newest(parts)
    return entries.take(entries.is_live)


def live_of_each(which: I64, parts: list[Entries]) -> tuple[I64, Entries]:
    """For each prefix the newest entry of each of its keys that has a row; there is at least one part."""
    entries = Entries.joined(parts)
    order = np.lexsort((entries.key.low, entries.key.high, which))
    groups = [which[order].astype(np.uint64), entries.key.high[order], entries.key.low[order]]
    kept = order[starts_of_groups(groups)]
    kept = kept[entries.is_live[kept]]
    return which[kept], entries.take(kept)


def _routed(files: KeyFiles, segment: Segment, queries: Sequence[U64]) -> Iterator[tuple[Run, I64]]:
    """The runs that can hold some of the queries, and which; the others are in none."""
    if len(segment.runs) == 1:
        yield files.run(segment.runs[0]), np.arange(len(queries[0]))
        return
    if not segment.runs:
        return
    firsts = [np.array(column, np.uint64) for column in zip(*(run.first for run in segment.runs), strict=True)]
    owner = bound(firsts, queries, UP_TO)[0] - 1
    for number in np.unique(owner[owner >= 0]).tolist():
        yield files.run(segment.runs[number]), np.flatnonzero(owner == number)


def _near(run: Run, queries: Sequence[U64], which: I64) -> I64:
    """Those of the sorted queries that a run can hold; one with few entries rules nearly all of them out."""
    if len(which) < _FEWER * len(run):
        return which
    entries = run.slice(0, len(run))
    values = order_columns(entries.key, entries.lookup)[0]
    distinct = values[starts_of_groups([values])]
    asked = queries[0][which]
    rows, _ = _spread(np.searchsorted(asked, distinct, "left"), np.searchsorted(asked, distinct, "right"))
    return which[rows]


def _not_before(queries: Sequence[U64], point: Point) -> Mask:
    high, low = np.uint64(point[0]), np.uint64(point[1])
    result: Mask = (queries[0] > high) | ((queries[0] == high) & (queries[1] >= low))
    return result


def _after(queries: Sequence[U64], point: Point) -> Mask:
    high, low = np.uint64(point[0]), np.uint64(point[1])
    result: Mask = (queries[0] > high) | ((queries[0] == high) & (queries[1] > low))
    return result


def _spread(first: I64, end: I64) -> tuple[I64, npt.NDArray[np.int64]]:
    """All rows of several ranges [first, end), and for each the number of its range."""
    lengths = np.maximum(end - first, 0)
    asked = np.repeat(np.arange(len(first)), lengths)
    before = np.cumsum(lengths) - lengths
    return np.arange(len(asked)) - before[asked] + first[asked], asked
