"""Spark's plan of a query as a tree of values: parsed from the JSON that Spark writes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Node:
    """An operator of a plan, or a part of an expression.

    `fields` has what Spark says of it besides its children: texts, numbers, dictionaries, and in the place of
    expressions (and of plans of subqueries) trees of nodes.
    """

    name: str
    children: tuple[Node, ...]
    fields: Mapping[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.fields.get(field)

    @property
    def only(self) -> Node:
        """The one child."""
        if len(self.children) != 1:
            raise UnreadablePlan(f"{self.name} has {len(self.children)} children")
        return self.children[0]

    def expression(self, field: str) -> Node | None:
        """The expression in a field, None when there is none."""
        found = self.fields.get(field)
        return found if isinstance(found, Node) else None

    def expressions(self, field: str) -> tuple[Node, ...]:
        """The expressions in a field that has any number of them."""
        found = self.fields.get(field)
        if not isinstance(found, tuple) or not all(isinstance(item, Node) for item in found):
            raise UnreadablePlan(f"{self.name} has no list of expressions {field}")
        return found

    @property
    def id(self) -> str:
        """What tells attributes apart: names may be shared, ids are not."""
        said = self.fields.get("exprId")
        if not isinstance(said, dict) or "id" not in said:
            raise UnreadablePlan(f"{self.name} has no id")
        return f"{said['id']}@{said.get('jvmId')}"

    def all(self) -> Iterator[Node]:
        """This node and all below it, those in its expressions included."""
        yield self
        for child in self.children:
            yield from child.all()
        for value in self.fields.values():
            yield from _in(value)

    def own_expressions(self) -> Iterator[Node]:
        """The parts of all expressions of this operator, subqueries and what is in them included."""
        for value in self.fields.values():
            yield from _in(value)


class UnreadablePlan(ValueError):
    """A plan that is not written as the ones that we know."""


def parse(text: str) -> Node:
    """The tree that Spark's `toJSON` describes."""
    said = json.loads(text)
    if not _is_tree(said):
        raise UnreadablePlan("this is no plan")
    return _tree(said)


def operators(plan: Node) -> Iterator[Node]:
    """The operators of a plan, without those of subqueries in its expressions."""
    yield plan
    for child in plan.children:
        yield from operators(child)


def _tree(items: list[Any]) -> Node:
    """Spark writes a tree as a list of its nodes, each before its children."""
    rest = iter(items)
    made = _next(rest)
    if next(rest, None) is not None:
        raise UnreadablePlan("there is more than one root")
    return made


def _next(rest: Iterator[Any]) -> Node:
    item = next(rest, None)
    if not isinstance(item, dict):
        raise UnreadablePlan("a node is missing")
    children = tuple(_next(rest) for _ in range(int(item["num-children"])))
    fields = {name: _value(value) for name, value in item.items() if name not in ("class", "num-children")}
    return Node(str(item["class"]).rsplit(".", 1)[-1], children, fields)


def _value(value: Any) -> Any:
    if _is_tree(value):
        return _tree(value)
    return tuple(map(_value, value)) if isinstance(value, list) else value


def _is_tree(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "num-children" in value[0]


def _in(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield from value.all()
    elif isinstance(value, tuple):
        for item in value:
            yield from _in(item)
