"""`floodmark why`: where a record came from, and what came of it."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click

from floodmark.cli import document, keys
from floodmark.cli.call import Call, verb
from floodmark.cli.tables import visible

if TYPE_CHECKING:
    from floodmark.dataset import Dataset
    from floodmark.provenance.asked import Asked
    from floodmark.provenance.text import Node


@verb("why")
@click.argument("name", metavar="DATASET")
@click.argument("given", metavar="OFFSET|COLUMN=VALUE...", nargs=-1, required=True)
@click.option("--forward", "is_forward", is_flag=True, help="What came of the record, instead.")
@click.option("--rows", default=10, show_default=True, metavar="N", help="Rows of each input that are followed.")
def why(call: Call, name: str, given: tuple[str, ...], is_forward: bool, rows: int) -> None:
    """Show where a record came from, row by row, down to the sources.

    \b
    floodmark why daily 17
    floodmark why features id=7
    floodmark why trips 3 --forward
    floodmark why features id=7 --json | jq '.inputs[].records[].offset'

    A record is named by its offset, or by the key of a current row. For each input: as of which record it was read by
    the run that made this one, and its rows that belong to it, as they were then; the same for each of these, until a
    record was written from outside, where the source and how far it was read are shown. What was purged, dropped or
    never noted is said to be so.

    With --forward: the records of steps and views that were made of it, and what came of those.
    """
    if rows < 0:
        raise click.BadParameter("give 0 or more rows.", param_hint="--rows")
    lake = call.lake()
    dataset = lake[name]
    asked = _asked(given, dataset)
    if is_forward:
        from floodmark.provenance.text import forward_tree

        found = lake.why_forward(dataset.name, asked)
        fields, tree = found.to_json(), forward_tree(found)
    else:
        from floodmark.provenance.text import why_tree

        made = lake.why(dataset.name, asked, rows=rows)
        fields, tree = made.to_json(), why_tree(made)
    if call.as_json:
        document.emit(**fields)
        return
    _print(tree)


def _print(tree: Node) -> None:
    """On a terminal no line is longer than it is wide; in a pipe each is whole."""
    from floodmark.provenance.text import lines, wrapped

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in map(visible, lines(tree)):
        for part in [line] if width is None else wrapped(line, width):
            click.echo(part)


def _asked(given: tuple[str, ...], dataset: Dataset) -> Asked:
    if len(given) == 1 and given[0].isdigit():
        return int(given[0])
    wanted = keys.pairs(given)
    if len(wanted) > 1:
        raise click.UsageError("name one record: an OFFSET, or each column of a key once.")
    typed = keys.typed(wanted, dataset)
    if typed is None:
        dataset.snapshot().require_layout(dataset.name)  # says that there are no columns yet
    assert typed is not None
    [row] = typed.to_pylist()
    return dict(row)
