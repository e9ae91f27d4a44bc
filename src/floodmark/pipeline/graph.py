"""The graph of a pipeline: nodes, their order, and the tables that SQL reads. Pure: reads no lake."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Literal

from floodmark.errors import BadPipeline, CodeLocation, DeclarationProblem, close_matches

NodeKind = Literal["source", "step", "column", "view"]


@dataclass(frozen=True)
class PipelineNode:
    """A unit of a run, with the names of the datasets that it reads and writes.

    A computed column writes no dataset, but `dataset:column`, which other columns may read. `beside` is its dataset. A
    view that reads this dataset runs after the column, because it may use it, but does not need it. Steps do not see
    it.
    """

    name: str
    kind: NodeKind
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    place: CodeLocation | None = None
    shares: bool = False
    """Whether others may write to the same datasets, because it only changes its own rows."""
    beside: str | None = None
    what: str = ""
    """The name of its class in the public API, such as BatchTransform."""


@dataclass(frozen=True)
class Graph:
    """The nodes by name. `needs` has the nodes that a node needs; `after` also those it only has to run after.

    Dataset names are compared without case.
    """

    nodes: Mapping[str, PipelineNode]
    needs: Mapping[str, tuple[str, ...]]
    after: Mapping[str, tuple[str, ...]]

    @property
    def order(self) -> tuple[str, ...]:
        """All names in running order; independent nodes in the order of declaration."""
        return tuple(name for level in self.levels for name in level)

    @property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """The names in groups: the nodes of a group can run at the same time, after the groups before it."""
        depth: dict[str, int] = {}
        for name in TopologicalSorter(self.after).static_order():
            depth[name] = 1 + max((depth[other] for other in self.after[name]), default=-1)
        groups: dict[int, list[str]] = defaultdict(list)
        for name in self.nodes:
            groups[depth[name]].append(name)
        return tuple(tuple(groups[level]) for level in sorted(groups))

    def ancestors(self, name: str) -> set[str]:
        """The nodes that this node needs, directly or indirectly."""
        return _reachable(name, self.needs)

    def descendants(self, name: str) -> set[str]:
        """The nodes that need this node, directly or indirectly."""
        needed_by: dict[str, list[str]] = defaultdict(list)
        for other, needed in self.needs.items():
            for one in needed:
                needed_by[one].append(other)
        return _reachable(name, needed_by)

    def only(self, names: Collection[str]) -> Graph:
        """The graph of only these nodes, in the same order."""
        kept = {name: node for name, node in self.nodes.items() if name in names}
        return Graph(kept, *(_bridge_edges(edges, kept) for edges in (self.needs, self.after)))


def _reachable(name: str, edges: Mapping[str, Sequence[str]]) -> set[str]:
    names: set[str] = set()
    waiting = list(edges.get(name, ()))
    while waiting:
        one = waiting.pop()
        if one not in names:
            names.add(one)
            waiting += edges.get(one, ())
    return names


def _bridge_edges(edges: Mapping[str, tuple[str, ...]], kept: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The edges between kept nodes, including those through nodes that are not kept."""
    result = {}
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
        result[name] = tuple(ends)
    return result


def build_graph(
    nodes: Iterable[PipelineNode], known: Collection[str] | None = None, requested_names: Collection[str] = ()
) -> Graph:
    """Build the graph of these nodes. `known` names the datasets that are declared or in the lake; None if unknown.

    `BadPipeline` lists all problems: duplicate names, two writers of one dataset, unknown datasets (read by any node,
    or by those in `requested_names`), and cycles.
    """
    listed = list(nodes)
    problems = [*_same_names(listed), *_same_outputs(listed)]
    writers: dict[str, list[PipelineNode]] = defaultdict(list)
    columns: dict[str, list[PipelineNode]] = defaultdict(list)
    for node in listed:
        for name in node.writes:
            writers[name.lower()].append(node)
        if node.beside is not None:
            columns[node.beside.lower()].append(node)
    if known is not None:
        checked = [node for node in listed if not requested_names or node.name in requested_names]
        problems += _unknown(checked, {name for node in listed for name in node.writes}, known)
    if problems:
        raise BadPipeline.of(problems)
    needs: dict[str, tuple[str, ...]] = {}
    after: dict[str, tuple[str, ...]] = {}
    for node in listed:
        # A step may read what it writes.
        needed = dict.fromkeys(w.name for read in node.reads for w in writers.get(read.lower(), ()) if w is not node)
        needs[node.name] = tuple(needed)
        beside = [c.name for read in node.reads for c in columns.get(read.lower(), ()) if node.kind == "view"]
        after[node.name] = tuple(dict.fromkeys([*needed, *beside]))
    graph = Graph({node.name: node for node in listed}, needs, after)
    _check_circles(graph)
    return graph


