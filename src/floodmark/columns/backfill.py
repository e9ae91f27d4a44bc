"""Backfill: plan, compute missing rows, assemble files, commit. Start reading here.

Tasks on workers compute each wave of fragments. Its results are assembled into files and committed in one swap.
Nothing is visible before the commit. The next run reuses what a killed run stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns import catalog as catalogs
from floodmark.columns import manifest, row_errors
from floodmark.columns.assemble import AssembledFile, AssembleTask, assemble
from floodmark.columns.carried_values import CarryTask, carry_values
from floodmark.columns.catalog import ColumnDefinition
from floodmark.columns.checkpoints import RepairingFinder
from floodmark.columns.commit import commit_fragments, drop_lost_values
from floodmark.columns.lost_values import find_lost_values
from floodmark.columns.manifest import ColumnManifest, Fragment
from floodmark.columns.plan import BackfillOptions, FragmentPlan
from floodmark.columns.purge import drop_purged, find_carried
from floodmark.columns.rounds import compute_missing
from floodmark.columns.snapshot import ColumnSnapshot
from floodmark.columns.survey import BackfillPlan, column_prefix, plan_backfill
from floodmark.columns.work import ColumnJob, RangeResult
from floodmark.derive.lost_records import report_lost_records
from floodmark.derive.run import Derivation, run_derivation, take_turn
from floodmark.engine.progress import Progress
from floodmark.engine.rounds import TaskRunner
from floodmark.errors import DerivationError, FunctionFailed, Unreadable, UnreadableColumn, UnreadableSlice
from floodmark.functions.udf import Udf
from floodmark.storage import row_sets

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BackfillReport:
    """What a backfill did, in rows.

    `computed` rows got a value from the function, `failed` rows were skipped and read as null, `reused` rows came from
    checkpoints, `carried` rows took over the value of the record that they replaced, because their inputs are the same,
    and `done` rows had a value before. `called` counts rows passed to the function, including repeated
    calls. `waiting` rows need a value of another computed column that is not computed yet. `restored` says so if the
    dataset was replaced by another copy of it, so that values of lost records were dropped.
    """

    column: str
    computed: int = 0
    failed: int = 0
    reused: int = 0
    done: int = 0
    waiting: int = 0
    called: int = 0
    checkpoints_reused: int = 0
    commits: int = 0
    carried: int = 0
    restored: tuple[str, ...] = ()

    @property
    def notes(self) -> Sequence[str]:
        """What the counts do not show, in sentences."""
        return self.restored


def backfill(
    column: ColumnDefinition,
    udf: Udf,
    options: BackfillOptions,
    pin: Callable[[], ColumnSnapshot],
    runner: TaskRunner,
    progress: Callable[[], Progress],
) -> BackfillReport:
    """Compute the missing values of a column and commit them. `pin` takes a snapshot of the dataset.

    The report of `FunctionFailed` counts what was committed before the function failed.
    """
    options.checkpoint_sizes(udf, 1)  # refuse invalid sizes before any work
    run = _Run(column, udf, options, pin, runner, progress)
    try:
        return run_derivation(run)
    except FunctionFailed as error:
        error.report = run.counts.result(column.name)
        raise


@contextmanager
def take_column_turn(column_snapshot: ColumnSnapshot, column: ColumnDefinition, progress: Progress) -> Iterator[None]:
    """Take the turn of a column's backfills, and report a long wait. A backfill that had to wait reuses the results."""
    objects = column_snapshot.objects
    with take_turn(objects.store, objects.turn_key(column.field_id), f"another backfill of {column.name}", progress):
        if column_snapshot.start > column_snapshot.catalog.purged_before:  # a purge was killed before it did this
            carried = find_carried(column_snapshot.snapshot, column_snapshot.name)
            drop_purged(objects, column_snapshot.start, column_snapshot.dataset_id, carried)
        try:
            yield
        finally:
            purged = catalogs.load(objects).purged_before
            if purged > column_snapshot.start:
                drop_purged(objects, purged, column_snapshot.dataset_id)  # tasks may have stored rows after the purge


