"""Commands for maintenance: `fold`, `purge`, `gc`, `doctor` and `verify`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import arguments, output, targets
from floodmark.cli.command import Invocation, verb
from floodmark.cli.exit_codes import FAILED, PROBLEMS, NoLake
from floodmark.cli.output import escape_control_characters
from floodmark.cli.removal import Removal, list_readers, removal_options
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from floodmark.functions.udf import Udf
    from floodmark.lake import Lake
    from floodmark.ledger.verify import VerifyProblem, VerifyReport
    from floodmark.maintenance.checks import Finding
    from floodmark.maintenance.gc import GarbageObjects
    from floodmark.provenance.comparison import ReplayReport
    from floodmark.rows.erase import EraseReport
    from floodmark.rows.purge import PurgeReport
    from floodmark.transforms.step import Step


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
    return gone + (f", of which {output.format_count(report.carried, 'current row')} stay" if report.carried else "")


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


@verb("doctor")
@click.option("--no-spark", is_flag=True, help="Do not start Spark, which takes some seconds.")
def doctor(call: Invocation, no_spark: bool) -> None:
    """Check this machine and the lake, and suggest fixes.

    \b
    floodmark doctor
    floodmark doctor --no-spark --json | jq '.checks[] | select(.state != "ok")'

    One line per check: Python and packages, Java, a small Spark session, the disk, the file system or bucket operations
    that commits need, the clock, the head and indexes of every dataset, and files left by crashes. Small files are
    written to the lake and removed. No data is read: use `verify` for that.

    `warn`: it works, but needs attention. `bad`: it does not work, and the exit code is 1.
    """
    found = []
    for finding in _findings(call, no_spark):
        found.append(finding)
        if not call.as_json:
            _print_finding(finding)
    ok = all(finding.state != "bad" for finding in found)
    if call.as_json:
        output.emit(ok=ok, checks=[asdict(finding) for finding in found])
    if not ok:
        click.get_current_context().exit(FAILED)


def _findings(call: Invocation, no_spark: bool) -> Iterator[Finding]:
    from floodmark.maintenance.checks import Finding
    from floodmark.maintenance.doctor import check_lake, check_machine, check_spark
    from floodmark.pipeline.project import load_settings

    yield from check_machine()
    try:
        project = load_settings(Path.cwd())
    except FloodmarkError as error:
        yield Finding("floodmark.toml", "bad", error.message, error.hint)
        return  # the file configures Spark and the lake
    if not no_spark:
        with call.waiting("starting a Spark session"):
            session = list(check_spark(project.spark))
        yield from session
    try:
        lake = call.lake()
    except NoLake as error:
        yield Finding("lake", "warn", error.message, error.hint)
        return
    except FloodmarkError as error:
        yield Finding("lake", "bad", error.message, error.hint)
        return
    yield Finding("lake", "ok", lake.store.url)
    yield from check_lake(lake)


def _print_finding(finding: Finding) -> None:
    click.echo(escape_control_characters(f"{finding.state:<4}  {finding.what}: {' '.join(finding.detail.split())}"))
    for line in finding.remedy.splitlines():
        click.echo(f"      {escape_control_characters(line.rstrip())}")


_PRINTED_DIFFERENCES = 3  # printed differences per transaction


@verb("verify")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--expect", metavar="HASH", help="The block that the chain must have. Needs one NAME.")
@click.option("--replay", is_flag=True, help="Also recompute derived data, and compare.")
@click.option("--run-stored-code", is_flag=True, help="With --replay: run old code that the lake stores.")
@click.option("--strict", is_flag=True, help="With --replay: exit code 3 if code is not available.")
@targets.pipeline_option
def verify(
    call: Invocation,
    names: tuple[str, ...],
    expect: str | None,
    replay: bool,
    run_stored_code: bool,
    strict: bool,
    file: str | None,
) -> None:
    """Check datasets against their hashes.

    \b
    floodmark verify
    floodmark verify trips --json | jq '.datasets[].problems'
    floodmark verify features --replay

    Checks every block against the rules of the chain, every file against its hashes, and the key index against the
    records. Without a NAME it checks all datasets, and that a backup is complete. The exit code is 3 if there are
    problems.

    It also checks that the newest block that this machine has seen is still on the chain. With --expect it checks the
    block with that hash instead; `floodmark log --json` shows hashes. The newest block then counts as seen.

    With --replay it also recomputes every transaction of a step or view, and every computed column, from the inputs of
    that time and with the same columns and code. Steps come from the pipeline, if there is one. Differences are shown
    by key. A transaction is not replayable if its inputs are purged; the exit code is then 3. If its code has changed,
    the code is not available; the exit code is then 0, or 3 with --strict. With --run-stored-code the source text that
    the lake stores runs instead, if it needs nothing else of its old module. Use it only for a lake that you trust.
    """
    if (run_stored_code or strict) and not replay:
        raise click.UsageError("--run-stored-code and --strict need --replay")
    if expect is not None and len(names) != 1:
        raise click.UsageError("--expect needs exactly one NAME")
    lake = call.lake()
    datasets = [lake[name] for name in names] if names else lake.datasets()
    found: list[VerifyReport] = []
    for dataset in datasets:
        result = dataset.verify(expect)
        found.append(result)
        if not call.as_json:
            _print_verification(result)
    in_lake = [] if names else _lake_problems(lake)
    if in_lake and not call.as_json:
        click.echo(f"{lake.store.url}: {output.format_count(len(in_lake), 'problem')}")
        _print_problems(in_lake)
    replayed: list[ReplayReport] = []
    if replay:
        from floodmark.provenance.replay import replay as compute_again

        replayed_names = [dataset.name for dataset in datasets]
        for one in compute_again(lake, replayed_names, *_pipeline_code(file), run_stored_code=run_stored_code):
            replayed.append(one)
            if not call.as_json:
                _print_replayed(one)
    unavailable = sum(one.outcome == "code not available" for one in replayed)
    same = sum(one.outcome == "same" for one in replayed)
    ok = not in_lake and all(result.ok for result in found) and same + (0 if strict else unavailable) == len(replayed)
    if call.as_json:
        more = {"replayed": [one.to_json() for one in replayed], "code_not_available": unavailable} if replay else {}
        checked = [_verification_fields(result) for result in found]
        output.emit(lake=lake.store.url, ok=ok, problems=[asdict(one) for one in in_lake], datasets=checked, **more)
    if not found:
        call.note(f"no datasets in {lake.store.url} yet")
    if unavailable:
        way = "" if run_stored_code else "; --run-stored-code runs the text that the lake stores"
        call.note(f"not recomputed: {unavailable} of {len(replayed)}, because their code is not available{way}")
    if not ok:
        click.get_current_context().exit(PROBLEMS)


def _pipeline_code(file: str | None) -> tuple[Sequence[Step], Sequence[Udf]]:
    """The steps of the pipeline and the functions of its columns; empty if there is no pipeline."""
    from floodmark.errors import NoPipeline

    try:
        pipeline = targets.load_pipeline(file)
    except NoPipeline:
        if file is not None:
            raise
        return (), ()
    return list(pipeline), [column.udf for column in pipeline.columns.values()]


def _print_replayed(one: ReplayReport) -> None:
    where = f"column {one.column}" if one.block is None else f"block {one.block.sequence_number}"
    line = f"{one.dataset} {where}: {one.outcome}"
    if one.outcome == "same":
        click.echo(f"{line} ({output.format_count(one.keys, 'row' if one.block is None else 'key')} computed again)")
        return
    differing = 0 if one.compared is None else one.compared.differing
    click.echo(
        line
        + (f", {escape_control_characters(one.why)}" if one.why else f" in {output.format_count(differing, 'row')}")
    )
    for difference in () if one.compared is None else one.compared.differences[:_PRINTED_DIFFERENCES]:
        key = ", ".join(f"{name}={value}" for name, value in difference.key.items())
        if difference.stored is None:
            said = f"is missing, should be {dict(difference.replayed or {})}"
        elif difference.replayed is None:
            said = "should not exist"
        else:
            stored, again = difference.stored, difference.replayed
            said = ", ".join(f"{name} is {stored[name]}, should be {again[name]}" for name in difference.columns)
        click.echo(escape_control_characters(f"  {key}: {said}"))


def _print_verification(result: VerifyReport) -> None:
    if result.ok:
        parts = [output.format_count(result.blocks, "block"), output.format_count(result.slices, "slice")]
        if result.checkpoints:
            parts.append(output.format_count(result.checkpoints, "checkpoint"))
        parts.append(output.format_bytes(result.bytes))
        if result.purged_slices:
            parts.append(f"{output.format_count(result.purged_slices, 'slice')} purged")
        click.echo(f"{result.name}: ok ({', '.join(parts)})")
        return
    click.echo(f"{result.name}: {output.format_count(len(result.problems), 'problem')}")
    _print_problems(result.problems)


def _print_problems(problems: Sequence[VerifyProblem]) -> None:
    for problem in problems:
        click.echo(f"  {problem.kind} {problem.object}: {escape_control_characters(problem.message.strip())}")


def _lake_problems(lake: Lake) -> list[VerifyProblem]:
    """The problems that no single dataset has."""
    from floodmark.backup.verify import find_backup_problems

    return find_backup_problems(lake.store)


def _verification_fields(result: VerifyReport) -> dict[str, Any]:
    return {"ok": result.ok, **asdict(result)}
