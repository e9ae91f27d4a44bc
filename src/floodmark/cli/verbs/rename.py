"""`floodmark rename`: give a dataset another name."""

from __future__ import annotations

import click

from floodmark.cli import document
from floodmark.cli.call import Call, verb


@verb("rename")
@click.argument("old")
@click.argument("new")
def rename(call: Call, old: str, new: str) -> None:
    """Give a dataset another name; no data moves.

    \b
    floodmark rename trips rides
    """
    lake = call.lake()
    before = lake[old].name
    dataset = lake.rename(old, new)
    if call.as_json:
        document.emit(old=before, new=dataset.name, id=dataset.id.text)
    else:
        click.echo(f"{before} is now {dataset.name}")
