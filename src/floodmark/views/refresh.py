"""Refresh of a view: take a snapshot, find the changed keys, run the query for these rows, commit. Start here.

The snapshot of the view and its inputs is taken before any data is read; readers see the old result until the single
commit at the end. A refresh starts again from a new snapshot if another one commits first or if an input is replaced
during the read. Function values stay in checkpoints and are reused. Modules that are needed only when there is work
are imported late.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from floodmark.derive.inputs import LakeLike
from floodmark.derive.lost_records import report_lost_records
from floodmark.derive.run import Derivation, run_derivation, take_dataset_turn
from floodmark.engine.task import NotShippable
from floodmark.errors import BadMeta, InputMoved, LostRace, StorageError
from floodmark.views.plan import RefreshReport
from floodmark.views.replacement import carry_values, install
from floodmark.views.snapshot import RESET_VERSION, OutdatedView, ViewSnapshot, has_name, take_view_snapshot

if TYPE_CHECKING:
    from floodmark.functions.udf import Udf


R = TypeVar("R")


def refresh(
    lake: LakeLike,
    name: str,
    *,
    retry_errors: bool = False,
    udfs: Sequence[Udf] = (),
    cache: dict[str, Any] | None = None,
) -> RefreshReport:
    """Bring a view up to date. If there is nothing to do, it reads little and writes nothing.

    With `retry_errors`, functions are called again for the rows that failed. `udfs` are functions of the view that
    this process does not know otherwise. `cache` has the parts of the view's key index that the last refresh opened.
    """
    return run_derivation(_ViewRefresh(lake, name, retry_errors, tuple(udfs), cache, lake.runtime.clock()))


def reset(lake: LakeLike, name: str) -> None:
    """Make the next refresh recompute everything. Readers keep the current rows until then."""
    run_derivation(_ViewReset(lake, name))


class _ViewReanalysed(InputMoved, LostRace):
    """The query was analysed again for the current columns of its inputs: take a new snapshot."""


@dataclass
class _ViewDerivation(Derivation[ViewSnapshot | OutdatedView, R]):
    """The common part of a refresh and a reset: the snapshot, the lock, and whether the view has changed."""

    lake: LakeLike
    name: str

    def take_snapshot(self) -> ViewSnapshot | OutdatedView:
        return take_view_snapshot(self.lake, self.name)

    def turn(self, state: ViewSnapshot | OutdatedView) -> AbstractContextManager[None]:
        other = f"another refresh of {self.name}"
        return take_dataset_turn(state.snapshot.objects, other, self.lake.runtime.progress())

    def moved(self, state: ViewSnapshot | OutdatedView) -> bool:
        return state.snapshot.has_moved or not has_name(state)


@dataclass
class _ViewRefresh(_ViewDerivation[RefreshReport]):
    retry_errors: bool
    udfs: tuple[Udf, ...]
    cache: dict[str, Any] | None
    started: int  # nanoseconds
    began: float = field(default_factory=time.monotonic)
    reanalysed: int = 0

    replaced = (BadMeta, StorageError, OSError)

    def idle(self, state: ViewSnapshot | OutdatedView) -> RefreshReport | None:
        if isinstance(state, OutdatedView) or not _has_no_work(state, self.retry_errors):
            return None
        report = _empty_report(state, self.began)
        return replace(report, why=None, commits=self.reanalysed) if self.reanalysed else report

    def inputs_moved(self, state: ViewSnapshot | OutdatedView) -> bool:
        return isinstance(state, ViewSnapshot) and any(source.given.snapshot.has_moved for source in state.sources)

    def attempt(self, state: ViewSnapshot | OutdatedView) -> RefreshReport:
        if isinstance(state, OutdatedView):
            _reanalyse(self.lake, state)
            self.reanalysed += 1
            raise _ViewReanalysed(
                f"the columns of the inputs of view {self.name!r} kept changing",
                hint="refresh it again",
                input=self.name,
            )
        if state.is_filled_replacement and state.is_computed:
            return _install_replacement(self.lake, state, _empty_report(state, self.began))
        report = _install_replacement(self.lake, state, self._derived(state))
        return replace(report, seconds=time.monotonic() - self.began)

    def _derived(self, view_snapshot: ViewSnapshot) -> RefreshReport:
        from floodmark.views.attempt import RefreshAttempt

        if view_snapshot.replaces is not None and view_snapshot.note is None and view_snapshot.definition.udfs:
            carry_values(view_snapshot.replaces, view_snapshot.snapshot)
        # The cache belongs to the view's current dataset, not to one that replaces it.
        known = self.cache if self.cache is not None and view_snapshot.replaces is None else {}
        report_lost_records(self.name, view_snapshot.lost, "everything is computed again")
        attempt = RefreshAttempt(
            self.lake, view_snapshot, self.udfs, self.retry_errors, known, self.began, self.started
        )
        try:
            return attempt.run()
        except NotShippable:
            attempt.check_shippable()  # raises a more exact error
            raise


@dataclass
class _ViewReset(_ViewDerivation[bool]):
    """Removes the stored function values and marks the view for a full recomputation."""

    def attempt(self, state: ViewSnapshot | OutdatedView) -> bool:
        from floodmark.columns.catalog import ColumnObjects
        from floodmark.derive.commit import CommitMoves, KeyResults, commit_results

        objects, runtime = state.snapshot.objects, self.lake.runtime
        values = ColumnObjects(objects).checkpoints
        # Values first: after a crash here some work is lost, but the note must never exist together with old values.
        for key in values.list_keys():
            values.delete(key)
        if state.note is None or state.note.version == RESET_VERSION:
            return True
        note = replace(state.note, version=RESET_VERSION)
        moved = CommitMoves(checkpoint=note.checkpoint, put=partial(note.put, objects))
        progress = runtime.progress()
        try:
            commit_results(self.name, runtime, state.snapshot, KeyResults((), ()), moved, progress, {})
        finally:
            progress.finish()
        return True


def _has_no_work(view_snapshot: ViewSnapshot, retry_errors: bool) -> bool:
    failed = view_snapshot.note is not None and view_snapshot.note.errors is not None
    return view_snapshot.is_up_to_date and not (
        retry_errors and failed and view_snapshot.has_inputs and not view_snapshot.is_waiting
    )


def _empty_report(view_snapshot: ViewSnapshot, began: float) -> RefreshReport:
    return RefreshReport(
        view=view_snapshot.name,
        kind=view_snapshot.analysis.kind,
        why=view_snapshot.analysis.why,
        waiting=sum(source.waiting for source in view_snapshot.sources),
        positions=view_snapshot.named(view_snapshot.positions),
        seconds=time.monotonic() - began,
    )


def _install_replacement(lake: LakeLike, view_snapshot: ViewSnapshot, report: RefreshReport) -> RefreshReport:
    """Install a rebuilt dataset under the view's name; does nothing for a view that is not being replaced."""
    if view_snapshot.replaces is None:
        return report
    dataset_id = view_snapshot.snapshot.state.dataset_id
    assert dataset_id is not None  # every chain starts with a Seed
    kept = install(lake, view_snapshot.name, view_snapshot.replaces, dataset_id)
    return replace(report, kept_as=kept, commits=report.commits + 1)


def _reanalyse(lake: LakeLike, outdated: OutdatedView) -> None:
    """Analyse a query again after the columns of its inputs changed, and store the result."""
    from floodmark.views.analyzer import analyse_for_lake, named_in_errors
    from floodmark.views.replacement import redefine
    from floodmark.views.stored_definition import StoredView, check_refresh_policy

    name, known = outdated.name, outdated.stored
    analysed = analyse_for_lake(
        lake, known.definition, view=name, known=known.analysis, settings=known.analysis.settings
    )
    stored = StoredView(known.definition, analysed)
    with named_in_errors(name):
        check_refresh_policy(stored)
    redefine(lake, name, stored, instead_of=known.definition)
