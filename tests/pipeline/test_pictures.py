"""The graph as text and as a picture: every node is there once, and nothing lies over another."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.pipeline.graph import Graph, PipelineNode, build_graph
from floodmark.pipeline.picture import ASCII_LINES, draw_svg, draw_text, lay_out, line_style_for
from profiles import examples


def node(name: str, kind: str, reads: str = "", writes: str | None = None) -> PipelineNode:
    beside = reads.split()[0] if kind == "column" else None
    return PipelineNode(
        name, kind, tuple(reads.split()), tuple((writes or name).split()), what=kind.title(), beside=beside
    )


SHOP = build_graph(
    [
        node("ingest", "source", writes="orders"),
        node("prices", "step", "orders rates"),
        node("total", "step", "prices orders", "totals"),
        node("orders.size", "column", "orders", "orders:size"),
        node("daily", "view", "totals prices"),
    ]
)


def test_the_graph_as_text():
    assert draw_text(SHOP, {"prices": "3 behind"}) == [
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
    assert line_style_for("ascii") == line_style_for(None) == ASCII_LINES
    assert draw_text(SHOP, {}, ASCII_LINES)[1] == "|- prices [Step]"


def test_the_picture_is_xml_and_names_everything():
    graph = build_graph([node("a<b>&c", "step", "x y", "out")])
    root = ET.fromstring(draw_svg(graph, {"a<b>&c": "1 < 2"}))
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("a<b>&c") == 1
    assert "1 < 2" in texts
    assert {"x", "y"} <= set(texts)


@st.composite
def graphs(draw) -> Graph:
    count = draw(st.integers(1, 10))
    reads = [draw(st.sets(st.integers(-2, n - 1), max_size=3)) for n in range(count)]
    return build_graph(
        [node(f"n{n}", "step", " ".join(f"n{r}" if r >= 0 else f"root{-r}" for r in reads[n])) for n in range(count)]
    )


@settings(max_examples=examples(20))
@given(graphs())
def test_every_node_is_drawn_once_and_below_something_it_reads(graph: Graph):
    drawn = draw_text(graph, {})
    whole = [line.split(" [")[0].strip("│├└─ ") for line in drawn if " [" in line]
    assert sorted(whole) == sorted(graph.nodes)


@settings(max_examples=examples(20))
@given(graphs())
def test_boxes_never_overlap_and_arrows_lead_to_the_right(graph: Graph):
    found = lay_out(graph, {})
    assert set(graph.nodes) <= set(found.boxes)
    for one, other in combinations(found.boxes.values(), 2):
        apart = (one.x + one.width < other.x, other.x + other.width < one.x)
        assert any((*apart, one.y + one.height < other.y, other.y + other.height < one.y))
    for arrow in found.arrows:
        assert [x for x, _ in arrow.points] == sorted(x for x, _ in arrow.points)
    wanted = {(w, r) for r, node in graph.nodes.items() for w in graph.needs[r]}
    assert wanted <= {(arrow.start, arrow.end) for arrow in found.arrows}


@settings(max_examples=examples(20))
@given(graphs())
def test_no_arrow_passes_a_box(graph: Graph):
    found = lay_out(graph, {})
    for arrow in found.arrows:
        start, end = found.boxes[arrow.start], found.boxes[arrow.end]
        assert arrow.points[0] == (start.x + start.width, start.y + start.height / 2)
        assert arrow.points[-1] == (end.x, end.y + end.height / 2)
        for x, y in arrow.points[1:-1]:  # where it enters and leaves the columns between
            assert not any(
                box.x <= x <= box.x + box.width and box.y <= y <= box.y + box.height for box in found.boxes.values()
            )
        for (x, _), (to_x, _) in zip(arrow.points[::2], arrow.points[1::2], strict=True):  # where it bends
            assert not any(box.x < to_x and box.x + box.width > x for box in found.boxes.values())


def test_long_names_are_cut_and_shown_as_a_whole_by_pointing_at_them():
    name = "join_flights_with_the_weather_of_the_hour_before"
    drawn = draw_svg(build_graph([node(name, "step", "a", "b")]), {})
    assert f"<title>{name}: " in drawn
    assert f">{name}<" not in drawn


def test_picture_is_for_light_and_dark_backgrounds():
    assert "prefers-color-scheme: dark" in draw_svg(build_graph([node("a", "step", "b", "c")]), {})
