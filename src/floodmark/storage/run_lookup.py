"""Several sorted runs read as one: find the newest entry of each hash, and merge.

A segment is a list of runs with ascending, disjoint ranges of hashes. In a list of segments the newest is first, and
its entries hide older entries with the same hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from floodmark.storage import sorted_runs
from floodmark.storage.arrays import (
    BEFORE,
    I64,
    U64,
    UP_TO,
    Mask,
    ascends,
    expand_ranges,
    integer_order,
    is_group_start,
    search_rows,
    stable_order,
)
from floodmark.storage.sorted_runs import (
    END_OF_HASHES,
    Columns,
    RunFile,
    RunFiles,
    RunSpec,
    Segment,
    SortedRun,
)

_FEWER = 4
"""If a run has this many times fewer entries than there are queries, its entries are looked up in the queries."""


@dataclass(frozen=True)
class RunLookup:
    """For each query: whether the segments have an entry, and its values (0 if not)."""

    seen: Mask
    values: Columns


def find(files: RunFiles, segments: Iterable[Segment], queries: Sequence[U64], spec: RunSpec) -> RunLookup:
    """Look up the newest entry of each query."""
    count = len(queries[0])
    result = RunLookup(np.zeros(count, np.bool_), {name: np.zeros(count, kind) for name, kind in spec.values.items()})
    missing = np.arange(count) if ascends(queries[0]) else integer_order(queries[0])
    for segment in segments:
        if len(missing) == 0:
            break
        open_queries = [q[missing] for q in queries]
        for file, part in _route(segment, open_queries[0]):
            at, values = files.ask(file, partial(_look_up, queries=[q[part] for q in open_queries], names=spec.values))
            hits = missing[part][at]
            result.seen[hits] = True
            for name, column in values.items():
                result.values[name][hits] = column
        missing = missing[~result.seen[missing]]
    return result


def find_all(files: RunFiles, segments: Iterable[Segment], prefixes: Sequence[U64]) -> tuple[I64, list[Columns]]:
    """All entries whose first order columns equal one of the prefixes, newest segment first.

    Returns the position of the prefix of each entry, and the entries.
    """
    order = stable_order(prefixes)
    queries = [column[order] for column in prefixes]
    which: list[I64] = []
    found: list[Columns] = []
    for segment in segments:
        for file, part in _route(segment, queries[0]):
            number, entries = files.ask(file, partial(_find_all_in, queries=[q[part] for q in queries]))
            if len(number):
                which.append(order[part][number])
                found.append(entries)
    return np.concatenate([np.empty(0, np.int64), *which]), found


def entries_between(files: RunFiles, segments: Iterable[Segment], low: int, high: int) -> list[Columns]:
    """All entries whose first order column is in [low, high), newest segment first, without empty parts."""
    runs = [file for segment in segments for file in segment if file.last[0] >= low and file.first[0] < high]
    parts = [files.ask(file, partial(_slice_between, low=low, high=high)) for file in runs]
    return [entries for entries in parts if entry_count(entries)]


def merge(
    files: RunFiles, segments: Iterable[Segment], order: tuple[str, ...], most: int, above: Sequence[Columns] = ()
) -> Iterator[Columns]:
    """The newest entry of each hash, sorted, in parts of about `most` entries. `above` is newer than the segments."""
    runs = [file for segment in segments for file in segment]
    total = sum(map(entry_count, above)) + sum(file.entries for file in runs)
    cuts = _cut_points(files, runs, order, most, above) if total > most else []
    above_edges, run_edges = [[0, entry_count(entries)] for entries in above], [[0, file.entries] for file in runs]
    if cuts:
        for entries, edges in zip(above, above_edges, strict=True):
            edges[1:1] = search_rows([entries[name] for name in order], cuts, BEFORE)[0].tolist()
        for file, edges in zip(runs, run_edges, strict=True):
            edges[1:1] = files.ask(file, partial(SortedRun.place, queries=cuts, last=BEFORE)).tolist()
    for part in range(len(cuts[0]) + 1 if cuts else 1):
        parts = []
        for entries, edges in zip(above, above_edges, strict=True):
            parts.append({name: column[slice(*edges[part : part + 2])] for name, column in entries.items()})
        for file, edges in zip(runs, run_edges, strict=True):
            parts.append(files.ask(file, partial(SortedRun.slice, start=edges[part], end=edges[part + 1])))
        if filled_parts := [entries for entries in parts if entry_count(entries)]:
            yield newest(filled_parts, order)


def newest(parts: Sequence[Columns], order: tuple[str, ...]) -> Columns:
    """Merge several sorted parts. For entries with equal hashes, the first part wins."""
    if len(parts) == 1:
        return parts[0]
    all_columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    hashes = [all_columns[name] for name in order]
    at = stable_order(hashes)
    at = at[is_group_start([column[at] for column in hashes])]
    return {name: column[at] for name, column in all_columns.items()}


def entry_count(entries: Columns) -> int:
    return len(next(iter(entries.values())))


def _route(segment: Segment, first: U64) -> Iterator[tuple[RunFile, slice]]:
    """The runs that can contain queries, each with these queries. `first` is their first column, ascending."""
    for file in segment:
        start = int(np.searchsorted(first, np.uint64(file.first[0]), "left"))
        end = int(np.searchsorted(first, np.uint64(file.last[0]), "right"))
        if start < end:
            yield file, slice(start, end)


def _look_up(run: SortedRun, queries: Sequence[U64], names: Iterable[str]) -> tuple[I64, Columns]:
    """The positions of the queries that are in the run, and their values."""
    which = np.arange(len(queries[0]))
    if len(which) >= _FEWER * len(run):
        # A run with few entries can match only few of the queries.
        values = run.slice(0, len(run))[run.order[0]]
        values = values[is_group_start([values])]
        which, _ = expand_ranges(
            np.searchsorted(queries[0], values, "left"), np.searchsorted(queries[0], values, "right")
        )
        queries = [q[which] for q in queries]
    rows, exists = run.find(queries)
    return which[exists], run.take(rows[exists], names)


def _find_all_in(run: SortedRun, queries: Sequence[U64]) -> tuple[I64, Columns]:
    rows, number = expand_ranges(run.place(queries, BEFORE), run.place(queries, UP_TO))
    return number, run.take(rows)


def _slice_between(run: SortedRun, low: int, high: int) -> Columns:
    ends = [
        int(run.place([np.array([edge], np.uint64)], BEFORE)[0]) if edge < END_OF_HASHES else len(run)
        for edge in (low, high)
    ]
    return run.slice(*ends)


def _cut_points(
    files: RunFiles, runs: Sequence[RunFile], order: tuple[str, ...], most: int, above: Sequence[Columns]
) -> list[U64]:
    """Hashes that split all runs at the same points, into parts with a total of about `most` entries."""
    fences = [files.ask(file, lambda run: run.fences) for file in runs]
    fences += [[entries[name][:: sorted_runs.PAGE_ROWS] for name in order] for entries in above]
    all_columns = [np.concatenate(columns) for columns in zip(*fences, strict=True)]
    stride = max(1, most // sorted_runs.PAGE_ROWS)
    at = stable_order(all_columns)[stride::stride]
    return [column[at] for column in all_columns]
