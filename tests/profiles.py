"""How much of the random part a run does. Tests give a number of cases; each profile has its share of it.

- `quick` (`make test-fast`): a quarter of the number.
- `ci` (`make test`): 0.4 of the number, the same cases in every run.
- `soak` (`make soak`): ten times the number, chosen by the seed of the run; in a short one twice the number.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import TypeVar

from hypothesis import HealthCheck, Phase, settings

T = TypeVar("T")

PROFILE = os.environ.get("FLOODMARK_TEST_PROFILE", "ci")
SEED = int(os.environ.get("FLOODMARK_TEST_SEED", "0"))
SHRINK = os.environ.get("FLOODMARK_TEST_SHRINK", "1") == "1"  # mutants need a failure, not the smallest one

SCALE = {"quick": 0.25, "ci": 0.4, "soak": float(os.environ.get("FLOODMARK_SOAK_SCALE", "10"))}
COMPLETE = 10  # from this scale on, soak runs every case of an enumeration
IN_FULL = SCALE[PROFILE] >= COMPLETE
EXAMPLES = 25


def load_hypothesis_profile() -> None:
    """No deadlines, no health check that depends on speed, no database. Only soak is random."""
    for name, scale in SCALE.items():
        settings.register_profile(
            name,
            max_examples=max(10, round(EXAMPLES * scale)),
            deadline=None,
            derandomize=name != "soak",
            database=None,
            print_blob=True,
            phases=[phase for phase in Phase if SHRINK or phase not in (Phase.shrink, Phase.explain)],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        )
    settings.load_profile(PROFILE)


def examples(number: int) -> int:
    """The number of Hypothesis examples."""
    return max(2, round(number * SCALE[PROFILE]))


def seeds(number: int) -> list[int]:
    """Seeds for a test with its own random source: fixed ones, under `soak` more and new ones."""
    first = random.Random(SEED).randrange(1 << 32) if PROFILE == "soak" else 0
    return [first + n for n in range(max(1, round(number * SCALE[PROFILE])))]


def sample(cases: Iterable[T], number: int) -> list[T]:
    """Some of the cases, in their order, always with the first and the last; in a long soak all of them."""
    every = list(cases)
    count = max(2, round(number * SCALE[PROFILE]))
    if IN_FULL or len(every) <= count:
        return every
    chance = random.Random(SEED + len(every))
    chosen = {0, len(every) - 1, *chance.sample(range(len(every)), count)}
    return [every[index] for index in sorted(chosen)]
