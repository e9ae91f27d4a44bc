"""Running a pipeline: what depends on nothing else at once, each of the others after what it needs.

What fails stops those that need it, and nobody else. Threads here only wait for work that is done elsewhere: by worker
processes, by Spark, or by the store.
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

from floodmark.errors import FloodmarkError
from floodmark.ledger.errors import UnknownDataset
from floodmark.pipeline.checks import checked_graph, derived_outputs
from floodmark.pipeline.graph import Graph, Node
from floodmark.pipeline.lock import running
from floodmark.pipeline.work import EVERYTHING, Asked, Done, forget, perform

if TYPE_CHECKING:
    from floodmark.engine import Progress
    from floodmark.pipeline.pipeline import Pipeline

State = Literal["done", "nothing", "waiting", "failed", "skipped"]

_GRACE = 5.0
"""Seconds that what is under way has to stop after Ctrl-C."""

_AGAIN = 1.0
"""Seconds after which what has not stopped is told once more."""

_MOST = 4
"""More steps at a time only get in each other's way: each of them uses all cores by itself."""


@dataclass(frozen=True)
class Outcome:
    """What became of a node: done, nothing to do, waiting for data, failed, or skipped, and why."""

    node: Node
    state: State
    why: str = ""
    done: Done | None = None
    error: Exception | None = None
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        """Rows that were written or computed."""
        return 0 if self.done is None else self.done.rows

    @property
    def failed_records(self) -> int:
        """Keys or rows whose call failed; the others are done."""
        return 0 if self.done is None else self.done.failed


