"""Further columns put into the select lists of a query, at places that Spark's parser names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

_SELECT = re.compile(r"select(\s+all)?\b", re.IGNORECASE)
_PASSED = ("Sort", "Filter", "SubqueryAlias", "UnresolvedWith", "RepartitionByExpression")


def spliced(parsed: Any, query: str, names: Sequence[str]) -> Iterator[str]:
    """Versions of a query that should yield these columns of its table, too; the best first.

    Whether one really does, and nothing else of the query became another, its plan has to say.
    """
    if not names:
        yield query
        return
    found = list(_projects(parsed))
    lists = [project for project in found if not _has_star(project)]
    if not found:
        return
    added = ", ".join(f"`{name}`" for name in names)
    for place in (_after_last_item, _after_select):
        places = [place(project, query) for project in lists]
        if all(at is not None for at in places):
            yield _inserted(query, [at for at in places if at is not None], added, place is _after_select)


def _inserted(query: str, places: Sequence[int], added: str, is_first: bool) -> str:
    for at in sorted(set(places), reverse=True):
        text = f" {added}, " if is_first else f", {added}"
        query = query[:at] + text + query[at:]
    return query


def _projects(plan: Any) -> Iterator[Any]:
    """The select lists between the result of a query and its one table."""
    while True:
        name = plan.getClass().getSimpleName()
        if name == "Project":
            yield plan
        elif name not in _PASSED:
            return
        children = plan.children()
        if children.size() != 1:
            return
        plan = children.apply(0)


def _items(project: Any) -> list[Any]:
    listed = project.projectList()
    return [listed.apply(i) for i in range(listed.size())]


def _is_star(expression: Any) -> bool:
    return "Star" in expression.getClass().getSimpleName()


def _has_star(project: Any) -> bool:
    """Whether the list takes in all columns of its table anyway."""
    return any(_is_star(item) for item in _items(project))


def _after_last_item(project: Any, query: str) -> int | None:
    item = _items(project)[-1]
    if item.getClass().getSimpleName() == "UnresolvedAlias":  # one without a name; its place is the whole query's
        item = item.child()
    stop = item.origin().stopIndex()
    return stop.get() + 1 if stop.isDefined() and stop.get() < len(query) else None


def _after_select(project: Any, query: str) -> int | None:
    """Where the list begins: an expression in brackets has its place inside of them, so its end is of no use."""
    start = project.origin().startIndex()
    found = _SELECT.match(query, start.get()) if start.isDefined() else None
    return found.end() if found is not None else None
