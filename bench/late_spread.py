"""Late rows over some of many row groups with late_merge="always": only these row groups are rewritten.

Run: python bench/late_spread.py --rows 10000000 --row-group-size 100000
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

import numpy as np

from floodmark.timeline.pieces import Piece
from measuring import Figure, measured
from ticks import DAY, LENGTH, largest_row_group, opened, ticks


def _measure(root: Path, args: argparse.Namespace) -> list[Figure]:
    world = opened(root / "lake", args.rows, args.row_group_size, args.late, "anywhere", "always")
    groups = args.rows // args.row_group_size
    length = LENGTH // groups
    ratios, wrong, largest = [], 0, 0
    for number in range(args.repeats):
        rng = np.random.default_rng(number)
        chosen = np.sort(rng.choice(groups, args.over, replace=False))
        times = np.concatenate([DAY + int(g) * LENGTH // groups + rng.integers(0, length, args.late) for g in chosen])
        times = rng.permutation(times)[: args.late]
        before = world.partition().settled
        bytes_before = world.store.bytes
        world.dataset.write(ticks(times, seed=number))
        after = world.partition()
        hit = [before[i] for i in sorted(set(_spans(before, times)))]
        ratios.append((world.store.bytes - bytes_before) / sum(piece.size for piece in hit))
        gone, stay = _names(before) - _names(after.settled), _names(after.settled) - _names(before)
        wrong += len(gone ^ _names(hit)) + abs(len(stay) - len(hit)) + len(after.waiting)
        largest = max(largest, largest_row_group(after))
    return [
        Figure(
            "bytes",
            f"{args.late:,} rows over {args.over} of {groups} row groups: bytes written ÷ those row groups",
            max(ratios),
            f"the most of {args.repeats} commits, {mean(ratios):.3f} on average",
        ),
        Figure(
            "wrong", "row groups rewritten that need not be, or not rewritten that must", wrong, f"{args.over} a commit"
        ),
        Figure("largest", "largest row group ÷ row_group_size", largest / args.row_group_size, f"{largest:,} rows"),
    ]


def _spans(settled: tuple[Piece, ...], times: np.ndarray) -> list[int]:
    """The number of the piece whose span contains each time. No time equals the first time of a row group here."""
    firsts = np.array([piece.first.time for piece in settled])
    return (np.searchsorted(firsts, times, side="right") - 1).tolist()


def _names(pieces: tuple[Piece, ...] | list[Piece]) -> set[tuple[str, int, int, int]]:
    return {(piece.file, piece.row_group, piece.row_lo, piece.row_hi) for piece in pieces}


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=5_000_000, row_group_size=50_000, late=1_000, over=10, repeats=5)
