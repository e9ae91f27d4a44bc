"""The inputs of a view: their schemas, and snapshots as far as the needed computed columns are available."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from floodmark.chain.ids import Multihash
from floodmark.columns import catalog as catalogs
from floodmark.columns.catalog import Catalog, ColumnDefinition, ColumnObjects
from floodmark.columns.lost_values import find_valid_ends
from floodmark.columns.snapshot import (
    ColumnCoverage,
    ColumnSnapshot,
    ColumnValues,
    find_readable_end,
    make_column_values,
)
from floodmark.derive.inputs import DatasetLike, InputSnapshot, LakeLike, snapshot_dataset
from floodmark.derive.positions import find_block
from floodmark.errors import SourceGone
from floodmark.ledger.names import find_input_name
from floodmark.ledger.schema import vocabulary
from floodmark.ledger.side_columns import SideColumnSet
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.views.analysis import Analysis, InputSchema, InputUse
from floodmark.views.stored_definition import read_stored_view


@dataclass(frozen=True)
class ViewInputSnapshot:
    """A snapshot of an input at its newest block whose rows all have the computed columns that the view reads."""

    use: InputUse
    given: InputSnapshot
    beside: SideColumnSet | None = field(default=None, repr=False)  # the computed columns that the view reads
    generations: Mapping[str, str] = field(default_factory=dict)  # the version of the values of each
    catalog: Catalog = field(default_factory=Catalog, repr=False)  # all computed columns, if the view reads any

    @property
    def alias(self) -> str:
        """Its name in the query."""
        return self.use.alias

    @property
    def name(self) -> str:
        """Its name in the lake."""
        return self.given.name

    @property
    def dataset_id(self) -> str:
        return self.given.dataset_id

    @property
    def last_offset(self) -> int:
        """The offset of the newest record that can be read; -1 if there is none."""
        return self.given.last_offset

    @property
    def purged_before(self) -> int:
        return self.given.purged_before

    @property
    def waiting(self) -> int:
        """The number of newer records that cannot be read yet, because some row lacks a computed column."""
        return self.given.snapshot.next_offset - self.given.end

    @cached_property
    def block(self) -> Multihash | None:
        """The newest block that is read; None if it has no records."""
        snapshot = self.given.snapshot
        if self.given.is_newest:
            return snapshot.head
        position = find_block(self.last_offset, snapshot.all_slices, snapshot.head, snapshot.state.last_offset)
        return None if position is None else position.block

    @property
    def for_columns(self) -> ColumnSnapshot:
        """The same snapshot in the form that column computation takes."""
        given = self.given
        layout = given.snapshot.require_layout(given.name)
        objects = ColumnObjects(given.snapshot.objects)
        bounds = (given.purged_before, given.end)
        rows = given.current_rows()
        known = (self.catalog, given.snapshot)
        return ColumnSnapshot(
            given.name, given.dataset_id, objects, layout, rows, given.dead, *bounds, *known, given.endings
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the query reads, in the input's order."""
        used = set(self.use.columns)
        known = () if self.given.layout is None else self.given.layout.read_schema.names
        beside = () if self.beside is None else self.beside.schema.names
        return tuple(name for name in (*known, *beside) if name in used)


def datasets_of(lake: LakeLike, view: str, analysis: Analysis) -> dict[str, Any]:
    """The input datasets of a view by their names in its query, even after a rename."""
    return {use.alias: _dataset(lake, view, use) for use in analysis.sources}


def _dataset(lake: LakeLike, view: str, use: InputUse) -> Any:
    name = find_input_name(lake.store, use.dataset_id, use.alias)
    if name is None:
        raise SourceGone(
            f"view {view!r} reads {use.alias!r}, which does not exist any more",
            hint=_dropped_hint(lake, view, use.alias),
            view=view,
            source=use.alias,
        )
    return lake[name]


def _dropped_hint(lake: LakeLike, view: str, alias: str) -> str:
    if alias in lake:
        return f"declare {view!r} again to read the new dataset with the name {alias!r}"
    return f"create {alias!r} and declare {view!r} again, or drop {view!r}; its current rows can still be read"


def take_input_snapshots(lake: LakeLike, view: str, analysis: Analysis) -> tuple[ViewInputSnapshot, ...]:
    """Snapshots of the inputs of a view, as far as their computed columns are available."""
    datasets = datasets_of(lake, view, analysis)
    return tuple(take_input_snapshot(datasets[use.alias], use) for use in analysis.sources)


def take_input_snapshot(dataset: DatasetLike, use: InputUse) -> ViewInputSnapshot:
    """A snapshot of one dataset for a view."""
    given = snapshot_dataset(dataset)
    if not use.computed or given.layout is None:
        return ViewInputSnapshot(use, given)
    objects = ColumnObjects(given.snapshot.objects)
    catalog = catalogs.load(objects)
    used = tuple(catalog.column(name) for name in use.computed)
    end = find_readable_end(given, ColumnCoverage.of(given, catalog, used))
    beside = ColumnValues(objects, catalog.fragment_rows, used, find_valid_ends(used, given))
    generations = {column.name: _values_version(column) for column in used}
    return ViewInputSnapshot(use, replace(given, stop=end), beside, generations, catalog)


def _values_version(column: ColumnDefinition) -> str:
    """A text that stays the same as long as no visible value of the column changes."""
    return f"{column.origin}.{column.generation}"


def input_schema_of(dataset: DatasetLike) -> InputSchema:
    """The columns and key of a dataset as a query sees them.

    A dataset has no columns before its first write; a view gets them from its definition.
    """
    snapshot = dataset.snapshot()
    catalog = catalogs.load(ColumnObjects(snapshot.objects))
    computed = [] if (beside := make_column_values(snapshot.objects, catalog)) is None else list(beside.schema)
    shown, hidden = _fields(snapshot)
    return InputSchema(
        dataset_id=str(dataset.id),
        name=dataset.name,
        schema=pa.schema([*shown, *computed]),
        key=strategy_of(snapshot.state).key,
        computed=tuple(f.name for f in computed),
        offset=vocabulary(snapshot.state.vocab).offset,
        hidden=pa.schema(hidden),
    )


def _fields(snapshot: Snapshot) -> tuple[list[pa.Field], list[pa.Field]]:
    """The visible and the hidden columns."""
    layout = snapshot.layout
    if layout is not None:
        return list(layout.shown), [layout.data.field(name) for name in layout.hidden]
    view = read_stored_view(snapshot.state)
    return ([], []) if view is None else (list(view.analysis.columns), list(view.analysis.hidden))
