"""`floodmark fold`: copy the live rows into large files for reading."""

from __future__ import annotations

from dataclasses import asdict

import click

from floodmark.cli import document, words
from floodmark.cli.call import Call, verb


@verb("fold")
@click.argument("name")
@click.option("--partition", metavar="P", help="Only this partition of the timeline, such as 2026-11-01.")
def fold(call: Call, name: str, partition: str | None) -> None:
    """Copy the live rows into large files, for faster reading.

    \b
    floodmark fold people
    floodmark fold ticks --partition 2026-11-01

    Worth it when many records are dead (replaced or retracted), or slices are many and small. No record goes: the copy
    is derived, reads use it in place of the slices, and it can be deleted at any time. A write does this by itself when
    a tenth of the records is dead or a thousand slices are small.

    A timeline is folded along: late rows that lie over others are merged, small row groups put together. With
    --partition only that is done, and only there: a label as `timeline --pieces` shows it, or any time in it.
    """
    dataset = call.lake()[name]
    done = None if dataset.schema is None else dataset.fold(partition)
    if call.as_json:
        counts = {"read": 0, "files": 0, "rows": 0, "bytes": 0, "dead": 0} if done is None else asdict(done)
        counts["size"] = counts.pop("bytes")
        document.emit(dataset=dataset.name, **counts)
    elif done is None or done.read == 0:
        where = "" if partition is None else f" in {partition}"
        click.echo(f"{dataset.name}: nothing to fold{where}; no record is dead, and nothing small lies side by side")
    else:
        made = f"{words.many(done.files, 'file')} ({words.many(done.rows, 'row')}, {words.size(done.bytes)})"
        left = f", without {words.many(done.dead, 'dead record')}" if done.dead else ""
        click.echo(f"{dataset.name}: folded {words.many(done.read, 'file')} into {made}{left}")
