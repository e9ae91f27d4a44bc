"""`floodmark plan` and `run --dry-run`: what a run or refresh would do, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import output, targets
from floodmark.cli.command import Invocation, verb
from floodmark.cli.exit_codes import FAILED
from floodmark.cli.output import TableColumn, escape_lines, format_offset, format_value, print_table
from floodmark.errors import FloodmarkError, UnknownDataset

if TYPE_CHECKING:
    from floodmark.lake import Lake
    from floodmark.pipeline.declarations import ColumnSpec, ViewSpec
    from floodmark.pipeline.graph import Graph, PipelineNode
    from floodmark.pipeline.pipeline import Pipeline
    from floodmark.sources.files import FilesPlan
    from floodmark.sources.update_external_table import PollPlan
    from floodmark.transforms.datatable_transform import DatatablePlan
    from floodmark.transforms.plan import RunPlan
    from floodmark.views.plan import RefreshPlan


_KINDS = {
    "map": "map: the rows of the changed slices, in order",
    "keyed": "keyed: the rows of these keys, from every input",
    "cross": "cross: the changes of one side with all rows of the other",
}
_NOUNS = {"rows": "row", "groups": "group", "join": "join key", "changes": "row", "whole": "row"}
_INPUTS = [TableColumn("input"), TableColumn("done up to", is_number=True), TableColumn("head", is_number=True)]
_INPUTS += [TableColumn("new records", is_number=True), TableColumn("keys", is_number=True), TableColumn("to be read")]


@verb("plan")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@targets.pipeline_option
def plan(call: Invocation, names: tuple[str, ...], file: str | None) -> None:
    """Show what runs of steps and refreshes of views would do, and why.

    \b
    floodmark plan features
    floodmark plan daily
    floodmark plan features --json | jq '.plans[].plan.keys'

    For each input of a step: the offset up to which it is processed, the head, the number of new records and changed
    keys, and what is read to find them. For a view: the records, groups or join keys to compute, or why it must compute
    everything. Calls no function and writes nothing.

    Without a NAME it shows all steps and all views. A step or view whose input does not exist yet waits. If one cannot
    be planned, its error is shown and the exit code is 1.
    """
    lake = call.lake()
    found: list[_PlanResult] = []
    for one in targets.select_steps_and_views(lake, file, names):
        planned = _plan_one(one, lake)
        if names and planned.error is not None:
            raise planned.error
        found.append(planned)
        if not call.as_json:
            if len(found) > 1:
                click.echo("")
            planned.print()
    if call.as_json:
        output.emit(lake=lake.store.url, plans=[planned.fields for planned in found])
    if any(planned.is_broken for planned in found):
        click.get_current_context().exit(FAILED)


@dataclass(frozen=True)
class _PlanResult:
    """A step or view with its plan or error. Some kinds of steps have no plan."""

    one: Any
    plan: Any = None
    error: FloodmarkError | None = None

    @property
    def is_broken(self) -> bool:
        """Whether planning failed. A missing input is no failure, because other steps may create it."""
        from floodmark.errors import UnknownDataset

        return self.error is not None and not isinstance(self.error, UnknownDataset)

    @property
    def fields(self) -> dict[str, Any]:
        """The plan or error, for JSON."""
        known = {"view" if _is_view(self.one) else "step": self.one.name, "kind": _kind(self.one)}
        if self.error is None:
            return {**known, "plan": None if self.plan is None else asdict(self.plan)}
        said = {"type": type(self.error).__name__, "message": self.error.message, "hint": self.error.hint}
        return {**known, **({"error": said} if self.is_broken else {"waits": self.error.message})}

    def print(self) -> None:
        """Print the plan or error."""
        name = self.one.name
        if self.error is not None:
            state = "cannot be planned" if self.is_broken else "waits"
            click.echo(escape_lines(f"{name}: {state}: {self.error.message}"))
        elif self.plan is None:
            click.echo(f"{name}: calls its function, and writes changes to {', '.join(self.one.output_names)}")
        else:
            _print_plan(self.plan)


def _plan_one(one: Any, lake: Lake) -> _PlanResult:
    try:
        if _is_view(one):
            return _PlanResult(one, one.plan_refresh())
        return _PlanResult(one, one.plan(lake) if hasattr(one, "plan") else None)
    except FloodmarkError as error:
        return _PlanResult(one, error=error)


def _kind(one: Any) -> str:
    return "View" if _is_view(one) else str(one.declared_as)


def _is_view(one: Any) -> bool:
    from floodmark.view import View

    return isinstance(one, View)


def _print_plan(plan: Any) -> None:
    from floodmark.sources.files import FilesPlan
    from floodmark.transforms.plan import RunPlan
    from floodmark.views.plan import RefreshPlan

    if isinstance(plan, RefreshPlan):
        _print_refresh_plan(plan)
    elif isinstance(plan, FilesPlan):
        _print_files_plan(plan)
    elif isinstance(plan, RunPlan):
        _print_run_plan(plan)
    elif hasattr(plan, "why"):
        _print_datatable_plan(plan)
    else:
        _print_poll_plan(plan)


def _print_run_plan(plan: RunPlan) -> None:
    click.echo(f"{plan.step}: {_run_text(plan)}")
    print_table(
        _INPUTS,
        [
            [
                one.name,
                format_offset(one.previous),
                format_offset(one.head),
                f"{one.records:,}",
                f"{one.keys:,}",
                one.reads,
            ]
            for one in plan.inputs
        ],
    )
    for one in plan.inputs:
        if one.unchanged:
            click.echo(
                f"{output.format_count(one.unchanged, 'key')} of {one.name}: unchanged in the columns read, skipped"
            )
    if plan.kind is not None:
        click.echo(_KINDS[plan.kind])
    if plan.stale is None:  # a stale step processes all keys, without a search
        click.echo(f"changelist v{plan.changelist}: {_search_scope(plan)}")
        if plan.advice is not None:
            click.echo(plan.advice)


def _run_text(plan: RunPlan) -> str:
    if plan.nothing_to_do:
        return "nothing to do"
    keys = f"{output.format_count(plan.keys, 'key')} to process"
    if plan.stale is not None:
        return f"{keys}: all keys, because {plan.stale}"
    parts = {"new": plan.new, "changed": plan.changed, "failed before": plan.failed}
    return f"{keys} ({', '.join(f'{count:,} {what}' for what, count in parts.items() if count)})"


def _search_scope(plan: RunPlan) -> str:
    return "only records after the offsets" if plan.changelist == 2 else "all keys, independent of the offsets"


def _print_datatable_plan(plan: DatatablePlan) -> None:
    click.echo(f"{plan.step}: {'nothing to do' if plan.why is None else f'computes everything, because {plan.why}'}")
    columns = [TableColumn("input"), TableColumn("done up to", is_number=True), TableColumn("head", is_number=True)]
    columns += [TableColumn("new records", is_number=True)]
    print_table(
        columns, [[i.name, format_offset(i.position), format_offset(i.head), f"{i.behind:,}"] for i in plan.inputs]
    )
    if plan.unchanged:
        click.echo(f"{output.format_count(plan.unchanged, 'key')}: unchanged in the columns read")


def _print_files_plan(plan: FilesPlan) -> None:
    names = plan.files.to_read
    text = f"{output.format_count(len(names), 'file')} to read into {plan.output}" if names else "nothing to do"
    click.echo(f"{plan.step}: {text}")
    changed = {*plan.files.changed}
    if names:
        columns = [TableColumn("file"), TableColumn("is")]
        print_table(columns, [[name, "changed" if name in changed else "new"] for name in names])
    output.print_notes(plan.files.notes)


def _print_poll_plan(plan: PollPlan) -> None:
    since = "all of it" if plan.start is None else f"where {plan.column} is {output.jsonable(plan.start)} or later"
    click.echo(f"{plan.step}: {output.format_count(plan.rows, 'row')} to read from {plan.source}: {since}")


def _print_refresh_plan(plan: RefreshPlan) -> None:
    click.echo(f"{plan.view}: {_refresh_text(plan)}")
    columns = [TableColumn("source"), TableColumn("done up to", is_number=True), TableColumn("head", is_number=True)]
    columns += [TableColumn("new records", is_number=True)]
    waiting = any(source.waiting for source in plan.sources)
    columns += [TableColumn("waiting", is_number=True)] if waiting else []
    rows = [
        [
            s.name,
            format_offset(s.position),
            format_offset(s.head),
            f"{s.behind:,}",
            *([f"{s.waiting:,}"] if waiting else []),
        ]
        for s in plan.sources
    ]
    print_table(columns, rows)
    if waiting:
        click.echo("waiting: records without a value yet in a computed column that the view reads")
    if plan.sample:
        click.echo("")
        _print_sample(plan)


def _print_sample(plan: RefreshPlan) -> None:
    """Print some of the keys to compute. Hidden columns get the names of the columns they come from."""
    heads = [TableColumn(name.removeprefix("floodmark_key_").removeprefix("floodmark_")) for name in plan.sample[0]]
    print_table(heads, [[format_value(value) for value in key.values()] for key in plan.sample])
    if left := (plan.keys or 0) - len(plan.sample):
        click.echo(f"… and {output.format_count(left, f'more {_NOUNS[plan.kind]}')}")


def _refresh_text(plan: RefreshPlan) -> str:
    if plan.nothing_to_do:
        return "nothing to do"
    if plan.stale is not None:
        return f"everything to be computed, because {plan.stale}"
    if plan.why is not None:
        return f"everything to be computed: {plan.moved}, and {plan.why}"
    if plan.kind == "changes" and plan.records:
        return f"changes to be carried through the query: {plan.moved}"
    if not plan.keys:  # unknown until the query is analysed again, or only the watermark moved
        return f"to be refreshed: {plan.moved}"
    return f"{output.format_count(plan.keys, _NOUNS[plan.kind])} to be computed: {plan.moved}"


@dataclass(frozen=True)
class NodeForecast:
    """What a run would do for a node. `does` is False if it has nothing to do, None if that is not known yet."""

    node: PipelineNode
    said: str
    has_work: bool | None
    behind: int | None = None
    error: FloodmarkError | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The values for JSON."""
        known = {"step": self.node.name, "kind": self.node.kind, "does": self.has_work, "behind": self.behind}
        return {**known, "said": self.said}


