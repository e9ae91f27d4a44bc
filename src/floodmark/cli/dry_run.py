"""What a run would do, node by node, in a line each; calls nothing and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floodmark.cli import words
from floodmark.errors import FloodmarkError
from floodmark.ledger.errors import UnknownDataset

if TYPE_CHECKING:
    from floodmark.lake import Lake
    from floodmark.pipeline.declared import Column, View
    from floodmark.pipeline.graph import Graph, Node
    from floodmark.pipeline.pipeline import Pipeline


@dataclass(frozen=True)
class Would:
    """What would become of a node: `does` is False when it has nothing to do, None when nobody can tell yet."""

    node: Node
    said: str
    does: bool | None
    behind: int | None = None
    error: FloodmarkError | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The same for JSON."""
        known = {"step": self.node.name, "kind": self.node.kind, "does": self.does, "behind": self.behind}
        return {**known, "said": self.said}


def plan(pipeline: Pipeline, graph: Graph, lake: Lake) -> list[Would]:
    """What would be done, in the graph's order. What is before a node may give it more to do than it has now."""
    found: dict[str, Would] = {}
    for name in graph.order:
        node = graph.nodes[name]
        try:
            would = _would(pipeline, node, lake)
        except UnknownDataset as error:
            makers = [other for other in graph.needs[name] if _makes(found[other], error.name)]
            would = Would(node, f"waits: there is no {error.name!r} yet" if not makers else _brought(makers), None)
        except FloodmarkError as error:
            would = Would(node, f"cannot run: {error.message}", None, error=error)
        moved = [other for other in graph.needs[name] if found[other].does is not False]
        if would.does is False and moved:
            would = Would(node, _brought(moved), None, would.behind)
        found[name] = would
    return list(found.values())


def _makes(before: Would, dataset: str) -> bool:
    """Whether a dataset that is not there comes of what runs before."""
    return before.does is not False and dataset.lower() in [name.lower() for name in before.node.writes]


def _brought(makers: list[str]) -> str:
    return f"what {', '.join(makers)} brings"


def plan_all(graph: Graph) -> list[Would]:
    """What a run would do that computes everything, in the graph's order."""
    return [Would(graph.nodes[name], "everything, as --full asks for", True) for name in graph.order]


def _would(pipeline: Pipeline, node: Node, lake: Lake) -> Would:
    if (column := pipeline.columns.get(node.name)) is not None:
        return _column(column, node, lake)
    if (view := pipeline.views.get(node.name)) is not None:
        return _view(view, node, lake)
    step: Any = pipeline[node.name]
    if hasattr(step, "pending"):
        if (waits := step.missing()) is not None:
            return Would(node, f"waits: {waits}", False, 0)
        new = step.pending(lake)
        return Would(node, words.many(len(new), "new file") if new else "nothing to do", bool(new), len(new))
    if node.kind == "source":
        return Would(node, f"asks its source, and writes what changed to {', '.join(node.writes)}", None)
    status = step.status(lake)
    if status.stale is not None:
        return Would(node, f"everything, because {status.stale}", True, status.behind)
    if status.behind:
        return Would(node, words.many(status.behind, "new record"), True, status.behind)
    if status.failed:
        return Would(node, f"{words.many(status.failed, 'key')} that failed", True, 0)
    return Would(node, "nothing to do", False, 0)


def _column(column: Column, node: Node, lake: Lake) -> Would:
    dataset = lake[column.owner]
    if dataset.schema is None:
        return Would(node, f"waits: {column.owner!r} has no records yet", None)
    present = dataset.catalog.find(column.name)
    if present is None:
        rows = dataset.count()
        return Would(node, f"is added, and computed for {words.many(rows, 'row')}", True, rows)
    if (present.function.name, present.function.version) != (column.udf.name, column.udf.version):
        rows = dataset.count()
        return Would(node, f"{words.many(rows, 'row')}, because its function changed", True, rows)
    missing = dataset.plan_backfill(column.name, column.where, retry_errors=column.retry_errors).missing
    return Would(node, words.many(missing, "row") if missing else "nothing to do", bool(missing), missing)


def _view(view: View, node: Node, lake: Lake) -> Would:
    if view.name not in lake:
        return Would(node, "is declared, and computed", True)
    made = lake.view(view.name)
    if made.definition != view.definition:
        return Would(node, "everything, because its definition changed", True)
    plan = made.plan_refresh()
    if plan.nothing_to_do:
        return Would(node, "nothing to do", False, 0)
    return Would(node, f"{plan.stale or plan.moved}", True, plan.behind)
