"""Commands for backups: `backup` and `restore`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import output
from floodmark.cli.command import Invocation, marker_folder, verb
from floodmark.cli.exit_codes import NoLake
from floodmark.cli.removal import Removal, removal_options

if TYPE_CHECKING:
    from floodmark.backup.restore import RestoredDataset, RestorePlan
    from floodmark.lake import Lake


@verb("backup")
@click.argument("destination", metavar="DEST")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--yes", is_flag=True, help="Replace newer blocks that only DEST has.")
def backup(call: Invocation, destination: str, names: tuple[str, ...], yes: bool) -> None:
    """Back up the lake into a folder or bucket, while others write.

    \b
    floodmark backup /backups/lake
    floodmark backup s3://bucket/backup
    floodmark backup /backups/people people

    The backup is the lake as of one moment: no step or view in it is ahead of its inputs. It has everything that cannot
    be rebuilt. With NAMEs it has these datasets, everything that they are computed from, and what was backed up there
    before.

    Into an earlier backup, only new objects are copied, and what was purged, erased or replaced in the lake is deleted
    there. A backup that was stopped is continued by the same command; until it is done, DEST is the earlier backup.
    DEST is a lake of its own: `floodmark verify --lake DEST` checks every byte.

    It is refused if DEST has newer blocks than the lake, for example because an older copy of the lake was restored.
    """
    lake = call.lake()
    with call.waiting(f"backing up {lake.store.url}"):
        done = lake.backup(destination, *names, replace=yes)
    if call.as_json:
        facts = asdict(done)
        output.emit(**{name.replace("bytes", "size"): value for name, value in facts.items()})
        return
    copied = f"{output.format_count(done.copied_objects, 'object')} ({output.format_bytes(done.copied_bytes)})"
    has = f"{output.format_count(len(done.datasets), 'dataset')}, {output.format_bytes(done.bytes)}"
    click.echo(f"backed up {has} into {done.destination}; copied {copied}")


@verb("restore")
@click.argument("source", metavar="SOURCE")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@removal_options
def restore(call: Invocation, source: str, names: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    """Restore a backup, into an empty lake or over an existing one.

    \b
    floodmark restore /backups/lake --lake restored
    floodmark restore /backups/lake --dry-run
    floodmark restore /backups/lake people --yes

    Restores all datasets of the backup, or the named ones. Datasets that are not in it stay. The backup is checked
    first, and each object while it is copied. If the lake has newer records than the backup, --yes is needed: they go.
    With --dry-run it shows what would go, and which steps and views would have to catch up.

    Stop all writers of the lake first. If the command is stopped, each dataset is old or new; the same command again
    finishes.
    """
    from floodmark.backup.restore import describe_loss

    lake = _lake_to_restore(call, dry_run)
    plan = lake.plan_restore(source, *names)
    losses = "; ".join(map(describe_loss, plan.replaces))
    also = f", which replaces {losses}" if losses else ""
    what = f"restore {output.format_count(len(plan.datasets), 'dataset')} of {_moment(plan)} from {plan.backup}{also}"
    if dry_run and not call.as_json:
        click.echo(f"would {what}")
        for line in _lines(plan):
            click.echo(line)
        return
    if not Removal(what, _fields(plan)).is_confirmed(call, yes or not plan.replaces, dry_run):
        return
    with call.waiting(f"restoring {plan.backup}"):
        done = lake.restore(source, *names, replace=yes)
    if call.as_json:
        output.emit(**_fields(done))
        return
    for line in _lines(done):
        click.echo(line.removeprefix("  "))
    size = output.format_bytes(done.bytes)
    click.echo(f"restored {output.format_count(len(done.datasets), 'dataset')} ({size}) from {done.backup}")


def _lake_to_restore(call: Invocation, dry_run: bool) -> Lake:
    """The lake, created if its folder does not exist."""
    from floodmark.lake import Lake

    try:
        return call.lake()
    except NoLake:
        lake = Lake(call.place().url)
        mark = marker_folder(lake)
        if mark is None or (mark.parent.exists() and any(mark.parent.iterdir())):
            raise
        if not dry_run:
            mark.mkdir(parents=True, exist_ok=True)
        return lake


def _moment(plan: RestorePlan) -> str:
    return output.format_time(datetime.fromtimestamp(plan.time / 10**9, UTC))


_DONE = {"new": "is not in the lake", "same": "has the same records", "forward": "is older in the lake"}


def _lines(plan: RestorePlan) -> Iterator[str]:
    for one in plan.datasets:
        yield f"  {one.name}: {'; '.join(_parts(one))}"
    source = "it" if len(plan.datasets) == 1 else "them"
    for name in plan.readers:
        yield f"  {name}: is computed from {source}, and has to catch up: run its pipeline, or refresh it"
    if plan.unaffected:
        yield f"  {', '.join(plan.unaffected)}: not restored"


def _parts(one: RestoredDataset) -> Iterator[str]:
    if one.direction != "back":
        yield _DONE[one.direction]
    elif one.lost_records is None:
        yield "its newest blocks in the lake cannot be read, and go"
    else:
        yield f"{output.format_count(one.lost_records, 'newer record')} in the lake"
    if one.lost_erasures:
        yield f"{output.format_count(one.lost_erasures, 'erasure')} undone: erase these keys again"
    if one.replaces_columns:
        yield "other computed columns in the lake"
    if one.replaces_dataset is not None:
        yield f"the name is that of another dataset in the lake, {one.replaces_dataset}, which stays without a name"


def _fields(plan: RestorePlan) -> dict[str, Any]:
    datasets = [
        {
            **asdict(one),
            "id": str(one.id),
            "replaces_dataset": one.replaces_dataset and str(one.replaces_dataset),
            "replaces": one.replaces,
        }
        for one in plan.datasets
    ]
    return {
        "backup": plan.backup,
        "time": datetime.fromtimestamp(plan.time / 10**9, UTC),
        "datasets": datasets,
        "objects": plan.objects,
        "size": plan.bytes,
        "unaffected": plan.unaffected,
        "to_catch_up": plan.readers,
    }