def dry_run(pipeline: Pipeline, graph: Graph, lake: Lake) -> list[NodeForecast]:
    """What a run would do, in the order of the graph. Nodes that run earlier may give a later one more work."""
    found: dict[str, NodeForecast] = {}
    for name in graph.order:
        node = graph.nodes[name]
        try:
            would = _node_forecast(pipeline, node, lake)
        except UnknownDataset as error:
            makers = [other for other in graph.needs[name] if _creates(found[other], error.name)]
            would = NodeForecast(
                node, f"waits: there is no {error.name!r} yet" if not makers else _changes_of(makers), None
            )
        except FloodmarkError as error:
            would = NodeForecast(node, f"cannot run: {error.message}", None, error=error)
        moved = [other for other in graph.needs[name] if found[other].has_work is not False]
        if would.has_work is False and moved:
            would = NodeForecast(node, _changes_of(moved), None, would.behind)
        found[name] = would
    return list(found.values())


def _creates(before: NodeForecast, dataset: str) -> bool:
    """Whether an earlier node of the run creates a missing dataset."""
    return before.has_work is not False and dataset.lower() in [name.lower() for name in before.node.writes]


def _changes_of(makers: list[str]) -> str:
    return f"the changes of {', '.join(makers)}"


def plan_all(graph: Graph) -> list[NodeForecast]:
    """What a run with --full would do, in the order of the graph."""
    return [NodeForecast(graph.nodes[name], "everything, because of --full", True) for name in graph.order]


