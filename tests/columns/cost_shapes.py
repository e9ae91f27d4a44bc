"""What calls of users' functions cost: the shapes for which the size of calls must be near the best one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from columns.virtual_cores import Cost


@dataclass(frozen=True)
class Shape:
    """A kind of function, and a number of rows for which the best fixed size of calls takes 30 s on four cores."""

    rows: int
    cost: Callable[[random.Random], Cost]


def _part(first: int, rows: int, change: int, before: float, after: float) -> float:
    """The seconds of rows that cost more from a certain row on."""
    early = max(0, min(rows, change - first))
    return early * before + (rows - early) * after


SHAPES = {
    "fixed only": Shape(1 << 23, lambda _: lambda first, rows, cold: 1.0),
    "per row only": Shape(150_000, lambda _: lambda first, rows, cold: 1e-3 * rows),
    "both": Shape(2_000_000, lambda _: lambda first, rows, cold: 0.7 + 1e-4 * rows),
    "noisy": Shape(150_000, lambda chance: lambda first, rows, cold: (0.3 + 1e-3 * rows) * chance.uniform(0.5, 1.5)),
    "slower midway": Shape(
        300_000,
        lambda _: lambda first, rows, cold: (0.2 if first < 150_000 else 2.0) + _part(first, rows, 150_000, 1e-4, 1e-3),
    ),
    "memory-bound": Shape(
        150_000, lambda _: lambda first, rows, cold: 0.05 + 1e-3 * min(rows, 500) + 5e-3 * max(0, rows - 500)
    ),
    "bimodal": Shape(
        30_000,
        lambda chance: (
            lambda first, rows, cold: 0.2 + 1e-3 * rows + 0.05 * sum(chance.random() < 0.1 for _ in range(rows))
        ),
    ),
    "warm-up": Shape(60_000, lambda _: lambda first, rows, cold: (20.0 if cold else 0.0) + 0.1 + 5e-3 * rows),
}
