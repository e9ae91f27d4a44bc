"""The computed columns of a dataset: add, alter, drop, backfill and verify them, and report their status.

Only the catalog is imported at the top, so a process that only reads a dataset does not load the code that computes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

import pyarrow as pa

from floodmark.columns import catalog as catalogs
from floodmark.columns.catalog import (
    FIRST_FIELD_ID,
    FRAGMENT_ROWS,
    Catalog,
    ColumnDefinition,
    ColumnObjects,
    FunctionRef,
)
from floodmark.errors import BadFunction, ColumnExists, FloodmarkError, UnknownColumns, UnreadableColumn
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.scan import Where
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.verify import VerifyProblem
from floodmark.rows.rows import Rows

if TYPE_CHECKING:
    from pyroaring import BitMap

    from floodmark.columns.backfill import BackfillReport
    from floodmark.columns.definition import ColumnDraft
    from floodmark.columns.garbage import ColumnGarbage, UsedCheckpoints
    from floodmark.columns.plan import BackfillOptions
    from floodmark.columns.snapshot import ColumnSnapshot
    from floodmark.columns.survey import BackfillPlan
    from floodmark.functions.udf import Udf


_log = logging.getLogger(__name__)

FRAGMENT_BYTES = 256 << 20
"""The maximum size of the records of a fragment, so that wide rows give small fragments."""

_FEWEST_ROWS = 1 << 12

CheckpointUses: TypeAlias = "Callable[[Snapshot, str], Sequence[UsedCheckpoints]]"
"""Returns the uses of checkpoints by the dataset with this snapshot and name, apart from its own columns."""

_added_udfs: dict[tuple[str, str], Udf] = {}
"""The functions that this process added to columns, by name and version. A lambda cannot be imported again."""


@dataclass(frozen=True)
class FragmentStatus:
    """How much of a fragment is computed: its live rows, and how many are done, have an older value, or failed.

    `carried` rows are done. They took over the value of the record that they replaced.
    """

    number: int
    start: int
    end: int
    rows: int
    done: int
    kept: int
    errors: int
    carried: int = 0


@dataclass(frozen=True)
class ColumnStatus:
    """A computed column, and how much of it is computed."""

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

    @property
    def carried(self) -> int:
        return sum(f.carried for f in self.fragments)


class ComputedColumns:
    """The columns of a dataset that functions compute from its rows. Their values are stored next to the records."""

    def __init__(self, ledger: Ledger, rows: Rows) -> None:
        self._ledger = ledger
        self._rows = rows

    @property
    def objects(self) -> ColumnObjects:
        return ColumnObjects(self._ledger.objects)

    @property
    def catalog(self) -> Catalog:
        """The current definitions of the columns. Reads one small object."""
        return catalogs.load(self.objects)

    def snapshot(self) -> ColumnSnapshot:
        """A snapshot of the current rows and columns."""
        return self._ledger.retry_if_replaced(self._pin)

    def _pin(self) -> ColumnSnapshot:
        from floodmark.columns.snapshot import ColumnSnapshot

        snapshot = self._ledger.snapshot()
        return ColumnSnapshot(
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
            endings=partial(self._rows.endings, snapshot),
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
        """Add a column to the catalog. With `exist_ok`, an existing column with the same function is not changed."""
        from floodmark.columns import definition as definition_module

        column_snapshot = self.snapshot()
        function, given = _with_inputs(udf, inputs)
        definition = _definition(name, function, given)
        present = column_snapshot.catalog.find(name)
        if exist_ok and present is not None:
            if present.function.is_same(definition.function) and present.inputs == definition.inputs:
                return
            raise ColumnExists(
                f"dataset {column_snapshot.name!r} has a computed column {name!r} with another function",
                hint=f"call alter_column({name!r}, …) to give it this function",
                column=name,
            )
        function.check_shippable()
        is_first = (
            column_snapshot.catalog.next_field_id == FIRST_FIELD_ID
        )  # also a dropped column fixed the size of fragments
        rows = _default_fragment_rows(column_snapshot) if fragment_rows is None and is_first else fragment_rows
        definition_module.add(column_snapshot.objects, definition, column_snapshot.layout.read_schema.names, rows)

    def alter(self, name: str, udf: Udf | tuple[Udf, Sequence[str]], inputs: Sequence[str] | None) -> None:
        """Replace the function of a column."""
        from floodmark.columns import definition as definition_module

        column_snapshot = self.snapshot()
        function, given = _with_inputs(udf, inputs)
        column = column_snapshot.catalog.column(name)
        definition = _definition(name, function, column.inputs if given is None and function.inputs is None else given)
        function.check_shippable()
        definition_module.alter(column_snapshot.objects, definition, column_snapshot.layout.read_schema.names)

    def drop(self, name: str) -> None:
        """Remove a column from the catalog."""
        from floodmark.columns import definition as definition_module

        definition_module.drop(self.objects, name)

    def check_free(self, names: Sequence[str]) -> None:
        """Refuse new data columns that have the name of a computed column."""
        computed = {column.name.lower() for column in self.catalog.columns}  # Spark and DuckDB ignore case
        if clashing := [name for name in names if name.lower() in computed]:
            raise ColumnExists(
                f"{clashing[0]!r} is already a computed column",
                hint=f"choose another name, or call drop_column({clashing[0]!r}) first",
                column=clashing[0],
            )

    def check_not_given(self, names: Sequence[str]) -> None:
        """Refuse data with values for computed columns."""
        computed = [name for name in names if name in {column.name for column in self.catalog.columns}]
        if computed:
            raise UnknownColumns(
                f"the data has values for columns that the dataset computes: {', '.join(map(repr, computed))}",
                hint=f"leave them out, for example by frame.drop(columns={computed}); backfill() computes them",
                columns=computed,
            )

    # Status

    def status(self) -> list[ColumnStatus]:
        """The status of all computed columns. Empty while the dataset has no schema."""
        if self._ledger.snapshot().layout is None:
            return []
        column_snapshot = self.snapshot()
        return [_status(column_snapshot, column) for column in column_snapshot.catalog.columns]

    def errors(self, name: str) -> pa.Table:
        """The errors of a column's live rows, in offset order."""
        return read_errors(self.snapshot(), name)

    # Compute

    def plan_backfill(self, name: str, where: Where, *, retry_errors: bool) -> BackfillPlan:
        """What `backfill` would do."""
        from floodmark.columns.checkpoints import CheckpointFinder
        from floodmark.columns.survey import plan_backfill

        column_snapshot = self.snapshot()
        checkpoints = column_snapshot.checkpoints_in(column_snapshot.objects)
        finder = CheckpointFinder(checkpoints, column_snapshot.dataset_id)
        return plan_backfill(column_snapshot, column_snapshot.catalog.column(name), finder, where, retry_errors)

    def backfill(self, name: str, udf: Udf | None, options: BackfillOptions) -> BackfillReport:
        """Compute the missing values of a column."""
        from floodmark.columns.backfill import backfill
        from floodmark.engine.rounds import TaskRunner

        runtime = self._ledger.runtime
        column = self.catalog.column(name)
        function = resolve_udf(column, udf)
        return backfill(column, function, options, self.snapshot, TaskRunner(runtime.session), runtime.progress)

    def reset(self, name: str) -> None:
        """Make the next backfill compute every row of a column again. The old values stay visible until then."""
        from floodmark.columns.backfill import take_column_turn
        from floodmark.columns.commit import reset_values
        from floodmark.columns.survey import column_prefix

        column, column_snapshot = self.catalog.column(name), self.snapshot()
        with take_column_turn(column_snapshot, column, self._ledger.runtime.progress()):
            reset_values(column_snapshot.objects, name, column_prefix(column_snapshot, column, None))

    # Purge, verify, collect garbage

    def drop_purged(self, snapshot: Snapshot) -> None:
        """Remove the values that were computed from purged records; keep those of rows that a purge carried."""
        from floodmark.columns.purge import drop_purged, find_carried

        dataset_id = str(snapshot.state.dataset_id)
        carried = find_carried(snapshot, self._ledger.name)
        drop_purged(self.objects, snapshot.purged_before, dataset_id, carried)

    def drop_erased(self, snapshot: Snapshot) -> None:
        """Remove the values that were computed from erased records."""
        from floodmark.columns.erase import drop_erased

        drop_erased(self.objects, snapshot.erased, str(snapshot.state.dataset_id))

    def problems(self) -> list[VerifyProblem]:
        """The problems of the catalog, the manifests and the values."""
        from floodmark.columns.verify import find_column_problems, find_erased_values

        try:
            snapshot = self._ledger.snapshot()
        except FloodmarkError:  # the ledger reports that its chain cannot be read
            return find_column_problems(self.objects)
        dataset_id = str(snapshot.state.dataset_id)
        found = find_column_problems(self.objects, snapshot.purged_before, dataset_id)
        return [*found, *find_erased_values(self.objects, snapshot.erased, dataset_id)]

    def find_garbage(self, used: CheckpointUses) -> ColumnGarbage:
        """Old checkpoints and files that nothing needs. `used` returns other uses of checkpoints, for a snapshot."""
        from floodmark.columns import garbage
        from floodmark.columns.purge import find_carried

        snapshot = self._ledger.snapshot()
        dataset_id, dead = str(snapshot.state.dataset_id), self._rows.dead(snapshot)
        known = (ColumnObjects(snapshot.objects), dataset_id, dead, self._ledger.runtime.clock())
        carried = find_carried(snapshot, self._ledger.name)
        return garbage.find_garbage(
            *known, purged_before=snapshot.purged_before, used=used(snapshot, self._ledger.name), carried_to=carried
        )

    def collect_garbage(self, used: CheckpointUses) -> ColumnGarbage:
        """Remove garbage and return what was removed."""
        from floodmark.columns import garbage

        found = self._ledger.retry_if_replaced(self.find_garbage, used)
        return garbage.remove_garbage(found)