def _node_forecast(pipeline: Pipeline, node: PipelineNode, lake: Lake) -> NodeForecast:
    if (column := pipeline.columns.get(node.name)) is not None:
        return _column_forecast(column, node, lake)
    if (view := pipeline.views.get(node.name)) is not None:
        return _view_forecast(view, node, lake)
    step: Any = pipeline[node.name]
    if hasattr(step, "pending"):
        if (waits := step.missing()) is not None:
            return NodeForecast(node, f"waits: {waits}", False, 0)
        new = step.pending(lake)
        return NodeForecast(
            node, output.format_count(len(new), "new file") if new else "nothing to do", bool(new), len(new)
        )
    if node.kind == "source":
        return NodeForecast(node, f"reads its source, and writes changes to {', '.join(node.writes)}", None)
    status = step.status(lake)
    if status.stale is not None:
        return NodeForecast(node, f"everything, because {status.stale}", True, status.behind)
    if status.behind:
        return NodeForecast(node, output.format_count(status.behind, "new record"), True, status.behind)
    if status.failed:
        return NodeForecast(node, f"{output.format_count(status.failed, 'failed key')}", True, 0)
    return NodeForecast(node, "nothing to do", False, 0)


def _column_forecast(column: ColumnSpec, node: PipelineNode, lake: Lake) -> NodeForecast:
    dataset = lake[column.owner]
    if dataset.schema is None:
        return NodeForecast(node, f"waits: {column.owner!r} has no records yet", None)
    present = dataset.catalog.find(column.name)
    if present is None:
        rows = dataset.count()
        return NodeForecast(node, f"add the column, and compute {output.format_count(rows, 'row')}", True, rows)
    if (present.function.name, present.function.version) != (column.udf.name, column.udf.version):
        rows = dataset.count()
        return NodeForecast(node, f"{output.format_count(rows, 'row')}, because its function changed", True, rows)
    plan = dataset.plan_backfill(column.name, column.where, retry_errors=column.retry_errors)
    parts = [output.format_count(plan.missing, "row")] if plan.missing else []
    parts += [f"{plan.carried:,} carried over"] if plan.carried else []
    return NodeForecast(node, ", ".join(parts) or "nothing to do", bool(parts), plan.missing)


def _view_forecast(view: ViewSpec, node: PipelineNode, lake: Lake) -> NodeForecast:
    if view.name not in lake:
        return NodeForecast(node, "declare the view, and compute it", True)
    stored = lake.view(view.name)
    if stored.definition != view.definition:
        return NodeForecast(node, "everything, because its definition changed", True)
    plan = stored.plan_refresh()
    if plan.nothing_to_do:
        return NodeForecast(node, "nothing to do", False, 0)
    return NodeForecast(node, f"{plan.stale or plan.moved}", True, plan.behind)
