"""The graph of a pipeline as a text tree and as an SVG picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from xml.sax.saxutils import escape

from floodmark.engine.progress import is_encodable
from floodmark.pipeline.graph import Graph, PipelineNode


@dataclass(frozen=True)
class LineStyle:
    """The characters that draw branches."""

    branch: str
    last: str
    along: str
    arrow: str


UNICODE_LINES = LineStyle("├─ ", "└─ ", "│  ", "→")
ASCII_LINES = LineStyle("|- ", "`- ", "|  ", "->")


def line_style_for(encoding: str | None) -> LineStyle:
    """Box-drawing characters, or ASCII if the encoding does not have them."""
    return UNICODE_LINES if is_encodable("".join(vars(UNICODE_LINES).values()), encoding) else ASCII_LINES


def draw_text(graph: Graph, notes: Mapping[str, str], strokes: LineStyle = UNICODE_LINES) -> list[str]:
    """One tree per dataset that no node of the graph writes. A node with several parents is drawn once.

    `notes` are shown after the names of nodes.
    """
    readers: dict[str, list[PipelineNode]] = defaultdict(list)
    for name in graph.order:
        for read in dict.fromkeys(one.lower() for one in graph.nodes[name].reads):
            readers[read].append(graph.nodes[name])
    picture = _Picture(graph, readers, notes, strokes)
    for name in graph.order:
        if not graph.nodes[name].reads:
            picture.node(graph.nodes[name], "", "")
    written = {name.lower() for node in graph.nodes.values() for name in node.writes}
    roots = [read for name in graph.order for read in graph.nodes[name].reads if read.lower() not in written]
    for read in dict.fromkeys(roots):
        picture.drawn.append(read)
        picture.below([read], "")
    return picture.drawn


class _Picture:
    def __init__(
        self, graph: Graph, readers: Mapping[str, Sequence[PipelineNode]], notes: Mapping[str, str], strokes: LineStyle
    ) -> None:
        self._graph, self._readers, self._notes, self._strokes = graph, readers, notes, strokes
        self._seen: set[str] = set()
        self.drawn: list[str] = []

    def node(self, node: PipelineNode, lead: str, indent: str) -> None:
        """Draw one node, and below it the nodes that read what it writes."""
        if node.name in self._seen:
            self.drawn.append(f"{lead}{node.name} (above)")
            return
        waits = [other for other in self._graph.needs[node.name] if other not in self._seen]
        if waits:  # it is drawn below the last node that it needs
            self.drawn.append(f"{lead}{node.name} (below {waits[-1]})")
            return
        self._seen.add(node.name)
        outputs = [name for name in node.writes if node.beside is None and name != node.name]
        writes = f" {self._strokes.arrow} {', '.join(outputs)}" if outputs else ""
        note = f"  {self._notes[node.name]}" if self._notes.get(node.name) else ""
        self.drawn.append(f"{lead}{node.name} [{node.what}]{writes}{note}")
        self.below(node.writes, indent)

    def below(self, datasets: Sequence[str], indent: str) -> None:
        """Draw the nodes that read these datasets."""
        readers = {node.name: node for name in datasets for node in self._readers.get(name.lower(), ())}
        for number, node in enumerate(readers.values(), 1):
            is_last = number == len(readers)
            lead = self._strokes.last if is_last else self._strokes.branch
            self.node(node, indent + lead, indent + ("   " if is_last else self._strokes.along))


# Layout of the picture

COLUMN_GAP = 64
"""The space between two columns, where arrows bend."""
MARGIN = 24
_LINE, _PADDING, _BELOW = 17, 9, 20
_LANE = 12
_NARROWEST, _WIDEST = 120, 300
_LETTER, _SMALL_LETTER = 8.4, 6.6
"""Estimated widths of a letter in names and in the smaller text; the exact width depends on the viewer's fonts."""
_SWEEPS = 6

Point = tuple[float, float]


