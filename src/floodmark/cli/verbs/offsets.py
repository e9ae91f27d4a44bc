"""`floodmark offsets`: up to which record steps have processed their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, steps, words
from floodmark.cli.call import Call, verb
from floodmark.cli.tables import Column, print_table

if TYPE_CHECKING:
    from floodmark.lake import Lake

_COLUMNS = [Column("transform"), Column("input"), Column("offset", is_number=True), Column("time")]


@verb("offsets")
@click.argument("names", metavar="[STEP]...", nargs=-1)
@steps.pipeline_option
def offsets(call: Call, names: tuple[str, ...], file: str | None) -> None:
    """Show up to which record steps have processed their inputs.

    \b
    floodmark offsets
    floodmark offsets features --json

    The offset is that of the newest record up to which nothing is left to do, the time is when that record was
    committed. Keys beyond it may be done, too: a run with a filter moves no offset. Failed keys hold none back.
    """
    found = steps.chosen(steps.load_pipeline(file), names)
    lake = call.lake()
    rows = [row for step in found for row in _rows(step, lake)]
    if call.as_json:
        document.emit(lake=lake.store.url, offsets=rows)
    elif rows:
        print_table(
            _COLUMNS,
            [
                [
                    row["transform"],
                    row["input"],
                    "-" if row["offset"] is None else str(row["offset"]),
                    "-" if row["time"] is None else words.clock(row["time"]),
                ]
                for row in rows
            ],
        )
    else:
        call.note("no step reads a dataset")


def _rows(step: Any, lake: Lake) -> list[dict[str, Any]]:
    """What is known of a step; while an input is not there, it has read nothing."""
    from floodmark.ledger.errors import UnknownDataset

    try:
        found: list[dict[str, Any]] = step.offsets(lake).to_pylist() if step.input_names else []
        return found
    except UnknownDataset:
        return [{"transform": step.name, "input": name, "offset": None, "time": None} for name in step.input_names]
