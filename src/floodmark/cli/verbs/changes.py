"""`floodmark changes`: the records after an offset."""

from __future__ import annotations

import click

from floodmark.cli import document
from floodmark.cli.call import Call, verb


@verb("changes")
@click.argument("name")
@click.option(
    "--since", metavar="N", type=click.IntRange(min=-1), help="Records after offset N. Default: the oldest there are."
)
@click.option("--until", metavar="N", type=click.IntRange(min=0), help="Records up to and with offset N. Default: all.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="At most N records, the oldest of them.")
def changes(call: Call, name: str, since: int | None, until: int | None, limit: int | None) -> None:
    """Show the records after an offset.

    They come in offset order, with their offset, op and system_time.

    \b
    floodmark changes trips --since 999
    floodmark changes trips --since 999 --limit 500 --json | jq .until

    The `until` of the JSON document is how far it reads: give it as the next --since to go on from there.
    """
    from floodmark.cli import records

    dataset = call.lake()[name]
    last = -1 if dataset.last_offset is None else dataset.last_offset
    start = last - dataset.snapshot().records if since is None else since
    wanted = last if until is None else min(until, last)
    end = max(start, wanted if limit is None else min(wanted, start + limit))
    if end == start:
        if call.as_json:
            document.emit(dataset=dataset.name, since=start, until=end, more=last > end, records=[])
        call.note(f"{dataset.name}: no records after offset {start}" + (f" up to {until}" if last > end else ""))
        return
    table = dataset.changes_arrow(since=start, until=end)
    if call.as_json:
        rows = records.objects(table)
        document.emit(dataset=dataset.name, since=start, until=end, more=last > end, records=rows)
    elif limit is None:
        records.show(call, table, "record")
    else:
        records.show_all(table)
        if wanted > end:
            call.note(f"… more: --since {end}")
