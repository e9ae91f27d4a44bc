"""Compute the keys of units of work: divide them into tasks, in rounds, and collect the stored results.

If the columns of an output are not known, one task runs first: its first rows decide the columns for all others.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyroaring import BitMap

from floodmark.engine.progress import Progress
from floodmark.engine.rounds import TaskPace, TaskRunner, run_rounds
from floodmark.engine.task import TaskRaised
from floodmark.errors import EngineError
from floodmark.functions.step_result import OutputShape
from floodmark.transforms.chunk_results import (
    StoredChunk,
    join_seen_columns,
    undecided_column_error,
    undecided_columns,
    with_known_columns,
    with_learnt_columns,
)
from floodmark.transforms.result_lookup import ResultIndex, conform_chunk, divide_chunk
from floodmark.transforms.task import RemainingUnit, TransformTask, TransformTaskResult, TransformWork, Unit, run_task

LEAST_ROWS = 1 << 14
"""The fewest rows of a task while the function's speed is not known."""

MOST_ROWS = 1 << 20
"""The most rows of a task, at any speed."""

MOST_LOST = 100
"""How many keys of one wave may crash their worker. To find each such key, several workers must die."""

_TASKS_PER_CORE = 4


@dataclass(frozen=True)
class WaveResults:
    """The results of some units: stored chunks that are ready to be committed."""

    stored: tuple[StoredChunk, ...]
    left: tuple[StoredChunk, ...]  # chunks of earlier runs that were not used; another wave may use them
    outputs: tuple[OutputShape, ...]  # with the columns that were learnt
    reused: int  # the number of keys with results of earlier runs
    calls: int

    @property
    def keys(self) -> int:
        """The number of processed keys: with results, failed or gone."""
        return sum(s.keys + s.gone_keys for s in self.stored)

    @property
    def gone(self) -> int:
        return sum(s.gone_keys for s in self.stored)

    @property
    def failed(self) -> int:
        return sum(s.failed for s in self.stored)

    @property
    def called(self) -> int:
        """The number of keys that the function was called with."""
        return sum(s.keys for s in self.stored) - self.reused


def compute(
    work: TransformWork, units: Sequence[Unit], found: Sequence[StoredChunk], runner: TaskRunner, progress: Progress
) -> WaveResults:
    """Process the keys of these units, each once. Keys with stored results of earlier runs (`found`) are not called."""
    work = replace(work, outputs=with_known_columns(work.outputs, found))
    seen = join_seen_columns(work.outputs, [s.undecided for s in found], work.function.name)
    work = replace(work, seen=seen)
    if not found:
        return _compute(work, units, runner, progress)
    index = ResultIndex.make(work.store, found)
    try:
        return _compute(replace(work, found=index), units, runner, progress)
    finally:
        index.delete()


def _compute(work: TransformWork, units: Sequence[Unit], runner: TaskRunner, progress: Progress) -> WaveResults:
    stored: dict[str, StoredChunk] = {}
    used = BitMap()
    calls = 0
    rounds = run_rounds(
        [RemainingUnit(unit) for unit in units],
        lambda missing, pace: _tasks(work, missing, pace, runner.cores),
        lambda: partial(run_task, work),
        runner,
        target_seconds=work.target_seconds,
        progress=progress,
        halve=lambda task: halves(work, task),
        give_up=_GiveUp(work.function.name, MOST_LOST),
    )
    for applied in rounds:
        for a in applied:
            stored.update((s.id, s) for s in a.stored)
            used |= a.used
            calls += a.calls
        work = _agree_on_columns(work, applied)  # the next round's tasks use these columns
    shares_used = [] if work.found is None else work.found.shares(used)
    _check_decided(work, [*stored.values(), *(s for s, mine in shares_used if len(mine))])
    # Concurrent tasks may have learnt different columns: now all results get the same ones.
    fresh = [conform_chunk(work.store, s, work.outputs) for s in stored.values()]
    reused, left = [], []
    if work.found is not None:
        cut = partial(divide_chunk, work.store, work.outputs)
        for mine, rest in runner.run_light(shares_used, cut):
            reused += mine
            left += rest
    return WaveResults((*reused, *fresh), tuple(left), work.outputs, len(used), calls)


