"""`floodmark ingest`: append files to a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from floodmark.cli import document, words
from floodmark.cli.call import Call, verb
from floodmark.cli.errors import OtherEventTime
from floodmark.ledger.errors import CommitConflict, UnknownDataset

if TYPE_CHECKING:
    from floodmark.lake import Lake
    from floodmark.ledger.dataset import Dataset
    from floodmark.ledger.incoming import Format


@verb("ingest")
@click.argument("name")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--event-time", metavar="COLUMN", help="The column that says when an event happened, for a new dataset.")
@click.option(
    "--read",
    type=click.Choice(["csv", "json", "parquet"]),
    help="The format of files whose names do not tell. JSON has one object per line.",
)
@click.option("--source", help="Where the files come from; with --state, the same pair again writes nothing.")
@click.option("--state", help="How far the source was read, such as a batch number.")
def ingest(
    call: Call,
    name: str,
    paths: tuple[str, ...],
    event_time: str | None,
    read: Format | None,
    source: str | None,
    state: str | None,
) -> None:
    """Append files to a dataset, new or old.

    \b
    floodmark ingest trips trips.parquet --event-time pickup_at
    floodmark ingest trips 'more/*.csv' --source files --state 2026-11-15

    A PATH is a file, a folder or a glob. All files become visible at once, or none. A dataset that is not there yet is
    made, with the columns of the first file.
    """
    if (source is None) != (state is None):
        raise click.UsageError("--source and --state go together: which source, and how far it was read.")
    lake = call.lake()
    created = name not in lake
    with _dataset(lake, name, event_time) as dataset:
        before = dataset.snapshot().head_block.sequence_number
        commit = dataset.write(list(paths), source=source, state=state, read=read)
    # A source state that the chain had already comes back as the commit that brought it.
    written = commit.sequence_number > before
    if call.as_json:
        document.emit(
            dataset=name,
            created=created,
            written=written,
            records=commit.rows,
            start=commit.start,
            end=commit.end,
            size=commit.size,
            slices=commit.slices,
            block=commit.block.text,
            sequence_number=commit.sequence_number,
            system_time=commit.system_time,
            watermark=commit.watermark,
        )
        return
    added = f"{words.many(commit.rows, 'record')}, offsets {commit.start}–{commit.end - 1}"
    if not written:
        click.echo(f"{name}: {source} {state} was written before ({added}); nothing to do")
        return
    made = "made the dataset, " if created else ""
    click.echo(f"{name}: {made}+{added} ({words.size(commit.size)}), block {commit.block.short}")


@contextmanager
def _dataset(lake: Lake, name: str, event_time: str | None) -> Iterator[Dataset]:
    """The dataset to write to. One that was made for this write goes again when the write fails."""
    if name in lake:
        dataset = lake[name]
        if event_time is not None and dataset.event_time != event_time:
            has = f"the event time {dataset.event_time!r}" if dataset.event_time else "no event time of its own"
            raise OtherEventTime(
                f"dataset {name!r} has {has}, not {event_time!r}",
                hint="leave out --event-time to append, or choose another name for a new dataset",
                name=name,
            )
        yield dataset
        return
    dataset = lake.create(name, event_time=event_time)
    made = dataset.head
    try:
        yield dataset
    except BaseException:  # Ctrl-C too: a refused first write leaves nothing behind
        with suppress(CommitConflict, UnknownDataset):  # somebody else has written to it: then it is theirs
            lake.drop(name, head=made)
        raise
