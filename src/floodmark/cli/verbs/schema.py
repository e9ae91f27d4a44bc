"""`floodmark schema`: the columns of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, views
from floodmark.cli.call import Call, verb
from floodmark.cli.tables import Column, print_table

if TYPE_CHECKING:
    from floodmark.compute.stored.catalog import Column as ComputedColumn


@verb("schema")
@click.argument("name")
def schema(call: Call, name: str) -> None:
    """Show columns, types, event time, key and merge strategy.

    \b
    floodmark schema trips
    floodmark schema trips --json | jq -r '.columns[].name'
    """
    lake = call.lake()
    dataset = lake[name]
    event_time, strategy = dataset.event_time, dataset.strategy
    found = dataset.schema
    fields = [] if found is None else list(found)
    computed = dataset.catalog.columns
    if call.as_json:
        columns = [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in fields]
        document.emit(
            dataset=dataset.name,
            event_time=event_time,
            merge=strategy.kind,
            key=strategy.key,
            compare=strategy.compare,
            lookup=strategy.lookup,
            columns=columns,
            computed=[_computed(c) for c in computed],
        )
        return
    if (view := views.find_view(lake, name)) is not None:
        call.note(f"{dataset.name}: a view; {views.described(view)}")
    elif strategy.is_keyed:
        call.note(f"{dataset.name}: {strategy}")
    if not fields:
        first = "ingest" if view is None else "refresh"
        call.note(f"{dataset.name}: no columns yet; the first {first} sets them")
        return
    heads = [Column("column"), Column("type"), Column("nulls"), Column("role")]
    rows = [
        [f.name, str(f.type), "yes" if f.nullable else "no", _role(f.name, event_time, strategy.key)] for f in fields
    ]
    rows += [[c.name, str(c.type), "yes", f"computed from {', '.join(c.inputs)}"] for c in computed]
    print_table(heads, rows)
    if event_time is None:
        call.note("The event time is the time of writing (system_time).")


def _role(column: str, event_time: str | None, key: tuple[str, ...]) -> str:
    return ", ".join([*(["key"] if column in key else []), *(["event time"] if column == event_time else [])])


def _computed(column: ComputedColumn) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": str(column.type),
        "nullable": column.nullable,
        "inputs": column.inputs,
        "function": column.function.name,
        "version": column.function.version,
    }
