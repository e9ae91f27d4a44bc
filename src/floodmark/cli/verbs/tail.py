"""`floodmark tail`: the newest records."""

from __future__ import annotations

import click

from floodmark.cli import document
from floodmark.cli.call import Call, verb


@verb("tail")
@click.argument("name")
@click.option("-n", "--number", metavar="N", type=click.IntRange(min=1), default=10, help="How many. Default: 10.")
def tail(call: Call, name: str, number: int) -> None:
    """Show the last records, with their offset, op and system_time.

    \b
    floodmark tail trips
    floodmark tail trips -n 1 --json | jq '.records[0].offset'
    """
    from floodmark.cli import records

    dataset = call.lake()[name]
    last = dataset.last_offset
    found = min(number, dataset.snapshot().records)
    if last is None or found == 0:
        if call.as_json:
            document.emit(dataset=dataset.name, records=[])
        purged = "all records are purged" if last is not None else "no records yet"
        call.note(f"{dataset.name}: {purged}")
        return
    table = dataset.changes_arrow(since=last - found, until=last)
    if call.as_json:
        document.emit(dataset=dataset.name, records=records.objects(table))
    else:
        records.show_all(table)
