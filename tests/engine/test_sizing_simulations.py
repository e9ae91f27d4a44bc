"""250,000 functions of any cost in a long soak: their calls take little longer than those of the best fixed size."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

from columns.virtual_cores import Cost
from engine.test_call_size import LARGEST, called
from profiles import IN_FULL, PROFILE, SCALE, sample, seeds

SHARES = 50
PER_SHARE = 5_000 if IN_FULL else round(50 * SCALE[PROFILE])
KINDS = ["fixed only", "per row only", "both", "noisy", "slower midway", "memory-bound", "bimodal", "warm-up"]
BY_CHANCE = {"noisy", "bimodal", "memory-bound"}  # the best size is known on average, or must be searched for
MOST_ON_AVERAGE, MOST, MOST_BY_CHANCE = 1.5, 2.0, 5.0
LEAST_SECONDS, LEAST_CALLS = 30.0, 16  # for shorter work the first small calls, which must be made, weigh more


@dataclass(frozen=True)
class Work:
    """Rows to call a function for, what its calls cost, and the shortest time of any fixed size of calls."""

    kind: str
    rows: int
    cost: Cost
    best: float
    is_long: bool


def drawn(seed: int) -> Work:
    chance = Random(seed)
    kind = KINDS[seed % len(KINDS)]
    fixed = 0.0 if kind == "per row only" else _spread(chance, 0.02, 3)
    per_row = 0.0 if kind == "fixed only" else _spread(chance, 1e-4, 0.3)
    seconds = _spread(chance, 30, 90)
    rows = max(2, min(int(LARGEST * seconds / fixed if per_row == 0 else seconds / per_row), 3_000_000))

    def plain(n: float) -> float:
        return fixed + per_row * n

    def steady(first: int, n: int, cold: bool) -> float:
        return plain(n)

    cost, best = steady, best_of(plain, rows)
    match kind:
        case "noisy":
            cost = lambda first, n, cold: plain(n) * chance.uniform(0.5, 1.5)  # noqa: E731
        case "slower midway":
            factor, half = chance.uniform(2, 10), rows // 2
            cost = lambda first, n, cold: plain(n) * (factor if first >= half else 1)  # noqa: E731
            best = best_of(plain, half) + factor * best_of(plain, rows - half)
        case "memory-bound":
            room, steep = int(_spread(chance, 50, 5000)), per_row * chance.uniform(2, 8)

            def bound(n: float) -> float:
                return fixed + per_row * min(n, room) + steep * max(n - room, 0)

            cost, best = lambda first, n, cold: bound(n), best_of(bound, rows)
        case "bimodal":
            part, slow = chance.uniform(0.02, 0.2), per_row * chance.uniform(2, 50)

            def rare(first: int, n: int, cold: bool) -> float:
                count = chance.gauss(n * part, math.sqrt(n * part * (1 - part)))
                return plain(n) + slow * min(n, max(0, round(count)))

            cost, best = rare, best + slow * part * rows
        case "warm-up":
            loading = chance.uniform(1, 30)
            cost, best = lambda first, n, cold: plain(n) + loading * cold, best + loading
    return Work(kind, rows, cost, best, best >= max(LEAST_SECONDS, LEAST_CALLS * fixed))


def _spread(chance: Random, low: float, high: float) -> float:
    """A number between these, as likely small as large."""
    return math.exp(chance.uniform(math.log(low), math.log(high)))


def best_of(cost: Callable[[float], float], rows: int) -> float:
    """The shortest time of any fixed size of calls; sizes that differ by a fifth are tried."""
    largest = max(1, min(rows, LARGEST))
    sizes = np.unique(np.append((1.19 ** np.arange(math.log(largest, 1.19))).astype(np.int64), largest)).tolist()
    return min(rows // n * cost(n) + (cost(rows % n) if rows % n else 0.0) for n in sizes)


@pytest.mark.soak
@pytest.mark.parametrize("share", sample(range(SHARES), 1))
def test_calls_of_any_cost_take_little_longer_than_those_of_the_best_size(share: int) -> None:
    first = seeds(1)[0] + share * PER_SHARE
    ratios = defaultdict(list)
    for seed in range(first, first + PER_SHARE):
        work = drawn(seed)
        sizes, seconds = called(work.cost, work.rows)
        assert sum(sizes) == work.rows, f"seed {seed}"
        assert min(sizes) >= 1, f"seed {seed}"
        if work.is_long:
            ratio = seconds / work.best
            assert ratio <= (MOST_BY_CHANCE if work.kind in BY_CHANCE else MOST), f"seed {seed}: {work}"
            ratios[work.kind].append(ratio)
    for kind, found in ratios.items():
        assert len(found) < 10 or sum(found) / len(found) <= MOST_ON_AVERAGE, f"{kind} in share {share} from {first}"