@dataclass(frozen=True)
class _State:
    column_snapshot: ColumnSnapshot
    column: ColumnDefinition
    plan: BackfillPlan


@dataclass
class _Counts:
    """Sums the counts of all plans and waves."""

    total: dict[str, int] = field(default_factory=dict)
    first: BackfillPlan | None = None
    restored: tuple[str, ...] = ()

    def see(self, plan: BackfillPlan) -> None:
        self.first = self.first or plan

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.total[name] = self.total.get(name, 0) + count

    def result(self, column: str, plan: BackfillPlan | None = None) -> BackfillReport:
        first = self.first or plan
        assert first is not None
        counts = {"computed": 0, "failed": 0, "carried": 0, "stored": 0, **self.total}
        others = counts["computed"] + counts["failed"] + counts["carried"]
        counts["reused"] = max(0, counts.pop("stored") - others)
        return BackfillReport(column, done=first.done, waiting=first.waiting, restored=self.restored, **counts)


@dataclass
class _Run(Derivation[_State, BackfillReport]):
    """A backfill of one column, which `derive.run` executes."""

    column: ColumnDefinition
    udf: Udf
    options: BackfillOptions
    take_column_snapshot: Callable[[], ColumnSnapshot]
    runner: TaskRunner
    progress: Callable[[], Progress]
    counts: _Counts = field(default_factory=_Counts)
    has_turn: bool = False

    replaced = (
        UnreadableSlice,
        UnreadableColumn,
        UnreadableColumn,
    )  # a purge or a commit removed what tasks were reading

    def take_snapshot(self) -> _State:
        column_snapshot = self.take_column_snapshot()
        column = _current_column(self.column, column_snapshot)
        # Before it has the turn, it only checks whether there is anything to do. Then it plans again.
        checkpoints = column_snapshot.checkpoints_in(column_snapshot.objects)
        finder = RepairingFinder(checkpoints, column_snapshot.dataset_id) if self.has_turn else None
        if (lost := find_lost_values(column, column_snapshot)) is not None and not self.counts.restored:
            self.counts.restored = report_lost_records(f"column {column.name}", [lost], "their values are dropped")
        return _State(
            column_snapshot,
            column,
            plan_backfill(column_snapshot, column, finder, self.options.where, self.options.retry_errors, self.runner),
        )

    def idle(self, state: _State) -> BackfillReport | None:
        is_purged = state.column_snapshot.start <= state.column_snapshot.catalog.purged_before
        is_whole = find_lost_values(state.column, state.column_snapshot) is None
        if not (state.plan.nothing_to_do and is_purged and is_whole):
            return None
        return self.counts.result(state.column.name, state.plan)

    @contextmanager
    def turn(self, state: _State) -> Iterator[None]:
        with take_column_turn(state.column_snapshot, state.column, self.progress()):
            if find_lost_values(state.column, state.column_snapshot) is not None:
                drop_lost_values(state.column_snapshot.objects, state.column.name, state.column_snapshot)
            self.has_turn = True
            yield

    def is_stale(self, state: _State) -> bool:  # noqa: ARG002
        return True  # another backfill may have stored results and ended without a commit

    def attempt(self, state: _State) -> BackfillReport:
        self.counts.see(state.plan)
        if not state.plan.nothing_to_do:
            self._carry_out(state)
        return self.counts.result(state.column.name)

    def moved(self, state: _State) -> bool:
        now = self.take_column_snapshot()
        return (now.start, now.catalog) != (state.column_snapshot.start, state.column_snapshot.catalog)

    def repair(self, state: _State, error: Unreadable) -> bool:  # noqa: ARG002
        return True  # a damaged checkpoint was deleted; others may be damaged, too

    def _carry_out(self, state: _State) -> None:
        column_snapshot, column, options = state.column_snapshot, state.column, self.options
        to_do = [f for f in state.plan.fragments if not f.is_done]
        reused = sum(len(f.ranges) + len(f.data) for f in to_do)
        suffix = f", {reused} checkpoints reused" if reused else ""
        base = column_snapshot.manifest(column)
        work = build_column_job(column_snapshot, column, self.udf, options)
        progress = self.progress()
        progress.start(f"computing {column.name} of {column_snapshot.name}{suffix}", state.plan.missing)
        try:
            for planned in _waves(to_do, options.commit_granularity):
                wave = _carry_over(work, planned, self.runner)
                self.counts.add(carried=sum(len(f.carried) for f in wave))
                applied = compute_missing(work, column_snapshot, wave, options, self.runner, progress)
                self.counts.add(
                    computed=sum(a.computed for a in applied),
                    failed=sum(a.failed for a in applied),
                    called=sum(a.called for a in applied),
                )
                written = _assemble(work, wave, applied, self.runner)
                base = _commit(column_snapshot, column, base, wave, written)
                self.counts.add(
                    stored=sum(len(f.to_store) for f in wave),
                    checkpoints_reused=sum(len(f.ranges) + len(f.data) for f in wave),
                    commits=1,
                )
        finally:
            progress.finish()


