"""Run a pipeline once or in a loop: independent nodes at the same time, the others after the nodes they need.

A failed node stops only the nodes that need it. The threads here only wait for work that is done elsewhere: by
worker processes, by Spark, or by the store.
"""

from __future__ import annotations

import ctypes
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from floodmark.errors import FloodmarkError, RunFailed, UnknownDataset
from floodmark.ledger import names as dataset_names
from floodmark.ledger.create import dataset_objects
from floodmark.pipeline.checks import build_checked_graph, derived_outputs
from floodmark.pipeline.graph import Graph, PipelineNode
from floodmark.pipeline.nodes import (
    DEFAULT_OPTIONS,
    NodeResult,
    PipelineOptions,
    execute_node,
    partial_result,
    reset_node,
)
from floodmark.pipeline.removed_nodes import RemovedNode, record_nodes
from floodmark.pipeline.run_lock import hold_run_lock

if TYPE_CHECKING:
    from floodmark.engine.progress import Progress
    from floodmark.pipeline.pipeline import Pipeline


NodeState = Literal["done", "nothing", "waiting", "failed", "skipped"]

_GRACE = 5.0
"""Seconds that running work has to stop after Ctrl-C."""

_INTERRUPT_INTERVAL = 1.0
"""Seconds after which work that has not stopped is interrupted again."""

_MAX_NODES = 4
"""The most nodes that run at the same time; each of them uses all cores by itself."""


@dataclass(frozen=True)
class NodeOutcome:
    """The result of a node: done, nothing to do, waiting for data, failed, or skipped, and why."""

    node: PipelineNode
    state: NodeState
    why: str = ""
    done: NodeResult | None = None
    error: Exception | None = None
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        """The number of rows that were written or computed."""
        return 0 if self.done is None else self.done.rows

    @property
    def failed_records(self) -> int:
        """The number of keys or rows whose call failed; the others are done."""
        return 0 if self.done is None else self.done.failed


