"""Rounds: units are shared out as tasks; what slow tasks give back is shared out anew, by measured speed.

Where the columns of an output are not known, one task goes ahead: its first rows decide them for all others.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyroaring import BitMap

from floodmark.compute.runner import Runner
from floodmark.engine import Progress
from floodmark.transform.functions.returned import OutputShape
from floodmark.transform.tasks.apply import apply, known_columns
from floodmark.transform.tasks.checkpoints import Stored
from floodmark.transform.tasks.reuse import FoundIndex
from floodmark.transform.tasks.trim import conformed, divided
from floodmark.transform.tasks.work import Applied, Task, Unit, Work

PROBING = 0.2
"""While nothing is known about the function's speed, a task that will take long gives its rest back after this part of
the target duration."""

LEAST_ROWS = 1 << 14
"""So few rows are one task while nothing is known about the function's speed."""

MOST_ROWS = 1 << 20
"""So many rows are worth a task of their own, whatever the speed."""

_TASKS_PER_CORE = 4
_MOST_TASKS_PER_CORE = 64
"""However slow the function seems: a task that proves too large gives its rest back, too small ones only cost."""


@dataclass(frozen=True)
class Missing:
    """A unit that is to be processed, but for what these checkpoints have."""

    unit: Unit
    done: tuple[Stored, ...] = ()


@dataclass(frozen=True)
class Computed:
    """What came of the units: checkpoints that are ready to be committed."""

    stored: tuple[Stored, ...]
    left: tuple[Stored, ...]  # found ones that were of no use here; another wave may want them
    outputs: tuple[OutputShape, ...]  # with what was learnt of their columns
    reused: int  # keys whose results were found
    calls: int

    @property
    def keys(self) -> int:
        """All keys that were processed: with results, failed or gone."""
        return sum(s.keys + s.gone_keys for s in self.stored)

    @property
    def gone(self) -> int:
        return sum(s.gone_keys for s in self.stored)

    @property
    def failed(self) -> int:
        return sum(s.failed for s in self.stored)

    @property
    def called(self) -> int:
        """Keys that the function was called with."""
        return sum(s.keys for s in self.stored) - self.reused


def compute(work: Work, units: Sequence[Unit], found: Sequence[Stored], runner: Runner, progress: Progress) -> Computed:
    """Process the keys of these units, each once; what is found in checkpoints of an earlier run is not called."""
    work = replace(work, outputs=known_columns(work.outputs, found))
    if not found:
        return _compute(work, units, runner, progress)
    index = FoundIndex.make(work.store, found)
    try:
        return _compute(replace(work, found=index), units, runner, progress)
    finally:
        index.delete()


def _compute(work: Work, units: Sequence[Unit], runner: Runner, progress: Progress) -> Computed:
    stored: dict[str, Stored] = {}
    used = BitMap()
    calls = 0
    rate: float | None = None
    missing = [Missing(unit) for unit in units]
    total = sum(unit.rows for unit in units)
    first = True
    while missing:
        tasks = _tasks(work, missing, rate, runner.cores)
        if first and len(tasks) > 1 and any(shape.layout is None for shape in work.outputs):
            tasks = [replace(_task(work, missing, tasks[0].patience), goes_ahead=True)]
        first = False
        applied = runner.run(
            tasks, partial(apply, work), halve=partial(halves, work), worth=_keys, progress=progress, rows=total
        )
        for a in applied:
            stored.update((s.id, s) for s in a.stored)
            used |= a.used
            calls += a.calls
        work = replace(work, outputs=_agreed(work.outputs, applied))
        rate = _rate(applied) or rate
        # Only the first unit that a task gives back can have been begun.
        missing = [Missing(unit, a.inherited if n else a.stored) for a in applied for n, unit in enumerate(a.rest)]
    # Tasks that began at once may have learnt different columns: now there is one answer.
    fresh = [conformed(work.store, s, work.outputs) for s in stored.values()]
    reused, left = [], []
    if work.found is not None:
        cut = partial(divided, work.store, work.outputs)
        for mine, rest in runner.run_light(work.found.shares(used), cut):
            reused += mine
            left += rest
    return Computed((*reused, *fresh), tuple(left), work.outputs, len(used), calls)


def _tasks(work: Work, missing: Sequence[Missing], rate: float | None, cores: int) -> list[Task]:
    """The tasks of one round."""
    each = _rows_each(sum(m.unit.rows for m in missing), rate, cores, work.target_seconds)
    patience = work.target_seconds * (PROBING if rate is None else 1.0)
    return [_task(work, group, patience) for group in shares(missing, each)]


def _rows_each(total: int, rate: float | None, cores: int, target_seconds: float) -> int:
    if rate is None:
        return max(LEAST_ROWS, min(MOST_ROWS, -(-total // (cores * _TASKS_PER_CORE))))
    wanted = max(int(rate * target_seconds), total // (cores * _MOST_TASKS_PER_CORE))
    return max(1, min(MOST_ROWS, wanted, -(-total // cores)))


def _task(work: Work, group: Sequence[Missing], patience: float) -> Task:
    inherited = {s.id: s for m in group for s in m.done}
    return Task(uuid.uuid4().hex, tuple(m.unit for m in group), work.chunk_size, patience, tuple(inherited.values()))


def shares(missing: Sequence[Missing], each: int) -> list[list[Missing]]:
    """Neighbouring units taken together until they have so many rows; those that have far more are halved first."""
    groups: list[list[Missing]] = []
    room = 0
    waiting = list(reversed(missing))
    while waiting:
        m = waiting.pop()
        if m.unit.rows > each + each // 2 and (parts := m.unit.halves()) is not None:
            waiting += [replace(m, unit=parts[1]), replace(m, unit=parts[0])]
            continue
        if not groups or m.unit.rows > room:
            groups.append([])
            room = each
        groups[-1].append(m)
        room -= m.unit.rows
    return groups


def halves(work: Work, task: Task) -> tuple[Task, Task] | None:
    """Two tasks with half the keys each, for one that did not fit into memory; None when it has a single key.

    It is a call that runs out of memory: with an eighth of its keys, few deaths find out what fits. What the task had
    stored is looked up here, once, so that both know the same of it.
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


def _keys(applied: Applied) -> int:
    return applied.keys


def _rate(applied: Sequence[Applied]) -> float | None:
    """Rows per second of one worker."""
    rows, seconds = sum(a.rows for a in applied), sum(a.seconds for a in applied)
    return rows / seconds if rows and seconds else None


# What tasks have learnt


def _agreed(outputs: tuple[OutputShape, ...], applied: Sequence[Applied]) -> tuple[OutputShape, ...]:
    """The outputs with the columns that the first task knew which had any."""
    agreed = list(outputs)
    for a in applied:
        agreed = [theirs if ours.layout is None else ours for ours, theirs in zip(agreed, a.outputs, strict=True)]
    return tuple(agreed)
