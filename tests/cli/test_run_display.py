"""On a terminal a run shows a bar per step in one display, and the summary after it."""

from __future__ import annotations

import io

from rich.text import Text

from floodmark.cli.display import Lines, Live
from floodmark.pipeline.graph import Node, build
from floodmark.pipeline.running import Outcome
from floodmark.pipeline.work import Done


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


GRAPH = build([Node("a", "step", (), ("x",)), Node("b", "step", ("x",), ("y",)), Node("c", "step", ("y",), ("z",))])


def shown(live: Live) -> dict[str, str]:
    return {task.description: Text.from_markup(task.fields["said"]).plain for task in live._bars.tasks}


def test_each_step_has_a_bar_that_says_what_it_waits_for_does_and_came_to():
    with Live(Screen(), GRAPH) as live:
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
        live.ended(Outcome(GRAPH.nodes["a"], "done", done=Done(False, rows=1200, failed=2), seconds=3.21))
        live.ended(Outcome(GRAPH.nodes["b"], "failed", "no [good]\nmore"))
        live.ended(Outcome(GRAPH.nodes["c"], "skipped", "b failed"))
        assert shown(live) == {
            "a": "1,200 rows in 3.2 s, 2 failed",
            "b": "failed: no [good]",
            "c": "skipped: b failed",
        }


def test_bar_of_a_step_that_waits_is_empty_and_that_of_one_that_runs_moves():
    with Live(Screen(), GRAPH) as live:
        live.begins(GRAPH.nodes["a"])
        totals = {task.description: task.total for task in live._bars.tasks}
        assert totals == {"a": None, "b": 1, "c": 1}
        assert all(task.started and not task.completed for task in live._bars.tasks)


def test_lines_name_the_step_that_works():
    stream = io.StringIO()
    make = Lines(stream).progress(GRAPH.nodes["a"])
    assert make is not None
    progress = make()
    progress._inner._every = 0.0
    progress.start("writing x", None)
    progress.advance(3)
    assert stream.getvalue().startswith("a: writing x: 3 rows")
