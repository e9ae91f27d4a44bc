"""Backfill: plan, compute what is missing, assemble, commit. The place to start reading.

Each wave of fragments is computed by tasks on workers, assembled into files and committed in one swap. What a killed
run has stored is found by the next one; nothing is visible before its commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.assemble import Assembled, AssembleTask, assemble
from floodmark.compute.checkpoints.found import Mending
from floodmark.compute.errors import BadColumn, BadRowErrors, ColumnChanged, UnreadableColumn
from floodmark.compute.functions.udf import Udf
from floodmark.compute.options import Options
from floodmark.compute.pinned import Pinned
from floodmark.compute.plan import FragmentPlan
from floodmark.compute.rounds import compute
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored import manifest, row_errors
from floodmark.compute.stored.catalog import Column
from floodmark.compute.stored.install import install
from floodmark.compute.stored.manifest import Fragment, Manifest
from floodmark.compute.stored.purge import drop_purged
from floodmark.compute.survey import BackfillPlan, prefix_of, survey
from floodmark.compute.work import Applied, Work
from floodmark.derive.run import Derivation, run
from floodmark.derive.turns import take_turn
from floodmark.engine import Progress
from floodmark.engine.rounds import Runner
from floodmark.errors import Unreadable
from floodmark.ledger.errors import UnreadableSlice

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backfill:
    """What a backfill did, in rows.

    `computed` by calling the function, `failed` rows were skipped and read as null, `reused` came from checkpoints, and
    `done` were there before. `called` counts rows handed to the function, repeats included. `waiting` rows need a
    computed column that is not there yet.
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


def backfill(
    column: Column,
    udf: Udf,
    options: Options,
    pin: Callable[[], Pinned],
    runner: Runner,
    progress: Callable[[], Progress],
) -> Backfill:
    """Bring a column up to date; `pin` takes the present state of the dataset."""
    options.checkpoint_sizes(udf, 1)  # refused before anything is done
    return run(_Run(column, udf, options, pin, runner, progress))


@contextmanager
def turn_of(pinned: Pinned, column: Column, progress: Progress) -> Iterator[None]:
    """Wait for other backfills of the column, and say so if it takes a while: who comes second finds it done."""
    objects = pinned.objects
    with take_turn(objects.store, objects.turn_key(column.field_id), f"another backfill of {column.name}", progress):
        if pinned.start > pinned.catalog.purged_before:
            drop_purged(objects, pinned.start, pinned.dataset_id)  # one was killed on the way here
        try:
            yield
        finally:
            purged = catalogs.load(objects).purged_before
            if purged > pinned.start:
                drop_purged(objects, purged, pinned.dataset_id)  # tasks may have stored rows after it had removed them


@dataclass(frozen=True)
class _State:
    pinned: Pinned
    column: Column
    plan: BackfillPlan


@dataclass
class _Counts:
    """Adds up what happened, over all plans and waves."""

    total: dict[str, int] = field(default_factory=dict)
    first: BackfillPlan | None = None

    def see(self, plan: BackfillPlan) -> None:
        self.first = self.first or plan

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.total[name] = self.total.get(name, 0) + count

    def result(self, state: _State) -> Backfill:
        first = self.first or state.plan
        counts = {"computed": 0, "failed": 0, "stored": 0, **self.total}
        counts["reused"] = max(0, counts.pop("stored") - counts["computed"] - counts["failed"])
        return Backfill(state.column.name, done=first.done, waiting=first.waiting, **counts)


