"""Refreshes that are killed at any change, and two at once: a reader sees whole generations only, nothing is lost."""

from __future__ import annotations

import random
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from columns.counting import Calls
from faults import view_runs
from faults.mortal import NEVER, PATIENCE, context, ended, started
from faults.view_runs import COUNTS, generation, make, problem, refresh_all
from profiles import seeds


def heard(connection: Any) -> Any:
    assert connection.poll(PATIENCE), "the process hangs"
    return connection.recv()


def assert_generation(lake: Any, number: int) -> None:
    for name in COUNTS:
        table = lake[name].to_arrow()
        assert problem(name, table) is None
        assert table["v"][0].as_py() == number
        assert lake[name].verify().problems == ()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.soak(only=True)
@pytest.mark.parametrize("seed", seeds(1))
def test_reader_sees_one_generation_at_any_instant_while_refreshes_are_raced_and_killed(seed, tmp_path, session):
    chance = random.Random(seed)
    lake = make(tmp_path, session)
    with ExitStack() as running:
        refresher, refreshing = context.Pipe()
        reader, reading = context.Pipe()
        process = running.enter_context(started(view_runs.refresh, tmp_path, refreshing))
        running.enter_context(started(view_runs.read, tmp_path, reading))
        assert heard(refresher) == "ready"

        generation(lake, 2)  # two at once: the work is done once
        with ThreadPoolExecutor(1) as pool:
            ours = pool.submit(refresh_all, lake, tmp_path)
            refresher.send(NEVER)
            reports = [ours.result(), heard(refresher)]
        for name in COUNTS:
            assert [report[name]["nothing"] for report in reports].count(False) == 1, name
        assert_generation(lake, 2)
        assert set(Calls(tmp_path).count().values()) == {1}, "some rows were computed by both"

        generation(lake, 3)
        refresher.send(chance.randrange(100))
        assert ended(process) == -signal.SIGKILL
        assert any(lake[name].to_arrow()["v"][0].as_py() < 3 for name in COUNTS)
        refresh_all(lake, tmp_path)  # the next one completes it, whatever the killed one held
        assert_generation(lake, 3)
        assert all(report["nothing"] for report in refresh_all(lake, tmp_path).values())
        reader.send("end")
        seen = heard(reader)
    assert seen == {"latest": dict.fromkeys(COUNTS, 3), "problems": []}
