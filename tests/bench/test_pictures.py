"""Growth curves as pictures."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from bench.made import curve
from summary.axes import axis, written
from summary.figures import Growth, Line, binned
from summary.picture import HEIGHT, WIDTH, svg


def numbers(pattern: str, text: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


def test_the_same_curve_gives_the_same_bytes():
    assert svg(curve("a")) == svg(curve("a"))


def test_another_point_gives_another_picture():
    other = replace(curve("a"), lines=(Line("ours", ((100.0, 1.5), (10_000.0, 2.1))),))
    assert svg(curve("a")) != svg(other)


def test_a_picture_is_well_formed_and_says_what_it_shows():
    root = ElementTree.fromstring(svg(curve("a")))
    texts = ["".join(one.itertext()) for one in root.iter() if one.tag.endswith("text")]
    assert {"A curve of < and &", "rows", "seconds", "ours: 1.5 → 2", "theirs: 40"} <= set(texts)


def test_points_lie_inside_and_larger_ones_higher_and_further_right():
    drawn = svg(curve("a"))
    across, down = numbers(r"cx='([\d.]+)'", drawn), numbers(r"cy='([\d.]+)'", drawn)
    assert all(0 < x < WIDTH for x in across)
    assert all(0 < y < HEIGHT for y in down)
    first, second, theirs = zip(across, down, strict=True)
    assert first[0] < second[0] == theirs[0]
    assert first[1] > second[1] > theirs[1]


@pytest.mark.parametrize("values", [[0.0], [3.0, 3.0], [0.13, 0.94], [1.0, 2_000.0], [-8.0, 12.0]])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_an_axis_has_room_for_all_values_and_a_few_marks(values, scale):
    made = axis(values, scale)
    assert all(-1e-9 <= made.place(value) <= 1 + 1e-9 for value in values)
    assert 2 <= len(made.marks) <= 13
    assert all(made.low <= mark <= made.high * (1 + 1e-9) for mark in made.marks)


def test_marks_are_written_short():
    assert [written(value) for value in (0, 0.05, 12, 2_500, 10e6, 3e9)] == ["0", "0.05", "12", "2.5k", "10M", "3G"]


def test_a_long_series_becomes_medians_of_its_stretches():
    assert binned([1, 9, 2, 5, 5, 5], bins=2) == [(3.0, 2), (6.0, 5)]
    assert binned([4, 7], bins=40) == [(1.0, 4), (2.0, 7)]


def test_points_of_a_line_may_come_in_any_order():
    growth = Growth("k", "t", "x", "y")
    for x in (3, 1, 2):
        growth.add("ours", x, 10.0 * x)
    assert growth.curve().lines == (Line("ours", ((1, 10.0), (2, 20.0), (3, 30.0))),)
