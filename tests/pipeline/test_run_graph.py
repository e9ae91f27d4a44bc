"""Who runs when: what depends on nothing at once, the others after it, and failures stop only who needs them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import UnknownDataset
from floodmark.pipeline import run
from floodmark.pipeline.graph import Graph, PipelineNode, build_graph
from floodmark.pipeline.nodes import NodeResult
from floodmark.pipeline.run import NodeOutcome, SilentObserver, run_graph
from limits import set_limit
from profiles import examples
from waiting import PATIENCE


def step(name: str, reads: str = "") -> PipelineNode:
    return PipelineNode(name, "step", tuple(f"{one}_out" for one in reads.split()), (f"{name}_out",))


def states(outcomes: list[NodeOutcome]) -> dict[str, str]:
    return {one.node.name: one.state for one in outcomes}


def test_steps_that_do_not_need_each_other_run_at_the_same_time():
    together = threading.Barrier(3, timeout=PATIENCE)

    def work(_: PipelineNode) -> NodeResult:
        together.wait()
        return NodeResult(False, rows=1)

    outcomes = run_graph(build_graph([step("a"), step("b"), step("c")]), work, 3, SilentObserver())
    assert states(outcomes) == {"a": "done", "b": "done", "c": "done"}


def test_no_more_run_at_a_time_than_there_are_workers():
    running_now, most = set(), []
    lock, pair = threading.Lock(), threading.Barrier(2, timeout=PATIENCE)

    def work(node: PipelineNode) -> NodeResult:
        with lock:
            running_now.add(node.name)
            most.append(len(running_now))
        pair.wait()
        with lock:
            running_now.discard(node.name)
        return NodeResult(True)

    run_graph(build_graph([step(f"s{n}") for n in range(8)]), work, 2, SilentObserver())
    assert max(most) == 2


@pytest.mark.parametrize("workers", [1, 3])
def test_a_failure_stops_who_needs_it_and_nobody_else(workers: int):
    ran = []

    def work(node: PipelineNode) -> NodeResult:
        ran.append(node.name)
        if node.name == "bad":
            raise ValueError("no good")
        return NodeResult(node.name == "idle", rows=3)

    nodes = [step("bad"), step("child", "bad"), step("grandchild", "child good"), step("good"), step("idle", "good")]
    outcomes = run_graph(build_graph(nodes), work, workers, SilentObserver())
    found = {one.node.name: one for one in outcomes}
    assert states(outcomes) == {
        "bad": "failed",
        "good": "done",
        "child": "skipped",
        "idle": "nothing",
        "grandchild": "skipped",
    }
    assert found["bad"].why == "ValueError: no good"
    assert found["child"].why == "bad failed"
    assert found["grandchild"].why == "child was skipped"
    assert found["good"].rows == 3
    assert sorted(ran) == ["bad", "good", "idle"]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_view_runs_though_a_column_of_its_source_failed(workers: int):
    column = PipelineNode("d.c", "column", ("d",), ("d:c",), beside="d")
    view = PipelineNode("v", "view", ("d",), ("v",))

    def work(node: PipelineNode) -> NodeResult:
        if node is column:
            raise ValueError
        return NodeResult(False)

    assert states(run_graph(build_graph([column, view]), work, workers, SilentObserver())) == {
        "d.c": "failed",
        "v": "done",
    }


def test_what_has_no_input_yet_waits_and_is_no_failure():
    def work(node: PipelineNode) -> NodeResult:
        if node.name == "b":
            raise UnknownDataset("there is no dataset 'a_out'", name="a_out")
        raise UnknownDataset("there is no dataset 'else'", name="else")

    assert states(run_graph(build_graph([step("a"), step("b", "a")]).only({"b"}), work, 2, SilentObserver())) == {
        "b": "waiting"
    }
    assert states(run_graph(build_graph([step("x")]), work, 2, SilentObserver())) == {"x": "failed"}


def test_whoever_watches_is_told_of_everything_once():
    told: list[tuple[str, str]] = []

    class Watch(SilentObserver):
        def begins(self, node: PipelineNode) -> None:
            told.append(("begins", node.name))

        def ended(self, outcome: NodeOutcome) -> None:
            told.append((outcome.state, outcome.node.name))

    def work(node: PipelineNode) -> NodeResult:
        if node.name == "a":
            raise ValueError
        return NodeResult(True)

    run_graph(build_graph([step("a"), step("b", "a"), step("c")]), work, 2, Watch())
    assert sorted(told) == sorted(
        [("begins", "a"), ("failed", "a"), ("skipped", "b"), ("begins", "c"), ("nothing", "c")]
    )


def test_an_interrupt_stops_what_runs_and_begins_nothing_more(monkeypatch: pytest.MonkeyPatch):
    set_limit(monkeypatch, "running.grace", PATIENCE)
    began, stopped, ran = threading.Semaphore(0), [], []

    def work(node: PipelineNode) -> NodeResult:
        ran.append(node.name)
        began.release()
        try:
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            stopped.append(node.name)
            raise

    def interrupted(self: object) -> NodeOutcome:
        for _ in range(2):
            assert began.acquire(timeout=PATIENCE)
        raise KeyboardInterrupt

    monkeypatch.setattr(run._NodeThreads, "next", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_graph(build_graph([step("a"), step("b"), step("c", "a b")]), work, 2, SilentObserver())
    assert sorted(ran) == sorted(stopped) == ["a", "b"]


def test_an_interrupt_that_is_lost_is_sent_again_and_nobody_hears_of_it(monkeypatch: pytest.MonkeyPatch, capsys):
    """Python ignores what is raised in a callback of its own, and says so."""
    set_limit(monkeypatch, "running.grace", PATIENCE)
    set_limit(monkeypatch, "running.again", 0.05)
    heard = []

    class Deaf:
        def __del__(self) -> None:
            try:
                while True:
                    time.sleep(0.01)  # in C: an interrupt inside the locks of an Event breaks them
            finally:
                heard.append("lost")

    def work(_: PipelineNode) -> NodeResult:
        thing = Deaf()
        del thing
        while True:
            time.sleep(0.01)  # in C: an interrupt inside the locks of an Event breaks them

    def interrupted(self: object) -> NodeOutcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(run._NodeThreads, "next", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_graph(build_graph([step("a"), step("b")]), work, 2, SilentObserver())
    assert heard
    assert not [thread for thread in threading.enumerate() if thread.name in ("floodmark-a", "floodmark-b")]
    assert "Exception ignored" not in capsys.readouterr().err


@pytest.mark.parametrize(("error", "is_told"), [(KeyboardInterrupt, False), (ValueError, True)])
def test_an_interrupt_that_comes_when_a_thread_is_at_its_end_is_not_told(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], is_told: bool
):
    """It may come where the crew has put the outcome already, and nothing catches it."""
    told: list[type[BaseException] | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda raised: told.append(raised.exc_type))

    def end() -> None:
        raise error

    with run._quiet_interrupts():
        thread = threading.Thread(target=end)
        thread.start()
        thread.join(PATIENCE)
    assert told == ([error] if is_told else [])


# Random graphs beside a naive way to the same answers


@st.composite
def failing_graphs(draw) -> tuple[Graph, set[str]]:
    count = draw(st.integers(1, 8))
    reads = [draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set() for n in range(count)]
    nodes = [step(f"n{n}", " ".join(f"n{r}" for r in sorted(reads[n]))) for n in range(count)]
    bad = draw(st.sets(st.sampled_from([node.name for node in nodes]), max_size=2))
    return build_graph(draw(st.permutations(nodes))), bad


@settings(max_examples=examples(13))
@given(failing_graphs(), st.integers(1, 4))
def test_exactly_those_run_whose_ancestors_all_ran_well_and_after_them(drawn: tuple[Graph, set[str]], workers: int):
    graph, bad = drawn
    ended: list[str] = []
    began: dict[str, set[str]] = {}

    def work(node: PipelineNode) -> NodeResult:
        began[node.name] = set(ended)
        ended.append(node.name)
        if node.name in bad:
            raise ValueError
        return NodeResult(False)

    with ThreadPoolExecutor(1) as elsewhere:  # not the main thread, and it ends
        outcomes = elsewhere.submit(run_graph, graph, work, workers, SilentObserver()).result(PATIENCE)
    assert [one.node.name for one in outcomes] == list(graph.order)
    for one in outcomes:
        ancestors = graph.ancestors(one.node.name)
        expected = "skipped" if ancestors & bad else "failed" if one.node.name in bad else "done"
        assert one.state == expected
        if expected != "skipped":
            assert ancestors <= began[one.node.name]
