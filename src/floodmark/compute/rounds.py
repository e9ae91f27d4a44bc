"""Rounds: the missing rows are shared out as tasks; what slow tasks give back is shared out anew, by measured speed.

So no task lasts much longer than the target duration, and no core waits long for the last one.
"""

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
from floodmark.compute.runner import Runner
from floodmark.compute.work import Applied, RangeTask, Sizes, Work
from floodmark.engine import Progress

PROBING = 0.2
"""While nothing is known about the function's speed, a task that will take long gives its rest back after this part of
the target duration."""

CALL_ROWS = 1 << 16
"""How many rows a function is handed at once at most, when checkpoints may be of any size."""


def compute(
    work: Work, pinned: Pinned, wave: Sequence[FragmentPlan], options: Options, runner: Runner, progress: Progress
) -> list[Applied]:
    """Compute what these fragments lack."""
    done: list[Applied] = []
    plans = {f.number: f for f in wave}
    missing = [(f.number, rows) for f in wave if (rows := f.to_compute)]
    rate: float | None = None
    while missing:
        total = sum(len(rows) for _, rows in missing)
        tasks = [
            _task(work, pinned, plans[share.fragment], share, options, rate)
            for share in shares(missing, _rows_each(total, len(missing), rate, options, runner, work))
        ]
        worth = partial(_told, progress)
        applied = runner.run(tasks, partial(apply, work), halve=halves, worth=worth, progress=progress, rows=total)
        done += applied
        rate = _rate(applied) or rate
        missing = _given_back(applied)
    return done


def _rows_each(total: int, fragments: int, rate: float | None, options: Options, runner: Runner, work: Work) -> int:
    if options.task_size is not None:
        return options.task_size
    if rate is None:
        return rows_each(total, fragments, runner.cores, work.fragment_rows)
    return max(1, min(work.fragment_rows, int(rate * options.target_seconds)))


def _task(
    work: Work, pinned: Pinned, plan: FragmentPlan, share: Share, options: Options, rate: float | None
) -> RangeTask:
    low, high = options.checkpoint_sizes(work.udf, work.fragment_rows)
    start = low if rate is None else max(low, min(high, int(rate * options.target_seconds)))
    if options.task_size is not None:
        patience = float("inf")  # the user's tasks are done as they are
    else:
        patience = options.target_seconds * (PROBING if rate is None else 1.0)
    base = plan.window.base
    return RangeTask(
        share=share,
        base=base,
        selection=pinned.records(base + share.start, base + share.end),
        sizes=Sizes(low, high, start, options.target_seconds),
        call_rows=CALL_ROWS if low < high else high,
        patience=patience,
        again=plan.again & share.rows,
        direct=_direct(plan, share),
    )


def _direct(plan: FragmentPlan, share: Share) -> tuple[int, int] | None:
    """The span of the file that a task may write by itself: it computes all that goes into it."""
    if not share.whole or len(plan.targets) != 1 or plan.targets[0].replaced or share.rows != plan.to_store:
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


def _told(progress: Progress, applied: Applied) -> int:
    """The rows that a task has done; of those that failed, progress is told here."""
    if applied.failed:
        progress.fail(applied.failed)
    return applied.computed + applied.failed


def _rate(applied: Sequence[Applied]) -> float | None:
    """Rows per second of one worker."""
    rows, seconds = sum(a.computed + a.failed for a in applied), sum(a.seconds for a in applied)
    return rows / seconds if rows and seconds else None


def _given_back(applied: Sequence[Applied]) -> list[tuple[int, BitMap]]:
    rest: dict[int, BitMap] = {}
    for a in applied:
        if a.rest:
            rest[a.share.fragment] = rest.get(a.share.fragment, BitMap()) | a.rest
    return sorted(rest.items())
