"""Growth curves as SVG: the same curve gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from summary.axes import Axis, axis, written
from summary.figures import Curve, Line

WIDTH, HEIGHT = 720, 400
_LEFT, _RIGHT, _BOTTOM = 78, 28, 56
_TITLE, _LEGEND = 30, 22
_COLOURS = ("#1f6fb4", "#d1661a", "#2f8f4e", "#a33a6b", "#6b55b5", "#80705a")
_INK, _FAINT, _PAPER = "#22272e", "#d9dde2", "#ffffff"
_FONT = "font-family='system-ui, DejaVu Sans, sans-serif'"
_MOST_DOTS = 12
"""Lines with more points have no dots."""


def svg(curve: Curve) -> str:
    """A curve as an SVG picture. It has its own background, so it is readable on light and dark pages."""
    points = [point for line in curve.lines for point in line.points]
    x = axis([x for x, _ in points], curve.x_scale)
    y = axis([0.0, *(y for _, y in points)], curve.y_scale)  # from 0: otherwise small changes would look large
    top = _TITLE + 14 + _LEGEND * len(curve.lines)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}'"
        f" role='img' {_FONT} font-size='13' fill='{_INK}'>",
        f"<title>{escape(curve.title)}</title>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' rx='8' fill='{_PAPER}' stroke='{_FAINT}'/>",
        _text(_LEFT, _TITLE, curve.title, "start", "font-size='16' font-weight='600'"),
        *_grid(x, y, top),
        _text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 14, curve.x, "middle"),
        f"<g transform='translate(20 {_number((top + HEIGHT - _BOTTOM) / 2)}) rotate(-90)'>"
        f"{_text(0, 0, curve.y, 'middle')}</g>",
    ]
    for number, line in enumerate(curve.lines):
        parts += _drawn(line, _COLOURS[number % len(_COLOURS)], number, x, y, top)
    return "\n".join([*parts, "</svg>", ""])


def _grid(x: Axis, y: Axis, top: float) -> list[str]:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = []
    for mark in y.marks:
        at = _down(y, mark, top)
        parts.append(f"<path d='M{_LEFT} {_number(at)}H{right}' stroke='{_FAINT}'/>")
        parts.append(_text(_LEFT - 8, at + 4, written(mark), "end"))
    for mark in x.marks:
        at = _across(x, mark)
        parts.append(f"<path d='M{_number(at)} {bottom}v5' stroke='{_INK}'/>")
        parts.append(_text(at, bottom + 20, written(mark), "middle"))
    parts.append(f"<path d='M{_LEFT} {bottom}H{right}' stroke='{_INK}'/>")
    return parts


def _drawn(line: Line, colour: str, number: int, x: Axis, y: Axis, top: float) -> list[str]:
    """A line with dots at its points, and its entry in the legend."""
    points = [(_across(x, px), _down(y, py, top)) for px, py in line.points]
    path = "L".join(f"{_number(px)} {_number(py)}" for px, py in points)
    parts = [f"<path d='M{path}' fill='none' stroke='{colour}' stroke-width='2.2' stroke-linejoin='round'/>"]
    if len(points) <= _MOST_DOTS:
        parts += [f"<circle cx='{_number(px)}' cy='{_number(py)}' r='4' fill='{colour}'/>" for px, py in points]
    at = _TITLE + _LEGEND * (number + 1)
    parts.append(f"<path d='M{_LEFT} {at - 4}h18' stroke='{colour}' stroke-width='4'/>")
    parts.append(_text(_LEFT + 26, at, f"{line.name}{_ends(line.points)}", "start"))
    return parts


def _ends(points: Sequence[tuple[float, float]]) -> str:
    """The first and last value of a line, as text for the legend."""
    if not points:
        return ""
    first, last = (f"{value:.3g}" for value in (points[0][1], points[-1][1]))
    return f": {first}" if len(points) == 1 else f": {first} → {last}"


def _across(x: Axis, value: float) -> float:
    return _LEFT + x.place(value) * (WIDTH - _RIGHT - _LEFT)


def _down(y: Axis, value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - y.place(value) * (HEIGHT - _BOTTOM - top)


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f"<text x='{_number(x)}' y='{_number(y)}' text-anchor='{anchor}' {more}>{escape(text)}</text>".replace(
        " >", ">"
    )


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