def _current_column(column: ColumnDefinition, column_snapshot: ColumnSnapshot) -> ColumnDefinition:
    """The current definition of the column, if it still has the same function."""
    present = column_snapshot.catalog.column(column.name)
    if present.field_id != column.field_id or not present.function.is_same(column.function):
        raise DerivationError(
            f"column {column.name!r} of {column_snapshot.name!r} was altered or replaced while its backfill waited",
            hint="run the backfill again",
            column=column.name,
        )
    return present


def _carry_over(work: ColumnJob, wave: Sequence[FragmentPlan], runner: TaskRunner) -> list[FragmentPlan]:
    """Store the values that records take over. Where that fails, the plans returned compute them."""
    tasks = [CarryTask(f.number, f.carried, f.sources) for f in wave if len(f.carried)]
    results = runner.run_light(tasks, partial(carry_values, work))
    stored = {task.fragment: rows for task, rows in zip(tasks, results, strict=True)}
    return [f.carried_only(stored.get(f.number, BitMap())) for f in wave]


def _waves(plans: Sequence[FragmentPlan], size: int) -> Iterator[Sequence[FragmentPlan]]:
    for first in range(0, len(plans), size):
        yield plans[first : first + size]


def build_column_job(
    column_snapshot: ColumnSnapshot, column: ColumnDefinition, udf: Udf, options: BackfillOptions
) -> ColumnJob:
    prefix = column_prefix(column_snapshot, column, options.where)
    return ColumnJob(
        objects=column_snapshot.objects,
        records=column_snapshot.objects.dataset,
        fragment_rows=column_snapshot.catalog.fragment_rows,
        layout=column_snapshot.layout,
        beside=column_snapshot.beside,
        column=column.field.remove_metadata(),
        field_id=column.field_id,
        inputs=column.inputs,
        prefix=prefix,
        run=options.run,
        sources=prefix.srcfiles,
        udf=udf,
        newest=column_snapshot.read,
    )


def _assemble(
    work: ColumnJob, wave: Sequence[FragmentPlan], applied: Sequence[RangeResult], runner: TaskRunner
) -> dict[int, list[AssembledFile]]:
    """The new files of each fragment: those that tasks wrote directly, and those assembled from checkpoints."""
    written: dict[int, list[AssembledFile]] = {f.number: [] for f in wave}
    plans = {f.number: f for f in wave}
    for a in applied:
        if a.written is not None:
            [target] = plans[a.share.fragment].targets
            written[a.share.fragment].append(AssembledFile(target, a.written, a.share.rows, BitMap()))
    tasks = [task for f in wave if not written[f.number] for task in _assemble_tasks(f)]
    for task, made in zip(tasks, runner.run_light(tasks, partial(assemble, work)), strict=True):
        written[task.fragment].append(made)
    return written


