"""`floodmark plan`: what a run of a step would do, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, steps, words
from floodmark.cli.call import Call, verb
from floodmark.cli.tables import Column, print_table

if TYPE_CHECKING:
    from floodmark.transform.external.update import PollPlan
    from floodmark.transform.plan import TransformPlan
    from floodmark.transform.refresh.datatable import DatatablePlan

_KINDS = {
    "map": "map: rows as they lie in the changed slices",
    "keyed": "keyed: the rows of these keys, from every input",
    "cross": "cross: what changed on one side with all of the other",
}
_INPUTS = [Column("input"), Column("done up to", is_number=True), Column("head", is_number=True)]
_INPUTS += [Column("new records", is_number=True), Column("keys", is_number=True), Column("to be read")]


@verb("plan")
@click.argument("names", metavar="STEP...", nargs=-1, required=True)
@steps.pipeline_option
def plan(call: Call, names: tuple[str, ...], file: str | None) -> None:
    """Show what a run of steps would do, and why.

    \b
    floodmark plan features
    floodmark plan features --json | jq '.plans[].plan.keys'

    Per input: up to which record it is done, its newest record, how many lie between, how many keys changed in them,
    and what is read to find that out. Calls no function and writes nothing.
    """
    found = steps.chosen(steps.load_pipeline(file), names)
    lake = call.lake()
    described: list[dict[str, Any]] = []
    for step in found:
        made: Any = step.plan(lake) if hasattr(step, "plan") else None
        plan_fields = None if made is None else asdict(made)
        described.append({"step": step.name, "kind": type(step).__name__, "plan": plan_fields})
        if call.as_json:
            continue
        if len(described) > 1:
            click.echo("")
        if made is None:
            click.echo(f"{step.name}: calls its function, and writes what changed to {', '.join(step.output_names)}")
        else:
            _print(made)
    if call.as_json:
        document.emit(lake=lake.store.url, plans=described)


def _print(made: Any) -> None:
    from floodmark.transform.plan import TransformPlan

    if isinstance(made, TransformPlan):
        _print_transform(made)
    elif hasattr(made, "why"):
        _print_datatable(made)
    else:
        _print_poll(made)


def _print_transform(made: TransformPlan) -> None:
    click.echo(f"{made.step}: {_what(made)}")
    print_table(
        _INPUTS,
        [
            [one.name, _offset(one.previous), _offset(one.head), f"{one.records:,}", f"{one.keys:,}", one.reads]
            for one in made.inputs
        ],
    )
    if made.kind is not None:
        click.echo(_KINDS[made.kind])
    if made.stale is None:  # else there is nothing to look for
        click.echo(f"changelist v{made.changelist}: {_looking(made)}")
        if made.advice is not None:
            click.echo(made.advice)


def _what(made: TransformPlan) -> str:
    if made.nothing_to_do:
        return "nothing to do"
    keys = f"{words.many(made.keys, 'key')} to process"
    if made.stale is not None:
        return f"{keys}, which is everything, because {made.stale}"
    parts = {"new": made.new, "changed": made.changed, "failed before": made.failed}
    return f"{keys} ({', '.join(f'{count:,} {what}' for what, count in parts.items() if count)})"


def _looking(made: TransformPlan) -> str:
    return "only records beyond the offsets" if made.changelist == 2 else "all keys, whatever the offsets say"


def _print_datatable(made: DatatablePlan) -> None:
    click.echo(f"{made.step}: {'nothing to do' if made.why is None else f'computes everything, because {made.why}'}")
    columns = [Column("input"), Column("done up to", is_number=True), Column("head", is_number=True)]
    columns += [Column("new records", is_number=True)]
    print_table(columns, [[i.name, _offset(i.position), _offset(i.head), f"{i.behind:,}"] for i in made.inputs])


def _print_poll(made: PollPlan) -> None:
    since = "all of it" if made.start is None else f"where {made.column} is {document.jsonable(made.start)} or later"
    click.echo(f"{made.step}: {words.many(made.rows, 'row')} to read from {made.source}: {since}")


def _offset(position: int) -> str:
    return "-" if position < 0 else str(position)
