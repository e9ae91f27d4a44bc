"""The keys of some units shared out as tasks, in rounds.

Where the columns of an output are not known, one task goes ahead: its first rows decide them for all others.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyroaring import BitMap

from floodmark.engine import Progress, Raised
from floodmark.engine.rounds import Pace, Runner, share
from floodmark.transform.errors import WorkersKeepDying
from floodmark.transform.functions.returned import OutputShape
from floodmark.transform.tasks.apply import apply
from floodmark.transform.tasks.checkpoints import Stored
from floodmark.transform.tasks.columns import known_columns, learnt, no_value, seen_columns, undecided
from floodmark.transform.tasks.reuse import FoundIndex, conformed, divided
from floodmark.transform.tasks.work import Applied, Missing, Task, Unit, Work

LEAST_ROWS = 1 << 14
"""So few rows are one task while nothing is known about the function's speed."""

MOST_ROWS = 1 << 20
"""So many rows are worth a task of their own, whatever the speed."""

MOST_LOST = 100
"""So many keys may cost a worker's life in one wave: to find each takes several deaths."""

_TASKS_PER_CORE = 4
_MOST_TASKS_PER_CORE = 64
"""However slow the function seems: a task that proves too large gives its rest back, too small ones only cost."""


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
    seen = seen_columns(work.outputs, [s.undecided for s in found], work.function.name)
    work = replace(work, seen=seen)
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
    rounds = share(
        [Missing(unit) for unit in units],
        lambda missing, pace: _tasks(work, missing, pace, runner.cores),
        lambda: partial(apply, work),
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
        work = _agreed(work, applied)  # which the next round's tasks know
    shares_used = [] if work.found is None else work.found.shares(used)
    _check_decided(work, [*stored.values(), *(s for s, mine in shares_used if len(mine))])
    # Tasks that began at once may have learnt different columns: now there is one answer.
    fresh = [conformed(work.store, s, work.outputs) for s in stored.values()]
    reused, left = [], []
    if work.found is not None:
        cut = partial(divided, work.store, work.outputs)
        for mine, rest in runner.run_light(shares_used, cut):
            reused += mine
            left += rest
    return Computed((*reused, *fresh), tuple(left), work.outputs, len(used), calls)


def _tasks(work: Work, missing: Sequence[Missing], pace: Pace, cores: int) -> list[Task]:
    """The tasks of one round."""
    each = _rows_each(sum(m.unit.rows for m in missing), pace, cores)
    groups = shares(missing, each)
    if pace.is_first and len(groups) > 1 and any(shape.layout is None for shape in work.outputs):
        return [replace(_task(work, missing, pace.patience), goes_ahead=True)]
    return [_task(work, group, pace.patience) for group in groups]


def _rows_each(total: int, pace: Pace, cores: int) -> int:
    if pace.rows is None:
        return max(LEAST_ROWS, min(MOST_ROWS, -(-total // (cores * _TASKS_PER_CORE))))
    wanted = max(pace.rows, total // (cores * _MOST_TASKS_PER_CORE))
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


@dataclass
class _GiveUp:
    """Makes of a task of one key, which no worker lives through, one that writes it down as failed."""

    function: str
    left: int

    def __call__(self, task: Task, failure: Raised) -> Task | None:
        if task.lost is not None or len(task.units) > 1 or task.units[0].halves() is not None:
            return None
        self.left -= 1
        if self.left < 0:
            raise WorkersKeepDying(
                f"workers died over {MOST_LOST} keys of {self.function!r}, the last time so: {failure.error}",
                hint="So many are no accident of single keys: call the function on one key in a process of its own.",
                function=self.function,
            )
        return replace(task, lost=failure)


# What tasks have learnt


def _agreed(work: Work, applied: Sequence[Applied]) -> Work:
    """The same with what tasks have learnt of the columns of outputs: all of it goes together, or is refused."""
    seen = seen_columns(work.outputs, [work.seen, *(a.seen for a in applied)], work.function.name)
    outputs = list(work.outputs)
    for n, columns in enumerate(seen):
        if columns is not None and not undecided(columns):
            outputs[n] = learnt(outputs[n], columns)
    return replace(work, outputs=tuple(outputs), seen=seen)


def _check_decided(work: Work, stored: Sequence[Stored]) -> None:
    """Refuse rows with a column whose type nobody knows."""
    for n, (shape, columns) in enumerate(zip(work.outputs, work.seen, strict=True)):
        if shape.layout is None and columns is not None and any(s.outputs[n] is not None for s in stored):
            raise no_value(shape, columns, work.function.name)
