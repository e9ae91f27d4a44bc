"""Backfills in simulated time: tasks run here, one after the other, each on the virtual core that is free first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from floodmark.engine.rounds import TaskRunner
from floodmark.engine.session import Session

Cost = Callable[[int, int, bool], float]
"""Seconds of a call by its first row, its number of rows, and whether its core has not called the function before."""


@dataclass
class Machine:
    """Cores, each with its own time. What a function costs passes on the core that calls it."""

    number: int
    cost: Cost
    free: list[tuple[float, int]] = field(default_factory=list)
    now: float = 0.0
    core: int = 0
    calls: list[list[int]] = field(default_factory=list)  # the rows of the calls of each core

    def __post_init__(self) -> None:
        self.free = [(0.0, core) for core in range(self.number)]
        self.calls = [[] for _ in range(self.number)]

    def __call__(self) -> float:
        return self.now

    @property
    def end(self) -> float:
        return max(at for at, _ in self.free)

    def begin(self) -> None:
        """Continue on the core that is free first."""
        self.now, self.core = heapq.heappop(self.free)

    def finish(self) -> None:
        heapq.heappush(self.free, (self.now, self.core))

    def wait(self) -> None:
        """All cores wait for the last one, as at the end of a round."""
        self.free = [(self.end, core) for core in range(self.number)]

    def call(self, first: int, rows: int) -> None:
        self.now += self.cost(first, rows, not self.calls[self.core])
        self.calls[self.core].append(rows)


class VirtualCores(TaskRunner):
    """Runs the tasks of each round on a machine."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(Session())
        self.machine = machine

    @property
    def cores(self) -> int:
        return self.machine.number

    def run(self, tasks: Sequence[Any], function: Callable[..., Any], **rules: Any) -> list[Any]:
        results = []
        for task in tasks:
            self.machine.begin()
            results.append(function(task, clock=self.machine))
            self.machine.finish()
        self.machine.wait()
        return results


def fixed_size_seconds(cost: Cost, rows: int, size: int, cores: int) -> float:
    """What it takes when all calls have the same number of rows."""
    machine = Machine(cores, cost)
    for first in range(0, rows, size):
        machine.begin()
        machine.call(first, min(size, rows - first))
        machine.finish()
    return machine.end


def best_fixed_size(cost: Callable[[], Cost], rows: int, cores: int, largest: int) -> tuple[float, int]:
    """The shortest time of any fixed size up to the largest, and that size. A few hundred sizes are tried."""
    return min((fixed_size_seconds(cost(), rows, size, cores), size) for size in _sizes(rows, largest))


def _sizes(rows: int, largest: int) -> Iterable[int]:
    size = 1.0
    while size < min(rows, largest):
        if rows / size <= 20_000:
            yield int(size)
        size *= 1.19
    yield min(rows, largest)
