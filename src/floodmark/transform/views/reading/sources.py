"""The sources of a view as of one moment, each as far as everything that the view uses of it is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from floodmark.chain.hashes import Multihash
from floodmark.compute.pinned import Pinned
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored.catalog import Catalog, Column
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.compute.stored.read import ColumnValues, computed_columns
from floodmark.derive.positions import block_at
from floodmark.ledger.beside import Beside
from floodmark.ledger.layout import vocabulary
from floodmark.ledger.names import find_source
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.transform.changed.inputs import PinnedInput, pin_dataset
from floodmark.transform.lakes import DatasetLike, LakeLike
from floodmark.transform.views.analysed.analysis import Analysis, SourceSchema, SourceUse
from floodmark.transform.views.defined.stored import stored
from floodmark.transform.views.errors import SourceGone
from floodmark.transform.views.reading.extent import Computed, extent


@dataclass(frozen=True)
class PinnedSource:
    """A source, pinned at the newest block whose rows all have the computed columns that the view uses."""

    use: SourceUse
    given: PinnedInput
    beside: Beside | None = field(default=None, repr=False)  # those computed columns
    generations: Mapping[str, str] = field(default_factory=dict)  # which values of each of them
    catalog: Catalog = field(default_factory=Catalog, repr=False)  # all computed columns, where some are used

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
    def head(self) -> int:
        """The offset of the newest record that can be read, -1 when there is none."""
        return self.given.head

    @property
    def purged_before(self) -> int:
        return self.given.purged_before

    @property
    def waiting(self) -> int:
        """How many newer records are not read yet, because some row lacks a computed column."""
        return self.given.snapshot.next_offset - self.given.end

    @cached_property
    def block(self) -> Multihash | None:
        """The newest block that is read; None when it is none that has records."""
        snapshot = self.given.snapshot
        if self.given.is_newest:
            return snapshot.head
        there = block_at(self.head, snapshot.all_slices, snapshot.head, snapshot.state.last_offset)
        return None if there is None else there.block

    @property
    def for_values(self) -> Pinned:
        """The same for computing values from its rows."""
        given = self.given
        layout = given.snapshot.require_layout(given.name)
        objects = ColumnObjects(given.snapshot.objects)
        bounds = (given.purged_before, given.end)
        rows = given.current_rows()
        known = (self.catalog, given.snapshot)
        return Pinned(given.name, given.dataset_id, objects, layout, rows, given.dead, *bounds, *known)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the query uses, in the order in which the source has them."""
        wanted = set(self.use.columns)
        known = () if self.given.layout is None else self.given.layout.read_schema.names
        beside = () if self.beside is None else self.beside.schema.names
        return tuple(name for name in (*known, *beside) if name in wanted)


def datasets_of(lake: LakeLike, view: str, analysis: Analysis) -> dict[str, Any]:
    """The datasets that a view is made from by their names in its query, whatever they are called now."""
    return {use.alias: _dataset(lake, view, use) for use in analysis.sources}


def _dataset(lake: LakeLike, view: str, use: SourceUse) -> Any:
    found = find_source(lake.store, use.dataset_id, use.alias)
    if found is None:
        raise SourceGone(
            f"view {view!r} is made from {use.alias!r}, which is not there any more",
            hint=_when_gone(lake, view, use.alias),
            view=view,
            source=use.alias,
        )
    return lake[found]


def _when_gone(lake: LakeLike, view: str, alias: str) -> str:
    if alias in lake:
        return f"there is another dataset {alias!r} now: declare {view!r} again, and it is made from that one"
    return f"create {alias!r} and declare {view!r} again, or drop {view!r}; the rows that it has can still be read"


def pin_sources(lake: LakeLike, view: str, analysis: Analysis) -> tuple[PinnedSource, ...]:
    """The sources of a view as of their present heads, or as far as computed columns are there."""
    found = datasets_of(lake, view, analysis)
    return tuple(pin_source(found[use.alias], use) for use in analysis.sources)


def pin_source(dataset: DatasetLike, use: SourceUse) -> PinnedSource:
    """One dataset as a view uses it."""
    given = pin_dataset(dataset)
    if not use.computed or given.layout is None:
        return PinnedSource(use, given)
    objects = ColumnObjects(given.snapshot.objects)
    catalog = catalogs.load(objects)
    used = tuple(catalog.column(name) for name in use.computed)
    end = extent(given, Computed.of(objects, catalog, given.dataset_id, used))
    beside = ColumnValues(objects, catalog.fragment_rows, used)
    generations = {column.name: _values(column) for column in used}
    return PinnedSource(use, replace(given, stop=end), beside, generations, catalog)


def _values(column: Column) -> str:
    """Which values a computed column has: the same text as long as no value that was shown became another one."""
    return f"{column.origin}.{column.generation}"


def schema_of(dataset: DatasetLike) -> SourceSchema:
    """What a query can use of a dataset, and what it is identified by.

    A dataset has no columns before its first write; a view has them from its definition.
    """
    snapshot = dataset.snapshot()
    catalog = catalogs.load(ColumnObjects(snapshot.objects))
    computed = [] if (beside := computed_columns(snapshot.objects, catalog)) is None else list(beside.schema)
    shown, hidden = _fields(snapshot)
    return SourceSchema(
        dataset_id=str(dataset.id),
        name=dataset.name,
        schema=pa.schema([*shown, *computed]),
        key=strategy_of(snapshot.state).key,
        computed=tuple(f.name for f in computed),
        offset=vocabulary(snapshot.state.vocab).offset,
        hidden=pa.schema(hidden),
    )


def _fields(snapshot: Snapshot) -> tuple[list[pa.Field], list[pa.Field]]:
    """The columns that are shown, and those that are hidden."""
    layout = snapshot.layout
    if layout is not None:
        return list(layout.shown), [layout.data.field(name) for name in layout.hidden]
    view = stored(snapshot.state)
    return ([], []) if view is None else (list(view.analysis.columns), list(view.analysis.hidden))