@dataclass(frozen=True)
class NodeBox:
    """The box of a node or of a root dataset: its full text, the part of each line that fits, and its position."""

    kind: str
    whole: tuple[str, ...]
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes: pairs of points where it enters and leaves each lane on its path."""

    start: str
    end: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class PictureLayout:
    """The boxes by node name (`dataset:name` for datasets), the arrows, and the total size."""

    boxes: Mapping[str, NodeBox]
    arrows: tuple[Arrow, ...]
    width: float
    height: float


def lay_out(graph: Graph, notes: Mapping[str, str]) -> PictureLayout:
    """Lay out the graph from left to right. Boxes do not overlap, and no arrow crosses a box."""
    texts, edges = _texts_and_edges(graph, notes)
    depth = _depths(texts, edges)
    columns, chains = _with_lanes(depth, edges)
    _reduce_crossings(columns, chains)
    kinds = {name: graph.nodes[name].kind if name in graph.nodes else "dataset" for name in texts}
    return _place_items(columns, chains, texts, kinds)


def _texts_and_edges(
    graph: Graph, notes: Mapping[str, str]
) -> tuple[dict[str, tuple[str, ...]], list[tuple[str, str]]]:
    """The text of each box, and the pairs of boxes that arrows connect."""
    written = {name.lower() for node in graph.nodes.values() for name in node.writes}
    texts: dict[str, tuple[str, ...]] = {}
    edges: list[tuple[str, str]] = []
    for name in graph.order:
        for read in graph.nodes[name].reads:
            if read.lower() not in written:
                texts[f"dataset:{read.lower()}"] = (read, "dataset")
                edges.append((f"dataset:{read.lower()}", name))
        edges += [(other, name) for other in graph.needs[name]]
    for name in graph.order:
        texts[name] = _lines(graph.nodes[name], notes.get(name))
    return texts, list(dict.fromkeys(edges))


def _lines(node: PipelineNode, note: str | None) -> tuple[str, ...]:
    outputs = [name for name in node.writes if node.beside is None and name != node.name]
    what = f"{node.what} → {', '.join(outputs)}" if outputs else node.what
    return (node.name, what, note) if note else (node.name, what)


def _depths(texts: Mapping[str, object], edges: list[tuple[str, str]]) -> dict[str, int]:
    before: dict[str, list[str]] = {name: [] for name in texts}
    for start, end in edges:
        before[end].append(start)
    depth: dict[str, int] = {}
    for name in TopologicalSorter(before).static_order():
        depth[name] = 1 + max((depth[other] for other in before[name]), default=-1)
    return {name: depth[name] for name in texts}


Lane = tuple[str, str, int]
"""The place of an arrow in a column that it passes: its start, its end, and the column."""
Item = str | Lane


def _with_lanes(depth: Mapping[str, int], edges: list[tuple[str, str]]) -> tuple[list[list[Item]], list[list[Item]]]:
    """The columns, and for each arrow its item in each column."""
    columns: list[list[Item]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name, column in depth.items():
        columns[column].append(name)
    chains: list[list[Item]] = []
    for start, end in edges:
        lanes: list[Item] = [(start, end, column) for column in range(depth[start] + 1, depth[end])]
        for lane, column in zip(lanes, range(depth[start] + 1, depth[end]), strict=True):
            columns[column].append(lane)
        chains.append([start, *lanes, end])
    return columns, chains


def _reduce_crossings(columns: list[list[Item]], chains: list[list[Item]]) -> None:
    """Sort each column so that items are near the items they are connected with, which reduces crossings."""
    left: dict[Item, list[Item]] = {item: [] for column in columns for item in column}
    right: dict[Item, list[Item]] = {item: [] for column in columns for item in column}
    for chain in chains:
        for one, other in pairwise(chain):
            right[one].append(other)
            left[other].append(one)
    row: dict[Item, float] = {}

    def settle(column: list[Item]) -> None:
        row.update((item, (place + 0.5) / len(column)) for place, item in enumerate(column))

    for column in columns:
        settle(column)
    for sweep in range(_SWEEPS):
        near = left if sweep % 2 == 0 else right
        for column in columns if sweep % 2 == 0 else reversed(columns):
            target_rows = {item: _mean([row[other] for other in near[item]], row[item]) for item in column}
            column.sort(key=lambda item: target_rows[item])
            settle(column)


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _place_items(
    columns: list[list[Item]], chains: list[list[Item]], texts: Mapping[str, tuple[str, ...]], kinds: Mapping[str, str]
) -> PictureLayout:
    boxes: dict[str, NodeBox] = {}
    through: dict[Item, tuple[Point, Point]] = {}
    tall = max((_height(column, texts) for column in columns), default=0.0)
    x: float = MARGIN
    for column in columns:
        width = max(_width(texts[item]) for item in column if isinstance(item, str))
        y = MARGIN + (tall - _height(column, texts)) / 2
        for item in column:
            height = _item_height(item, texts)
            middle = y + height / 2
            through[item] = ((x, middle), (x + width, middle))
            if isinstance(item, str):
                name, *others = texts[item]
                lines = (_truncate(name, _LETTER, width), *(_truncate(line, _SMALL_LETTER, width) for line in others))
                boxes[item] = NodeBox(kinds[item], texts[item], lines, x, y, width, height)
            y += height + _BELOW
        x += width + COLUMN_GAP
    arrows = [
        Arrow(str(chain[0]), str(chain[-1]), tuple(point for item in chain for point in through[item])[1:-1])
        for chain in chains
    ]
    return PictureLayout(boxes, tuple(arrows), max(2 * MARGIN, x - COLUMN_GAP + MARGIN), tall + 2 * MARGIN)


def _height(column: list[Item], texts: Mapping[str, tuple[str, ...]]) -> float:
    return sum(_item_height(item, texts) for item in column) + _BELOW * (len(column) - 1)


def _item_height(item: Item, texts: Mapping[str, tuple[str, ...]]) -> float:
    return 2 * _PADDING + _LINE * len(texts[item]) if isinstance(item, str) else _LANE


def _width(lines: tuple[str, ...]) -> float:
    widest = max(len(lines[0]) * _LETTER, *(len(line) * _SMALL_LETTER for line in lines[1:]))
    return min(_WIDEST, max(_NARROWEST, widest + 2 * _PADDING))


def _truncate(line: str, letter: float, width: float) -> str:
    """Cut a line to the width of its box."""
    most = int((width - 2 * _PADDING) / letter)
    return line if len(line) <= most else f"{line[: most - 1]}…"


# SVG

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


def draw_svg(graph: Graph, notes: Mapping[str, str]) -> str:
    """The graph as SVG for light and dark backgrounds; `notes` are shown below the names of nodes."""
    picture = lay_out(graph, notes)
    width, height = f"{picture.width:g}", f"{picture.height:g}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f"<style>{_style('#ffffff', '#0f172a', '#475569', '#64748b', _LIGHT)}",
        f"@media (prefers-color-scheme: dark) {{{_style('#0b1220', '#f1f5f9', '#cbd5e1', '#94a3b8', _DARK)}}}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
        '<rect class="paper" width="100%" height="100%"/>',
        *map(_svg_arrow, picture.arrows),
        *map(_svg_box, picture.boxes.values()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _style(paper: str, text: str, small: str, line: str, boxes: Mapping[str, tuple[str, str]]) -> str:
    rules = [f".paper {{ fill: {paper} }}", f".name {{ fill: {text}; font-weight: 600 }}"]
    rules += [f".said {{ fill: {small}; font-size: 11px }}", f".tip {{ fill: {line} }}"]
    rules += [f".arrow {{ fill: none; stroke: {line}; stroke-width: 1.4 }}"]
    rules += [f".{kind} {{ fill: {fill}; stroke: {stroke} }}" for kind, (fill, stroke) in boxes.items()]
    return " ".join(rules)


def _svg_box(box: NodeBox) -> str:
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


def _svg_arrow(arrow: Arrow) -> str:
    """Draw an arrow with bends between columns and straight lines within them."""
    bend = COLUMN_GAP / 2
    path = [f"M{arrow.points[0][0]:g} {arrow.points[0][1]:g}"]
    gaps = list(zip(arrow.points[::2], arrow.points[1::2], strict=True))
    for number, ((x, y), (to_x, to_y)) in enumerate(gaps, 1):
        end = to_x - 2 if number == len(gaps) else to_x  # the tip of an arrow does not touch the box
        path.append(f"L{x:g} {y:g}" if number > 1 else "")
        path.append(f"C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {end:g} {to_y:g}")
    return f'<path class="arrow" d="{" ".join(filter(None, path))}" marker-end="url(#tip)"/>'
