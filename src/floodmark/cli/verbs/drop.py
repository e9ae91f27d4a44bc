"""`floodmark drop`: remove a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli import document, words
from floodmark.cli.call import Call, verb
from floodmark.cli.errors import NotConfirmed
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.dataset import Dataset


@verb("drop")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Really do it.")
def drop(call: Call, name: str, yes: bool) -> None:
    """Remove a dataset and everything it holds, for good.

    \b
    floodmark drop trips          says what would go, and does nothing
    floodmark drop trips --yes
    """
    lake = call.lake()
    dataset = lake[name]
    records, size = _extent(dataset)
    what = f"{dataset.name} ({_described(records, size)})"
    if not yes:
        raise NotConfirmed(f"this would drop {what} from {lake.store.url} for good: add --yes to do it")
    lake.drop(name)
    if call.as_json:
        document.emit(dropped=dataset.name, records=records, size=size)
    else:
        click.echo(f"dropped {what}")


def _extent(dataset: Dataset) -> tuple[int | None, int | None]:
    """How many records and bytes; unknown for a damaged dataset, which can be dropped all the same."""
    try:
        snapshot = dataset.snapshot()
    except FloodmarkError:
        return None, None
    return snapshot.records, snapshot.size


def _described(records: int | None, size: int | None) -> str:
    if records is None or size is None:
        return "damaged: how much it holds is not known"
    return f"{words.many(records, 'record')}, {words.size(size)}"
