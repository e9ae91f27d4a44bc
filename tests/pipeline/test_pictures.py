"""The graph as text and as a picture: every node is there once, and nothing lies over another."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.pipeline.graph import Graph, Node, build
from floodmark.pipeline.svg_picture import _HIGH, _WIDE, layout, svg
from floodmark.pipeline.text_picture import PLAIN, lines, strokes_for


def node(name: str, kind: str, reads: str = "", writes: str | None = None) -> Node:
    beside = reads.split()[0] if kind == "column" else None
    return Node(name, kind, tuple(reads.split()), tuple((writes or name).split()), what=kind.title(), beside=beside)


SHOP = build(
    [
        node("ingest", "source", writes="orders"),
        node("prices", "step", "orders rates"),
        node("total", "step", "prices orders", "totals"),
        node("orders.size", "column", "orders", "orders:size"),
        node("daily", "view", "totals prices"),
    ]
)


def test_the_graph_as_text():
    assert lines(SHOP, {"prices": "3 behind"}) == [
        "ingest [Source] → orders",
        "├─ prices [Step]  3 behind",
        "│  ├─ total [Step] → totals",
        "│  │  └─ daily [View]",
        "│  └─ daily (above)",
        "├─ orders.size [Column]",
        "└─ total (above)",
        "rates",
        "└─ prices (above)",
    ]


def test_what_a_terminal_cannot_show_is_drawn_plainly():
    assert strokes_for("ascii") == strokes_for(None) == PLAIN
    assert lines(SHOP, {}, PLAIN)[1] == "|- prices [Step]"


def test_the_picture_is_xml_and_names_everything():
    graph = build([node("a<b>&c", "step", "x y", "out")])
    root = ET.fromstring(svg(graph, {"a<b>&c": "1 < 2"}))
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("a<b>&c") == 1
    assert "1 < 2" in texts
    assert {"x", "y"} <= set(texts)


@st.composite
def graphs(draw) -> Graph:
    count = draw(st.integers(1, 10))
    reads = [draw(st.sets(st.integers(-2, n - 1), max_size=3)) for n in range(count)]
    return build(
        [node(f"n{n}", "step", " ".join(f"n{r}" if r >= 0 else f"root{-r}" for r in reads[n])) for n in range(count)]
    )


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_every_node_is_drawn_once_and_below_something_it_reads(graph: Graph):
    drawn = lines(graph, {})
    whole = [line.split(" [")[0].strip("│├└─ ") for line in drawn if " [" in line]
    assert sorted(whole) == sorted(graph.nodes)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_boxes_never_overlap_and_arrows_lead_to_the_right(graph: Graph):
    boxes, edges = layout(graph, {})
    assert set(graph.nodes) <= set(boxes)
    for one, other in combinations(boxes.values(), 2):
        assert abs(one.x - other.x) >= _WIDE or abs(one.y - other.y) >= _HIGH
    for start, end in edges:
        assert boxes[start].x + _WIDE < boxes[end].x
    wanted = {(w, r) for r, node in graph.nodes.items() for w in graph.needs[r]}
    assert wanted <= set(edges)
