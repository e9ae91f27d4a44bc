"""`floodmark checkpoints`: list the stored results of computed columns, and remove unused ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import output
from floodmark.cli.command import Invocation, verb
from floodmark.cli.exit_codes import OrderedGroup
from floodmark.cli.output import TableColumn, TableRow, escape_control_characters, print_table

if TYPE_CHECKING:
    from floodmark.cli.computations import CollectedCheckpoints, Computation
    from floodmark.dataset import Dataset
    from floodmark.lake import Lake


_COLUMNS = [
    TableColumn("dataset"),
    TableColumn("column"),
    TableColumn("function"),
    TableColumn("version"),
    TableColumn("state"),
    TableColumn("fragments", is_number=True),
    TableColumn("ranges", is_number=True),
    TableColumn("files", is_number=True),
    TableColumn("rows", is_number=True),
    TableColumn("size", is_number=True),
    TableColumn("newest"),
]


@click.group("checkpoints", cls=OrderedGroup)
def checkpoints() -> None:
    """Show or remove stored results of backfills.

    \b
    floodmark checkpoints list images
    floodmark checkpoints gc --dry-run

    A checkpoint stores results of a column's function for a range of rows, or the name of a file of results. It is kept
    for some time after the results are committed. If a checkpoint is lost, its results are computed again.
    """


@verb("list")
@click.argument("name", required=False)
@click.option("--keys", is_flag=True, help="Print the key of every checkpoint, one per line.")
def list_checkpoints(call: Invocation, name: str | None, keys: bool) -> None:
    """Show the checkpoints, one line per computation.

    \b
    floodmark checkpoints list
    floodmark checkpoints list images --keys

    A computation is a column, its function, its version and the inputs. `rows` counts the rows of its ranges and files.
    The state is `select_current` if the column still uses this computation, else what has changed since.
    """

    from floodmark.cli.computations import list_computations

    lake = call.lake()
    datasets = _datasets(lake, name)
    if keys:
        _print_keys(call, lake, datasets, name or lake.store.url)
        return
    found = [one for d in datasets for one in list_computations(d)]
    if call.as_json:
        output.emit(lake=lake.store.url, computations=[_fields(one) for one in found])
    elif found:
        now = datetime.now(UTC)
        print_table(_COLUMNS, [_row(one, now) for one in found])
    else:
        call.note(f"no checkpoints in {name or lake.store.url}")


def _datasets(lake: Lake, name: str | None) -> list[Dataset]:
    return lake.datasets() if name is None else [lake[name]]


def _print_keys(call: Invocation, lake: Lake, datasets: Iterable[Dataset], where: str) -> None:
    if call.as_json:
        infos = (
            {"dataset": d.name, "key": i.key, "size": i.size, "modified": datetime.fromtimestamp(i.modified, UTC)}
            for d in datasets
            for i in sorted(d.checkpoints.infos(), key=lambda info: info.key)
        )
        output.emit(lake=lake.store.url, checkpoints=infos)
        return
    found = [key for dataset in datasets for key in dataset.checkpoints.list_keys()]
    for key in found:
        click.echo(escape_control_characters(key))
    if not found:
        call.note(f"no checkpoints in {where}")


def _fields(one: Computation) -> dict[str, Any]:
    return {**asdict(one), "newest": datetime.fromtimestamp(one.newest, UTC)}


def _row(one: Computation, now: datetime) -> TableRow:
    counts = [f"{count:,}" for count in (one.fragments, one.ranges, one.files, one.rows)]
    newest = output.format_age(datetime.fromtimestamp(one.newest, UTC), now)
    return [
        one.dataset,
        one.column,
        one.udf,
        output.shorten_version(one.version),
        one.state,
        *counts,
        output.format_bytes(one.size),
        newest,
    ]


@verb("gc")
@click.argument("name", required=False)
@click.option("--dry-run", is_flag=True, help="Show what would be removed; remove nothing.")
def collect(call: Invocation, name: str | None, dry_run: bool) -> None:
    """Remove stored results that no column needs.

    \b
    floodmark checkpoints gc --dry-run
    floodmark checkpoints gc images

    Removes checkpoints whose rows are committed, and those whose computation no column uses any more: the function or
    its inputs changed, or the column was dropped. Also removes unreferenced files of values. Anything younger than a
    week stays, because it may be in use. If you add a dropped column again after that, it is computed again.
    """

    from floodmark.cli.computations import CollectedCheckpoints

    lake = call.lake()
    found = []
    for dataset in _datasets(lake, name):
        garbage = dataset.find_garbage() if dry_run else dataset.collect_garbage()
        found.append(CollectedCheckpoints.of(dataset, garbage))
        if not call.as_json:
            _print_collected(found[-1], "would remove" if dry_run else "removed")
    if call.as_json:
        output.emit(lake=lake.store.url, dry_run=dry_run, datasets=[asdict(one) for one in found])
    elif not any(one.checkpoints or one.files or one.young or one.needed for one in found):
        call.note(f"no checkpoints in {name or lake.store.url}")


def _print_collected(one: CollectedCheckpoints, did: str) -> None:
    gone = [output.format_count(one.checkpoints, "checkpoint")] if one.checkpoints else []
    gone += [output.format_count(one.files, "file")] if one.files else []
    stay = [f"{one.young:,} younger than a week"] if one.young else []
    stay += [f"{one.needed:,} that a backfill would use"] if one.needed else []
    if not gone and not stay:
        return
    done = f"{did} {' and '.join(gone)} ({output.format_bytes(one.size)})" if gone else "nothing to remove"
    left = f"; {output.format_count(one.young + one.needed, 'checkpoint')} stay: {', '.join(stay)}" if stay else ""
    click.echo(f"{one.dataset}: {done}{left}")


checkpoints.add_command(list_checkpoints)
checkpoints.add_command(collect)