def _with_inputs(
    udf: Udf | tuple[Udf, Sequence[str]], inputs: Sequence[str] | None
) -> tuple[Udf, Sequence[str] | None]:
    """A function and its inputs, which may be given as a pair."""
    if isinstance(udf, tuple) and len(udf) == 2 and inputs is None:
        return udf
    return cast("Udf", udf), inputs


def _definition(name: str, udf: Udf, inputs: Sequence[str] | None) -> ColumnDraft:
    from floodmark.columns.definition import ColumnDraft

    _check_udf(udf)
    _added_udfs[udf.name, udf.version] = udf
    function = FunctionRef(udf.name, udf.version, udf.kind, udf.module, udf.qualname, udf.source)
    return ColumnDraft(
        name=name,
        type=udf.type,
        nullable=udf.nullable,
        inputs=udf.inputs_from(inputs),
        function=function,
        min_checkpoint_size=udf.min_checkpoint_size,
        max_checkpoint_size=udf.max_checkpoint_size,
    )


def _check_udf(given: object) -> None:
    from floodmark.functions.udf import Udf

    if not isinstance(given, Udf):
        raise TypeError(f"{given!r} is not a udf: decorate the function with @floodmark.udf(returns=…)")


def _default_fragment_rows(column_snapshot: ColumnSnapshot) -> int | None:
    """The number of records per fragment for wide records; None for the default of about a million."""
    rows = sum(f.rows for f in column_snapshot.selection.files)
    size = sum(f.size for f in column_snapshot.selection.files)
    if rows == 0 or size / rows * FRAGMENT_ROWS <= FRAGMENT_BYTES:
        return None
    fitting = FRAGMENT_BYTES * rows // size
    return max(_FEWEST_ROWS, 1 << (fitting.bit_length() - 1))


