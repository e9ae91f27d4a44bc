"""The graph of a pipeline: what comes first, and what is refused before anything runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import BadPipeline, CodeLocation
from floodmark.pipeline.graph import Graph, PipelineNode, build_graph
from profiles import examples


def step(name: str, reads: str = "", writes: str | None = None, **more) -> PipelineNode:
    return PipelineNode(name, "step", tuple(reads.split()), tuple((writes or f"{name}_out").split()), **more)


def column(dataset: str, name: str, *inputs: str) -> PipelineNode:
    reads = (dataset, *(f"{dataset}:{one}" for one in inputs))
    return PipelineNode(f"{dataset}.{name}", "column", reads, (f"{dataset}:{name}",), beside=dataset)


def view(name: str, reads: str) -> PipelineNode:
    return PipelineNode(name, "view", tuple(reads.split()), (name,))


def test_each_comes_after_what_writes_its_inputs_and_else_as_declared():
    graph = build_graph([step("c", "b_out"), step("b", "a_out"), step("x"), step("a")])
    assert graph.order == ("x", "a", "b", "c")
    assert graph.levels == (("x", "a"), ("b",), ("c",))
    assert graph.needs["c"] == ("b",)
    assert graph.ancestors("c") == {"a", "b"}
    assert graph.descendants("a") == {"b", "c"}
    assert graph.descendants("x") == set()


def test_capitals_make_no_other_dataset():
    assert build_graph([step("b", "Orders"), step("a", writes="orders")]).needs["b"] == ("a",)


def test_a_view_runs_after_the_columns_of_what_it_reads_but_does_not_need_them():
    graph = build_graph([view("v", "d"), column("d", "c"), step("w", writes="d"), step("s", "d")])
    assert graph.needs["v"] == ("w",)
    assert graph.after["v"] == ("w", "d.c")
    assert graph.after["s"] == ("w",)  # steps do not see computed columns


def test_a_column_comes_after_those_it_is_computed_from():
    graph = build_graph([column("d", "b", "a"), column("d", "a"), step("w", writes="d")])
    assert graph.order == ("w", "d.a", "d.b")
    assert graph.needs["d.b"] == ("w", "d.a")


def test_without_some_nodes_the_order_of_the_others_stays():
    graph = build_graph([step("a"), step("b", "a_out"), step("c", "b_out"), step("x", "a_out c_out")]).only(
        {"a", "c", "x"}
    )
    assert graph.order == ("a", "c", "x")
    assert graph.needs == {"a": (), "c": ("a",), "x": ("a", "c")}


# What is refused


def problem(*nodes: PipelineNode, known=()) -> str:
    with pytest.raises(BadPipeline) as caught:
        build_graph(nodes, known)
    return str(caught.value)


def test_a_circle_is_named_with_every_step_of_it_and_the_datasets_between():
    places = [CodeLocation("pipeline.py", line) for line in (3, 5, 7)]
    a, b, c = (
        step(name, reads, place=place)
        for (name, reads), place in zip([("a", "c_out"), ("b", "a_out"), ("c", "b_out x")], places, strict=True)
    )
    with pytest.raises(BadPipeline) as caught:
        build_graph([a, b, c, step("d", "c_out")], ["x"])
    said = str(caught.value)
    assert caught.value.path == "pipeline.py"
    names = said.split(": ", 2)[2].splitlines()[0].split(" → ")
    assert names[0] == names[-1]
    assert set(names[::2]) == {"a", "b", "c"}
    for writer, between, reader in zip(names[::2], names[1::2], names[2::2], strict=False):
        assert between == f"{writer}_out"
        assert between == {"a": "c_out", "b": "a_out", "c": "b_out"}[reader]
    assert all(f"pipeline.py, line {line}" in said for line in (3, 5, 7))
    assert "d" not in names


def test_a_step_that_reads_its_own_view_is_a_circle():
    assert "the pipeline has a cycle" in problem(view("v", "s_out"), step("s", "v"))


def test_an_unknown_dataset_is_named_with_file_line_and_the_nearest_name():
    said = problem(step("s", "ordrs", place=CodeLocation("flows/pipeline.py", 12)), known=["orders"])
    assert said.startswith("flows/pipeline.py, line 12: there is no dataset 'ordrs', which step 's' reads")
    assert "did you mean 'orders'?" in said


def test_an_unknown_dataset_may_be_meant_for_one_that_a_step_writes():
    assert "did you mean 'prices'?" in problem(step("s", "price"), step("p", writes="prices"))


def test_a_dataset_of_the_lake_is_known_and_without_a_lake_all_are():
    assert build_graph([step("s", "Orders")], ["orders"]).order == ("s",)
    assert build_graph([step("s", "orders")], None).order == ("s",)


def test_what_is_not_wanted_may_read_what_is_not_there():
    nodes = [step("s", "nowhere"), step("t", "orders")]
    assert build_graph(nodes, ["orders"], ["t"]).order == ("s", "t")
    with pytest.raises(BadPipeline):
        build_graph(nodes, ["orders"], ["s"])


def test_two_writers_of_one_dataset_are_refused_with_both_places():
    said = problem(
        step("a", writes="x", place=CodeLocation("p.py", 1)), step("b", writes="X", place=CodeLocation("p.py", 2))
    )
    assert "p.py, line 2: step 'b' writes 'X', and so does step 'a' (p.py, line 1)" in said


def test_writers_that_only_add_rows_may_share_a_dataset_and_its_reader_needs_all_of_them():
    sources = [step(name, writes="x", shares=True) for name in ("a", "b")]
    assert build_graph([*sources, step("r", "x")]).needs["r"] == ("a", "b")
    with pytest.raises(BadPipeline):
        build_graph([*sources, step("c", writes="x")])


def test_two_of_one_name_are_refused():
    assert "are named 'a'" in problem(step("a"), step("a", writes="other"))


def test_everything_that_is_wrong_is_said_at_once():
    with pytest.raises(BadPipeline) as caught:
        build_graph([step("a", "q", writes="x"), step("b", "r", writes="x")], [])
    assert len(caught.value.problems) == 3
    assert "3 problems" in str(caught.value)
    assert "nothing was run" in caught.value.hint


# Random graphs beside a naive way to the same answers


@st.composite
def graphs(draw) -> Graph:
    count = draw(st.integers(1, 9))
    reads = [draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set() for n in range(count)]
    nodes = [step(f"n{n}", " ".join(f"n{r}_out" for r in sorted(reads[n]))) for n in range(count)]
    return build_graph(draw(st.permutations(nodes)))


def naive_ancestors(graph: Graph, name: str) -> set[str]:
    found: set[str] = set()
    while True:
        more = {
            w for n in {name, *found} for w, node in graph.nodes.items() if set(node.writes) & set(graph.nodes[n].reads)
        }
        if more <= found:
            return found
        found |= more


@settings(max_examples=examples(20))
@given(graphs())
def test_order_levels_and_ancestors_are_those_of_a_naive_search(graph: Graph):
    assert sorted(graph.order) == sorted(graph.nodes)
    at = {name: number for number, level in enumerate(graph.levels) for name in level}
    for name in graph.nodes:
        ancestors = naive_ancestors(graph, name)
        assert graph.ancestors(name) == ancestors
        assert {other for other in graph.nodes if name in naive_ancestors(graph, other)} == graph.descendants(name)
        assert all(graph.order.index(other) < graph.order.index(name) for other in ancestors)
        assert at[name] == max((at[other] + 1 for other in graph.needs[name]), default=0)


@settings(max_examples=examples(20))
@given(graphs(), st.data())
def test_some_nodes_have_among_them_the_ancestors_that_they_had(graph: Graph, data):
    kept = data.draw(st.sets(st.sampled_from(sorted(graph.nodes)), min_size=1))
    some = graph.only(kept)
    assert set(some.nodes) == kept
    for name in kept:
        assert some.ancestors(name) == naive_ancestors(graph, name) & kept
