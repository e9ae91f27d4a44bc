"""Queries that are easily taken for what they are not: after changes each shows what it gives from scratch."""

from __future__ import annotations

from random import Random

import pytest

from transform.views.view_histories import History
from transform.views.view_oracle import Scratch, assert_same
from transform.views.view_worlds import ODD, make_view_world, some_rows, write
from transform.worlds import in_this_process


@pytest.mark.spark
def test_query_that_is_odd_shows_what_it_gives_from_scratch(tmp_path, session):
    with in_this_process():
        world = make_view_world(tmp_path, session)
        history = History(world, Scratch(session.get()), Random(2026))
        for name in ("flights", "events", "notes"):
            write(
                world.source(name),
                [row for row in some_rows(world.source(name), history.chance, 12) if row["g"] != "c"],
            )
        world.source("weather", ("a", 10), ("c", 30))  # who has no partner yet gets one, and who has one loses it
        for case in ODD:
            world.declare(case.name)
            world.refresh(case.name)
            assert case.kind in ("", world.lake.view(case.name).way), case.name
        flights, notes = world.lake["flights"], world.lake["notes"]
        world.source("weather", ("b", 20))
        world.lake["weather"].delete(["a"])
        world.source("notes", (20, "c", 1))
        notes.delete([notes.to_arrow()["n"][0].as_py()])
        write(flights, [{**row, "v": 6} for row in flights.to_arrow().to_pylist()[:1]])
        flights.delete([flights.to_arrow()["id"][-1].as_py()])
        world.source("flights", (20, "c", 1, 2))
        write(world.lake["events"], some_rows(world.lake["events"], history.chance, 1))
        for case in ODD:
            before = history.shown(case.name)
            world.refresh(case.name)
            assert_same(history.shown(case.name), history.right(case.name), f"{case.name}, which was {before}")
