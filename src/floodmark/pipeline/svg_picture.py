"""The graph of a pipeline as a picture: what comes first stands left, arrows lead from what is read to who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

from floodmark.pipeline.graph import Graph
from floodmark.pipeline.svg_layout import APART, Arrow, Box, layout

_LIGHT = {
    "source": ("#dbeafe", "#2563eb"),
    "step": ("#dcfce7", "#16a34a"),
    "column": ("#fef3c7", "#d97706"),
    "view": ("#f3e8ff", "#9333ea"),
    "dataset": ("#f1f5f9", "#64748b"),
}
_DARK = {
    "source": ("#172554", "#60a5fa"),
    "step": ("#052e16", "#4ade80"),
    "column": ("#451a03", "#fbbf24"),
    "view": ("#3b0764", "#c084fc"),
    "dataset": ("#1e293b", "#94a3b8"),
}


def svg(graph: Graph, notes: Mapping[str, str]) -> str:
    """The whole picture, for light and dark backgrounds; `notes` stand below the names of nodes."""
    found = layout(graph, notes)
    width, height = f"{found.width:g}", f"{found.height:g}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f"<style>{_style('#ffffff', '#0f172a', '#475569', '#64748b', _LIGHT)}",
        f"@media (prefers-color-scheme: dark) {{{_style('#0b1220', '#f1f5f9', '#cbd5e1', '#94a3b8', _DARK)}}}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
        '<rect class="paper" width="100%" height="100%"/>',
        *map(_drawn_arrow, found.arrows),
        *map(_drawn_box, found.boxes.values()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _style(paper: str, text: str, small: str, line: str, boxes: Mapping[str, tuple[str, str]]) -> str:
    rules = [f".paper {{ fill: {paper} }}", f".name {{ fill: {text}; font-weight: 600 }}"]
    rules += [f".said {{ fill: {small}; font-size: 11px }}", f".tip {{ fill: {line} }}"]
    rules += [f".arrow {{ fill: none; stroke: {line}; stroke-width: 1.4 }}"]
    rules += [f".{kind} {{ fill: {fill}; stroke: {stroke} }}" for kind, (fill, stroke) in boxes.items()]
    return " ".join(rules)


def _drawn_box(box: Box) -> str:
    middle = box.x + box.width / 2
    texts = [
        f'<text class="{"said" if number else "name"}" x="{middle:g}" y="{box.y + 22 + 17 * number:g}" '
        f'text-anchor="middle">{escape(line)}</text>'
        for number, line in enumerate(box.lines)
    ]
    return (
        f'<g><title>{escape(": ".join(box.whole))}</title><rect class="{box.kind}" x="{box.x:g}" y="{box.y:g}" '
        f'width="{box.width:g}" height="{box.height:g}" rx="7"/>{"".join(texts)}</g>'
    )


def _drawn_arrow(arrow: Arrow) -> str:
    """Bends between columns, and goes straight on within them."""
    bend = APART / 2
    path = [f"M{arrow.points[0][0]:g} {arrow.points[0][1]:g}"]
    gaps = list(zip(arrow.points[::2], arrow.points[1::2], strict=True))
    for number, ((x, y), (to_x, to_y)) in enumerate(gaps, 1):
        end = to_x - 2 if number == len(gaps) else to_x  # the tip of an arrow does not touch the box
        path.append(f"L{x:g} {y:g}" if number > 1 else "")
        path.append(f"C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {end:g} {to_y:g}")
    return f'<path class="arrow" d="{" ".join(filter(None, path))}" marker-end="url(#tip)"/>'
