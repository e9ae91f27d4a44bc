"""The graph of a pipeline as a picture: what comes first stands left, arrows lead from what is read to who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

from floodmark.pipeline.graph import Graph, Node

_WIDE, _HIGH = 190, 46
_APART, _BELOW = 70, 22
_EDGE = 24
_LETTERS = 26
"""So many letters fit into a box."""

_FILLS = {"source": "#dbeafe", "step": "#dcfce7", "column": "#fef3c7", "view": "#f3e8ff", "dataset": "#f1f5f9"}
_LINES = {"source": "#2563eb", "step": "#16a34a", "column": "#d97706", "view": "#9333ea", "dataset": "#64748b"}


@dataclass(frozen=True)
class Box:
    """A node, or a dataset that nothing computes, and where its left upper corner is."""

    name: str
    kind: str
    said: str
    x: int
    y: int


def svg(graph: Graph, notes: Mapping[str, str]) -> str:
    """The whole picture; `notes` stand below the names of nodes."""
    boxes, edges = layout(graph, notes)
    width = max((box.x for box in boxes.values()), default=0) + _WIDE + _EDGE
    height = max((box.y for box in boxes.values()), default=0) + _HIGH + _EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#64748b"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
        *(_arrow(boxes[start], boxes[end]) for start, end in edges),
        *(_drawn(box) for box in boxes.values()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def layout(graph: Graph, notes: Mapping[str, str]) -> tuple[dict[str, Box], list[tuple[str, str]]]:
    """Where everything stands, and which boxes arrows connect. Boxes never overlap."""
    written = {name.lower() for node in graph.nodes.values() for name in node.writes}
    roots: dict[str, str] = {}
    edges: list[tuple[str, str]] = []
    for name in graph.order:
        for read in graph.nodes[name].reads:
            if read.lower() not in written:
                roots.setdefault(read.lower(), read)
                edges.append((f"dataset:{read.lower()}", name))
        edges += [(other, name) for other in graph.needs[name]]
    columns = [[f"dataset:{root}" for root in roots], *map(list, graph.levels)]
    if roots and graph.levels:  # sources need nothing either
        columns[0] += [name for name in graph.levels[0] if not graph.nodes[name].reads]
        columns[1] = [name for name in graph.levels[0] if graph.nodes[name].reads]
    columns = [column for column in columns if column]
    row: dict[str, float] = {}
    boxes: dict[str, Box] = {}
    for number, column in enumerate(columns):
        before = {name: [row[a] for a, b in edges if b == name and a in row] for name in column}
        if number:  # near to what they read, which crosses fewer arrows
            column.sort(key=lambda name: sum(before[name]) / len(before[name]) if before[name] else 0.0)
        for place, name in enumerate(column):
            row[name] = float(place)
            x, y = _EDGE + number * (_WIDE + _APART), _EDGE + place * (_HIGH + _BELOW)
            boxes[name] = _box(graph.nodes.get(name), roots.get(name.removeprefix("dataset:"), name), notes, x, y)
    return boxes, list(dict.fromkeys(edges))


def _box(node: Node | None, name: str, notes: Mapping[str, str], x: int, y: int) -> Box:
    if node is None:
        return Box(name, "dataset", "dataset", x, y)
    return Box(node.name, node.kind, notes.get(node.name) or node.what, x, y)


def _drawn(box: Box) -> str:
    middle = box.x + _WIDE // 2
    return (
        f'<g><title>{escape(f"{box.name}: {box.said}")}</title><rect x="{box.x}" y="{box.y}" width="{_WIDE}" '
        f'height="{_HIGH}" rx="7" fill="{_FILLS[box.kind]}" stroke="{_LINES[box.kind]}"/>'
        f'<text x="{middle}" y="{box.y + 20}" text-anchor="middle" font-weight="600">{escape(_short(box.name))}</text>'
        f'<text x="{middle}" y="{box.y + 37}" text-anchor="middle" font-size="11" fill="#475569">'
        f"{escape(_short(box.said))}</text></g>"
    )


def _arrow(start: Box, end: Box) -> str:
    x, y = start.x + _WIDE, start.y + _HIGH // 2
    to_x, to_y = end.x - 2, end.y + _HIGH // 2
    bend = max(30, (to_x - x) // 2)
    return (
        f'<path d="M{x} {y} C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}" fill="none" stroke="#64748b" '
        'stroke-width="1.4" marker-end="url(#tip)"/>'
    )


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
