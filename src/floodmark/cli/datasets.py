"""Commands for datasets: `list`, `schema`, `log`, `drop` and `rename`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import output, targets
from floodmark.cli.command import Invocation, verb
from floodmark.cli.exit_codes import FAILED
from floodmark.cli.output import TableColumn, TableRow, escape_control_characters, print_table
from floodmark.cli.removal import Removal, list_readers, removal_options
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.columns.catalog import ColumnDefinition as ComputedColumn
    from floodmark.dataset import Dataset
    from floodmark.lake import Lake
    from floodmark.ledger.log import LogEntry
    from floodmark.ledger.overview import DatasetOverview
    from floodmark.storage.store import Store


@dataclass(frozen=True)
class DatasetSummary:
    """One dataset in the output of `list`."""

    name: str
    id: str
    kind: str
    view: bool
    merge: str
    key: tuple[str, ...]
    records: int
    size: int
    last_offset: int | None
    last_write: datetime | None
    last_change: str
    watermark: datetime | None
    head: str

    @classmethod
    def of(cls, found: DatasetOverview) -> DatasetSummary:
        from floodmark.ledger.commit import to_datetime
        from floodmark.ledger.strategy import is_view, strategy_of

        state = found.state
        assert state.dataset_id is not None  # every chain starts with a Seed
        assert state.dataset_kind is not None
        strategy = strategy_of(state)
        return cls(
            name=found.entry.name,
            id=state.dataset_id.text,
            kind=state.dataset_kind.name.lower(),
            view=is_view(state) and found.entry.rows_of is None,
            merge=strategy.kind,
            key=strategy.key,
            records=found.records,
            size=found.totals.bytes,
            last_offset=state.last_offset,
            last_write=None if state.last_offset is None else to_datetime(found.block.system_time),
            last_change=found.last_change,
            watermark=None if state.watermark is None else to_datetime(state.watermark),
            head=found.head.text,
        )

    def row(self, now: datetime) -> TableRow:
        written = "never" if self.last_write is None else output.format_age(self.last_write, now)
        watermark = "-" if self.watermark is None else output.format_time(self.watermark)
        return [self.name, self._merged(), f"{self.records:,}", output.format_bytes(self.size), written, watermark]

    def _merged(self) -> str:
        if self.view:
            return "view"
        if self.kind != "root":
            return self.kind  # not written from outside, so it has no merge strategy
        return f"{self.merge} by {', '.join(self.key)}" if self.key else self.merge


def summarise(lake: Lake) -> tuple[list[DatasetSummary], dict[str, FloodmarkError]]:
    """All datasets, and the errors of those that cannot be read."""
    from floodmark.engine.run import run_on_shares
    from floodmark.ledger import names

    store = lake.store
    is_local = store.local_path("names") is not None
    found = run_on_shares(names.list_keys(store), partial(_summarise_some, store), is_local=is_local)
    listed = [one for _, one in found if isinstance(one, DatasetSummary)]
    return listed, {name: one for name, one in found if not isinstance(one, DatasetSummary)}


def _summarise_some(store: Store, keys: Sequence[str]) -> list[tuple[str, DatasetSummary | FloodmarkError]]:
    """The datasets whose names have these keys."""
    from floodmark.ledger import names
    from floodmark.ledger.create import dataset_objects
    from floodmark.ledger.overview import load_overview

    found: list[tuple[str, DatasetSummary | FloodmarkError]] = []
    for entry in names.entries(store, keys=keys):
        try:
            one = DatasetSummary.of(load_overview(entry, dataset_objects(store, entry.id)))
        except FloodmarkError as error:
            found.append((entry.name, error))
        else:
            found.append((entry.name, one))
    return found


_COLUMNS = [
    TableColumn("name"),
    TableColumn("merge"),
    TableColumn("records", is_number=True),
    TableColumn("size", is_number=True),
    TableColumn("last write"),
    TableColumn("watermark"),
]


@verb("list")
def list_datasets(call: Invocation) -> None:
    """Show all datasets: records, size, last write.

    \b
    floodmark list
    floodmark list --json | jq '.datasets[].name'

    A dataset that cannot be read is an error on stderr (with --json an `error`), and the exit code is 1.
    """
    lake = call.lake()
    listed, damaged = summarise(lake)
    if call.as_json:
        broken: list[dict[str, Any]] = [
            {"name": name, "error": {"type": type(e).__name__, "message": e.message, "hint": e.hint}}
            for name, e in damaged.items()
        ]
        output.emit(lake=lake.store.url, datasets=[*(vars(one) for one in listed), *broken])
    elif listed:
        now = datetime.now(UTC)
        print_table(_COLUMNS, [one.row(now) for one in listed])
    elif not damaged:
        call.note(f"no datasets in {lake.store.url} yet: create one with `floodmark ingest NAME PATH`")
    for name, why in damaged.items():
        call.note(f"error: {name} cannot be read: {why.message}\n  run `floodmark verify {name}` for details")
    if damaged:
        click.get_current_context().exit(FAILED)


@verb("schema")
@click.argument("name")
def schema(call: Invocation, name: str) -> None:
    """Show columns, types, event time, key and merge strategy.

    \b
    floodmark schema trips
    floodmark schema trips --json | jq -r '.columns[].name'
    """
    from floodmark.ledger.schema import SYSTEM_COLUMNS

    lake = call.lake()
    dataset = lake[name]
    event_time, strategy = dataset.event_time, dataset.strategy
    found = dataset.schema
    fields = [] if found is None else list(found)
    computed = dataset.catalog.columns
    if call.as_json:
        columns = [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in fields]
        output.emit(
            dataset=dataset.name,
            event_time=event_time,
            merge=strategy.kind,
            key=strategy.key,
            compare=strategy.compare,
            lookup=strategy.lookup,
            system_columns=dataset.system_columns,
            columns=columns,
            computed=[_computed(c) for c in computed],
        )
        return
    if (view := targets.find_view(lake, name)) is not None:
        call.note(f"{dataset.name}: a view; {targets.describe_refresh(view)}")
    elif strategy.is_keyed:
        call.note(f"{dataset.name}: {strategy}")
    if not fields:
        first = "ingest" if view is None else "refresh"
        call.note(f"{dataset.name}: no columns yet; the first {first} sets them")
        return
    heads = [TableColumn("column"), TableColumn("type"), TableColumn("nulls"), TableColumn("role")]
    rows = [
        [f.name, str(f.type), "yes" if f.nullable else "no", _role(f.name, event_time, strategy.key)] for f in fields
    ]
    rows += [[c.name, str(c.type), "yes", f"computed from {', '.join(c.inputs)}"] for c in computed]
    print_table(heads, rows)
    if dataset.system_columns != SYSTEM_COLUMNS:
        call.note(f"The system columns are {', '.join(dataset.system_columns)}.")
    if event_time is None:
        call.note(f"The event time is the time of writing ({dataset.system_columns[2]}).")


def _role(column: str, event_time: str | None, key: tuple[str, ...]) -> str:
    return ", ".join([*(["key"] if column in key else []), *(["event time"] if column == event_time else [])])


def _computed(column: ComputedColumn) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": str(column.type),
        "nullable": column.nullable,
        "inputs": column.inputs,
        "function": column.function.name,
        "version": column.function.version,
    }


@verb("log")
@click.argument("name")
@click.option("-n", "--number", metavar="N", type=click.IntRange(min=1), help="Show only the newest N. Default: all.")
def log(call: Invocation, name: str, number: int | None) -> None:
    """Show the history of a dataset, newest first.

    \b
    floodmark log trips -n 10
    floodmark log trips --json | jq '.entries[0].hash'

    A line per block: hash, number, time, kind, summary. On a terminal times are relative. Blocks are read while they
    are printed, so a long log starts immediately.
    """
    dataset = call.lake()[name]
    entries = islice(dataset.log(), number)
    if call.as_json:
        # Read completely before printing: an unreadable block must not leave half a document.
        output.emit(dataset=dataset.name, entries=[_entry_fields(entry) for entry in entries])
        return
    width = len(str(dataset.snapshot().head_block.sequence_number))
    oldest = 0
    for entry in entries:
        _print_entry(entry, width)
        oldest = entry.sequence_number
    if oldest:
        call.note(f"… {output.format_count(oldest, 'older block')}")


def _entry_fields(entry: LogEntry) -> dict[str, Any]:
    new = getattr(entry.event, "new_data", None)
    return {
        "hash": entry.hash.text,
        "sequence_number": entry.sequence_number,
        "system_time": entry.system_time,
        "kind": entry.kind,
        "summary": entry.summary,
        "start": None if new is None else new.offset_interval.start,
        "end": None if new is None else new.offset_interval.end + 1,
    }


def _print_entry(entry: LogEntry, width: int) -> None:
    number = f"{entry.sequence_number:>{width}}"
    what = escape_control_characters(entry.summary)
    if not sys.stdout.isatty():
        click.echo(f"{entry.hash.short}  {number}  {output.format_time(entry.system_time)}  {entry.kind:<13}  {what}")
        return
    short = click.style(entry.hash.short, fg="yellow")
    when = click.style(f"{output.format_age(entry.system_time, datetime.now(UTC)):<14}", fg="green")
    click.echo(f"{short}  {number}  {when}  {click.style(f'{entry.kind:<13}', dim=True)}  {what}")


@verb("drop")
@click.argument("name")
@click.option("--cascade", is_flag=True, help="Delete the datasets that are computed from it, too.")
@removal_options
def drop(call: Invocation, name: str, cascade: bool, yes: bool, dry_run: bool) -> None:
    """Delete a dataset and all its data, permanently.

    \b
    floodmark drop trips --dry-run
    floodmark drop trips --yes
    floodmark drop trips --cascade --yes

    It is refused if other datasets are computed from it: outputs of steps, and views. With --cascade these are deleted
    first. The next run of their pipeline creates them again.
    """
    lake = call.lake()
    dataset = lake[name]
    records, size = _records_and_size(dataset)
    what = f"{dataset.name} ({_size_text(records, size)})"
    readers = list_readers(lake, name)
    if dry_run or not readers or cascade:
        *others, _ = lake.drop_order(name)
        also = f" and {', '.join(others)}, computed from it," if others else ""
        text = f"permanently drop {what}{also} from {lake.store.url}"
        facts = {"dropped": dataset.name, "also": list(others), "records": records, "size": size}
        if not Removal(text, facts, readers if dry_run else ()).is_confirmed(call, yes, dry_run):
            return
    dropped = lake.drop(name, cascade=cascade)
    if call.as_json:
        output.emit(dropped=dataset.name, also=list(dropped[:-1]), records=records, size=size)
    else:
        also = f" and {', '.join(dropped[:-1])}, computed from it" if len(dropped) > 1 else ""
        click.echo(f"dropped {what}{also}")


def _records_and_size(dataset: Dataset) -> tuple[int | None, int | None]:
    """Number of records and bytes. None for a damaged dataset, which can still be dropped."""
    try:
        snapshot = dataset.snapshot()
    except FloodmarkError:
        return None, None
    return snapshot.records, snapshot.size


def _size_text(records: int | None, size: int | None) -> str:
    if records is None or size is None:
        return "damaged, size unknown"
    return f"{output.format_count(records, 'record')}, {output.format_bytes(size)}"


@verb("rename")
@click.argument("old")
@click.argument("new")
def rename(call: Invocation, old: str, new: str) -> None:
    """Give a dataset another name; no data moves.

    \b
    floodmark rename trips rides
    """
    lake = call.lake()
    before = lake[old].name
    dataset = lake.rename(old, new)
    if call.as_json:
        output.emit(old=before, new=dataset.name, id=dataset.id.text)
    else:
        click.echo(f"{before} is now {dataset.name}")
