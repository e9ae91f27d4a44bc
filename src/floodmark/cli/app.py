"""The `floodmark` command: its verbs and what its exit codes mean."""

from __future__ import annotations

import io
import os
import sys

import click

from floodmark.cli.exits import INTERRUPTED, Verbs
from floodmark.cli.verbs import (
    backfill,
    changes,
    checkpoints,
    columns,
    delete,
    doctor,
    drop,
    errors,
    fold,
    gc,
    graph,
    history,
    ingest,
    init,
    log,
    new,
    offsets,
    plan,
    purge,
    refresh,
    rename,
    reset,
    retry,
    run,
    schema,
    sql,
    status,
    tail,
    timeline,
    verify,
    view,
    why,
)
from floodmark.cli.verbs import list as listing


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="floodmark", prog_name="floodmark")
def floodmark() -> None:
    """Datasets with record offsets on a hash chain; columns, views and transforms that compute only what changed.

    \b
    floodmark init
    floodmark ingest trips 'trips-*.parquet' --event-time pickup_at
    floodmark ingest people people.csv --key id
    floodmark sql "select count(*) from trips"
    floodmark view daily --sql "select pickup_day, sum(fare) fares from trips group by pickup_day"
    floodmark refresh daily
    floodmark run

    The lake is --lake, else FLOODMARK_LAKE, else `lake = "…"` in the floodmark.toml of this folder or one above,
    else ./lake: a folder, or a bucket such as s3://bucket/prefix. Steps are those of --pipeline, else of the file that
    `pipeline = "…"` names there, else of pipeline.py.

    With --json every verb prints one JSON document and nothing else. Times are ISO 8601, decimals and durations
    (ISO 8601) are strings, bytes are hex, and NaN and the infinities are the strings "NaN", "Infinity", "-Infinity".
    Without it, what is meant for the eye only (notes, progress, errors) goes to stderr.

    \b
    Exit codes:
      0    done
      1    refused or failed: stderr says why and what to do; with --json {"error": {"type", "message", "hint"}}
           (a run or refresh in which single keys or rows failed is done, so 0; with --strict 1)
      2    the command was not understood, or lacks something
      3    verify found problems
      130  interrupted by Ctrl-C
      141  whoever read the output stopped reading
    """


for _verb in (
    new.new,
    init.init,
    listing.list_datasets,
    ingest.ingest,
    log.log,
    tail.tail,
    changes.changes,
    history.history,
    why.why,
    timeline.timeline,
    sql.sql,
    schema.schema,
    columns.columns,
    backfill.backfill,
    checkpoints.checkpoints,
    view.view,
    refresh.refresh,
    run.run,
    plan.plan,
    status.status,
    graph.graph,
    errors.errors,
    retry.retry,
    offsets.offsets,
    reset.reset,
    delete.delete,
    fold.fold,
    gc.gc,
    verify.verify,
    doctor.doctor,
    purge.purge,
    drop.drop,
    rename.rename,
):
    floodmark.add_command(_verb)


def main() -> None:
    """Run the command line of this process; always ends in an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets its number, not a traceback.
            stream.reconfigure(errors="backslashreplace")
    try:
        floodmark.main(prog_name="floodmark")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # Threads of libraries may be at work still, and would hold us up or crash on the way out.
            sys.stdout.flush()
            os._exit(INTERRUPTED)
        raise
