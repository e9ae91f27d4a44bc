"""The graph of a pipeline as lines of text: datasets, what reads them, and what that writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from floodmark.pipeline.graph import Graph, Node


@dataclass(frozen=True)
class Strokes:
    """What branches are drawn with."""

    branch: str
    last: str
    along: str
    arrow: str


DRAWN = Strokes("├─ ", "└─ ", "│  ", "→")
PLAIN = Strokes("|- ", "`- ", "|  ", "->")


def strokes_for(encoding: str | None) -> Strokes:
    """Lines, or plain characters where the output cannot have them."""
    try:
        "".join(vars(DRAWN).values()).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return DRAWN


def lines(graph: Graph, notes: Mapping[str, str], strokes: Strokes = DRAWN) -> list[str]:
    """A tree per dataset that nothing in the graph computes; what has several parents is drawn once, and named twice.

    `notes` stand behind the names of nodes.
    """
    readers: dict[str, list[Node]] = defaultdict(list)
    for name in graph.order:
        for read in dict.fromkeys(one.lower() for one in graph.nodes[name].reads):
            readers[read].append(graph.nodes[name])
    picture = _Picture(graph, readers, notes, strokes)
    for name in graph.order:
        if not graph.nodes[name].reads:
            picture.node(graph.nodes[name], "", "")
    written = {name.lower() for node in graph.nodes.values() for name in node.writes}
    roots = [read for name in graph.order for read in graph.nodes[name].reads if read.lower() not in written]
    for read in dict.fromkeys(roots):
        picture.drawn.append(read)
        picture.below([read], "")
    return picture.drawn


class _Picture:
    def __init__(
        self, graph: Graph, readers: Mapping[str, Sequence[Node]], notes: Mapping[str, str], strokes: Strokes
    ) -> None:
        self._graph, self._readers, self._notes, self._strokes = graph, readers, notes, strokes
        self._seen: set[str] = set()
        self.drawn: list[str] = []

    def node(self, node: Node, lead: str, indent: str) -> None:
        """One node, and below it all that reads what it writes."""
        if node.name in self._seen:
            self.drawn.append(f"{lead}{node.name} (above)")
            return
        waits = [other for other in self._graph.needs[node.name] if other not in self._seen]
        if waits:  # it is drawn below the last of those that it needs
            self.drawn.append(f"{lead}{node.name} (below {waits[-1]})")
            return
        self._seen.add(node.name)
        made = [name for name in node.writes if node.beside is None and name != node.name]
        writes = f" {self._strokes.arrow} {', '.join(made)}" if made else ""
        note = f"  {self._notes[node.name]}" if self._notes.get(node.name) else ""
        self.drawn.append(f"{lead}{node.name} [{node.what}]{writes}{note}")
        self.below(node.writes, indent)

    def below(self, datasets: Sequence[str], indent: str) -> None:
        """What reads these datasets."""
        found = {node.name: node for name in datasets for node in self._readers.get(name.lower(), ())}
        for number, node in enumerate(found.values(), 1):
            is_last = number == len(found)
            lead = self._strokes.last if is_last else self._strokes.branch
            self.node(node, indent + lead, indent + ("   " if is_last else self._strokes.along))
