"""Queries that are easily taken for what they are not: after changes each shows what it gives from scratch."""

from __future__ import annotations

from random import Random

import pytest

from histories.views import History
from profiles import sample
from transforms.worlds import in_this_process
from views.view_oracle import Scratch, assert_same
from views.view_worlds import ODD, make_view_world


@pytest.mark.spark
@pytest.mark.soak
def test_query_that_is_odd_shows_what_it_gives_from_scratch(tmp_path, session):
    with in_this_process():
        world = make_view_world(tmp_path, session)
        history = History(world, Scratch(session.get()), Random(2026))
        world.source("flights", (1, "a", 0, 1), (2, "b", 1, 5), (3, None, 0, 2), (4, "a", 1, 3), (5, "b", None, 7))
        world.source("events", ("a", 0, 1), ("b", 1, 5), (None, 1, 2))
        world.source("notes", (1, "a", 1), (2, "b", 2), (3, None, 3), (4, "a", 4))
        world.source("weather", ("a", 10), ("c", 30))
        cases = sample(ODD, 12)
        for case in cases:
            world.declare(case.name)
            world.refresh(case.name)
            assert case.kind in ("", world.lake.view(case.name).refresh_kind), case.name
        # Who has no partner yet gets one, and who has one loses it; nothing happens to rows without a group.
        world.source("weather", ("b", 20))
        world.lake["weather"].delete(["a"])
        world.source("notes", (5, "c", 1))
        world.lake["notes"].delete([1])
        world.source("flights", (4, "a", 1, 6), (6, "c", 1, 2))
        world.lake["flights"].delete([1])
        world.source("events", ("b", 2, 2))
        for case in cases:
            before = history.shown(case.name)
            world.refresh(case.name)
            assert_same(history.shown(case.name), history.right(case.name), f"{case.name}, which was {before}")