def _same_names(nodes: Sequence[PipelineNode]) -> list[DeclarationProblem]:
    first: dict[str, PipelineNode] = {}
    problems = []
    for node in nodes:
        other = first.setdefault(node.name, node)
        if other is not node:
            where = "" if other.place is None else f" (the other: {other.place})"
            hint = "give one of them another name: name=…"
            problems.append(
                DeclarationProblem(f"two nodes of the pipeline are named {node.name!r}{where}", hint, node.place)
            )
    return problems


def _same_outputs(nodes: Sequence[PipelineNode]) -> list[DeclarationProblem]:
    first: dict[str, PipelineNode] = {}
    problems = []
    for node in nodes:
        for name in node.writes:
            other = first.setdefault(name.lower(), node)
            if other is node or other.name == node.name or (other.shares and node.shares):
                continue
            where = "" if other.place is None else f" ({other.place})"
            problems.append(
                DeclarationProblem(
                    f"{_describe(node)} writes {name!r}, and so does {_describe(other)}{where}",
                    "give each a separate output",
                    node.place,
                )
            )
    return problems


def _unknown(
    nodes: Sequence[PipelineNode], written: Collection[str], known: Collection[str]
) -> list[DeclarationProblem]:
    existing = {name.lower() for name in (*known, *written)}
    spelled = sorted({*known, *(name for name in written if ":" not in name)})
    problems = []
    for node in nodes:
        for name in node.reads:
            if name.lower() in existing:
                continue
            near = close_matches(name, spelled)
            hint = f"did you mean {near[0]!r}?" if near else "declare it, ingest it, or let a step write it"
            message = f"there is no dataset {name!r}, which {_describe(node)} reads"
            problems.append(DeclarationProblem(message, hint, node.place))
    return problems


def _check_circles(graph: Graph) -> None:
    try:
        TopologicalSorter(graph.after).prepare()
    except CycleError as error:
        circle = error.args[1]  # each node is before the next
        nodes = [graph.nodes[name] for name in circle]
        steps = [f"{a.name} → {_connecting_dataset(a, b)} → " for a, b in pairwise(nodes)]
        places = "; ".join(f"{node.name}: {node.place}" for node in nodes[:-1] if node.place is not None)
        raise BadPipeline.of(
            [
                DeclarationProblem(
                    f"the pipeline has a cycle: {''.join(steps)}{nodes[-1].name}",
                    f"change what one of them reads{f' ({places})' if places else ''}",
                    nodes[0].place,
                )
            ]
        ) from None


def _connecting_dataset(writer: PipelineNode, reader: PipelineNode) -> str:
    read = {name.lower() for name in reader.reads}
    return next((name for name in writer.writes if name.lower() in read), writer.beside or "")


def _describe(node: PipelineNode) -> str:
    return f"{node.kind} {node.name!r}"


# Tables in SQL

