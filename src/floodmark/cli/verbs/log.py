"""`floodmark log`: what happened to a dataset."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, words
from floodmark.cli.call import Call, verb
from floodmark.cli.tables import visible

if TYPE_CHECKING:
    from floodmark.ledger.log import LogEntry


@verb("log")
@click.argument("name")
@click.option("-n", "--number", metavar="N", type=click.IntRange(min=1), help="Show the newest N only. Default: all.")
def log(call: Call, name: str, number: int | None) -> None:
    """Show what happened to a dataset, newest first.

    \b
    floodmark log trips -n 10
    floodmark log trips --json | jq '.entries[0].hash'

    A line per block: hash, number, time, kind, what it did. On a terminal times are relative. Blocks are read as they
    are shown, so the first lines of a long log come at once.
    """
    dataset = call.lake()[name]
    entries = islice(dataset.log(), number)
    if call.as_json:
        # Read to the end first: a block that cannot be read must not leave half a document behind.
        document.emit(dataset=dataset.name, entries=[_fields(entry) for entry in entries])
        return
    width = len(str(dataset.snapshot().head_block.sequence_number))
    oldest = 0
    for entry in entries:
        _print(entry, width)
        oldest = entry.sequence_number
    if oldest:
        call.note(f"… {words.many(oldest, 'older block')}")


def _fields(entry: LogEntry) -> dict[str, Any]:
    new = getattr(entry.event, "new_data", None)
    return {
        "hash": entry.hash.text,
        "sequence_number": entry.sequence_number,
        "system_time": entry.system_time,
        "kind": entry.kind,
        "summary": entry.summary,
        "start": None if new is None else new.offset_interval.start,
        "end": None if new is None else new.offset_interval.end + 1,
    }


def _print(entry: LogEntry, width: int) -> None:
    number = f"{entry.sequence_number:>{width}}"
    what = visible(entry.summary)
    if not sys.stdout.isatty():
        click.echo(f"{entry.hash.short}  {number}  {words.clock(entry.system_time)}  {entry.kind:<13}  {what}")
        return
    short = click.style(entry.hash.short, fg="yellow")
    when = click.style(f"{words.ago(entry.system_time, datetime.now(UTC)):<14}", fg="green")
    click.echo(f"{short}  {number}  {when}  {click.style(f'{entry.kind:<13}', dim=True)}  {what}")
