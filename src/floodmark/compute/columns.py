"""The computed columns of a dataset: add, alter and drop them, compute their values, look at them.

Only reading and the catalog are imported at the top: a process that only reads a dataset never loads what computes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from floodmark.compute.errors import BadRowErrors, ColumnExists, UnknownFunction
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored.catalog import FIRST_FIELD_ID, FRAGMENT_ROWS, Catalog, Column, FunctionRef
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.errors import FloodmarkError
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.rows import Rows
from floodmark.ledger.scan import Where
from floodmark.ledger.slice_check import Problem
from floodmark.ledger.snapshot import Snapshot

if TYPE_CHECKING:
    from pyroaring import BitMap

    from floodmark.compute.backfill import Backfill
    from floodmark.compute.functions.udf import Udf
    from floodmark.compute.options import Options
    from floodmark.compute.pinned import Pinned
    from floodmark.compute.stored.define import Definition
    from floodmark.compute.stored.gc import Garbage, Used
    from floodmark.compute.survey import BackfillPlan

_log = logging.getLogger(__name__)

FRAGMENT_BYTES = 256 << 20
"""How many bytes of records a fragment spans at most, so that wide rows make small fragments."""

_FEWEST_ROWS = 1 << 12

_used: dict[tuple[str, str], Udf] = {}
"""The functions that columns of this process were given: a lambda has nobody else to keep it."""


@dataclass(frozen=True)
class FragmentStatus:
    """How much of a fragment is computed: current rows, those done, and those with a value of an older version."""

    number: int
    start: int
    end: int
    rows: int
    done: int
    kept: int
    errors: int


@dataclass(frozen=True)
class ColumnStatus:
    """A computed column and how much of it is there."""

    name: str
    type: pa.DataType
    nullable: bool
    inputs: tuple[str, ...]
    function: FunctionRef
    generation: int
    fragments: tuple[FragmentStatus, ...]

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.fragments)

    @property
    def done(self) -> int:
        return sum(f.done for f in self.fragments)

    @property
    def kept(self) -> int:
        return sum(f.kept for f in self.fragments)

    @property
    def errors(self) -> int:
        return sum(f.errors for f in self.fragments)


class ComputedColumns:
    """The columns of a ledger that functions compute from its rows; their values are stored beside the records."""

    def __init__(self, ledger: Ledger, rows: Rows) -> None:
        self._ledger = ledger
        self._rows = rows

    @property
    def objects(self) -> ColumnObjects:
        return ColumnObjects(self._ledger.objects)

    @property
    def catalog(self) -> Catalog:
        """The columns as they are defined: one small read."""
        return catalogs.load(self.objects)

    def pinned(self) -> Pinned:
        """The current rows and the columns as of now."""
        return self._ledger.steadily(self._pin)

    def _pin(self) -> Pinned:
        from floodmark.compute.pinned import Pinned

        snapshot = self._ledger.snapshot()
        return Pinned(
            name=self._ledger.name,
            dataset_id=str(snapshot.state.dataset_id),
            objects=ColumnObjects(snapshot.objects),
            layout=snapshot.require_layout(self._ledger.name),
            selection=self._rows.selection(snapshot),
            dead=self._rows.dead(snapshot),
            start=snapshot.purged_before,
            end=snapshot.next_offset,
            catalog=self.catalog,
            snapshot=snapshot,
        )

    # Define

    def add(
        self,
        name: str,
        udf: Udf | tuple[Udf, Sequence[str]],
        inputs: Sequence[str] | None,
        fragment_rows: int | None,
        exist_ok: bool,
    ) -> None:
        """Add a column to the catalog; with `exist_ok`, one that has this very function is left as it is."""
        from floodmark.compute.stored import define

        pinned = self.pinned()
        function, given = _with_inputs(udf, inputs)
        definition = _definition(name, function, given)
        present = pinned.catalog.find(name)
        if exist_ok and present is not None:
            if present.function.is_same(definition.function) and present.inputs == definition.inputs:
                return
            raise ColumnExists(
                f"dataset {pinned.name!r} has a computed column {name!r} with another function",
                hint=f"alter_column({name!r}, …) gives it this one",
                column=name,
            )
        function.check_shippable()
        is_first = pinned.catalog.next_field_id == FIRST_FIELD_ID  # a dropped one settled the size of fragments, too
        rows = _usual_rows(pinned) if fragment_rows is None and is_first else fragment_rows
        define.add(pinned.objects, definition, pinned.layout.read_schema.names, rows)

    def alter(self, name: str, udf: Udf | tuple[Udf, Sequence[str]], inputs: Sequence[str] | None) -> None:
        """Give a column another function."""
        from floodmark.compute.stored import define

        pinned = self.pinned()
        function, given = _with_inputs(udf, inputs)
        column = pinned.catalog.column(name)
        definition = _definition(name, function, column.inputs if given is None and function.inputs is None else given)
        function.check_shippable()
        define.alter(pinned.objects, definition, pinned.layout.read_schema.names)

    def drop(self, name: str) -> None:
        """Remove a column from the catalog."""
        from floodmark.compute.stored import define

        define.drop(self.objects, name)

    def check_free(self, names: Sequence[str]) -> None:
        """Refuse columns of the dataset's own that have the name of a computed one."""
        computed = {column.name.lower() for column in self.catalog.columns}  # Spark and DuckDB ignore case
        if taken := [name for name in names if name.lower() in computed]:
            raise ColumnExists(
                f"{taken[0]!r} is a computed column already",
                hint=f"choose another name, or drop_column({taken[0]!r}) first",
                column=taken[0],
            )

    # Look

    def status(self) -> list[ColumnStatus]:
        """All columns, with their coverage; none while the dataset has no columns of its own."""
        if self._ledger.snapshot().layout is None:
            return []
        pinned = self.pinned()
        return [_status(pinned, column) for column in pinned.catalog.columns]

    def errors(self, name: str) -> pa.Table:
        """The errors of current rows, in offset order."""
        return errors_of(self.pinned(), name)

    # Compute

    def plan_backfill(self, name: str, where: Where, *, retry_errors: bool) -> BackfillPlan:
        """What `backfill` would do."""
        from floodmark.compute.checkpoints.found import Looking
        from floodmark.compute.survey import survey

        pinned = self.pinned()
        finder = Looking(pinned.objects.checkpoints, pinned.dataset_id)
        return survey(pinned, pinned.catalog.column(name), finder, where, retry_errors)

    def backfill(self, name: str, udf: Udf | None, options: Options) -> Backfill:
        """Compute what is missing of a column."""
        from floodmark.compute.backfill import backfill
        from floodmark.engine.rounds import Runner

        runtime = self._ledger.runtime
        column = self.catalog.column(name)
        function = function_of(column, udf)
        return backfill(column, function, options, self.pinned, Runner(runtime.session), runtime.progress)

    def reset(self, name: str) -> None:
        """Have the next backfill compute every row of a column again; the values stay until then."""
        from floodmark.compute.backfill import turn_of
        from floodmark.compute.stored.forget import forget
        from floodmark.compute.survey import prefix_of

        column, pinned = self.catalog.column(name), self.pinned()
        with turn_of(pinned, column, self._ledger.runtime.progress()):
            forget(pinned.objects, name, prefix_of(pinned, column, None))

    # Purge, verify, collect garbage

    def drop_purged(self, before: int, dataset_id: str) -> None:
        """Remove what was computed from records before an offset."""
        from floodmark.compute.stored.purge import drop_purged

        drop_purged(self.objects, before, dataset_id)

    def problems(self) -> list[Problem]:
        """What is wrong with the catalog, the manifests and the values."""
        from floodmark.compute.stored.check import column_problems

        try:
            snapshot = self._ledger.snapshot()
        except FloodmarkError:  # the ledger reports that its chain cannot be read
            return column_problems(self.objects)
        return column_problems(self.objects, snapshot.purged_before, str(snapshot.state.dataset_id))

    def find_garbage(self, used: Callable[[Snapshot], Sequence[Used]]) -> Garbage:
        """Old checkpoints and files that nothing needs; `used` is what else needs checkpoints of a snapshot."""
        from floodmark.compute.stored import gc

        snapshot = self._ledger.snapshot()
        dataset_id, dead = str(snapshot.state.dataset_id), self._rows.dead(snapshot)
        known = (ColumnObjects(snapshot.objects), dataset_id, dead, self._ledger.runtime.clock())
        return gc.find_garbage(*known, purged_before=snapshot.purged_before, used=used(snapshot))

    def collect_garbage(self, used: Callable[[Snapshot], Sequence[Used]]) -> Garbage:
        """Remove it; returns what was removed."""
        from floodmark.compute.stored import gc

        found = self._ledger.steadily(self.find_garbage, used)
        return gc.remove(found)


