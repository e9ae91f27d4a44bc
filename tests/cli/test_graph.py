"""`floodmark graph` draws who reads what."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from floodmark import Lake


def test_graph_is_drawn_as_a_tree_with_how_far_everything_is(run, orders):
    run("run", "prices")
    assert run("graph").lines == [
        "goods [BatchGenerate]",
        "orders",
        "└─ prices [BatchTransform]  1 failed",
        "   └─ total [DatatableTransform]  2 behind",
    ]


def test_graph_can_be_drawn_before_there_is_a_lake(run, orders):
    answer = run("graph", "--lake", "nowhere")
    assert answer.code == 0
    assert "└─ prices [BatchTransform]" in answer.lines[2]


def test_graph_as_a_picture(run, orders, folder):
    answer = run("graph", "--svg", "flow.svg")
    assert (answer.code, answer.out) == (0, "drawn to flow.svg\n")
    root = ET.fromstring((folder / "flow.svg").read_text("utf-8"))
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"goods", "prices", "total", "orders"} <= set(texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == 2 + 1  # arrows, and what they end in
    assert run("graph", "--svg", "-").out.rstrip() == (folder / "flow.svg").read_text("utf-8").rstrip()
    assert run("graph", "--svg", "-", "--json").code == 2
    assert not (folder / "-").exists()


def test_json_has_nodes_with_places_and_levels(run, orders, folder):
    found = run("graph", "--json").json
    assert found["levels"] == [["goods", "prices"], ["total"]]
    (prices,) = [node for node in found["nodes"] if node["name"] == "prices"]
    assert (prices["reads"], prices["writes"], prices["needs"]) == (["orders"], ["prices"], [])
    assert prices["file"] == str(folder / "pipeline.py")
    assert "fm.BatchTransform(prices" in (folder / "pipeline.py").read_text().splitlines()[prices["line"] - 1]


def test_unknown_dataset_is_found_here_too(run, orders):
    Lake("lake").drop("orders")
    answer = run("graph")
    assert answer.code == 1
    assert "there is no dataset 'orders'" in answer.err
