"""Going on as inputs move: heads are looked at now and then, and what reads those that moved is run.

Sources, which have no heads to look at, are asked each time: they know how far they were read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from floodmark.ledger import names as dataset_names
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.errors import UnknownDataset
from floodmark.pipeline.checks import checked_graph
from floodmark.pipeline.graph import Graph, Node
from floodmark.pipeline.lock import running
from floodmark.pipeline.running import Ran, Watcher, chosen, lake_of, make_declared, run_graph
from floodmark.pipeline.work import Asked, Done, perform

if TYPE_CHECKING:
    from floodmark.pipeline.pipeline import Pipeline

Heads = dict[str, bytes | None]


def watch(
    pipeline: Pipeline,
    lake: Any,
    names: Sequence[str],
    show: Callable[[Ran], None],
    *,
    every: float,
    seconds: float | None,
    asked: Asked,
    workers: int,
    watcher: Watcher,
) -> None:
    """Run the graph, and again what may have something to do, every so often; for so many seconds, or for ever.

    The lake is held all the while. `show` is told of each run.
    """
    whole = checked_graph(pipeline, lake, names)
    graph = chosen(pipeline, whole, names)

    def work(node: Node) -> Done:
        return perform(pipeline, node.name, lake_of(lake, watcher.progress(node)), asked)

    with running(lake.store, lake.runtime.clock):
        make_declared(pipeline, whole, lake)
        began = time.monotonic()
        seen: Heads = {}
        again: set[str] = set(graph.nodes)
        while True:
            started = time.monotonic()
            sources = {name for name, node in graph.nodes.items() if node.kind == "source"}
            show(_run(graph, sources, work, workers, watcher))
            heads = read_heads(graph, lake)
            due = {*again, *moved(graph, seen, heads)} - sources
            if due:
                ran = _run(graph, due, work, workers, watcher)
                show(ran)
                again = {one.node.name for one in ran.outcomes if one.state in ("failed", "skipped")}
                again |= {one.node.name for one in ran.outcomes if one.failed_records}
            # As they were before the run: what came meanwhile is looked at once more, and it costs little.
            seen = heads
            left = None if seconds is None else seconds - (time.monotonic() - began)
            if left is not None and left <= 0:
                return
            pause = max(0.0, every - (time.monotonic() - started))
            lake.runtime.sleep(pause if left is None else min(pause, left))


def _run(graph: Graph, names: set[str], work: Callable[[Node], Done], workers: int, watcher: Watcher) -> Ran:
    started = time.monotonic()
    outcomes = run_graph(graph.only(names), work, workers, watcher) if names else []
    return Ran(tuple(outcomes), time.monotonic() - started)


def read_heads(graph: Graph, lake: Any) -> Heads:
    """The heads of all datasets that the graph reads; one small read each."""
    found: Heads = {}
    for name in {read for node in graph.nodes.values() for read in node.reads if ":" not in read}:
        try:
            entry = dataset_names.find(lake.store, name)
        except UnknownDataset:
            found[name] = None
            continue
        head = dataset_objects(lake.store, entry.id).read_head()
        found[name] = None if head is None else head.digest
    return found


def moved(graph: Graph, before: Heads, now: Heads) -> set[str]:
    """What may have something to do: it reads a dataset that has moved, or that something which runs will move."""
    touched = {name for name, node in graph.nodes.items() if any(now.get(r) != before.get(r) for r in node.reads)}
    return touched.union(*(graph.descendants(name) for name in touched))
