"""A picture on a terminal can be read without colours, fits the terminal, and says what it shows."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from floodmark.timeline.picture import ASCII_MARKS, BLOCK_MARKS, lines, marks_for, size_for
from floodmark.timeline.pieces import PieceOrigin
from floodmark.timeline.scene import compose
from floodmark.timeline.sections import Range
from timeline.drawn import DAY, HOUR, day, even, piece

WORLD = (
    day("2026-11-01", even(4)),
    day(
        "2026-11-02",
        [
            piece(0, 8 * HOUR - 1),
            piece(8 * HOUR, 16 * HOUR - 1, since=9, how=PieceOrigin.MERGED),
            piece(16 * HOUR, DAY - 1),
        ],
        [[piece(18 * HOUR, 20 * HOUR - 1, since=9)]],
    ),
)


def drawn(partitions, width: int = 80, marks=BLOCK_MARKS) -> list[str]:
    return [line.plain.rstrip() for line in lines(compose(partitions, "day", 9, size_for(width), Range()), marks)]


def test_the_picture_of_a_small_world():
    assert drawn(WORLD, 42) == [
        "2026-11-01  40 rows in 4 pieces",
        "settled  │░░░░░░░│░░░░░░░│░░░░░░░│░░░░░░░",
        "         00:00   06:00   12:00   18:00",
        "",
        "2026-11-02  30 rows in 3 pieces; 10 late rows in 1 piece above",
        "waiting                          │██",
        "settled  │▒▒▒▒▒▒▒▒▒▒│▓▓▓▓▓▓▓▓▓│▒▒▒▒▒▒▒▒▒▒",
        "         00:00   06:00   12:00   18:00",
        "",
        "█ new  ▓ merged  ▒ referenced  ░ untouched",
    ]


def test_plain_characters_show_the_same():
    assert drawn(WORLD, 42, ASCII_MARKS)[6] == "settled  |----------|%%%%%%%%%|----------"
    assert all(line.isascii() for line in drawn(WORLD, 42, ASCII_MARKS))


@pytest.mark.parametrize(
    ("encoding", "marks"),
    [("utf-8", BLOCK_MARKS), ("ascii", ASCII_MARKS), (None, ASCII_MARKS), ("no such", ASCII_MARKS)],
)
def test_characters_are_those_that_the_output_can_have(encoding, marks):
    assert marks_for(encoding) is marks


def test_shades_differ_in_character_and_in_colour():
    scene = compose(WORLD, "day", 9, size_for(80), Range())
    styles = {(span.style, line.plain[span.end - 1]) for line in lines(scene, BLOCK_MARKS) for span in line.spans}
    shades = {(style, mark) for style, mark in styles if mark in BLOCK_MARKS.shades}
    assert len(shades) == len({style for style, _ in shades}) == len({mark for _, mark in shades}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 133])
@pytest.mark.parametrize("count", [1, 7, 5000])
def test_it_fits_the_terminal(width: int, count: int):
    runs = [[piece(n * 10**9, 8 * HOUR + n * 10**9)] for n in range(40)]
    found = drawn([day("2026-11-01", even(count), runs)], width)
    assert max(map(cell_len, found)) < max(width, 80)
    boxes = [line for line in found if line.startswith(("settled", "waiting", " "))]
    assert max(map(cell_len, boxes)) < width
    assert len(found) < 24


def test_many_pieces_say_how_many_share_a_character():
    assert drawn([day("2026-11-01", even(5000))])[-1] == "up to 107 pieces per character"
    assert "character" not in "".join(drawn([day("2026-11-01", even(20))]))


def test_partitions_without_room_are_counted():
    found = drawn([day(f"2026-11-{n:02}", even(1)) for n in range(1, 31)])
    assert "18 more partitions: give FROM and TO to see them" in found
    assert sum(line.startswith("2026-") for line in found) == 12


def test_dead_rows_are_told():
    (partition,) = [day("2026-11-01", even(1))]
    from dataclasses import replace

    dying = replace(partition, settled=(replace(partition.settled[0], dead=3),))
    assert drawn([dying])[0] == "2026-11-01  10 rows in 1 piece; 3 dead"