@dataclass(frozen=True)
class Ran:
    """What a run came to, node by node, in the order of the graph."""

    outcomes: tuple[Outcome, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing failed, and nothing was skipped therefore."""
        return not any(one.state in ("failed", "skipped") for one in self.outcomes)

    def of(self, state: State) -> tuple[Outcome, ...]:
        """Those that ended like this."""
        return tuple(one for one in self.outcomes if one.state == state)

    def __getitem__(self, name: str) -> Outcome:
        for one in self.outcomes:
            if one.node.name == name:
                return one
        raise KeyError(f"{name!r} did not run; what ran is {', '.join(one.node.name for one in self.outcomes)}")


class Watcher(Protocol):
    """Is told how a run goes on, by the threads that run: it may draw it."""

    def begins(self, node: Node) -> None:
        """A node is run now."""

    def ended(self, outcome: Outcome) -> None:
        """What became of it, or of one that was not run."""

    def progress(self, node: Node) -> Callable[[], Progress] | None:
        """What shows how far a node is; None leaves it to the lake."""


class Silent:
    """Shows nothing."""

    def begins(self, node: Node) -> None:
        """Shows nothing."""

    def ended(self, outcome: Outcome) -> None:
        """Shows nothing."""

    def progress(self, node: Node) -> Callable[[], Progress] | None:  # noqa: ARG002
        """Leaves it to the lake."""
        return None


def run(
    pipeline: Pipeline,
    lake: Any,
    names: Sequence[str] = (),
    *,
    workers: int | None = None,
    asked: Asked = EVERYTHING,
    watcher: Watcher | None = None,
) -> Ran:
    """Check the pipeline, take the lake, make what is declared, and run all nodes or exactly those named."""
    began = time.monotonic()
    shown = Silent() if watcher is None else watcher
    whole = checked_graph(pipeline, lake, names)
    graph = chosen(pipeline, whole, names)

    def work(node: Node) -> Done:
        return perform(pipeline, node.name, lake_of(lake, shown.progress(node)), asked)

    with running(lake.store, lake.runtime.clock):
        make_declared(pipeline, whole, lake)
        if asked.full:  # all of it first, so that a run which is killed is finished by any other one
            for name in graph.order:
                forget(pipeline, name, lake)
        outcomes = run_graph(graph, work, workers or default_workers(), shown)
    return Ran(tuple(outcomes), time.monotonic() - began)


def chosen(pipeline: Pipeline, graph: Graph, names: Sequence[str]) -> Graph:
    """The graph of the named nodes, or all of it."""
    if not names:
        return graph
    for name in names:
        if name not in graph.nodes:
            raise pipeline.unknown(name, graph.nodes)
    return graph.only(set(names))


def default_workers() -> int:
    """How many nodes run at a time, if nobody says."""
    return max(2, min(_MOST, len(os.sched_getaffinity(0))))


def make_declared(pipeline: Pipeline, graph: Graph, lake: Any) -> None:
    """Make the declared datasets that data is written to; what is computed, its step or view makes."""
    derived = derived_outputs(graph)
    for declared in pipeline.datasets.values():
        if declared.name.lower() not in derived and declared.name not in lake:
            declared.make(lake)


def lake_of(lake: Any, progress: Callable[[], Progress] | None) -> Any:
    """The same lake, with a way of its own to show progress."""
    if progress is None:
        return lake
    return type(lake)(lake.store, runtime=replace(lake.runtime, progress=progress))


# Who runs when


def run_graph(graph: Graph, work: Callable[[Node], Done], workers: int, watcher: Watcher) -> list[Outcome]:
    """Run every node of a graph when those before it are through; what became of each, in the graph's order."""
    order = graph.order
    found: dict[str, Outcome] = {}
    if workers == 1 or len(order) == 1:
        for name in order:  # in this thread, where Ctrl-C comes
            found[name] = _blocked(graph, name, found, watcher) or _run_node(graph.nodes[name], work, watcher)
        return [found[name] for name in order]
    waiting = list(order)
    crew = _Crew(work, watcher)
    try:
        while waiting or crew.busy:
            for name in [name for name in waiting if all(other in found for other in graph.after[name])]:
                if (blocked := _blocked(graph, name, found, watcher)) is not None:
                    found[name] = blocked
                    waiting.remove(name)
                elif crew.busy < workers:
                    crew.begin(graph.nodes[name])
                    waiting.remove(name)
            if crew.busy:
                outcome = crew.next()
                found[outcome.node.name] = outcome
    except BaseException:
        crew.stop()
        raise
    return [found[name] for name in order]


def _blocked(graph: Graph, name: str, found: dict[str, Outcome], watcher: Watcher) -> Outcome | None:
    """Why a node cannot be run, if so: something that it needs has not become what it should be."""
    for other in graph.needs[name]:
        state = found[other].state
        if state in ("failed", "skipped"):
            why = f"{other} {'failed' if state == 'failed' else 'was skipped'}"
            outcome = Outcome(graph.nodes[name], "skipped", why)
            watcher.ended(outcome)
            return outcome
    return None


def _run_node(node: Node, work: Callable[[Node], Done], watcher: Watcher) -> Outcome:
    began = time.monotonic()
    watcher.begins(node)
    try:
        done = work(node)
        state: State = "waiting" if done.waits else "nothing" if done.nothing else "done"
        outcome = Outcome(node, state, done.waits or "", done, seconds=time.monotonic() - began)
    except UnknownDataset as error:
        outcome = Outcome(node, *_missing(node, error), error=error, seconds=time.monotonic() - began)
    except Exception as error:
        why = error.message if isinstance(error, FloodmarkError) else f"{type(error).__name__}: {error}"
        outcome = Outcome(node, "failed", why, error=error, seconds=time.monotonic() - began)
    watcher.ended(outcome)
    return outcome


def _missing(node: Node, error: UnknownDataset) -> tuple[State, str]:
    """What it reads was checked before: if it is not there yet, what makes it had nothing to make it of."""
    is_read = error.name.lower() in (name.lower() for name in node.reads)
    return ("waiting", f"there is no {error.name!r} yet") if is_read else ("failed", error.message)


@contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Say nothing of interrupts that came where nothing can be raised, or when a thread was at its end."""
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


class _Crew:
    """Threads, one per node that is run."""

    def __init__(self, work: Callable[[Node], Done], watcher: Watcher) -> None:
        self._work, self._watcher = work, watcher
        self._ended: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
        self._threads: dict[str, threading.Thread] = {}

    @property
    def busy(self) -> int:
        return len(self._threads)

    def begin(self, node: Node) -> None:
        # Daemons: work that does not heed Ctrl-C must not keep the process from ending.
        thread = threading.Thread(target=self._run, args=(node,), name=f"floodmark-{node.name}", daemon=True)
        self._threads[node.name] = thread
        thread.start()

    def next(self) -> Outcome:
        """What became of the next node that ends."""
        ended = self._ended.get()
        if isinstance(ended, BaseException):
            raise ended
        self._threads.pop(ended.node.name).join()
        return ended

    def stop(self) -> None:
        """Have all threads stop as Ctrl-C would have them, and wait a little for those that heed it."""
        end = time.monotonic() + _GRACE
        alive = list(self._threads.values())
        with _quiet_interrupts():
            # More than once: one that comes while Python runs a callback of its own is lost.
            while alive and (now := time.monotonic()) < end:
                for thread in alive:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
                    )
                until = min(end, now + _AGAIN)
                for thread in alive:
                    thread.join(max(0.0, until - time.monotonic()))
                alive = [thread for thread in alive if thread.is_alive()]

    def _run(self, node: Node) -> None:
        try:
            self._ended.put(_run_node(node, self._work, self._watcher))
        except BaseException as error:
            self._ended.put(error)
