"""A drawing as SVG: what a box stands for is seen when the pointer rests on it."""

from __future__ import annotations

from html import escape

from floodmark.timeline.picture.drawing import PAPER, Drawing, Rectangle, Words

_ASCENT = 0.8
"""How much of its size a letter stands above the line; SVG places text by the line."""


def render(drawing: Drawing) -> str:
    """The text of an SVG file."""
    size = f'width="{drawing.width}" height="{drawing.height}"'
    box = f'viewBox="0 0 {drawing.width} {drawing.height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} font-family="system-ui, sans-serif">'
    paper = f'<rect {size} fill="{PAPER}"/>'
    return "\n".join([head, paper, *(_element(shape) for shape in drawing.shapes), "</svg>", ""])


def _element(shape: Rectangle | Words) -> str:
    if isinstance(shape, Words):
        y = round(shape.y + _ASCENT * shape.size)
        return f'<text x="{shape.x}" y="{y}" font-size="{shape.size}" fill="{shape.colour}">{escape(shape.text)}</text>'
    about = f"<title>{escape(shape.about)}</title>" if shape.about else ""
    size = f'width="{shape.width}" height="{shape.height}"'
    return f'<rect x="{shape.x}" y="{shape.y}" {size} fill="{shape.colour}">{about}</rect>'