def resolve_udf(column: ColumnDefinition, given: Udf | None) -> Udf:
    """The function of a column: the given one, or one of its name and version that this process has loaded."""
    from floodmark.functions.udf import find_udf

    name, version = column.function.name, column.function.version
    if given is not None:
        _check_udf(given)
    found = given or _added_udfs.get((name, version)) or find_udf(name, version)
    if found is None:
        where = f"{column.function.module}.{column.function.qualname}".strip(".")
        raise BadFunction(
            f"the function {where!r} (version {version}) of column {column.name!r} is not loaded in this process",
            hint="import the module that defines it, or pass it with udf=…",
            column=column.name,
            module=column.function.module,
        )
    if (found.name, found.version) != (name, version):
        raise BadFunction(
            f"column {column.name!r} is computed by {name!r} (version {version}), not by {found.name!r} "
            f"(version {found.version})",
            hint=f"call alter_column({column.name!r}, …) to use this function, then run the backfill again",
            column=column.name,
            module=column.function.module,
        )
    return found


def _status(column_snapshot: ColumnSnapshot, column: ColumnDefinition) -> ColumnStatus:
    manifest = column_snapshot.manifest(column).with_identity(column_snapshot.identity(column))
    fragments = []
    for window in column_snapshot.windows(column, None):
        found = manifest.fragment(window.number)
        skipped = _count_errors(column_snapshot, found.errors, found.done & window.live, window.base)
        counts = (len(window.live), len(found.done & window.live), len(found.kept & window.live))
        carried = len(found.carried & found.done & window.live)
        fragments.append(FragmentStatus(window.number, window.start, window.end, *counts, skipped, carried))
    parts = (column.name, column.type, column.nullable, column.inputs, column.function, column.generation)
    return ColumnStatus(*parts, tuple(fragments))


def read_errors(column_snapshot: ColumnSnapshot, name: str) -> pa.Table:
    """The errors of a column's live rows, in offset order."""
    from floodmark.columns import row_errors as row_errors_module

    column = column_snapshot.catalog.column(name)
    manifest = column_snapshot.manifest(column)
    tables = [
        _error_rows(column_snapshot, found.errors, (found.done | found.kept) & window.live, window.base)
        for window in column_snapshot.windows(column, None)
        if (found := manifest.fragment(window.number)).errors is not None
    ]
    return pa.concat_tables([row_errors_module.EMPTY, *tables])


def _error_rows(column_snapshot: ColumnSnapshot, digest: str | None, live: BitMap, base: int) -> pa.Table:
    from floodmark.columns import row_errors as row_errors_module

    return (
        row_errors_module.only(row_errors_module.load(column_snapshot.objects, digest), live, base)
        if digest
        else row_errors_module.EMPTY
    )


def _count_errors(column_snapshot: ColumnSnapshot, digest: str | None, live: BitMap, base: int) -> int:
    try:
        return int(_error_rows(column_snapshot, digest, live, base).num_rows)
    except UnreadableColumn as error:
        _log.warning("%s", error)  # the rest of the status does not need the errors
        return 0
