"""The picture of a timeline's pieces: its texts, drawn as lines for a terminal or as an SVG image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from floodmark.engine.progress import is_encodable
from floodmark.timeline.scene import Box, Lane, Panel, PictureSize, Scene, Shade

if TYPE_CHECKING:
    from rich.text import Text


SETTLED = "settled"
WAITING = "waiting"


def headline(panel: Panel) -> str:
    """The contents of a partition, in one line."""
    text = f"{count_text(panel.settled_rows, 'row')} in {count_text(panel.settled_pieces, 'piece')}"
    if panel.waiting_pieces:
        text += f"; {count_text(panel.waiting_rows, 'late row')} in {count_text(panel.waiting_pieces, 'piece')} above"
    if panel.dead:
        text += f"; {panel.dead:,} dead"
    return text


def summary(scene: Scene) -> str:
    """The totals of all partitions."""
    partitions = count_text(scene.partitions, "partition")
    return f"{partitions}, {count_text(scene.rows, 'row')}, {count_text(scene.pieces, 'piece')}"


def describe_hidden(scene: Scene) -> str:
    """The partitions that are not shown, and how to see them; empty if all are shown."""
    if not scene.left_out:
        return ""
    return f"{count_text(scene.left_out, 'more partition')}: give FROM and TO to see them"


def crowding(scene: Scene, mark: str) -> str:
    """The number of pieces that one mark may stand for; empty if each piece has its own."""
    return "" if scene.fullest <= 1 else f"up to {scene.fullest:,} pieces per {mark}"


def detail(box: Box) -> str:
    """The contents of a box, for a tooltip."""
    if box.pieces > 1:
        return f"{count_text(box.pieces, 'piece')}, {count_text(box.rows, 'row')}, {box.shade.meaning}"
    return f"{count_text(box.rows, 'row')} of row group {box.row_group} in {box.file}, {box.shade.meaning}"


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


# Lines for a terminal

_GUTTER = len(SETTLED) + 2
_FEWEST_CELLS = 20
_LANES = 8
_PANELS = 12

_COLOURS = {
    Shade.UNTOUCHED: "bright_black",
    Shade.REFERENCED: "cyan",
    Shade.MERGED: "yellow",
    Shade.NEW: "bright_green",
}


@dataclass(frozen=True)
class Marks:
    """The characters of a picture: one per shade, and one for the left border of a box."""

    shades: str
    border: str

    def of(self, shade: Shade) -> str:
        return self.shades[shade]


BLOCK_MARKS = Marks("░▒▓█", "│")
ASCII_MARKS = Marks(".-%#", "|")


def size_for(width: int) -> PictureSize:
    """The size of a picture for a terminal of this width. The last column stays empty: a full line may wrap."""
    return PictureSize(max(_FEWEST_CELLS, width - _GUTTER - 1), 1, _LANES, _PANELS)


def marks_for(encoding: str | None) -> Marks:
    """Block characters, or plain ones if the encoding has no blocks."""
    return BLOCK_MARKS if is_encodable(BLOCK_MARKS.shades + BLOCK_MARKS.border, encoding) else ASCII_MARKS


def lines(scene: Scene, marks: Marks) -> Iterator[Text]:
    """The picture, line by line."""
    from rich.text import Text

    for panel in scene.panels:
        yield from _panel(panel, marks)
        yield Text()
    if more := describe_hidden(scene):
        yield Text(more)
    yield from _legend(scene, marks)


def _panel(panel: Panel, marks: Marks) -> Iterator[Text]:
    from rich.text import Text

    yield Text.assemble((panel.label, "bold"), f"  {headline(panel)}")
    for height, lane in enumerate(reversed(panel.waiting)):
        yield _line(WAITING if height == 0 else "", lane, marks)
    if panel.settled is not None:
        yield _line(SETTLED, panel.settled, marks)
    axis = ""
    for tick in panel.ticks:
        axis = axis.ljust(tick.cell) + tick.text
    yield Text(" " * _GUTTER + axis, style="dim")


def _line(name: str, lane: Lane, marks: Marks) -> Text:
    from rich.text import Text

    line = Text(name.ljust(_GUTTER))
    at = 0
    for box in lane.boxes:
        line.append(" " * (box.lo - at))
        line.append(_box_text(box, marks), style=_COLOURS[box.shade])
        at = box.hi
    return line


def _box_text(box: Box, marks: Marks) -> str:
    """A box as text. It begins with a border, to separate neighbours; a box of one cell has only its shade."""
    cells = box.hi - box.lo
    shade = marks.of(box.shade)
    return shade if cells == 1 else marks.border + shade * (cells - 1)


def _legend(scene: Scene, marks: Marks) -> Iterator[Text]:
    from rich.text import Text

    line = Text()
    for number, (shade, _) in enumerate(scene.legend):
        line.append("  " if number else "")
        line.append(marks.of(shade), style=_COLOURS[shade])
        line.append(f" {shade.meaning}")
    if line:
        yield line
    if crowded := crowding(scene, "character"):
        yield Text(crowded)


# An SVG image

SIZE = PictureSize(cells=440, letter=4, lanes=24, panels=60)
"""The size of an image. A cell is two pixels wide."""

INK = "#1f2933"
FAINT = "#6b7785"
PAPER = "#ffffff"
COLOURS = {
    Shade.UNTOUCHED: "#c3c9d1",
    Shade.REFERENCED: "#56b4e9",
    Shade.MERGED: "#e69f00",
    Shade.NEW: "#009e73",
}
"""Colour-blind readers can distinguish these colours."""

_CELL = 2
_EDGE = 20
_SVG_GUTTER = 64
_TITLE = 16
_TEXT = 12
_LINE = 20
_THIN = 8  # the height of a waiting lane
_THICK = 22  # the height of the settled lane
_GAP = 3


@dataclass(frozen=True)
class Rectangle:
    """A filled box; `about` is its tooltip."""

    x: int
    y: int
    width: int
    height: int
    colour: str
    about: str = ""


@dataclass(frozen=True)
class TextLine:
    """A line of text; `y` is the top of its letters."""

    x: int
    y: int
    text: str
    size: int
    colour: str


@dataclass(frozen=True)
class Drawing:
    """An image: its size in pixels and its shapes."""

    width: int
    height: int
    shapes: tuple[Rectangle | TextLine, ...]


def draw(scene: Scene, title: str) -> Drawing:
    """The image of a scene, with a title."""
    shapes: list[Rectangle | TextLine] = [
        TextLine(_EDGE, _EDGE, title, _TITLE, INK),
        TextLine(_EDGE, _EDGE + _LINE + _GAP, summary(scene), _TEXT, FAINT),
    ]
    y = _EDGE + 2 * _LINE + _GAP
    shapes += _svg_legend(scene, y)
    y += 2 * _LINE
    for panel in scene.panels:
        shapes += _svg_panel(panel, y)
        y += _height(panel)
    if more := describe_hidden(scene):
        shapes.append(TextLine(_EDGE, y, more, _TEXT, FAINT))
        y += _LINE
    return Drawing(2 * _EDGE + _SVG_GUTTER + scene.cells * _CELL, y + _EDGE, tuple(shapes))


def _svg_legend(scene: Scene, y: int) -> Iterator[Rectangle | TextLine]:
    x = _EDGE
    for shade, _ in scene.legend:
        yield Rectangle(x, y + 1, _TEXT, _TEXT, COLOURS[shade])
        yield TextLine(x + _TEXT + 6, y, shade.meaning, _TEXT, INK)
        x += _TEXT + 26 + 7 * len(shade.meaning)
    if crowded := crowding(scene, "box"):
        yield TextLine(x, y, crowded, _TEXT, FAINT)


def _height(panel: Panel) -> int:
    settled = _THICK + _GAP if panel.settled else 0
    return _LINE + len(panel.waiting) * (_THIN + _GAP) + settled + 2 * _LINE


def _svg_panel(panel: Panel, y: int) -> Iterator[Rectangle | TextLine]:
    yield TextLine(_EDGE, y, f"{panel.label}   {headline(panel)}", _TEXT, INK)
    y += _LINE
    left = _EDGE + _SVG_GUTTER
    if panel.waiting:
        yield TextLine(_EDGE, y - 2, WAITING, _TEXT, FAINT)
    for lane in reversed(panel.waiting):
        yield from _lane(lane, left, y, _THIN)
        y += _THIN + _GAP
    if panel.settled:
        yield TextLine(_EDGE, y + 4, SETTLED, _TEXT, FAINT)
        yield from _lane(panel.settled, left, y, _THICK)
        y += _THICK + _GAP
    for tick in panel.ticks:
        yield Rectangle(left + tick.cell * _CELL, y, 1, 4, FAINT)
        yield TextLine(left + tick.cell * _CELL, y + 5, tick.text, _TEXT - 1, FAINT)


def _lane(lane: Lane, left: int, y: int, height: int) -> Iterator[Rectangle]:
    for box in lane.boxes:
        yield _rectangle(box, left, y, height)


def _rectangle(box: Box, left: int, y: int, height: int) -> Rectangle:
    """A box as a rectangle. One blank pixel after it separates neighbours, except after a box of one cell."""
    cells = box.hi - box.lo
    width = cells * _CELL - 1 if cells > 1 else _CELL
    return Rectangle(left + box.lo * _CELL, y, width, height, COLOURS[box.shade], detail(box))


_ASCENT = 0.8
"""The part of the font size above the baseline. SVG positions text by its baseline."""


def render(drawing: Drawing) -> str:
    """The text of an SVG file."""
    size = f'width="{drawing.width}" height="{drawing.height}"'
    box = f'viewBox="0 0 {drawing.width} {drawing.height}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} font-family="system-ui, sans-serif">'
    paper = f'<rect {size} fill="{PAPER}"/>'
    return "\n".join([opening, paper, *(_element(shape) for shape in drawing.shapes), "</svg>", ""])


def _element(shape: Rectangle | TextLine) -> str:
    if isinstance(shape, TextLine):
        y = round(shape.y + _ASCENT * shape.size)
        return f'<text x="{shape.x}" y="{y}" font-size="{shape.size}" fill="{shape.colour}">{escape(shape.text)}</text>'
    about = f"<title>{escape(shape.about)}</title>" if shape.about else ""
    size = f'width="{shape.width}" height="{shape.height}"'
    return f'<rect x="{shape.x}" y="{shape.y}" {size} fill="{shape.colour}">{about}</rect>'
