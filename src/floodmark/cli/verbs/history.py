"""`floodmark history`: the life of a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli import document, keys
from floodmark.cli.call import Call, verb

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.dataset import Dataset

_OPS = ("+A", "-R", "-C", "+C")


@verb("history")
@click.argument("name")
@click.argument("given", metavar="COLUMN=VALUE...", nargs=-1, required=True)
def history(call: Call, name: str, given: tuple[str, ...]) -> None:
    """Show every record that a key ever had.

    \b
    floodmark history people id=7
    floodmark history prices shop=12 day=2026-11-16
    floodmark history people id=7 id=8 --json | jq '.records[].op'

    They come in offset order. The op says what a record did: +A a new row, -R a row that is gone, -C and +C a row
    before and after it changed. A column that comes again begins another key; some columns of a key stand for all rows
    that have them.
    """
    from floodmark.cli import records

    wanted = keys.pairs(given)
    dataset = call.lake()[name]
    typed = keys.typed(wanted, dataset)
    found = None if typed is None else _with_signs(dataset.history(typed), dataset)
    if call.as_json:
        document.emit(dataset=dataset.name, keys=wanted, records=[] if found is None else records.objects(found))
        return
    if found is None or found.num_rows == 0:
        call.note(f"{dataset.name}: no record ever had {keys.said(wanted)}")
    else:
        records.show(call, found, "record")
    if purged := dataset.snapshot().purged_before:
        call.note(f"records before offset {purged} are purged and cannot be shown")


def _with_signs(table: pa.Table, dataset: Dataset) -> pa.Table:
    """The records with their operations as people write them."""
    import pyarrow as pa

    op = dataset.snapshot().require_layout(dataset.name).vocab.op
    at = table.column_names.index(op)
    return table.set_column(at, op, pa.array(_OPS).take(table.column(op)))
