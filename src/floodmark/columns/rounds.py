"""Computes the missing rows of some fragments in rounds of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pyroaring import BitMap

from floodmark.columns.plan import (
    TASKS_PER_CORE,
    BackfillOptions,
    FragmentPlan,
    Share,
    estimate_task_rows,
    split_shares,
)
from floodmark.columns.snapshot import ColumnSnapshot
from floodmark.columns.task import compute_share
from floodmark.columns.work import CheckpointSizes, ColumnJob, RangeResult, RangeTask
from floodmark.engine.progress import Progress
from floodmark.engine.rounds import TaskPace, TaskRunner, run_rounds
from floodmark.storage import row_sets

CALL_ROWS = 1 << 16
"""The maximum number of rows per call of a function when checkpoints may have any size."""


def compute_missing(
    work: ColumnJob,
    column_snapshot: ColumnSnapshot,
    wave: Sequence[FragmentPlan],
    options: BackfillOptions,
    runner: TaskRunner,
    progress: Progress,
) -> list[RangeResult]:
    """Compute the missing rows of these fragments."""
    plans = {f.number: f for f in wave}

    def cut(missing: Sequence[tuple[int, BitMap]], pace: TaskPace) -> list[RangeTask]:
        rows: dict[int, BitMap] = {}
        for fragment, some in missing:
            rows[fragment] = rows.get(fragment, BitMap()) | some
        each = options.task_size or _rows_each(rows, pace, runner, work)
        return [
            _task(work, column_snapshot, plans[part.fragment], part, options, pace)
            for part in split_shares([*rows.items()], each)
        ]

    rounds = run_rounds(
        [(f.number, rows) for f in wave if (rows := f.to_compute)],
        cut,
        lambda: partial(compute_share, work),
        runner,
        target_seconds=options.target_seconds,
        progress=progress,
        halve=split_task,
    )
    return [applied for round_ in rounds for applied in round_]


def _rows_each(rows: dict[int, BitMap], pace: TaskPace, runner: TaskRunner, work: ColumnJob) -> int:
    total = sum(map(len, rows.values()))
    if pace.rows is None:
        return estimate_task_rows(total, len(rows), runner.cores, work.fragment_rows)
    if pace.is_guess:
        return min(work.fragment_rows, -(-total // (TASKS_PER_CORE * runner.cores)))
    return min(work.fragment_rows, pace.task_rows(total, runner.cores))


def _task(
    work: ColumnJob,
    column_snapshot: ColumnSnapshot,
    plan: FragmentPlan,
    part: Share,
    options: BackfillOptions,
    pace: TaskPace,
) -> RangeTask:
    low, high = options.checkpoint_sizes(work.udf, work.fragment_rows)
    base = plan.window.base
    return RangeTask(
        share=part,
        base=base,
        selection=column_snapshot.records(base + part.start, base + part.end),
        sizes=CheckpointSizes(
            low, high, low if pace.rows is None else max(low, min(high, pace.rows)), options.target_seconds
        ),
        call_rows=CALL_ROWS if low < high else high,
        patience=pace.patience if options.task_size is None else float("inf"),  # tasks of a user's size are never split
        again=plan.again & part.rows,
        direct=_direct(plan, part),
        times=pace.times,
    )


def _direct(plan: FragmentPlan, part: Share) -> tuple[int, int] | None:
    """The offsets of the file that a task may write directly, since it computes all of its rows; else None."""
    if not part.whole or len(plan.targets) != 1 or plan.targets[0].replaced or part.rows != plan.to_store:
        return None
    return plan.targets[0].start, plan.targets[0].end


def split_task(task: RangeTask) -> tuple[RangeTask, RangeTask] | None:
    """Split a task that ran out of memory into two halves; None when it has a single row.

    Calls use the memory, so each call also gets an eighth of the rows. This finds a size that fits after few crashes.
    """
    share = task.share
    if len(share.rows) < 2:
        return None
    middle = share.rows[len(share.rows) // 2]
    call_rows = max(1, min(task.call_rows, len(share.rows)) // 8)
    smaller = replace(task, call_rows=call_rows, direct=None)
    return _part(smaller, share.start, middle), _part(smaller, middle, share.end)


def _part(task: RangeTask, start: int, end: int) -> RangeTask:
    """The part of a task for the addresses [start, end), with the records that it reads."""
    share, selection = task.share, task.selection
    base = selection.start - share.start
    files = tuple(f for f in selection.files if f.start < base + end and f.end > base + start)
    return replace(
        task,
        share=Share(share.fragment, start, end, share.rows & row_sets.span(start, end), whole=False),
        selection=selection.of(files, base + start, base + end),
    )
