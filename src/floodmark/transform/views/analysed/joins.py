"""What is known of the rows of a join, from what is known of those of its two sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from floodmark.transform.views.analysed.flow import MOST_KEYS, Flow, NotInParts, Pairs, Trace, classes, union_of, united
from floodmark.transform.views.analysed.plan_tree import Node


def joined(left: Flow, right: Flow, kind: str, equal: Pairs) -> Flow:
    """The join of two sides where these columns are equal, whatever else it asks for; `kind` is Spark's word for it."""
    rule = _JOINS.get(kind)
    if rule is None:
        raise NotInParts(f"it has a join of a kind ({kind}) that cannot be refreshed by its keys")
    return rule(left, right, equal)


def join_type(node: Node) -> str:
    """Spark's word for the kind of a join."""
    said = node["joinType"]
    if not isinstance(said, dict):
        return str(said)
    return str(said.get("object") or said.get("product-class")).rsplit(".", 1)[-1].rstrip("$")


def _inner(left: Flow, right: Flow, equal: Pairs) -> Flow:
    same = classes([*left.same, *right.same, *equal])
    traces = united({**left.traces, **right.traces}, same)
    made = _both(left, right, traces, (*_keys(left, right, equal), *_keys(right, left, equal)))
    return replace(made, same=same)


def _left(left: Flow, right: Flow, equal: Pairs) -> Flow:
    # What the right side yields may be null for want of a partner: nothing is known of its columns above.
    return replace(_both(left, right, _partnered(left, right, equal), _keys(left, right, equal)), same=left.same)


def _right(left: Flow, right: Flow, equal: Pairs) -> Flow:
    return replace(_both(left, right, _partnered(right, left, equal), _keys(right, left, equal)), same=right.same)


def _full(left: Flow, right: Flow, equal: Pairs) -> Flow:
    halves = {}
    for a, b in _across(left, right, equal):
        if a in left.traces and b in right.traces:
            halves[frozenset({a, b})] = left.traces[a] | right.traces[b]
    return replace(_both(left, right, {}, ()), halves=halves)


def _semi(left: Flow, right: Flow, equal: Pairs) -> Flow:
    made = _both(left, right, _partnered(left, right, equal), left.keys)
    return replace(made, output=left.output, same=left.same)


_JOINS: Mapping[str, Callable[[Flow, Flow, Pairs], Flow]] = {
    "Inner": _inner,
    "Cross": _inner,
    "LeftOuter": _left,
    "RightOuter": _right,
    "FullOuter": _full,
    "LeftSemi": _semi,
    "LeftAnti": _semi,
}


def _both(left: Flow, right: Flow, traces: Mapping[str, Trace], keys: tuple[frozenset[str], ...]) -> Flow:
    return Flow(
        (*left.output, *right.output),
        (*left.tables, *right.tables),
        traces,
        keys=tuple(dict.fromkeys(keys))[:MOST_KEYS],
        did=left.did | right.did | {"join"},
    )


def _partnered(kept: Flow, partner: Flow, equal: Pairs) -> dict[str, Trace]:
    """Traces of the side all of whose rows count: with equal values, the partners' tables come along."""
    traces = dict(kept.traces)
    for a, b in _across(kept, partner, equal):
        if a in traces and b in partner.traces:
            traces[a] = union_of(traces[a], partner.traces[b]) or traces[a]
    return united(traces, kept.same)


def _keys(kept: Flow, partner: Flow, equal: Pairs) -> tuple[frozenset[str], ...]:
    """What tells the rows of a join apart: the row of one side, and which of its partners it is.

    All partners of a row have its values where the join asks for equal ones: only the rest of their key counts. A row
    without a partner is there once. (Where both sides may be without one, none of this holds.)
    """
    same = {b for _, b in _across(kept, partner, equal)}
    return tuple(own | (other - same) for own in kept.keys for other in partner.keys)


def _across(left: Flow, right: Flow, equal: Pairs) -> Pairs:
    """The equalities between the two sides, the left one's column first."""
    of_left, of_right = {a.id for a in left.output}, {a.id for a in right.output}
    turned = [(a, b) if a in of_left else (b, a) for a, b in equal]
    return tuple((a, b) for a, b in turned if a in of_left and b in of_right)
