"""`floodmark fold`: copy the live rows into large files for reading."""

from __future__ import annotations

from dataclasses import asdict

import click

from floodmark.cli import document, words
from floodmark.cli.call import Call, verb


@verb("fold")
@click.argument("name")
def fold(call: Call, name: str) -> None:
    """Copy the live rows into large files, for faster reading.

    \b
    floodmark fold people

    Worth it when many records are dead (replaced or retracted), or slices are many and small. No record goes: the copy
    is derived, reads use it in place of the slices, and it can be deleted at any time. A write does this by itself when
    a tenth of the records is dead or a thousand slices are small.
    """
    dataset = call.lake()[name]
    done = None if dataset.schema is None else dataset.fold()
    if call.as_json:
        counts = {"read": 0, "files": 0, "rows": 0, "bytes": 0, "dead": 0} if done is None else asdict(done)
        counts["size"] = counts.pop("bytes")
        document.emit(dataset=dataset.name, **counts)
    elif done is None or done.read == 0:
        click.echo(f"{dataset.name}: nothing to fold; no record is dead, and no small slices lie side by side")
    else:
        made = f"{words.many(done.files, 'file')} ({words.many(done.rows, 'row')}, {words.size(done.bytes)})"
        left = f", without {words.many(done.dead, 'dead record')}" if done.dead else ""
        click.echo(f"{dataset.name}: folded {words.many(done.read, 'file')} into {made}{left}")