def _with_inputs(
    udf: Udf | tuple[Udf, Sequence[str]], inputs: Sequence[str] | None
) -> tuple[Udf, Sequence[str] | None]:
    """A function and its inputs, which may come as a pair."""
    if isinstance(udf, tuple) and len(udf) == 2 and inputs is None:
        return udf
    return cast("Udf", udf), inputs


def _definition(name: str, udf: Udf, inputs: Sequence[str] | None) -> Definition:
    from floodmark.compute.stored.define import Definition

    _check_udf(udf)
    _used[udf.name, udf.version] = udf
    function = FunctionRef(udf.name, udf.version, udf.kind, udf.module, udf.qualname, udf.source)
    return Definition(
        name=name,
        type=udf.type,
        nullable=udf.nullable,
        inputs=udf.inputs_from(inputs),
        function=function,
        min_checkpoint_size=udf.min_checkpoint_size,
        max_checkpoint_size=udf.max_checkpoint_size,
    )


def _check_udf(given: object) -> None:
    from floodmark.compute.functions.udf import Udf

    if not isinstance(given, Udf):
        raise TypeError(f"{given!r} is no udf: put @floodmark.udf(returns=…) before it")


def _usual_rows(pinned: Pinned) -> int | None:
    """Fragments of a million records, fewer when records are wide."""
    rows = sum(f.rows for f in pinned.selection.files)
    size = sum(f.size for f in pinned.selection.files)
    if rows == 0 or size / rows * FRAGMENT_ROWS <= FRAGMENT_BYTES:
        return None
    fitting = FRAGMENT_BYTES * rows // size
    return max(_FEWEST_ROWS, 1 << (fitting.bit_length() - 1))


