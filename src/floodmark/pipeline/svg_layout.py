"""Where everything stands in the picture of a graph: in columns, with room between the boxes for arrows that go on.

An arrow that skips columns has a lane in each of them, like a box without a border, so that it passes no box.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise

from floodmark.pipeline.graph import Graph, Node

APART = 64
"""Between two columns, where arrows bend."""
EDGE = 24
_LINE, _PADDING, _BELOW = 17, 9, 20
_LANE = 12
_NARROWEST, _WIDEST = 120, 300
_LETTER, _SMALL_LETTER = 8.4, 6.6
"""How wide letters of names and of what is said of them are, about; only the reader's fonts know it exactly."""
_SWEEPS = 6

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A node, or a dataset that nothing computes: its lines of text, as far as they fit, and where it is."""

    kind: str
    whole: tuple[str, ...]
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Arrow:
    """From box to box, through the lanes between them: pairs of points where it enters and leaves each."""

    start: str
    end: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Layout:
    """Boxes by the names of nodes (`dataset:name` for datasets), arrows, and how large all of it is."""

    boxes: Mapping[str, Box]
    arrows: tuple[Arrow, ...]
    width: float
    height: float


def layout(graph: Graph, notes: Mapping[str, str]) -> Layout:
    """The picture; what comes first stands left. Boxes never overlap, and no arrow passes one."""
    texts, edges = _read(graph, notes)
    depth = _depths(texts, edges)
    columns, chains = _with_lanes(depth, edges)
    _untangle(columns, chains)
    kinds = {name: graph.nodes[name].kind if name in graph.nodes else "dataset" for name in texts}
    return _placed(columns, chains, texts, kinds)


def _read(graph: Graph, notes: Mapping[str, str]) -> tuple[dict[str, tuple[str, ...]], list[tuple[str, str]]]:
    """What stands in each box, and which boxes arrows connect."""
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


def _lines(node: Node, note: str | None) -> tuple[str, ...]:
    made = [name for name in node.writes if node.beside is None and name != node.name]
    what = f"{node.what} → {', '.join(made)}" if made else node.what
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
"""What an arrow has in a column that it passes: its start, its end, and the column."""
Item = str | Lane


def _with_lanes(depth: Mapping[str, int], edges: list[tuple[str, str]]) -> tuple[list[list[Item]], list[list[Item]]]:
    """The columns, and each arrow as the items that it leads through, one per column."""
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


def _untangle(columns: list[list[Item]], chains: list[list[Item]]) -> None:
    """Sort each column so that its items stand near to what they are connected with, which crosses fewer arrows."""
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
            wanted = {item: _mean([row[other] for other in near[item]], row[item]) for item in column}
            column.sort(key=lambda item: wanted[item])
            settle(column)


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _placed(
    columns: list[list[Item]], chains: list[list[Item]], texts: Mapping[str, tuple[str, ...]], kinds: Mapping[str, str]
) -> Layout:
    boxes: dict[str, Box] = {}
    through: dict[Item, tuple[Point, Point]] = {}
    tall = max((_height(column, texts) for column in columns), default=0.0)
    x: float = EDGE
    for column in columns:
        width = max(_width(texts[item]) for item in column if isinstance(item, str))
        y = EDGE + (tall - _height(column, texts)) / 2
        for item in column:
            height = _item_height(item, texts)
            middle = y + height / 2
            through[item] = ((x, middle), (x + width, middle))
            if isinstance(item, str):
                name, *said = texts[item]
                lines = (_cut(name, _LETTER, width), *(_cut(line, _SMALL_LETTER, width) for line in said))
                boxes[item] = Box(kinds[item], texts[item], lines, x, y, width, height)
            y += height + _BELOW
        x += width + APART
    arrows = [
        Arrow(str(chain[0]), str(chain[-1]), tuple(point for item in chain for point in through[item])[1:-1])
        for chain in chains
    ]
    return Layout(boxes, tuple(arrows), max(2 * EDGE, x - APART + EDGE), tall + 2 * EDGE)


def _height(column: list[Item], texts: Mapping[str, tuple[str, ...]]) -> float:
    return sum(_item_height(item, texts) for item in column) + _BELOW * (len(column) - 1)


def _item_height(item: Item, texts: Mapping[str, tuple[str, ...]]) -> float:
    return 2 * _PADDING + _LINE * len(texts[item]) if isinstance(item, str) else _LANE


def _width(lines: tuple[str, ...]) -> float:
    widest = max(len(lines[0]) * _LETTER, *(len(line) * _SMALL_LETTER for line in lines[1:]))
    return min(_WIDEST, max(_NARROWEST, widest + 2 * _PADDING))


def _cut(line: str, letter: float, width: float) -> str:
    """As much of a line as fits."""
    most = int((width - 2 * _PADDING) / letter)
    return line if len(line) <= most else f"{line[: most - 1]}…"