def _assemble_tasks(plan: FragmentPlan) -> Iterator[AssembleTask]:
    base = plan.window.base
    for target in plan.targets:
        inside = row_sets.span(target.start - base, target.end - base)
        rows = plan.to_store & inside
        visible = (plan.before.done | plan.before.kept) & inside
        stay = (plan.before.done & inside) - rows
        yield AssembleTask(
            plan.number,
            target,
            rows,
            stay,
            plan.window.live & inside,
            visible,
            errors=plan.before.errors,
            again=plan.again & inside,
        )


def _commit(
    column_snapshot: ColumnSnapshot,
    column: ColumnDefinition,
    base: ColumnManifest,
    wave: Sequence[FragmentPlan],
    written: dict[int, list[AssembledFile]],
) -> ColumnManifest:
    fragments = [_merged_fragment(column_snapshot, plan, written[plan.number]) for plan in wave]
    changed = {plan.number: _changed(column_snapshot, plan, written[plan.number]) for plan in wave}
    catalog = commit_fragments(
        column_snapshot.objects,
        column_snapshot.dataset_id,
        column,
        base,
        fragments,
        {number: rows for number, rows in changed.items() if rows},
        column_snapshot.identity(column),
        column_snapshot.read,
    )
    return manifest.load(column_snapshot.objects, catalog.column(column.name))


def _changed(column_snapshot: ColumnSnapshot, plan: FragmentPlan, made: Sequence[AssembledFile]) -> BitMap:
    """The rows whose visible value changes.

    Values of a lost file cannot be compared. A lost value of an older version counts as changed. A lost value of this
    version counts as changed if the row failed before and not now, or the reverse, or if it is not computed again:
    another function may replace it.
    """
    changed = BitMap.union(*[a.changed for a in made], plan.lost.kept, BitMap())
    if not plan.lost.done:
        return changed
    rows = BitMap.union(*[a.rows for a in made], BitMap())
    changed |= plan.lost.done - rows
    try:
        failed = _failed(plan, row_errors.load(column_snapshot.objects, plan.lost.errors))
    except UnreadableColumn:
        return changed | plan.lost.done
    now = BitMap.union(*[_failed(plan, a.written.errors) for a in made], BitMap(), BitMap())
    return changed | (plan.lost.done & (failed ^ now))


def _failed(plan: FragmentPlan, errors: pa.Table) -> BitMap:
    return row_sets.from_array(errors.column("offset").to_numpy() - plan.window.base)


def _merged_fragment(column_snapshot: ColumnSnapshot, plan: FragmentPlan, made: Sequence[AssembledFile]) -> Fragment:
    """A fragment whose new files replace the old ones."""
    before = plan.before
    replaced = {s for a in made for s in a.target.replaced}
    segments = sorted(
        [*[s for s in before.segments if s not in replaced], *[a.written.segment for a in made]], key=lambda s: s.start
    )
    rows = BitMap.union(*[a.rows for a in made], BitMap())
    errors = _errors(column_snapshot, plan, rows, [a.written.errors for a in made])
    return replace(
        before,
        segments=tuple(segments),
        done=before.done | rows,
        kept=before.kept - rows,
        hidden=before.hidden - rows,
        errors=errors,
        carried=(before.carried - rows) | (plan.carried_rows & rows),
    )


def _errors(column_snapshot: ColumnSnapshot, plan: FragmentPlan, rows: BitMap, found: Sequence[pa.Table]) -> str | None:
    """The errors of a fragment after some rows were computed: the new errors of these rows, the old ones of others."""
    before = plan.before.errors
    if before is None and not any(table.num_rows for table in found):
        return None
    stay = (plan.before.done | plan.before.kept) - rows
    try:
        kept = row_errors.only(row_errors.load(column_snapshot.objects, before), stay, plan.window.base)
    except UnreadableColumn as error:
        _log.warning("%s; the errors of rows that were not computed again are lost", error.message)
        kept = row_errors.EMPTY
    return row_errors.put(column_snapshot.objects, row_errors.merge_errors([kept, *found]))
