"""750,000 plans in a long soak, against the rules read row by row. Each share of them is a test of some seconds."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from floodmark.storage.arrays import I64
from floodmark.timeline.planner import CopyLate, CopyRowGroup, MergeLate, RowGroupBounds, cuts, plan, split
from profiles import IN_FULL, PROFILE, SCALE, sample, seeds
from timeline.test_planner_properties import coalesced, taken

SHARES = 25
PER_SHARE = 30_000 if IN_FULL else round(1_000 * SCALE[PROFILE])


def drawn(chance: Random) -> tuple[list[RowGroupBounds], I64, int, int, bool]:
    """Row groups, late rows and options: few times, so that many are equal, and now and then many rows."""
    size = chance.choice([1, 1, 1, 4])
    last = chance.choice([3, 10, 30, 100])
    edges = sorted(chance.randint(0, last) for _ in range(2 * chance.randint(0, 5 * size)))
    groups = [RowGroupBounds(a, b, chance.randint(1, 20)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    late = sorted(chance.randint(-2, last + 2) for _ in range(chance.randint(0, 20 * size)))
    return groups, np.array(late, np.int64), chance.randint(0, 20), chance.randint(1, 15), chance.random() < 0.5


def check(groups: list[RowGroupBounds], late: I64, small: int, most: int, dedup: bool) -> None:
    """Each row group is copied or merged once; each late row goes where the rules say; all of it is in time order."""
    blocks = coalesced(groups, late.tolist(), dedup)
    bounds = [block for block, _, _ in blocks]
    actions = plan(groups, late, small=small, most=most, dedup=dedup)
    claimed: list[tuple[int, int] | None] = []
    seen: list[int] = []
    spans = []
    for action, following in pairwise([*actions, None]):
        match action:
            case MergeLate(first, last, low, high, late_low, late_high):
                assert (low, high) == (0, sum(group.rows for group in groups[first : last + 1]))
                claimed += [(first, last)] * (late_high - late_low)
                seen += range(first, last + 1)
                least, most_of = min(groups[first].min, late[late_low]), max(groups[last].max, late[late_high - 1])
                spans.append((least, most_of))
            case CopyRowGroup(index, low, high):
                assert (low, high) == (0, groups[index].rows)
                seen.append(index)
                spans.append((groups[index].min, groups[index].max))
            case CopyLate(late_low, late_high):
                rows = late_high - late_low
                assert 0 < rows <= most + most // 2
                assert rows == most or not isinstance(following, CopyLate)
                assert rows <= most or rows - most < small
                claimed += [None] * rows
                spans.append((late[late_low], late[late_high - 1]))
    places = {time: taken(bounds, time, small) for time in set(late.tolist())}
    wanted = [places[time] for time in late.tolist()]
    assert claimed == [None if at is None else blocks[at][1:] for at in wanted]
    assert seen == list(range(len(groups)))
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


def check_cuts(late: I64, most: int) -> None:
    """The chunks of a merge result have all rows, and none has too many."""
    found, sizes = cuts(late, most), split(len(late), most)
    chunks = [b - a for a, b in pairwise([0, *found, len(late)])]
    assert len(found) == max(0, len(sizes) - 1)
    assert all(0 < chunk <= most + most // 2 for chunk in chunks) or not len(late)


@pytest.mark.soak
@pytest.mark.parametrize("share", sample(range(SHARES), 1))
def test_any_plan_follows_the_rules(share: int) -> None:
    first = seeds(1)[0] + share * PER_SHARE
    for seed in range(first, first + PER_SHARE):
        world = drawn(Random(seed))
        try:
            check(*world)
            check_cuts(world[1], world[3])
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {world}: {error}") from error
