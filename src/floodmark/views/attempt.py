"""One attempt to refresh a view, from its snapshot to a commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.columns.plan import BackfillOptions
from floodmark.derive.commit import QueryResult
from floodmark.derive.inputs import InputSnapshot, LakeLike
from floodmark.derive.positions import blocks_at
from floodmark.engine.progress import Progress
from floodmark.engine.rounds import TaskRunner
from floodmark.errors import QueryFailed
from floodmark.functions.udf import Udf
from floodmark.ledger.commit import Commit
from floodmark.ledger.data_input import SparkData, TableData
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.ledger.spark_read import table_frame
from floodmark.storage.arrays import I64
from floodmark.storage.scratch import staging_area
from floodmark.views import functions
from floodmark.views.changed_rows import (
    LocalRows,
    SparkRows,
    find_changes,
    read_all_rows,
    read_changed_rows,
    read_keys_at,
    read_rows_at,
)
from floodmark.views.commit import NoteFiles, ViewPublisher
from floodmark.views.definition import UdfColumn, resolve_udf
from floodmark.views.evaluator import Evaluator, IsolatedSession, convert_refresh_errors, empty_result
from floodmark.views.explanation import KeptState, RefreshWork, TableRead, work_of
from floodmark.views.functions import ComputedResult, Failures, FunctionColumns
from floodmark.views.operator_state import StateFiles
from floodmark.views.plan import RefreshReport
from floodmark.views.snapshot import ViewNote, ViewSnapshot
from floodmark.views.sources import ViewInputSnapshot

if TYPE_CHECKING:
    from floodmark.views.delta_run import DeltaRun

_MS = 10**6
_NO_WORK = RefreshWork()
_NO_STATES = StateFiles()
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RefreshAttempt:
    """A refresh of a view from one snapshot of it and its inputs."""

    lake: LakeLike
    view_snapshot: ViewSnapshot
    udfs: tuple[Udf, ...]
    retry_errors: bool
    cache: dict[str, Any] = field(repr=False)  # the open parts of the view's key index
    began: float  # the time of the monotonic clock
    started: int  # nanoseconds: when the refresh began

    def run(self) -> RefreshReport:
        """Compute the changed rows and commit them."""
        view_snapshot, runtime = self.view_snapshot, self.lake.runtime
        progress = runtime.progress()
        progress.start(f"refreshing {view_snapshot.name}", None)
        try:
            with staging_area(view_snapshot.snapshot.objects.store) as folder:
                publisher = ViewPublisher(view_snapshot, runtime, folder, progress, self.cache)
                stale, is_whole = self._stale, view_snapshot.analysis.kind == "whole"
                if stale is not None or (is_whole and (self._records or self.retry_errors)):
                    return self._refresh_whole(publisher, stale)
                if view_snapshot.analysis.carries_changes:
                    return self._carry_changes(publisher)
                if is_whole:
                    return self._refresh_nothing(publisher)
                return self._touched(publisher)
        finally:
            progress.finish()

    @cached_property
    def functions(self) -> tuple[tuple[UdfColumn, Udf], ...]:
        """The columns that functions compute, with their functions."""
        return tuple(
            (c, resolve_udf(self.view_snapshot.name, c, self.udfs)) for c in self.view_snapshot.definition.udfs
        )

    def check_shippable(self) -> None:
        """Raise an error for functions that cannot be sent to workers."""
        for _, udf in self.functions:
            udf.check_shippable()

    @property
    def _stale(self) -> str | None:
        """Why the whole view must be recomputed; None if changed keys are enough."""
        if self.view_snapshot.stale is not None:
            return self.view_snapshot.stale
        if any(int(o) < s.purged_before for s in self.view_snapshot.sources for o in self._failures.offsets[:1]):
            return "a purge carried rows whose function failed, and it is not known where"
        return self.view_snapshot.mostly_new

    # Refresh of the whole view

    def _refresh_whole(self, publisher: ViewPublisher, stale: str | None) -> RefreshReport:
        view_snapshot = self.view_snapshot
        with _timed("everything"):
            answer, states, kept = self._whole_answer()
            computed = self._computed(answer, publisher.folder, publisher.progress)
            files = NoteFiles(Failures().joined({} if computed is None else computed.errors), states)
            work = RefreshWork(whole=stale or view_snapshot.analysis.why, states=kept)
            note = self._note(files, keys=0, computed=computed, work=work)
            with convert_refresh_errors(view_snapshot.name):
                commit = publisher.publish_all(answer if computed is None else computed.answer, note, files)
        return self._report(commit, stale, 0, computed)

    def _whole_answer(self) -> tuple[TableData | SparkData, StateFiles, Mapping[int, KeptState]]:
        view_snapshot = self.view_snapshot
        if self._has_plan:
            from floodmark.views.delta_cache import run_whole
            from floodmark.views.delta_run import as_data

            with convert_refresh_errors(view_snapshot.name):
                analysis, sources = view_snapshot.analysis, view_snapshot.sources
                frame, run, without = run_whole(analysis, sources, self._session, self._not_kept)
                states = StateFiles.of(run.states, dict.fromkeys(without))
                return as_data(self._evaluator.complete(frame)), states, _kept_states(run, states)
        inputs = {
            source.alias: read_all_rows(source, view_snapshot.analysis, self._session)
            for source in view_snapshot.sources
        }
        return self._answer(inputs), _NO_STATES, {}

    # Refresh by changes carried through the query

    def _carry_changes(self, publisher: ViewPublisher) -> RefreshReport:
        from floodmark.views.bag import apply_changes
        from floodmark.views.table_changes import WholeInstead

        view_snapshot = self.view_snapshot
        try:
            with _timed("changes"), convert_refresh_errors(view_snapshot.name):
                run = self._delta_run()
                rows, weights = run.changes()
            view = InputSnapshot(
                view_snapshot.name, str(view_snapshot.snapshot.state.dataset_id), view_snapshot.snapshot, self.cache
            )
            with _timed("rows"):
                after = apply_changes(view, view_snapshot.analysis, rows, weights)
        except WholeInstead as reason:
            return self._refresh_whole(publisher, str(reason))
        except QueryFailed as error:  # the query itself may fail, too, and then the refresh does
            _log.warning("view %s: the changes could not be carried through its query: %s", view_snapshot.name, error)
            return self._refresh_whole(publisher, "the changes could not be carried through the query")
        assert view_snapshot.note is not None
        states = StateFiles.of(run.states, view_snapshot.note.states)
        before = work_of(view_snapshot.note)
        work = replace(run.work, states={**before.states, **_kept_states(run, states)})
        if not after.keys.num_rows:
            return self._refresh_nothing(publisher, work, states)
        files = NoteFiles(self._failures, states)
        note = self._note(files, keys=after.keys.num_rows, computed=None, work=work)
        with _timed("commit"), convert_refresh_errors(view_snapshot.name):
            commit = publisher.publish_some(TableData(after.rows), after.keys, note, files)
        return self._report(commit, None, after.keys.num_rows, None)

    def _delta_run(self) -> DeltaRun:
        """A run of the plans of the changes. `WholeInstead` if it would read rows that were purged since they were."""
        from floodmark.views.delta_cache import delta_run
        from floodmark.views.operator_state import load_state
        from floodmark.views.table_changes import WholeInstead

        view_snapshot, note = self.view_snapshot, self.view_snapshot.note
        if note is None or not note.by_plan:
            raise WholeInstead("it was computed from its SQL text, without a plan")
        states, objects = note.states, view_snapshot.snapshot.objects

        def load(operator: str) -> pa.Table:
            name = states[operator]
            assert name is not None  # otherwise the plan does not use it
            return load_state(name, objects)

        analysis, positions = view_snapshot.analysis, view_snapshot.positions
        run = delta_run(analysis, view_snapshot.sources, self._session, positions, states, load)
        for source in view_snapshot.sources:
            is_purged = note.purged.get(source.dataset_id, 0) != source.purged_before
            if is_purged and any((read.kind, read.table) == ("before", source.alias) for read in run.plan.reads):
                raise WholeInstead(f"records of {source.name!r} were purged")
        return run

    @property
    def _not_kept(self) -> frozenset[str]:
        """The states that an earlier refresh could not keep."""
        note = self.view_snapshot.note
        return frozenset() if note is None else frozenset(name for name, file in note.states.items() if file is None)

    @cached_property
    def _has_plan(self) -> bool:
        """Whether the query is run by a plan with a rule for each operator."""
        if not self.view_snapshot.analysis.carries_changes:
            return False
        from floodmark.views.delta_cache import plan_of
        from floodmark.views.table_changes import WholeInstead

        try:
            plan_of(self.view_snapshot.analysis, self.view_snapshot.sources, self._session, self._not_kept)
        except WholeInstead:
            return False
        return True

    # Refresh of the changed keys

    def _refresh_nothing(
        self, publisher: ViewPublisher, work: RefreshWork = _NO_WORK, states: StateFiles = _NO_STATES
    ) -> RefreshReport:
        """Only move the positions."""
        files = NoteFiles(self._failures, states)
        commit = publisher.publish_nothing(self._note(files, keys=0, computed=None, work=work), files)
        return self._report(commit, None, 0, None)

    def _touched(self, publisher: ViewPublisher) -> RefreshReport:
        view_snapshot, before = self.view_snapshot, self._failures
        with _timed("touched"):
            changed = find_changes(view_snapshot.sources, view_snapshot.analysis, view_snapshot.positions, self._runner)
            again = before.offsets if self.retry_errors else NO_OFFSETS
        if not len(changed) and not len(again):
            return self._refresh_nothing(publisher)
        with _timed("rows"):
            inputs = {
                s.alias: read_changed_rows(s, view_snapshot.analysis, changed, self._session)
                for s in view_snapshot.sources
            }
            keys = changed.keys
            if len(again):
                keys, inputs = self._add_failed_rows(again, keys, inputs)
        with _timed("query"):
            answer = self._answer(inputs)
        with _timed("functions"):
            computed = self._computed(answer, publisher.folder, publisher.progress)
            failed = before if computed is None else before.without(computed.offsets).joined(computed.errors)
        files = NoteFiles(failed)
        note = self._note(files, keys=keys.num_rows, computed=computed, work=_work_of(inputs, view_snapshot))
        with _timed("commit"), convert_refresh_errors(view_snapshot.name):
            rows: QueryResult = answer if computed is None else computed.answer
            commit = publisher.publish_some(rows, keys, note, files)
        return self._report(commit, None, keys.num_rows, computed)

    def _add_failed_rows(
        self, offsets: I64, keys: pa.Table, inputs: Mapping[str, LocalRows | SparkRows]
    ) -> tuple[pa.Table, dict[str, LocalRows | SparkRows]]:
        """Add the rows whose function failed. They are current rows, so the changed keys do not include them."""
        analysis, [source] = self.view_snapshot.analysis, self.view_snapshot.sources
        more, rows = read_rows_at(source, analysis, offsets), inputs[source.alias]
        if isinstance(rows, SparkRows):
            rows = SparkRows(rows.frame.unionAll(table_frame(more, self._session.get())))
        else:
            rows = LocalRows(pa.concat_tables([rows.table, more]))
        return pa.concat_tables([keys, read_keys_at(source, analysis, offsets)]), {source.alias: rows}

    def _answer(self, inputs: Mapping[str, LocalRows | SparkRows]) -> TableData | SparkData:
        """The result of the query. Spark is not called when there are no rows, except for a whole refresh."""
        is_empty = all(isinstance(rows, LocalRows) and not rows.table.num_rows for rows in inputs.values())
        if is_empty and self.view_snapshot.analysis.kind not in ("whole", "changes"):
            return empty_result(self._evaluator.columns, self.view_snapshot.analysis.stored)
        return self._evaluator.evaluate(inputs)

    # Used by both

    @cached_property
    def _session(self) -> IsolatedSession:
        return IsolatedSession(self.lake.runtime.session, self.view_snapshot.analysis.settings)

    @cached_property
    def _runner(self) -> TaskRunner:
        return TaskRunner(self.lake.runtime.session)

    @property
    def _evaluator(self) -> Evaluator:
        names = frozenset(column.name for column, _ in self.functions)
        return Evaluator(self.view_snapshot.name, self.view_snapshot.analysis, names, self._session)

    def _computed(self, answer: TableData | SparkData, folder: Path, progress: Progress) -> ComputedResult | None:
        """The result with the columns of functions; None if the view has no functions."""
        if not self.functions:
            return None
        [source] = self.view_snapshot.sources
        target = self.lake.runtime.checkpoint_seconds
        options = BackfillOptions(retry_errors=self.retry_errors, target_seconds=target)
        objects = self.view_snapshot.snapshot.objects
        parts = (objects, options, self._runner, self.lake.runtime, folder, progress)
        with convert_refresh_errors(self.view_snapshot.name):
            return FunctionColumns(source, self.functions, *parts).complete(answer)

    @cached_property
    def _failures(self) -> Failures:
        """The recorded errors of rows that are still live."""
        note, objects = self.view_snapshot.note, self.view_snapshot.snapshot.objects
        if note is None or note.errors is None:
            return Failures()
        [source] = self.view_snapshot.sources
        failures = functions.load_failures(self.view_snapshot.name, note.errors, objects)
        return failures.carried_to(source.given.carried_to).without(source.given.dead)

    def _note(self, files: NoteFiles, keys: int, computed: ComputedResult | None, work: RefreshWork) -> ViewNote:
        view_snapshot, runtime = self.view_snapshot, self.lake.runtime
        return ViewNote(
            version=view_snapshot.version,
            positions=view_snapshot.last_offsets,
            blocks=blocks_at(view_snapshot.last_offsets, [source.given for source in view_snapshot.sources]),
            purged=view_snapshot.purged,
            generations=view_snapshot.generations,
            errors=files.failures.name,
            states=files.states.names,
            run=runtime.random_bytes(16).hex(),
            process_ts=self.started // _MS,
            records=self._records,
            keys=keys,
            seconds=time.monotonic() - self.began,
            carried=0 if computed is None else computed.carried,
            by_plan=self._has_plan,
            work=work.to_json(),
        )

    @property
    def _records(self) -> int:
        """The number of new records in all inputs."""
        return sum(_new_records(self.view_snapshot, source) for source in self.view_snapshot.sources)

    def _report(self, commit: Commit, stale: str | None, keys: int, computed: ComputedResult | None) -> RefreshReport:
        view_snapshot = self.view_snapshot
        return RefreshReport(
            view=view_snapshot.name,
            kind=view_snapshot.analysis.kind,
            why=view_snapshot.analysis.why,
            stale=stale,
            records=self._records,
            keys=keys,
            new=commit.new,
            changed=commit.changed,
            retracted=commit.retracted,
            called=0 if computed is None else computed.called,
            reused=0 if computed is None else computed.reused,
            carried=0 if computed is None else computed.carried,
            failed=0 if computed is None else computed.failed,
            waiting=sum(source.waiting for source in view_snapshot.sources),
            commits=1,
            positions=view_snapshot.named(view_snapshot.last_offsets),
        )


def _kept_states(run: DeltaRun, states: StateFiles) -> dict[int, KeptState]:
    """The sizes of the states that a run computed or changed, by operator."""
    known = [(state.operator, state.name) for state in run.plan.states if state.name in run.states]
    return {at: KeptState(run.states[name].table.num_rows, len(states.content[name])) for at, name in known}


def _work_of(inputs: Mapping[str, LocalRows | SparkRows], view_snapshot: ViewSnapshot) -> RefreshWork:
    """What a refresh of changed keys read. Rows that Spark read are not counted: it read all, and kept some."""
    reads = []
    for source in view_snapshot.sources:
        rows = inputs[source.alias]
        if isinstance(rows, LocalRows):
            by = tuple(column for _, column in source.use.keys)
            reads.append(TableRead(source.alias, "now", rows.table.num_rows, by))
        else:
            reads.append(TableRead(source.alias, "now", source.given.live_rows))
    return RefreshWork(reads=tuple(reads))


def _new_records(view_snapshot: ViewSnapshot, source: ViewInputSnapshot) -> int:
    return source.given.unread(view_snapshot.positions[source.dataset_id])


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        _log.debug("%s: %.3f s", what, time.perf_counter() - began)
