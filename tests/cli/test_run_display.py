"""On a terminal a run shows a bar per step in one display, and the summary after it."""

from __future__ import annotations

import io

from rich.text import Text

from floodmark.cli.run_output import BarDisplay, LineDisplay
from floodmark.pipeline.graph import PipelineNode, build_graph
from floodmark.pipeline.nodes import NodeResult
from floodmark.pipeline.run import NodeOutcome


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


GRAPH = build_graph(
    [
        PipelineNode("a", "step", (), ("x",)),
        PipelineNode("b", "step", ("x",), ("y",)),
        PipelineNode("c", "step", ("y",), ("z",)),
    ]
)


def shown(live: BarDisplay) -> dict[str, str]:
    return {task.description: Text.from_markup(task.fields["said"]).plain for task in live._bars.tasks}


def test_each_step_has_a_bar_that_says_what_it_waits_for_does_and_came_to():
    with BarDisplay(Screen(), GRAPH) as live:
        assert shown(live) == {"a": "waits for its turn", "b": "after a", "c": "after b"}
        live.begins(GRAPH.nodes["a"])
        make = live.progress(GRAPH.nodes["a"])
        assert make is not None
        bar = make()
        bar.start("running a [x]", 10)
        bar.advance(4)
        assert shown(live)["a"].startswith("running a [x]: 4 of 10 rows (40 %)")
        bar.fail(1)
        assert "rows/s, 1 failed, " in shown(live)["a"]
        live.ended(NodeOutcome(GRAPH.nodes["a"], "done", done=NodeResult(False, rows=1200, failed=2), seconds=3.21))
        live.ended(NodeOutcome(GRAPH.nodes["b"], "failed", "no [good]\nmore"))
        live.ended(NodeOutcome(GRAPH.nodes["c"], "skipped", "b failed"))
        assert shown(live) == {
            "a": "1,200 rows in 3.2 s, 2 failed",
            "b": "failed: no [good]",
            "c": "skipped: b failed",
        }


def test_bar_of_a_step_that_waits_is_empty_and_that_of_one_that_runs_moves():
    with BarDisplay(Screen(), GRAPH) as live:
        live.begins(GRAPH.nodes["a"])
        totals = {task.description: task.total for task in live._bars.tasks}
        assert totals == {"a": None, "b": 1, "c": 1}
        assert all(task.started and not task.completed for task in live._bars.tasks)


def test_lines_name_the_step_that_works():
    stream = io.StringIO()
    make = LineDisplay(stream).progress(GRAPH.nodes["a"])
    assert make is not None
    progress = make()
    progress._inner._every = 0.0
    progress.start("writing x", None)
    progress.advance(3)
    assert stream.getvalue().startswith("a: writing x: 3 rows")
