"""`floodmark delete`: retract rows by their key."""

from __future__ import annotations

import click

from floodmark.cli import document, keys, words
from floodmark.cli.call import Call, verb


@verb("delete")
@click.argument("name")
@click.argument("given", metavar="COLUMN=VALUE...", nargs=-1, required=True)
def delete(call: Call, name: str, given: tuple[str, ...]) -> None:
    """Retract the rows with a key; their history stays.

    \b
    floodmark delete people id=7
    floodmark delete people id=7 id=8
    floodmark delete prices shop=12            all rows of shop 12, if the key is shop and day

    The rows are gone for whoever reads the dataset from now on; every record is still there for `history`, `changes`
    and earlier points in time. A key that is not there is counted, and is no error.
    """
    from floodmark.ledger.log import counted

    wanted = keys.pairs(given)
    dataset = call.lake()[name]
    typed = keys.typed(wanted, dataset)
    commit = None if typed is None else dataset.delete(typed)
    if call.as_json:
        document.emit(
            dataset=dataset.name,
            keys=wanted,
            retracted=commit.retracted if commit is not None else 0,
            unknown=commit.unknown if commit is not None else len(wanted),
            start=None if commit is None else commit.start,
            end=None if commit is None else commit.end,
            block=dataset.head.text if commit is None else commit.block.text,
        )
    elif commit is None or commit.retracted == 0:
        click.echo(f"{dataset.name}: nothing to retract; no row has {keys.said(wanted)}")
    else:
        where = f"offsets {commit.start}–{commit.end - 1}, {words.size(commit.size)}"
        click.echo(f"{dataset.name}: {counted(commit)} ({where}), block {commit.block.short}")