_TOKEN = re.compile(
    r"""
      (?P<nothing> --[^\n]* | /\*(?:[^*]|\*(?!/))*\*/ | \s+ )
    | (?P<text> \b[rR]?'(?:[^'\\]|\\.|'')*' | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" )
    | (?P<quoted> `(?:[^`]|``)*` )
    | (?P<word> [A-Za-z_0-9]+ )
    | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_ENDS = {"WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET", "WINDOW", "QUALIFY"}
_ENDS |= {"UNION", "EXCEPT", "INTERSECT", "MINUS", "SELECT"}
_NO_TABLES = {"VALUES", "LATERAL", "SELECT", "UNNEST", "EXPLODE", "ONLY"}


@dataclass(frozen=True)
class _Token:
    text: str
    is_name: bool

    @property
    def word(self) -> str:
        """The text in capitals if it can be a keyword."""
        return self.text.upper() if self.is_name else self.text


@dataclass
class _Level:
    """One pair of parentheses: whether it has a SELECT or FROM clause, and whether a table may come next."""

    selects: bool = False
    in_from: bool = False
    expects: bool = False


def tables_in_sql(sql: str) -> tuple[str, ...]:
    """The names of the tables that a query reads, each once, without the names that it defines in WITH."""
    tokens = list(_tokens(sql))
    defined = _cte_names(tokens)
    names: dict[str, None] = {}
    levels = [_Level(selects=True)]
    at = 0
    while at < len(tokens):
        token, level = tokens[at], levels[-1]
        word = token.word
        if word == "(":
            # Tables may be in parentheses: from (a join b using (id)).
            levels.append(_Level(selects=level.expects, in_from=level.expects, expects=level.expects))
            level.expects = False
        elif word == ")":
            if len(levels) > 1:
                levels.pop()
        elif word == ",":
            level.expects = level.in_from
        elif word == "FROM" and token.is_name:
            before = [one.word for one in tokens[max(0, at - 2) : at]]
            if level.selects and before[-1:] != ["DISTINCT"]:  # skip `is distinct from` and extract(year from t)
                level.in_from = level.expects = True
        elif word == "JOIN" and level.in_from:
            level.expects = True
        elif token.is_name and word in _ENDS and not level.expects:
            level.selects = level.selects or word == "SELECT"
            level.in_from = level.expects = False
        elif level.expects:
            level.expects = word == "LATERAL"
            name, at = _name(tokens, at)
            follows = tokens[at + 1].text if at + 1 < len(tokens) else ""
            if word in ("SELECT", "VALUES"):
                level.selects, level.in_from = True, False
            elif name is not None and follows != "(" and word not in _NO_TABLES and name.lower() not in defined:
                names[name] = None
        at += 1
    return tuple(names)


def _tokens(sql: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(sql):
        if match["quoted"]:
            yield _Token(match["quoted"][1:-1].replace("``", "`"), False)
        elif match["word"]:
            yield _Token(match["word"], True)
        elif match["sign"]:
            yield _Token(match["sign"], False)
        elif match["text"]:
            yield _Token("''", False)


def _name(tokens: list[_Token], at: int) -> tuple[str | None, int]:
    """The dotted name that begins here, and where it ends; None if there is no name."""
    first = tokens[at].text
    if first == "''" or not re.fullmatch(r"[\w.-]+", first):
        return None, at
    name = first
    while at + 2 < len(tokens) and tokens[at + 1].text == "." and re.fullmatch(r"[\w.-]+", tokens[at + 2].text):
        name, at = f"{name}.{tokens[at + 2].text}", at + 2
    return name, at


def _cte_names(tokens: list[_Token]) -> set[str]:
    """The names of common table expressions: `with NAME as (`, `, NAME (a, b) as (`."""
    names: set[str] = set()
    if not any(token.word == "WITH" for token in tokens):
        return names
    for at, token in enumerate(tokens):
        if token.word != "AS" or at + 1 >= len(tokens) or tokens[at + 1].text != "(":
            continue
        before = at - 1
        if before >= 0 and tokens[before].text == ")":  # a list of column names
            while before >= 0 and tokens[before].text != "(":
                before -= 1
            before -= 1
        if before >= 1 and tokens[before - 1].word in ("WITH", ",", "RECURSIVE"):
            names.add(tokens[before].text.lower())
    return names
