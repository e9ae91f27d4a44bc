"""Commands for maintenance: `fold`, `purge`, `erase` and `gc`."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import arguments, output
from floodmark.cli.command import Invocation, verb
from floodmark.cli.exit_codes import FAILED
from floodmark.cli.output import escape_control_characters
from floodmark.cli.removal import Removal, list_readers, removal_options

if TYPE_CHECKING:
    from floodmark.maintenance.gc import GarbageObjects
    from floodmark.rows.erase import EraseReport
    from floodmark.rows.purge import PurgeReport


@verb("fold")
@click.argument("name")
@click.option("--partition", metavar="P", help="Compact only this partition of the timeline, such as 2026-11-01.")
def fold(call: Invocation, name: str, partition: str | None) -> None:
    """Compact: copy the live rows into large files, for faster reads.

    \b
    floodmark fold people
    floodmark fold ticks --partition 2026-11-01

    Use it if many records are dead (replaced or retracted), or if there are many small slices. No record is removed:
    reads use the copy instead of the slices, and the copy can be deleted at any time. A write folds automatically when
    a tenth of the records is dead or a thousand slices are small.

    The timeline is folded too: late rows are merged into their row groups, and small row groups are combined. With
    --partition only this partition of the timeline is folded: its label from `timeline --pieces`, or any time in it.
    """
    dataset = call.lake()[name]
    done = None if dataset.schema is None else dataset.fold(partition)
    if call.as_json:
        counts = {"read": 0, "files": 0, "rows": 0, "bytes": 0, "dead": 0} if done is None else asdict(done)
        counts["size"] = counts.pop("bytes")
        output.emit(dataset=dataset.name, **counts)
    elif done is None or done.read == 0:
        where = "" if partition is None else f" in {partition}"
        click.echo(f"{dataset.name}: nothing to fold{where}; no dead records, and no adjacent small files")
    else:
        size = f"{output.format_count(done.rows, 'row')}, {output.format_bytes(done.bytes)}"
        into = f"{output.format_count(done.files, 'file')} ({size})"
        left = f", without {output.format_count(done.dead, 'dead record')}" if done.dead else ""
        click.echo(f"{dataset.name}: folded {output.format_count(done.read, 'file')} into {into}{left}")


@verb("purge")
@click.argument("name")
@click.option(
    "--before",
    required=True,
    metavar="OFFSET|TIME",
    help="An offset (a number), or an event time: a date in UTC, or a time with a zone such as 2026-11-15T12:00Z.",
)
@removal_options
def purge(call: Invocation, name: str, before: str, yes: bool, dry_run: bool) -> None:
    """Delete old records permanently.

    \b
    floodmark purge trips --before 2026-01-01T00:00Z --dry-run
    floodmark purge trips --before 100000 --yes

    Deletes whole slices: those whose records are all before the offset or event time, so some older records may remain.
    A dataset with a key keeps its current rows: they are carried to new offsets, and only history is deleted. The chain
    and the other offsets stay, and `verify` reports what is purged.
    """
    lake = call.lake()
    dataset = lake[name]
    point = int(before) if re.fullmatch(r"[0-9]+", before) else before
    plan, readers = dataset.plan_purge(point), list_readers(lake, name)
    what = f"permanently purge {dataset.name}: {_purged_text(plan)}"
    facts = {"dataset": dataset.name, **_purge_facts(plan)}
    # A purge with nothing to remove deletes what an earlier one could not delete: that needs no confirmation.
    if not Removal(what, facts, readers, plan.before).is_confirmed(call, yes or not plan.slices, dry_run):
        return
    done = dataset.purge(point)
    if call.as_json:
        output.emit(dataset=dataset.name, **_purge_facts(done))
    elif done.slices:
        click.echo(f"{dataset.name}: purged {_purged_text(done)}; offsets below {done.before} are gone")
    elif dataset.strategy.is_keyed:
        click.echo(f"{dataset.name}: nothing to purge; no slice with history is entirely before {before}")
    else:
        click.echo(f"{dataset.name}: nothing to purge; no slice is entirely before {before}")


@verb("erase")
@click.argument("name")
@click.argument("given", metavar="COLUMN=VALUE...", nargs=-1, required=True)
@removal_options
def erase(call: Invocation, name: str, given: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    """Remove every version of a key from every file, permanently.

    \b
    floodmark erase people id=7 --dry-run
    floodmark erase people id=7 --yes

    Use it to forget a person. The slices with records of the key are written again without these records' values;
    copies, indexes and computed values of them are removed. The chain, the offsets and all other records stay. The
    chain records what was replaced and the hash of the key, and `verify` checks it.

    Records that steps and views computed from it are erased, too. A current row is first retracted, and what is
    computed from it must process that: then the command says what to run, and you repeat it. If a dataset does not
    tell which of its rows were computed from which, the command names it: drop it first, and run its pipeline
    afterwards.
    """
    lake = call.lake()
    dataset, keys = lake[name], arguments.parse_keys(given)
    typed, readers = arguments.cast_keys(keys, dataset), list_readers(lake, name)
    plan = None if typed is None else dataset.plan_erase(typed)
    facts = {"dataset": dataset.name, "keys": keys, **_erase_facts(plan)}
    what = f"permanently erase {_erased_text(plan)} from {dataset.name}"
    has_records = plan is not None and plan.records > 0
    if not Removal(what, facts, readers).is_confirmed(call, yes or not has_records, dry_run):
        return
    done = None if typed is None else lake.erase(name, typed)
    if call.as_json:
        output.emit(dataset=dataset.name, keys=keys, **_erase_facts(done))
    elif done is None or not done.records:
        click.echo(f"{dataset.name}: nothing to erase; no record has {arguments.format_keys(keys)}")
    else:
        click.echo(f"{dataset.name}: erased {_erased_text(done)}")
        for one, records in done.derived.items():
            click.echo(f"{one}: erased {output.format_count(records, 'record')} computed from it")


def _erased_text(report: EraseReport | None) -> str:
    if report is None:
        return "nothing"
    records = f"{output.format_count(report.records, 'record')} of {output.format_count(report.keys, 'key')}"
    return f"{records} in {output.format_count(report.slices, 'slice')}"


def _erase_facts(report: EraseReport | None) -> dict[str, Any]:
    if report is None:
        return {"erased_keys": 0, "records": 0, "current": 0, "slices": 0, "derived": {}}
    return {
        "erased_keys": report.keys,
        "records": report.records,
        "current": report.current,
        "slices": report.slices,
        "derived": dict(report.derived),
    }


def _purged_text(report: PurgeReport) -> str:
    slices = f"{output.format_count(report.slices, 'slice')} ({output.format_bytes(report.bytes)})"
    gone = f"{output.format_count(report.records, 'record')} in {slices}"
    stay = "stays" if report.carried == 1 else "stay"
    return gone + (f", of which {output.format_count(report.carried, 'current row')} {stay}" if report.carried else "")


def _purge_facts(report: PurgeReport) -> dict[str, int]:
    return {
        "purged_before": report.before,
        "slices": report.slices,
        "records": report.records,
        "size": report.bytes,
        "carried": report.carried,
    }


@verb("gc")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Show what would be removed; remove nothing.")
def gc(call: Invocation, names: tuple[str, ...], dry_run: bool) -> None:
    """Remove unused files of the named datasets, or of the whole lake.

    \b
    floodmark gc --dry-run
    floodmark gc
    floodmark gc images --json

    No record is removed, and reads give the same results. Removed are: unused checkpoints and files of computed
    columns, views and timelines; folded files, key index files and row copies that newer ones replaced; slices, blocks
    and other files of writes that were killed or lost a race; unfinished files; datasets without a name that have no
    records or were prepared to replace a view.

    Files younger than a week stay, because a process may use them (unfinished files of a folder: a day; results of
    stopped runs: a month). A dataset that has records but no name is removed only if you give its id, which `doctor`
    shows.
    """
    from floodmark.maintenance import gc as gc_module
    from floodmark.maintenance.gc import FailedCollection, GarbageObjects

    lake = call.lake()
    found: list[GarbageObjects] = []
    failed: list[FailedCollection] = []
    for one in (gc_module.find_garbage if dry_run else gc_module.collect_garbage)(lake, names):
        if isinstance(one, GarbageObjects):
            found.append(one)
            if not call.as_json:
                _print_garbage(one, "would remove" if dry_run else "removed")
        else:
            failed.append(one)
            problem, hint = escape_control_characters(one.error), escape_control_characters(one.hint)
            call.note(f"error: {one.dataset or lake.store.url}: {problem}\n  {hint}")
    for name in names:
        if gc_module.is_id(name) and all(one.dataset != name for one in found):
            call.note(f"{name} was not removed: it has a name, is younger than a week, or does not exist")
    size = sum(one.bytes for one in found)
    if call.as_json:
        output.emit(
            lake=lake.store.url,
            dry_run=dry_run,
            size=size,
            collected=[_garbage_fields(one) for one in found],
            failed=[vars(one) for one in failed],
        )
    elif not found:
        call.note("nothing to remove")
    else:
        count = output.format_count(sum(len(one.objects) for one in found), "object")
        call.note(f"{'would free' if dry_run else 'freed'} {output.format_bytes(size)} in {count}")
    if failed:
        click.get_current_context().exit(FAILED)


def _print_garbage(one: GarbageObjects, did: str) -> None:
    where = f"{one.dataset}: " if one.dataset else ""
    objects = output.format_count(len(one.objects), "object")
    click.echo(escape_control_characters(f"{where}{did} {objects} of {one.kind} ({output.format_bytes(one.bytes)})"))


def _garbage_fields(one: GarbageObjects) -> dict[str, Any]:
    return {
        "dataset": one.dataset,
        "kind": one.kind,
        "objects": len(one.objects),
        "size": one.bytes,
        "keys": [info.key for info in one.objects],
    }