@dataclass(frozen=True)
class PipelineReport:
    """The results of a run, node by node, in the order of the graph.

    `removed` are nodes of earlier runs that are not in the pipeline any more: what they wrote is not updated.
    """

    outcomes: tuple[NodeOutcome, ...]
    seconds: float
    removed: tuple[RemovedNode, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no node failed or was skipped."""
        return not any(one.state in ("failed", "skipped") for one in self.outcomes)

    def of(self, state: NodeState) -> tuple[NodeOutcome, ...]:
        """The results with this state."""
        return tuple(one for one in self.outcomes if one.state == state)

    def __getitem__(self, name: str) -> NodeOutcome:
        for one in self.outcomes:
            if one.node.name == name:
                return one
        raise KeyError(
            f"{name!r} did not run; the nodes that ran are {', '.join(one.node.name for one in self.outcomes)}"
        )


class RunObserver(Protocol):
    """Gets the events of a run, for example to display them. Called by the threads that run nodes."""

    def begins(self, node: PipelineNode) -> None:
        """A node starts."""

    def ended(self, outcome: NodeOutcome) -> None:
        """A node ended, or was skipped."""

    def progress(self, node: PipelineNode) -> Callable[[], Progress] | None:
        """The progress display for a node; None uses the lake's."""


class SilentObserver:
    """A watcher that shows nothing."""

    def begins(self, node: PipelineNode) -> None:
        pass

    def ended(self, outcome: NodeOutcome) -> None:
        pass

    def progress(self, node: PipelineNode) -> Callable[[], Progress] | None:  # noqa: ARG002
        return None


def run(
    pipeline: Pipeline,
    lake: Any,
    names: Sequence[str] = (),
    *,
    workers: int | None = None,
    options: PipelineOptions = DEFAULT_OPTIONS,
    watcher: RunObserver | None = None,
) -> PipelineReport:
    """Check the pipeline, lock the lake, create the declared datasets, and run all nodes or the named ones."""
    began = time.monotonic()
    shown = SilentObserver() if watcher is None else watcher
    whole = build_checked_graph(pipeline, lake, names)
    graph = select_nodes(pipeline, whole, names)

    def work(node: PipelineNode) -> NodeResult:
        return execute_node(pipeline, node.name, with_progress(lake, shown.progress(node)), options)

    with hold_run_lock(lake.store, lake.runtime.clock):
        create_declared(pipeline, whole, lake)
        if options.full:  # all nodes first, so that any later run finishes a killed one
            for name in graph.order:
                reset_node(pipeline, name, lake)
        outcomes = run_graph(graph, work, workers or default_workers(), shown)
        removed = record_nodes(pipeline.nodes, pipeline.place, lake.store)
    return PipelineReport(tuple(outcomes), time.monotonic() - began, removed)


def select_nodes(pipeline: Pipeline, graph: Graph, names: Sequence[str]) -> Graph:
    """The graph of the named nodes; the whole graph if none are named."""
    if not names:
        return graph
    for name in names:
        if name not in graph.nodes:
            raise pipeline.unknown(name, graph.nodes)
    return graph.only(set(names))


def default_workers() -> int:
    """The default number of nodes that run at the same time."""
    return max(2, min(_MAX_NODES, len(os.sched_getaffinity(0))))


def create_declared(pipeline: Pipeline, graph: Graph, lake: Any) -> None:
    """Create the declared datasets for outside data. Steps and views create their own outputs."""
    derived = derived_outputs(graph)
    for declared in pipeline.datasets.values():
        if declared.name.lower() not in derived and declared.name not in lake:
            declared.make(lake)


def with_progress(lake: Any, progress: Callable[[], Progress] | None) -> Any:
    """The same lake with another progress display."""
    if progress is None:
        return lake
    return type(lake)(lake.store, runtime=replace(lake.runtime, progress=progress))


# Scheduling


def run_graph(
    graph: Graph, work: Callable[[PipelineNode], NodeResult], workers: int, watcher: RunObserver
) -> list[NodeOutcome]:
    """Run every node of a graph after the nodes before it; returns the results in the graph's order."""
    order = graph.order
    outcomes: dict[str, NodeOutcome] = {}
    if workers == 1 or len(order) == 1:
        for name in order:  # in this thread, which receives Ctrl-C
            outcomes[name] = _blocked(graph, name, outcomes, watcher) or _run_node(graph.nodes[name], work, watcher)
        return [outcomes[name] for name in order]
    waiting = list(order)
    crew = _NodeThreads(work, watcher)
    try:
        while waiting or crew.busy:
            for name in [name for name in waiting if all(other in outcomes for other in graph.after[name])]:
                if (blocked := _blocked(graph, name, outcomes, watcher)) is not None:
                    outcomes[name] = blocked
                    waiting.remove(name)
                elif crew.busy < workers:
                    crew.begin(graph.nodes[name])
                    waiting.remove(name)
            if crew.busy:
                outcome = crew.next()
                outcomes[outcome.node.name] = outcome
    except BaseException:
        crew.stop()
        raise
    return [outcomes[name] for name in order]


def _blocked(graph: Graph, name: str, outcomes: dict[str, NodeOutcome], watcher: RunObserver) -> NodeOutcome | None:
    """The `skipped` outcome of a node that needs a failed or skipped one; None if it can run."""
    for other in graph.needs[name]:
        state = outcomes[other].state
        if state in ("failed", "skipped"):
            why = f"{other} {'failed' if state == 'failed' else 'was skipped'}"
            outcome = NodeOutcome(graph.nodes[name], "skipped", why)
            watcher.ended(outcome)
            return outcome
    return None


def _run_node(node: PipelineNode, work: Callable[[PipelineNode], NodeResult], watcher: RunObserver) -> NodeOutcome:
    began = time.monotonic()
    watcher.begins(node)
    try:
        done = work(node)
        state: NodeState = "waiting" if done.waits else "nothing" if done.nothing else "done"
        outcome = NodeOutcome(node, state, done.waits or "", done, seconds=time.monotonic() - began)
    except UnknownDataset as error:
        outcome = NodeOutcome(node, *_missing_input(node, error), error=error, seconds=time.monotonic() - began)
    except Exception as error:
        why = error.message if isinstance(error, FloodmarkError) else f"{type(error).__name__}: {error}"
        partly = None
        if isinstance(error, RunFailed) and error.report is not None:
            partly = partial_result(error.report)
            why = getattr(error.report, "problem", "") or why
        outcome = NodeOutcome(node, "failed", why, partly, error, time.monotonic() - began)
    watcher.ended(outcome)
    return outcome


def _missing_input(node: PipelineNode, error: UnknownDataset) -> tuple[NodeState, str]:
    """Its inputs were checked before. One that does not exist yet has a writer that had nothing to write."""
    is_read = error.name.lower() in (name.lower() for name in node.reads)
    return ("waiting", f"there is no {error.name!r} yet") if is_read else ("failed", error.message)


def raise_if_failed(report: PipelineReport) -> None:
    """Raise `RunFailed` if a node failed; it names all of them, and the first error is its cause."""
    failed, skipped = report.of("failed"), report.of("skipped")
    if not failed:
        return
    named = "; ".join(f"{one.node.name}: {one.why}" for one in failed)
    others = f"; {len(skipped)} skipped" if skipped else ""
    raise RunFailed(
        f"{len(failed)} of {len(report.outcomes)} steps failed{others}: {named}",
        hint="the other steps are done; fix the cause and run again; check=False returns the report without an error",
        report=report,
    ) from failed[0].error


@contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Silence interrupts in places where no exception can be raised, or in a thread that is ending."""
    unraisable, ending = sys.unraisablehook, threading.excepthook

    def hook(raised: sys.UnraisableHookArgs) -> None:
        if not isinstance(raised.exc_value, KeyboardInterrupt):
            unraisable(raised)

    def end_hook(raised: threading.ExceptHookArgs) -> None:
        if not issubclass(raised.exc_type, KeyboardInterrupt):
            ending(raised)

    sys.unraisablehook, threading.excepthook = hook, end_hook
    try:
        yield
    finally:
        sys.unraisablehook, threading.excepthook = unraisable, ending


class _NodeThreads:
    """The threads of a run, one per running node."""

    def __init__(self, work: Callable[[PipelineNode], NodeResult], watcher: RunObserver) -> None:
        self._work, self._watcher = work, watcher
        self._ended: queue.SimpleQueue[NodeOutcome | BaseException] = queue.SimpleQueue()
        self._threads: dict[str, threading.Thread] = {}

    @property
    def busy(self) -> int:
        return len(self._threads)

    def begin(self, node: PipelineNode) -> None:
        # Daemons: work that ignores Ctrl-C must not keep the process alive.
        thread = threading.Thread(target=self._run, args=(node,), name=f"floodmark-{node.name}", daemon=True)
        self._threads[node.name] = thread
        thread.start()

    def next(self) -> NodeOutcome:
        """Wait for the next node that ends, and return its result."""
        ended = self._ended.get()
        if isinstance(ended, BaseException):
            raise ended
        self._threads.pop(ended.node.name).join()
        return ended

    def stop(self) -> None:
        """Interrupt all threads as Ctrl-C would, and wait a little for them to end."""
        end = time.monotonic() + _GRACE
        alive = list(self._threads.values())
        with _quiet_interrupts():
            # Repeated, because an interrupt that arrives during one of Python's callbacks is lost.
            while alive and (now := time.monotonic()) < end:
                for thread in alive:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
                    )
                until = min(end, now + _INTERRUPT_INTERVAL)
                for thread in alive:
                    thread.join(max(0.0, until - time.monotonic()))
                alive = [thread for thread in alive if thread.is_alive()]

    def _run(self, node: PipelineNode) -> None:
        try:
            self._ended.put(_run_node(node, self._work, self._watcher))
        except BaseException as error:
            self._ended.put(error)


# The loop

Heads = dict[str, bytes | None]


def watch(
    pipeline: Pipeline,
    lake: Any,
    names: Sequence[str],
    show: Callable[[PipelineReport], None],
    *,
    every: float,
    seconds: float | None,
    options: PipelineOptions,
    workers: int,
    watcher: RunObserver,
) -> None:
    """Run the graph, then repeatedly the nodes that may have work, every `every` seconds, for `seconds` or without end.

    The lake stays locked all the time. `show` gets the report of each run.
    """
    whole = build_checked_graph(pipeline, lake, names)
    graph = select_nodes(pipeline, whole, names)

    def work(node: PipelineNode) -> NodeResult:
        return execute_node(pipeline, node.name, with_progress(lake, watcher.progress(node)), options)

    with hold_run_lock(lake.store, lake.runtime.clock):
        create_declared(pipeline, whole, lake)
        began = time.monotonic()
        seen: Heads = {}
        again: set[str] = set(graph.nodes)
        while True:
            started = time.monotonic()
            sources = {name for name, node in graph.nodes.items() if node.kind == "source"}
            show(_run_once(graph, sources, work, workers, watcher))
            record_nodes(pipeline.nodes, pipeline.place, lake.store)
            heads = read_heads(graph, lake)
            due = {*again, *nodes_with_work(graph, seen, heads)} - sources
            if due:
                ran = _run_once(graph, due, work, workers, watcher)
                show(ran)
                again = {one.node.name for one in ran.outcomes if one.state in ("failed", "skipped")}
                again |= {one.node.name for one in ran.outcomes if one.failed_records}
            # The heads from before the run: records that arrived during it are checked again, which costs little.
            seen = heads
            left = None if seconds is None else seconds - (time.monotonic() - began)
            if left is not None and left <= 0:
                return
            pause = max(0.0, every - (time.monotonic() - started))
            lake.runtime.sleep(pause if left is None else min(pause, left))


def _run_once(
    graph: Graph, names: set[str], work: Callable[[PipelineNode], NodeResult], workers: int, watcher: RunObserver
) -> PipelineReport:
    started = time.monotonic()
    outcomes = run_graph(graph.only(names), work, workers, watcher) if names else []
    return PipelineReport(tuple(outcomes), time.monotonic() - started)


def read_heads(graph: Graph, lake: Any) -> Heads:
    """The heads of all datasets that the graph reads, with one small read each."""
    heads: Heads = {}
    for name in {read for node in graph.nodes.values() for read in node.reads if ":" not in read}:
        try:
            entry = dataset_names.require_entry(lake.store, name)
        except UnknownDataset:
            heads[name] = None
            continue
        head = dataset_objects(lake.store, entry.id).read_head()
        heads[name] = None if head is None else head.digest
    return heads


def nodes_with_work(graph: Graph, before: Heads, now: Heads) -> set[str]:
    """The nodes that may have work: they read a dataset that has changed, or the output of such a node."""
    touched = {name for name, node in graph.nodes.items() if any(now.get(r) != before.get(r) for r in node.reads)}
    return touched.union(*(graph.descendants(name) for name in touched))