def _tasks(work: TransformWork, missing: Sequence[RemainingUnit], pace: TaskPace, cores: int) -> list[TransformTask]:
    """The tasks of one round."""
    each = _rows_each(sum(m.unit.rows for m in missing), pace, cores)
    groups = group_units(missing, each)
    if pace.is_first and len(groups) > 1 and any(shape.layout is None for shape in work.outputs):
        return [replace(_task(work, missing, pace.patience), runs_first=True)]
    return [_task(work, group, pace.patience) for group in groups]


def _rows_each(total: int, pace: TaskPace, cores: int) -> int:
    if pace.rows is None:
        return max(LEAST_ROWS, min(MOST_ROWS, -(-total // (cores * _TASKS_PER_CORE))))
    return min(MOST_ROWS, pace.task_rows(total, cores))


def _task(work: TransformWork, group: Sequence[RemainingUnit], patience: float) -> TransformTask:
    inherited = {s.id: s for m in group for s in m.done}
    return TransformTask(
        uuid.uuid4().hex, tuple(m.unit for m in group), work.chunk_size, patience, tuple(inherited.values())
    )


def group_units(missing: Sequence[RemainingUnit], each: int) -> list[list[RemainingUnit]]:
    """Group consecutive units up to `each` rows per group; units with far more rows are halved first."""
    groups: list[list[RemainingUnit]] = []
    free = 0
    waiting = list(reversed(missing))
    while waiting:
        m = waiting.pop()
        if m.unit.rows > each + each // 2 and (parts := m.unit.halves()) is not None:
            waiting += [replace(m, unit=parts[1]), replace(m, unit=parts[0])]
            continue
        if not groups or m.unit.rows > free:
            groups.append([])
            free = each
        groups[-1].append(m)
        free -= m.unit.rows
    return groups


def halves(work: TransformWork, task: TransformTask) -> tuple[TransformTask, TransformTask] | None:
    """Two tasks with half the keys each, for a task that did not fit into memory; None if it has a single key.

    Usually one call runs out of memory, so chunks get an eighth of the keys: then few workers die until one fits. The
    results that the task had stored are looked up here, once, so that both halves use the same ones.
    """
    middle = len(task.units) // 2
    parts: tuple[tuple[Unit, ...], tuple[Unit, ...]] = (task.units[:middle], task.units[middle:])
    if len(task.units) == 1:
        cut = task.units[0].halves()
        if cut is None:
            return None
        parts = ((cut[0],), (cut[1],))
    stored = (*task.inherited, *work.store.of_tasks([task.id], work.outputs))
    smaller = replace(task, chunk_size=max(1, min(task.chunk_size, task.rows) // 8), inherited=stored)
    first, second = (replace(smaller, id=uuid.uuid4().hex, units=part) for part in parts)
    return first, second


@dataclass
class _GiveUp:
    """Replaces a task with one key that crashes every worker by a task that stores the key as failed."""

    function: str
    left: int

    def __call__(self, task: TransformTask, failure: TaskRaised) -> TransformTask | None:
        if task.lost is not None or len(task.units) > 1 or task.units[0].halves() is not None:
            return None
        self.left -= 1
        if self.left < 0:
            raise EngineError(
                f"more than {MOST_LOST} keys of {self.function!r} crashed their worker, the last one: {failure.error}",
                hint="Fix the function: so many crashes are not caused by single keys. Call it on one key to debug it.",
                function=self.function,
            )
        return replace(task, lost=failure)


# Columns that tasks have learnt


def _agree_on_columns(work: TransformWork, applied: Sequence[TransformTaskResult]) -> TransformWork:
    """The work with the columns of outputs that tasks have learnt; refused if they do not fit together."""
    seen = join_seen_columns(work.outputs, [work.seen, *(a.seen for a in applied)], work.function.name)
    outputs = list(work.outputs)
    for n, columns in enumerate(seen):
        if columns is not None and not undecided_columns(columns):
            outputs[n] = with_learnt_columns(outputs[n], columns)
    return replace(work, outputs=tuple(outputs), seen=seen)


def _check_decided(work: TransformWork, stored: Sequence[StoredChunk]) -> None:
    """Refuse rows with a column whose type is not known."""
    for n, (shape, columns) in enumerate(zip(work.outputs, work.seen, strict=True)):
        if shape.layout is None and columns is not None and any(s.outputs[n] is not None for s in stored):
            raise undecided_column_error(shape, columns, work.function.name)
