"""Sources of views without views: analyses written by hand, and naive answers to the same questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from floodmark.dataset import Dataset
from floodmark.engine.rounds import TaskRunner
from floodmark.engine.session import Session
from floodmark.lake import Lake
from floodmark.views.analysis import Analysis, InputUse, RefreshKind
from floodmark.views.changed_rows import LocalRows, ViewChanges, find_changes, read_changed_rows
from floodmark.views.sources import ViewInputSnapshot, take_input_snapshots

Row = tuple[Any, ...]


def use(
    dataset: Dataset, keys: Mapping[str, str], columns: Sequence[str], computed: Sequence[str] = (), alias: str = ""
) -> InputUse:
    """What a query uses of a dataset; `keys` says which column each column of T is."""
    name = alias or dataset.name
    return InputUse(name, str(dataset.id), tuple(keys.items()), tuple(columns), tuple(computed))


def analysis(
    kind: RefreshKind,
    t: Mapping[str, pa.DataType],
    sources: Sequence[InputUse],
    inject: Mapping[str, tuple[tuple[str, str], ...]] | None = None,
) -> Analysis:
    """An analysis as far as reading sources needs it."""
    names, columns = tuple(t), pa.schema(list(t.items()))
    return Analysis(kind, None, tuple(sources), columns, names, names, pa.schema([]), "", False, inject or {}, "")


def touched_in(
    lake: Lake, known: Analysis, positions: Mapping[str, int]
) -> tuple[tuple[ViewInputSnapshot, ...], ViewChanges]:
    """Snapshots of the sources, and what was touched since positions (by the names of sources)."""
    sources = take_input_snapshots(lake, "v", known)
    by_id = {source.dataset_id: positions[source.name] for source in sources if source.name in positions}
    return sources, find_changes(sources, known, by_id, TaskRunner(Session()))


def small_rows(lake: Lake, known: Analysis, positions: Mapping[str, int]) -> list[pa.Table]:
    """The rows of each source that have what was touched."""
    sources, found = touched_in(lake, known, positions)
    tables = []
    for source in sources:
        rows = read_changed_rows(source, known, found, Session())
        assert isinstance(rows, LocalRows)
        tables.append(rows.table)
    return tables


def as_rows(table: pa.Table) -> list[Row]:
    """The rows in an order of their own."""
    return sorted(zip(*(c.to_pylist() for c in table.columns), strict=True), key=repr)


def naive_touched(dataset: Dataset, columns: Sequence[str], since: int) -> set[Row]:
    """The values of some columns that any record after a position has."""
    records = dataset.changes_arrow(since=since if since >= 0 else None)
    return {tuple(record[c] for c in columns) for record in records.to_pylist()}


def naive_rows(dataset: Dataset, columns: Sequence[str], shown: Sequence[str], wanted: set[Row]) -> list[Row]:
    """The current rows that have one of these values."""
    found = [row for row in dataset.to_arrow().to_pylist() if tuple(row[c] for c in columns) in wanted]
    return sorted((tuple(row[c] for c in shown) for row in found), key=repr)
