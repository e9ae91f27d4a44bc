"""`floodmark ingest`: write files to a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import output
from floodmark.cli.arguments import column_names_option
from floodmark.cli.command import Invocation, verb
from floodmark.cli.exit_codes import CommandError
from floodmark.errors import BadOption, BadPrimaryKey, CommitConflict, DatasetInUse, UnknownDataset

if TYPE_CHECKING:
    from floodmark.dataset import Dataset
    from floodmark.lake import Lake
    from floodmark.ledger.commit import Commit
    from floodmark.ledger.data_input import Format
    from floodmark.ledger.strategy import Strategy
    from floodmark.timeline.root import Root


# As in ledger/strategy.py, whose imports would slow down `floodmark --help`.
MERGES = ("append", "ledger", "snapshot", "changelog", "upsert")
# As in timeline/settings.py, for the same reason.
UNITS = ("hour", "day", "week", "month", "year")
LATE_MERGES = ("auto", "always")
MODES = ("eager", "lazy")
LARGEST_ROW_GROUP_SIZE = 1 << 24


@verb("ingest")
@click.argument("name")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--event-time", metavar="COLUMN", help="The column with the time of the event, for a new dataset.")
@column_names_option("--key", "A key column, for a new dataset. For several, repeat the option or use commas.")
@click.option(
    "--merge",
    type=click.Choice(MERGES),
    help="How rows are written, for a new dataset (see above). Default: upsert with a key, else append.",
)
@column_names_option("--compare", "With --merge snapshot: a column to compare for changes. Default: all.")
@column_names_option("--lookup", "Leading columns of the key by which rows are looked up. Default: the whole key.")
@click.option(
    "--partition-by",
    type=click.Choice(UNITS),
    help="Also keep rows in event-time order, in partitions of this unit; for a new dataset with an event time.",
)
@click.option(
    "--row-group-size",
    metavar="N",
    type=click.IntRange(1, LARGEST_ROW_GROUP_SIZE),
    help="With --partition-by: rows per row group. Default: 100,000.",
)
@click.option(
    "--late-merge",
    type=click.Choice(LATE_MERGES),
    help="With --partition-by: merge late rows when it pays, or always. Default: auto.",
)
@click.option(
    "--timeline",
    type=click.Choice(MODES),
    help="With --partition-by: order rows at each write (eager) or on request (lazy). Default: eager.",
)
@column_names_option(
    "--vocab",
    "Another name for a system column (offset, op, system_time), for a new dataset whose files have that column.",
    metavar="COLUMN=NAME",
)
@click.option(
    "--read",
    type=click.Choice(["csv", "json", "parquet"]),
    help="The format of files without a known suffix. JSON has one object per line.",
)
@click.option("--source", help="Name of the source. With --state: a pair that was written before writes nothing.")
@click.option("--state", help="How far the source was read, such as a batch number.")
def ingest(
    call: Invocation,
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
    vocab: tuple[str, ...],
) -> None:
    """Write files to a dataset, and create it if needed.

    \b
    floodmark ingest trips trips.parquet --event-time pickup_at
    floodmark ingest trips 'more/*.csv' --source files --state 2026-11-15
    floodmark ingest people people.csv --key id
    floodmark ingest prices today.csv --key shop,item --merge snapshot
    floodmark ingest ticks ticks.parquet --event-time at --partition-by day
    floodmark ingest clicks kafka.parquet --vocab offset=_offset

    A PATH is a file, a folder or a glob. All files become visible in one commit. A new dataset gets the columns of the
    first file.

    Without a key every row is appended. With a key only changes are written:

    \b
    upsert     a row replaces the row with the same key
    snapshot   the files are the complete data; rows that are not in them are retracted
    ledger     rows with a new key are added; rows with a known key are ignored
    changelog  the column `op` has the operation: 0 new, 1 gone, 2 and 3 before and after a change
    """
    if (source is None) != (state is None):
        raise click.UsageError("--source and --state must be given together.")
    lake = call.lake()
    created = name not in lake
    wanted = IngestOptions(
        event_time,
        merge,
        key,
        compare,
        lookup,
        partition_by,
        row_group_size,
        late_merge,
        timeline,
        _parse_vocab(vocab),
    )
    with _open_or_create(lake, name, wanted) as dataset:
        before = dataset.snapshot().head_block.sequence_number
        root = timeline_root_of(dataset)
        commit = dataset.write(list(paths), source=source, state=state, read=read)
        is_keyed = dataset.strategy.is_keyed
        brought = None if root is None else TimelineChange.between(root, dataset.timeline_root(), dataset)
    # A batch without changes returns the head, and a source state that was written before returns its old commit.
    written = (commit.rows > 0 or commit.source is not None) and commit.sequence_number > before
    if call.as_json:
        output.emit(
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
    created_text = "created the dataset, " if created else ""
    offsets = f"offsets {commit.start}–{commit.end - 1}"
    records = f"{output.format_count(commit.rows, 'record')}, {offsets}" if commit.rows else "no changes"
    size, block = output.format_bytes(commit.size), f"block {commit.block.short}"
    if commit.source is not None and not written:
        click.echo(f"{name}: {source} {state} was written before ({records}); nothing to do")
    elif commit.rows == 0:
        click.echo(f"{name}: {created_text}nothing changed ({_count_text(commit)})")
    elif is_keyed:
        click.echo(f"{name}: {created_text}{_count_text(commit)} ({offsets}, {size}), {block}")
    else:
        click.echo(f"{name}: {created_text}+{records} ({size}), {block}")
    if brought is not None and written:
        click.echo(brought.line())


def _count_text(commit: Commit) -> str:
    from floodmark.ledger.log import format_counts

    return format_counts(commit) or "the batch has no rows"


@contextmanager
def _open_or_create(lake: Lake, name: str, wanted: IngestOptions) -> Iterator[Dataset]:
    """The dataset to write to. A dataset that was created for this write is dropped if the write fails."""
    if name in lake:
        dataset = lake[name]
        wanted.check(dataset)
        yield dataset
        return
    dataset = wanted.create(lake, name)
    created_head = dataset.head
    try:
        yield dataset
    except BaseException:  # also on Ctrl-C
        with suppress(CommitConflict, UnknownDataset, DatasetInUse):  # another process uses it: keep it
            lake.drop(name, head=created_head)
        raise


@dataclass(frozen=True)
class IngestOptions:
    """The options of the dataset that the command gives. None and an empty tuple mean: not given."""

    event_time: str | None
    merge: str | None
    key: tuple[str, ...]
    compare: tuple[str, ...]
    lookup: tuple[str, ...]
    partition_by: str | None = None
    row_group_size: int | None = None
    late_merge: str | None = None
    timeline: str | None = None
    vocab: Mapping[str, str] | None = None

    def create(self, lake: Lake, name: str) -> Dataset:
        """Create a dataset with these options."""
        try:
            return lake.create(
                name,
                event_time=self.event_time,
                key=self.key or None,
                merge=self.merge,
                compare=self.compare or None,
                lookup=self.lookup or None,
                partition_by=self.partition_by,
                row_group_size=self.row_group_size,
                late_merge=self.late_merge,
                timeline=self.timeline,
                vocab=self.vocab,
            )
        except BadPrimaryKey as error:  # options that conflict; the hint of the error is for Python
            raise click.UsageError(f"{error.message}: see --key, --merge, --compare and --lookup.") from error
        except BadOption as error:
            raise click.UsageError(_MISSING_OPTIONS.get(error.setting, error.message)) from error

    def check(self, dataset: Dataset) -> None:
        """Refuse a dataset with other options: they cannot change after it is created."""
        if self.event_time is not None and dataset.event_time != self.event_time:
            has = f"the event time {dataset.event_time!r}" if dataset.event_time else "no event-time column"
            raise CommandError(
                f"dataset {dataset.name!r} has {has}, not {self.event_time!r}",
                hint="leave out --event-time to append, or create a dataset with another name",
                name=dataset.name,
            )
        found = dataset.strategy
        options = [
            ("--merge", self.merge, found.kind),
            ("--key", self.key, found.key),
            ("--compare", self.compare, found.compare or ()),
            ("--lookup", self.lookup, found.lookup),
        ]
        for option, wanted, present in options:
            if wanted and wanted != present:
                raise CommandError(
                    f"dataset {dataset.name!r} was created with {_as_options(found)}, not {option} {_listed(wanted)}",
                    hint=f"leave out {option} to write to it, or create a dataset with another name",
                    name=dataset.name,
                )
        self._check_vocab(dataset)
        self._check_timeline(dataset)

    def _check_vocab(self, dataset: Dataset) -> None:
        from floodmark.ledger.schema import declare_vocab, vocabulary

        if self.vocab is None:
            return
        try:
            wanted = vocabulary(declare_vocab(self.vocab)).reserved
        except BadOption as error:
            raise click.UsageError(error.message) from error
        if wanted != dataset.system_columns:
            raise CommandError(
                f"dataset {dataset.name!r} has the system columns {','.join(dataset.system_columns)}, "
                f"not {','.join(wanted)}",
                hint="leave out --vocab to write to it, or create a dataset with another name",
                name=dataset.name,
            )

    def _check_timeline(self, dataset: Dataset) -> None:
        from floodmark.timeline import settings as settings_module

        found = settings_module.read_settings(dataset.snapshot().state)
        options = [
            ("--partition-by", self.partition_by, found and found.partition_by),
            ("--row-group-size", self.row_group_size, found and found.row_group_size),
            ("--late-merge", self.late_merge, found and found.late_merge),
            ("--timeline", self.timeline, found and found.mode),
        ]
        for option, wanted, present in options:
            if wanted is not None and wanted != present:
                has = "no timeline" if found is None else f"a timeline with {option} {present}"
                raise CommandError(
                    f"dataset {dataset.name!r} has {has}, not {option} {wanted}",
                    hint=f"leave out {option} to write to it, or create a dataset with another name",
                    name=dataset.name,
                )


_NEEDS_PARTITION_BY = "--row-group-size, --late-merge and --timeline need a timeline: add --partition-by day."
_MISSING_OPTIONS = {
    "event_time": "--partition-by needs --event-time: a timeline is ordered by event time.",
    **dict.fromkeys(("row_group_size", "late_merge", "timeline"), _NEEDS_PARTITION_BY),
}
"""Messages for missing options, by setting. click checks the values of options."""


def _parse_vocab(given: tuple[str, ...]) -> Mapping[str, str] | None:
    pairs = [text.partition("=") for text in given]
    if wrong := [text for text, pair in zip(given, pairs, strict=True) if not pair[1]]:
        raise click.UsageError(f"--vocab {wrong[0]} is not COLUMN=NAME, such as offset=_offset.")
    return {role: name for role, _, name in pairs} or None


def _as_options(strategy: Strategy) -> str:
    """A strategy as the options that create it."""
    given = [f"--merge {strategy.kind}"]
    if strategy.key:
        given.append(f"--key {_listed(strategy.key)}")
    if strategy.compare is not None:
        given.append(f"--compare {_listed(strategy.compare)}")
    if strategy.lookup != strategy.key:
        given.append(f"--lookup {_listed(strategy.lookup)}")
    return " ".join(given)


def _listed(wanted: str | tuple[str, ...]) -> str:
    return wanted if isinstance(wanted, str) else ",".join(wanted)


def timeline_root_of(dataset: Dataset) -> Root | None:
    """The root of the timeline; None if the dataset has no timeline."""
    from floodmark.timeline import settings as settings_module

    return None if settings_module.read_settings(dataset.snapshot().state) is None else dataset.timeline_root()


@dataclass(frozen=True)
class TimelineChange:
    """What a write added to a timeline, and how many records are not in it yet (`behind`)."""

    rows: int
    late_rows: int
    bytes_in: int
    bytes_written: int
    behind: int

    @classmethod
    def between(cls, before: Root, after: Root, dataset: Dataset) -> TimelineChange:
        records = 0 if dataset.last_offset is None else dataset.last_offset + 1
        behind = max(0, records - after.applied)
        last = after.last
        if last is None or after.version == before.version:
            return cls(0, 0, 0, 0, behind)
        if after.version == before.version + 1:
            return cls(last.rows, last.late_rows, last.bytes_in, last.bytes_written, behind)
        # Several updates: the root has the last one and the sums, which start at 0 when a timeline is rebuilt.
        return cls(
            rows=max(last.rows, after.applied - before.applied),
            late_rows=last.late_rows,
            bytes_in=max(last.bytes_in, after.bytes_in - before.bytes_in),
            bytes_written=max(last.bytes_written, after.bytes_written - before.bytes_written),
            behind=behind,
        )

    @property
    def amplification(self) -> float | None:
        """Bytes written per byte of new rows; None if there are no new rows."""
        return self.bytes_written / self.bytes_in if self.bytes_in > 0 else None

    def fields(self) -> dict[str, Any]:
        """The values for JSON."""
        return {**asdict(self), "amplification": self.amplification}

    def line(self) -> str:
        """The values as one line of text."""
        parts = []
        if self.rows:
            parts.append(output.format_count(self.late_rows, "late row") if self.late_rows else "no late rows")
            share = "" if self.amplification is None else f" ({self.amplification:.2f} × the new rows)"
            parts.append(f"{output.format_bytes(self.bytes_written)} written{share}")
        if self.behind:
            parts.append(f"{output.format_count(self.behind, 'record')} behind")
        return "  timeline: " + (", ".join(parts) or "up to date")