def function_of(column: Column, given: Udf | None) -> Udf:
    """The function that computes a column: the one given, or one of this name and version that this process knows."""
    from floodmark.compute.functions.udf import known

    name, version = column.function.name, column.function.version
    if given is not None:
        _check_udf(given)
    found = given or _used.get((name, version)) or known(name, version)
    if found is None:
        where = f"{column.function.module}.{column.function.qualname}".strip(".")
        raise UnknownFunction(
            f"the function {where!r} (version {version}) of column {column.name!r} is not known here",
            hint="import the module that defines it, or give it with udf=…",
            column=column.name,
            module=column.function.module,
        )
    if (found.name, found.version) != (name, version):
        raise UnknownFunction(
            f"column {column.name!r} is computed by {name!r} (version {version}), not by {found.name!r} "
            f"(version {found.version})",
            hint=f"alter_column({column.name!r}, …) makes it the column's function; then backfill again",
            column=column.name,
            module=column.function.module,
        )
    return found


def _status(pinned: Pinned, column: Column) -> ColumnStatus:
    manifest = pinned.manifest(column).under(pinned.identity(column))
    fragments = []
    for window in pinned.windows(column, None):
        found = manifest.fragment(window.number)
        skipped = _count_errors(pinned, found.errors, found.done & window.live, window.base)
        counts = (len(window.live), len(found.done & window.live), len(found.kept & window.live))
        fragments.append(FragmentStatus(window.number, window.start, window.end, *counts, skipped))
    parts = (column.name, column.type, column.nullable, column.inputs, column.function, column.generation)
    return ColumnStatus(*parts, tuple(fragments))


def errors_of(pinned: Pinned, name: str) -> pa.Table:
    """The errors of a column's current rows, in offset order."""
    from floodmark.compute.stored import row_errors

    column = pinned.catalog.column(name)
    manifest = pinned.manifest(column)
    tables = [
        _error_rows(pinned, found.errors, (found.done | found.kept) & window.live, window.base)
        for window in pinned.windows(column, None)
        if (found := manifest.fragment(window.number)).errors is not None
    ]
    return pa.concat_tables([row_errors.EMPTY, *tables])


def _error_rows(pinned: Pinned, digest: str | None, live: BitMap, base: int) -> pa.Table:
    from floodmark.compute.stored import row_errors

    return row_errors.only(row_errors.load(pinned.objects, digest), live, base) if digest else row_errors.EMPTY


def _count_errors(pinned: Pinned, digest: str | None, live: BitMap, base: int) -> int:
    try:
        return int(_error_rows(pinned, digest, live, base).num_rows)
    except BadRowErrors as error:
        _log.warning("%s", error)  # the column itself can be looked at without
        return 0
