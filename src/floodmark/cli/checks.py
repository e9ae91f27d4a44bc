"""Commands that check: `doctor` and `verify`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import output, targets
from floodmark.cli.command import Invocation, verb
from floodmark.cli.exit_codes import FAILED, PROBLEMS, NoLake
from floodmark.cli.output import escape_control_characters
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from floodmark.dataset import Dataset
    from floodmark.functions.udf import Udf
    from floodmark.lake import Lake
    from floodmark.ledger.verify import VerifyProblem, VerifyReport
    from floodmark.maintenance.checks import Finding
    from floodmark.provenance.comparison import ReplayReport
    from floodmark.transforms.step import Step

_PRINTED_DIFFERENCES = 3  # printed differences per transaction


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
    records. Without a NAME it checks all datasets, that no dataset has lost its name, and that a backup is complete.
    The exit code is 3 if there are problems.

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
        result = _verified(dataset, expect)
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


def _verified(dataset: Dataset, expect: str | None) -> VerifyReport:
    """The report of a dataset. An error is a problem of this dataset, so that the others are checked, too."""
    from floodmark.errors import ObjectNotFound, StorageError
    from floodmark.ledger.verify import VerifyProblem, VerifyReport

    try:
        return dataset.verify(expect)
    except FloodmarkError as error:
        if isinstance(error, StorageError) and not isinstance(error, ObjectNotFound):
            raise  # the store, which other datasets have, too
        problem = VerifyProblem("dataset", dataset.name, error.message)
        return VerifyReport(dataset.name, problems=(problem,))


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
        click.echo(escape_control_characters(f"  {problem.kind} {problem.object}: {problem.message.strip()}"))


def _lake_problems(lake: Lake) -> list[VerifyProblem]:
    """The problems that no single dataset has."""
    from floodmark.backup.verify import find_backup_problems
    from floodmark.maintenance.name_check import find_name_problems

    return [*find_name_problems(lake.store), *find_backup_problems(lake.store)]


def _verification_fields(result: VerifyReport) -> dict[str, Any]:
    return {"ok": result.ok, **asdict(result)}
