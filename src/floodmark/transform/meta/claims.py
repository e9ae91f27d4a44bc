"""What runs claim: the records of each input that a key's result takes into account. A claim may never be too high.

A run pins the heads of its inputs, and every key that it processes claims them. When the step's positions have come
to P, every record up to P is accounted for, whatever its key: so any entry may claim P as well, and many runs become
one. Claiming too little costs a call of the function, claiming too much would lose rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NOTHING = -1
"""The position of an input of which no record was read."""

NEVER = -2
"""Stands for the position of a key that was never processed."""

MOST_RUNS = 32
"""So many runs beyond the positions are told apart in what one merge writes."""

SEVERAL = ""
"""The id of what stands for several runs."""


@dataclass(frozen=True)
class RunInfo:
    """A run: its id, when it began (milliseconds), and for each input (a dataset's id) the last offset it could see."""

    id: str
    process_ts: int
    pinned: Mapping[str, int]  # NOTHING where the input had no records

    def up_to(self, dataset: str) -> int:
        return self.pinned.get(dataset, NOTHING)

    def is_within(self, positions: Mapping[str, int]) -> bool:
        """Whether it saw no record beyond the positions."""
        return all(offset <= positions.get(dataset, NOTHING) for dataset, offset in self.pinned.items())


@dataclass(frozen=True)
class Collapsed:
    """Runs with as few numbers as their claims allow."""

    number_of: Mapping[int, int]  # the new number of each old one
    runs: Mapping[int, RunInfo]  # by new number


def collapsed(runs: Mapping[int, RunInfo], positions: Mapping[str, int], next_number: int) -> Collapsed:
    """Give one number to runs that may claim the same; new ones are counted from `next_number`."""
    groups: dict[frozenset[tuple[str, int]], list[int]] = {}
    for number, run in sorted(runs.items()):
        claim = positions if run.is_within(positions) else run.pinned
        groups.setdefault(_canonical(claim), []).append(number)
    kept = sorted(groups.items(), key=lambda item: item[1][-1], reverse=True)
    if len(kept) > MOST_RUNS:
        crowd = [number for _, numbers in kept[MOST_RUNS - 1 :] for number in numbers]
        least = _least([runs[number] for number in crowd], positions)
        kept = [*kept[: MOST_RUNS - 1], (_canonical(least), crowd)]
    number_of: dict[int, int] = {}
    result: dict[int, RunInfo] = {}
    for claim_items, numbers in kept:
        first = runs[numbers[0]]
        if len(numbers) == 1 and _canonical(first.pinned) == claim_items:
            number, one = numbers[0], first
        else:
            number, next_number = next_number, next_number + 1
            one = RunInfo(SEVERAL, max(runs[n].process_ts for n in numbers), dict(sorted(claim_items)))
        result[number] = one
        number_of |= dict.fromkeys(numbers, number)
    return Collapsed(number_of, result)


def _canonical(pinned: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    return frozenset((dataset, offset) for dataset, offset in pinned.items() if offset != NOTHING)


def _least(runs: Iterable[RunInfo], positions: Mapping[str, int]) -> dict[str, int]:
    """What all of these runs saw, and never less than the positions."""
    some = list(runs)
    datasets = {dataset for run in some for dataset in run.pinned} | set(positions)
    return {d: max(min(run.up_to(d) for run in some), positions.get(d, NOTHING)) for d in sorted(datasets)}
