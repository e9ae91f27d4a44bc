"""The `floodmark` command group and its entry point."""

from __future__ import annotations

import io
import os
import sys

import click

from floodmark.cli import (
    backups,
    checkpoints,
    checks,
    columns,
    datasets,
    ingest,
    maintenance,
    plan,
    project,
    records,
    run,
    status,
    steps,
    timeline,
    views,
)
from floodmark.cli.exit_codes import INTERRUPTED, RootGroup


@click.group(cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="floodmark", prog_name="floodmark")
def floodmark() -> None:
    """Append-only datasets, with columns, views and transforms that compute only what changed.

    \b
    floodmark init
    floodmark ingest trips 'trips-*.parquet' --event-time pickup_at
    floodmark ingest people people.csv --key id
    floodmark sql "select count(*) from trips"
    floodmark view daily --sql "select pickup_day, sum(fare) fares from trips group by pickup_day"
    floodmark refresh daily
    floodmark run

    The lake is a folder, or a bucket such as s3://bucket/prefix. It is the first of these that is set: --lake,
    FLOODMARK_LAKE, `lake = "…"` in the floodmark.toml of this folder or a parent folder, ./lake. The pipeline file is
    the first of: --pipeline, `pipeline = "…"` in floodmark.toml, pipeline.py.

    With --json every command prints one JSON document and nothing else. Times are ISO 8601 strings; decimals and
    durations (ISO 8601) are strings; bytes are hexadecimal; NaN and the infinities are "NaN", "Infinity", "-Infinity".
    Without --json, notes, progress and errors go to stderr.

    \b
    Exit codes:
      0    success
      1    error: stderr has the message and a hint; with --json {"error": {"type", "message", "hint"}}
           (if only single keys or rows of a run or refresh failed: 0, or 1 with --strict)
      2    invalid command line
      3    verify found problems
      130  interrupted by Ctrl-C
      141  output pipe closed
    """


for _verb in (
    project.new,
    project.init,
    datasets.list_datasets,
    ingest.ingest,
    datasets.log,
    records.tail,
    records.changes,
    records.history,
    records.why,
    timeline.timeline,
    records.sql,
    datasets.schema,
    columns.columns,
    columns.backfill,
    checkpoints.checkpoints,
    views.view,
    views.refresh,
    run.run,
    plan.plan,
    status.status,
    status.graph,
    steps.errors,
    steps.retry,
    steps.offsets,
    steps.reset,
    records.delete,
    maintenance.fold,
    maintenance.gc,
    checks.verify,
    checks.doctor,
    backups.backup,
    backups.restore,
    maintenance.purge,
    maintenance.erase,
    datasets.drop,
    datasets.rename,
):
    floodmark.add_command(_verb)


def main() -> None:
    """Run the command group and exit with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot encode is printed as an escape; it must not raise.
            stream.reconfigure(errors="backslashreplace")
    try:
        floodmark.main(prog_name="floodmark")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # Threads of libraries may still run, and could block or crash a normal exit.
            sys.stdout.flush()
            os._exit(INTERRUPTED)
        raise
