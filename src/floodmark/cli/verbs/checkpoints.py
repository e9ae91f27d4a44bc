"""`floodmark checkpoints`: what is stored of computations, and what of it can go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import document, words
from floodmark.cli.call import Call, verb
from floodmark.cli.exits import InOrder
from floodmark.cli.tables import Column, Row, print_table, visible

if TYPE_CHECKING:
    from floodmark.cli.collected import Collected
    from floodmark.cli.computations import Computation
    from floodmark.dataset import Dataset
    from floodmark.lake import Lake

_COLUMNS = [
    Column("dataset"),
    Column("column"),
    Column("function"),
    Column("version"),
    Column("state"),
    Column("fragments", is_number=True),
    Column("ranges", is_number=True),
    Column("files", is_number=True),
    Column("rows", is_number=True),
    Column("size", is_number=True),
    Column("newest"),
]


@click.group("checkpoints", cls=InOrder)
def checkpoints() -> None:
    """Show or collect what backfills have stored.

    \b
    floodmark checkpoints list images
    floodmark checkpoints gc --dry-run

    A checkpoint holds results of a column's function for a range of rows, or names a file of them, until they are
    committed and for some time after. It can be lost: what it held is computed again.
    """


@verb("list")
@click.argument("name", required=False)
@click.option("--keys", is_flag=True, help="Print the key of every checkpoint instead, one per line.")
def list_checkpoints(call: Call, name: str | None, keys: bool) -> None:
    """Show the checkpoints, one line per computation.

    \b
    floodmark checkpoints list
    floodmark checkpoints list images --keys

    A computation is a function, its version, a column and the inputs. Rows are those that its ranges and files span.
    The state says whether a column is computed so now: `current`, or what has changed since.
    """
    from floodmark.cli.computations import computations

    lake = call.lake()
    datasets = _datasets(lake, name)
    if keys:
        _print_keys(call, lake, datasets, name or lake.store.url)
        return
    found = [one for d in datasets for one in computations(d)]
    if call.as_json:
        document.emit(lake=lake.store.url, computations=[_fields(one) for one in found])
    elif found:
        now = datetime.now(UTC)
        print_table(_COLUMNS, [_row(one, now) for one in found])
    else:
        call.note(f"no checkpoints in {name or lake.store.url}")


def _datasets(lake: Lake, name: str | None) -> list[Dataset]:
    return lake.datasets() if name is None else [lake[name]]


def _print_keys(call: Call, lake: Lake, datasets: Iterable[Dataset], where: str) -> None:
    if call.as_json:
        infos = (
            {"dataset": d.name, "key": i.key, "size": i.size, "modified": datetime.fromtimestamp(i.modified, UTC)}
            for d in datasets
            for i in sorted(d.checkpoints.infos(), key=lambda info: info.key)
        )
        document.emit(lake=lake.store.url, checkpoints=infos)
        return
    found = [key for dataset in datasets for key in dataset.checkpoints.list_keys()]
    for key in found:
        click.echo(visible(key))
    if not found:
        call.note(f"no checkpoints in {where}")


def _fields(one: Computation) -> dict[str, Any]:
    return {**asdict(one), "newest": datetime.fromtimestamp(one.newest, UTC)}


def _row(one: Computation, now: datetime) -> Row:
    counts = [f"{count:,}" for count in (one.fragments, one.ranges, one.files, one.rows)]
    newest = words.ago(datetime.fromtimestamp(one.newest, UTC), now)
    return [
        one.dataset,
        one.column,
        one.udf,
        words.short(one.version),
        one.state,
        *counts,
        words.size(one.size),
        newest,
    ]


@verb("gc")
@click.argument("name", required=False)
@click.option("--dry-run", is_flag=True, help="Say what would go; remove nothing.")
def collect(call: Call, name: str | None, dry_run: bool) -> None:
    """Remove what no computed column needs any more.

    \b
    floodmark checkpoints gc --dry-run
    floodmark checkpoints gc images

    Checkpoints go whose rows are committed, or whose computation is no column's any more: the function or its inputs
    are others now, or the column was dropped. So do files of values that nothing names. Whatever is younger than a week
    stays, for it may be in use. A dropped column that is added again after that is computed again.
    """
    from floodmark.cli.collected import Collected

    lake = call.lake()
    found = []
    for dataset in _datasets(lake, name):
        garbage = dataset.find_garbage() if dry_run else dataset.collect_garbage()
        found.append(Collected.of(dataset, garbage))
        if not call.as_json:
            _print_collected(found[-1], "would remove" if dry_run else "removed")
    if call.as_json:
        document.emit(lake=lake.store.url, dry_run=dry_run, datasets=[asdict(one) for one in found])
    elif not any(one.checkpoints or one.files or one.young or one.needed for one in found):
        call.note(f"no checkpoints in {name or lake.store.url}")


def _print_collected(one: Collected, did: str) -> None:
    gone = [words.many(one.checkpoints, "checkpoint")] if one.checkpoints else []
    gone += [words.many(one.files, "file")] if one.files else []
    stay = [f"{one.young:,} younger than a week"] if one.young else []
    stay += [f"{one.needed:,} that a backfill would use"] if one.needed else []
    if not gone and not stay:
        return
    done = f"{did} {' and '.join(gone)} ({words.size(one.size)})" if gone else "nothing to remove"
    left = f"; {words.many(one.young + one.needed, 'checkpoint')} stay: {', '.join(stay)}" if stay else ""
    click.echo(f"{one.dataset}: {done}{left}")


checkpoints.add_command(list_checkpoints)
checkpoints.add_command(collect)