@dataclass
class _Run(Derivation[_State, Backfill]):
    """A backfill of one column, as the loop of derived things runs it."""

    column: Column
    udf: Udf
    options: Options
    pin_dataset: Callable[[], Pinned]
    runner: Runner
    progress: Callable[[], Progress]
    counts: _Counts = field(default_factory=_Counts)
    has_turn: bool = False

    replaced = (UnreadableSlice, BadColumn, UnreadableColumn)  # a purge or a commit took away what tasks were reading

    def pin(self) -> _State:
        pinned = self.pin_dataset()
        column = _same(self.column, pinned)
        # Before the turn, only whether there is anything to do: the plan is made again when the turn is held.
        finder = Mending(pinned.objects.checkpoints, pinned.dataset_id) if self.has_turn else None
        return _State(pinned, column, survey(pinned, column, finder, self.options.where, self.options.retry_errors))

    def idle(self, state: _State) -> Backfill | None:
        is_purged = state.pinned.start <= state.pinned.catalog.purged_before
        return self.counts.result(state) if state.plan.nothing_to_do and is_purged else None

    @contextmanager
    def turn(self, state: _State) -> Iterator[None]:
        with turn_of(state.pinned, state.column, self.progress()):
            self.has_turn = True
            yield

    def is_stale(self, state: _State) -> bool:  # noqa: ARG002
        return True  # another backfill may have stored results and ended without a commit

    def attempt(self, state: _State) -> Backfill:
        self.counts.see(state.plan)
        if not state.plan.nothing_to_do:
            self._carry_out(state)
        return self.counts.result(state)

    def moved(self, state: _State) -> bool:
        now = self.pin_dataset()
        return (now.start, now.catalog) != (state.pinned.start, state.pinned.catalog)

    def repair(self, state: _State, error: Unreadable) -> bool:  # noqa: ARG002
        return True  # a checkpoint proved damaged and is deleted; the next one may be damaged too

    def _carry_out(self, state: _State) -> None:
        pinned, column, options = state.pinned, state.column, self.options
        to_do = [f for f in state.plan.fragments if not f.is_done]
        reused = sum(len(f.ranges) + len(f.data) for f in to_do)
        told = f", {reused} checkpoints reused" if reused else ""
        base = pinned.manifest(column)
        work = work_of(pinned, column, self.udf, options)
        progress = self.progress()
        progress.start(f"computing {column.name} of {pinned.name}{told}", state.plan.missing)
        try:
            for wave in _waves(to_do, options.commit_granularity):
                applied = compute(work, pinned, wave, options, self.runner, progress)
                self.counts.add(
                    computed=sum(a.computed for a in applied),
                    failed=sum(a.failed for a in applied),
                    called=sum(a.called for a in applied),
                )
                written = _assemble(work, wave, applied, self.runner)
                base = _commit(pinned, column, base, wave, written)
                self.counts.add(
                    stored=sum(len(f.to_store) for f in wave),
                    checkpoints_reused=sum(len(f.ranges) + len(f.data) for f in wave),
                    commits=1,
                )
        finally:
            progress.finish()


def _same(column: Column, pinned: Pinned) -> Column:
    """The column as it is now, if it is still the one whose function is at hand."""
    present = pinned.catalog.column(column.name)
    if present.field_id != column.field_id or not present.function.is_same(column.function):
        raise ColumnChanged(
            f"column {column.name!r} of {pinned.name!r} was altered or replaced while its backfill was waiting",
            hint="run the backfill again",
            column=column.name,
        )
    return present


def _waves(plans: Sequence[FragmentPlan], size: int) -> Iterator[Sequence[FragmentPlan]]:
    for first in range(0, len(plans), size):
        yield plans[first : first + size]


def work_of(pinned: Pinned, column: Column, udf: Udf, options: Options) -> Work:
    prefix = prefix_of(pinned, column, options.where)
    return Work(
        objects=pinned.objects,
        records=pinned.objects.dataset,
        fragment_rows=pinned.catalog.fragment_rows,
        layout=pinned.layout,
        beside=pinned.beside,
        column=column.field.remove_metadata(),
        field_id=column.field_id,
        inputs=column.inputs,
        prefix=prefix,
        run=options.run,
        sources=prefix.srcfiles,
        udf=udf,
    )


