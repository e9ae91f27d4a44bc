"""Any set of pairs as rectangles: a cross join's function gets all of one side with all of the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from floodmark.storage.arrays import I64


def rectangles(parts: Sequence[I64]) -> list[I64]:
    """Positions of tuples (one part number per side, all tuples different) grouped so that each group is a product.

    Tuples that agree in all sides but the last have a set of values there; those with one set belong together. What is
    left is the same question with one side less.
    """
    everyone = np.arange(len(parts[0]), dtype=np.int64)
    return [np.sort(group) for group in _grouped([np.asarray(p, np.int64) for p in parts], everyone)]


def _grouped(parts: list[I64], positions: I64) -> list[I64]:
    if len(positions) == 0:
        return []
    if len(parts) == 1:
        return [positions]
    prefix = _numbered(parts[:-1])
    sets = _set_numbers(prefix, parts[-1])
    found: list[I64] = []
    for number in np.unique(sets).tolist():
        mine = np.flatnonzero(sets == number)
        # Tuples with one set are a product of their prefixes and that set: what one of its values has, all have.
        first = mine[parts[-1][mine] == parts[-1][mine[0]]]
        for group in _grouped([p[first] for p in parts[:-1]], first):
            chosen = np.isin(prefix[mine], prefix[group])
            found.append(positions[mine[chosen]])
    return found


def _numbered(parts: Sequence[I64]) -> I64:
    """Equal tuples get equal numbers."""
    number = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        _, inner = np.unique(part, return_inverse=True)
        _, number = np.unique(number * (int(inner.max(initial=0)) + 1) + inner, return_inverse=True)
    return number.astype(np.int64)


def _set_numbers(prefix: I64, last: I64) -> I64:
    """For each tuple the number of the set of last parts that its prefix has."""
    order = np.lexsort((last, prefix))
    sorted_prefix, sorted_last = prefix[order], last[order]
    starts = np.flatnonzero(np.diff(sorted_prefix, prepend=-1))
    lengths = np.diff(np.append(starts, len(order)))
    # Sets of one length are compared as rows of one matrix: exact, and nothing is hashed.
    numbers = np.empty(len(starts), np.int64)
    used = 0
    for length in np.unique(lengths).tolist():
        which = np.flatnonzero(lengths == length)
        matrix = sorted_last[starts[which][:, None] + np.arange(length)]
        _, inverse = np.unique(matrix, axis=0, return_inverse=True)
        numbers[which] = inverse.reshape(-1) + used
        used += len(which)
    result: I64 = numbers[prefix]
    return result


def blocks(sizes: Sequence[int], largest: int) -> list[tuple[slice, ...]]:
    """A product of sides of these lengths cut into products of at most `largest` members, as few as is easy."""
    widths = list(sizes)
    while _product(widths) > largest and max(widths) > 1:
        longest = int(np.argmax(widths))
        rest = _product(widths) // widths[longest]
        widths[longest] = max(1, min(-(-widths[longest] // 2), max(largest // max(rest, 1), 1)))
    cuts = [[slice(at, min(at + w, size)) for at in range(0, size, w)] for size, w in zip(sizes, widths, strict=True)]
    made: list[tuple[slice, ...]] = [()]
    for side in cuts:
        made = [(*before, cut) for before in made for cut in side]
    return made


def _product(values: Sequence[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result
