"""A clock that cannot be right, goes back, or is not that of the lake is said, with what it does harm to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from floodmark.maintenance.checks import EARLIEST, check_clock, check_file_times, check_newest

NOW = EARLIEST + 1e8


def saying(*times: float) -> Callable[[], float]:
    left = list(times)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize(
    ("times", "state"), [((NOW, NOW), "ok"), ((NOW, NOW - 1), "bad"), ((0.0,), "bad"), ((1e14,), "bad")]
)
def test_the_clock_can_be_right_and_goes_forward(times: tuple[float, ...], state: str):
    assert check_clock(saying(*times)).state == state


@pytest.mark.parametrize(
    ("apart", "state"), [(0, "ok"), (2, "ok"), (-2, "ok"), (60, "warn"), (-60, "warn"), (7200, "bad"), (-7200, "bad")]
)
def test_new_objects_have_the_time_of_this_machine(apart: float, state: str):
    finding = check_file_times(saying(NOW + apart), saying(NOW))
    assert finding.state == state
    if state != "ok":
        assert ("ahead of" if apart > 0 else "behind") in finding.detail


def test_a_newer_object_is_not_older():
    assert check_file_times(saying(NOW, NOW - 3), saying(NOW)).state == "bad"


@pytest.mark.parametrize(("ahead", "state"), [(-1e6, "ok"), (0, "ok"), (60, "warn"), (7200, "bad")])
def test_the_newest_block_is_not_from_the_future(ahead: float, state: str):
    assert check_newest(NOW + ahead, "trips", saying(NOW)).state == state


def test_a_lake_without_blocks_has_no_newest():
    assert check_newest(None).state == "ok"
