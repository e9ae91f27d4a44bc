"""`floodmark ingest`: write files to a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from floodmark.cli import document, words
from floodmark.cli.call import Call, verb
from floodmark.cli.columns import named_columns
from floodmark.cli.timelines import Brought, root_of
from floodmark.cli.wanted import Wanted
from floodmark.ledger.errors import CommitConflict, UnknownDataset

if TYPE_CHECKING:
    from floodmark.dataset import Dataset
    from floodmark.lake import Lake
    from floodmark.ledger.commit import Commit
    from floodmark.ledger.incoming import Format

# As in ledger/strategy.py; what that imports would make `floodmark --help` wait.
MERGES = ("append", "ledger", "snapshot", "changelog", "upsert")
# As in timeline/settings.py and timeline/order/partitions.py, for the same reason.
UNITS = ("hour", "day", "week", "month", "year")
LATE_MERGES = ("auto", "always")
MODES = ("eager", "lazy")
LARGEST_ROW_GROUP_SIZE = 1 << 24


@verb("ingest")
@click.argument("name")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--event-time", metavar="COLUMN", help="The column that says when an event happened, for a new dataset.")
@click.option(
    "--key",
    metavar="COLUMN",
    multiple=True,
    callback=named_columns,
    help="A column that identifies a row, for a new dataset. Several: again, or with commas.",
)
@click.option(
    "--merge",
    type=click.Choice(MERGES),
    help="What a batch becomes, for a new dataset. Default: upsert with a key, append without.",
)
@click.option(
    "--compare",
    metavar="COLUMN",
    multiple=True,
    callback=named_columns,
    help="With --merge snapshot: a column whose change counts. Default: all.",
)
@click.option(
    "--lookup",
    metavar="COLUMN",
    multiple=True,
    callback=named_columns,
    help="The first columns of the key, if rows will be looked up by them alone.",
)
@click.option(
    "--partition-by",
    type=click.Choice(UNITS),
    help="Keep rows in event-time order, too, by such partitions; for a new dataset with an event time.",
)
@click.option(
    "--row-group-size",
    metavar="N",
    type=click.IntRange(1, LARGEST_ROW_GROUP_SIZE),
    help="With --partition-by: rows that are read and merged together. Default: 100,000.",
)
@click.option(
    "--late-merge",
    type=click.Choice(LATE_MERGES),
    help="With --partition-by: merge late rows when it pays, or always. Default: auto.",
)
@click.option(
    "--timeline",
    type=click.Choice(MODES),
    help="With --partition-by: put rows in order with each write, or when asked. Default: eager.",
)
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
    read: Format | None,
    source: str | None,
    state: str | None,
    event_time: str | None,
    merge: str | None,
    key: tuple[str, ...],
    compare: tuple[str, ...],
    lookup: tuple[str, ...],
    partition_by: str | None,
    row_group_size: int | None,
    late_merge: str | None,
    timeline: str | None,
) -> None:
    """Write files to a dataset, new or old.

    \b
    floodmark ingest trips trips.parquet --event-time pickup_at
    floodmark ingest trips 'more/*.csv' --source files --state 2026-11-15
    floodmark ingest people people.csv --key id
    floodmark ingest prices today.csv --key shop,item --merge snapshot
    floodmark ingest ticks ticks.parquet --event-time at --partition-by day

    A PATH is a file, a folder or a glob. All files become visible at once, or none. A dataset that is not there yet is
    made, with the columns of the first file.

    Without a key every row is appended. With one, only what changed is written:

    \b
    upsert     rows replace those of their key
    snapshot   the files hold all there is; rows they lack are retracted
    ledger     rows with a new key are added, others dropped
    changelog  a column `op` says what each row does: 0 new, 1 gone, 2 and 3 before and after a change
    """
    if (source is None) != (state is None):
        raise click.UsageError("--source and --state go together: which source, and how far it was read.")
    lake = call.lake()
    created = name not in lake
    wanted = Wanted(event_time, merge, key, compare, lookup, partition_by, row_group_size, late_merge, timeline)
    with _dataset(lake, name, wanted) as dataset:
        before = dataset.snapshot().head_block.sequence_number
        root = root_of(dataset)
        commit = dataset.write(list(paths), source=source, state=state, read=read)
        is_keyed = dataset.strategy.is_keyed
        brought = None if root is None else Brought.between(root, dataset.timeline_root(), dataset)
    # A batch that changes nothing comes back without a commit of its own, and a source state that the chain had
    # already as the commit that brought it.
    written = (commit.rows > 0 or commit.source is not None) and commit.sequence_number > before
    if call.as_json:
        document.emit(
            dataset=name,
            created=created,
            written=written,
            records=commit.rows,
            new=commit.new,
            changed=commit.changed,
            retracted=commit.retracted,
            unchanged=commit.unchanged,
            duplicates=commit.duplicates,
            unknown=commit.unknown,
            start=commit.start,
            end=commit.end,
            size=commit.size,
            slices=commit.slices,
            block=commit.block.text,
            sequence_number=commit.sequence_number,
            system_time=commit.system_time,
            watermark=commit.watermark,
            timeline=None if brought is None else brought.fields(),
        )
        return
    made = "made the dataset, " if created else ""
    offsets = f"offsets {commit.start}–{commit.end - 1}"
    records = f"{words.many(commit.rows, 'record')}, {offsets}" if commit.rows else "it changed nothing"
    size, block = words.size(commit.size), f"block {commit.block.short}"
    if commit.source is not None and not written:
        click.echo(f"{name}: {source} {state} was written before ({records}); nothing to do")
    elif commit.rows == 0:
        click.echo(f"{name}: {made}nothing changed ({_counted(commit)})")
    elif is_keyed:
        click.echo(f"{name}: {made}{_counted(commit)} ({offsets}, {size}), {block}")
    else:
        click.echo(f"{name}: {made}+{records} ({size}), {block}")
    if brought is not None and written:
        click.echo(brought.line())


def _counted(commit: Commit) -> str:
    from floodmark.ledger.log import counted

    return counted(commit) or "the batch has no rows"


@contextmanager
def _dataset(lake: Lake, name: str, wanted: Wanted) -> Iterator[Dataset]:
    """The dataset to write to. One that was made for this write goes again when the write fails."""
    if name in lake:
        dataset = lake[name]
        wanted.check(dataset)
        yield dataset
        return
    dataset = wanted.create(lake, name)
    made = dataset.head
    try:
        yield dataset
    except BaseException:  # Ctrl-C too: a refused first write leaves nothing behind
        with suppress(CommitConflict, UnknownDataset):  # somebody else has written to it: then it is theirs
            lake.drop(name, head=made)
        raise
