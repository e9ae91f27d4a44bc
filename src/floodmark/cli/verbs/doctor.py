"""`floodmark doctor`: whether everything that is needed is there and in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from floodmark.cli import document
from floodmark.cli.call import Call, verb
from floodmark.cli.errors import NoLake
from floodmark.cli.exits import FAILED
from floodmark.cli.tables import visible
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.doctor.finding import Finding


@verb("doctor")
@click.option("--no-spark", is_flag=True, help="Do not try to start Spark, which takes some seconds.")
def doctor(call: Call, no_spark: bool) -> None:
    """Check this machine and the lake, and say what to do.

    \b
    floodmark doctor
    floodmark doctor --no-spark --json | jq '.checks[] | select(.state != "ok")'

    One line per check: Python and packages, Java, a small Spark session, the disk, what commits need of the file system
    or bucket, the clock, every dataset's head and indexes, and what crashes have left. Small files are written to the
    lake, and removed. No data is read: that is what `verify` does.

    `warn`: it works, but look at it. `bad`: something does not work, and the exit code is 1.
    """
    found = []
    for finding in _findings(call, no_spark):
        found.append(finding)
        if not call.as_json:
            _print(finding)
    ok = all(finding.state != "bad" for finding in found)
    if call.as_json:
        document.emit(ok=ok, checks=[asdict(finding) for finding in found])
    if not ok:
        click.get_current_context().exit(FAILED)


def _findings(call: Call, no_spark: bool) -> Iterator[Finding]:
    from floodmark.doctor.checkup import check_lake, check_machine, check_spark
    from floodmark.doctor.finding import Finding
    from floodmark.pipeline.project import project_of

    yield from check_machine()
    try:
        project = project_of(Path.cwd())
    except FloodmarkError as error:
        yield Finding("floodmark.toml", "bad", error.message, error.hint)
        return  # nobody knows which Spark, or which lake
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


def _print(finding: Finding) -> None:
    click.echo(visible(f"{finding.state:<4}  {finding.what}: {' '.join(finding.detail.split())}"))
    for line in finding.remedy.splitlines():
        click.echo(f"      {visible(line.rstrip())}")
