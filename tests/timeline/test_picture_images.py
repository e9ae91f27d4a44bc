"""A picture in a file has every box of its scene, and is no larger than one can look at."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from floodmark.timeline import picture
from floodmark.timeline.picture import COLOURS, SIZE, Drawing, Rectangle, TextLine, draw
from floodmark.timeline.pieces import PieceOrigin
from floodmark.timeline.scene import Shade, compose
from floodmark.timeline.sections import Range
from timeline.drawn import DAY, HOUR, day, even, piece

SVG = "{http://www.w3.org/2000/svg}"
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


def drawing_of(partitions, title: str = "ticks by day") -> Drawing:
    return draw(compose(partitions, "day", 9, SIZE, Range()), title)


def test_svg_has_a_box_for_every_piece_that_says_what_it_is():
    root = ElementTree.fromstring(picture.render(drawing_of(WORLD)))
    titles = [(box.get("fill"), title.text) for box in root.iter(f"{SVG}rect") for title in box.iter(f"{SVG}title")]
    assert len(titles) == 8
    merged = COLOURS[Shade.MERGED], "10 rows of row group 0 in data/f1620aa, merged"
    assert titles.count(merged) == 1
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[:2] == ["ticks by day", "2 partitions, 80 rows, 8 pieces"]
    assert {"waiting", "settled", "00:00", "new", "merged", "referenced", "untouched"} <= set(texts)


def test_svg_shows_any_name_as_it_is():
    root = ElementTree.fromstring(picture.render(drawing_of(WORLD, '<a href="x">&amp; "b"')))
    assert next(root.iter(f"{SVG}text")).text == '<a href="x">&amp; "b"'


@pytest.mark.parametrize("partitions", [WORLD, [], [day("2026-11-01", [piece(5, 5)])], [day("2026-11-01", even(5000))]])
def test_everything_lies_on_the_paper(partitions):
    drawing = drawing_of(partitions)
    for shape in drawing.shapes:
        width = shape.width if isinstance(shape, Rectangle) else 7 * len(shape.text) * shape.size // 12
        height = shape.height if isinstance(shape, Rectangle) else shape.size
        assert shape.x >= 0
        assert shape.y >= 0
        assert shape.x + width <= drawing.width
        assert shape.y + height <= drawing.height


def test_lines_of_words_and_boxes_do_not_lie_on_each_other():
    runs = [[piece(n * 10**9, 8 * HOUR + n * 10**9)] for n in range(40)]
    drawing = drawing_of([day("2026-11-01", even(30), runs), day("2026-11-02", even(30), runs)])
    boxes = [shape for shape in drawing.shapes if isinstance(shape, Rectangle) and shape.about]
    headlines = [shape for shape in drawing.shapes if isinstance(shape, TextLine) and shape.text.startswith("2026-")]
    assert len(headlines) == 2
    for words in headlines:
        assert all(box.y + box.height <= words.y or words.y + words.size <= box.y for box in boxes)


def test_five_thousand_pieces_are_a_small_file():
    drawing = drawing_of([day("2026-11-01", even(5000))])
    assert sum(isinstance(shape, Rectangle) and bool(shape.about) for shape in drawing.shapes) == SIZE.cells
    assert len(picture.render(drawing)) < 200_000
