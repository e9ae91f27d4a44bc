"""A dataset as users have it: a ledger and what is derived from it.

What computes columns is imported by the calls that need it: a command that only looks at datasets does not wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored.catalog import Catalog, Column
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.compute.stored.read import computed_columns
from floodmark.errors import FloodmarkError
from floodmark.ledger.beside import Beside
from floodmark.ledger.layout import fields_from
from floodmark.ledger.purge import Purge
from floodmark.ledger.scan import Where
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.verify import Verification
from floodmark.timeline import dataset as timeline

if TYPE_CHECKING:
    from floodmark.compute.backfill import Backfill
    from floodmark.compute.checkpoints.store import CheckpointStore
    from floodmark.compute.columns import ColumnStatus
    from floodmark.compute.functions.udf import Udf
    from floodmark.compute.pinned import Pinned
    from floodmark.compute.stored.gc import Garbage
    from floodmark.compute.survey import BackfillPlan


class Dataset(timeline.Dataset):
    """An append-only sequence of records numbered 0, 1, 2, …, its current rows, and what is derived from them.

    Made by `Lake.create` or found by `lake["name"]`. Every call looks at the present head; what a dataset object
    remembers only saves reading it again.
    """

    # Computed columns

    def add_column(
        self,
        name: str,
        udf: Udf | tuple[Udf, Sequence[str]],
        inputs: Sequence[str] | None = None,
        *,
        fragment_rows: int | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Add a column that a function computes; it reads as null until `backfill` has computed it.

        `inputs` are the columns that the function takes, by default those its parameters name; computed ones may be
        among them, and (udf, inputs) in one is fine, too. `fragment_rows` can be chosen with the first column only: how
        many records one file of values has. With `exist_ok` a column that has this very function already is left as it
        is.
        """
        from floodmark.compute import columns

        columns.add(self._pinned(), name, *columns.with_inputs(udf, inputs), fragment_rows, exist_ok)

    def alter_column(
        self, name: str, udf: Udf | tuple[Udf, Sequence[str]], inputs: Sequence[str] | None = None
    ) -> None:
        """Give a column another function of the same type; old values are shown until `backfill` replaces them."""
        from floodmark.compute import columns

        columns.alter(self._pinned(), name, *columns.with_inputs(udf, inputs))

    def drop_column(self, name: str) -> None:
        """Remove a computed column; added again with the same function, its values come back without a call."""
        from floodmark.compute import columns

        columns.drop(self._columns_objects, name)

    def columns(self) -> list[ColumnStatus]:
        """The computed columns: what computes them, and how much of each is there, fragment by fragment."""
        from floodmark.compute import columns

        return [] if self.schema is None else columns.status(self._pinned())

    @property
    def catalog(self) -> Catalog:
        """The computed columns as they are defined: one small read, whatever the dataset's size."""
        return catalogs.load(self._columns_objects)

    def column(self, name: str) -> Column:
        """One computed column: its type, its inputs and what is known of its function."""
        return self.catalog.column(name)

    @property
    def checkpoints(self) -> CheckpointStore:
        """What backfills have stored on their way; `list_keys()` is the truth about it."""
        return self._columns_objects.checkpoints

    def find_garbage(self) -> Garbage:
        """Checkpoints and files that nothing needs any more and that are a week old: what gc removes."""
        found = self._columns_garbage()
        return replace(found, files=(*found.files, *self._find_timeline_garbage().objects))

    def collect_garbage(self) -> Garbage:
        """Remove what `find_garbage` finds; says what went."""
        from floodmark.compute.stored import gc

        removed = gc.remove(self._columns_objects, self._columns_garbage())
        return replace(removed, files=(*removed.files, *self._collect_timeline_garbage().objects))

    def _columns_garbage(self) -> Garbage:
        """What computed columns do not need any more."""
        from floodmark.compute.stored import gc
        from floodmark.transform.views.defined.kept import used_by  # late: reading a dataset needs nothing of views

        snapshot = self.snapshot()
        dead = self._dead(snapshot, snapshot.next_offset)
        known = (str(self.id), dead, self._runtime.clock())
        used = used_by(snapshot)
        return gc.find_garbage(self._columns_objects, *known, purged_before=snapshot.purged_before, used=used)

    def column_errors(self, name: str) -> pa.Table:
        """The rows of a column that were skipped because its function failed: offset, error, attempts, time."""
        from floodmark.compute import columns

        return columns.errors(self._pinned(), name)

    def plan_backfill(self, name: str, where: Where = None, *, retry_errors: bool = False) -> BackfillPlan:
        """What `backfill` would do: ranges and rows that are done, reusable or missing, and why. Calls nothing."""
        from floodmark.compute.checkpoints.found import Looking
        from floodmark.compute.survey import survey

        pinned = self._pinned()
        finder = Looking(self.checkpoints, pinned.dataset_id)
        return survey(pinned, pinned.catalog.column(name), finder, where, retry_errors)

    def backfill(
        self,
        name: str,
        where: Where = None,
        *,
        udf: Udf | None = None,
        checkpoint_size: int | None = None,
        min_checkpoint_size: int | None = None,
        max_checkpoint_size: int | None = None,
        task_size: int | None = None,
        commit_granularity: int = 64,
        retry_errors: bool = False,
    ) -> Backfill:
        """Compute what is missing of a column, or of the rows that `where` keeps; what is stored is not computed again.

        Values given here win over those of the udf. Checkpoints have at most `checkpoint_size` rows and take about ten
        seconds each; `min_checkpoint_size` and `max_checkpoint_size` bound them. A task has `task_size` rows,
        and as many fragments as `commit_granularity` says become visible together. `retry_errors` also tries
        rows again that were skipped. `udf` is needed only where the function is not defined or imported.
        """
        from floodmark.compute import backfill as filling
        from floodmark.compute import columns
        from floodmark.compute.options import Options
        from floodmark.compute.runner import Runner

        options = Options(
            where=where,
            checkpoint_size=checkpoint_size,
            min_checkpoint_size=min_checkpoint_size,
            max_checkpoint_size=max_checkpoint_size,
            task_size=task_size,
            commit_granularity=commit_granularity,
            retry_errors=retry_errors,
            target_seconds=self._runtime.checkpoint_seconds,
            run=self._runtime.random_bytes(16).hex(),
        )
        column = self.column(name)
        function = columns.function_of(column, udf)
        runner = Runner(self._runtime.session)
        return filling.backfill(column, function, options, self._pinned, runner, self._runtime.progress)

    def reset_column(self, name: str) -> None:
        """Have the next backfill compute every row of a column once more; the values stay until it has."""
        from floodmark.compute import backfill as filling
        from floodmark.compute.stored.forget import forget
        from floodmark.compute.survey import prefix_of

        column, pinned = self.column(name), self._pinned()
        with filling.turn_of(pinned, column, self._runtime.progress()):
            forget(pinned.objects, name, prefix_of(pinned, column, None))

    @property
    def _columns_objects(self) -> ColumnObjects:
        return ColumnObjects(self._objects)

    def _pinned(self) -> Pinned:
        from floodmark.compute.pinned import Pinned

        snapshot = self.snapshot()
        layout = snapshot.require_layout(self._name)
        selection = self._current(snapshot, None)
        dead = self._dead(snapshot, snapshot.next_offset)
        bounds = (snapshot.purged_before, snapshot.next_offset)
        found = self.catalog
        return Pinned(self._name, str(self.id), self._columns_objects, layout, selection, dead, *bounds, found)

    # What a ledger with a timeline does, with computed columns

    def _beside(self, snapshot: Snapshot) -> Beside | None:  # noqa: ARG002  columns belong to offsets, not to heads
        return computed_columns(self._objects, self.catalog)

    def evolve(self, added: pa.Schema | Mapping[str, Any]) -> pa.Schema:
        """Add optional columns, as a schema or as names and types; older records read as null there.

        A whole new schema is taken too: it may add and reorder columns, and nothing else.
        """
        from floodmark.compute import columns

        columns.check_not_computed(self.catalog, [f.name for f in fields_from(added)])
        return super().evolve(added)

    def purge(self, before: int | str | date | datetime) -> Purge:
        """Remove old slices for good: those whose records all lie before an offset or an event time.

        The chain and the offsets stay. Only whole slices go, so some older records may remain. What was computed from
        them goes too.
        """
        from floodmark.compute.stored import purge

        dataset_id = str(self.id)  # before: what is purged is acknowledged, whatever happens after it
        done = super().purge(before)
        purge.drop_purged(self._columns_objects, done.before, dataset_id)
        return done

    def verify(self) -> Verification:
        """Check every block against the rules and every file against its hashes, those of derived things too."""
        from floodmark.compute.stored.check import column_problems

        found = super().verify()
        try:
            purged, dataset_id = self.snapshot().purged_before, str(self.id)
        except FloodmarkError:  # the chain cannot be read, which was found out already
            purged, dataset_id = 0, ""
        problems = column_problems(self._columns_objects, purged, dataset_id)
        return replace(found, problems=(*found.problems, *problems))
