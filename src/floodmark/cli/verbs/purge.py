"""`floodmark purge`: remove old records for good."""

from __future__ import annotations

import re

import click

from floodmark.cli import document, words
from floodmark.cli.call import Call, verb


@verb("purge")
@click.argument("name")
@click.option(
    "--before",
    required=True,
    metavar="OFFSET|TIME",
    help="An offset (a plain number), or an event time: 2026-11-15, 2026-11-15T12:00:00Z (without a zone: UTC).",
)
def purge(call: Call, name: str, before: str) -> None:
    """Remove old records for good.

    \b
    floodmark purge trips --before 2026-01-01
    floodmark purge trips --before 100000

    Those slices go whose records all lie before an offset or an event time, so some older records may remain. Rows of a
    keyed dataset that have not changed since are in them, and go too. The chain and the offsets stay, and verify says
    what is purged.
    """
    dataset = call.lake()[name]
    point = int(before) if re.fullmatch(r"[0-9]+", before) else before
    done = dataset.purge(point)
    if call.as_json:
        document.emit(
            dataset=dataset.name, purged_before=done.before, slices=done.slices, records=done.records, size=done.bytes
        )
    elif done.slices:
        gone = f"{words.many(done.records, 'record')} in {words.many(done.slices, 'slice')} ({words.size(done.bytes)})"
        click.echo(f"{dataset.name}: purged {gone}; offsets below {done.before} are gone")
    else:
        click.echo(f"{dataset.name}: nothing to purge; no whole slice lies before {before}")
