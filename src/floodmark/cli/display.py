"""How a run goes on, on a terminal: one bar per step, in one display."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from floodmark.engine import Progress
from floodmark.engine.progress import LineProgress, summary
from floodmark.pipeline.graph import Graph, Node
from floodmark.pipeline.running import Outcome

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_STYLES = {"done": "green", "nothing": "dim", "waiting": "yellow", "failed": "red", "skipped": "yellow"}
_WORDS = {"nothing": "nothing to do", "waiting": "waits", "failed": "failed", "skipped": "skipped"}


class Lines:
    """For pipes and logs: work that takes long says how far it is, with the name of its step before it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begins(self, node: Node) -> None:
        """There is nothing to say yet."""

    def ended(self, outcome: Outcome) -> None:
        """It is said at the end, with all the others."""

    def progress(self, node: Node) -> Callable[[], Progress] | None:
        """A line every few seconds."""
        return lambda: _Named(node.name, LineProgress(self._stream))


class _Named:
    """Progress whose label says which step it is about."""

    def __init__(self, name: str, inner: Progress) -> None:
        self._name, self._inner = name, inner

    def start(self, label: str, total: int | None) -> None:
        self._inner.start(label if self._name in label else f"{self._name}: {label}", total)

    def advance(self, units: int) -> None:
        self._inner.advance(units)

    def fail(self, units: int) -> None:
        self._inner.fail(units)

    def finish(self) -> None:
        self._inner.finish()


class Live:
    """A bar per step: what it waits for, how far it is, what became of it."""

    def __init__(self, stream: TextIO, graph: Graph) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[said]}"))
        self._bars: Bars = Bars(*columns, console=Console(file=stream), transient=True)
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        for name in graph.order:
            after = ", ".join(graph.after[name])
            said = f"[dim]after {after}" if after else "[dim]waits for its turn"
            self._tasks[name] = self._bars.add_task(name, total=1, said=said)  # an empty bar

    def __enter__(self) -> Live:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begins(self, node: Node) -> None:
        """Its bar begins to move."""
        with self._lock:
            self._bars.tasks[self._tasks[node.name]].total = None  # it is not known yet how much there is to do
        self._show(node, "runs")

    def ended(self, outcome: Outcome) -> None:
        """Its bar is full, or says why it is not."""
        words = _WORDS.get(outcome.state, f"{outcome.rows:,} rows in {outcome.seconds:.1f} s")
        why = f": {outcome.why.splitlines()[0]}" if outcome.why else ""
        failed = f", {outcome.failed_records:,} failed" if outcome.failed_records else ""
        self._show(outcome.node, f"[{_STYLES[outcome.state]}]{words}{failed}{_escaped(why)}", total=1, completed=1)

    def progress(self, node: Node) -> Callable[[], Progress] | None:
        """Shown in the step's own bar."""
        return lambda: _Bar(lambda said, **counts: self._show(node, said, **counts))

    def _show(self, node: Node, said: str, **counts: Any) -> None:
        with self._lock:
            self._bars.update(self._tasks[node.name], said=said, **counts)


class _Bar:
    """One piece of a step's work, in the bar of the step."""

    def __init__(self, show: Callable[..., None]) -> None:
        self._show = show
        self._label, self._done, self._failed, self._began = "", 0, 0, 0.0
        self._total: int | None = None

    def start(self, label: str, total: int | None) -> None:
        self._label, self._total, self._began = label, total, time.monotonic()
        self._done = self._failed = 0
        self._show(_escaped(label), total=total, completed=0)

    def advance(self, units: int) -> None:
        self._done += units
        text = summary(self._done, self._total, time.monotonic() - self._began, self._failed)
        self._show(_escaped(f"{self._label}: {text}"), total=self._total, completed=self._done)

    def fail(self, units: int) -> None:
        self._failed += units
        self.advance(0)

    def finish(self) -> None:
        """The next piece, or the end of the step, is shown in its place."""


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
