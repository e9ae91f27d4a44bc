"""A scene as rectangles and words at pixels: what an SVG image is made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from floodmark.timeline.picture import words
from floodmark.timeline.picture.scene import Box, Lane, Panel, Scene, Shade, Size

SIZE = Size(cells=440, letter=4, lanes=24, panels=60)
"""What an image has room for: cells of two pixels."""

INK = "#1f2933"
FAINT = "#6b7785"
PAPER = "#ffffff"
COLOURS = {
    Shade.UNTOUCHED: "#c3c9d1",
    Shade.REFERENCED: "#56b4e9",
    Shade.MERGED: "#e69f00",
    Shade.NEW: "#009e73",
}
"""Apart from each other for colour-blind eyes too."""

_CELL = 2
_EDGE = 20
_GUTTER = 64
_TITLE = 16
_TEXT = 12
_LINE = 20
_THIN = 8  # the height of a waiting lane
_THICK = 22  # and of the settled one
_GAP = 3


@dataclass(frozen=True)
class Rectangle:
    """A filled box; `about` says what it stands for."""

    x: int
    y: int
    width: int
    height: int
    colour: str
    about: str = ""


@dataclass(frozen=True)
class Words:
    """A line of text; `y` is the top of its letters."""

    x: int
    y: int
    text: str
    size: int
    colour: str


@dataclass(frozen=True)
class Drawing:
    """An image: its size in pixels, and what is on it."""

    width: int
    height: int
    shapes: tuple[Rectangle | Words, ...]


def draw(scene: Scene, title: str) -> Drawing:
    """A scene on paper, below a title."""
    shapes: list[Rectangle | Words] = [
        Words(_EDGE, _EDGE, title, _TITLE, INK),
        Words(_EDGE, _EDGE + _LINE + _GAP, words.summary(scene), _TEXT, FAINT),
    ]
    y = _EDGE + 2 * _LINE + _GAP
    shapes += _legend(scene, y)
    y += 2 * _LINE
    for panel in scene.panels:
        shapes += _panel(panel, y)
        y += _height(panel)
    if more := words.left_out(scene):
        shapes.append(Words(_EDGE, y, more, _TEXT, FAINT))
        y += _LINE
    return Drawing(2 * _EDGE + _GUTTER + scene.cells * _CELL, y + _EDGE, tuple(shapes))


def _legend(scene: Scene, y: int) -> Iterator[Rectangle | Words]:
    x = _EDGE
    for shade, _ in scene.legend:
        yield Rectangle(x, y + 1, _TEXT, _TEXT, COLOURS[shade])
        yield Words(x + _TEXT + 6, y, shade.meaning, _TEXT, INK)
        x += _TEXT + 26 + 7 * len(shade.meaning)
    if crowded := words.crowding(scene, "box"):
        yield Words(x, y, crowded, _TEXT, FAINT)


def _height(panel: Panel) -> int:
    settled = _THICK + _GAP if panel.settled else 0
    return _LINE + len(panel.waiting) * (_THIN + _GAP) + settled + 2 * _LINE


def _panel(panel: Panel, y: int) -> Iterator[Rectangle | Words]:
    yield Words(_EDGE, y, f"{panel.label}   {words.headline(panel)}", _TEXT, INK)
    y += _LINE
    left = _EDGE + _GUTTER
    if panel.waiting:
        yield Words(_EDGE, y - 2, words.WAITING, _TEXT, FAINT)
    for lane in reversed(panel.waiting):
        yield from _lane(lane, left, y, _THIN)
        y += _THIN + _GAP
    if panel.settled:
        yield Words(_EDGE, y + 4, words.SETTLED, _TEXT, FAINT)
        yield from _lane(panel.settled, left, y, _THICK)
        y += _THICK + _GAP
    for tick in panel.ticks:
        yield Rectangle(left + tick.cell * _CELL, y, 1, 4, FAINT)
        yield Words(left + tick.cell * _CELL, y + 5, tick.text, _TEXT - 1, FAINT)


def _lane(lane: Lane, left: int, y: int, height: int) -> Iterator[Rectangle]:
    for box in lane.boxes:
        yield _rectangle(box, left, y, height)


def _rectangle(box: Box, left: int, y: int, height: int) -> Rectangle:
    """With a pixel of paper after it, so that neighbours stay apart; one of a single cell has no pixel to spare."""
    cells = box.hi - box.lo
    width = cells * _CELL - 1 if cells > 1 else _CELL
    return Rectangle(left + box.lo * _CELL, y, width, height, COLOURS[box.shade], words.detail(box))
