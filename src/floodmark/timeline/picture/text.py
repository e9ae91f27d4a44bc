"""A picture of a timeline for a terminal: a character for each cell, that can be told apart without colours too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from floodmark.timeline.picture import words
from floodmark.timeline.picture.scene import Box, Lane, Panel, Scene, Shade, Size

if TYPE_CHECKING:
    from rich.text import Text

_GUTTER = len(words.SETTLED) + 2
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
    """The characters of a picture: one for each shade, and where a box begins."""

    shades: str
    border: str

    def of(self, shade: Shade) -> str:
        return self.shades[shade]


DRAWN = Marks("░▒▓█", "│")
PLAIN = Marks(".-%#", "|")


def size_for(width: int) -> Size:
    """What a terminal of so many columns has room for; a line that is full to the edge may be wrapped."""
    return Size(max(_FEWEST_CELLS, width - _GUTTER - 1), 1, _LANES, _PANELS)


def marks_for(encoding: str | None) -> Marks:
    """Blocks, or plain characters where the output cannot have them."""
    try:
        (DRAWN.shades + DRAWN.border).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return DRAWN


def lines(scene: Scene, marks: Marks) -> Iterator[Text]:
    """The picture, line by line."""
    from rich.text import Text

    for panel in scene.panels:
        yield from _panel(panel, marks)
        yield Text()
    if more := words.left_out(scene):
        yield Text(more)
    yield from _legend(scene, marks)


def _panel(panel: Panel, marks: Marks) -> Iterator[Text]:
    from rich.text import Text

    yield Text.assemble((panel.label, "bold"), f"  {words.headline(panel)}")
    for height, lane in enumerate(reversed(panel.waiting)):
        yield _line(words.WAITING if height == 0 else "", lane, marks)
    if panel.settled is not None:
        yield _line(words.SETTLED, panel.settled, marks)
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
        line.append(_drawn(box, marks), style=_COLOURS[box.shade])
        at = box.hi
    return line


def _drawn(box: Box, marks: Marks) -> str:
    """A border where it begins, so that neighbours stay apart; one that has only a cell is its shade alone."""
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
    if crowded := words.crowding(scene, "character"):
        yield Text(crowded)
