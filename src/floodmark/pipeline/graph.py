"""The graph of a pipeline: what reads what others write, and so what comes first. Pure: reads no lake."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Literal

from floodmark.pipeline.errors import BadPipeline, Problem
from floodmark.transform.place import Place

Kind = Literal["source", "step", "column", "view"]


@dataclass(frozen=True)
class Node:
    """Something that can be run: the datasets it reads and writes, by name.

    A computed column writes no dataset but `dataset:column`, which other columns may read. `beside` is its dataset:
    a view that reads that runs after it, as it may use the column, but does not need it. Steps do not see the column.
    """

    name: str
    kind: Kind
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    place: Place | None = None
    shares: bool = False
    """Whether others may write to the same datasets: it only adds and changes rows of its own."""
    beside: str | None = None
    what: str = ""
    """What it is called among users: BatchTransform, say."""


@dataclass(frozen=True)
class Graph:
    """Nodes by name, and for each those that it needs, and those that it merely comes after (the needed among them).

    Dataset names are the same whether in capitals or not.
    """

    nodes: Mapping[str, Node]
    needs: Mapping[str, tuple[str, ...]]
    after: Mapping[str, tuple[str, ...]]

    @property
    def order(self) -> tuple[str, ...]:
        """All names, each after those it comes after; else as they were declared."""
        return tuple(name for level in self.levels for name in level)

    @property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """The same in groups: what is in one can run at once, when those before it have run."""
        depth: dict[str, int] = {}
        for name in TopologicalSorter(self.after).static_order():
            depth[name] = 1 + max((depth[other] for other in self.after[name]), default=-1)
        found: dict[int, list[str]] = defaultdict(list)
        for name in self.nodes:
            found[depth[name]].append(name)
        return tuple(tuple(found[level]) for level in sorted(found))

    def ancestors(self, name: str) -> set[str]:
        """What has to be up to date before it can be."""
        return _reached(name, self.needs)

    def descendants(self, name: str) -> set[str]:
        """What cannot be up to date before it is."""
        needed_by: dict[str, list[str]] = defaultdict(list)
        for other, needed in self.needs.items():
            for one in needed:
                needed_by[one].append(other)
        return _reached(name, needed_by)

    def only(self, names: Collection[str]) -> Graph:
        """The graph of some nodes, without the others; which of two comes first stays the same."""
        kept = {name: node for name, node in self.nodes.items() if name in names}
        return Graph(kept, *(_through(edges, kept) for edges in (self.needs, self.after)))


def _reached(name: str, edges: Mapping[str, Sequence[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(edges.get(name, ()))
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += edges.get(one, ())
    return found


def _through(edges: Mapping[str, tuple[str, ...]], kept: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Edges between nodes that are kept, also where a way between them leads through others."""
    found = {}
    for name in kept:
        ends: dict[str, None] = {}
        seen: set[str] = set()
        waiting = list(reversed(edges[name]))
        while waiting:
            one = waiting.pop()
            if one in kept:
                ends[one] = None
            elif one not in seen:
                seen.add(one)
                waiting += reversed(edges[one])
        found[name] = tuple(ends)
    return found


def build(nodes: Iterable[Node], known: Collection[str] | None = None, wanted: Collection[str] = ()) -> Graph:
    """The graph of these nodes; `known` are datasets that are declared, or in the lake: None if nobody can tell.

    `BadPipeline` names all that is wrong: names taken twice, two writers of one dataset, datasets that nobody knows
    (where all nodes read, or those `wanted`), and circles.
    """
    listed = list(nodes)
    problems = [*_same_names(listed), *_same_outputs(listed)]
    writers: dict[str, list[Node]] = defaultdict(list)
    columns: dict[str, list[Node]] = defaultdict(list)
    for node in listed:
        for name in node.writes:
            writers[name.lower()].append(node)
        if node.beside is not None:
            columns[node.beside.lower()].append(node)
    if known is not None:
        asked = [node for node in listed if not wanted or node.name in wanted]
        problems += _unknown(asked, {name for node in listed for name in node.writes}, known)
    if problems:
        raise BadPipeline.of(problems)
    needs: dict[str, tuple[str, ...]] = {}
    after: dict[str, tuple[str, ...]] = {}
    for node in listed:
        needed = dict.fromkeys(w.name for read in node.reads for w in writers.get(read.lower(), ()))
        needs[node.name] = tuple(needed)
        beside = [c.name for read in node.reads for c in columns.get(read.lower(), ()) if node.kind == "view"]
        after[node.name] = tuple(dict.fromkeys([*needed, *beside]))
    found = Graph({node.name: node for node in listed}, needs, after)
    _check_circles(found)
    return found


def _same_names(nodes: Sequence[Node]) -> list[Problem]:
    first: dict[str, Node] = {}
    problems = []
    for node in nodes:
        other = first.setdefault(node.name, node)
        if other is not node:
            where = "" if other.place is None else f" (the other one: {other.place})"
            hint = "give one of them another name: name=…"
            problems.append(Problem(f"there are two {node.name!r} in the pipeline{where}", hint, node.place))
    return problems


def _same_outputs(nodes: Sequence[Node]) -> list[Problem]:
    first: dict[str, Node] = {}
    problems = []
    for node in nodes:
        for name in node.writes:
            other = first.setdefault(name.lower(), node)
            if other is node or other.name == node.name or (other.shares and node.shares):
                continue
            where = "" if other.place is None else f" ({other.place})"
            problems.append(
                Problem(
                    f"{_called(node)} writes {name!r}, and so does {_called(other)}{where}",
                    "give each an output of its own",
                    node.place,
                )
            )
    return problems


def _unknown(nodes: Sequence[Node], written: Collection[str], known: Collection[str]) -> list[Problem]:
    there = {name.lower() for name in (*known, *written)}
    spelled = sorted({*known, *(name for name in written if ":" not in name)})
    problems = []
    for node in nodes:
        for name in node.reads:
            if name.lower() in there:
                continue
            near = difflib.get_close_matches(name, spelled, 1)
            hint = f"did you mean {near[0]!r}?" if near else "declare it, ingest it, or let a step write it"
            said = f"there is no dataset {name!r}, which {_called(node)} reads"
            problems.append(Problem(said, hint, node.place))
    return problems


def _check_circles(graph: Graph) -> None:
    try:
        TopologicalSorter(graph.after).prepare()
    except CycleError as error:
        circle = error.args[1]  # each comes before the next
        nodes = [graph.nodes[name] for name in circle]
        said = [f"{a.name} → {_between(a, b)} → " for a, b in pairwise(nodes)]
        places = "; ".join(f"{node.name}: {node.place}" for node in nodes[:-1] if node.place is not None)
        raise BadPipeline.of(
            [
                Problem(
                    f"what {nodes[0].name!r} reads is made from what it writes: {''.join(said)}{nodes[-1].name}",
                    f"one of them must read something else{f' ({places})' if places else ''}",
                    nodes[0].place,
                )
            ]
        ) from None


def _between(writer: Node, reader: Node) -> str:
    read = {name.lower() for name in reader.reads}
    return next((name for name in writer.writes if name.lower() in read), writer.beside or "")


def _called(node: Node) -> str:
    return f"{node.kind} {node.name!r}"
