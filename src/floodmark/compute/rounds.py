"""The missing rows of some fragments shared out as tasks, in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.apply import apply
from floodmark.compute.options import Options
from floodmark.compute.pinned import Pinned
from floodmark.compute.plan import FragmentPlan, Share, rows_each, shares
from floodmark.compute.work import Applied, RangeTask, Sizes, Work
from floodmark.engine import Progress
from floodmark.engine.rounds import Pace, Runner, share

CALL_ROWS = 1 << 16
"""How many rows a function is handed at once at most, when checkpoints may be of any size."""


def compute(
    work: Work, pinned: Pinned, wave: Sequence[FragmentPlan], options: Options, runner: Runner, progress: Progress
) -> list[Applied]:
    """Compute what these fragments lack."""
    plans = {f.number: f for f in wave}

    def cut(missing: Sequence[tuple[int, BitMap]], pace: Pace) -> list[RangeTask]:
        rows: dict[int, BitMap] = {}
        for fragment, some in missing:
            rows[fragment] = rows.get(fragment, BitMap()) | some
        each = options.task_size or _rows_each(rows, pace, runner, work)
        return [
            _task(work, pinned, plans[part.fragment], part, options, pace) for part in shares([*rows.items()], each)
        ]

    rounds = share(
        [(f.number, rows) for f in wave if (rows := f.to_compute)],
        cut,
        lambda: partial(apply, work),
        runner,
        target_seconds=options.target_seconds,
        progress=progress,
        halve=halves,
    )
    return [applied for round_ in rounds for applied in round_]


def _rows_each(rows: dict[int, BitMap], pace: Pace, runner: Runner, work: Work) -> int:
    if pace.rows is None:
        return rows_each(sum(map(len, rows.values())), len(rows), runner.cores, work.fragment_rows)
    return max(1, min(work.fragment_rows, pace.rows))


def _task(work: Work, pinned: Pinned, plan: FragmentPlan, part: Share, options: Options, pace: Pace) -> RangeTask:
    low, high = options.checkpoint_sizes(work.udf, work.fragment_rows)
    base = plan.window.base
    return RangeTask(
        share=part,
        base=base,
        selection=pinned.records(base + part.start, base + part.end),
        sizes=Sizes(low, high, low if pace.rows is None else max(low, min(high, pace.rows)), options.target_seconds),
        call_rows=CALL_ROWS if low < high else high,
        patience=pace.patience if options.task_size is None else float("inf"),  # the user's tasks are done as they are
        again=plan.again & part.rows,
        direct=_direct(plan, part),
    )


def _direct(plan: FragmentPlan, part: Share) -> tuple[int, int] | None:
    """The span of the file that a task may write by itself: it computes all that goes into it."""
    if not part.whole or len(plan.targets) != 1 or plan.targets[0].replaced or part.rows != plan.to_store:
        return None
    return plan.targets[0].start, plan.targets[0].end


def halves(task: RangeTask) -> tuple[RangeTask, RangeTask] | None:
    """Two tasks with half the rows each, for one that did not fit into memory; None when it has a single row.

    It is a call that runs out of memory: with an eighth of its rows, few deaths find out what fits.
    """
    share = task.share
    if len(share.rows) < 2:
        return None
    middle = share.rows[len(share.rows) // 2]
    call_rows = max(1, min(task.call_rows, len(share.rows)) // 8)
    smaller = replace(task, call_rows=call_rows, direct=None)
    return _part(smaller, share.start, middle), _part(smaller, middle, share.end)


def _part(task: RangeTask, start: int, end: int) -> RangeTask:
    """The addresses [start, end) of a task, with the records that they need."""
    share, selection = task.share, task.selection
    base = selection.start - share.start
    files = tuple(f for f in selection.files if f.start < base + end and f.end > base + start)
    return replace(
        task,
        share=Share(share.fragment, start, end, share.rows & addresses.span(start, end), whole=False),
        selection=selection.of(files, base + start, base + end),
    )