def _assemble(
    work: Work, wave: Sequence[FragmentPlan], applied: Sequence[Applied], runner: Runner
) -> dict[int, list[Assembled]]:
    """The files of each fragment: those that tasks wrote by themselves, and those put together from checkpoints."""
    written: dict[int, list[Assembled]] = {f.number: [] for f in wave}
    plans = {f.number: f for f in wave}
    for a in applied:
        if a.written is not None:
            [target] = plans[a.share.fragment].targets
            written[a.share.fragment].append(Assembled(target, a.written, a.share.rows, BitMap()))
    tasks = [task for f in wave if not written[f.number] for task in _assemble_tasks(f)]
    for task, made in zip(tasks, runner.run_light(tasks, partial(assemble, work)), strict=True):
        written[task.fragment].append(made)
    return written


def _assemble_tasks(plan: FragmentPlan) -> Iterator[AssembleTask]:
    base = plan.window.base
    for target in plan.targets:
        inside = addresses.span(target.start - base, target.end - base)
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
    pinned: Pinned, column: Column, base: Manifest, wave: Sequence[FragmentPlan], written: dict[int, list[Assembled]]
) -> Manifest:
    fragments = [_committed(pinned, plan, written[plan.number]) for plan in wave]
    changed = {plan.number: _changed(pinned, plan, written[plan.number]) for plan in wave}
    catalog = install(
        pinned.objects,
        pinned.dataset_id,
        column,
        replace(base, read=pinned.read),
        fragments,
        {number: rows for number, rows in changed.items() if rows},
        pinned.identity(column),
    )
    return manifest.load(pinned.objects, catalog.column(column.name))


def _changed(pinned: Pinned, plan: FragmentPlan, made: Sequence[Assembled]) -> BitMap:
    """The rows whose value readers see change.

    Old values that were lost cannot be compared. Those of an older version count as changed, and those of this one do
    if they failed then and do not now, or the reverse, and while they are not computed again: what replaces them may be
    another function's.
    """
    changed = BitMap.union(*[a.changed for a in made], plan.lost.kept, BitMap())
    if not plan.lost.done:
        return changed
    rows = BitMap.union(*[a.rows for a in made], BitMap())
    changed |= plan.lost.done - rows
    try:
        failed = _failed(plan, row_errors.load(pinned.objects, plan.lost.errors))
    except BadRowErrors:
        return changed | plan.lost.done
    now = BitMap.union(*[_failed(plan, a.written.errors) for a in made], BitMap(), BitMap())
    return changed | (plan.lost.done & (failed ^ now))


def _failed(plan: FragmentPlan, errors: pa.Table) -> BitMap:
    return addresses.from_array(errors.column("offset").to_numpy() - plan.window.base)


def _committed(pinned: Pinned, plan: FragmentPlan, made: Sequence[Assembled]) -> Fragment:
    """A fragment with its new files in the place of those that they replace."""
    before = plan.before
    replaced = {s for a in made for s in a.target.replaced}
    segments = sorted(
        [*[s for s in before.segments if s not in replaced], *[a.written.segment for a in made]], key=lambda s: s.start
    )
    rows = BitMap.union(*[a.rows for a in made], BitMap())
    errors = _errors(pinned, plan, rows, [a.written.errors for a in made])
    return replace(
        before,
        segments=tuple(segments),
        done=before.done | rows,
        kept=before.kept - rows,
        hidden=before.hidden - rows,
        errors=errors,
    )


def _errors(pinned: Pinned, plan: FragmentPlan, rows: BitMap, found: Sequence[pa.Table]) -> str | None:
    """The errors of a fragment after some rows were computed: theirs anew, all others as before."""
    before = plan.before.errors
    if before is None and not any(table.num_rows for table in found):
        return None
    stay = (plan.before.done | plan.before.kept) - rows
    try:
        kept = row_errors.only(row_errors.load(pinned.objects, before), stay, plan.window.base)
    except BadRowErrors as error:
        _log.warning("%s; what it said of rows that were not computed now is lost", error.message)
        kept = row_errors.EMPTY
    return row_errors.put(pinned.objects, row_errors.merged([kept, *found]))
